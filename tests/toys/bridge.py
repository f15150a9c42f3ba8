"""Vectors whose captions follow from them, and vectors whose captions do not."""

from __future__ import annotations

import numpy as np

from decoder2vec.bridge.vectors import CaptionedVectors

THINGS = ("cats", "dogs", "rain", "birds", "stocks", "cars", "boats", "kids")
ACTS = ("sleep", "run", "fall", "sing", "rise", "stop", "sail", "play")


def toy_items(count=96, dim=12, seed=0, *, independent=False):
    """Captions of two words, of which each half of the vector encodes one; independent captions are permuted."""
    generator = np.random.default_rng(seed)
    codes = np.random.default_rng(99).normal(size=(2, 8, dim // 2))
    words = generator.integers(0, 8, (count, 2))
    words[:8] = np.arange(8)[:, None]
    vectors = np.concatenate([codes[0, words[:, 0]], codes[1, words[:, 1]]], axis=1)
    vectors += 0.05 * generator.normal(size=vectors.shape)
    captions = [f"{THINGS[thing]} {ACTS[act]}" for thing, act in words]
    if independent:
        captions = [captions[row] for row in generator.permutation(count)]
    return CaptionedVectors(vectors.astype(np.float32), captions, "toy items")
