"""A graph of concepts: which word or phrase has to do with which."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.concept_words import concept_name
from decoder2vec.text.files import read_rows


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
