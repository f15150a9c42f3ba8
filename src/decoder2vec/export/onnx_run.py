"""Run an ONNX model with onnxruntime and numpy alone: `python onnx_run.py MODEL INPUTS VECTORS`."""

from __future__ import annotations

import sys


def main(model_file: str, inputs_file: str, vectors_file: str) -> None:
    """Write the vectors of the batches in `inputs_file`, which has the ids and the mask of each in turn."""
    for package in ("decoder2vec", "torch", "transformers"):
        sys.modules[package] = None  # type: ignore[assignment]
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model_file, options, providers=["CPUExecutionProvider"])
    with np.load(inputs_file) as arrays:
        inputs = [arrays[name] for name in arrays.files]
    vectors = [
        session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})[0]
        for ids, mask in zip(inputs[::2], inputs[1::2], strict=True)
    ]
    np.savez(vectors_file, *vectors)


if __name__ == "__main__":
    main(*sys.argv[1:])
