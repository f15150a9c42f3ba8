"""Augmentation of scored pairs: extra training pairs with small changes of the texts, to teach robustness."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from decoder2vec.text.files import ScoredPairs

_Pairs = list[tuple[str, str, float]]


def augment_pairs(
    train: ScoredPairs, changes: tuple[str, ...], scale: tuple[float, float], seed: int = 0
) -> ScoredPairs:
    """Return the training pairs followed by the augmented ones.

    Args:
        train: The training pairs.
        changes: Names of the augmentations to apply, out of `AUGMENTATIONS`.
        scale: Lowest and highest possible score.
        seed: Seed of the random changes.
    """
    left, right, scores = list(train.left), list(train.right), list(train.scores)
    for change in changes:
        for text_a, text_b, score in AUGMENTATIONS[change](train, scale[1], random.Random(seed)):
            left.append(text_a)
            right.append(text_b)
            scores.append(score)
    return ScoredPairs(train.name, left, right, scores, train.skipped)


def full_stop_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each text that ends in a full stop with the same text without it."""
    return [(text, text[:-1]) for text in texts if len(text) > 1 and text.endswith(".")]


def _identical(train: ScoredPairs, max_score: float, _: random.Random) -> _Pairs:
    """Pair each sentence with itself, at the highest score."""
    return [(text, text, max_score) for text in train.texts()]


def _punctuation(train: ScoredPairs, max_score: float, _: random.Random) -> _Pairs:
    """Pair each sentence that ends in a full stop with itself without it, at the highest score."""
    return [(text, bare, max_score) for text, bare in full_stop_pairs(train.texts())]


def _case(train: ScoredPairs, _: float, rng: random.Random) -> _Pairs:
    """Repeat each pair with its left text in another case."""
    styles: tuple[Callable[[str], str], ...] = (str.lower, str.upper, str.title)
    return [
        (rng.choice(styles)(a), b, score) for a, b, score in zip(train.left, train.right, train.scores, strict=True)
    ]


def _words(train: ScoredPairs, _: float, rng: random.Random) -> _Pairs:
    """Repeat each pair with one word of its left text dropped, or two neighbouring words swapped."""
    return [
        (_drop_or_swap(a, rng), b, score) for a, b, score in zip(train.left, train.right, train.scores, strict=True)
    ]


def _drop_or_swap(text: str, rng: random.Random) -> str:
    words = text.split()
    if len(words) < 3:
        return text
    index = rng.randrange(len(words) - 1)
    if rng.random() < 0.5:
        del words[index]
    else:
        words[index], words[index + 1] = words[index + 1], words[index]
    return " ".join(words)


AUGMENTATIONS: dict[str, Callable[[ScoredPairs, float, random.Random], _Pairs]] = {
    "identical": _identical,
    "punctuation": _punctuation,
    "case": _case,
    "words": _words,
}
