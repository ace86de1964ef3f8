"""The routes of text-embeddings-inference. As there, unknown fields are ignored; `model` is this server's own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr
from starlette.responses import Response

from rose_client.gateway.context import Context, RequestContext
from rose_client.gateway.errors import GatewayError
from rose_client.gateway.inputs import Inputs, check_count, read_inputs, read_texts
from rose_client.gateway.replies import json_response
from rose_client.gateway.service import EmbedRequest, ScoreRequest, Service
from rose_client.gateway.vocabulary import Vocabularies
from rose_client.wire import Embeddings, EmbedOptions

Direction = Literal["Left", "Right", "left", "right"]


class TeiOptions(BaseModel):
    """What several routes take."""

    truncate: StrictBool | None = None
    truncation_direction: Direction | None = None
    prompt_name: StrictStr | None = None

    def options(self) -> EmbedOptions:
        """What was given, as the servers know it."""
        options: EmbedOptions = {}
        if self.truncate is not None:
            options["truncate"] = self.truncate
        if self.truncation_direction is not None:
            options["truncation_direction"] = self.truncation_direction.lower()
        if self.prompt_name is not None:
            options["prompt_name"] = self.prompt_name
        return options


class TeiEmbedBody(TeiOptions):
    """Texts or token ids to embed."""

    inputs: Inputs
    normalize: StrictBool = True
    dimensions: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    model: StrictStr | None = None

    def options(self) -> EmbedOptions:
        """What was given, as the servers know it."""
        options = super().options()
        options["normalize"] = self.normalize
        if self.dimensions is not None:
            options["dimensions"] = self.dimensions
        return options


class TeiTokenBody(TeiOptions):
    """Texts of which something is wanted for each token."""

    inputs: Inputs
    model: StrictStr | None = None


class Weight(BaseModel):
    """What one token weighs."""

    index: int
    value: float


class TeiRerankBody(BaseModel):
    """A query and texts to order."""

    query: StrictStr
    texts: list[StrictStr]
    truncate: StrictBool | None = None
    truncation_direction: Direction | None = None
    raw_scores: StrictBool = False
    return_text: StrictBool = False
    model: StrictStr | None = None

    def options(self) -> EmbedOptions:
        """What was given, as the servers know it."""
        return TeiOptions(truncate=self.truncate, truncation_direction=self.truncation_direction).options()


class Rank(BaseModel):
    """One text's place."""

    index: int
    score: float
    text: str | None = None


class SimilarityInputs(BaseModel):
    """One sentence and those to compare it with."""

    source_sentence: StrictStr
    sentences: list[StrictStr]


class SimilarityBody(BaseModel):
    """What to compare, and how to embed it."""

    inputs: SimilarityInputs
    parameters: TeiOptions | None = None
    model: StrictStr | None = None


class TokenizeBody(BaseModel):
    """Texts to take apart."""

    inputs: StrictStr | list[StrictStr]
    add_special_tokens: StrictBool = True
    prompt_name: StrictStr | None = None
    model: StrictStr | None = None


class TokenReply(BaseModel):
    """One token; special ones have no place in the text."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


def tei_routes(service: Service, vocabularies: Vocabularies) -> APIRouter:
    """The routes that TEI's clients call."""
    router = APIRouter(tags=["text-embeddings-inference"])
    limit = service.config.max_inputs

    async def of_tokens(body: TeiTokenBody, output: str, context: Context) -> Embeddings:
        items = read_inputs(body.inputs, "inputs", limit)
        options: EmbedOptions = {**body.options(), "outputs": [output]}
        _, answer = await service.embed(EmbedRequest(items, body.model, options, "inputs"), context)
        return answer

    @router.post("/embed", response_model=list[list[float]])
    @router.post("/", response_model=list[list[float]], include_in_schema=False)
    async def embed(body: TeiEmbedBody, context: RequestContext) -> Response:
        """Embed texts, or token ids, which are used as they are."""
        items = read_inputs(body.inputs, "inputs", limit)
        _, answer = await service.embed(EmbedRequest(items, body.model, body.options(), "inputs"), context)
        return json_response(answer.vectors, timing_headers(context))

    @router.post("/embed_all", response_model=list[list[list[float]]])
    async def embed_all(body: TeiTokenBody, context: RequestContext) -> Response:
        """Give a vector of each token, special ones included."""
        answer = await of_tokens(body, "token", context)
        return json_response(answer.tokens, timing_headers(context))

    @router.post("/embed_sparse", response_model=list[list[Weight]])
    async def embed_sparse(body: TeiTokenBody, context: RequestContext) -> Response:
        """Weigh the tokens of texts, where the model does; `index` is a token id, ascending."""
        answer = await of_tokens(body, "sparse", context)
        reply = [
            [{"index": index, "value": value} for index, value in zip(text.index, text.weight, strict=True)]
            for text in answer.sparse
        ]
        return json_response(reply, timing_headers(context))

    @router.post("/rerank", response_model=list[Rank], response_model_exclude_none=True)
    async def rerank(body: TeiRerankBody, context: RequestContext) -> Response:
        """Order texts by relevance. The header `x-scoring` says how: `cosine` where the model embeds."""
        texts = read_texts(body.texts, "texts", limit)
        wanted = ScoreRequest(body.query.encode(), texts, body.model, body.options(), "texts")
        _, scores = await service.score(wanted, context)
        values = scores.raw if body.raw_scores else scores.values
        reply: list[dict[str, Any]] = []
        for index in np.argsort(-values, kind="stable").tolist():
            reply.append({"index": index, "score": float(values[index])})
            if body.return_text:
                reply[-1]["text"] = body.texts[index]
        return json_response(reply, {**timing_headers(context), "x-scoring": scores.method})

    @router.post("/similarity", response_model=list[float])
    async def similarity(body: SimilarityBody, context: RequestContext) -> Response:
        """Cosine of a sentence and each of several, all embedded alike."""
        given = body.inputs
        read_texts(given.sentences, "inputs.sentences", limit - 1)
        items = read_texts([given.source_sentence, *given.sentences], "inputs", limit)
        options: EmbedOptions = {**(body.parameters or TeiOptions()).options(), "normalize": True}
        _, answer = await service.embed(EmbedRequest(items, body.model, options, "inputs"), context)
        return json_response(answer.vectors[1:] @ answer.vectors[0], timing_headers(context))

    @router.post("/tokenize", response_model=list[list[TokenReply]])
    async def tokenize(body: TokenizeBody) -> Response:
        """Show the tokens of texts, at any length. Needs the checkpoint's files on the gateway's machine."""
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        if not texts:
            raise GatewayError.empty("inputs")
        check_count(texts, "inputs", limit)
        model = await service.models.get(body.model)
        vocabulary = await vocabularies.of(model)
        return json_response(
            await vocabulary.tokens(texts, body.prompt_name, add_special_tokens=body.add_special_tokens)
        )

    @router.get("/info", response_model=dict[str, Any])
    async def info(model: str | None = None) -> Response:
        """Describe a model; what only its checkpoint says is null where that is not on this machine."""
        return json_response(await vocabularies.info(await service.models.get(model), service.config))

    return router


def timing_headers(context: Context) -> dict[str, str]:
    """TEI's headers: milliseconds and amounts; what servers do not tell apart is in `x-inference-time`."""
    return {
        "x-compute-characters": str(context.num_characters),
        "x-compute-tokens": str(context.num_tokens),
        "x-inference-time": str(round(context.upstream_seconds * 1e3)),
    }
