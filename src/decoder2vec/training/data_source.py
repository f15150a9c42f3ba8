"""Where the data of a training come from: memory or files, each of which goes to the stages that learn from it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decoder2vec.backbone.sources import Notify
from decoder2vec.config import as_tuple
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.progress import in_phase
from decoder2vec.text.files import DataKind, read_data_kind
from decoder2vec.training.data import (
    FILE_ROLES,
    ROLES,
    TrainingData,
    check_scores,
    file_of_role,
    find_files,
    load_data,
)
from decoder2vec.training.defaults import choose_metric, choose_schedule
from decoder2vec.training.plan import Plan, Stage

_KINDS: dict[str, tuple[DataKind, ...]] = {
    "pairs": ("scored pairs",),
    "contrastive": ("triplets", "records", "pairs", "labelled texts"),
    "groups": ("triplets", "records"),
    "positive_pairs": ("pairs", "labelled texts", "triplets", "records"),
    "corpus": ("plain texts", "labelled texts"),
    "texts": ("plain texts", "labelled texts"),
    "triplets": ("triplets",),
    "nli": ("inferences",),
    "labelled_pairs": ("inferences", "pairs"),
}
"""Kinds of files that hold a kind of data, the most suitable first."""

_SINGLE_FILE_ROLES = ("train", "nli")

Files = dict[str, list[Path]]
"""Files by their key in `[data]`."""


@dataclass(frozen=True)
class DataSource:
    """Data in memory, or files named by the caller: paths from the working directory."""

    data: TrainingData | None
    folder: Path = Path(".")
    files: tuple[Path, ...] = ()
    """Files to learn from."""
    dev: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    columns: tuple[str, ...] | None = None
    found_by_role: tuple[str, ...] = ROLES
    """Roles for which the folder is searched for a file of that name, such as dev.tsv, where none was named."""

    @classmethod
    def of(
        cls,
        data: TrainingData | str | Path | Sequence[str | Path] | None = None,
        train: str | Path | None = None,
        dev: Sequence[str | Path] = (),
        test: Sequence[str | Path] = (),
        columns: Sequence[str] | None = None,
        *,
        auto_dev: bool = False,
    ) -> DataSource:
        """Raise if files are missing or data in memory cannot be used, before a model is loaded.

        Args:
            data: A folder, whose files are found by their names; files to learn from; or data in memory. By default
                the working directory.
            train: File to learn from, where `data` is a folder.
            dev: Files to select on.
            test: Files to evaluate at the end.
            columns: Columns of the two texts and the score.
            auto_dev: Where only files are named, also use files named dev or test beside the first of them.

        """
        if isinstance(data, TrainingData):
            if train or dev or test or columns or auto_dev:
                raise InputError("Files and columns are for data in a folder; put the pairs into the TrainingData.")
            if data.train:
                check_scores(data.train, data.scale)
            return cls(data)
        named = as_tuple(data) if data or isinstance(data, str) else (".",)
        if not all(isinstance(each, str | Path) for each in named):
            raise InputError("Texts in memory are put into a TrainingData; else name files, or a folder.")
        folder, files = _folder_and_files(named, train)
        folder_is_named = not files or (bool(train) and data is not None)
        for file in (*files, *dev, *test):
            if not Path(file).is_file():
                raise DataFileError(f"There is no file {file}.")
        return cls(
            None,
            folder,
            tuple(files),
            tuple(map(Path, dev)),
            tuple(map(Path, test)),
            tuple(columns) if columns is not None else None,
            ROLES if folder_is_named else ("dev", "test") if auto_dev else (),
        )

    def has_scored_pairs(self) -> bool:
        """Whether scored pairs are what there is to learn from."""
        if self.data is not None:
            return self.data.train is not None
        if self.files:
            return any(read_data_kind(file) == "scored pairs" for file in self.files)
        return bool(file_of_role(self.folder, "train")) and not file_of_role(self.folder, "triplets")

    def paths(self) -> list[Path]:
        """The files that were named, and those of the folder if it is searched for files."""
        named = [*self.files, *self.dev, *self.test]
        return named + (sorted(self.folder.iterdir()) if self.data is None and self.found_by_role else [])

    @in_phase("reading")
    def load(self, plan: Plan, notify: Notify) -> list[tuple[Stage, TrainingData]]:
        """Every stage with the files that it learns from, and its data; optional stages without a file are left out."""
        files = _assign(plan, self.files)
        loaded = []
        for planned in plan.stages:
            stage = self._with_files(planned, files[planned.name])
            if stage.optional and not self._has_files(stage):
                notify(f"{stage.name}: left out, the data have no file for it")
                continue
            data = self.data or load_data(
                self.folder, stage.data, needs=stage.recipe.needs(), by_role=self.found_by_role
            )
            stage = choose_metric(choose_schedule(stage, data, notify), data, notify)
            for note in (*stage.recipe.data_notes(data, stage.settings_prefix), *data.notes):
                notify(note)
            loaded.append((stage, data))
        if not loaded:
            names = ", ".join(stage.name for stage in plan.stages)
            raise InputError(
                f"The stages {names} are optional, and the data have no file for any of them; "
                "give one, or choose a stage with --stages."
            )
        return loaded

    def _with_files(self, stage: Stage, files: Files) -> Stage:
        """The stage with the files named by the caller, relative to the data folder."""
        if self.data is not None:
            return stage
        names: dict[str, Any] = {}
        for role, paths in files.items():
            relative = tuple(os.path.relpath(path, self.folder) for path in paths)
            names[role] = relative if len(relative) > 1 else relative[0]
        for role, evaluated in (("dev", self.dev), ("test", self.test)):
            if evaluated:
                names[role] = tuple(os.path.relpath(path, self.folder) for path in evaluated)
        if self.columns is not None:
            names["columns"] = self.columns
        return replace(stage, data=replace(stage.data, **names))

    def _has_files(self, stage: Stage) -> bool:
        """Whether there is a file of everything that a stage learns from; data in memory are for the other stages."""
        if self.data is not None:
            return False
        try:
            return all(
                find_files(self.folder, stage.data, need, [], self.found_by_role) for need in stage.recipe.needs()
            )
        except DataFileError:
            return False


def _folder_and_files(data: Sequence[str | Path], train: str | Path | None) -> tuple[Path, list[Path]]:
    """The data folder, and the files to learn from that the caller named."""
    paths = [Path(path) for path in data]
    for path in paths:
        if not path.exists():
            raise DataFileError(f"There is no file or folder {path}.")
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0], [Path(train)] if train else []
    if folders := [path for path in paths if path.is_dir()]:
        raise InputError(f"--data is one folder or several files; {folders[0]} is a folder among others.")
    if not paths:
        raise InputError("Give a folder or a file to learn from.")
    if train:
        raise InputError(f"--data {paths[0]} and --train {train} both name what to train on; give one of them.")
    return paths[0].parent, paths


def _assign(plan: Plan, files: Sequence[Path]) -> dict[str, Files]:
    """The files of each stage. A single file is for all stages if they learn from the same data; others go by kind."""
    roles = {stage.name: FILE_ROLES[next(iter(stage.recipe.needs()), "pairs")] for stage in plan.stages}
    if len(files) == len(set(roles.values())) == 1:
        return {name: {role: list(files)} for name, role in roles.items()}
    assigned: dict[str, Files] = {stage.name: {} for stage in plan.stages}
    for file in files:
        kind = read_data_kind(file)
        suitable = [
            (_KINDS[need].index(kind), stage.name, FILE_ROLES[need])
            for stage in plan.stages
            for need in stage.recipe.needs()
            if kind in _KINDS[need]
        ]
        if not suitable:
            raise InputError(f"{file} holds {kind}, and nothing here learns from those; leave it out.")
        best = min(suitable)[0]
        for rank, name, role in suitable:
            if rank == best and file not in assigned[name].setdefault(role, []):
                assigned[name][role].append(file)
    for by_role in assigned.values():
        for role in _SINGLE_FILE_ROLES:
            if len(paths := by_role.get(role, [])) > 1:
                raise InputError(f"{paths[0]} and {paths[1]} are of one kind; join them to one file.")
    return assigned
