"""The server's state behind its routes: the models by name, the queue in front of them, the index and the threads."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, TypeVar

import numpy as np
from starlette.requests import Request

from decoder2vec.activations.extract import Extractor, check_texts
from decoder2vec.bridge.bridge import Bridge
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import is_encoder_folder
from decoder2vec.errors import DataFileError, EncoderError, InputError, unknown_name
from decoder2vec.reranker import Reranker
from decoder2vec.search.index import Index, open_with_header
from decoder2vec.search.store import EmbeddingSpace, encoder_folder, without_password
from decoder2vec.serving.api_errors import APIError
from decoder2vec.serving.batcher import Batcher, Vectors, cancel_on_disconnect
from decoder2vec.serving.limits import Limits
from decoder2vec.serving.metrics import Metrics
from decoder2vec.serving.served_index import OpenedIndex, ServedIndex
from decoder2vec.serving.similarity_scale import measure_scale
from decoder2vec.serving.tokens import PairTokenCounter, TokenCounter
from decoder2vec.serving.vector_cache import BatchKey, CachedBatcher, VectorCache
from decoder2vec.storage import parse_json
from decoder2vec.text.sentences import join_chunks
from decoder2vec.text.template import Template

T = TypeVar("T")

LAYERS = "layers"
"""The role of texts to read in every layer, not only in those of the encoder."""
_PAIRS = "pairs"
"""The role of pairs of query and document, which the reranker scores."""
_CHUNKS = "chunks"
"""The role of documents whose chunks are encoded together."""
_TEXTS_PER_SUBMISSION = 256
"""Texts that a thread queues at once: the vectors of a long list are not all held twice."""
_THREADS = 8
"""Threads for searches, matches and the like; most of their time they wait for the model."""
_FILE_THREADS = 2
"""Threads that read uploaded files. A large PDF takes minutes: searches must not wait for it."""
_MAX_INLINE_CHARACTERS = 20_000
"""Up to this length tokens are counted in the event loop; longer texts in a thread, so as not to block it."""
_DEFAULT_BATCH_TOKENS = 2_048
"""Tokens of a batch for an encoder whose device is not known."""


@dataclass(frozen=True)
class ServerConfig:
    """What to serve, for `create_app`."""

    encoder: Any
    """An `Encoder`, or anything with `encode(texts)` and `dim` or `get_embedding_dimension()`."""
    name: str = "encoder"
    """The model id that clients use for the encoder; its named adapters are served under their own names."""
    index: str | Path | None = None
    """The index that /search searches: a folder, or `postgresql://host/database#name`."""
    sweep: Path | None = None
    """A sweep.json, as `d2v sweep` writes it, for the page to show."""
    limits: Limits = field(default_factory=Limits)
    """Limits on the size and the rate of requests."""
    cache_megabytes: float = 64
    """Size of the cache of vectors; 0 disables it."""
    normalize: bool = True
    """Scale the vectors of /v1/embeddings to length 1, as OpenAI's are; False: as `encode` returns them."""
    reranker: Reranker | None = None
    """What /rerank and /v1/rerank score with; None: the encoder."""
    reranker_name: str = "reranker"
    """The model id that clients use for the reranker."""
    bridge: Bridge | None = None
    """What /describe reads the vectors of the encoder with; None: nothing is described."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """An encoder and the model id it is served under."""

    id: str
    encoder: Any
    token_counter: TokenCounter
    normalize: bool | str
    """Length of the vectors that clients get, as in `EncoderSpec`: 1 with True."""

    @property
    def dim(self) -> int:
        """Width of a vector."""
        dim = getattr(self.encoder, "dim", None)
        return int(dim if dim is not None else self.encoder.get_embedding_dimension())

    @property
    def n_layers(self) -> int:
        """Number of layers that can be compared one by one, including the embeddings; 0 if the encoder has none."""
        return self.encoder.backbone.n_layers + 1 if isinstance(self.encoder, Encoder) else 0

    @cached_property
    def description(self) -> dict[str, Any]:
        """The entry of /v1/models: everything that decides what the vectors are."""
        fingerprint = getattr(self.encoder, "fingerprint", None)
        details: dict[str, Any] = {"fingerprint": fingerprint, "dim": self.dim, "normalize": self.normalize}
        if isinstance(self.encoder, Encoder):
            spec = self.encoder.spec
            layers, poolings = ([getattr(r, name) for r in spec.readings] for name in ("layer", "pooling"))
            details |= {
                "layer": layers[0] if len(layers) == 1 else layers,
                "pooling": poolings[0] if len(set(poolings)) == 1 else poolings,
                "template": spec.template,
                "attention": spec.attention,
                "similarity": spec.similarity,
                "max_tokens": self.encoder.max_seq_length,
                "head": self.encoder.head.kind if self.encoder.head else None,
            }
        return {"id": self.id, "object": "model", "created": 0, "owned_by": "decoder2vec", **details}


class ServedModels:
    """The encoder and its named adapters by model id; `None` is the encoder itself."""

    def __init__(self, name: str, encoder: Any, *, normalize: bool) -> None:
        length = normalize or (encoder.spec.normalize if isinstance(encoder, Encoder) else False)
        models = [ServedModel(name, encoder, TokenCounter(encoder), length)]
        adapters = encoder.backbone.adapters if isinstance(encoder, Encoder) else {}
        for adapter in adapters:
            if adapter == name:
                raise InputError(f"The encoder and one of its adapters are both named {name!r}; set another --name.")
            models.append(replace(models[0], id=adapter, encoder=encoder.with_adapter(adapter)))
        self._models = {model.id: model for model in models}
        self._layer_extractors: dict[str, Extractor] = {}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._models.values())

    def __getitem__(self, name: str | None) -> ServedModel:
        if name is None:
            return next(iter(self))
        if name not in self._models:
            raise APIError(404, str(unknown_name("model", name, self._models)), code="model_not_found", param="model")
        return self._models[name]

    def add(self, encoder: Encoder) -> ServedModel:
        """Serve a further encoder, under the name of the first one and its own fingerprint."""
        first = self[None]
        model = ServedModel(f"{first.id}-{encoder.fingerprint[:8]}", encoder, TokenCounter(encoder), first.normalize)
        self._models = {**self._models, model.id: model}  # a new dict: another thread may iterate over the old one
        return model

    def remove(self, model: ServedModel) -> None:
        """Serve a model no longer that `add` has added."""
        self._models = {id: other for id, other in self._models.items() if other is not model}
        self._layer_extractors.pop(model.id, None)

    def encode_batch(self, key: BatchKey, texts: list[str]) -> Vectors:
        """Return [texts, dim] vectors, or [texts, layers * width] for the role "layers".

        Encoders are not thread-safe: only the batcher's thread calls this.
        """
        encoder = self[key.model].encoder
        if key.role == LAYERS:
            return self._layer_extractor(key.model)(texts).reshape(len(texts), -1)
        encode = getattr(encoder, f"encode_{key.role}", None) if key.role else None
        vectors = np.asarray((encode or encoder.encode)(texts), np.float32)
        if vectors.ndim != 2:
            raise EncoderError(f"The encoder returned an array of shape {vectors.shape} for {len(texts)} texts.")
        return vectors

    def _layer_extractor(self, name: str) -> Extractor:
        """Return an extractor of every layer in one pass, with the pooling and template of the first reading."""
        if name not in self._layer_extractors:
            encoder: Encoder = self[name].encoder
            spec, first = encoder.spec, encoder.spec.readings[0]
            readings = [replace(first, layer=layer, template="") for layer in range(encoder.backbone.n_layers + 1)]
            template = Template(first.template or spec.template)
            extractor = Extractor(encoder.backbone, readings, template, spec.max_length, spec.on_overflow)
            self._layer_extractors[name] = extractor
        return self._layer_extractors[name]


class QueuedEncoder:
    """An encoder for threads: it behaves like the served one, but its texts go through the queue of the server."""

    def __init__(self, model: ServedModel, cached_batcher: CachedBatcher) -> None:
        self._model, self._cached_batcher = model, cached_batcher

    def encode(self, inputs: str | Sequence[str], **_: Any) -> Any:
        """Return vectors of texts. It blocks, so call it from a thread and not from a coroutine."""
        return self._encode(inputs, "")

    def encode_query(self, inputs: str | Sequence[str], **_: Any) -> Any:
        """Return vectors of texts as queries."""
        return self._encode(inputs, "query")

    def encode_document(self, inputs: str | Sequence[str], **_: Any) -> Any:
        """Return vectors of texts as documents."""
        return self._encode(inputs, "document")

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the encoder; its methods are bound to this object and so encode through it."""
        if name.startswith("__"):
            raise AttributeError(name)
        encoder = self._model.encoder
        method = getattr(type(encoder), name, None)
        return MethodType(method, self) if isinstance(method, FunctionType) else getattr(encoder, name)

    def _encode(self, inputs: str | Sequence[str], role: str) -> Vectors:
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        key, counter = BatchKey(self._model.id, role), self._model.token_counter
        vectors = np.empty((0, self._model.dim), np.float32)
        if texts:
            starts = range(0, len(texts), _TEXTS_PER_SUBMISSION)
            chunks = [texts[start : start + _TEXTS_PER_SUBMISSION] for start in starts]
            vectors = np.concatenate(
                [self._cached_batcher.encode(key, chunk, counter.count(chunk)) for chunk in chunks]
            )
        return vectors[0] if isinstance(inputs, str) else vectors


class QueuedReranker:
    """The reranker behind the queue of the server."""

    def __init__(self, reranker: Reranker, name: str, batcher: Batcher) -> None:
        self._key, self._batcher = BatchKey(name, _PAIRS), batcher
        self._counter = PairTokenCounter(reranker)

    def count(self, query: str, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens that the model reads of the query with each text."""
        return self._counter.count(query, texts)

    def submit(self, query: str, texts: Sequence[str], token_counts: Sequence[int]) -> Future[Vectors]:
        """Queue pairs, and return a future of their [texts, 1] scores."""
        return self._batcher.submit(self._key, [(query, text) for text in texts], token_counts)


def _check_bridge(bridge: Bridge | None, dim: int) -> Bridge | None:
    """The bridge; raises if it cannot describe the vectors of the encoder."""
    if bridge is not None and (bridge.objective != "lm" or bridge.dim != dim):
        raise InputError(
            f"The bridge takes vectors of {bridge.dim} dimensions and is trained by {bridge.objective}; give one that "
            f"was trained with --loss lm on vectors of this encoder, {dim} dimensions."
        )
    return bridge


class Service:
    """The models behind their queue and cache, the index, and the threads that use them."""

    def __init__(self, config: ServerConfig) -> None:
        self.limits = config.limits
        self.sweep = _read_sweep(config.sweep) if config.sweep else None
        self.models = ServedModels(config.name, config.encoder, normalize=config.normalize)
        self._own_models = tuple(self.models)
        self.bridge = _check_bridge(config.bridge, self.models[None].dim)
        max_batch_tokens = config.limits.max_batch_tokens or _default_batch_tokens(config.encoder)
        batcher = Batcher(self._encode_batch, max_batch_tokens, config.limits.max_waiting_tokens)
        self.cached_batcher = CachedBatcher(batcher, VectorCache(config.cache_megabytes))
        self.metrics = Metrics(self.cached_batcher)
        self.reranker, self.reranker_name = config.reranker, config.reranker_name
        self.queued_reranker = (
            QueuedReranker(config.reranker, config.reranker_name, batcher) if config.reranker else None
        )
        self._threads = _Threads(_THREADS, "lookup", config.limits.max_jobs)
        self._file_threads = _Threads(_FILE_THREADS, "files", config.limits.max_jobs)
        self._scales: dict[str, dict[str, dict[str, float]]] = {}
        self._index: ServedIndex | None = None
        try:
            if config.index:
                index = Index.open(config.index, self.queued_encoder(self.models[None]))
                opened = OpenedIndex(_warmed(index), self.models[None])
                self._index = ServedIndex(opened, partial(self._open_moved_index, config.index), self._close_index)
        except BaseException:
            self.close()
            raise

    @property
    def index(self) -> ServedIndex:
        """The index to search; a 404 if the server has none."""
        if self._index is None:
            raise APIError(404, "This server has no index; start it with --index.", code="no_index")
        return self._index

    def _open_moved_index(self, location: str | Path) -> OpenedIndex:
        """Open the index with the encoder that it was moved to: a model of the server, or the one beside the index."""
        store, header = open_with_header(location)
        models = (model for model in self.models if header.space.matches(EmbeddingSpace.of(self.queued_encoder(model))))
        model = next(models, None) or self.models.add(self._load_encoder(encoder_folder(store), location))
        return OpenedIndex(_warmed(Index(location, store, header, self.queued_encoder(model))), model)

    def _load_encoder(self, folder: Path, location: str | Path) -> Encoder:
        """Load the encoder beside an index, on the device of the served one."""
        if not is_encoder_folder(folder):
            place = without_password(location)
            raise InputError(f"The encoder of {place} is not known on this machine; start the server again with it.")
        served = self.models[None].encoder
        if not isinstance(served, Encoder):
            return Encoder.from_pretrained(folder)
        dtype = served.backbone.dtype_name
        return Encoder.from_pretrained(folder, device=str(served.device), dtype=dtype, exact=served.exact)

    def _close_index(self, opened: OpenedIndex) -> None:
        """Close an index that was moved, and drop its model unless the server needs it."""
        opened.index.close()
        if opened.model is not self.index.model and opened.model not in self._own_models:
            self.models.remove(opened.model)

    def similarity_scale(self, model: ServedModel) -> dict[str, dict[str, float]]:
        """Return what similarities mean with a model; measured once, in the thread of a job."""
        if model.id not in self._scales:
            self._scales[model.id] = measure_scale(self.queued_encoder(model))
        return self._scales[model.id]

    def queued_encoder(self, model: ServedModel) -> QueuedEncoder:
        """Return the encoder of a model for use in any thread."""
        return QueuedEncoder(model, self.cached_batcher)

    async def admit(
        self, request: Request, model: ServedModel, texts: Sequence[str], *, in_parts: bool = False
    ) -> list[int]:
        """Check the limits for these texts and charge the API key; return how many tokens the model reads of each.

        Args:
            request: The request whose API key is charged.
            model: The model that encodes the texts.
            texts: The texts of the request.
            in_parts: The texts are split before they are encoded, so that the model reads all of a long one.
        """
        return await self._admit(request, texts, partial(model.token_counter.count, texts, truncate=not in_parts))

    async def _admit(self, request: Request, texts: Sequence[str], count: Callable[[], list[int]]) -> list[int]:
        self.limits.check_texts(len(texts))
        check_texts(texts)  # other libraries fail on lone surrogates with errors that look like server faults
        counts = await self._threads.run(count) if sum(map(len, texts)) > _MAX_INLINE_CHARACTERS else count()
        self.limits.check_tokens(sum(counts))
        request.state.charge_tokens(sum(counts))
        return counts

    async def encode_texts(self, request: Request, model: ServedModel, texts: Sequence[str]) -> tuple[Vectors, int]:
        """Return the vectors of texts and the number of tokens read, if the limits allow it."""
        counts = await self.admit(request, model, texts)
        return await self.cached_batcher.encode_async(BatchKey(model.id), texts, counts), sum(counts)

    async def encode_chunks(self, request: Request, model: ServedModel, chunks: Sequence[str]) -> tuple[Vectors, int]:
        """Return the vectors of the chunks of a document that is read as a whole, and the number of its tokens.

        Args:
            request: The request whose API key is charged.
            model: The model that encodes the document.
            chunks: One or more consecutive chunks. The document waits in the queue as one text, which is not cut.
        """
        if not isinstance(model.encoder, Encoder):
            message = f"late_chunking: {model.id} does not give the states of tokens; leave it out."
            raise APIError(400, message, code="unsupported", param="late_chunking")
        if "" in chunks:
            message = f"input: with late_chunking no text may be empty, but input.{chunks.index('')} is."
            raise APIError(400, message, param="input")
        self.limits.check_texts(len(chunks))
        check_texts(chunks)  # here, where an error names the chunk
        document, spans = join_chunks(chunks)
        counts = await self.admit(request, model, [document], in_parts=True)
        key, batcher = BatchKey(model.id, _CHUNKS), self.cached_batcher.batcher
        vectors: Vectors = await asyncio.wrap_future(batcher.submit(key, [(document, spans)], counts))
        return vectors[0], sum(counts)

    async def rerank(self, request: Request, query: str, documents: Sequence[str]) -> tuple[Vectors, int]:
        """Return the scores of documents by the reranker and the number of tokens read, if the limits allow it.

        Args:
            request: The request; its pairs are dropped from the queue when its client disconnects.
            query: The query.
            documents: One or more documents.
        """
        reranker = self.queued_reranker
        assert reranker is not None

        async def admit_and_score() -> tuple[Vectors, int]:
            counts = await self._admit(request, [query, *documents], partial(reranker.count, query, documents))
            scores: Vectors = await asyncio.wrap_future(reranker.submit(query, documents, counts))
            return scores[:, 0], sum(counts)

        return await cancel_on_disconnect(request, admit_and_score())

    def _encode_batch(self, key: BatchKey, items: list[Any]) -> Vectors | list[Vectors]:
        """Vectors of texts, [chunks, dim] vectors of documents, or scores of pairs; for the batcher's thread alone."""
        if key.role == _CHUNKS:
            documents, spans = zip(*items, strict=True)
            chunks: list[Vectors] = self.models[key.model].encoder.encode_chunks(documents, spans)
            return chunks
        if key.role != _PAIRS:
            return self.models.encode_batch(key, items)
        assert self.reranker is not None
        queries, documents = zip(*items, strict=True)
        return self.reranker.score_pairs(queries, documents)[:, None]

    async def run_job(
        self,
        request: Request,
        model: ServedModel,
        texts: Sequence[str],
        job: Callable[[], T],
        *,
        in_parts: bool = False,
    ) -> T:
        """Run a job in a thread if the limits allow it, and return its result.

        Args:
            request: The request; the job's texts are dropped from the queue when its client disconnects.
            model: The model that encodes the texts.
            texts: The texts of the request, which the job encodes through a `QueuedEncoder`.
            job: A function without arguments.
            in_parts: The job splits the texts, and so reads all of a long one.
        """

        async def admit_and_run() -> T:
            self.cached_batcher.batcher.check_capacity(sum(await self.admit(request, model, texts, in_parts=in_parts)))
            return await self._threads.run(job)

        return await cancel_on_disconnect(request, admit_and_run())

    def close(self) -> None:
        """Stop the batcher and the threads, and close the index."""
        if self._index is not None:
            self._index.close()
        self.cached_batcher.batcher.close()
        self._threads.close()
        self._file_threads.close()

    async def read_in_thread(self, read: Callable[[], T]) -> T:
        """Read an uploaded file in a thread of its own kind and return the result.

        Raises:
            APIError: A 429 if too many are waiting, a 408 if it takes too long. A thread cannot be stopped: it ends
                with the file, of which `max_body_bytes` limits the size, and until then counts as a running one.
        """
        try:
            async with asyncio.timeout(self.limits.file_timeout):
                return await self._file_threads.run(read)
        except TimeoutError:
            message = f"The file could not be read within {self.limits.file_timeout:g} seconds; split it."
            raise APIError(408, message, code="timeout") from None


class _Threads:
    """Threads for one kind of job, which does not wait for jobs of another kind.

    Args:
        count: Number of threads.
        name: Begins the names of the threads.
        max_jobs: Jobs that run or wait; a further one is a 429.
    """

    def __init__(self, count: int, name: str, max_jobs: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._max_jobs, self._running = max_jobs, set[Future[Any]]()

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job in a thread and return its result."""
        if len(self._running) >= self._max_jobs:
            raise APIError(429, "Too many requests are running; try again later.", code="overloaded", retry_after=1)
        future = self._pool.submit(contextvars.copy_context().run, job)
        self._running.add(future)
        future.add_done_callback(self._running.discard)  # a job runs on if nobody waits for it any more
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Wait for the running jobs and drop the others."""
        self._pool.shutdown(cancel_futures=True)


def get_service(request: Request) -> Service:
    """Return the service of the application that received a request."""
    service: Service = request.app.state.service
    return service


def _warmed(index: Index) -> Index:
    """The index, after it has loaded what the first search would have to load."""
    index.rank(["warm"], 1)
    return index


def _default_batch_tokens(encoder: Any) -> int:
    return encoder.backbone.token_budget() if isinstance(encoder, Encoder) else _DEFAULT_BATCH_TOKENS


def _read_sweep(file: Path) -> bytes:
    try:
        content = file.read_bytes()
        parse_json(content)
    except OSError as error:
        raise DataFileError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise DataFileError(f"{file} is not JSON; give the sweep.json that `d2v sweep` wrote.") from None
    return content
