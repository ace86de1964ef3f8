"""Perplexity's embeddings of documents in chunks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from starlette.responses import Response

from rose_client.gateway.context import RequestContext
from rose_client.gateway.errors import GatewayError
from rose_client.gateway.inputs import read_texts
from rose_client.gateway.openai_routes import EmbeddingEntry, Encoding, Usage, encoded, encoding_options
from rose_client.gateway.replies import json_response
from rose_client.gateway.service import EmbedRequest, Service
from rose_client.wire import EmbedOptions, part_embeddings


class ContextualBody(BaseModel):
    """Perplexity's fields, and of ours two encodings more and `late_chunking`."""

    model_config = ConfigDict(extra="forbid")

    input: list[list[StrictStr]]
    model: StrictStr | None = None
    encoding_format: Encoding = "base64_int8"
    dimensions: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    late_chunking: StrictBool | None = None

    def options(self) -> EmbedOptions:
        """What was given, as the servers know it."""
        options = encoding_options(self.encoding_format)
        if self.dimensions is not None:
            options["dimensions"] = self.dimensions
        if self.late_chunking is not None:
            options["late_chunking"] = self.late_chunking
        return options


class DocumentEntry(BaseModel):
    """One document's vectors, in the order of its chunks."""

    object: Literal["list"]
    index: int
    data: list[EmbeddingEntry]


class ContextualReply(BaseModel):
    """Documents in the order of the input."""

    object: Literal["list"]
    data: list[DocumentEntry]
    model: str
    usage: Usage


def perplexity_routes(service: Service) -> APIRouter:
    """The route that Perplexity's clients call for documents; the other one is OpenAI's."""
    router = APIRouter(tags=["Perplexity"])

    @router.post("/v1/contextualizedembeddings", response_model=ContextualReply)
    async def contextual(body: ContextualBody, context: RequestContext) -> Response:
        """Embed the chunks of documents, each in sight of its whole document."""
        for index, chunks in enumerate(body.input):
            if not chunks:
                raise GatewayError.empty(f"input[{index}]")
        items = read_texts([chunk for chunks in body.input for chunk in chunks], "input", service.config.max_inputs)
        counts = [len(chunks) for chunks in body.input]
        wanted = EmbedRequest(items, body.model, body.options(), "chunks", counts)
        model, answer = await service.embed(wanted, context)
        data: list[dict[str, Any]] = []
        for index, document in enumerate(part_embeddings(answer, counts)):
            vectors = enumerate(encoded(document, body.encoding_format))
            entries = [{"object": "embedding", "index": chunk, "embedding": vector} for chunk, vector in vectors]
            data.append({"object": "list", "index": index, "data": entries})
        tokens = answer.num_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_response({"object": "list", "data": data, "model": model.name, "usage": usage})

    return router
