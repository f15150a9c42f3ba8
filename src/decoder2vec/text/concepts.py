"""Words and phrases that matter in a field and are rare elsewhere: what to mask when a model shall learn the field.

A concept is one to four words, lower-cased, with one space between; `concept_words` says what a word is.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.places import whole_file
from decoder2vec.text.concept_graph import ConceptGraph
from decoder2vec.text.concept_words import LONGEST, ConceptCounts, concept_name, count_concepts, word_runs
from decoder2vec.text.files import read_rows


@dataclass(frozen=True)
class Frequency:
    """How often is often? Give a count, or a rate that holds for corpora of any size."""

    count: float | None = None
    """Times in the whole domain corpus."""
    per_million: float | None = None
    """Times in a million words of it."""
    general_share: float | None = None
    """A concept seen more often than this share of the count in the general corpus is known already. By default the
    general corpus's words over the domain's, so both are held to one rate; Kohli et al. took 1/3 for theirs."""

    def __post_init__(self) -> None:
        given = [value for value in (self.count, self.per_million) if value is not None]
        if len(given) != 1:
            raise InputError("A frequency is either a count or a rate per million words; give one of them.")
        for value in (*given, self.general_share or 0):
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"A frequency of {value} cannot be met; give a number from 0 up.")

    def in_domain(self, words: int) -> float:
        """The count that a seed must exceed in a domain corpus of so many words."""
        return self.count if self.count is not None else (self.per_million or 0) * words / 1e6

    def in_general(self, domain_words: int, general_words: int) -> float:
        """The count above which a concept of the general corpus is known already."""
        count = self.in_domain(domain_words)
        # Multiplied first: 49 * (1 / 49) is less than 1, and a concept seen just as often would be thrown out.
        return count * general_words / domain_words if self.general_share is None else count * self.general_share


@dataclass(frozen=True)
class ConceptSet:
    """Concepts to look for in texts."""

    concepts: frozenset[str]
    notes: Mapping[str, float | str] = field(default_factory=dict, compare=False)
    """How the set was made: sizes of the corpora, what was asked for, and what each step left."""

    def __post_init__(self) -> None:
        named = {concept: concept_name(concept) for concept in self.concepts}
        if not named:
            raise InputError("A concept set without a concept finds nothing; give one concept or more.")
        if odd := sorted(concept for concept, name in named.items() if name is None):
            raise InputError(f"{odd[0]!r} would never be found; a concept is made of words and nothing else.")
        object.__setattr__(self, "concepts", frozenset(name for name in named.values() if name))

    def __len__(self) -> int:
        return len(self.concepts)

    @classmethod
    def build(
        cls,
        domain: Iterable[str],
        general: Iterable[str],
        graph: ConceptGraph,
        *,
        frequency: float | Frequency,
        seeds: int,
        hops: int,
    ) -> ConceptSet:
        """Concepts of a graph, after Kohli, Monis and Mamidi: near what the domain talks about, rare in general text.

        Seeds are those with more than `frequency` (a count, or a `Frequency`) in the domain, and of these the `seeds`
        with the most neighbours in the graph. What lies within `hops` of them is taken, less what the general corpus
        has more often than the same rate, and less what the domain never has. Each corpus is read once.
        """
        wanted = frequency if isinstance(frequency, Frequency) else Frequency(frequency)
        _at_least(1, seeds=seeds)
        _at_least(0, hops=hops)
        ours = _counted("field", domain, among=graph.neighbours)
        threshold = wanted.in_domain(ours.words)
        frequent = [concept for concept, count in ours.counts.items() if count > threshold]
        if not frequent:
            raise InputError(_why_no_seed(ours, threshold))
        chosen = sorted(frequent, key=lambda concept: (-graph.degree(concept), concept))[:seeds]
        reached = graph.within(chosen, hops)
        theirs = _counted("general language", general, among=reached)
        known = wanted.in_general(ours.words, theirs.words)
        unknown = {concept for concept in reached if theirs.counts[concept] <= known}
        kept = frozenset(concept for concept in unknown if ours.counts[concept])
        if not kept:
            raise InputError(
                f"Each of the {len(reached):,} concepts reached is missing in the domain or occurs more than "
                f"{known:,.10g} times in the general corpus's {theirs.words:,} words; raise the frequency or take "
                "other general texts."
            )
        sizes = {"domain_words": ours.words, "general_words": theirs.words}
        asked = {"hops": hops, "domain_count": threshold, "general_count": known}
        steps = {"frequent": len(frequent), "seeds": len(chosen), "reached": len(reached), "unknown": len(unknown)}
        return cls(kept, {"made": "graph", **sizes, **asked, **steps})

    @classmethod
    def from_log_ratio(
        cls, domain: Iterable[str], general: Iterable[str], *, top: int, least: int = 5, longest: int = LONGEST
    ) -> ConceptSet:
        """The `top` phrases by log(frequency in the domain / frequency in general), one added to each count.

        They occur at least `least` times in the domain. What general text has at the same rate or a higher one is left
        out however many are asked for, and with it the most common words. No graph is needed. Each corpus is read once.
        """
        _at_least(1, top=top, least=least)
        ours = _counted("field", domain, longest)
        often = {name: count for name, count in ours.counts.items() if count >= least and _says_something(name)}
        if not often:
            raise InputError(
                f"No phrase occurs {least:,} times in the domain's {ours.words:,} words; ask for fewer (least), or "
                "give more text."
            )
        theirs = _counted("general language", general, longest, among=often)
        seen = theirs.counts
        special = [name for name, count in often.items() if count * theirs.words > seen[name] * ours.words]
        if not special:
            raise InputError(
                "Nothing is more frequent in the domain than in the general corpus; take other general texts."
            )
        # The logarithm and the sizes of the corpora change no order, so the plain ratio ranks.
        special.sort(key=lambda name: (-(often[name] + 1) / (seen[name] + 1), -often[name], name))
        sizes = {"domain_words": ours.words, "general_words": theirs.words}
        asked = {"top": top, "least": least, "longest": longest}
        steps = {"frequent": len(often), "special": len(special)}
        return cls(frozenset(special[:top]), {"made": "log ratio", **sizes, **asked, **steps})

    @classmethod
    def read(cls, path: str | Path) -> ConceptSet:
        """The concepts of a file, one a line."""
        names = set()
        for number, row in read_rows(path, "txt"):
            if not row["text"].strip():
                continue
            name = concept_name(row["text"])
            if name is None:
                raise DataFileError(f"{path}, line {number}: {row['text']!r} is not made of words and nothing else.")
            names.add(name)
        if not names:
            raise InputError(f"{path} holds no concept; write one a line.")
        return cls(frozenset(names), {"made": "file", "file": str(path)})

    def write(self, path: str | Path) -> None:
        """Write the concepts to a file, one a line, sorted; the notes are not written."""
        with whole_file(Path(path)) as file:
            file.write_text("".join(f"{name}\n" for name in sorted(self.concepts)), encoding="utf-8", newline="\n")

    def find(self, text: str) -> list[tuple[int, int]]:
        """Where concepts stand in a text, as (begin, end) of its characters.

        From left to right, the longest one at each word; they never overlap and never stand inside a longer word.
        """
        spans = []
        for run in word_runs(text):
            place = 0
            while place < len(run):
                length = self._length_at(run, place)
                if length:
                    spans.append((run[place][1], run[place + length - 1][2]))
                place += length or 1
        return spans

    def _length_at(self, run: list[tuple[str, int, int]], place: int) -> int:
        """Words of the longest concept that begins here; 0 if none does."""
        for length in self._lengths.get(run[place][0], ()):
            if place + length <= len(run):
                name = " ".join(word for word, _, _ in run[place : place + length])
                if name in self.concepts:
                    return length
        return 0

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """First word -> the lengths of the concepts that begin with it, the longest first.

        Most words of a text begin no concept and cost one look-up.
        """
        found: dict[str, set[int]] = {}
        for name in self.concepts:
            words = name.split(" ")
            found.setdefault(words[0], set()).add(len(words))
        return {first: sorted(lengths, reverse=True) for first, lengths in found.items()}


def _counted(
    name: str, texts: Iterable[str], longest: int = LONGEST, among: Container[str] | None = None
) -> ConceptCounts:
    found = count_concepts(texts, longest, among)
    if not found.words:
        raise InputError(f"The texts of the {name} hold no word; give others.")
    return found


def _why_no_seed(ours: ConceptCounts, threshold: float) -> str:
    words = f"the domain's {ours.words:,} words"
    if not ours.counts:
        return f"No concept of the graph occurs in {words}; take a graph in the language of the domain."
    best, count = min(ours.counts.items(), key=lambda item: (-item[1], item[0]))
    return (
        f"No concept occurs more than {threshold:,.10g} times in {words} (the most frequent, {best!r}, has {count:,}); "
        "lower the frequency."
    )


def _at_least(lowest: int, **asked: int) -> None:
    """Refuse a number that makes no sense before hours are spent on reading corpora."""
    for name, value in asked.items():
        if value < lowest:
            raise InputError(f"{name} = {value} is too small; give {lowest} or more.")


def _says_something(name: str) -> bool:
    """Whether a phrase is more than numbers and single letters."""
    return any(len(word) > 1 and not word.isdigit() for word in name.split(" "))
