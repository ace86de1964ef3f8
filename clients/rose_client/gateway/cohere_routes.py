"""Cohere's embed and rerank; rerank is also Jina's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from starlette.responses import Response

from rose_client.gateway.context import Context, RequestContext
from rose_client.gateway.inputs import read_texts
from rose_client.gateway.replies import base64_rows, json_response
from rose_client.gateway.service import EmbedRequest, ScoreRequest, Service
from rose_client.wire import Embeddings, EmbedOptions

_OUTPUTS = {
    "float": "float",
    "base64": "float",
    "int8": "int8",
    "uint8": "int8",
    "binary": "binary",
    "ubinary": "binary",
}
_INPUT_TYPES = {"search_query": "query", "search_document": "document"}
_SIDES = {"START": "left", "END": "right"}
_OFFSET = 128  # between the signed and the unsigned form of the same byte

Count = Annotated[StrictInt, Field(ge=1)]


class Document(BaseModel):
    """A document as an object."""

    model_config = ConfigDict(extra="forbid")

    text: StrictStr


class RerankBody(BaseModel):
    """Fields of Cohere's v1 and Jina's."""

    model_config = ConfigDict(extra="forbid")

    query: StrictStr
    documents: list[StrictStr | Document]
    model: StrictStr | None = None
    top_n: Count | None = None
    return_documents: StrictBool = False


class RerankV2Body(BaseModel):
    """Fields of Cohere's v2."""

    model_config = ConfigDict(extra="forbid")

    query: StrictStr
    documents: list[StrictStr]
    model: StrictStr | None = None
    top_n: Count | None = None


class RerankResult(BaseModel):
    """One document's place."""

    index: int
    relevance_score: float
    document: Document | None = None


class RerankReply(BaseModel):
    """Documents by relevance, the highest first."""

    id: str
    results: list[RerankResult]
    model: str
    usage: dict[str, int]
    meta: dict[str, Any]


class EmbedBody(BaseModel):
    """Fields of Cohere's v2. `classification` and `clustering` texts get the checkpoint's default prompt."""

    model_config = ConfigDict(extra="forbid")

    texts: list[StrictStr]
    input_type: Literal["search_query", "search_document", "classification", "clustering"]
    model: StrictStr | None = None
    embedding_types: list[Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]] | None = None
    output_dimension: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"

    def types(self) -> list[str]:
        """What is wanted, float by default."""
        return list(dict.fromkeys(self.embedding_types or ["float"]))

    def options(self) -> EmbedOptions:
        """What was given, as the servers know it."""
        options: EmbedOptions = {"truncate": self.truncate != "NONE"}
        if self.truncate in _SIDES:
            options["truncation_direction"] = _SIDES[self.truncate]
        if self.input_type in _INPUT_TYPES:
            options["input_type"] = _INPUT_TYPES[self.input_type]
        if self.output_dimension is not None:
            options["dimensions"] = self.output_dimension
        outputs = sorted({_OUTPUTS[name] for name in self.types()})
        if outputs != ["float"]:
            options["outputs"] = outputs
        return options


class EmbedReply(BaseModel):
    """Vectors by type, in the order of the texts."""

    id: str
    embeddings: dict[str, list[Any]]
    texts: list[str]
    meta: dict[str, Any]
    response_type: Literal["embeddings_by_type"]


def cohere_routes(service: Service) -> APIRouter:
    """The routes that Cohere's and Jina's clients call."""
    router = APIRouter(tags=["Cohere, Jina"])
    limit = service.config.max_inputs

    async def rank(body: RerankBody | RerankV2Body, context: Context, version: str, *, with_text: bool) -> Response:
        texts = [item if isinstance(item, str) else item.text for item in body.documents]
        documents = read_texts(texts, "documents", limit)
        wanted = ScoreRequest(body.query.encode(), documents, body.model)
        model, scores = await service.score(wanted, context)
        order = np.argsort(-scores.values, kind="stable")[: body.top_n].tolist()
        results: list[dict[str, Any]] = []
        for index in order:
            results.append({"index": index, "relevance_score": float(scores.values[index])})
            if with_text:
                results[-1]["document"] = {"text": texts[index]}
        reply = {
            "id": context.request_id,
            "results": results,
            "model": model.name,
            "usage": {"total_tokens": scores.num_tokens},
            "meta": {"api_version": {"version": version}, "scoring": scores.method},
        }
        return json_response(reply, {"x-scoring": scores.method})

    @router.post("/v1/rerank", response_model=RerankReply, response_model_exclude_none=True)
    async def rerank(body: RerankBody, context: RequestContext) -> Response:
        """Order documents by relevance. `meta.scoring` says how: `cosine` where the model embeds."""
        return await rank(body, context, "1", with_text=body.return_documents)

    @router.post("/v2/rerank", response_model=RerankReply, response_model_exclude_none=True)
    async def rerank_v2(body: RerankV2Body, context: RequestContext) -> Response:
        """Order documents by relevance, as `/v1/rerank`. Documents are cut at the model's own limit."""
        return await rank(body, context, "2", with_text=False)

    @router.post("/v2/embed", response_model=EmbedReply)
    async def embed(body: EmbedBody, context: RequestContext) -> Response:
        """Embed texts."""
        wanted = EmbedRequest(read_texts(body.texts, "texts", limit), body.model, body.options(), "texts")
        _, answer = await service.embed(wanted, context)
        reply = {
            "id": context.request_id,
            "embeddings": {name: _encoded(answer, name) for name in body.types()},
            "texts": body.texts,
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"input_tokens": answer.num_tokens},
            },
            "response_type": "embeddings_by_type",
        }
        return json_response(reply)

    return router


def _encoded(answer: Embeddings, name: str) -> Any:
    """Of packed bits the signed form is the unsigned one less 128, of whole numbers too."""
    if name == "base64":
        return base64_rows(answer.vectors)
    if name in ("int8", "uint8"):
        return answer.int8 if name == "int8" else (answer.int8.astype(np.int16) + _OFFSET).astype(np.uint8)
    if name in ("binary", "ubinary"):
        return answer.binary if name == "ubinary" else (answer.binary.astype(np.int16) - _OFFSET).astype(np.int8)
    return answer.vectors
