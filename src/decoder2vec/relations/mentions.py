"""Mentions and the relations between them: what is encoded of a mention, and files of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.files import read_rows

MARKERS = ("<m>", "</m>")
"""What stands before and after a mention in the text that is encoded."""
NONE = "NONE"
"""The label of a pair without a relation."""
DEFAULT_LABEL = "related"
"""The label of relations that have none of their own."""

Pair = tuple[int, int]
"""Indices of head and tail in the mentions of a `MentionSet`."""


@dataclass(frozen=True)
class Mention:
    """A part of a sentence, such as an event, or a whole text, such as a record.

    Raises:
        InputError: The span is empty, or outside the text.
    """

    id: str
    text: str
    """The sentence that has the mention, or the whole text."""
    span: tuple[int, int] | None = None
    """Begin and end of the mention in the text, in characters; None: the whole text."""
    document: str = ""
    """Id of its document. Relations are looked for within documents."""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise InputError(f"Mention {self.id!r} has no text.")
        if self.span is None:
            return
        start, end = self.span
        if not 0 <= start < end <= len(self.text):
            raise InputError(
                f"Mention {self.id!r}: the span {start}-{end} is not inside its text of {len(self.text)} characters; "
                "spans count characters from the begin of the text, and the end is exclusive."
            )

    @property
    def trigger(self) -> str:
        """The words of the mention itself."""
        return self.text if self.span is None else self.text[slice(*self.span)]

    @property
    def marked(self) -> str:
        """The text with markers around the mention, so that two mentions of one sentence are two texts."""
        if self.span is None:
            return self.text
        (start, end), (opening, closing) = self.span, MARKERS
        return f"{self.text[:start]}{opening}{self.text[start:end]}{closing}{self.text[end:]}"


@dataclass(frozen=True)
class Relation:
    """A relation between two mentions; the order matters unless the matcher is told otherwise."""

    head: str
    """Id of the first mention."""
    tail: str
    """Id of the second mention."""
    label: str = DEFAULT_LABEL


@dataclass(frozen=True)
class MentionSet:
    """Mentions, which pairs of them may be related, and which are known to be.

    With one table every mention may be head and tail; with two, heads are of the first and tails of the second.
    """

    mentions: tuple[Mention, ...]
    n_heads: int | None = None
    """With two tables, the number of mentions of the first; the others are tails."""
    directed: bool = True
    """False: (a, b) and (b, a) are the same pair, written with the lower index first."""

    @classmethod
    def of(
        cls, mentions: Iterable[Mention], tails: Iterable[Mention] | None = None, directed: bool = True
    ) -> MentionSet:
        """Return the set of one or two tables.

        Raises:
            InputError: An id occurs twice in a table, or there is nothing to pair.
        """
        heads = tuple(mentions)
        others = None if tails is None else tuple(tails)
        for table in (heads, others or ()):
            _check_ids(table)
        if (len(heads) < 2 and others is None) or not heads or others == ():
            raise InputError("There are no two mentions to pair; give more of them.")
        if others is None:
            return cls(heads, None, directed)
        return cls((*heads, *others), len(heads), True)

    @property
    def heads(self) -> range:
        """Indices of the mentions that may be heads."""
        return range(len(self.mentions) if self.n_heads is None else self.n_heads)

    @property
    def tails(self) -> range:
        """Indices of the mentions that may be tails."""
        return range(self.n_heads or 0, len(self.mentions))

    def by_document(self) -> list[tuple[list[int], list[int]]]:
        """Return the heads and the tails of each document; only pairs within one can be related."""
        documents: dict[str, tuple[list[int], list[int]]] = {}
        for indices, side in ((self.heads, 0), (self.tails, 1)):
            for index in indices:
                documents.setdefault(self.mentions[index].document, ([], []))[side].append(index)
        return list(documents.values())

    def pair(self, head: int, tail: int) -> Pair:
        """The pair of two mentions; where direction does not matter, both orders give the same."""
        return (head, tail) if self.directed or head < tail else (tail, head)

    @property
    def n_pairs(self) -> int:
        """Number of all pairs within documents."""
        n_ordered = sum(
            len(heads) * len(tails) - (len(heads) if self.n_heads is None else 0) for heads, tails in self.by_document()
        )
        return n_ordered if self.directed else n_ordered // 2

    def gold(self, relations: Iterable[Relation]) -> dict[Pair, str]:
        """Return the label of each related pair.

        Raises:
            InputError: A relation names no mention of the set, joins two documents or a mention with itself, or a pair
                has two labels.
        """
        head_index = {self.mentions[index].id: index for index in self.heads}
        tail_index = {self.mentions[index].id: index for index in self.tails}
        labels: dict[Pair, str] = {}
        for relation in relations:
            name = f"The relation of {relation.head!r} and {relation.tail!r}"
            for id, known in ((relation.head, head_index), (relation.tail, tail_index)):
                if id not in known:
                    where = (
                        "" if self.n_heads is None else f" in the {'first' if known is head_index else 'second'} table"
                    )
                    raise InputError(f"{name}: there is no mention {id!r}{where}.")
            head, tail = head_index[relation.head], tail_index[relation.tail]
            if head == tail:
                raise InputError(f"{name} joins a mention with itself; leave it out.")
            if self.mentions[head].document != self.mentions[tail].document:
                raise InputError(
                    f"{name} joins two documents, but relations are looked for within documents; leave it out."
                )
            if relation.label == NONE:
                continue
            pair = self.pair(head, tail)
            if labels.setdefault(pair, relation.label) != relation.label:
                raise InputError(f"{name} has two labels, {labels[pair]} and {relation.label}; keep one of them.")
        return labels


def _check_ids(mentions: Sequence[Mention]) -> None:
    seen: set[str] = set()
    for mention in mentions:
        if mention.id in seen:
            raise InputError(f"The id {mention.id!r} occurs twice; give every mention an id of its own.")
        seen.add(mention.id)


# --- files ----------------------------------------------------------------------------------------------------------


def read_mentions(file: str | Path) -> list[Mention]:
    """Read a .jsonl, .tsv or .csv file of mentions: `id`, `text` and, where they apply, `start`, `end`, `document`.

    Raises:
        DataFileError: A line has no text, a span outside of it, or nothing usable; the line is named.
    """
    mentions = []
    for line, row in read_rows(file):
        try:
            mentions.append(_mention(row, default_id=str(line)))
        except InputError as error:
            raise DataFileError(f"{file}, line {line}: {error}") from None
    if not mentions:
        raise DataFileError(f"{file} holds no mention.")
    return mentions


def _mention(row: Mapping[str, Any], default_id: str) -> Mention:
    text, start, end = row.get("text"), row.get("start"), row.get("end")
    if not isinstance(text, str):
        raise InputError("there is no text; give it in the column text.")
    values = [value for value in (start, end) if value not in (None, "")]
    if len(values) == 1:
        raise InputError("give both start and end of the mention, or neither for the whole text.")
    if not all(str(value).strip().removeprefix("-").isdecimal() for value in values):
        raise InputError("start and end are numbers of characters.")
    span = (int(values[0]), int(values[1])) if values else None
    return Mention(_id(row, "id") or default_id, text, span, _id(row, "document"))


def read_relations(file: str | Path) -> list[Relation]:
    """Read a .jsonl, .tsv or .csv file of relations: `head`, `tail` (ids of mentions) and `label`.

    Raises:
        DataFileError: A line does not name two mentions.
    """
    relations = []
    for line, row in read_rows(file):
        try:
            head, tail, label = (_id(row, column) for column in ("head", "tail", "label"))
        except InputError as error:
            raise DataFileError(f"{file}, line {line}: {error}") from None
        if not head or not tail:
            raise DataFileError(f"{file}, line {line}: give the ids of two mentions in the columns head and tail.")
        relations.append(Relation(head, tail, label or DEFAULT_LABEL))
    return relations


def _id(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if isinstance(value, bool | list | dict):
        raise InputError(f"{column} is {type(value).__name__}, not a word or number.")
    return "" if value is None else str(value).strip()
