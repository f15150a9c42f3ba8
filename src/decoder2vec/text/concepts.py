"""Words and the phrases made of them: where they stand in a text, and how often in many."""

from __future__ import annotations

import csv
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.storage import atomic_file
from decoder2vec.text.files import read_rows

LONGEST = 4
"""Words of the longest phrase that is counted; longer ones hardly ever come twice."""

Word = tuple[str, int, int]
"""The word in its plain form, and where it begins and ends in the text as it was given."""

# What may stand between two words of one phrase. A hyphen parts words, so "dose-response", "dose–response" and
# "dose response" are one concept, as in ConceptNet, and "state-of-the-art" is four words. Any other sign ends the
# phrase: "cell membrane" does not stand in "in the cell. Membrane proteins".
_BETWEEN = re.compile(r"\s+|[-\u2010\u2011\u2013]")


@dataclass(frozen=True)
class ConceptCounts:
    """How often each phrase occurs in a corpus."""

    counts: Counter[str]
    words: int
    """Words of the corpus, against which a count must be seen."""


def count_concepts(texts: Iterable[str], longest: int = LONGEST, among: Container[str] | None = None) -> ConceptCounts:
    """Count the phrases of 1 to `longest` words, also where they overlap; only those `among` some if given.

    Without `among` every phrase of the corpus is kept in memory, which is many times more than its words.
    """
    if isinstance(texts, str):
        raise InputError("A corpus is many texts, not one string; give a list of texts or read_texts(file).")
    if longest < 1:
        raise InputError(f"Phrases of at most {longest} words are none; give 1 or more.")
    counts: Counter[str] = Counter()
    words = 0
    for text in texts:
        for run in word_runs(text):
            plain = [word for word, _, _ in run]
            words += len(plain)
            for length in range(1, min(longest, len(plain)) + 1):
                phrases = map(" ".join, zip(*(plain[start:] for start in range(length)), strict=False))
                counts.update(phrases if among is None else filter(among.__contains__, phrases))
    return ConceptCounts(counts, words)


def concept_name(text: str) -> str | None:
    """The one form in which a concept is kept: plain words with a space between; None if other signs are in it."""
    run = next(word_runs(text), None)
    if run is None or (run[0][1], run[-1][2]) != (len(text) - len(text.lstrip()), len(text.rstrip())):
        return None
    return " ".join(word for word, _, _ in run)


def word_runs(text: str) -> Iterator[list[Word]]:
    """The words of a text, in runs within which a phrase may stand.

    Words are found in the text as it is and made plain one by one: to lower the whole text first would move the
    places behind a letter such as "İ", which becomes two.
    """
    run: list[Word] = []
    end = 0
    for match in _word().finditer(text):
        between = text[end : match.start()]
        if run and between != " " and not _BETWEEN.fullmatch(between):  # nearly always a space: quicker to ask first
            yield run
            run = []
        start, end = match.span()
        run.append((_plain(match.group()), start, end))
    if run:
        yield run


def _plain(word: str) -> str:
    """Lower-cased, and the same whether an accent is written as part of the letter or behind it."""
    lower = word.lower()
    return lower if lower.isascii() else unicodedata.normalize("NFC", lower).replace("’", "'")


@cache
def _word() -> re.Pattern[str]:
    """Letters and digits of any script, with the marks that belong to them.

    An apostrophe or underscore between letters is part of the word: "don't", "alzheimer's" and "snake_case" are one
    word each, as no one wants the "t" or the "case" of them; the price is that "cell's" is not the word "cell".
    Scripts without spaces come out as one long word: cut such texts into words first.
    """
    # Python's \w knows no combining marks, but Hindi vowels and decomposed accents are such; no script has any beyond
    # this range. Two more signs join or part letters within a Persian or Hindi word.
    marks = "".join(sign for sign in map(chr, range(0x300, 0x20000)) if unicodedata.category(sign).startswith("M"))
    marks += "\u200c\u200d"
    # The look ahead is for speed: the class of marks is a long one, and most words end before a space.
    return re.compile(rf"[^\W_]+(?:['’_][^\W_]+|(?=[^\x00-\u02ff])[{marks}]+[^\W_]*)*+")


@dataclass(frozen=True)
class ConceptGraph:
    """An undirected graph; edges have no weight and no kind."""

    neighbours: Mapping[str, Set[str]]
    """Of every concept, those it has an edge with."""

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[str, str]]) -> ConceptGraph:
        """The graph of these pairs of names; a pair that comes twice is one edge, a name with itself is none."""
        known: dict[str, str] = {}
        neighbours: dict[str, set[str]] = {}
        for edge in edges:
            left, right = (_concept(name, known) for name in edge)
            ends = neighbours.setdefault(left, set()), neighbours.setdefault(right, set())
            if left != right:
                ends[0].add(right)
                ends[1].add(left)
        return cls(neighbours)

    @classmethod
    def read(cls, path: str | Path, language: str = "en") -> ConceptGraph:
        """The graph of a file, plain or gzipped: two names a line, parted by a tab or comma, and no header.

        ConceptNet's own file of assertions is read as it is; of nodes such as /c/en/heart_attack/n those in another
        language are left out.
        """
        graph = cls.from_edges(_edges(path, language))
        if not graph.neighbours:
            raise DataFileError(f"{path} holds no edge between two concepts in the language {language!r}.")
        return graph

    def degree(self, concept: str) -> int:
        """With how many others a concept has an edge."""
        return len(self.neighbours.get(concept, ()))

    def within(self, seeds: Iterable[str], hops: int) -> set[str]:
        """The seeds and all that can be reached from any of them over at most so many edges."""
        if hops < 0:
            raise InputError(f"{hops} hops cannot be made; give 0 or more.")
        reached = set(seeds)
        newest = reached
        for _ in range(hops):
            newest = {other for concept in newest for other in self.neighbours.get(concept, ())} - reached
            if not newest:
                break
            reached |= newest
        return reached


def _concept(name: str, known: dict[str, str]) -> str:
    """The concept of a name, worked out and stored only once; big graphs say each name many times.

    A name with other signs than words in it is found in no text, but paths may lead over it.
    """
    if name not in known:
        spaced = " ".join(name.replace("_", " ").split())
        concept = concept_name(spaced) or spaced.lower()
        known[name] = known.setdefault(concept, concept)
    return known[name]


def _edges(path: str | Path, language: str) -> Iterator[tuple[str, str]]:
    for number, row in read_rows(path, "txt"):
        line = row["text"]
        if not line.strip():
            continue
        fields = _fields(line)
        if len(fields) == 5 and fields[1].startswith("/r/"):  # ConceptNet: assertion, relation, start, end, details
            fields = fields[2:4]
        if len(fields) != 2 or not all(field.strip(" _") for field in fields):
            raise DataFileError(f"{path}, line {number}: an edge is two names parted by a tab or comma.")
        left, right = (_name(field, language) for field in fields)
        if left and right:
            yield left, right


def _fields(line: str) -> list[str]:
    if "\t" in line:
        return line.split("\t")
    try:
        return next(csv.reader([line], skipinitialspace=True))
    except csv.Error:  # no table at all: a line too long to be one
        return []


def _name(field: str, language: str) -> str:
    """The name in a node; empty if it is in another language, or no word at all, such as a link to another graph."""
    if not field.startswith("/c/"):
        return "" if field.startswith(("http://", "https://")) else field
    own, _, rest = field.removeprefix("/c/").partition("/")
    return rest.split("/")[0] if own == language else ""


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
        with atomic_file(Path(path)) as file:
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
