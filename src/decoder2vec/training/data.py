"""Training data: scored pairs, contrastive examples, triplets, NLI rows and plain texts, from files by column name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.concepts import ConceptSet
from decoder2vec.text.data_check import TextHashes, count_overlap, hash_pairs, hash_texts
from decoder2vec.text.files import (
    PAIR_COLUMNS,
    TEXT_COLUMN_HINT,
    ScoredPairs,
    read_columns,
    read_pairs,
    read_texts,
    read_texts_with_source,
)
from decoder2vec.training.contrastive_examples import ContrastiveExamples, read_contrastive_examples
from decoder2vec.training.labelled_pairs import LabelledPairs, read_labelled_pairs

NLI_LABELS = ("entailment", "neutral", "contradiction")
DATA_KINDS = (
    *("pairs", "contrastive", "groups", "positive_pairs"),
    *("corpus", "texts", "triplets", "nli", "labelled_pairs"),
)
"""What an objective may need. `corpus` and `texts` are both plain texts: all of a file, or a limited number.
`contrastive`, `groups` and `positive_pairs` are all texts that belong together, from the file `triplets` or `pairs`; of
`groups` whole queries are set aside as dev pairs."""

FILE_ROLES = {
    "pairs": "train",
    "contrastive": "triplets",
    "groups": "triplets",
    "positive_pairs": "pairs",
    "corpus": "texts",
    "texts": "texts",
    "triplets": "triplets",
    "nli": "nli",
    "labelled_pairs": "labelled",
}
"""Key in `[data]` of the files of a kind of data."""

ROLES = ("dev", "test", *dict.fromkeys(FILE_ROLES.values()))
"""Files are found by these names in a folder of data."""

_SCALES = ((0.0, 1.0), (1.0, 5.0), (0.0, 5.0), (-1.0, 1.0), (0.0, 10.0), (0.0, 100.0))
_EXTENSIONS = (".tsv", ".csv", ".jsonl", ".tsv.gz", ".csv.gz", ".jsonl.gz", ".txt")
_TRIPLET_COLUMNS = ("anchor", "positive", "negative")
_MIN_PAIRS_TO_SPLIT = 20


@dataclass(frozen=True)
class DataFiles:
    """File names relative to the data folder: the table `[data]` of a plan.

    If the folder has no file of that name, train.*, dev.*, test.*, texts.*, pairs.*, triplets.*, nli.* and labelled.*
    are looked for. Of texts, pairs and triplets there may be several files, each with a column `source` that names the
    origin of a row; of labelled pairs, too.
    """

    train: str = "train.tsv"
    """Scored pairs to train on."""
    dev: tuple[str, ...] = ()
    """Scored pairs to select on; if there are none, every tenth training pair is set aside."""
    test: tuple[str, ...] = ()
    """Scored pairs that are evaluated once, at the end."""
    texts: str | tuple[str, ...] = ""
    """Plain texts; autoencoders use the texts of the training pairs if there are none."""
    texts_limit: int = 20_000
    """Maximum number of texts for autoencoders."""
    pairs: str | tuple[str, ...] = ""
    """Texts that belong together, for an objective that mines negatives: columns anchor, positive or text1, text2."""
    triplets: str | tuple[str, ...] = ""
    """Columns anchor, positive, negative; recipes that adapt the model also take pairs, labelled texts and records."""
    nli: str = ""
    """Columns label, premise, hypothesis."""
    labelled: str | tuple[str, ...] = ""
    """Ordered pairs with a label: columns text1, text2, label; `dev` and `test` then have the same columns."""
    concepts: str = ""
    """Concepts to mask, one per line; `d2v data concepts` makes such a list."""
    columns: tuple[str, ...] = PAIR_COLUMNS
    """Columns of the two texts and the score in files of scored pairs."""
    scale: tuple[float, ...] = ()
    """Lowest and highest possible score; by default inferred from the training scores, and reported."""


@dataclass(frozen=True)
class TrainingData:
    """Everything a recipe learns from and is evaluated on, in memory."""

    train: ScoredPairs | None
    """Scores are on their original scale; see `unit_scores`."""
    dev: tuple[ScoredPairs, ...]
    test: tuple[ScoredPairs, ...] = ()
    texts: tuple[str, ...] = ()
    triplets: tuple[tuple[str, ...], ...] = ()
    nli: tuple[tuple[str, ...], ...] = ()
    contrastive: ContrastiveExamples | None = None
    labelled: LabelledPairs | None = None
    labelled_dev: LabelledPairs | None = None
    """Labelled pairs to select on."""
    labelled_test: LabelledPairs | None = None
    """Labelled pairs that are evaluated once, at the end."""
    concepts: ConceptSet | None = None
    """What is masked, where masking is not random."""
    scale: tuple[float, float] = (0.0, 1.0)
    notes: tuple[str, ...] = field(default=())
    """What a user should know about the data: inferred scale, overlaps, what was set aside."""
    text_sources: Mapping[str, int] = field(default_factory=dict)
    """Number of plain texts by their source, where the files name any."""

    def all_texts(self) -> list[str]:
        """Every different text."""
        groups: list[Sequence[str]] = [self.texts]
        groups += [pairs.texts() for pairs in (self.train, *self.dev, *self.test) if pairs]
        groups += list(self.triplets)
        groups += [row[1:] for row in self.nli]
        groups += [self.contrastive.texts] if self.contrastive else []
        groups += [pairs.texts() for pairs in (self.labelled, self.labelled_dev, self.labelled_test) if pairs]
        return list(dict.fromkeys(text for group in groups for text in group))

    def without_test(self) -> TrainingData:
        """The same without the test files, for choices that must not see them."""
        return replace(self, test=(), labelled_test=None)

    def hash_pairs(self) -> NDArray[np.uint64]:
        """Hashes of every pair of texts that training sees."""
        rows = [row[:2] for row in self.triplets] + [row[1:] for row in self.nli]
        if self.train:
            rows += list(zip(self.train.left, self.train.right, strict=True))
        if self.contrastive:
            rows += self.contrastive.pairs()
        if self.labelled:
            rows += list(zip(self.labelled.first, self.labelled.second, strict=True))
        return np.unique(hash_pairs([row[0] for row in rows], [row[1] for row in rows]))

    def hash_texts(self) -> TextHashes:
        """Hashes of every text that training sees; dev and test pairs are not part of it."""
        seen = replace(self.without_test(), dev=(), contrastive=None, labelled_dev=None).all_texts()
        return hash_texts([*seen, *(self.contrastive.texts_of_examples() if self.contrastive else [])])

    def key(self) -> list[Any]:
        """Everything that is learned from, selected on or evaluated, as JSON: what a result depends on."""
        pairs = [[vars(file) for file in files if file] for files in ([self.train], self.dev, self.test)]
        parts: list[Any] = [self.texts, pairs, self.triplets, self.nli, list(self.scale)]
        parts.append(sorted(self.concepts.concepts) if self.concepts else None)
        if examples := self.contrastive:
            parts += [examples.texts, examples.indices()]
        if self.labelled:
            parts += [vars(pairs) for pairs in (self.labelled, self.labelled_dev, self.labelled_test) if pairs]
        return parts

    def describe(self) -> dict[str, str]:
        """What there is of each kind, for the card and the results file."""
        files = {
            "scored pairs": [self.train] if self.train else [],
            "chosen on": list(self.dev),
            "scored once on": list(self.test),
        }
        description = {
            kind: ", ".join(f"{pairs.name} ({len(pairs):,} pairs)" for pairs in members)
            for kind, members in files.items()
            if members
        }
        for kind, rows in (("plain texts", self.texts), ("triplets", self.triplets), ("inference labels", self.nli)):
            if rows:
                description[kind] = f"{len(rows):,}"
        labelled = {"chosen on": self.labelled_dev, "scored once on": self.labelled_test}
        for kind, pairs in ({"labelled pairs": self.labelled} | labelled).items():
            if pairs:
                description[kind] = f"{len(pairs):,} labelled pairs ({_list_counts(pairs.counts())})"
        if self.text_sources:
            description["plain texts"] += f" ({_list_counts(self.text_sources)})"
        if self.contrastive:
            description["examples"] = f"{len(self.contrastive):,}"
            if sizes := self.contrastive.source_sizes():
                description["examples"] += f" ({_list_counts(sizes)})"
        return description

    def scale_of(self, pairs: ScoredPairs) -> tuple[float, float]:
        """The score scale of a file: that of the training pairs (else of the first dev file), unless it does not fit.

        It does not fit if scores exceed it, or if they all fit a common scale less than half as wide.
        """
        base = self.scale if self.train else guess_scale(min(self.dev[0].scores), max(self.dev[0].scores))
        low, high = guess_scale(min(pairs.scores), max(pairs.scores))
        inside = base[0] <= min(pairs.scores) and max(pairs.scores) <= base[1]
        return base if inside and high - low >= 0.5 * (base[1] - base[0]) else (low, high)

    def unit_scores(self, scores: Sequence[float]) -> NDArray[np.float32]:
        """Training scores mapped from their scale to 0-1."""
        low, high = self.scale
        return ((np.asarray(scores) - low) / (high - low)).astype(np.float32)


def load_data(
    folder: Path, files: DataFiles, *, needs: Sequence[str], by_role: Collection[str] = ROLES
) -> TrainingData:
    """Read what a recipe needs from a folder, and the pairs to select on and to evaluate.

    Args:
        folder: The data folder.
        files: File names.
        needs: Some of `DATA_KINDS`.
        by_role: Roles whose files are found by their names, such as dev.tsv, where the file is not named or missing.

    """
    notes: list[str] = []
    if "labelled_pairs" in needs:
        return _load_labelled(folder, files, notes, by_role)
    train = read_pairs(_find(folder, files.train, "train", notes, by_role), files.columns) if "pairs" in needs else None
    dev = tuple(read_pairs(path, files.columns) for path in _existing(folder, files, "dev", notes, by_role))
    if train and not dev:
        train, dev = _split_dev(train)
        notes.append(f"no dev pairs were given: {len(dev[0])} of the training pairs were set aside to choose on")
    contrastive = None
    if examples_needed := [need for need in ("contrastive", "groups", "positive_pairs") if need in needs]:
        paths = find_files(folder, files, examples_needed[0], notes, by_role)
        contrastive = read_contrastive_examples(paths)
        notes += contrastive.notes
        if not dev:
            split = contrastive.split_dev_groups if "groups" in needs else contrastive.split_dev
            n_examples = len(contrastive)
            contrastive, dev_pairs = split(paths[0].name.split(".")[0])
            dev = (dev_pairs,)
            n_set_aside = n_examples - len(contrastive)
            notes.append(f"no dev pairs were given: {n_set_aside} of the examples were set aside to choose on")
    if not dev and "corpus" not in needs:
        raise DataFileError("Give scored pairs to choose on: `dev` in the configuration, or --dev.")
    test = tuple(read_pairs(path, files.columns) for path in _existing(folder, files, "test", notes, by_role))
    data = TrainingData(train, dev, test, contrastive=contrastive)
    if "corpus" in needs:
        texts = _read_corpus(find_files(folder, files, "corpus", notes, by_role))
        concepts = ConceptSet.read(_require(folder / files.concepts)) if files.concepts else None
        sources = Counter(source for source in texts.values() if source)
        data = replace(data, texts=tuple(texts), text_sources=dict(sources.most_common()), concepts=concepts)
    if "texts" in needs:
        data = replace(data, texts=_read_texts_or_pairs(folder, files, train, notes, by_role))
    if "triplets" in needs:
        paths = find_files(folder, files, "triplets", notes, by_role)
        data = replace(data, triplets=tuple(row for path in paths for row in read_columns(path, _TRIPLET_COLUMNS)))
    if "nli" in needs:
        data = replace(data, nli=_read_nli(_find(folder, files.nli, "nli", notes, by_role)))
    return check_data(data, files.scale, tuple(notes))


def _load_labelled(folder: Path, files: DataFiles, notes: list[str], by_role: Collection[str]) -> TrainingData:
    """Labelled pairs to learn from, to select on and to evaluate; without dev pairs some are set aside."""
    train = read_labelled_pairs(find_files(folder, files, "labelled_pairs", notes, by_role))
    dev_files, test_files = (_existing(folder, files, role, notes, by_role) for role in ("dev", "test"))
    dev, test = (read_labelled_pairs(paths) if paths else None for paths in (dev_files, test_files))
    if dev is None:
        train, dev = train.split_dev()
        notes.append(f"no dev pairs were given: {len(dev)} of the labelled pairs were set aside to choose on")
    return TrainingData(None, (), labelled=train, labelled_dev=dev, labelled_test=test, notes=tuple(notes))


def check_data(data: TrainingData, scale: Sequence[float] = (), notes: tuple[str, ...] = ()) -> TrainingData:
    """Raise if data cannot be learned from or evaluated on; infer the score scale; note overlaps with training."""
    messages = list(notes)
    if data.train:
        train_scale, message = check_scores(data.train, scale)
        data = replace(data, scale=train_scale)
        messages.append(message)
    seen = data.hash_pairs()
    for files in (data.dev, data.test):
        if len({pairs.name for pairs in files}) < len(files):
            raise InputError("Two dev or two test files have the same name; rename one, results go by name.")
    for pairs in (*data.dev, *data.test):
        if len(pairs) < 2 or len(set(pairs.scores)) < 2:
            raise InputError(f"{pairs.name} needs at least 2 pairs with different scores: nothing can be ranked.")
        if data.train and data.scale_of(pairs) != data.scale:
            low, high = data.scale_of(pairs)
            messages.append(
                f"scores of {pairs.name} are read on a scale of {low:g} to {high:g}, unlike the training scores"
            )
        if count := count_overlap(pairs.left, pairs.right, seen):
            messages.append(f"{count} of {len(pairs)} pairs of {pairs.name} are also in the training data")
    return replace(data, notes=tuple(messages))


def guess_scale(low: float, high: float) -> tuple[float, float]:
    """The narrowest common scale that holds both values, else the values themselves."""
    fitting = [scale for scale in _SCALES if scale[0] <= low and high <= scale[1]]
    return min(fitting, key=lambda scale: scale[1] - scale[0], default=(low, high))


def check_scores(train: ScoredPairs, scale: Sequence[float]) -> tuple[tuple[float, float], str]:
    """The scale of the training scores, guessed if empty, and a sentence about it; raises if scores lie outside."""
    scores = np.asarray(train.scores)
    if len(scores) < 2:
        raise InputError(
            f"{train.name} has {len(scores)} pair; at least 2 are needed, some hundreds to learn anything."
        )
    if np.ptp(scores) == 0:
        raise InputError(f"All scores of {train.name} are {scores[0]:g}: there is nothing to learn.")
    if scale and (len(scale) != 2 or scale[0] >= scale[1]):
        raise InputError(f"scale must be the lowest and the highest score, not {list(scale)}.")
    low, high = scale or guess_scale(float(scores.min()), float(scores.max()))
    outside = int(((scores < low) | (scores > high)).sum())
    if outside:
        raise InputError(
            f"{outside} scores of {train.name} lie outside the scale {low:g} to {high:g} "
            f"(they go from {scores.min():g} to {scores.max():g}); correct the scores or the scale."
        )
    return (low, high), f"scores of {train.name} are read on a scale of {low:g} to {high:g}"


def _split_dev(train: ScoredPairs) -> tuple[ScoredPairs, tuple[ScoredPairs, ...]]:
    """Set every tenth training pair aside."""
    if len(train) < _MIN_PAIRS_TO_SPLIT:
        raise InputError(f"{train.name} has {len(train)} pairs, too few to set some aside; give dev pairs.")

    def subset(name: str, rows: Sequence[int]) -> ScoredPairs:
        return ScoredPairs(
            name,
            [train.left[row] for row in rows],
            [train.right[row] for row in rows],
            [train.scores[row] for row in rows],
        )

    rows = range(len(train))
    if len(set(train.scores[::10])) == 1 < len(set(train.scores)):
        raise InputError(
            f"Every tenth pair of {train.name}, to be set aside to choose on, has the same score; give dev pairs."
        )
    return subset(train.name, [row for row in rows if row % 10]), (subset(f"{train.name}-dev", rows[::10]),)


def _read_texts_or_pairs(
    folder: Path, files: DataFiles, train: ScoredPairs | None, notes: list[str], by_role: Collection[str]
) -> tuple[str, ...]:
    """Plain texts up to the limit; without such a file, the texts of the training pairs."""
    try:
        paths = find_files(folder, files, "texts", notes, by_role)
    except DataFileError:
        if train is None:
            raise
        notes.append("no plain texts were given: autoencoders learn from the training sentences")
        return tuple(train.texts())
    texts = chain.from_iterable(read_texts(path, hint=TEXT_COLUMN_HINT) for path in paths)
    return tuple(dict.fromkeys(islice(texts, max(0, files.texts_limit) or None)))


def _read_corpus(paths: Sequence[Path]) -> dict[str, str]:
    """The source of each different text; of several files, those without a column `source` are sources themselves."""
    sources: dict[str, str] = {}
    for path in paths:
        file_name = path.name.split(".")[0] if len(paths) > 1 else ""
        for text, source in read_texts_with_source(path, hint=TEXT_COLUMN_HINT):
            sources.setdefault(text, source or file_name)
    return sources


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _read_nli(path: Path) -> tuple[tuple[str, ...], ...]:
    rows = [row for row in read_columns(path, ("label", "premise", "hypothesis")) if row[0] in NLI_LABELS]
    if not rows:
        raise DataFileError(f"{path} holds none of the labels {', '.join(NLI_LABELS)}.")
    return tuple(rows)


def find_files(
    folder: Path, files: DataFiles, need: str, notes: list[str], by_role: Collection[str] = ROLES
) -> list[Path]:
    """The files of a kind of data, which a user may have named otherwise.

    Args:
        folder: The data folder.
        files: File names.
        need: One of `DATA_KINDS`.
        notes: Gets a sentence for each file that is not the named one.
        by_role: Roles whose files are found by their names.

    Raises:
        DataFileError: A file is missing.

    """
    role = FILE_ROLES[need]
    names = getattr(files, role)
    paths = (_find(folder, name, role, notes, by_role) for name in ([names] if isinstance(names, str) else names))
    return list(dict.fromkeys(paths))


def _existing(
    folder: Path, files: DataFiles, role: Literal["dev", "test"], notes: list[str], by_role: Collection[str]
) -> list[Path]:
    """Those files that the folder has: a plan made for other data names files that a user's own folder lacks."""
    names: tuple[str, ...] = getattr(files, role)
    if not names:
        learned_from = {folder / name for name in _names_to_learn_from(files)}
        paths = [path for path in _named_by_role(folder, role) if path.is_file() and path not in learned_from][:1]
        if role in by_role:
            notes += [f"{path.name} in the data folder is used as {role}" for path in paths]
            return paths
        notes += [f"{path} was not named and is not used; add --{role} {path}, or --auto-dev" for path in paths]
        return []
    existing: list[Path] = []
    for name in names:
        try:
            path = _find(folder, name, role, notes, by_role)
        except DataFileError:
            notes.append(f"there is no {role} file {name} in {folder}; it is skipped")
            continue
        if path not in existing:
            existing.append(path)
    return existing


def _names_to_learn_from(files: DataFiles) -> Iterator[str]:
    for role in dict.fromkeys(FILE_ROLES.values()):
        names = getattr(files, role)
        yield from [names] if isinstance(names, str) else names


def _find(folder: Path, name: str, role: str, notes: list[str], by_role: Collection[str]) -> Path:
    """The file of that name in the folder, else the one named after its role, which is noted."""
    if role not in by_role:
        if name and (folder / name).is_file():
            return folder / name
        missing = f"{folder} has no file {name!r}" if name else f"No file of {role} was named"
        raise DataFileError(f"{missing}; name it with --data, or give the folder that holds all files.")
    requested = name or f"{role}.tsv"
    for path in (folder / requested, *_named_by_role(folder, role)):
        if path.is_file():
            if name and path.name.split(".")[0] != Path(name).name.split(".")[0]:
                notes.append(f"there is no {name} in {folder}; {path.name} is used instead")
            return path
    extensions = ", ".join(_EXTENSIONS)
    cure = "name a file with --data"
    if role == "triplets" and (scored := file_of_role(folder, "train")):
        cure += f", or add --set objective.name=cosent to learn from the scored pairs of {scored.name}"
    raise DataFileError(
        f"{folder} has no file {requested!r}, nor one named {role} with an extension of {extensions}; {cure}."
    )


def file_of_role(folder: Path, role: str) -> Path | None:
    """The file of a folder that is named after a role, such as dev.tsv."""
    return next((path for path in _named_by_role(folder, role) if path.is_file()), None)


def _named_by_role(folder: Path, role: str) -> list[Path]:
    return [folder / f"{role}{extension}" for extension in _EXTENSIONS]


def _require(path: Path) -> Path:
    if not path.is_file():
        raise DataFileError(f"There is no file {path}.")
    return path
