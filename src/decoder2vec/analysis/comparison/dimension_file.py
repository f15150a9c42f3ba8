"""The intrinsic dimension of every layer, read from the JSON that `d2v analyze id` writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoder2vec.analysis.comparison.evaluation_file import number


@dataclass(frozen=True)
class LayerDimension:
    """Both estimates at one layer; what is not known is NaN."""

    layer: int
    twonn: float
    low: float
    high: float
    mle: float


@dataclass(frozen=True)
class Dimensions:
    """The curve of one encoder."""

    name: str
    """Unique in a report."""
    layers: tuple[LayerDimension, ...]
    path: Path
    texts: int | None = None
    area: float = math.nan

    @property
    def peak(self) -> LayerDimension:
        """The layer of the highest dimension by TwoNN (of the first layer, where none is known)."""
        known = [layer for layer in self.layers if math.isfinite(layer.twonn)]
        return max(known or self.layers[:1], key=lambda layer: layer.twonn)


def is_dimensions(document: Any) -> bool:
    """Is this what `d2v analyze id` writes?"""
    layers = document.get("layers") if isinstance(document, dict) else None
    return isinstance(layers, list) and bool(layers) and isinstance(layers[0], dict) and "twonn" in layers[0]


def read_dimensions(document: Any, path: Path) -> Dimensions:
    """The curve in a document."""
    encoder = document.get("encoder")
    name = encoder.get("name") if isinstance(encoder, dict) else encoder
    texts = number(document.get("texts"))
    return Dimensions(
        str(name or path.stem),
        tuple(sorted(map(_layer, document["layers"]), key=lambda layer: layer.layer)),
        path,
        int(texts) if math.isfinite(texts) else None,
        _area(document.get("area")),
    )


def _layer(found: Any) -> LayerDimension:
    low, high = found.get("twonn_95") or (None, None)
    return LayerDimension(int(found["layer"]), *map(number, (found["twonn"], low, high, found.get("mle"))))


def _area(found: Any) -> float:
    return number(found.get("twonn")) if isinstance(found, dict) else number(found)
