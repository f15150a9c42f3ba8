"""What a result file says about the encoder and what it costs, for anything with `encode`."""

from __future__ import annotations

import sys
from typing import Any

from decoder2vec.encoder import Encoder


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
