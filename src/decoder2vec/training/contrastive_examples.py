"""Examples for contrastive learning: pairs, triplets, labelled texts and records, all in one form."""

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

Rows = NDArray[np.intp]

_MIN_TO_SPLIT = 20
_MAX_DEV_EXAMPLES = 1000
_ANCHORS_CHECKED = 100
"""If none of these anchors has a possible negative, hardly any other will."""


class Example(NamedTuple):
    """An anchor, a positive, and hard negatives."""

    anchor: str
    positive: str
    negatives: tuple[str, ...]
    group: Hashable
    """Anchors and positives of the same group are all positives of each other."""
    source: str = ""
    """Where the example comes from; a batch has examples of one source."""
    scores: tuple[float, ...] = ()
    """What a teacher gave the positive and each negative; empty where there is none."""


@dataclass(frozen=True)
class ContrastiveExamples:
    """Examples as indices into a list of different texts."""

    texts: list[str]
    anchors: Rows
    """[examples]"""
    positives: Rows
    """[examples]"""
    negatives: Rows
    """[examples, negatives]; -1 where an example has fewer negatives than others."""
    groups: sparse.csr_array[np.int32, tuple[int, int]]
    """[texts, groups], nonzero where the text is in the group; texts that share a group are known positives."""
    sources: Rows
    """[examples] index into `source_names`."""
    source_names: tuple[str, ...] = ("",)
    notes: tuple[str, ...] = ()
    """What a user should know: what the file held, and what was skipped and why."""
    scores: NDArray[np.float32] | None = None
    """[examples, 1 + negatives] what a teacher gave the positive and each negative; NaN where it gave nothing."""

    @classmethod
    def of(
        cls, examples: Sequence[Example], notes: tuple[str, ...] = (), name: str = "The data"
    ) -> ContrastiveExamples:
        """Index the texts of some examples; raises if no anchor has a possible negative."""
        if len(examples) < 2:
            raise InputError(f"{name} has {len(examples)} usable example; contrastive training needs at least 2.")
        indices: dict[str, int] = {}
        group_indices: dict[Hashable, int] = {}

        def index_of(text: str) -> int:
            return indices.setdefault(text, len(indices))

        width = max(len(example.negatives) for example in examples)
        anchors = np.array([index_of(example.anchor) for example in examples], np.intp)
        positives = np.array([index_of(example.positive) for example in examples], np.intp)
        padded = [[*map(index_of, example.negatives), *[-1] * (width - len(example.negatives))] for example in examples]
        negatives = np.array(padded, np.intp)
        group = np.array([group_indices.setdefault(example.group, len(group_indices)) for example in examples])
        members = np.concatenate([anchors, positives]), np.tile(group, 2)
        shape = len(indices), len(group_indices)
        groups = sparse.csr_array((np.ones(2 * len(examples), np.int32), members), shape=shape)
        names = list(dict.fromkeys(example.source for example in examples))
        index_of_source = {source: index for index, source in enumerate(names)}
        sources = np.array([index_of_source[example.source] for example in examples], np.intp)
        scores = None
        if any(example.scores for example in examples):
            scores = np.full((len(examples), 1 + width), np.nan, np.float32)
            for row, example in enumerate(examples):
                scores[row, : len(example.scores)] = example.scores
        indexed = cls(list(indices), anchors, positives, negatives, groups, sources, tuple(names), notes, scores)
        if not indexed._has_negatives():
            raise InputError(f"{name} has nothing to contrast with: every text is a known positive of every anchor.")
        return indexed

    def __len__(self) -> int:
        return len(self.anchors)

    def pairs(self) -> list[tuple[str, str]]:
        """Each anchor with its positive."""
        return [(self.texts[a], self.texts[b]) for a, b in zip(self.anchors, self.positives, strict=True)]

    def texts_of_examples(self) -> list[str]:
        """The texts that an example holds: those of dev pairs that were set aside are not among them."""
        indices = np.unique(np.concatenate([self.anchors, self.positives, self.negatives.ravel()]))
        return [self.texts[index] for index in indices if index >= 0]

    def source_sizes(self) -> dict[str, int]:
        """Number of examples of each named source, the largest first."""
        counts = Counter(self.sources.tolist())
        return {self.source_names[source]: count for source, count in counts.most_common() if self.source_names[source]}

    def indices(self) -> list[list[int]]:
        """Everything but the texts, as JSON: what batches and losses depend on."""
        arrays = (self.anchors, self.positives, self.negatives, *self.groups.nonzero(), self.sources)
        scores = [] if self.scores is None else [np.nan_to_num(self.scores).tolist(), np.isnan(self.scores).tolist()]
        return [*(array.tolist() for array in arrays), *scores]

    def split_dev(self, name: str) -> tuple[ContrastiveExamples, ScoredPairs]:
        """Set every tenth example aside as dev pairs, at most a thousand; returns the others and the dev pairs.

        An anchor with its positive scores 1; with its hard negative, or else with another example's positive that is no
        known positive of the anchor, 0.
        """
        if len(self) < _MIN_TO_SPLIT:
            raise InputError(f"{name} has {len(self)} examples, too few to set some aside; give dev pairs.")
        rows = np.arange(len(self))
        dev = rows[:: max(10, -(-len(self) // _MAX_DEV_EXAMPLES))]
        anchors, unrelated = self.anchors[dev], self._unrelated(dev)
        if self.negatives.shape[1]:
            unrelated = np.where(self.negatives[dev, 0] >= 0, self.negatives[dev, 0], unrelated)
        has_negative = unrelated >= 0
        if not has_negative.any():
            raise InputError(f"The examples of {name} that would be set aside all belong together; give dev pairs.")
        left = [self.texts[index] for index in [*anchors, *anchors[has_negative]]]
        right = [self.texts[index] for index in [*self.positives[dev], *unrelated[has_negative]]]
        pairs = ScoredPairs(f"{name}-dev", left, right, [1.0] * len(dev) + [0.0] * int(has_negative.sum()))
        return self._select(np.setdiff1d(rows, dev)), pairs

    def _unrelated(self, rows: Rows) -> Rows:
        """[rows] a positive of another row that is no known positive of the row's anchor; -1 where there is none.

        It is that of the row before, or else a random one, so that not all rows of a label get the same: of these rows,
        or of all examples if these rows all belong together.
        """
        positives = self.positives[rows]
        known = (self.groups[self.anchors[rows]] @ self.groups[positives].T).toarray() > 0
        unrelated = np.roll(positives, 1)
        rng = np.random.default_rng(0)
        for row in np.flatnonzero(known[np.arange(len(rows)), np.arange(len(rows)) - 1]):
            possible = positives[~known[row]]
            if not len(possible):
                is_known = np.zeros(len(self.texts), bool)
                is_known[(self.groups[[self.anchors[rows[row]]]] @ self.groups.T).indices] = True
                possible = self.positives[~is_known[self.positives]]
            unrelated[row] = rng.choice(possible) if len(possible) else -1
        return np.asarray(unrelated, np.intp)

    def split_dev_groups(self, name: str) -> tuple[ContrastiveExamples, ScoredPairs]:
        """Set all examples of every tenth anchor aside, at most a thousand anchors; returns the others and dev pairs.

        An anchor with each of its positives scores 1, with each of its hard negatives 0.
        """
        anchors = list(dict.fromkeys(self.anchors.tolist()))
        if len(anchors) < _MIN_TO_SPLIT:
            raise InputError(f"{name} has {len(anchors)} queries, too few to set some aside; give dev pairs.")
        is_dev = np.isin(self.anchors, anchors[:: max(10, -(-len(anchors) // _MAX_DEV_EXAMPLES))])
        scores: dict[tuple[int, int], float] = {}
        for row in np.flatnonzero(is_dev):
            scores[int(self.anchors[row]), int(self.positives[row])] = 1.0
            for negative in self.negatives[row][self.negatives[row] >= 0].tolist():
                scores.setdefault((int(self.anchors[row]), negative), 0.0)
        left, right = ([self.texts[pair[side]] for pair in scores] for side in (0, 1))
        return self._select(np.flatnonzero(~is_dev)), ScoredPairs(f"{name}-dev", left, right, list(scores.values()))

    def subset(self, rows: Rows) -> ContrastiveExamples:
        """The examples of some rows, with no other texts."""
        chosen = self._select(rows)
        used = np.unique(np.concatenate([chosen.anchors, chosen.positives, chosen.negatives.ravel()]))
        used = used[used >= 0]
        new_index = np.full(len(self.texts) + 1, -1, np.intp)  # the last is that of a missing negative, -1
        new_index[used] = np.arange(len(used))
        return replace(
            chosen,
            texts=[self.texts[index] for index in used],
            anchors=new_index[chosen.anchors],
            positives=new_index[chosen.positives],
            negatives=new_index[chosen.negatives],
            groups=self.groups[used],
        )

    def _select(self, rows: Rows) -> ContrastiveExamples:
        """The examples of some rows; the texts keep their indices."""
        return replace(
            self,
            anchors=self.anchors[rows],
            positives=self.positives[rows],
            negatives=self.negatives[rows],
            sources=self.sources[rows],
            scores=None if self.scores is None else self.scores[rows],
        )

    def batches(self, order: Sequence[int] | Rows, size: int) -> Iterator[Rows]:
        """Batches of at most `size` examples in which no text occurs twice among anchors and positives.

        Each example goes into the first batch with room that comes after all batches that hold one of its texts. So
        every example occurs once, and the last batches may be small where many examples share a text.
        """
        if size < 1:
            raise InputError(f"A batch of {size} examples is empty; give 1 or more.")
        anchors, positives = self.anchors.tolist(), self.positives.tolist()
        next_batch = [0] * len(self.texts)  # of each text: the first batch after all that hold it
        batches: list[list[int]] = []
        with_room = [0]  # of each batch: itself while it has room, else where to look next (union-find)
        for example in np.asarray(order, np.intp).tolist():
            anchor, positive = anchors[example], positives[example]
            index = _find_room(with_room, max(next_batch[anchor], next_batch[positive]))
            if index == len(batches):
                batches.append([])
                with_room.append(index + 1)
            batches[index].append(example)
            next_batch[anchor] = next_batch[positive] = index + 1
            if len(batches[index]) == size:
                with_room[index] = index + 1
        for batch in batches:
            yield np.array(batch, np.intp)

    def candidates(self, rows: Rows) -> Rows:
        """Texts among which the anchors of a batch search: all positives, then all first negatives, all second ones ...

        -1 stands for a missing negative.
        """
        return np.concatenate([self.positives[rows], self.negatives[rows].T.ravel()])

    def known_positives(self, rows: Sequence[int] | Rows) -> NDArray[np.bool_]:
        """[rows, candidates] mask of the candidates that must not count as negatives of a row's anchor.

        Masked are missing candidates and every text known to be a positive of the anchor, wherever it occurs; the
        row's own positive is not masked in its own column.
        """
        rows = np.asarray(rows, np.intp)
        candidates = self.candidates(rows)
        shared = self.groups[self.anchors[rows]] @ self.groups[candidates.clip(min=0)].T
        masked = (shared.toarray() > 0) | (candidates < 0)
        np.fill_diagonal(masked[:, : len(rows)], False)
        return np.asarray(masked, np.bool_)

    def positives_among(self, anchors: Rows, candidates: Rows) -> tuple[Rows, Rows]:
        """Row and column of every candidate that is an anchor itself or a known positive of it.

        Args:
            anchors: Indices of texts.
            candidates: Indices of texts, sorted.

        """
        shared = (self.groups[anchors] @ self.groups[candidates].T).tocoo()
        columns = np.searchsorted(candidates, anchors).clip(max=len(candidates) - 1)
        rows = np.flatnonzero(candidates[columns] == anchors)
        return np.concatenate([shared.row, rows]), np.concatenate([shared.col, columns[rows]])

    def _has_negatives(self) -> bool:
        """Whether any of some anchors, spread over all, has a candidate that is not a known positive."""
        candidates = np.unique(np.concatenate([self.positives, self.negatives[self.negatives >= 0]]))
        anchors = np.unique(self.anchors)
        sample = anchors[np.linspace(0, len(anchors) - 1, min(len(anchors), _ANCHORS_CHECKED)).astype(np.intp)]
        by_group = self.groups[candidates].T.tocsr()
        return any((self.groups[[anchor]] @ by_group).nnz < len(candidates) for anchor in sample)


def read_contrastive_examples(files: str | Path | Sequence[str | Path], *, seed: int = 0) -> ContrastiveExamples:
    """Read examples from one or several files, according to their columns.

    Args:
        files: Columns anchor and positive (or text1 and text2) and any number of negatives; text, label; or JSONL
            records with description, pos, neg and perhaps a label. A column `source` says where a row comes from; of
            several files, those without the column are sources themselves.
        seed: Texts of one label are shuffled, and each is paired with the next.

    Returns:
        The examples; their notes count what could not be used.

    """
    paths = [files] if isinstance(files, str | Path) else list(files)
    examples: list[Example] = []
    notes: list[str] = []
    for number, path in enumerate(paths):
        of_file, notes_of_file = _read_examples(path, seed)
        notes += notes_of_file
        file_name = Path(path).name.split(".")[0] if len(paths) > 1 else ""
        examples += [
            example._replace(group=(number, example.group), source=example.source or file_name) for example in of_file
        ]
    return ContrastiveExamples.of(examples, tuple(notes), ", ".join(map(str, paths)))


def _read_examples(path: str | Path, seed: int) -> tuple[list[Example], list[str]]:
    """The examples of a file, and notes on what it holds and what could not be used."""
    file = read_data_file(path)
    if file.kind in ("scored pairs", "inferences", "plain texts"):
        plain = " Plain texts are enough for --recipe bidirectional and --set objective.name=crop."
        raise DataFileError(
            f"{path} holds {file.kind}, which do not say what belongs together; "
            "give columns anchor and positive (and negative), text and label, or records with description and pos."
            + (plain if file.kind == "plain texts" else "")
        )
    counts: Counter[str] = Counter()
    rows = _without_duplicates(file.rows, counts)
    if file.kind == "labelled texts":
        examples = _examples_by_label(rows, np.random.default_rng(seed), counts)
    else:
        examples = [example for row in rows for example in _examples_of_row(row, counts)]
        if any(example.negatives for example in examples):
            counts["examples without a hard negative"] = sum(not example.negatives for example in examples)
    skipped = [f"{reason}: {count:,}" for reason, count in sorted(counts.items()) if count]
    if not examples:
        raise DataFileError(f"{path} holds no usable example ({'; '.join(skipped)}); give different texts.")
    note = f"{file.source.name} holds {file.kind}: {len(examples):,} examples from {len(file.rows):,} rows"
    return examples, [note, *skipped]


def _without_duplicates(rows: list[DataRow], counts: Counter[str]) -> list[DataRow]:
    unique = {row.content(): row for row in reversed(rows)}  # reversed, so that the first of equal rows is kept
    counts["duplicate rows dropped"] = len(rows) - len(unique)
    return list(reversed(unique.values()))


def _examples_of_row(row: DataRow, counts: Counter[str]) -> Iterator[Example]:
    """Each positive of a row with all its negatives."""
    positives = [text for text in dict.fromkeys(row.positives) if text.strip()]
    if not row.text.strip() or not positives:
        counts["rows skipped without a text"] += 1
        return
    counts["positives dropped that equal their anchor"] += positives.count(row.text)
    counts["negatives removed that equal their anchor"] += row.negatives.count(row.text)
    negatives = tuple(text for text in dict.fromkeys(row.negatives) if text != row.text)
    score_of = dict(zip(row.negatives, row.scores[1:], strict=True)) if row.scores else {}
    for positive in positives:
        if positive != row.text:
            known = score_of and len(positives) == 1
            scores = (row.scores[0], *(score_of[text] for text in negatives)) if known else ()
            yield Example(row.text, positive, negatives, row.label.strip() or row.line, row.source, scores)


def _examples_by_label(rows: list[DataRow], rng: np.random.Generator, counts: Counter[str]) -> list[Example]:
    """Each text with the next of its source and label, the last with the first, in random order."""
    labels: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.text.strip() and row.label.strip():
            labels.setdefault((row.source, row.label), []).append(row.text)
        else:
            counts["rows skipped without a text or label"] += 1
    counts["labels skipped that have one text only"] = sum(len(texts) == 1 for texts in labels.values())
    examples = []
    for label, texts in labels.items():
        ring = [texts[index] for index in rng.permutation(len(texts))]
        if len(ring) > 1:
            examples += [Example(*pair, (), label, label[0]) for pair in zip(ring, ring[1:] + ring[:1], strict=True)]
    return examples


def _find_room(with_room: list[int], index: int) -> int:
    """The first batch with room from `index` on; paths are shortened for later searches."""
    while with_room[index] != index:
        with_room[index] = with_room[with_room[index]]
        index = with_room[index]
    return index
