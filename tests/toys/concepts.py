"""Texts with concepts of a field in many spellings, and where the concepts are in them."""

from __future__ import annotations

import random
import re

from decoder2vec.text.concepts import ConceptSet

NAMES = ["heart attack", "heart", "naïve cell", "dose response curve", "gene", "東京", "tau"]
CONCEPTS = ConceptSet(frozenset(NAMES))
OTHER_WORDS = ["the", "of", "genes", "attack", "cell", "a", "rises", "hearty", "quickly", "and", "falls", "one"]
"""Some of them are parts of concepts, or contain one."""


def concept_texts(seed: int, count: int, max_words: int = 12) -> list[str]:
    """Different texts with concepts in upper and lower case, with spaces or hyphens, among similar words."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        words = [rng.choice(NAMES if rng.random() < 0.3 else OTHER_WORDS) for _ in range(rng.randint(1, max_words))]
        words = [rng.choice((str, str.upper, str.title))(word).replace(" ", rng.choice((" ", "-"))) for word in words]
        texts.append("".join(word + rng.choice((" ", " ", ", ", " (", ". ")) for word in words).strip())
    return list(dict.fromkeys(texts))


def concept_spans(text: str) -> list[tuple[int, int]]:
    """Character spans of the concepts, by one regular expression that tries the longest first."""
    longest_first = sorted(NAMES, key=lambda name: -len(name.split()))
    names = "|".join(name.replace(" ", r"[\s-]") for name in longest_first)
    return [match.span() for match in re.finditer(rf"(?<!\w)(?:{names})(?!\w)", text, re.IGNORECASE)]
