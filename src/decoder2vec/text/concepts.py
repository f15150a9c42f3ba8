"""Concepts: words and phrases of a domain, found in texts, counted over corpora and chosen with or without a graph.

`ConceptSet` holds the concepts and finds them in texts. It is built from two corpora, either with a `ConceptGraph`
after Kohli, Monis and Mamidi or by the ratio of frequencies; `count_concepts` and `word_runs` do the counting.
"""

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

MAX_PHRASE_WORDS = 4
"""Words of the longest phrase that is counted; longer ones hardly ever occur twice."""

Word = tuple[str, int, int]
"""A normalised word, and its begin and end in the original text."""

# What may stand between two words of one phrase. A hyphen separates words, so "dose-response", "dose–response" and
# "dose response" are one concept, as in ConceptNet, and "state-of-the-art" is four words. Any other sign ends the
# phrase: "cell membrane" does not occur in "in the cell. Membrane proteins".
_SEPARATOR = re.compile(r"\s+|[-\u2010\u2011\u2013]")


@dataclass(frozen=True)
class ConceptSet:
    """Concepts to look for in texts."""

    concepts: frozenset[str]
    notes: Mapping[str, float | str] = field(default_factory=dict, compare=False)
    """How the set was made: sizes of the corpora, thresholds, and the number of concepts after each step."""

    def __post_init__(self) -> None:
        names = {concept: normalise_concept(concept) for concept in self.concepts}
        if not names:
            raise InputError("A concept set needs at least one concept.")
        if invalid := sorted(concept for concept, name in names.items() if name is None):
            raise InputError(f"{invalid[0]!r} would never be found; a concept is made of words and nothing else.")
        object.__setattr__(self, "concepts", frozenset(name for name in names.values() if name))

    def __len__(self) -> int:
        return len(self.concepts)

    @classmethod
    def from_graph(
        cls,
        domain: Iterable[str],
        general: Iterable[str],
        graph: ConceptGraph,
        *,
        frequency: float | Frequency,
        seeds: int,
        hops: int,
    ) -> ConceptSet:
        """Choose concepts of a graph that are near the domain's topics and rare in general text (Kohli et al.).

        Seeds are the concepts more frequent in the domain than `frequency`, and of these the `seeds` with the most
        neighbours. All concepts within `hops` edges of a seed are taken, except those that the general corpus has more
        often than the same rate and those that never occur in the domain. Each corpus is read once.

        Args:
            domain: Texts of the domain.
            general: Texts of general language, such as the model was trained on.
            graph: The concept graph.
            frequency: Minimum frequency of a seed in the domain: a count, or a `Frequency`.
            seeds: Maximum number of seeds.
            hops: Maximum distance from a seed, in edges.
        """
        threshold = frequency if isinstance(frequency, Frequency) else Frequency(frequency)
        _check_minimum(1, seeds=seeds)
        _check_minimum(0, hops=hops)
        domain_counts = _count_corpus("domain", domain, vocabulary=graph.neighbours)
        min_count = threshold.domain_count(domain_counts.words)
        frequent = [concept for concept, count in domain_counts.counts.items() if count > min_count]
        if not frequent:
            raise InputError(_no_seed_message(domain_counts, min_count))
        chosen = sorted(frequent, key=lambda concept: (-graph.degree(concept), concept))[:seeds]
        reached = graph.within(chosen, hops)
        general_counts = _count_corpus("general", general, vocabulary=reached)
        max_count = threshold.general_count(domain_counts.words, general_counts.words)
        rare = {concept for concept in reached if general_counts.counts[concept] <= max_count}
        concepts = frozenset(concept for concept in rare if domain_counts.counts[concept])
        if not concepts:
            raise InputError(
                f"Each of the {len(reached):,} concepts reached is missing in the domain or occurs more than "
                f"{max_count:,.10g} times in the general corpus's {general_counts.words:,} words; raise the frequency "
                "or take other general texts."
            )
        sizes = {"domain_words": domain_counts.words, "general_words": general_counts.words}
        thresholds = {"hops": hops, "domain_count": min_count, "general_count": max_count}
        steps = {"frequent": len(frequent), "seeds": len(chosen), "reached": len(reached), "unknown": len(rare)}
        return cls(concepts, {"made": "graph", **sizes, **thresholds, **steps})

    @classmethod
    def from_log_ratio(
        cls,
        domain: Iterable[str],
        general: Iterable[str],
        *,
        top: int,
        min_count: int = 5,
        max_words: int = MAX_PHRASE_WORDS,
    ) -> ConceptSet:
        """Choose the phrases with the highest log(domain frequency / general frequency), with add-one smoothing.

        Phrases that are not more frequent in the domain than in general text are never chosen, which excludes the most
        common words. No graph is needed. Each corpus is read once.

        Args:
            domain: Texts of the domain.
            general: Texts of general language.
            top: Maximum number of concepts.
            min_count: Minimum number of occurrences in the domain.
            max_words: Maximum number of words of a concept.
        """
        _check_minimum(1, **{"top": top, "min_count (--least)": min_count})
        domain_counts = _count_corpus("domain", domain, max_words)
        frequent = {
            name: count for name, count in domain_counts.counts.items() if count >= min_count and _is_meaningful(name)
        }
        if not frequent:
            raise InputError(
                f"No phrase occurs {min_count:,} times in the domain's {domain_counts.words:,} words; lower the "
                "minimum (min_count, --least) or give more text."
            )
        general_counts = _count_corpus("general", general, max_words, vocabulary=frequent)
        general_count = general_counts.counts
        special = [
            name
            for name, count in frequent.items()
            if count * general_counts.words > general_count[name] * domain_counts.words
        ]
        if not special:
            raise InputError(
                "Nothing is more frequent in the domain than in the general corpus; take other general texts."
            )
        # The logarithm and the sizes of the corpora do not change the order, so the plain ratio is enough for ranking.
        special.sort(key=lambda name: (-(frequent[name] + 1) / (general_count[name] + 1), -frequent[name], name))
        sizes = {"domain_words": domain_counts.words, "general_words": general_counts.words}
        thresholds = {"top": top, "least": min_count, "longest": max_words}
        steps = {"frequent": len(frequent), "special": len(special)}
        return cls(frozenset(special[:top]), {"made": "log ratio", **sizes, **thresholds, **steps})

    @classmethod
    def read(cls, path: str | Path) -> ConceptSet:
        """Read concepts from a file, one per line."""
        names = set()
        for line, row in read_rows(path, "txt"):
            if not row["text"].strip():
                continue
            name = normalise_concept(row["text"])
            if name is None:
                raise DataFileError(f"{path}, line {line}: {row['text']!r} is not made of words and nothing else.")
            names.add(name)
        if not names:
            raise DataFileError(f"{path} holds no concept; write one per line.")
        return cls(frozenset(names), {"made": "file", "file": str(path)})

    def write(self, path: str | Path) -> None:
        """Write the concepts to a file, one per line, sorted; the notes are not written."""
        with atomic_file(Path(path)) as file:
            file.write_text("".join(f"{name}\n" for name in sorted(self.concepts)), encoding="utf-8", newline="\n")

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return (begin, end) in characters of every occurrence of a concept in a text.

        The search goes from left to right and takes the longest concept at each word; occurrences never overlap and
        never lie inside a longer word.
        """
        spans = []
        for run in word_runs(text):
            index = 0
            while index < len(run):
                length = self._length_at(run, index)
                if length:
                    spans.append((run[index][1], run[index + length - 1][2]))
                index += length or 1
        return spans

    def _length_at(self, run: list[Word], index: int) -> int:
        """Number of words of the longest concept that begins at the word `index`; 0 if none does."""
        for length in self._lengths.get(run[index][0], ()):
            if index + length <= len(run):
                name = " ".join(word for word, _, _ in run[index : index + length])
                if name in self.concepts:
                    return length
        return 0

    @cached_property
    def _lengths(self) -> dict[str, list[int]]:
        """First word -> lengths of the concepts that begin with it, the longest first.

        Most words of a text begin no concept and cost one look-up.
        """
        lengths: dict[str, set[int]] = {}
        for name in self.concepts:
            words = name.split(" ")
            lengths.setdefault(words[0], set()).add(len(words))
        return {first: sorted(by_first, reverse=True) for first, by_first in lengths.items()}


@dataclass(frozen=True)
class Frequency:
    """A frequency threshold: an absolute count, or a rate that suits corpora of any size."""

    count: float | None = None
    """Occurrences in the whole domain corpus."""
    per_million: float | None = None
    """Occurrences in a million words of the domain corpus."""
    general_share: float | None = None
    """A concept with more than this share of the count in the general corpus is known already. By default the ratio of
    the sizes of general and domain corpus, so that both are held to one rate; Kohli et al. took 1/3 for theirs."""

    def __post_init__(self) -> None:
        values = [value for value in (self.count, self.per_million) if value is not None]
        if len(values) != 1:
            raise InputError("A frequency is either a count or a rate per million words; give one of them.")
        for value in (*values, self.general_share or 0):
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"A frequency of {value} is impossible; give a finite number, 0 or more.")

    def domain_count(self, domain_words: int) -> float:
        """The count that a seed must exceed in a domain corpus of `domain_words` words."""
        return self.count if self.count is not None else (self.per_million or 0) * domain_words / 1e6

    def general_count(self, domain_words: int, general_words: int) -> float:
        """The count above which a concept in the general corpus is known already."""
        count = self.domain_count(domain_words)
        # Multiply first: 49 * (1 / 49) is less than 1, and a concept with exactly the same rate would be dropped.
        return count * general_words / domain_words if self.general_share is None else count * self.general_share


@dataclass(frozen=True)
class ConceptGraph:
    """An undirected graph of concepts; edges have no weight and no type."""

    neighbours: Mapping[str, Set[str]]
    """The neighbours of every concept."""

    @classmethod
    def from_edges(cls, edges: Iterable[tuple[str, str]]) -> ConceptGraph:
        """Build the graph from pairs of names; repeated pairs are one edge, a pair of equal names is none."""
        concepts: dict[str, str] = {}
        neighbours: dict[str, set[str]] = {}
        for edge in edges:
            left, right = (_node(name, concepts) for name in edge)
            left_neighbours, right_neighbours = neighbours.setdefault(left, set()), neighbours.setdefault(right, set())
            if left != right:
                left_neighbours.add(right)
                right_neighbours.add(left)
        return cls(neighbours)

    @classmethod
    def read(cls, path: str | Path, language: str = "en") -> ConceptGraph:
        """Read a graph from a text file, plain or gzipped: two names per line, separated by a tab or comma, no header.

        ConceptNet's own file of assertions can be read directly; of nodes such as /c/en/heart_attack/n only those in
        `language` are kept.
        """
        graph = cls.from_edges(_read_edges(path, language))
        if not graph.neighbours:
            raise DataFileError(f"{path} holds no edge between two concepts in the language {language!r}.")
        return graph

    def degree(self, concept: str) -> int:
        """Number of neighbours of a concept."""
        return len(self.neighbours.get(concept, ()))

    def within(self, seeds: Iterable[str], hops: int) -> set[str]:
        """Return the seeds and all concepts that are at most `hops` edges away from one of them."""
        if hops < 0:
            raise InputError(f"hops must be 0 or more, not {hops}.")
        reached = set(seeds)
        frontier = reached
        for _ in range(hops):
            frontier = {other for concept in frontier for other in self.neighbours.get(concept, ())} - reached
            if not frontier:
                break
            reached |= frontier
        return reached


@dataclass(frozen=True)
class ConceptCounts:
    """How often each phrase occurs in a corpus."""

    counts: Counter[str]
    words: int
    """Number of words of the corpus."""


def count_concepts(
    texts: Iterable[str], max_words: int = MAX_PHRASE_WORDS, vocabulary: Container[str] | None = None
) -> ConceptCounts:
    """Count all phrases of a corpus, overlapping ones included.

    Args:
        texts: The corpus.
        max_words: Maximum number of words of a phrase.
        vocabulary: Count only these phrases. Without it every phrase of the corpus is kept in memory, which is many
            times more than its words.
    """
    if isinstance(texts, str):
        raise InputError("A corpus is a list of texts, not one string; give a list of texts or read_texts(file).")
    if max_words < 1:
        raise InputError(f"A phrase cannot have at most {max_words} words; give 1 or more.")
    counts: Counter[str] = Counter()
    n_words = 0
    for text in texts:
        for run in word_runs(text):
            words = [word for word, _, _ in run]
            n_words += len(words)
            for length in range(1, min(max_words, len(words)) + 1):
                phrases = map(" ".join, zip(*(words[start:] for start in range(length)), strict=False))
                counts.update(phrases if vocabulary is None else filter(vocabulary.__contains__, phrases))
    return ConceptCounts(counts, n_words)


def normalise_concept(text: str) -> str | None:
    """Return the concept as normalised words with single spaces; None if it contains anything but words."""
    run = next(word_runs(text), None)
    if run is None or (run[0][1], run[-1][2]) != (len(text) - len(text.lstrip()), len(text.rstrip())):
        return None
    return " ".join(word for word, _, _ in run)


def word_runs(text: str) -> Iterator[list[Word]]:
    """Yield the words of a text in runs; a phrase never crosses the border between two runs.

    Words are found in the original text and normalised one by one: to lower-case the whole text first would shift the
    offsets behind a letter such as "İ", which becomes two.
    """
    run: list[Word] = []
    end = 0
    for match in _word_pattern().finditer(text):
        between = text[end : match.start()]
        if (
            run and between != " " and not _SEPARATOR.fullmatch(between)
        ):  # nearly always a space: checked first for speed
            yield run
            run = []
        start, end = match.span()
        run.append((_normalise_word(match.group()), start, end))
    if run:
        yield run


def _normalise_word(word: str) -> str:
    """Lower-case, with accents composed, so that it does not matter how an accent was encoded."""
    lower = word.lower()
    return lower if lower.isascii() else unicodedata.normalize("NFC", lower).replace("’", "'")


@cache
def _word_pattern() -> re.Pattern[str]:
    """Letters and digits of any script, with their combining marks.

    An apostrophe or underscore between letters is part of the word: "don't", "alzheimer's" and "snake_case" are one
    word each, because the "t" or the "case" of them is of no use; the price is that "cell's" is not the word "cell".
    Scripts without spaces come out as one long word: segment such texts first.
    """
    # Python's \w does not match combining marks, but Hindi vowels and decomposed accents are such; no script has any
    # beyond this range. Two more signs join or separate letters within a Persian or Hindi word.
    marks = "".join(sign for sign in map(chr, range(0x300, 0x20000)) if unicodedata.category(sign).startswith("M"))
    marks += "\u200c\u200d"
    # The lookahead is for speed: the class of marks is long, and most words end before a space.
    return re.compile(rf"[^\W_]+(?:['’_][^\W_]+|(?=[^\x00-\u02ff])[{marks}]+[^\W_]*)*+")


def _node(name: str, concepts: dict[str, str]) -> str:
    """The concept of a node's name; stored in `concepts`, because large graphs repeat each name many times.

    A name that contains other signs than words is found in no text, but paths may lead over it.
    """
    if name not in concepts:
        spaced = " ".join(name.replace("_", " ").split())
        concept = normalise_concept(spaced) or spaced.lower()
        concepts[name] = concepts.setdefault(concept, concept)
    return concepts[name]


def _read_edges(path: str | Path, language: str) -> Iterator[tuple[str, str]]:
    for number, row in read_rows(path, "txt"):
        line = row["text"]
        if not line.strip():
            continue
        fields = _split_fields(line)
        if len(fields) == 5 and fields[1].startswith("/r/"):  # ConceptNet: assertion, relation, start, end, details
            fields = fields[2:4]
        if len(fields) != 2 or not all(field.strip(" _") for field in fields):
            raise DataFileError(f"{path}, line {number}: an edge is two names separated by a tab or comma.")
        left, right = (_node_name(field, language) for field in fields)
        if left and right:
            yield left, right


def _split_fields(line: str) -> list[str]:
    if "\t" in line:
        return line.split("\t")
    try:
        return next(csv.reader([line], skipinitialspace=True))
    except csv.Error:  # the line is too long for a table
        return []


def _node_name(field: str, language: str) -> str:
    """The name of a node; empty if it is in another language, or a link to another graph."""
    if not field.startswith("/c/"):
        return "" if field.startswith(("http://", "https://")) else field
    node_language, _, name = field.removeprefix("/c/").partition("/")
    return name.split("/")[0] if node_language == language else ""


def _count_corpus(
    name: str,
    texts: Iterable[str],
    max_words: int = MAX_PHRASE_WORDS,
    vocabulary: Container[str] | None = None,
) -> ConceptCounts:
    counts = count_concepts(texts, max_words, vocabulary)
    if not counts.words:
        raise InputError(f"The {name} corpus contains no words; give other texts.")
    return counts


def _no_seed_message(domain: ConceptCounts, min_count: float) -> str:
    corpus = f"the domain's {domain.words:,} words"
    if not domain.counts:
        return f"No concept of the graph occurs in {corpus}; take a graph in the language of the domain."
    best, count = min(domain.counts.items(), key=lambda item: (-item[1], item[0]))
    return (
        f"No concept occurs more than {min_count:,.10g} times in {corpus} (the most frequent, {best!r}, has "
        f"{count:,}); lower the frequency."
    )


def _check_minimum(minimum: int, **values: int) -> None:
    """Raise an error for impossible values before hours are spent on reading corpora."""
    for name, value in values.items():
        if value < minimum:
            raise InputError(f"{name} = {value} is too small; give {minimum} or more.")


def _is_meaningful(name: str) -> bool:
    """Whether a phrase is more than numbers and single letters."""
    return any(len(word) > 1 and not word.isdigit() for word in name.split(" "))
