"""Pairs that tell more than a correlation: the paper's eight examples, and what any scorer ought to know."""

from __future__ import annotations

import random
from collections.abc import Sequence

from decoder2vec.text.augmentation import full_stop_pairs

EXAMPLES: tuple[tuple[str, str, float, float], ...] = (
    ("Not 'hiding the ball' on Russia: Obama", "Obama says he's not 'hiding the ball' on Russia", 0.88, 0.21),
    (
        "Taiwan's economy grows 2.27% in April-June quarter",
        "China's economic growth rebounds to 7.8% in latest quarter",
        0.20,
        0.90,
    ),
    ("A man is laughing with a woman", "A man and a woman laughing.", 0.96, 0.26),
    ("Supreme Court to Hear Voting Rights Act Case", "Supreme Court to hear corporate human rights case", 0.28, 0.99),
    ("Hassan Rouhani wins Iran's presidential election", "Maduro wins Venezuelan presidential vote", 0.04, 0.82),
    ("Hawaii passes gay marriage bill", "US Senate passes gay workers bill", 0.20, 0.76),
    ("You will want to clean the area first.", "You will also want to remove the seeds.", 0.0, 0.56),
    ("A brown dog is jumping.", "A brown dog is jumping", 1.0, 0.47),
)
"""Two texts, the human score, and what the paper's final model said."""

_SAMPLE = 200


def stop_pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Some texts with and without their full stop."""
    return full_stop_pairs(texts)[:_SAMPLE]


def random_pairs(texts: Sequence[str], seed: int = 0) -> list[tuple[str, str]]:
    """Texts that have nothing to do with each other, but by chance."""
    rng = random.Random(seed)
    return [(a, b) for a, b in ((rng.choice(texts), rng.choice(texts)) for _ in range(5 * _SAMPLE)) if a != b]


def extra_texts(texts: Sequence[str]) -> list[str]:
    """What must be read besides the data itself, for the pairs above."""
    return [text for a, b, *_ in EXAMPLES for text in (a, b)] + [text for _, text in stop_pairs(texts)]
