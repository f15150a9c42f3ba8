"""How well the words of a text were restored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoder2vec.errors import InputError

Words = Sequence[str]


@dataclass(frozen=True)
class RestorationScore:
    """Counts of words over all examples, and what follows from them; 0 where nothing was there to divide by."""

    problems: int
    """Words that are different in source and target: what had to be done."""
    attempts: int
    """Words that are different in source and output: what was done."""
    hits: int
    """Attempts that are equal to the target."""
    mismatched: int
    """Examples whose output has another number of words: all their problems count as missed, nothing as attempted."""

    @property
    def precision(self) -> float:
        """The share of attempts that were right; mismatched examples have none, so it says nothing about them."""
        return self.hits / self.attempts if self.attempts else 0.0

    @property
    def recall(self) -> float:
        """The share of problems that were solved, those of mismatched examples included."""
        return self.hits / self.problems if self.problems else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.hits / (self.attempts + self.problems) if self.attempts + self.problems else 0.0

    def rates(self) -> dict[str, float]:
        """The three shares by name, for a report."""
        return {name: round(getattr(self, name), 4) for name in ("precision", "recall", "f1")}


def score(
    source_words: Sequence[Words], output_words: Sequence[Words], target_words: Sequence[Words]
) -> RestorationScore:
    """Compare word by word, one list of words per example.

    Examples whose output has another length are kept: to drop them would flatter a model that loses words. A target
    of another length than its source is a fault of the data, not of the model, and refused.
    """
    problems = attempts = hits = mismatched = 0
    if not len(source_words) == len(output_words) == len(target_words):
        raise InputError(
            f"{len(source_words)} sources, {len(output_words)} outputs and {len(target_words)} targets; give as many."
        )
    for number, (source, output, target) in enumerate(zip(source_words, output_words, target_words, strict=True)):
        _check(number, source, output, target)
        problems += sum(a != c for a, c in zip(source, target, strict=True))
        if len(output) != len(source):
            mismatched += 1
            continue
        attempts += sum(a != b for a, b in zip(source, output, strict=True))
        hits += sum(a != b == c for a, b, c in zip(source, output, target, strict=True))
    return RestorationScore(problems, attempts, hits, mismatched)


def _check(number: int, source: Words, output: Words, target: Words) -> None:
    if any(isinstance(words, str) for words in (source, output, target)):
        raise InputError(f"Example {number} is a text, not a list of words; split it first.")
    if len(source) != len(target):
        raise InputError(
            f"Example {number} has {len(source)} words in the source and {len(target)} in the target; "
            "attach stand-alone marks to a word first."
        )
