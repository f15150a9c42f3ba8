"""The proof of an export: sentence-transformers reads the folder in a process of its own and gives the same vectors."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError
from decoder2vec.export.plain_form import plain_form
from decoder2vec.export.tokenizer import odd_texts

TOLERANCE = 1e-3
"""The largest distance between two vectors, in lengths of ours; their cosine is then above 1 - 1e-6."""

Call = tuple[str, list[str], dict[str, Any]]
"""Method, texts and further arguments: the same for both libraries."""


def differences(pairs: Sequence[tuple[Encoder, Path]]) -> list[float] | None:
    """For each encoder and its folder the largest difference; None where sentence-transformers is not installed."""
    if find_spec("sentence_transformers") is None:
        return None
    calls = [_calls(encoder) for encoder, _ in pairs]
    theirs = iter(_read_elsewhere(pairs, calls))
    found = []
    for (encoder, _), own in zip(pairs, calls, strict=True):
        with _no_word_about_cut_texts():
            ours = [getattr(encoder, method)(texts, **arguments) for method, texts, arguments in own]
        found.append(max(_distance(next(theirs), vectors) for vectors in ours))
    return found


def _calls(encoder: Encoder) -> list[Call]:
    """All texts in one padded batch, some of them alone, and some under each prompt."""
    texts = odd_texts(encoder)
    if encoder.tokenizer("")["input_ids"] and plain_form(encoder).include_prompt:
        texts.append("")  # elsewhere nothing is pooled of an empty text
    few = texts[:4]
    return [
        ("encode", texts, {}),
        ("encode", few, {"batch_size": 1}),
        ("encode_query", few, {}),
        ("encode_document", few, {}),
        *(("encode", few, {"prompt_name": name}) for name in encoder.prompts),
    ]


def _read_elsewhere(pairs: Sequence[tuple[Encoder, Path]], calls: list[list[Call]]) -> list[NDArray[np.float32]]:
    request = [
        {"folder": str(folder), "device": str(encoder.device), "calls": own}
        for (encoder, folder), own in zip(pairs, calls, strict=True)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        asked, answer = Path(scratch) / "request.json", Path(scratch) / "vectors.npz"
        asked.write_text(json.dumps(request), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "decoder2vec.export.reload", str(asked), str(answer)],
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = (done.stderr.strip() or "no message").splitlines()[-1]
            raise BackboneError(f"sentence-transformers cannot read what was written, so it was removed: {reason}")
        with np.load(answer) as vectors:
            return [vectors[name] for name in vectors.files]


def _distance(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    lengths = np.linalg.norm(expected, axis=1)
    return float((np.linalg.norm(found - expected, axis=1) / np.maximum(lengths, 1e-12)).max())


@contextmanager
def _no_word_about_cut_texts() -> Iterator[None]:
    log = logging.getLogger("decoder2vec.activations")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
