"""Check an exported folder: load it with sentence-transformers in a new process and compare the vectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import without_truncation_warnings
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError
from decoder2vec.export.sentence_transformers_config import SentenceTransformersConfig
from decoder2vec.export.tokenizer import probe_texts

TOLERANCE = 1e-3
"""The largest allowed distance between two vectors, relative to the norm of ours; their cosine is then > 1 - 1e-6."""

EncodeCall = tuple[str, list[str], dict[str, Any]]
"""Method name, texts and keyword arguments of a call that both libraries understand."""


def reload_differences(exports: Sequence[tuple[Encoder, Path]]) -> list[float] | None:
    """Return the largest relative difference for each encoder and its exported folder.

    One new process loads all folders. Returns None if sentence-transformers is not installed.
    """
    if find_spec("sentence_transformers") is None:
        return None
    calls_per_export = [_encode_calls(encoder) for encoder, _ in exports]
    reloaded_vectors = iter(
        call_in_new_process(
            [
                {
                    "class": "SentenceTransformer",
                    "folder": str(folder),
                    "options": _load_options(encoder),
                    "calls": calls,
                }
                for (encoder, folder), calls in zip(exports, calls_per_export, strict=True)
            ]
        )
    )
    differences = []
    for (encoder, _), calls in zip(exports, calls_per_export, strict=True):
        with without_truncation_warnings():
            expected = [getattr(encoder, method)(texts, **arguments) for method, texts, arguments in calls]
        differences.append(max(relative_distance(next(reloaded_vectors), vectors) for vectors in expected))
    return differences


def _encode_calls(encoder: Encoder) -> list[EncodeCall]:
    """Return calls for all texts in one padded batch, a few one by one, and a few with each prompt."""
    texts = probe_texts(encoder)
    if SentenceTransformersConfig.from_encoder(encoder).include_prompt:
        texts.append("")  # otherwise sentence-transformers has no token of an empty text to pool
    few = texts[:4]
    return [
        ("encode", texts, {}),
        ("encode", few, {"batch_size": 1}),
        ("encode_query", few, {}),
        ("encode_document", few, {}),
        *(("encode", few, {"prompt_name": name}) for name in encoder.prompts),
    ]


def call_in_new_process(request: list[dict[str, Any]]) -> list[NDArray[np.float32]]:
    """Make calls with exported folders where this package cannot be imported, and return their results.

    Args:
        request: For each folder the "class" of sentence-transformers that loads it with "options", and the "calls".
    """
    with tempfile.TemporaryDirectory() as scratch:
        request_file, vectors_file = Path(scratch) / "request.json", Path(scratch) / "vectors.npz"
        request_file.write_text(json.dumps(request), encoding="utf-8")
        process = subprocess.run(
            [sys.executable, "-P", str(Path(__file__).with_name("reload.py")), str(request_file), str(vectors_file)],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(Path(scratch) / "modules")},
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            reason = (process.stderr.strip() or "no message").splitlines()[-1]
            raise BackboneError(f"sentence-transformers cannot load the exported folder, so it was removed: {reason}")
        with np.load(vectors_file) as vectors:
            return [vectors[name] for name in vectors.files]


def _load_options(encoder: Encoder) -> dict[str, Any]:
    trust = SentenceTransformersConfig.from_encoder(encoder).needs_own_module
    return {"device": str(encoder.device), "trust_remote_code": trust}


def relative_distance(vectors: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the largest distance of two vectors, relative to the norm of the expected one."""
    if vectors.shape != expected.shape or not np.isfinite(vectors).all():
        return float("inf")
    norms = np.linalg.norm(expected, axis=1)
    return float((np.linalg.norm(vectors - expected, axis=1) / np.maximum(norms, 1e-12)).max())
