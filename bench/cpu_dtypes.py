"""Tokens per second of the built-in encoder on a CPU in float32 and bfloat16, and the cosine between their vectors.

A processor without matrix units for bfloat16 is up to 300 times slower in it, so there only a layer is measured.

Run: python bench/cpu_dtypes.py
"""

from __future__ import annotations

from functools import partial

from decoder2vec import Encoder
from decoder2vec.backbone.cpu_dtype import layer_gain
from decoder2vec.config import DEFAULT_ENCODER
from measure import best_seconds, report

SENTENCES = [f"The train number {n} to the city of {n % 7} bridges leaves at {n % 24} o'clock." for n in range(60)]


def main() -> None:
    plain = Encoder.from_pretrained(DEFAULT_ENCODER, device="cpu", dtype="float32")
    gain = layer_gain(plain.backbone.model)
    rows, exact = [], plain.encode(SENTENCES, normalize_embeddings=True)
    for dtype in ("float32", "bfloat16") if gain > 0.5 else ("float32",):
        encoder = Encoder.from_pretrained(DEFAULT_ENCODER, device="cpu", dtype=dtype)
        cosine = (encoder.encode(SENTENCES, normalize_embeddings=True) * exact).sum(1).min()
        tokens, seconds = encoder.stats.tokens, best_seconds(partial(encoder.encode, SENTENCES), 2)
        rows.append((dtype, f"{tokens / seconds:.0f}", f"{cosine:.5f}"))
    auto = Encoder.from_pretrained(DEFAULT_ENCODER, device="cpu").backbone
    report(
        "cpu_dtypes",
        ("dtype", "tokens/s", "lowest cosine"),
        rows,
        layer_gain=round(gain, 3),
        auto=f"{str(auto.dtype).removeprefix('torch.')}: {auto.dtype_reason}",
    )


if __name__ == "__main__":
    main()
