"""What belongs together and what does not: pairs, triplets, labelled texts and records, all in one form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.files import DataRow, ScoredPairs, read_data_file

Numbers = NDArray[np.intp]

_FEWEST_TO_SPLIT = 20
_MOST_SET_ASIDE = 1000
_ANCHORS_TRIED = 100
"""Where each of these has nothing but known positives, the others will hardly do better."""


class Example(NamedTuple):
    """An anchor, a text that belongs to it, and some that look as if they did but do not."""

    anchor: str
    positive: str
    negatives: tuple[str, ...]
    group: Hashable
    """Texts of examples of the same group all belong together; an example of its own has a group of its own."""


@dataclass(frozen=True)
class Contrast:
    """Examples as numbers of texts."""

    texts: list[str]
    """Every different text once."""
    anchors: Numbers
    """[example]"""
    positives: Numbers
    """[example]"""
    negatives: Numbers
    """[example, negative], -1 where an example has fewer than others."""
    groups: sparse.csr_array[np.int32, tuple[int, int]]
    """[text, group], not 0 where the text is in the group: texts that share one are known positives."""
    notes: tuple[str, ...] = ()
    """What a user should know: what was found, and what was left out and why."""

    @classmethod
    def of(cls, examples: Sequence[Example], notes: tuple[str, ...] = (), name: str = "The data") -> Contrast:
        """Number the texts of some examples; refuse them if there is nothing to tell a positive from."""
        if len(examples) < 2:
            raise InputError(f"{name} has {len(examples)} usable example; at least 2 are needed to contrast anything.")
        places: dict[str, int] = {}
        groups: dict[Hashable, int] = {}

        def number(text: str) -> int:
            return places.setdefault(text, len(places))

        most = max(len(example.negatives) for example in examples)
        anchors = np.array([number(example.anchor) for example in examples], np.intp)
        positives = np.array([number(example.positive) for example in examples], np.intp)
        padded = [[*map(number, example.negatives), *[-1] * (most - len(example.negatives))] for example in examples]
        negatives = np.array(padded, np.intp)
        group = np.array([groups.setdefault(example.group, len(groups)) for example in examples])
        members = np.concatenate([anchors, positives]), np.tile(group, 2)
        shape = len(places), len(groups)
        belongs = sparse.csr_array((np.ones(2 * len(examples), np.int32), members), shape=shape)
        made = cls(list(places), anchors, positives, negatives, belongs, notes)
        if not made._contrasts():
            raise InputError(f"{name} has nothing to contrast with: every text is a known positive of every anchor.")
        return made

    def __len__(self) -> int:
        return len(self.anchors)

    def pairs(self) -> list[tuple[str, str]]:
        """Each anchor with its positive."""
        return [(self.texts[a], self.texts[b]) for a, b in zip(self.anchors, self.positives, strict=True)]

    def set_aside(self, name: str) -> tuple[Contrast, ScoredPairs]:
        """Every tenth example, at most a thousand, as scored pairs to choose on, and the others.

        The anchor and its positive score 1; the anchor and a hard negative, or else another's positive, score 0.
        """
        if len(self) < _FEWEST_TO_SPLIT:
            raise InputError(f"{name} has {len(self)} examples, too few to set some aside; give dev pairs.")
        numbers = np.arange(len(self))
        apart = numbers[:: max(10, -(-len(self) // _MOST_SET_ASIDE))]
        wrong = np.roll(self.positives[apart], 1)
        if self.negatives.shape[1]:
            wrong = np.where(self.negatives[apart, 0] >= 0, self.negatives[apart, 0], wrong)
        left = [self.texts[number] for number in [*self.anchors[apart], *self.anchors[apart]]]
        right = [self.texts[number] for number in [*self.positives[apart], *wrong]]
        rest = np.setdiff1d(numbers, apart)
        kept = replace(self, anchors=self.anchors[rest], positives=self.positives[rest], negatives=self.negatives[rest])
        return kept, ScoredPairs(f"{name}-dev", left, right, [1.0] * len(apart) + [0.0] * len(apart))

    def batches(self, order: Sequence[int] | Numbers, size: int) -> Iterator[Numbers]:
        """Numbers of at most `size` examples, no text twice among their anchors and positives.

        Each example of `order` goes into the first batch that has room and comes after those that hold one of its
        texts. So every example comes once, and the last batches may be small where many share a text.
        """
        if size < 1:
            raise InputError(f"A batch of {size} examples is empty; give 1 or more.")
        anchors, positives = self.anchors.tolist(), self.positives.tolist()
        after = [0] * len(self.texts)  # the first batch behind all that hold the text
        made: list[list[int]] = []
        onward = [0]  # where to look from each batch on: itself while it has room; the last is not begun
        for example in np.asarray(order, np.intp).tolist():
            anchor, positive = anchors[example], positives[example]
            place = _follow(onward, max(after[anchor], after[positive]))
            if place == len(made):
                made.append([])
                onward.append(place + 1)
            made[place].append(example)
            after[anchor] = after[positive] = place + 1
            if len(made[place]) == size:
                onward[place] = place + 1
        for batch in made:
            yield np.array(batch, np.intp)

    def known_positives(self, rows: Sequence[int] | Numbers) -> NDArray[np.bool_]:
        """[row, candidate] True where a candidate must not count as a negative of the row's anchor.

        Candidates are the positives of all rows, then their first negatives, their second ... Left out are those that
        are missing or known to belong to the anchor, itself and its own positive among them wherever they stand; only
        the place of the wanted positive stays False.
        """
        rows = np.asarray(rows, np.intp)
        candidates = np.concatenate([self.positives[rows], self.negatives[rows].T.ravel()])
        together = self.groups[self.anchors[rows]] @ self.groups[candidates.clip(min=0)].T
        known = (together.toarray() > 0) | (candidates < 0)
        np.fill_diagonal(known[:, : len(rows)], False)
        return np.asarray(known, np.bool_)

    def belong_together(self, text: int, others: Numbers) -> NDArray[np.bool_]:
        """[other] Is it the text itself, or known to belong to it?"""
        shared = (self.groups[[text]] @ self.groups[others].T).toarray()[0] > 0
        return np.asarray(shared | (others == text), np.bool_)

    def _contrasts(self) -> bool:
        """Has an anchor, among some that are spread over all, a candidate that is not a known positive?"""
        candidates = np.unique(np.concatenate([self.positives, self.negatives[self.negatives >= 0]]))
        anchors = np.unique(self.anchors)
        some = anchors[np.linspace(0, len(anchors) - 1, min(len(anchors), _ANCHORS_TRIED)).astype(np.intp)]
        others = self.groups[candidates].T.tocsr()
        return any((self.groups[[anchor]] @ others).nnz < len(candidates) for anchor in some)


def read_contrast(path: str | Path, *, seed: int = 0) -> Contrast:
    """Examples from a file, made as its columns say; its notes count what could not be used.

    Columns anchor, positive and any number of negatives; text, label; or JSONL records with description, pos, neg and
    perhaps a label. Texts of one label are put in a row by chance (`seed`), and each is paired with the next.
    """
    file = read_data_file(path)
    if file.kind in ("scored pairs", "inferences", "plain texts"):
        alone = " Plain texts are enough for --recipe bidirectional and --set objective.name=simcse."
        raise DataFileError(
            f"{path} holds {file.kind}, which do not say what belongs together; "
            "give columns anchor and positive (and negative), text and label, or records with description and pos."
            + (alone if file.kind == "plain texts" else "")
        )
    counts: Counter[str] = Counter()
    rows = _without_duplicates(file.rows, counts)
    if file.kind == "labelled texts":
        examples = _by_label(rows, np.random.default_rng(seed), counts)
    else:
        examples = [example for row in rows for example in _by_row(row, counts)]
        if any(example.negatives for example in examples):
            counts["examples without a hard negative"] = sum(not example.negatives for example in examples)
    left_out = tuple(f"{what}: {count:,}" for what, count in sorted(counts.items()) if count)
    if not examples:
        raise DataFileError(f"{path} holds no usable example ({'; '.join(left_out)}); give different texts.")
    note = f"{file.source.name} holds {file.kind}: {len(examples):,} examples from {len(file.rows):,} rows"
    return Contrast.of(examples, (note, *left_out), str(path))


def _without_duplicates(rows: list[DataRow], counts: Counter[str]) -> list[DataRow]:
    first = {row[1:]: row for row in reversed(rows)}  # reversed, so that the first of its kind is the one that stays
    counts["duplicate rows dropped"] = len(rows) - len(first)
    return list(reversed(first.values()))


def _by_row(row: DataRow, counts: Counter[str]) -> Iterator[Example]:
    """Each positive of a row with all its negatives."""
    positives = [text for text in dict.fromkeys(row.positives) if text.strip()]
    if not row.text.strip() or not positives:
        counts["rows left out for want of a text"] += 1
        return
    counts["positives dropped that equal their anchor"] += positives.count(row.text)
    counts["negatives removed that equal their anchor"] += row.negatives.count(row.text)
    negatives = tuple(text for text in dict.fromkeys(row.negatives) if text != row.text)
    for positive in positives:
        if positive != row.text:
            yield Example(row.text, positive, negatives, row.label.strip() or row.line)


def _by_label(rows: list[DataRow], rng: np.random.Generator, counts: Counter[str]) -> list[Example]:
    """Each text with the next of its label, the last with the first, in an order made by chance."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        if row.text.strip() and row.label.strip():
            labels.setdefault(row.label, []).append(row.text)
        else:
            counts["rows left out for want of a text or label"] += 1
    counts["labels left out that have one text only"] = sum(len(texts) == 1 for texts in labels.values())
    examples = []
    for label, texts in labels.items():
        ring = [texts[place] for place in rng.permutation(len(texts))]
        if len(ring) > 1:
            examples += [Example(*pair, (), label) for pair in zip(ring, ring[1:] + ring[:1], strict=True)]
    return examples


def _follow(onward: list[int], place: int) -> int:
    """The first batch with room, from `place` on; the way is shortened for those who come later."""
    while onward[place] != place:
        onward[place] = onward[onward[place]]
        place = onward[place]
    return place
