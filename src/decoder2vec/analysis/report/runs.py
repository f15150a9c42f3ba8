"""Finished training runs on disk: every one in a folder, in the order of the ladder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from decoder2vec.analysis.json_file import load_json
from decoder2vec.analysis.report.record import Run, add_record, add_results
from decoder2vec.errors import DataFileError, InputError

_ENCODER, _RESULTS, _RECORD = "encoder.json", "results.json", "run.json"
_DEPTH = 2
_LADDER = re.compile(r"step[0-5]")


def find_runs(*places: Path) -> list[Run]:
    """Every run in some places, the steps of the ladder first.

    A place is an encoder, or holds encoders up to two levels down, or else files of results, or is such a file.
    """
    return _in_order([run for place in places for run in _runs_at(place)], places)


def runs_of_files(files: Sequence[Path], places: Sequence[Path]) -> list[Run]:
    """The runs that some files of results in those places belong to: of encoders, or else of the files alone."""
    folders = dict.fromkeys(file.parent for file in files if (file.parent / _ENCODER).is_file())
    runs = [_read_encoder(folder) for folder in folders]
    return _in_order(runs or [run for file in files if (run := _read_results(file))], places)


def _in_order(runs: Sequence[Run], places: Sequence[Path]) -> list[Run]:
    return sorted(_with_unique_names(runs, places), key=lambda run: (*_ladder_order(run.plan), run.name))


def _runs_at(folder: Path) -> list[Run]:
    if folder.is_file() and folder.suffix == ".json" and (run := _read_results(folder)):
        return [run]
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give an encoder made by `d2v train`, or a folder of them.")
    runs = [_read_encoder(place) for place in _encoders(folder, _DEPTH)]
    if not runs and (folder / _ENCODER).is_file():
        raise InputError(f"{folder} holds an encoder, but no record of training; give one made by `d2v train`.")
    if not runs:
        runs = [run for file in _json_files(folder, _DEPTH) if (run := _read_results(file))]
    if not runs:
        raise InputError(
            f"{folder} holds no run; give an encoder made by `d2v train`, JSON of `d2v eval`, or a folder of them."
        )
    return runs


def _ladder_order(plan: str) -> tuple[bool, str]:
    return not _LADDER.fullmatch(plan), plan


def _encoders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / _ENCODER).is_file():
        if (folder / _RESULTS).is_file() or (folder / _RECORD).is_file():
            yield folder
    elif depth:
        for child in _folders(folder):
            yield from _encoders(child, depth - 1)


def _json_files(folder: Path, depth: int) -> Iterator[Path]:
    yield from sorted(file for file in folder.glob("*.json") if file.is_file() and not file.name.startswith("."))
    if depth:
        for child in _folders(folder):
            yield from _json_files(child, depth - 1)


def _folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _with_unique_names(runs: Sequence[Run], places: Sequence[Path]) -> list[Run]:
    """Where two runs have the same name, the model tells them apart, or else where they lie."""
    named = [replace(run, name=run.plan) for run in runs]
    for detail in ("backbone", "path"):
        count = Counter(run.name for run in named)
        for number, run in enumerate(named):
            if count[run.name] > 1:
                more = run.backbone if detail == "backbone" else _within(run.path, places)
                named[number] = replace(run, name=f"{run.name}, {more}")
    return named


def _within(path: Path, places: Sequence[Path]) -> str:
    """Where a run lies in the place that was given, or that place where there are several."""
    inside = [path.relative_to(place) for place in places if path.is_relative_to(place)]
    return str(inside[0]) if len(places) == 1 and inside else str(path)


def _read_encoder(folder: Path) -> Run:
    run = Run("", folder.name, folder)
    record, results = folder / _RECORD, folder / _RESULTS
    if record.is_file():
        run = _parsed(record, lambda document: add_record(run, document))
    if results.is_file():
        before = run
        run = _parsed(results, lambda document: add_results(before, document))
    return run


def _read_results(file: Path) -> Run | None:
    """The run of a file as `d2v train --results` writes it; None if it is some other JSON."""
    document = load_json(file, "train again")
    if not isinstance(document, dict) or not {"config", "seeds"} <= document.keys():
        return None
    return _parsed(file, lambda found: add_results(Run("", file.stem, file), found))


def _parsed(file: Path, read: Callable[[Any], Run]) -> Run:
    try:
        return read(load_json(file, "train again"))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, DataFileError):
            raise
        raise DataFileError(
            f"{file} is not what `d2v train` writes ({type(error).__name__}: {error}); train again."
        ) from None
