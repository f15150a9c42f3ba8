"""Mentions and the relations between them: what is encoded of a mention, and which pairs are possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from decoder2vec.errors import InputError

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
        return self.count_pairs(self.heads)

    def count_pairs(self, chosen: Iterable[int]) -> int:
        """Number of pairs within documents whose head is one of these mentions."""
        wanted, count = set(chosen), 0
        for heads, tails in self.by_document():
            for position, head in enumerate(heads):
                if head in wanted:
                    before = 0 if self.directed else position  # a pair without direction has the lower index first
                    count += len(tails) - before - (self.n_heads is None)
        return count

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
