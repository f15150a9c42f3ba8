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
    """Is this what `d2v analyze id` writes: the curve of one encoder, or of several?"""
    return isinstance(document, dict) and any(map(_is_curve, document.get("encoders") or [document]))


def _is_curve(document: Any) -> bool:
    layers = document.get("layers") if isinstance(document, dict) else None
    return isinstance(layers, list) and bool(layers) and isinstance(layers[0], dict) and "twonn" in layers[0]


def read_dimensions(document: Any, path: Path) -> list[Dimensions]:
    """The curves in a document."""
    return [_curve(one, path) for one in document.get("encoders") or [document]]


def _curve(found: Any, path: Path) -> Dimensions:
    encoder, texts = found.get("encoder"), found.get("texts")
    name = encoder.get("name") if isinstance(encoder, dict) else encoder
    count = number(texts.get("count") if isinstance(texts, dict) else texts)
    # the last layer stands there twice, and the curve ends behind the final norm
    layers = {int(one["layer"]): one for one in sorted(found["layers"], key=lambda one: bool(one.get("normed")))}
    return Dimensions(
        str(name or path.stem),
        tuple(_layer(layers[place]) for place in sorted(layers)),
        path,
        int(count) if math.isfinite(count) else None,
        _area(found.get("area")),
    )


def _layer(found: Any) -> LayerDimension:
    low, high = found.get("twonn_95") or (None, None)
    return LayerDimension(int(found["layer"]), *map(number, (found["twonn"], low, high, found.get("mle"))))


def _area(found: Any) -> float:
    """Over a depth of 1, where there are several."""
    return number(found.get("unit")) if isinstance(found, dict) else number(found)
