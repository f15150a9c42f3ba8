"""What a result file says about the encoder and what it costs, for anything with `encode`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.config import fingerprint
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.evaluation.similarity import SupportsEncode
from decoder2vec.evaluation.tasks.layout import TUNING
from decoder2vec.evaluation.tasks.task import Role, Task, Vectors, ranks_by_words, spread
from decoder2vec.evaluation.vector_cache import VectorCache, token_count
from decoder2vec.storage import atomic_file, versions
from decoder2vec.text.data_check import PairHashes, count_overlap


def describe(encoder: object, name: str) -> dict[str, Any]:
    """Name, fingerprint, kind, dimensions, parameters and layers, as far as the encoder can tell."""
    spec: Any = getattr(encoder, "spec", None)
    described = {
        "name": name or type(encoder).__name__,
        "fingerprint": fingerprint_of(encoder),
        "kind": kind_of(encoder),
        "dim": _number(encoder, "dim") or _number(encoder, "get_embedding_dimension"),
        "parameters": parameters_of(encoder),
        "layers": _layers(encoder),
    }
    return {**described, "spec": spec.to_json()} if hasattr(spec, "to_json") else described


def kind_of(encoder: object) -> str:
    """One word for tables: bm25, random, static, sentence-transformers, decoder2vec, or the name of its class."""
    own = "decoder2vec" if isinstance(encoder, Encoder) else type(encoder).__name__
    return str(getattr(encoder, "kind", None) or own)


def fingerprint_of(encoder: object) -> str | None:
    """Names the embedding space, if the encoder has a name for it."""
    found = getattr(encoder, "fingerprint", None)
    return found if isinstance(found, str) else None


def parameters_of(encoder: object) -> int | None:
    """All weights that are loaded: those of the model, an adapter and a head."""
    backbone = getattr(encoder, "backbone", None)
    if backbone is None:
        own: Any = getattr(encoder, "parameters", None)
        count = sum(weight.numel() for weight in own()) if callable(own) else own
        return count if isinstance(count, int) else None
    head = getattr(encoder, "head", None)
    parts = (
        getattr(backbone, "model", None),
        getattr(backbone, "adapter", None),
        *(vars(head) if head else {}).values(),
    )
    weights: dict[int, int] = {
        id(weight): weight.numel() for part in parts for weight in _weights(part)
    }  # an adapter may share some
    return sum(weights.values())


def peak_megabytes() -> float:
    """The most memory that was held at once so far: on the GPU if there is one, else by the process."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


def _weights(part: object) -> list[Any]:
    found = getattr(part, "parameters", None)
    return list(found()) if callable(found) else []


def _layers(encoder: object) -> int | None:
    """How many blocks run: those up to the highest layer that is read."""
    readings = getattr(getattr(encoder, "spec", None), "readings", None)
    return max(reading.layer for reading in readings) if readings else _number(encoder, "layers")


def _number(encoder: object, name: str) -> int | None:
    found = getattr(encoder, name, None)
    found = found() if callable(found) else found
    return found if isinstance(found, int) else None


_ROLES: dict[Role, tuple[str, ...]] = {"plain": (), "query": ("query",), "document": ("document", "passage", "corpus")}


@dataclass(frozen=True)
class Way:
    """How some texts are encoded. Equal ways give equal vectors for equal texts."""

    prompt: str = ""
    method: str = "encode"

    def of(self, encoder: SupportsEncode) -> Callable[[list[str]], Any]:
        """A function from texts to vectors."""
        encode = getattr(encoder, self.method)
        return (lambda texts: encode(texts, prompt=self.prompt)) if self.prompt else encode


def way_for(encoder: SupportsEncode, task: Task, role: Role, prompts: Mapping[str, str] | None = None) -> Way:
    """The first prompt that is there: for the task and role, the task, the kind and role, the kind, the role.

    `prompts` come before those of the encoder. One that has methods for queries and documents, but no list of prompts,
    is asked by these methods.
    """
    own = getattr(encoder, "prompts", None)
    known = {**(own if isinstance(own, Mapping) else {}), **(prompts or {})}
    names = (f"{task.name}-{role}", task.name, f"{task.kind}-{role}", task.kind, *_ROLES[role])
    prompt = next((known[name] for name in names if name in known), None)
    if prompt is not None:
        return Way(prompt)
    method = f"encode_{role}"
    return Way(method=method) if not isinstance(own, Mapping) and hasattr(encoder, method) else Way()


FOUR = ("retrieval", "sts", "clustering", "classification")
"""The families that the soft-prompt paper's Table 1 averages."""

_WARM_UP, _SAMPLE = 8, 64

Result = dict[str, Any]


@dataclass(frozen=True)
class Estimate:
    """What is still to be done before all vectors are there."""

    texts: int
    """Different texts, each counted once for every prompt it is read under."""
    cached: int
    tokens: float
    """nan: the encoder does not count them."""
    seconds: float
    tokens_per_second: float


@dataclass
class Suite:
    """Tasks for anything with `encode`. `run` gives the document that is also written to `json_file`."""

    encoder: SupportsEncode
    tasks: Sequence[Task]
    name: str = ""
    json_file: Path | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by task, kind or role, before those of the encoder."""
    seen: PairHashes | None = None
    """Hashes of the pairs that the encoder was trained on."""
    command: str = ""

    def __post_init__(self) -> None:
        self.fingerprint = fingerprint_of(self.encoder)
        self._caches: dict[Way, VectorCache] = {}
        self._texts = {task.name: task.texts() for task in self.tasks}
        self._digests = {task.name: self._digest(task) for task in self.tasks}
        self._encoder = describe(self.encoder, self.name)
        self._before = self._read(self.json_file)
        self._items = self._read(self._items_file)
        other = self._before.get("encoder", self._encoder)
        if any(other.get(key) != self._encoder[key] for key in (["fingerprint"] if self.fingerprint else ["name"])):
            raise InputError(f"{self.json_file} holds results of another encoder; choose another file or remove it.")
        if not self.fingerprint:  # it has the same name, but nothing says that it is the same
            self._before, self._items = {}, {}

    def open_tasks(self) -> list[Task]:
        """Those that are not finished."""
        return [task for task in self.tasks if not self._is_done(task)]

    def estimate(self) -> Estimate:
        """What there is to do, by the pace of a few texts; their vectors are kept like any others."""
        needs = [(cache, texts) for task in self.open_tasks() for _, cache, texts in self._needs(task)]
        wanted = {cache: dict.fromkeys([t for c, texts in needs if c is cache for t in texts]) for cache, _ in needs}
        absent = {cache: cache.missing(list(texts)) for cache, texts in wanted.items()}
        total = sum(map(len, wanted.values()))
        cached = total - sum(map(len, absent.values()))
        tokens = seconds = rate = 0.0
        for cache, texts in absent.items():
            if not texts:
                continue
            cache.fill(spread(texts, _WARM_UP))
            sample = cache.missing(spread(texts, _SAMPLE)) or spread(texts, _WARM_UP)
            cache.fill(sample)
            cost = cache.cost(sample) * sum(map(len, texts)) / max(1, sum(map(len, sample)))
            tokens, seconds = tokens + cost[0], seconds + cost[1]
            rate = tokens / max(seconds, 1e-9)
        return Estimate(total, cached, float(tokens), float(seconds), float(rate))

    def run(
        self,
        progress: Callable[[int], object] = lambda _: None,
        finished: Callable[[str, Result], object] = lambda name, result: None,
    ) -> Result:
        """Do every task that is not finished; progress is told of texts, in all as many as `work` says."""
        document = self._document(self._before.get("tasks", {}))
        for task in self.open_tasks():
            started = time.perf_counter()
            outcome = task.score(self._vectors(task, progress))
            result: Result = {
                "kind": task.kind,
                "metric": outcome.metric,
                "score": outcome.score,
                "interval": list(outcome.interval),
                "scores": outcome.scores,
                "texts": sum(map(len, self._texts[task.name].values())),
                "seconds": round(time.perf_counter() - started, 2),
                "data": self._digests[task.name],
            }
            if flags := [*task.flags, *outcome.flags, *self._overlap(task)]:
                result["flags"] = flags
            self._items[task.name] = outcome.items
            document = self._document({**document["tasks"], task.name: result})
            self._write(document)
            finished(task.name, result)
        self._write(document)
        return document

    @property
    def work(self) -> int:
        """How many texts `run` will report, those that need no encoding included."""
        return sum(len(texts) for task in self.open_tasks() for texts in self._to_encode(task).values())

    @cached_property
    def _count(self) -> Callable[[], float]:
        return token_count(self.encoder)

    @property
    def _items_file(self) -> Path | None:
        return self.json_file and self.json_file.with_name(f"{self.json_file.name.removesuffix('.json')}.items.json")

    def _to_encode(self, task: Task) -> dict[Role, list[str]]:
        """Queries and documents need no vectors where an encoder finds them by their words."""
        by_words = ranks_by_words(self.encoder)
        return {role: texts for role, texts in self._texts[task.name].items() if role == "plain" or not by_words}

    def _needs(self, task: Task) -> Iterator[tuple[Role, VectorCache, list[str]]]:
        for role, texts in self._to_encode(task).items():
            way = way_for(self.encoder, task, role, self.prompts)
            if way not in self._caches:
                self._caches[way] = VectorCache(way.of(self.encoder), self._space(way), self._count)
            yield role, self._caches[way], texts

    def _space(self, way: Way) -> str | None:
        """Names all that changes a vector, apart from the text."""
        precision = str(getattr(getattr(self.encoder, "backbone", None), "dtype", ""))
        return fingerprint(self.fingerprint, way.prompt, way.method, precision) if self.fingerprint else None

    def _vectors(self, task: Task, progress: Callable[[int], object]) -> Vectors:
        rows: dict[Role, tuple[list[str], Any]] = {
            role: (texts, None) for role, texts in self._texts[task.name].items()
        }
        for role, cache, texts in self._needs(task):
            cache.fill(texts, progress)
            rows[role] = (texts, cache.read(texts))
        widths = {matrix.shape[1] for _, matrix in rows.values() if matrix is not None}
        if len(widths) > 1:
            raise InputError(f"{task.name}: the encoder gave queries and documents of {sorted(widths)} dimensions.")
        return Vectors(rows, self.encoder)

    def _overlap(self, task: Task) -> list[str]:
        left, right = task.pairs()
        count = count_overlap(left, right, self.seen) if self.seen is not None and left else 0
        return [f"the encoder was trained on {count} of its {len(left)} pairs"] if count else []

    def _digest(self, task: Task) -> str:
        ways = [way_for(self.encoder, task, role, self.prompts) for role in self._texts[task.name]]
        return fingerprint(task.digest(), [[way.prompt, way.method] for way in ways])

    def _is_done(self, task: Task) -> bool:
        known = self._before.get("tasks", {}).get(task.name)
        return known is not None and task.name in self._items and known.get("data") == self._digests[task.name]

    def _document(self, results: Mapping[str, Result]) -> Result:
        widths = [cache.dim for cache in self._caches.values() if cache.dim]
        self._encoder["dim"] = self._encoder["dim"] or next(iter(widths), None)
        return {
            "encoder": self._encoder,
            "tasks": dict(results),
            "summary": summary(results),
            "cost": self._cost(self._encoder["parameters"]),
            "versions": versions(),
            "command": self.command,
        }

    def _cost(self, parameters: int | None) -> Result:
        """Tokens and seconds of encoding every text once, whenever that was."""
        before = self._before.get("cost", {})
        texts: dict[VectorCache, dict[str, None]] = {}
        for task in self.tasks:
            for _, cache, needed in self._needs(task):
                texts.setdefault(cache, {}).update(dict.fromkeys(needed))
        tokens, seconds = np.sum(
            [cache.cost(list(each)) for cache, each in texts.items()], axis=0, initial=0
        ) + np.zeros(2)
        if seconds < before.get("seconds", 0):  # vectors of tasks done before may be gone from the cache
            tokens, seconds = before["tokens"] or np.nan, before["seconds"]
        counted = bool(np.isfinite(tokens) and tokens > 0)
        return {
            "parameters": parameters,
            "tokens": round(tokens) if counted else None,
            "seconds": round(float(seconds), 2),
            "tokens_per_second": round(float(tokens / seconds), 1) if counted and seconds else None,
            "peak_megabytes": max(peak_megabytes(), before.get("peak_megabytes", 0.0)),
        }

    def _read(self, file: Path | None) -> Result:
        if file is None or not file.exists():
            return {}
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict) or (file == self.json_file and "tasks" not in found):
            raise InputError(f"{file} is not a result of this command; choose another file or remove it.")
        return found

    def _write(self, document: Result) -> None:
        """Items first: a task in the result file always has its items."""
        for file, content in ((self._items_file, self._items), (self.json_file, document)):
            if file is not None:
                with atomic_file(file) as temporary:
                    text = json.dumps(content, indent=1 if content is document else None)
                    temporary.write_text(text + "\n", encoding="utf-8")


def summary(results: Mapping[str, Result]) -> dict[str, float]:
    """The mean of each kind of task, and of the four families of the paper where all of them are there."""
    kinds: dict[str, list[float]] = {}
    for name, result in results.items():
        if not name.endswith(TUNING):
            kinds.setdefault(result["kind"], []).append(result["score"])
    means = {kind: round(float(np.mean(scores)), 2) for kind, scores in kinds.items()}
    if all(kind in means for kind in FOUR):
        means["average"] = round(float(np.mean([means[kind] for kind in FOUR])), 2)
    return means
