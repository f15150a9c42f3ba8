"""Check that a folder of parts is complete: every row of the input is there exactly once, with its vector."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.bulk.embedded import EmbeddedDataset
from decoder2vec.bulk.files import RowFile, file_version, same_rows
from decoder2vec.bulk.lance_copy import compare_lance_copy
from decoder2vec.bulk.output import OutputFolder
from decoder2vec.bulk.parts import VECTOR_COLUMN, PartEmbedder, store_vectors
from decoder2vec.bulk.plan import Part
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, StorageError
from decoder2vec.progress import current_progress
from decoder2vec.storage import parse_json

_SAMPLED_ROWS = 64
"""Rows that are embedded again."""
_MIN_COSINE = {"float32": 0.9999, "float16": 0.9999, "int8": 0.999, "binary": 0.95}
"""Between a stored vector and a fresh one; of vectors of signs 5 % of the bits may be those of values near 0."""
_MIN_COSINE_IN_16_BITS = {"float32": 0.98, "float16": 0.98, "int8": 0.98, "binary": 0.9}
"""The same for models that compute in 16 bits: a GPU compiles blocks after many tokens, and then rounds otherwise."""


@dataclass(frozen=True)
class Verification:
    """What was found.

    Args:
        n_rows: Rows of the input.
        n_vectors: Rows with a vector.
        n_sampled: Rows whose vectors were computed again.
        problems: What is wrong, in words; nothing if the folder is complete.
    """

    n_rows: int
    n_vectors: int
    n_sampled: int
    problems: tuple[str, ...]


def verify_dataset(out: str | Path, encoder: Encoder) -> Verification:
    """Compare a folder that `embed_dataset` wrote with its input and its encoder.

    All parts are read and their rows compared with those of the input; the vectors of a sample are computed again.

    Args:
        out: The folder, a path or URL.
        encoder: The encoder that wrote it.

    Raises:
        StorageError: The folder was never finished, or is of another encoder.
    """
    dataset = EmbeddedDataset(out)
    plan, output = dataset.plan, dataset.output
    if encoder.fingerprint != plan.encoder:
        raise StorageError(f"{output.url} holds vectors of another encoder; name the one that wrote it with --encoder.")
    changed = _changed_files(plan.files)
    problems = list(changed)
    parts = list(plan.parts())
    expected = {part.name for part in parts}
    problems += [
        f"{name} belongs to no part"
        for name in sorted(output.names())
        if name.startswith("part-") and name not in expected
    ]
    embedder = PartEmbedder(plan, encoder, output)
    n_vectors, samples = 0, []
    per_part = max(1, _SAMPLED_ROWS // len(parts))
    with current_progress().phase("reading", plan.n_rows):
        for index, part in enumerate(parts):
            try:
                stored = dataset.read(part)
                n_vectors += len(stored)
                if not changed:  # else the rows cannot be compared
                    _compare_rows(stored, part, embedder, output)
                if index % max(1, len(parts) // _SAMPLED_ROWS) == 0 and len(stored):
                    samples.append(stored.take(np.linspace(0, len(stored) - 1, min(per_part, len(stored)), dtype=int)))
            except Decoder2VecError as error:
                problems.append(str(error))
            current_progress().advance(part.stop - part.start)
    problems += _compare_vectors(samples, embedder)
    if not problems:
        problems += compare_lance_copy(dataset)
    return Verification(plan.n_rows, n_vectors, sum(map(len, samples)), tuple(problems))


def _changed_files(files: tuple[RowFile, ...]) -> list[str]:
    problems = []
    for file in files:
        try:
            if file_version(file.path) != file.version:
                problems.append(f"{file.path} has changed since it was embedded")
        except (Decoder2VecError, OSError) as error:
            problems.append(f"{file.path} cannot be read: {error}")
    return problems


def _compare_rows(stored: Any, part: Part, embedder: PartEmbedder, output: OutputFolder) -> None:
    """Raise an error unless a part has the rows of its range, in order, without those that were skipped."""
    table, _ = embedder.read(part)
    skipped = set[int]()
    if len(stored) < len(table):
        try:
            with output.open(part.skipped_name) as handle:
                skipped = {parse_json(line)["row"] - part.start for line in handle}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{part.skipped_name} is missing or damaged ({error})") from None
    expected = table.take([index for index in range(len(table)) if index not in skipped])
    if not same_rows(stored.drop_columns([VECTOR_COLUMN]), expected):
        raise StorageError(f"{part.name} has other rows than its range of the input")


def _compare_vectors(samples: list[Any], embedder: PartEmbedder) -> list[str]:
    """Embed the texts of sampled rows again."""
    plan = embedder.plan
    least = (_MIN_COSINE if plan.compute == "float32" else _MIN_COSINE_IN_16_BITS)[plan.vectors.precision]
    problems = []
    for table in samples:
        stored = np.stack(table[VECTOR_COLUMN].to_numpy(zero_copy_only=False))
        texts = table[plan.text_column].to_pylist()
        fresh = store_vectors(embedder.encode(texts), plan.vectors)
        cosines = _cosines(stored, fresh, plan.vectors.precision)
        ids = table[plan.id_column or "id"].to_pylist()
        problems += [
            f"the vector of {ids[index]!r} is not the one that the encoder gives (cosine {cosine:.4f})"
            for index, cosine in enumerate(cosines)
            if cosine < least
        ]
    return problems


def _cosines(first: NDArray[Any], second: NDArray[Any], precision: str) -> NDArray[np.float64]:
    if precision == "binary":  # the share of equal bits
        return np.asarray(np.mean(np.unpackbits(first, axis=1) == np.unpackbits(second, axis=1), axis=1))
    first, second = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray((first * second).sum(axis=1) / np.maximum(norms, 1e-30))
