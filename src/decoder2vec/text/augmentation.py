"""Pairs made from the training pairs by changing their texts: what a user may hope teaches robustness."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from decoder2vec.text.files import ScoredPairs


def augmented_pairs(
    train: ScoredPairs, changes: tuple[str, ...], scale: tuple[float, float], seed: int = 0
) -> ScoredPairs:
    """The training pairs and, for each kind of change, as many more."""
    left, right, scores = list(train.left), list(train.right), list(train.scores)
    for change in changes:
        for a, b, score in AUGMENTATIONS[change](train, scale[1], random.Random(seed)):
            left.append(a)
            right.append(b)
            scores.append(score)
    return ScoredPairs(train.name, left, right, scores, train.skipped)


def full_stop_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Texts that end in a full stop, each with itself without it."""
    return [(text, text[:-1]) for text in texts if len(text) > 1 and text.endswith(".")]


Made = list[tuple[str, str, float]]


def _identical(train: ScoredPairs, top: float, _: random.Random) -> Made:
    """Each sentence with itself, at the highest score."""
    return [(text, text, top) for text in train.texts()]


def _punctuation(train: ScoredPairs, top: float, _: random.Random) -> Made:
    """Each sentence that ends in a full stop, with itself without it."""
    return [(text, bare, top) for text, bare in full_stop_pairs(train.texts())]


def _case(train: ScoredPairs, _: float, rng: random.Random) -> Made:
    """Each pair with one text in another case."""
    styles: tuple[Callable[[str], str], ...] = (str.lower, str.upper, str.title)
    return [
        (rng.choice(styles)(a), b, score) for a, b, score in zip(train.left, train.right, train.scores, strict=True)
    ]


def _words(train: ScoredPairs, _: float, rng: random.Random) -> Made:
    """Each pair with one word of a text dropped, or two neighbours swapped."""
    return [(_disturb(a, rng), b, score) for a, b, score in zip(train.left, train.right, train.scores, strict=True)]


def _disturb(text: str, rng: random.Random) -> str:
    words = text.split()
    if len(words) < 3:
        return text
    place = rng.randrange(len(words) - 1)
    if rng.random() < 0.5:
        del words[place]
    else:
        words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


AUGMENTATIONS: dict[str, Callable[[ScoredPairs, float, random.Random], Made]] = {
    "identical": _identical,
    "punctuation": _punctuation,
    "case": _case,
    "words": _words,
}
