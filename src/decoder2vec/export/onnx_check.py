"""Check an ONNX model: run it with onnxruntime alone in a new process, in several batches, and compare the vectors."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import without_truncation_warnings
from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.export.reload_check import relative_distance
from decoder2vec.export.tokenizer import probe_texts
from decoder2vec.maths.similarity import pairwise_similarity
from decoder2vec.text.batches import collate
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser


def compare_with_onnxruntime(encoder: Encoder, file: Path) -> tuple[float, float]:
    """Return the largest relative difference from the encoder's vectors, and the lowest cosine.

    All texts are run in one batch with padding on the right, in one with padding on the left, and one by one.
    """
    texts = [*probe_texts(encoder), ""]
    with without_truncation_warnings():
        expected = encoder.encode(texts, show_progress_bar=False)
    template = Template.of(encoder.spec.readings[0].template or encoder.spec.template)
    prompts = Tokeniser(encoder.backbone, template, encoder.max_seq_length)(texts).prompts
    pad = encoder.backbone.pad_token_id
    batches = [collate(prompts, pad), collate(prompts, pad, side="left")]
    batches += [collate([prompt], pad) for prompt in prompts]
    right, left, *single = _run_in_new_process(file, [(batch.ids.numpy(), batch.mask.numpy()) for batch in batches])
    computed = (right, left, np.concatenate(single))
    cosines = [pairwise_similarity("cosine", vectors, expected).min() for vectors in computed]
    return max(relative_distance(vectors, expected) for vectors in computed), float(min(cosines))


def _run_in_new_process(file: Path, batches: list[tuple[Any, Any]]) -> list[NDArray[np.float32]]:
    with tempfile.TemporaryDirectory() as scratch:
        inputs_file, vectors_file = Path(scratch) / "inputs.npz", Path(scratch) / "vectors.npz"
        np.savez(inputs_file, *(array.astype(np.int64) for batch in batches for array in batch))
        script = Path(__file__).with_name("onnx_run.py")
        process = subprocess.run(
            [sys.executable, "-P", str(script), str(file), str(inputs_file), str(vectors_file)],
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            reason = (process.stderr.strip() or "no message").splitlines()[-1]
            raise UnsupportedError(
                "onnxruntime cannot run the graph of this model, so nothing was written; "
                f"export it for sentence-transformers instead ({reason[:200]})."
            )
        with np.load(vectors_file) as vectors:
            return [vectors[name] for name in vectors.files]
