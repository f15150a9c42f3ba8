"""Tokens per second of the built-in encoder on a CPU in float32, bfloat16 and int8, and the cosine of their vectors.

In alternation, best of ten; with `--cpu` in CPU seconds of one thread, which other processes on the machine do not
affect much. A processor without matrix units for bfloat16 is up to 300 times slower in it, so there only a layer is
measured; one without VNNI refuses int8. With `ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI` in front, a processor with AMX
computes as one without.

Run: python bench/cpu_dtypes.py [--cpu]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

import numpy as np

from corpus import sentences, texts_of_length
from decoder2vec import Encoder
from decoder2vec.backbone.cpu_dtype import layer_gain
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.errors import UnsupportedError
from measure import report, select_clock, speed_column

ROUNDS = 10
TEXTS = {"sentences": sentences(60), "256 words": texts_of_length(6, 256)}


def load(dtype: str) -> Encoder | None:
    """The encoder, or None where the processor is not made for this dtype."""
    try:
        return Encoder.from_pretrained(DEFAULT_ENCODER, device="cpu", dtype=dtype)
    except UnsupportedError as error:
        print(error)
        return None


def measure(
    encoders: dict[str, Encoder], texts: list[str], clock: Callable[[], float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Tokens per second of each encoder, and the lowest cosine of its vectors to those of the first."""
    vectors = {dtype: encoder.encode(texts, normalize_embeddings=True) for dtype, encoder in encoders.items()}
    exact = vectors["float32"]
    seconds = dict.fromkeys(encoders, np.inf)
    for _ in range(ROUNDS):
        for dtype, encoder in encoders.items():
            tokens, started = encoder.stats.tokens, clock()
            encoder.encode(texts)
            seconds[dtype] = min(seconds[dtype], clock() - started)
            tokens = encoder.stats.tokens - tokens
    return {d: tokens / s for d, s in seconds.items()}, {d: float((v * exact).sum(1).min()) for d, v in vectors.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="CPU seconds of one thread instead of wall time")
    cpu = parser.parse_args().cpu
    clock = select_clock(cpu)
    plain = Encoder.from_pretrained(DEFAULT_ENCODER, device="cpu", dtype="float32")
    gain = layer_gain(plain.backbone.model)
    loaded = {dtype: load(dtype) for dtype in (("bfloat16", "int8") if gain > 0.5 else ("int8",))}
    encoders = {"float32": plain, **{dtype: encoder for dtype, encoder in loaded.items() if encoder}}
    rows = []
    for kind, texts in TEXTS.items():
        speeds, cosines = measure(encoders, texts, clock)
        for dtype, encoder in encoders.items():
            ratio = f"{speeds[dtype] / speeds['float32']:.2f}x"
            memory = f"{encoder.backbone.weight_bytes / 2**20:.0f}"
            rows.append((kind, dtype, f"{speeds[dtype]:.0f}", ratio, f"{cosines[dtype]:.4f}", memory))
    auto = Encoder.from_pretrained(DEFAULT_ENCODER, device="cpu").backbone
    report(
        "cpu_dtypes",
        ("texts", "dtype", speed_column(cpu), "to float32", "lowest cosine", "weights, MB"),
        rows,
        layer_gain=round(gain, 3),
        instructions=os.environ.get("ONEDNN_MAX_CPU_ISA", "all"),
        auto=f"{str(auto.dtype).removeprefix('torch.')}: {auto.dtype_reason}",
    )


if __name__ == "__main__":
    main()
