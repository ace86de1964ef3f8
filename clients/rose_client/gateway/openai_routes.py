"""OpenAI's embeddings and models, with Perplexity's encodings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from starlette.responses import Response

from rose_client.gateway.context import RequestContext
from rose_client.gateway.inputs import Inputs, read_inputs
from rose_client.gateway.replies import base64_rows, json_response
from rose_client.gateway.service import EmbedRequest, Service
from rose_client.wire import Embeddings, EmbedOptions

Encoding = Literal["float", "base64", "base64_int8", "base64_binary"]
_OUTPUTS = {"float": "float", "base64": "float", "base64_int8": "int8", "base64_binary": "binary"}


class EmbeddingsBody(BaseModel):
    """OpenAI's fields; those from `prompt_name` on are this server's own, for `extra_body`."""

    model_config = ConfigDict(extra="forbid")

    input: Inputs
    model: StrictStr | None = None
    encoding_format: Encoding = "float"
    dimensions: Annotated[StrictInt, Field(ge=1, lt=2**31)] | None = None
    user: StrictStr | None = None
    prompt_name: StrictStr | None = None
    prompt: StrictStr | None = None
    input_type: Literal["query", "document"] | None = None
    normalize: StrictBool | None = None
    truncate: StrictBool | None = None
    truncation_direction: Literal["left", "right"] | None = None

    def options(self) -> EmbedOptions:
        """What was given, as the servers know it."""
        options = encoding_options(self.encoding_format)
        if self.dimensions is not None:
            options["dimensions"] = self.dimensions
        if self.prompt_name is not None:
            options["prompt_name"] = self.prompt_name
        if self.prompt is not None:
            options["prompt"] = self.prompt
        if self.input_type is not None:
            options["input_type"] = self.input_type
        if self.normalize is not None:
            options["normalize"] = self.normalize
        if self.truncate is not None:
            options["truncate"] = self.truncate
        if self.truncation_direction is not None:
            options["truncation_direction"] = self.truncation_direction
        return options


class EmbeddingEntry(BaseModel):
    """One vector."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that were run."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(BaseModel):
    """Vectors in the order of the input."""

    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: Usage


class ModelEntry(BaseModel):
    """A model that can be asked for by its id."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsReply(BaseModel):
    """Every model."""

    object: Literal["list"]
    data: list[ModelEntry]


def openai_routes(service: Service) -> APIRouter:
    """The routes under `/v1` that OpenAI's clients call."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.post("/embeddings", response_model=EmbeddingsReply)
    async def embeddings(body: EmbeddingsBody, context: RequestContext) -> Response:
        """Embed texts or token ids. Token ids are used as they are: no special tokens are added."""
        items = read_inputs(body.input, "input", service.config.max_inputs)
        wanted = EmbedRequest(items, body.model, body.options())
        model, answer = await service.embed(wanted, context)
        data = [
            {"object": "embedding", "index": index, "embedding": embedding}
            for index, embedding in enumerate(encoded(answer, body.encoding_format))
        ]
        tokens = answer.num_tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_response({"object": "list", "data": data, "model": model.name, "usage": usage})

    @router.get("/models", response_model=ModelsReply)
    async def models() -> Response:
        """List the models that can be called."""
        return json_response({"object": "list", "data": [_entry(model.name) for model in await service.models.all()]})

    @router.get("/models/{model}", response_model=ModelEntry)
    async def one_model(model: str) -> Response:
        """Describe one model."""
        return json_response(_entry((await service.models.get(model)).name))

    return router


def _entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rose"}


def encoding_options(encoding: Encoding) -> EmbedOptions:
    """What an encoding needs, as the servers know it."""
    output = _OUTPUTS[encoding]
    if output == "float":
        return {}
    return {"outputs": [output], "bit_order": "lsb"} if output == "binary" else {"outputs": [output]}


def encoded(answer: Embeddings, encoding: Encoding) -> Any:
    """Vectors for JSON: rows of numbers, or a string each."""
    if encoding == "base64":
        return base64_rows(answer.vectors)
    if encoding == "base64_int8":
        return base64_rows(answer.int8)
    if encoding == "base64_binary":
        return base64_rows(answer.binary)
    return answer.vectors
