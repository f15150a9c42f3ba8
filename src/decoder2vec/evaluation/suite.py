"""Run a list of tasks for one encoder and collect the results document, with a description of the encoder and its cost.

Texts are encoded once even if several tasks use them, and a run that was interrupted continues where it stopped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.config import DOCUMENT_PROMPTS, fingerprint
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, EncoderError, InputError, unknown_name
from decoder2vec.evaluation.similarity import SupportsEncode
from decoder2vec.evaluation.tasks.layout import KINDS, TUNING_SUFFIXES
from decoder2vec.evaluation.tasks.task import Role, Task, TaskVectors, evenly_spaced, ranks_lexically
from decoder2vec.evaluation.vector_cache import VectorCache, token_counter
from decoder2vec.storage import atomic_file, parse_json, versions
from decoder2vec.text.data_check import PairHashes, TextHashes, count_overlap, count_shared_texts

Document = dict[str, Any]

AVERAGED_KINDS = ("retrieval", "sts", "clustering", "classification")
"""The kinds of tasks that Table 1 of the soft-prompt paper averages."""

_ROLE_PROMPTS: dict[Role, tuple[str, ...]] = {
    "plain": (),
    "query": ("query",),
    "document": DOCUMENT_PROMPTS,
}
_WARM_UP_TEXTS, _SAMPLE_TEXTS = 8, 64
"""Texts that `estimate` encodes before and while it measures the speed."""


def check_prompt_names(names: Iterable[str], tasks: Sequence[Task]) -> None:
    """Raise an error for the name of a prompt that no task would use; kinds and roles may be those of other tasks."""
    kinds = [*KINDS, *(task.name for task in tasks)]
    roles = [name for prompts in _ROLE_PROMPTS.values() for name in prompts]
    with_role = {f"{kind}-{role}" for kind in kinds for role in _ROLE_PROMPTS}
    for name in names:
        if name not in {*kinds, *roles, *with_role}:
            raise unknown_name("prompt", name, {*kinds, *roles})


@dataclass(frozen=True)
class EncodingMode:
    """How texts are encoded: by which method and with which prompt. Equal modes give equal vectors for equal texts."""

    prompt: str = ""
    method: str = "encode"

    def encode_function(self, encoder: SupportsEncode) -> Callable[[list[str]], Any]:
        """The encoder's method with the prompt filled in: a function from texts to vectors."""
        encode = getattr(encoder, self.method)
        return (lambda texts: encode(texts, prompt=self.prompt)) if self.prompt else encode


def encoding_mode(
    encoder: SupportsEncode, task: Task, role: Role, prompts: Mapping[str, str] | None = None
) -> EncodingMode:
    """The mode for a task's texts of a role.

    The first prompt that exists is used, in the order task-role, task, kind-role, kind, role. An encoder that has
    `encode_query` and `encode_document` but no `prompts` is called by these methods.

    Args:
        encoder: Anything with `encode`; it may have `prompts`, a mapping of names to prompts.
        task: The task.
        role: plain, query or document.
        prompts: Further prompts by name, which override those of the encoder.
    """
    encoder_prompts: Any = getattr(encoder, "prompts", None)
    has_prompts = isinstance(encoder_prompts, Mapping)
    available = {**(encoder_prompts if has_prompts else {}), **(prompts or {})}
    names = (f"{task.name}-{role}", task.name, f"{task.kind}-{role}", task.kind, *_ROLE_PROMPTS[role])
    prompt = next((available[name] for name in names if name in available), None)
    if prompt is not None:
        return EncodingMode(prompt)
    method = f"encode_{role}"
    return EncodingMode(method=method) if not has_prompts and hasattr(encoder, method) else EncodingMode()


@dataclass(frozen=True)
class Estimate:
    """The encoding that is left to do before all tasks can be scored."""

    texts: int
    """Unique texts, counted once for every prompt they are encoded with."""
    cached: int
    """How many of them have a vector already."""
    tokens: float
    """Tokens to encode; nan if the encoder does not count them."""
    seconds: float
    tokens_per_second: float


@dataclass
class Suite:
    """A list of tasks and the encoder to score on them. `run` returns the results document."""

    encoder: SupportsEncode
    """Anything with `encode`."""
    tasks: Sequence[Task]
    name: str = ""
    """Name of the encoder in the results; by default the name of its class."""
    json_file: Path | None = None
    """Write the results here after every task, and continue from results that are there."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by task, kind or role, which override those of the encoder."""
    training_pairs: PairHashes | None = None
    """PairHashes of the pairs that the encoder was trained on, to flag tasks that contain them."""
    command: str = ""
    """The command line, for the results."""
    training_texts: TextHashes | None = None
    """Hashes of the texts that the encoder was trained on, to flag tasks that contain them."""

    def __post_init__(self) -> None:
        self.fingerprint = encoder_fingerprint(self.encoder)
        self._caches: dict[EncodingMode, VectorCache] = {}
        self._counted: dict[VectorCache, set[str]] = {}
        self._spent = np.zeros(2)
        """Tokens and seconds of the counted texts."""
        self._texts = {task.name: task.texts() for task in self.tasks}
        self._digests = {task.name: self._digest(task) for task in self.tasks}
        self._encoder_description = describe_encoder(self.encoder, self.name)
        self._previous = self._read_json(self.json_file)
        self._items = self._read_json(self._items_file)
        previous_encoder = self._previous.get("encoder", self._encoder_description)
        key = "fingerprint" if self.fingerprint else "name"
        if previous_encoder.get(key) != self._encoder_description[key]:
            raise InputError(f"{self.json_file} has results of another encoder; choose another file or remove it.")
        if not self.fingerprint:  # equal names do not prove that it is the same encoder
            self._previous, self._items = {}, {}

    def unfinished_tasks(self) -> list[Task]:
        """The tasks that have no valid result yet."""
        return [task for task in self.tasks if not self._is_finished(task)]

    @property
    def text_count(self) -> int:
        """The number of texts that `run` reports to `on_progress`, cached ones included."""
        return sum(len(texts) for task in self.unfinished_tasks() for texts in self._texts_to_encode(task).values())

    def estimate(self) -> Estimate:
        """Estimate the encoding that is left, by the speed on a few texts, whose vectors are cached like all others."""
        texts_of: dict[VectorCache, dict[str, None]] = {}
        for task in self.unfinished_tasks():
            for _, cache, texts in self._encodings(task):
                texts_of.setdefault(cache, {}).update(dict.fromkeys(texts))
        missing_of = {cache: cache.missing(list(texts)) for cache, texts in texts_of.items()}
        total = sum(map(len, texts_of.values()))
        cached = total - sum(map(len, missing_of.values()))
        tokens = seconds = rate = 0.0
        for cache, missing in missing_of.items():
            if not missing:
                continue
            cache.fill(evenly_spaced(missing, _WARM_UP_TEXTS))
            sample = cache.missing(evenly_spaced(missing, _SAMPLE_TEXTS)) or evenly_spaced(missing, _WARM_UP_TEXTS)
            cache.fill(sample)
            cost = cache.cost(sample) * sum(map(len, missing)) / max(1, sum(map(len, sample)))
            tokens, seconds = tokens + cost[0], seconds + cost[1]
            rate = tokens / max(seconds, 1e-9)
        return Estimate(total, cached, float(tokens), float(seconds), float(rate))

    def run(
        self,
        on_progress: Callable[[int], object] = lambda _: None,
        on_result: Callable[[str, Document], object] = lambda name, result: None,
    ) -> Document:
        """Score every unfinished task.

        Args:
            on_progress: Called with the number of texts just encoded or found in the cache; `text_count` in total.
            on_result: Called with the name and the result of every task as it finishes.

        Returns:
            The results document, which is also in `json_file`.
        """
        for task in self.tasks:
            if self._is_finished(task):
                self._count_cost(task)
        document = self._document(self._previous.get("tasks", {}))
        for task in self.unfinished_tasks():
            started = time.perf_counter()
            vectors = self._encode_task(task, on_progress)
            try:
                scored = task.score(vectors)
            except Exception as error:
                error.add_note(f"The error occurred while {task.name} was scored.")
                raise
            self._count_cost(task)
            result: Document = {
                "kind": task.kind,
                "metric": scored.metric,
                "score": scored.score,
                "interval": list(scored.interval),
                "constant_score": task.constant_score(),
                "scores": scored.scores,
                "texts": sum(map(len, self._texts[task.name].values())),
                "seconds": round(time.perf_counter() - started, 2),
                "data": self._digests[task.name],
            }
            if flags := [*task.flags, *scored.flags, *self._overlap_flags(task)]:
                result["flags"] = flags
            self._items[task.name] = scored.items
            document = self._document({**document["tasks"], task.name: result})
            self._write(document)
            on_result(task.name, result)
        self._write(document)
        return document

    @cached_property
    def _count_tokens(self) -> Callable[[], float]:
        return token_counter(self.encoder)

    @property
    def _items_file(self) -> Path | None:
        return self.json_file and self.json_file.with_name(f"{self.json_file.name.removesuffix('.json')}.items.json")

    def _texts_to_encode(self, task: Task) -> dict[Role, list[str]]:
        """The texts by role; queries and documents need no vectors if the encoder ranks documents lexically."""
        lexical = ranks_lexically(self.encoder)
        return {role: texts for role, texts in self._texts[task.name].items() if role == "plain" or not lexical}

    def _encodings(self, task: Task) -> Iterator[tuple[Role, VectorCache, list[str]]]:
        """For each role of a task the cache for its vectors and the texts to encode."""
        for role, texts in self._texts_to_encode(task).items():
            mode = encoding_mode(self.encoder, task, role, self.prompts)
            if mode not in self._caches:
                encode = mode.encode_function(self.encoder)
                self._caches[mode] = VectorCache(encode, self._space(mode), self._count_tokens)
            yield role, self._caches[mode], texts

    def _space(self, mode: EncodingMode) -> str | None:
        """Name of everything that changes a vector, apart from the text."""
        dtype = str(getattr(getattr(self.encoder, "backbone", None), "dtype", ""))
        return fingerprint(self.fingerprint, mode.prompt, mode.method, dtype) if self.fingerprint else None

    def _encode_task(self, task: Task, on_progress: Callable[[int], object]) -> TaskVectors:
        rows: dict[Role, tuple[list[str], Any]] = {
            role: (texts, None) for role, texts in self._texts[task.name].items()
        }
        for role, cache, texts in self._encodings(task):
            cache.fill(texts, on_progress)
            rows[role] = (texts, cache.read(texts))
        dims = {matrix.shape[1] for _, matrix in rows.values() if matrix is not None}
        if len(dims) > 1:
            raise EncoderError(
                f"{task.name}: the encoder returned queries and documents of {sorted(dims)} dimensions; "
                "both must have the same number."
            )
        return TaskVectors(rows, self.encoder)

    def _overlap_flags(self, task: Task) -> list[str]:
        left, right = task.gold_pairs()
        count = count_overlap(left, right, self.training_pairs) if self.training_pairs is not None and left else 0
        flags = [f"the encoder was trained on {count} of its {len(left)} pairs"] if count else []
        if self.training_texts is not None:
            shared, total = count_shared_texts(chain.from_iterable(task.texts().values()), self.training_texts)
            flags += [f"the encoder was trained on {shared} of its {total} texts"] if shared else []
        return flags

    def _digest(self, task: Task) -> str:
        modes = [encoding_mode(self.encoder, task, role, self.prompts) for role in self._texts[task.name]]
        return fingerprint(task.digest(), [[mode.prompt, mode.method] for mode in modes])

    def _is_finished(self, task: Task) -> bool:
        result = self._previous.get("tasks", {}).get(task.name)
        return result is not None and task.name in self._items and result.get("data") == self._digests[task.name]

    def _document(self, results: Mapping[str, Document]) -> Document:
        dims = [cache.dim for cache in self._caches.values() if cache.dim]
        self._encoder_description["dim"] = self._encoder_description["dim"] or next(iter(dims), None)
        return {
            "encoder": self._encoder_description,
            "tasks": dict(results),
            "summary": summarise(results),
            "cost": self._cost(self._encoder_description["parameters"]),
            "versions": versions(),
            "command": self.command,
        }

    def _count_cost(self, task: Task) -> None:
        """Add the cost of a task's texts, those apart that were counted for other tasks."""
        for _, cache, texts in self._encodings(task):
            counted = self._counted.setdefault(cache, set())
            self._spent = self._spent + cache.cost([text for text in texts if text not in counted])
            counted.update(texts)

    def _cost(self, parameters: int | None) -> Document:
        """Tokens and seconds of encoding every text of the finished tasks once, in this run or an earlier one."""
        previous = self._previous.get("cost", {})
        tokens, seconds = map(float, self._spent)
        if seconds < previous.get("seconds", 0):  # vectors of finished tasks may have been removed from the cache
            tokens, seconds = previous["tokens"] or np.nan, previous["seconds"]
        counted = bool(np.isfinite(tokens) and tokens > 0)
        return {
            "parameters": parameters,
            "tokens": round(tokens) if counted else None,
            "seconds": round(seconds, 2),
            "tokens_per_second": round(tokens / seconds, 1) if counted and seconds else None,
            "peak_megabytes": max(peak_megabytes(), previous.get("peak_megabytes", 0.0)),
        }

    def _read_json(self, file: Path | None) -> Document:
        if file is None or not file.exists():
            return {}
        try:
            content = parse_json(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            content = None
        if not isinstance(content, dict) or (file == self.json_file and "tasks" not in content):
            raise DataFileError(f"{file} is not a result of `d2v eval --tasks`; choose another file or remove it.")
        return content

    def _write(self, document: Document) -> None:
        """Write the items before the results, so that a task in the results always has its items."""
        for file, content in ((self._items_file, self._items), (self.json_file, document)):
            if file is not None:
                with atomic_file(file) as temporary:
                    text = json.dumps(content, indent=1 if content is document else None)
                    temporary.write_text(text + "\n", encoding="utf-8")


def summarise(results: Mapping[str, Document]) -> dict[str, float]:
    """The mean score of each kind of task, and the average of the paper's four kinds if all are present."""
    scores_of_kind: dict[str, list[float]] = {}
    for name, result in results.items():
        if not name.endswith(TUNING_SUFFIXES):
            scores_of_kind.setdefault(result["kind"], []).append(result["score"])
    means = {kind: round(float(np.mean(scores)), 2) for kind, scores in scores_of_kind.items()}
    if all(kind in means for kind in AVERAGED_KINDS):
        means["average"] = round(float(np.mean([means[kind] for kind in AVERAGED_KINDS])), 2)
    return means


def describe_encoder(encoder: object, name: str) -> Document:
    """Name, fingerprint, kind, dimensions, parameters and layers of an encoder; None where it has no such attribute."""
    spec: Any = getattr(encoder, "spec", None)
    description = {
        "name": name or type(encoder).__name__,
        "fingerprint": encoder_fingerprint(encoder),
        "kind": encoder_kind(encoder),
        "dim": _integer_attribute(encoder, "dim") or _integer_attribute(encoder, "get_embedding_dimension"),
        "parameters": count_encoder_parameters(encoder),
        "layers": _count_layers(encoder),
    }
    return {**description, "spec": spec.to_json()} if hasattr(spec, "to_json") else description


def encoder_kind(encoder: object) -> str:
    """One word for tables: bm25, random, static, sentence-transformers, decoder2vec, or the name of the class."""
    default = "decoder2vec" if isinstance(encoder, Encoder) else type(encoder).__name__
    return str(getattr(encoder, "kind", None) or default)


def encoder_fingerprint(encoder: object) -> str | None:
    """The fingerprint of the embedding space, or None if the encoder has none."""
    value = getattr(encoder, "fingerprint", None)
    return value if isinstance(value, str) else None


def count_encoder_parameters(encoder: object) -> int | None:
    """The number of parameters of the model, adapter and head, or None if it is not known."""
    backbone = getattr(encoder, "backbone", None)
    if backbone is None:
        parameters: Any = getattr(encoder, "parameters", None)
        count = sum(parameter.numel() for parameter in parameters()) if callable(parameters) else parameters
        return count if isinstance(count, int) else None
    head = getattr(encoder, "head", None)
    modules = (
        getattr(backbone, "model", None),
        getattr(backbone, "adapter", None),
        *(vars(head) if head else {}).values(),
    )
    sizes: dict[int, int] = {  # by id, since an adapter may share parameters with the model
        id(parameter): parameter.numel() for module in modules for parameter in _parameters(module)
    }
    return sum(sizes.values())


def peak_megabytes() -> float:
    """Peak memory so far: of the GPU if one is in use, else of the process."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


def _parameters(module: object) -> list[Any]:
    parameters = getattr(module, "parameters", None)
    return list(parameters()) if callable(parameters) else []


def _count_layers(encoder: object) -> int | None:
    """The number of blocks that run: those up to the highest layer that is read."""
    readings = getattr(getattr(encoder, "spec", None), "readings", None)
    return max(reading.layer for reading in readings) if readings else _integer_attribute(encoder, "layers")


def _integer_attribute(encoder: object, name: str) -> int | None:
    """The value of an attribute, or the result of a method of that name, if it is an integer."""
    value = getattr(encoder, name, None)
    value = value() if callable(value) else value
    return value if isinstance(value, int) else None
