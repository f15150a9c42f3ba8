"""What a recipe learns from: scored pairs, triplets, labelled inferences and plain texts, from files by column name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.text.concepts import ConceptSet
from decoder2vec.text.data_check import count_overlap, hash_pairs
from decoder2vec.text.files import PAIR_COLUMNS, TEXT_COLUMN_HINT, ScoredPairs, read_columns, read_pairs, read_texts
from decoder2vec.training.contrast import Contrast, read_contrast

log = logging.getLogger(__name__)

_SCALES = ((0.0, 1.0), (1.0, 5.0), (0.0, 5.0), (-1.0, 1.0), (0.0, 10.0), (0.0, 100.0))
NLI_LABELS = ("entailment", "neutral", "contradiction")
_ENDINGS = (".tsv", ".csv", ".jsonl", ".tsv.gz", ".csv.gz", ".jsonl.gz", ".txt")


@dataclass(frozen=True)
class DataFiles:
    """File names, relative to the data folder.

    Where a folder has none of that name, train.*, dev.*, test.*, texts.*, triplets.* and nli.* are looked for.
    """

    train: str = "train.tsv"
    """Scored pairs to train on."""
    dev: tuple[str, ...] = ()
    """Scored pairs to choose on; without any, every tenth training pair is set aside."""
    test: tuple[str, ...] = ()
    """Scored pairs that are scored once, at the end."""
    texts: str = ""
    """Plain texts for autoencoders; without any, the texts of the training pairs."""
    texts_limit: int = 20_000
    triplets: str = ""
    """Columns anchor, positive, negative; recipes that adapt the model also take pairs, labelled texts and records."""
    nli: str = ""
    """Columns label, premise, hypothesis."""
    concepts: str = ""
    """Concepts to mask, one a line; `d2v data concepts` makes such a list."""
    columns: tuple[str, ...] = PAIR_COLUMNS
    scale: tuple[float, ...] = ()
    """Lowest and highest possible score; by default found out from the training scores and said."""


@dataclass(frozen=True)
class TrainingData:
    """Everything in memory but the latents. Scores of the training pairs are still on their own scale."""

    train: ScoredPairs | None
    dev: tuple[ScoredPairs, ...]
    test: tuple[ScoredPairs, ...] = ()
    texts: tuple[str, ...] = ()
    triplets: tuple[tuple[str, ...], ...] = ()
    nli: tuple[tuple[str, ...], ...] = ()
    contrast: Contrast | None = None
    """What belongs together, for recipes that adapt the model."""
    concepts: ConceptSet | None = None
    """What is masked, where that is not left to chance."""
    scale: tuple[float, float] = (0.0, 1.0)
    notes: tuple[str, ...] = field(default=())
    """What a user should know about the data: the scale that was found, overlaps, what was set aside."""

    def all_texts(self) -> list[str]:
        """Every different text."""
        groups: list[Sequence[str]] = [self.texts]
        groups += [pairs.texts() for pairs in (self.train, *self.dev, *self.test) if pairs]
        groups += [row for row in self.triplets]
        groups += [row[1:] for row in self.nli]
        groups += [self.contrast.texts] if self.contrast else []
        return list(dict.fromkeys(text for group in groups for text in group))

    def seen(self) -> NDArray[np.uint64]:
        """Hashes of every pair that training looks at."""
        rows = [row[:2] for row in self.triplets] + [row[1:] for row in self.nli]
        if self.train:
            rows += list(zip(self.train.left, self.train.right, strict=True))
        if self.contrast:
            rows += self.contrast.pairs()
        return np.unique(hash_pairs([row[0] for row in rows], [row[1] for row in rows]))

    def facts(self) -> dict[str, str]:
        """What there is of each kind, for people."""
        found = {
            "scored pairs": [self.train] if self.train else [],
            "chosen on": list(self.dev),
            "scored once on": list(self.test),
        }
        said = {
            what: ", ".join(f"{p.name} ({len(p):,} pairs)" for p in files) for what, files in found.items() if files
        }
        for what, rows in (("plain texts", self.texts), ("triplets", self.triplets), ("inference labels", self.nli)):
            if rows:
                said[what] = f"{len(rows):,}"
        if self.contrast:
            said["examples"] = f"{len(self.contrast):,}"
        return said

    def scale_of(self, pairs: ScoredPairs) -> tuple[float, float]:
        """The scale of a file: the training pairs' (else the first dev file's), unless its scores speak against it.

        They do when they leave it, or when they all fit a usual scale less than half as wide.
        """
        base = self.scale if self.train else guess_scale(min(self.dev[0].scores), max(self.dev[0].scores))
        low, high = guess_scale(min(pairs.scores), max(pairs.scores))
        inside = base[0] <= min(pairs.scores) and max(pairs.scores) <= base[1]
        return base if inside and high - low >= 0.5 * (base[1] - base[0]) else (low, high)

    def fraction(self, scores: Sequence[float]) -> NDArray[np.float32]:
        """Scores as parts of the scale."""
        low, high = self.scale
        return ((np.asarray(scores) - low) / (high - low)).astype(np.float32)


def load_data(folder: Path, files: DataFiles, *, wants: Sequence[str]) -> TrainingData:
    """Read what a recipe `wants`: pairs, contrast, triplets, nli, texts, or a corpus (texts without a limit).

    Dev pairs are always read, test pairs if named.
    """
    notes: list[str] = []
    train = _read_train(folder, files, notes) if "pairs" in wants else None
    dev = tuple(read_pairs(place, files.columns) for place in _present(folder, files.dev, "dev", notes))
    if train and not dev:
        train, dev = _set_aside(train)
        notes.append(f"no dev pairs were given: {len(dev[0])} of the training pairs were set aside to choose on")
    contrast = None
    if "contrast" in wants:
        place = _find(folder, files.triplets, "triplets", notes)
        contrast = read_contrast(place)
        notes += contrast.notes
        if not dev:
            contrast, apart = contrast.set_aside(place.name.split(".")[0])
            dev = (apart,)
            notes.append(f"no dev pairs were given: {len(apart) // 2} of the examples were set aside to choose on")
    if not dev and "corpus" not in wants:
        raise DataFileError("Give scored pairs to choose on: `dev` in the configuration, or --dev.")
    test = tuple(read_pairs(place, files.columns) for place in _present(folder, files.test, "test", notes))
    data = TrainingData(train, dev, test, contrast=contrast)
    if "corpus" in wants:
        place = _find(folder, files.texts, "texts", notes)
        concepts = ConceptSet.read(_named(folder, files.concepts)) if files.concepts else None
        data = replace(data, texts=tuple(dict.fromkeys(read_texts(place, hint=TEXT_COLUMN_HINT))), concepts=concepts)
    if "texts" in wants:
        data = replace(data, texts=_read_plain(folder, files, train, notes))
    if "triplets" in wants:
        rows = read_columns(_find(folder, files.triplets, "triplets", notes), _TRIPLET)
        data = replace(data, triplets=tuple(rows))
    if "nli" in wants:
        data = replace(data, nli=_read_nli(_find(folder, files.nli, "nli", notes)))
    return check_data(data, files.scale, tuple(notes))


_TRIPLET = ("anchor", "positive", "negative")


def check_data(data: TrainingData, scale: Sequence[float] = (), notes: tuple[str, ...] = ()) -> TrainingData:
    """Refuse what cannot be learned from; find the scale of the scores; count pairs that training has seen."""
    said = list(notes)
    if data.train:
        found, line = _check_scores(data.train, scale)
        data = replace(data, scale=found)
        said.append(line)
    seen = data.seen()
    for files in (data.dev, data.test):
        if len({pairs.name for pairs in files}) < len(files):
            raise InputError("Two dev or two test files have the same name; rename one, results go by name.")
    for pairs in (*data.dev, *data.test):
        if len(pairs) < 2 or len(set(pairs.scores)) < 2:
            raise InputError(f"{pairs.name} needs at least 2 pairs with different scores: nothing can be ranked.")
        if data.train and data.scale_of(pairs) != data.scale:
            low, high = data.scale_of(pairs)
            said.append(
                f"scores of {pairs.name} are read on a scale of {low:g} to {high:g}, unlike the training scores"
            )
        if count := count_overlap(pairs.left, pairs.right, seen):
            said.append(f"{count} of {len(pairs)} pairs of {pairs.name} also stand in the training data")
    return replace(data, notes=tuple(said))


def _check_scores(train: ScoredPairs, scale: Sequence[float]) -> tuple[tuple[float, float], str]:
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


def guess_scale(low: float, high: float) -> tuple[float, float]:
    """The smallest usual scale that holds them all, else their own range."""
    fitting = [scale for scale in _SCALES if scale[0] <= low and high <= scale[1]]
    return min(fitting, key=lambda scale: scale[1] - scale[0], default=(low, high))


def _set_aside(train: ScoredPairs) -> tuple[ScoredPairs, tuple[ScoredPairs, ...]]:
    if len(train) < 20:
        raise InputError(f"{train.name} has {len(train)} pairs, too few to set some aside; give dev pairs.")

    def part(name: str, numbers: list[int]) -> ScoredPairs:
        return ScoredPairs(
            name,
            [train.left[n] for n in numbers],
            [train.right[n] for n in numbers],
            [train.scores[n] for n in numbers],
        )

    numbers = range(len(train))
    return part(train.name, [n for n in numbers if n % 10]), (part(f"{train.name}-dev", list(numbers[::10])),)


def _read_train(folder: Path, files: DataFiles, notes: list[str]) -> ScoredPairs:
    return read_pairs(_find(folder, files.train, "train", notes), files.columns)


def _read_plain(folder: Path, files: DataFiles, train: ScoredPairs | None, notes: list[str]) -> tuple[str, ...]:
    try:
        place = _find(folder, files.texts, "texts", notes)
    except DataFileError:
        if train is None:
            raise
        notes.append("no plain texts were given: autoencoders learn from the training sentences")
        return tuple(train.texts())
    texts = []
    for text in read_texts(place, hint=TEXT_COLUMN_HINT):
        texts.append(text)
        if len(texts) == files.texts_limit:
            break
    return tuple(dict.fromkeys(texts))


def _read_nli(place: Path) -> tuple[tuple[str, ...], ...]:
    rows = [row for row in read_columns(place, ("label", "premise", "hypothesis")) if row[0] in NLI_LABELS]
    if not rows:
        raise DataFileError(f"{place} holds none of the labels {', '.join(NLI_LABELS)}.")
    return tuple(rows)


def _present(folder: Path, names: Sequence[str], role: str, notes: list[str]) -> list[Path]:
    """Those files that the folder has: a plan made for other data names files that a user's own folder lacks."""
    found: list[Path] = []
    if not names:  # a file called by its role is meant to be used
        beside = [path for path in _by_role(folder, role) if path.is_file()][:1]
        notes += [f"{path.name}, which lies beside the data, serves as {role}" for path in beside]
        return beside
    for name in names:
        try:
            place = _find(folder, name, role, notes)
        except DataFileError:
            notes.append(f"there is no {role} file {name} in {folder}; it is left out")
            continue
        if place not in found:
            found.append(place)
    return found


def _by_role(folder: Path, role: str) -> list[Path]:
    return [folder / f"{role}{ending}" for ending in _ENDINGS]


def _find(folder: Path, name: str, role: str, notes: list[str]) -> Path:
    """The file of that name in the folder, else the one called by its role, which is said."""
    asked = name or f"{role}.tsv"
    for path in (folder / asked, *_by_role(folder, role)):
        if path.is_file():
            if name and path.name.split(".")[0] != Path(name).name.split(".")[0]:
                notes.append(f"there is no {name} in {folder}; {path.name} is read in its place")
            return path
    endings = ", ".join(_ENDINGS)
    raise DataFileError(f"{folder} has no file {asked!r}, nor one called {role} with one of the endings {endings}.")


def _named(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise DataFileError(f"There is no file {folder / name}.")
    return folder / name
