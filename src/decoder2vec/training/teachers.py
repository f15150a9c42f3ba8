"""Teachers of a distillation: encoders whose vectors a model learns to match, computed once and cached on disk."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoder2vec.activations.store import Store, text_key
from decoder2vec.errors import EncoderError, InputError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.training.distributed import barrier, is_main_process

_TEXTS_PER_SEGMENT = 8192
"""Texts encoded between two writes: what an interruption loses at most."""


@dataclass(frozen=True)
class Teacher:
    """One teacher of a plan."""

    name: str
    """A saved encoder, a sentence-transformers folder, a model or a baseline, as for `load_encoder`."""
    weight: float = 1.0
    """Weight of its loss among those of all teachers."""
    prompt: str = ""
    """Put before every text that the teacher reads, such as "query: "."""

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("A teacher needs a name: a saved encoder, a sentence-transformers folder or a model.")
        if not self.weight > 0:
            raise InputError(f"The weight of the teacher {self.name} must be above 0, not {self.weight:g}.")


class TeacherVectors:
    """Vectors of one teacher for a list of texts, read from disk batch by batch.

    They are kept in 16 bits in the store of latents, by the teacher's fingerprint and the hash of the text, so that
    an interrupted run continues and another training with the same teacher finds them.

    Args:
        teacher: The teacher.
        texts: Texts in the order of the rows that `batch` takes.

    Raises:
        EncoderError: The teacher gives vectors that are not finite.
    """

    def __init__(self, teacher: Teacher, texts: Sequence[str]) -> None:
        encoder = load_encoder(teacher.name)
        self.fingerprint = str(encoder.fingerprint)
        self.dim = int(encoder.dim)
        self._store = Store({"teacher": self.fingerprint, "prompt": teacher.prompt, "name": teacher.name})
        if is_main_process():
            self._encode_missing(encoder, teacher, texts)
        barrier()
        self._store.refresh()
        self._positions = self._store.positions([text_key(text) for text in texts])

    def _encode_missing(self, encoder: Any, teacher: Teacher, texts: Sequence[str]) -> None:
        missing = [text for text in dict.fromkeys(texts) if text_key(text) not in self._store]
        for start in range(0, len(missing), _TEXTS_PER_SEGMENT):
            batch = missing[start : start + _TEXTS_PER_SEGMENT]
            prompted = [teacher.prompt + text for text in batch]
            vectors = np.asarray(encoder.encode(prompted, show_progress_bar=sys.stderr.isatty()), np.float32)
            if not np.isfinite(vectors).all():
                raise EncoderError(f"The teacher {teacher.name} gives vectors that are not finite.")
            self._store.add([text_key(text) for text in batch], vectors[:, None])

    def batch(self, rows: NDArray[np.intp]) -> Tensor:
        """[texts, dim] vectors of length 1 of some rows."""
        out = np.empty((1, len(rows), self.dim), np.float32)
        self._store.read_into(out, self._positions[rows], [(0, 0)])
        return torch.nn.functional.normalize(torch.from_numpy(out[0]), dim=1)
