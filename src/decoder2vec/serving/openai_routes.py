"""The routes of OpenAI's API: /v1/embeddings and /v1/models."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, field_validator
from pydantic_core import PydanticCustomError
from starlette.responses import JSONResponse

from decoder2vec.maths.similarity import normalise
from decoder2vec.serving.api_errors import ERROR_RESPONSES, APIError
from decoder2vec.serving.batcher import Vectors, cancel_on_disconnect
from decoder2vec.serving.service import get_service
from decoder2vec.serving.tokens import decode_token_ids

router = APIRouter(responses=ERROR_RESPONSES)

ModelName = Annotated[
    str | None, Field(max_length=256, description="A model id from /v1/models; by default the encoder.")
]
TokenIds = Annotated[list[int], Field(min_length=1)]


class EmbeddingsRequest(BaseModel):
    """Texts or token ids, as OpenAI's clients send them, and Jina's `late_chunking`; other fields are ignored."""

    model_config = ConfigDict(strict=True)

    input: str | Annotated[list[str], Field(min_length=1)] | TokenIds | Annotated[list[TokenIds], Field(min_length=1)]
    model: ModelName = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[
        int | None, Field(ge=1, description="Truncate vectors to this many dimensions, before they are normalised.")
    ] = None
    late_chunking: Annotated[
        bool,
        Field(
            description="The texts are consecutive chunks of one document, which is read as a whole: each vector comes "
            "from states that have seen the other chunks. Where neither of two chunks has white space at their border, "
            "a space is put there."
        ),
    ] = False

    @field_validator("input", mode="wrap")
    @classmethod
    def _one_message(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """Say what to give, where pydantic would only say why the first of the four types does not fit."""
        try:
            return validate(value)
        except ValidationError:
            raise PydanticCustomError("input", "give a text, or a list of one text or more") from None

    def texts(self) -> list[str]:
        """Return the input as a list of texts; token ids are decoded."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], str):
            return [str(text) for text in self.input]
        rows: Any = [self.input] if isinstance(self.input[0], int) else self.input
        return decode_token_ids(rows, self.model)


class Embedding(BaseModel):
    """One vector: floats, or little-endian float32 as base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that the model read, including the template around each text."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """The vectors of an `EmbeddingsRequest`."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ModelInfo(BaseModel):
    """A model and what decides its vectors. `layer` and `pooling` are lists for an encoder with several readings."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    fingerprint: str | None
    dim: int
    normalize: bool | str
    layer: int | list[int] | None = None
    pooling: str | list[str] | None = None
    template: str | None = None


class ModelList(BaseModel):
    """All models of the server."""

    object: Literal["list"]
    data: list[ModelInfo]


@router.post("/v1/embeddings", response_model=EmbeddingsResponse)
async def embeddings(body: EmbeddingsRequest, request: Request) -> JSONResponse:
    """Return the vectors of one or several texts."""
    service = get_service(request)
    model = service.models[body.model]
    if body.dimensions is not None and body.dimensions > model.dim:
        raise APIError(400, f"dimensions: {model.id} has only {model.dim}.", param="dimensions")
    texts = body.texts()
    encode = service.encode_chunks if body.late_chunking else service.encode_texts
    vectors, tokens = await cancel_on_disconnect(request, encode(request, model, texts))
    vectors = normalise(vectors[:, : body.dimensions], model.normalize)
    data = [
        {"object": "embedding", "index": index, "embedding": _serialise(vector, body.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": model.id, "usage": usage})


@router.get("/v1/models", response_model=ModelList)
async def list_models(request: Request) -> JSONResponse:
    """List the encoder and its named adapters with layer, pooling, template and fingerprint."""
    return JSONResponse({"object": "list", "data": [model.description for model in get_service(request).models]})


@router.get("/v1/models/{name:path}", response_model=ModelInfo)
async def get_model(name: str, request: Request) -> JSONResponse:
    """Return one model."""
    return JSONResponse(get_service(request).models[name].description)


def _serialise(vector: Vectors, encoding_format: str) -> list[float] | str:
    if encoding_format == "float":
        return [float(value) for value in vector.tolist()]
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode("ascii")
