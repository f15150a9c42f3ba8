"""OpenAI's routes: embeddings, and the models there are."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from decoder2vec.serving.api_errors import PROBLEMS, APIError
from decoder2vec.serving.batcher import Vectors, unless_gone
from decoder2vec.serving.service import Served, Service, service_of
from decoder2vec.serving.tokens import texts_of
from decoder2vec.serving.vectors import Key

router = APIRouter(responses=PROBLEMS)

ModelName = Annotated[str | None, Field(max_length=256, description="A name from /v1/models; else the encoder.")]
TokenIds = Annotated[list[int], Field(min_length=1)]


class EmbeddingsRequest(BaseModel):
    """As OpenAI's clients send it; fields that are not listed are ignored."""

    model_config = ConfigDict(strict=True)

    input: str | Annotated[list[str], Field(min_length=1)] | TokenIds | Annotated[list[TokenIds], Field(min_length=1)]
    model: ModelName = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1, description="Cut to so many numbers, and to unit length.")] = None

    def texts(self) -> list[str]:
        """What is to be read, as texts."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], str):
            return [str(text) for text in self.input]
        rows: Any = [self.input] if isinstance(self.input[0], int) else self.input
        return texts_of(rows)


class Embedding(BaseModel):
    """One vector: numbers, or float32 in little-endian order as base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that were read, the prompt around each text among them."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(BaseModel):
    """The answer to an `EmbeddingsRequest`."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class Model(BaseModel):
    """An encoder: what reads the texts, and how. `layer` and `pooling` are lists where it reads several."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    fingerprint: str | None
    dim: int
    layer: int | list[int] | None = None
    pooling: str | list[str] | None = None
    template: str | None = None


class ModelList(BaseModel):
    """All encoders of the server."""

    object: Literal["list"]
    data: list[Model]


@router.post("/v1/embeddings", response_model=Embeddings)
async def embeddings(asked: EmbeddingsRequest, request: Request) -> JSONResponse:
    """Vectors of one or several texts."""
    service = service_of(request)
    served = service.models[asked.model]
    if asked.dimensions is not None and asked.dimensions > served.dim:
        raise APIError(400, f"dimensions: {served.id} has {served.dim} of them.", param="dimensions")
    texts = asked.texts()
    vectors, tokens = await unless_gone(request, _read(service, request, served, texts))
    if asked.dimensions is not None:
        vectors = _cut(vectors, asked.dimensions)
    data = [
        {"object": "embedding", "index": index, "embedding": _written(vector, asked.encoding_format)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": data, "model": served.id, "usage": usage})


@router.get("/v1/models", response_model=ModelList)
async def models(request: Request) -> JSONResponse:
    """The encoder and its named adapters, with layer, pooling, template and fingerprint."""
    return JSONResponse({"object": "list", "data": [served.description for served in service_of(request).models]})


@router.get("/v1/models/{name:path}", response_model=Model)
async def model(name: str, request: Request) -> JSONResponse:
    """One of them."""
    return JSONResponse(service_of(request).models[name].description)


async def _read(service: Service, request: Request, served: Served, texts: list[str]) -> tuple[Vectors, int]:
    sizes = await service.sizes(request, served, texts)
    return await service.vectors.of(Key(served.id), texts, sizes), sum(sizes)


def _cut(vectors: Vectors, dimensions: int) -> Vectors:
    """The first numbers of every vector, brought to unit length after the cut and not before."""
    cut = vectors[:, :dimensions]
    return np.asarray(cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12), np.float32)


def _written(vector: Vectors, how: str) -> list[float] | str:
    if how == "float":
        return [float(number) for number in vector.tolist()]
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode("ascii")
