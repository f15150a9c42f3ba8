"""What can be asked for by `model`: the encoder, and each adapter it has by name."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, TypeVar

import numpy as np
from starlette.requests import Request

from decoder2vec.activations.extract import Extractor
from decoder2vec.backbone.machine import token_budget
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.search.index import Index
from decoder2vec.serving.api_errors import APIError
from decoder2vec.serving.batcher import Batcher, Vectors, unless_gone
from decoder2vec.serving.batcher import Vectors as Array
from decoder2vec.serving.limits import Limits
from decoder2vec.serving.metrics import Metrics
from decoder2vec.serving.tokens import TokenCounter
from decoder2vec.serving.vectors import Cache, CachedVectors, Key
from decoder2vec.text.template import Template

LAYERS = "layers"


@dataclass(frozen=True, eq=False)
class Served:
    """One encoder under one name."""

    id: str
    encoder: Any
    count: TokenCounter

    @property
    def dim(self) -> int:
        """Width of a vector."""
        known = getattr(self.encoder, "dim", None)
        return int(known if known is not None else self.encoder.get_embedding_dimension())

    @property
    def layers(self) -> int:
        """How many layers can be looked at one by one, the embeddings among them; 0 where none can."""
        return self.encoder.backbone.n_layers + 1 if isinstance(self.encoder, Encoder) else 0

    @cached_property
    def description(self) -> dict[str, Any]:
        """Everything that decides what its vectors are."""
        said: dict[str, Any] = {"fingerprint": getattr(self.encoder, "fingerprint", None), "dim": self.dim}
        if isinstance(self.encoder, Encoder):
            spec = self.encoder.spec
            layers, poolings = ([getattr(r, name) for r in spec.readings] for name in ("layer", "pooling"))
            said |= {
                "layer": layers[0] if len(layers) == 1 else layers,
                "pooling": poolings[0] if len(set(poolings)) == 1 else poolings,
                "template": spec.template,
                "attention": spec.attention,
                "similarity": spec.similarity,
                "max_tokens": self.encoder.max_seq_length,
                "head": self.encoder.head.kind if self.encoder.head else None,
            }
        return {"id": self.id, "object": "model", "created": 0, "owned_by": "decoder2vec", **said}


class Models:
    """The encoders of a server by name; the first is taken where none is named."""

    def __init__(self, name: str, encoder: Any) -> None:
        served = [Served(name, encoder, TokenCounter(encoder))]
        adapters = encoder.backbone.adapters if isinstance(encoder, Encoder) else {}
        for adapter in adapters:
            if adapter == name:
                raise InputError(f"The encoder and one of its adapters are both called {name!r}; serve it with --name.")
            served.append(Served(adapter, encoder.with_adapter(adapter), served[0].count))
        self._served = {one.id: one for one in served}
        self._all_layers: dict[str, Extractor] = {}

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def __getitem__(self, name: str | None) -> Served:
        if name is None:
            return next(iter(self))
        if name not in self._served:
            raise APIError(404, str(unknown_name("model", name, self._served)), code="model_not_found", param="model")
        return self._served[name]

    def read(self, key: Key, texts: list[str]) -> Vectors:
        """[n, dim] vectors; under the role "layers" [n, layers * width]. Only ever one thread calls this."""
        encoder = self[key.model].encoder
        if key.role == LAYERS:
            return self._layers(key.model)(texts).reshape(len(texts), -1)
        encode = getattr(encoder, f"encode_{key.role}", None) if key.role else None
        return np.asarray((encode or encoder.encode)(texts), np.float32)

    def _layers(self, name: str) -> Extractor:
        """Reads every layer in one pass, pooled as the encoder pools its first."""
        if name not in self._all_layers:
            encoder: Encoder = self[name].encoder
            spec, first = encoder.spec, encoder.spec.readings[0]
            readings = [replace(first, layer=layer, template="") for layer in range(encoder.backbone.n_layers + 1)]
            template = Template(first.template or spec.template)
            self._all_layers[name] = Extractor(encoder.backbone, readings, template, spec.max_length, spec.on_overflow)
        return self._all_layers[name]


_AT_ONCE = 256
"""Texts put into the queue together: the vectors of a long list are not all held twice."""


class QueuedEncoder:
    """Looks like the encoder behind it; only its texts go into the queue, beside everybody else's."""

    def __init__(self, served: Served, vectors: CachedVectors) -> None:
        self._served, self._vectors = served, vectors

    def encode(self, inputs: str | Sequence[str], **_: Any) -> Any:
        """Vectors of texts; waits for them, so it is for threads and not for coroutines."""
        return self._read(inputs, "")

    def encode_query(self, inputs: str | Sequence[str], **_: Any) -> Any:
        """The same, read as queries."""
        return self._read(inputs, "query")

    def encode_document(self, inputs: str | Sequence[str], **_: Any) -> Any:
        """The same, read as documents."""
        return self._read(inputs, "document")

    def __getattr__(self, name: str) -> Any:
        """What else the encoder has. Its methods are bound to this object: when they encode, they do it here."""
        if name.startswith("__"):
            raise AttributeError(name)
        encoder = self._served.encoder
        method = getattr(type(encoder), name, None)
        return MethodType(method, self) if isinstance(method, FunctionType) else getattr(encoder, name)

    def _read(self, inputs: str | Sequence[str], role: str) -> Array:
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        key, count = Key(self._served.id, role), self._served.count
        parts = [texts[begin : begin + _AT_ONCE] for begin in range(0, len(texts), _AT_ONCE)]
        found = [self._vectors.wait_for(key, part, count.read(count(part))) for part in parts]
        vectors = np.concatenate(found) if found else np.empty((0, self._served.dim), np.float32)
        return vectors[0] if isinstance(inputs, str) else vectors


T = TypeVar("T")

_THREADS = 8
"""In which searches and matches run; most of their time they wait for the model."""
_SHORT = 20_000
"""Characters whose tokens are counted on the spot; more are counted in a thread, so that others are not held up."""
_BUDGET = 2_048
"""Tokens of a batch, where the machine is not known."""


@dataclass(frozen=True)
class ServerConfig:
    """What shall be served."""

    encoder: Any
    """Anything with `encode`."""
    name: str = "encoder"
    """What it is called in `model`."""
    index: str | Path | None = None
    """Folder or database to search."""
    sweep: Path | None = None
    """A sweep.json to show."""
    limits: Limits = field(default_factory=Limits)
    cache_megabytes: float = 64


class Service:
    """The model behind its queue, and what is done with it."""

    def __init__(self, offer: ServerConfig) -> None:
        self.limits = offer.limits
        self.sweep = _sweep(offer.sweep) if offer.sweep else None
        self.models = Models(offer.name, offer.encoder)
        budget = offer.limits.batch_tokens or _budget(offer.encoder)
        batcher = Batcher(self.models.read, budget, offer.limits.waiting_tokens)
        self.vectors = CachedVectors(batcher, Cache(offer.cache_megabytes))
        self.metrics = Metrics(self.vectors)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lookup")
        self._jobs = 0
        try:
            self._index = Index.open(offer.index, self.queued(self.models[None])) if offer.index else None
            if self._index:
                self._index.rank(["warm"], 1)  # what the first search would have to read is read now
        except BaseException:
            self.close()
            raise

    @property
    def index(self) -> Index:
        """The index that is searched."""
        if self._index is None:
            raise APIError(404, "This server has no index; start it with --index.", code="no_index")
        return self._index

    def queued(self, served: Served) -> QueuedEncoder:
        """The encoder as something that may be asked from any thread."""
        return QueuedEncoder(served, self.vectors)

    async def sizes(self, request: Request, served: Served, texts: Sequence[str]) -> list[int]:
        """Tokens of each text as the model reads them, if a request may ask for so many."""
        self.limits.check_texts(len(texts))
        if sum(map(len, texts)) > _SHORT:
            counts = await self._in_thread(lambda: served.count(texts))
        else:
            counts = served.count(texts)
        self.limits.check_tokens(sum(counts))
        request.state.take_tokens(sum(counts))
        return served.count.read(counts)

    async def in_thread(self, request: Request, served: Served, texts: Sequence[str], job: Callable[[], T]) -> T:
        """The result of a job that reads these texts, and perhaps parts of them again, through the queue."""

        async def admitted() -> T:
            self.vectors.batcher.check_token_count(sum(await self.sizes(request, served, texts)))
            return await self._in_thread(job)

        return await unless_gone(request, admitted())

    def close(self) -> None:
        """End what runs."""
        self.vectors.batcher.close()
        self._threads.shutdown(cancel_futures=True)

    async def _in_thread(self, job: Callable[[], T]) -> T:
        if self._jobs >= self.limits.jobs:
            raise APIError(429, "Too many requests are under way; come back later.", code="overloaded", wait=1)
        self._jobs += 1
        try:
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, job)
        finally:
            self._jobs -= 1


def service_of(request: Request) -> Service:
    """The service that a route belongs to."""
    service: Service = request.app.state.service
    return service


def _budget(encoder: Any) -> int:
    return token_budget(encoder.device, encoder.backbone.dim) if isinstance(encoder, Encoder) else _BUDGET


def _sweep(file: Path) -> bytes:
    try:
        content = file.read_bytes()
        json.loads(content)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise InputError(f"{file} is not JSON; give the sweep.json that `d2v sweep` wrote.") from None
    return content
