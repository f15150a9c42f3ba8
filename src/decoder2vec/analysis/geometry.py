"""Geometry of every layer: anisotropy, effective rank, uniformity, alignment, and the similarity of layers (CKA)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.analysis.layer_embeddings import (
    ENCODING_PAIRS,
    MEASURING,
    Document,
    LayerEmbeddings,
    LayerMeasurement,
    load_texts,
    write_documents,
)
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.maths.geometry import alignment, anisotropy, cka_matrix, effective_rank, uniformity
from decoder2vec.progress import current_progress
from decoder2vec.storage import check_output_file
from decoder2vec.text.files import read_data_file

_POSITIVE_SHARE = 0.8
"""Scored pairs above this share of the score range are positive pairs: above 4 of 5 on STS-B, as in SimCSE."""
_MAX_COMPARED = 2000
"""Texts that are all compared with each other, for uniformity and CKA."""


def measure_geometry(
    encoders: Sequence[str | Path | Encoder],
    texts: str | Path | Sequence[str] | None,
    *,
    out: str | Path | None = None,
    pairs: str | Path | PositivePairs | None = None,
    limit: int | None = None,
    pooling: str | None = None,
    template: str | None = None,
    attention: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    notify: Callable[[str], object] = lambda _: None,
) -> Document:
    """Measure the geometry of every layer of one or several encoders.

    Example:
        >>> import decoder2vec as d2v
        >>> document = d2v.measure_geometry(["tiny-llama"], [f"Item {n} costs {n % 5} coins." for n in range(20)])
        >>> [row["layer"] for row in document["layers"]]
        [0, 1, 2, 3, 4, 4]

    Args:
        encoders: Encoders, or names of saved encoders or models.
        texts: A .txt file, any data file, or a list of texts.
        out: Write the returned document here (.json).
        pairs: A file of positive or scored pairs, to measure alignment.
        limit: Use at most this many texts, evenly spaced.
        pooling: Pooling of the layers; by default the encoder's.
        template: Template of models given by name.
        attention: Attention of models given by name: causal or bidirectional.
        device: cuda, mps or cpu, for encoders given by name.
        dtype: Dtype such as "float32" or "bfloat16", for encoders given by name.
        notify: Called with one-line messages.

    Returns:
        The document of `layer_geometry` for one encoder; for several {"encoders": [...]}.
    """
    target = Path(out) if out is not None else None
    sources = [source for source in (texts, pairs) if isinstance(source, str | Path)]
    check_output_file(target, ".json", sources=sources)
    positives = read_positive_pairs(Path(pairs)) if isinstance(pairs, str | Path) else pairs
    chosen, file = load_texts(texts, limit, notify)
    n_pair_texts = len(positives.texts()) if positives else 0
    measurement = LayerMeasurement(chosen, file, pooling, template, attention, device, dtype, n_pair_texts)
    return write_documents(target, measurement.run(encoders, lambda layers: layer_geometry(layers, positives)))


@dataclass(frozen=True)
class PositivePairs:
    """Pairs of texts that belong together."""

    name: str
    left: list[str]
    right: list[str]
    skipped: int = 0
    """Rows of the file that are no positive pair."""

    def texts(self) -> list[str]:
        """The unique texts."""
        return list(dict.fromkeys([*self.left, *self.right]))


def read_positive_pairs(file: Path) -> PositivePairs:
    """Read positive pairs: anchors and positives, or scored pairs in the top fifth of the file's score range.

    Pairs of equal texts are skipped, since their distance is 0 for every encoder.
    """
    data = read_data_file(file)
    rows = data.rows
    if data.kind == "scored pairs":
        scores = [_parse_score(row.label, f"{file}, line {row.line}") for row in rows]
        threshold = min(scores) + _POSITIVE_SHARE * (max(scores) - min(scores))
        rows = [row for row, score in zip(rows, scores, strict=True) if score > threshold]
    elif data.kind not in ("pairs", "triplets", "records"):
        raise DataFileError(f"{file} has {data.kind}; alignment needs pairs: anchor and positive, or scored pairs.")
    candidates = [(row.text, positive) for row in rows for positive in row.positives]
    pairs = [(left, right) for left, right in candidates if left != right]
    if not pairs:
        raise DataFileError(f"{file} has no pair of different texts that belong together.")
    left, right = zip(*pairs, strict=True)
    skipped = len(data.rows) - len(rows) + len(candidates) - len(pairs)
    return PositivePairs(file.name, list(left), list(right), skipped)


def layer_geometry(layers: LayerEmbeddings, pairs: PositivePairs | None = None) -> Document:
    """Anisotropy, effective rank, uniformity, alignment and CKA of every layer, as a document for JSON.

    Args:
        layers: Vectors of every layer.
        pairs: Positive pairs for alignment; without them it is None.
    """
    if len(layers.texts) < 2:
        raise InputError("Geometry needs two different texts or more.")
    pair_layers = None
    if pairs:
        with current_progress().phase(ENCODING_PAIRS):
            pair_layers = layers.for_texts(pairs.texts())
    with current_progress().phase(MEASURING):
        return _measure_layers(layers, pairs, pair_layers)


def _measure_layers(
    layers: LayerEmbeddings, pairs: PositivePairs | None, pair_layers: LayerEmbeddings | None
) -> Document:
    sides = None
    if pairs and pair_layers:
        sides = pair_layers.row_indices(pairs.left), pair_layers.row_indices(pairs.right)

    def align(vectors: NDArray[np.floating]) -> float | None:
        return _finite_or_none(alignment(vectors[sides[0]], vectors[sides[1]])) if sides else None

    compared = _compared_rows(len(layers.texts))
    rows, views = [], []
    for index, reading in enumerate(layers.readings):
        vectors = layers.layer(index)
        row = {"layer": reading.layer, "normed": reading.normed, **_measures(vectors, compared)}
        row["alignment"] = align(pair_layers.layer(index)) if pair_layers else None
        views.append(vectors[compared] if not row["flags"] else np.zeros((len(compared), 1), np.float32))
        rows.append(row)
        current_progress().advance_part(len(layers) - index, f"{index + 1} of {len(layers)}")
    embedding = _measures(layers.embeddings(), compared)
    embedding["alignment"] = align(pair_layers.embeddings()) if pair_layers else None
    return {
        **layers.describe(),
        "texts": {"count": len(layers.texts), "compared": len(compared), "fingerprint": layers.texts_fingerprint()},
        "pairs": {"file": pairs.name, "count": len(pairs.left), "left_out": pairs.skipped} if pairs else None,
        "layers": rows,
        "embedding": {"dim": layers.encoder.dim, **embedding},
        "cka": [[_finite_or_none(value, 4) for value in row] for row in cka_matrix(views)],
    }


def _measures(vectors: NDArray[np.floating], compared: NDArray[np.intp]) -> dict[str, Any]:
    names = ("anisotropy", "effective_rank", "uniformity")
    if not np.isfinite(vectors).all():
        return {**dict.fromkeys(names), "flags": ["not finite"]}
    constant = not np.ptp(vectors, axis=0).any()
    values = anisotropy(vectors), effective_rank(vectors), uniformity(vectors[compared])
    return {**dict(zip(names, map(_finite_or_none, values), strict=True)), "flags": ["constant"] if constant else []}


def _compared_rows(count: int) -> NDArray[np.intp]:
    """Rows of the texts that are compared with each other: all, or `_MAX_COMPARED` evenly spaced ones."""
    return np.unique(np.linspace(0, count - 1, min(count, _MAX_COMPARED)).round().astype(np.intp))


def _parse_score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise DataFileError(f"{where}: the score {text!r} is not a finite number.")
    return score


def _finite_or_none(value: float, digits: int = 6) -> float | None:
    """The value with so many significant digits, or None if it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
