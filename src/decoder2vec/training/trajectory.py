"""Score checkpoints of one model before and after the same adaptation, one checkpoint on disk at a time.

The runs of a checkpoint follow each other: before adaptation, then after it with every seed, each without and with the
instruction. `trajectory.json` is written after every run, so that a killed process continues with the next one.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from decoder2vec.backbone.fingerprint import file_sha256
from decoder2vec.backbone.sources import Notify, download_checkpoint
from decoder2vec.config import fingerprint, key_settings
from decoder2vec.encoder_folder import is_encoder_folder
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.evaluation.api import evaluate, instruction_prompts
from decoder2vec.evaluation.tasks.layout import find_tasks
from decoder2vec.evaluation.tasks.task import Task
from decoder2vec.progress import current_progress
from decoder2vec.report.figures import file_stems
from decoder2vec.report.result_files import TRAJECTORY_FILE
from decoder2vec.report.trajectory import CheckpointRun, RunScore, TrajectoryResult, TrajectoryTask
from decoder2vec.storage import check_replaceable, write_json, write_lock
from decoder2vec.training.api import train
from decoder2vec.training.data import TrainingData
from decoder2vec.training.plan import Plan, load_plan
from decoder2vec.training.recipes.recipe import Recipe, check_seeds

_CHECKPOINTS, _ADAPTED, _EVALUATIONS, _LOCK = "checkpoint", "adapted", "evaluations", ".lock"
_WRITTEN = (TRAJECTORY_FILE, _LOCK, f"{_CHECKPOINTS}/*", f"{_ADAPTED}/*", f"{_EVALUATIONS}/*", "report/*")
"""What the output folder of a trajectory may hold."""


@dataclass(frozen=True)
class Trajectory:
    """Checkpoints of one model, in the order of training.

    Args:
        model: A model on the hub, or a folder whose subfolders are models or encoders, such as the steps of a
            pre-training, or the steps (`training.save_every`) or stages of `d2v train`.
        revisions: Revisions of the model on the hub, or names of subfolders; by default all subfolders, sorted by the
            numbers in their names.

    Raises:
        InputError: There is no checkpoint.

    Example:
        >>> import decoder2vec as d2v
        >>> d2v.Trajectory("EleutherAI/pythia-70m", ["step1000", "step143000"]).names
        ('step1000', 'step143000')
    """

    model: str | Path
    revisions: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.names:
            raise InputError(
                f"There is no checkpoint of {self.model}; give revisions of a model on the hub, or a folder of models."
            )
        if len(set(self.names)) < len(self.names):
            raise InputError("A checkpoint is given twice.")
        for name in self.names if self._is_folder else ():
            if not _is_model(Path(self.model) / name):
                raise unknown_name("checkpoint", name, _subfolders(Path(self.model)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the checkpoints."""
        return tuple(self.revisions) or (_subfolders(Path(self.model)) if self._is_folder else ())

    @property
    def _is_folder(self) -> bool:
        return Path(self.model).is_dir()

    def run(
        self,
        data: str | Path,
        out: str | Path,
        *,
        tasks: str | Sequence[str] = "all",
        adaptation: Plan | Recipe[Any, Any] | str | Path | None = None,
        training_data: TrainingData | str | Path | Sequence[str | Path] | None = None,
        trained_on: Sequence[str] = (),
        settings: Sequence[str] = (),
        seeds: Sequence[int] = (0,),
        instruction: str | None = None,
        limit: int | None = None,
        device: str | None = None,
        notify: Notify = lambda _: None,
        command: str = "",
        train_options: Mapping[str, Any] | None = None,
        **encoder_options: Any,
    ) -> TrajectoryResult:
        """Score every checkpoint before and after adaptation; called again, an interrupted run continues.

        Checkpoints of the hub are downloaded into `out` one by one and deleted, and so are adapted encoders.

        Args:
            data: Folder of tasks, as for `evaluate`. Hidden or constant labels are refused before anything is loaded.
            out: Folder for `trajectory.json` and the evaluations.
            tasks: Tasks of the folder: "all", or names and kinds.
            adaptation: What `train` takes: a recipe or its name, a plan, a TOML file. None: only scores before.
            training_data: Data of the adaptation, as for `train`.
            trained_on: Tasks and kinds that the adaptation is for; they are no part of the mean ratio of change.
            settings: `key=value` over the adaptation's plan.
            seeds: Seeds of the adaptation; three or more show its spread.
            instruction: Also score with this text before each text but documents, for the sensitivity to the format.
            limit: Use at most this many pairs, texts or queries of each task.
            device: cuda, mps or cpu; by default the best there is.
            notify: Called with messages for the user.
            command: The command line, for the result.
            train_options: Further arguments of `train`, such as `grid`, which chooses the rate at every checkpoint.
            encoder_options: layer, pooling, template or attention of the model before adaptation; dtype.

        Raises:
            DataFileError: The labels of a task are hidden or constant, or a file cannot be read.
            InputError: `out` holds the result of other checkpoints, tasks or settings, or something else.
        """
        names = [part.strip() for part in tasks.split(",")] if isinstance(tasks, str) else list(tasks)
        evaluation_tasks = find_tasks(data, names, limit=limit)
        if adaptation is not None:
            check_seeds(seeds)
        plan = None if adaptation is None else load_plan(adaptation, settings)
        choices = [list(seeds) if plan else [], instruction, repr(sorted(encoder_options.items())), repr(train_options)]
        digests = [[task.name, task.digest()] for task in evaluation_tasks]
        key = fingerprint(
            str(self.model), list(self.names), digests, _plan_key(plan), _training_key(training_data), choices
        )
        start = TrajectoryResult(
            str(self.model),
            self.names,
            {task.name: TrajectoryTask(task.kind, "", task.constant_score()) for task in evaluation_tasks},
            (),
            "" if plan is None else plan.name,
            _expand(trained_on, evaluation_tasks),
            key,
            command,
        )
        return _TrajectoryRun(
            trajectory=self,
            out=Path(out),
            result=start,
            tasks=[task.name for task in evaluation_tasks],
            data=str(data),
            plan=plan,
            training_data=training_data,
            seeds=tuple(seeds) if plan else (),
            instruction=instruction,
            limit=limit,
            device=device,
            notify=notify,
            train_options=dict(train_options or {}),
            encoder_options=encoder_options,
        ).run()

    @contextmanager
    def checkpoint(self, name: str, folder: Path) -> Iterator[Path]:
        """Yield the folder of a checkpoint; one of the hub is downloaded into `folder` and deleted in the end."""
        if self._is_folder:
            yield Path(self.model) / name
            return
        target = folder / file_stems([name])[0]
        for other in folder.glob("*"):  # of a process that was killed
            if other != target:
                shutil.rmtree(other)
        download_checkpoint(str(self.model), name, target)
        yield target
        shutil.rmtree(folder)


class RunKey(NamedTuple):
    """One run of a checkpoint."""

    seed: int | None
    """Seed of the adaptation; None: before adaptation."""
    instructed: bool
    """Whether the instruction precedes the texts."""


@dataclass
class _TrajectoryRun:
    """One call of `Trajectory.run`: its settings, and the result so far."""

    trajectory: Trajectory
    out: Path
    result: TrajectoryResult
    tasks: Sequence[str]
    data: str
    plan: Plan | None
    training_data: TrainingData | str | Path | Sequence[str | Path] | None
    seeds: tuple[int, ...]
    instruction: str | None
    limit: int | None
    device: str | None
    notify: Notify
    train_options: dict[str, Any]
    encoder_options: dict[str, Any]

    def run(self) -> TrajectoryResult:
        """Do every run that is not finished, and return the result."""
        check_replaceable(self.out, _WRITTEN)
        with write_lock(self.out / _LOCK, str(self.out)):
            self._continue()
            stems = file_stems(self.result.checkpoints)
            pending = [self._unfinished(name) for name in self.result.checkpoints]
            if finished := len(pending) * len(self._planned()) - sum(map(len, pending)):
                self.notify(f"{finished} of {len(pending) * len(self._planned())} runs are finished in {self.out}")
            for name, stem, runs in zip(self.result.checkpoints, stems, pending, strict=True):
                if runs:
                    with self.trajectory.checkpoint(name, self.out / _CHECKPOINTS) as folder:
                        for seed in dict.fromkeys(run.seed for run in runs):
                            self._score(name, stem, folder, seed, [run for run in runs if run.seed == seed])
            self._write()
            shutil.rmtree(self.out / _ADAPTED, ignore_errors=True)  # what a killed process had not deleted yet
            shutil.rmtree(self.out / _CHECKPOINTS, ignore_errors=True)
        return self.result

    def _continue(self) -> None:
        """Take over the runs of an earlier call."""
        if not (self.out / TRAJECTORY_FILE).is_file():
            return
        earlier = TrajectoryResult.load(self.out)
        if earlier.key != self.result.key:
            raise InputError(
                f"{self.out} holds the result of other checkpoints, tasks or settings; choose another folder."
            )
        self.result = replace(self.result, runs=earlier.runs, tasks=earlier.tasks)

    def _planned(self) -> list[RunKey]:
        """Every run of a checkpoint."""
        formats = (False, True) if self.instruction else (False,)
        return [RunKey(seed, instructed) for seed in (None, *self.seeds) for instructed in formats]

    def _unfinished(self, checkpoint: str) -> list[RunKey]:
        return [
            run for run in self._planned() if self.result.run(checkpoint, run.seed, instructed=run.instructed) is None
        ]

    def _score(self, name: str, stem: str, folder: Path, seed: int | None, runs: Sequence[RunKey]) -> None:
        """Score a checkpoint before adaptation (`seed` is None), or adapt it and score the encoder."""
        label = name if seed is None else f"{name}, seed {seed}"
        with current_progress().stage(label):
            if seed is None:
                for run in runs:
                    self._evaluate(name, stem, folder, run, self.encoder_options)
                return
            adapted = self.out / _ADAPTED / f"{stem}-{seed}"
            self.notify(f"{label}: {self.result.adaptation}")
            dtype = {"dtype": self.encoder_options.get("dtype")}
            options: dict[str, Any] = {**dtype, "device": self.device, **self.train_options}
            options |= {"seeds": [seed], "overwrite": True, "notify": self.notify}
            train(self.plan, self.training_data, folder, adapted, **options)
            for run in runs:
                self._evaluate(name, stem, adapted, run, dtype)
            shutil.rmtree(self.out / _ADAPTED)  # with the stages and unfinished files beside it

    def _evaluate(self, name: str, stem: str, encoder: Path, run: RunKey, encoder_options: Mapping[str, Any]) -> None:
        state = "before" if run.seed is None else f"after-{run.seed}"
        file = self.out / _EVALUATIONS / f"{stem}-{state}{'-instruction' if run.instructed else ''}.json"
        document = evaluate(
            encoder,
            self.data,
            tasks=self.tasks,
            prompts=instruction_prompts(self.instruction) if run.instructed and self.instruction else None,
            json_file=file,
            limit=self.limit,
            name=f"{name} {state}",
            device=self.device,
            notify=self.notify,
            **encoder_options,
        )
        results = document["tasks"]
        scores = {task: RunScore(results[task]["score"], *results[task]["interval"]) for task in self.tasks}
        tasks = {task: replace(about, metric=results[task]["metric"]) for task, about in self.result.tasks.items()}
        runs = (*self.result.runs, CheckpointRun(name, run.seed, run.instructed, scores))
        self.result = replace(self.result, runs=runs, tasks=tasks)
        self._write()

    def _write(self) -> None:
        write_json(self.out / TRAJECTORY_FILE, self.result.to_json())


def _subfolders(folder: Path) -> tuple[str, ...]:
    """The names of all models and encoders in a folder, by the numbers in their names."""
    names = [child.name for child in folder.iterdir() if _is_model(child)]
    return tuple(sorted(names, key=lambda name: ([int(part) for part in re.findall(r"\d+", name)], name)))


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or is_encoder_folder(folder)


def _expand(names: Sequence[str], tasks: Sequence[Task]) -> tuple[str, ...]:
    """The tasks that names of tasks and kinds stand for."""
    known = {*(task.name for task in tasks), *(task.kind for task in tasks)}
    for name in names:
        if name not in known:
            raise unknown_name("task", name, known)
    return tuple(task.name for task in tasks if task.name in names or task.kind in names)


def _plan_key(plan: Plan | None) -> list[Any] | None:
    """What an adaptation depends on besides its data."""
    if plan is None:
        return None
    return [[stage.recipe.name, key_settings(stage.recipe), key_settings(stage.data)] for stage in plan.stages]


def _training_key(data: TrainingData | str | Path | Sequence[str | Path] | None) -> Any:
    """What identifies training data: their content, or for a folder its path."""
    if data is None or isinstance(data, TrainingData):
        return data and data.key()
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    return [file_sha256(path) if path.is_file() else str(path) for path in paths]
