"""Teachers of a distillation: encoders whose vectors a model learns to match, computed once and cached on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoder2vec.activations.store import PRECISIONS, Keys, Store, text_keys
from decoder2vec.backbone.sources import BUILTIN_MODELS
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import BackboneError, EncoderError, InputError, unknown_name
from decoder2vec.evaluation.baselines import PACKAGED_MODELS, load_encoder, read_fingerprint
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.progress import current_progress
from decoder2vec.training.distributed import barrier, rank, world_size

_TEXTS_PER_SEGMENT = 8192
"""Texts encoded between two writes: what a kill loses at most."""
_TEXTS_AT_ONCE = 1024
"""Texts encoded between two reports of progress."""
_TEXTS_FOR_MEAN = 16384
"""Texts from which the mean vector of a teacher is computed."""
_NAMES = (*BUILTIN_MODELS, DEFAULT_ENCODER, *PACKAGED_MODELS)
"""Teachers that need neither a folder nor the model hub."""


@dataclass(frozen=True)
class Teacher:
    """One teacher of a plan."""

    name: str
    """Whatever `load_encoder` loads: a saved encoder, a sentence-transformers folder or hub id, an ONNX folder, a
    server (https://host/v1#model), a file of vectors, a model or a baseline."""
    weight: float = 1.0
    """Weight of its loss among those of all teachers."""
    prompt: str | None = None
    """Put before texts, such as "passage: "; by default the teacher's own prompt for documents, if it has one."""
    query_prompt: str | None = None
    """Put before texts that are queries; by default the teacher's own prompt for queries."""
    pooling: str | None = None
    """Pooling of an ONNX folder or a model, where the folder does not say it."""
    requests_per_minute: int | None = None
    """Rate limit of a server."""
    precision: str = "float16"
    """How vectors are stored: float16, or int8 with a scale for each vector, which takes half the disk."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("A teacher needs a name: a saved encoder, a sentence-transformers folder or a model.")
        if not 0 < self.weight < math.inf:
            raise InputError(f"The weight of the teacher {self.name} must be above 0, not {self.weight:g}.")
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise unknown_name("pooling", self.pooling, POOLINGS)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)

    @property
    def phase(self) -> str:
        """Name of the phase of progress in which its vectors are computed."""
        return f"vectors of {self.name}"

    def load(self) -> Any:
        """The encoder; within `share_teachers` it stays in memory until `release`."""
        shared = _shared.get()
        if shared and self in shared.encoders:
            return shared.encoders[self]
        # what is initialised next must not depend on the teacher
        with torch.random.fork_rng(devices=[]), self._explained_if_missing():
            encoder = load_encoder(self.name, pooling=self.pooling, requests_per_minute=self.requests_per_minute)
        if shared:
            shared.encoders[self], shared.fingerprints[self] = encoder, str(encoder.fingerprint)
        return encoder

    def release(self) -> None:
        """Let go of the encoder, so that it takes no memory while a model is trained."""
        if shared := _shared.get():
            shared.encoders.pop(self, None)

    def read_fingerprint(self) -> str:
        """What its vectors depend on, as it is now: from its files if they tell it, else the encoder is loaded."""
        shared = _shared.get()
        if shared and self in shared.fingerprints:
            return shared.fingerprints[self]
        with self._explained_if_missing():
            from_files = read_fingerprint(self.name, pooling=self.pooling, requests_per_minute=self.requests_per_minute)
        fingerprint = from_files or str(self.load().fingerprint)
        if shared:
            shared.fingerprints[self] = fingerprint
        return fingerprint

    @contextmanager
    def _explained_if_missing(self) -> Iterator[None]:
        """Say what a teacher may be where nothing has its name."""
        try:
            yield
        except BackboneError as error:
            if self.name in _NAMES or Path(self.name).expanduser().exists():
                raise
            raise BackboneError(
                f"There is no teacher {self.name!r}, neither here nor on the model hub; give {', '.join(_NAMES)}, the "
                "folder of an encoder, a sentence-transformers, ONNX or plain model, a hub id (OWNER/NAME), a model of "
                "a server (https://host/v1#model), or a file of vectors (.npy, .npz, .parquet, .jsonl)."
            ) from error


@dataclass(frozen=True)
class _SharedTeachers:
    encoders: dict[Teacher, Any] = field(default_factory=dict)
    fingerprints: dict[Teacher, str] = field(default_factory=dict)


_shared: ContextVar[_SharedTeachers | None] = ContextVar("shared_teachers", default=None)


@contextmanager
def share_teachers() -> Iterator[None]:
    """Within the block, whoever asks for the fingerprint or the vectors of a teacher shares one load of it."""
    token = _shared.set(_shared.get() or _SharedTeachers())
    try:
        yield
    finally:
        _shared.reset(token)


class TeacherVectors:
    """Vectors of one teacher for a list of texts, read from disk batch by batch.

    They are kept in the store of latents, by the teacher's fingerprint and the hash of the text, so that an interrupted
    run continues and another training with the same teacher finds them; the teacher is loaded only if some are missing.
    In memory there are 40 bytes for each text.

    Args:
        teacher: The teacher.
        texts: Texts in the order of the rows that `batch` takes.
        queries: The texts are queries, for which a teacher may have another prompt.

    Raises:
        EncoderError: The teacher gives vectors that are not finite.
    """

    def __init__(self, teacher: Teacher, texts: Sequence[str], *, queries: bool = False) -> None:
        self.fingerprint = teacher.read_fingerprint()
        prompt = teacher.query_prompt if queries else teacher.prompt
        role = "query" if queries else "document"
        space = {"teacher": self.fingerprint, "prompt": prompt, "role": role, "precision": teacher.precision}
        self._store = Store({**space, "name": teacher.name}, precision=teacher.precision)
        keys = text_keys(texts)
        missing = self._store.missing(keys)
        barrier()  # all processes see the same texts missing
        with current_progress().phase(teacher.phase, float(len(missing))):
            own_share = missing[rank() :: world_size()]
            if len(own_share):
                encoder = teacher.load()
                encode = encoder.encode_query if queries else encoder.encode_document
                encode = partial(encode, show_progress_bar=False, **({} if prompt is None else {"prompt": prompt}))
                self._encode_texts(encode, teacher.name, texts, keys, own_share)
        barrier()
        self._store.refresh()
        self._positions = self._store.positions(keys)
        self.dim = self._store.dim

    def _encode_texts(
        self, encode: Any, name: str, texts: Sequence[str], keys: Keys, missing: NDArray[np.intp]
    ) -> None:
        """Encode and store the texts of some rows, segment by segment."""
        lengths = np.array([len(texts[row]) for row in missing], np.intp)
        for start in range(0, len(missing), _TEXTS_PER_SEGMENT):
            segment = slice(start, start + _TEXTS_PER_SEGMENT)
            # little padding within a batch, while the time left stays a fair guess
            rows = missing[segment][np.argsort(-lengths[segment], kind="stable")]
            self._encode_segment(encode, name, texts, keys, rows, start)

    def _encode_segment(
        self, encode: Any, name: str, texts: Sequence[str], keys: Keys, rows: NDArray[np.intp], n_before: int
    ) -> None:
        """Encode and store the texts of some rows; if that is interrupted, those that are finished are stored."""
        finished: list[NDArray[np.float32]] = []
        try:
            for start in range(0, len(rows), _TEXTS_AT_ONCE):
                batch = [texts[row] for row in rows[start : start + _TEXTS_AT_ONCE]]
                vectors = np.asarray(encode(batch), np.float32)
                if not np.isfinite(vectors).all():
                    raise EncoderError(f"The teacher {name} gives vectors that are not finite.")
                finished.append(vectors)
                current_progress().reach(world_size() * (n_before + start + len(batch)))
        finally:
            if finished:
                vectors = np.concatenate(finished)
                self._store.add(keys[rows[: len(vectors)]], vectors[:, None])

    @cached_property
    def mean(self) -> Tensor:
        """[dim] mean of the vectors of length 1 of some thousand evenly spaced texts."""
        n_texts = len(self._positions)
        rows = np.linspace(0, n_texts - 1, min(n_texts, _TEXTS_FOR_MEAN)).astype(np.intp)
        return self.batch(rows).mean(dim=0)

    def batch(self, rows: NDArray[np.intp]) -> Tensor:
        """[texts, dim] vectors of length 1 of some rows."""
        out = np.empty((1, len(rows), self.dim), np.float32)
        self._store.read_into(out, self._positions[rows], [(0, 0)])
        return torch.nn.functional.normalize(torch.from_numpy(out[0]), dim=1)
