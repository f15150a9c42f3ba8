"""One door for everything that is measured: baselines by name, sentence-transformers folders, our own encoders."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.evaluation.baselines.bm25 import BM25Words
from decoder2vec.evaluation.baselines.random import RandomVectors
from decoder2vec.evaluation.baselines.sentence_transformers import (
    PACKAGED,
    SentenceTransformersModel,
    is_sentence_transformers,
    packaged_folder,
)
from decoder2vec.evaluation.baselines.static import StaticEmbeddings
from decoder2vec.folder import is_encoder


def open_any(name: str | Path, *, device: str | None = None, **choices: Any) -> Any:
    """Something with `encode`, `fingerprint` and `dim`: a baseline, or decoder2vec's own Encoder for anything else.

    Names: bm25, random, random:256, static:MODEL, all-minilm-l6-v2, or a sentence-transformers folder. `choices`
    (layer, pooling, ...) are for `Encoder.from_pretrained`, and refused by what has no layers to choose from.
    """
    choices = {key: value for key, value in choices.items() if value is not None}
    baseline = _baseline(str(name), device)
    if baseline is None:
        return Encoder.from_pretrained(name, device=device, **choices)
    if choices:
        raise InputError(f"{name} is read as it is; leave out {', '.join(choices)}.")
    return baseline()


def _baseline(name: str, device: str | None) -> Callable[[], Any] | None:
    """What opens the baseline of that name; None where it is none."""
    kind, colon, rest = name.partition(":")
    if name == "bm25":
        return BM25Words
    if kind == "random":
        if colon and not rest.isdecimal():
            raise InputError(f"{name!r} does not say how many numbers; random:256 does.")
        return partial(RandomVectors, int(rest)) if colon else RandomVectors
    if kind == "static":
        if not rest:
            raise InputError("Say of which model the static embeddings are, such as static:smollm2-135m.")
        return partial(StaticEmbeddings, rest)
    folder = packaged_folder(name) if name in PACKAGED else Path(name).expanduser()
    if is_sentence_transformers(folder) and not is_encoder(folder):
        return partial(SentenceTransformersModel, folder, device)
    return None
