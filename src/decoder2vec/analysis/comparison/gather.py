"""Everything a report can show, found in files and folders by what the files hold, not by their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from decoder2vec.analysis.comparison.dimension_file import Dimensions, is_dimensions, read_dimensions
from decoder2vec.analysis.comparison.evaluation_file import COSTS, Evaluation, is_evaluation, read_evaluation
from decoder2vec.analysis.comparison.sweep_file import SavedSweep, is_sweep, read_sweep
from decoder2vec.analysis.json_file import load_json
from decoder2vec.errors import DataFileError, InputError

_ITEMS = ".items.json"
_DEPTH = 2
_Named = TypeVar("_Named", Evaluation, SavedSweep, Dimensions)


@dataclass
class Found:
    """What was found, and which files could not be read."""

    evaluations: list[Evaluation] = field(default_factory=list)
    sweeps: list[SavedSweep] = field(default_factory=list)
    dimensions: list[Dimensions] = field(default_factory=list)
    training: list[Path] = field(default_factory=list)
    """Files of results of training; they are read by the report on runs."""
    left_out: list[str] = field(default_factory=list)

    @property
    def compares(self) -> bool:
        """Is there more here than training runs?"""
        return bool(self.evaluations or self.sweeps or self.dimensions)


def gather(places: Sequence[Path]) -> Found:
    """Evaluations, sweeps and intrinsic dimensions in some files, and in folders up to two levels down.

    A file that was named must be one of them. In a folder other files are passed over, and damaged ones are told.
    """
    found = Found()
    seen: set[Path] = set()
    for place in places:
        known = 0
        for file in [place] if place.is_file() else _json_files(place, _DEPTH):
            if file.resolve() not in seen:
                seen.add(file.resolve())
                known += _add(found, file, named=place.is_file())
        if not known:
            found.left_out.append(f"{place} holds nothing to report, or nothing new.")
    found.evaluations = _unique(_joined(found.evaluations))
    found.sweeps, found.dimensions = _unique(found.sweeps), _unique(found.dimensions)
    return found


def _json_files(folder: Path, depth: int) -> Iterator[Path]:
    if not folder.is_dir():
        raise InputError(
            f"{folder} is neither a file nor a folder; "
            "give an encoder made by `d2v train`, or what `d2v eval --json` wrote."
        )
    shown = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    yield from (child for child in shown if child.name.endswith(".json") and child.is_file())
    for child in shown if depth else ():
        if child.is_dir():
            yield from _json_files(child, depth - 1)


def _add(found: Found, file: Path, named: bool) -> bool:
    if file.name.endswith(_ITEMS) and not named:
        return False
    try:
        document = load_json(file, "write it again")
        known = _add_document(found, document, file)
    except DataFileError as error:
        if named:
            raise
        found.left_out.append(str(error))
        return False
    if named and not known:
        raise InputError(
            f"{file} holds nothing to report; give what `d2v eval --json`, `d2v sweep` or `d2v train` wrote."
        )
    return known


def _add_document(found: Found, document: Any, file: Path) -> bool:
    """Put the document where it belongs; False if it is some other JSON."""
    if is_evaluation(document):
        items = file.with_name(f"{file.stem}{_ITEMS}")
        beside = load_json(items, "write it again") if items.is_file() else None
        found.evaluations.append(_parsed(file, lambda: read_evaluation(document, beside, file)))
    elif is_sweep(document):
        found.sweeps.append(_parsed(file, lambda: read_sweep(document, file)))
    elif is_dimensions(document):
        found.dimensions += _parsed(file, lambda: read_dimensions(document, file))
    elif isinstance(document, dict) and {"config", "seeds"} <= document.keys():
        found.training.append(file)
    else:
        return False
    return True


_Read = TypeVar("_Read")


def _parsed(file: Path, read: Callable[[], _Read]) -> _Read:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataFileError(f"{file} is not as it was written ({type(error).__name__}: {error}).") from None


def _joined(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Files of one encoder with different tasks are one evaluation; with the same task twice they stay apart."""
    found: list[Evaluation] = []
    for one in evaluations:
        for place, other in enumerate(found):
            same = one.fingerprint and (one.fingerprint, one.name) == (other.fingerprint, other.name)
            if same and not one.tasks.keys() & other.tasks.keys():
                found[place] = replace(other, tasks={**other.tasks, **one.tasks}, cost=_joined_cost(other, one))
                break
        else:
            found.append(one)
    return found


def _joined_cost(one: Evaluation, other: Evaluation) -> dict[str, float]:
    """The dearer of the two: the slower speed, the higher peak."""
    both = {name: [each.cost[name] for each in (one, other) if name in each.cost] for name in COSTS}
    return {name: min(values) if COSTS[name] else max(values) for name, values in both.items() if values}


def _unique(found: Sequence[_Named]) -> list[_Named]:
    """Where two have the same name, their files tell them apart, or else where these lie."""
    named = list(found)
    for tell in (lambda path: path.stem, str):
        count = Counter(one.name for one in named)
        named = [replace(one, name=f"{one.name} ({tell(one.path)})") if count[one.name] > 1 else one for one in named]
    return named
