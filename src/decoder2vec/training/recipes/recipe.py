"""The protocol of recipes: what is trained of a model, what must be read for it, how it is attached and exported."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import fingerprint, key_settings
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.reranker import Reranker
from decoder2vec.training.context import Reads, TrainingContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import History, OnProgress, Schedule, fit
from decoder2vec.training.objectives.objective import Objective, trained_module, training_task
from decoder2vec.training.results import SeedResult
from decoder2vec.training.teachers import Teacher

SCORING_UNTRAINED = "scoring the untrained model"
"""A phase of progress."""
MIN_DEV_PAIRS = 50
"""Fewer dev pairs hardly tell states, seeds or layers apart."""

TrainedModel = Encoder | Reranker
SaveModel = Callable[[TrainedModel, bool, int], object]

Corpus = TypeVar("Corpus")
Context = TypeVar("Context", bound=TrainingContext)


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise InputError unless there is a seed, none is below 0 and none is repeated."""
    if not seeds or min(seeds) < 0:
        raise InputError("Give at least one seed, and none below 0.")
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise InputError(f"The seed {seed} is repeated; give every seed once.")


@dataclass(frozen=True)
class SeedRun:
    """One seed of a training: where its checkpoints and log go, and what is called after its steps."""

    seed: int
    work: Path | None = None
    """Folder for checkpoints; None: nothing is written."""
    on_progress: OnProgress = lambda _: None
    save_step: Callable[[Any, int], object] = lambda _context, _step: None
    """Saves a context as it is after a number of steps, where a schedule has `save_every`."""

    def files(self, key: str) -> dict[str, Path | None]:
        """The checkpoint and the log of a run, as arguments of `fit`; the key names all that the run depends on."""
        if self.work is None:
            return {}
        return {"checkpoint": self.work / f"{key}.safetensors", "log": self.work / f"log-{self.seed}.jsonl"}

    def fit(
        self,
        objective: Objective[Any, Any],
        context: TrainingContext,
        schedule: Schedule,
        metric: str,
        *,
        checkpoint: Path | None = None,
        log: Path | None = None,
    ) -> tuple[History, nn.Module]:
        """Train until dev stops improving; returns the history, and all that was trained, extra modules included."""
        module = trained_module(objective, context)
        task = training_task(objective, context, schedule, metric)
        history = fit(
            module,
            task,
            self.seed,
            checkpoint=checkpoint,
            log=log,
            on_progress=self.on_progress,
            save_step=partial(self.save_step, context),
        )
        return history, module


def stage_note(objective: Objective[Any, Any], history: History, correlation: str) -> dict[str, Any]:
    """A history for the results file, with what was learned and the metric that its scores are.

    Args:
        objective: What was learned.
        history: Losses and scores.
        correlation: The correlation on dev pairs by which states are selected, unless the objective has its own metric.

    """
    return {"stage": objective.stage, "metric": asdict(objective.metric(correlation)), **asdict(history)}


class Recipe(ABC, Generic[Corpus, Context]):
    """A way to make an encoder or a reranker of a model.

    Each recipe is a frozen dataclass in a file of its own: its fields are at once the Python API, the table in a plan
    and the `--set` options. Training calls its methods in this order: `check`, `prepare`, then for each seed `attach`,
    `train`, `evaluate` and `compare_untrained`, and for the best seed `export`.
    """

    name: ClassVar[str]
    """Of its table in a plan."""
    about: ClassVar[str]
    """One sentence for the card of an encoder."""
    mergeable: ClassVar[bool] = True
    """Whether what it trains can be merged into the weights, so that a later stage can train on."""
    adds_parameters: ClassVar[bool] = True
    """Whether it trains parameters besides the model's own."""

    training: Schedule
    choose_by: str
    """The dev correlation by which states and seeds are selected."""
    attention: str | None = None
    """The attention it sets on the model; None: the model's own."""

    @property
    @abstractmethod
    def reads(self) -> Reads:
        """What it must read in order to learn."""

    @property
    @abstractmethod
    def objective_name(self) -> str:
        """What it learns, for tables."""

    @abstractmethod
    def needs(self) -> Sequence[str]:
        """Which kinds of data it learns from, some of `DATA_KINDS`."""

    @abstractmethod
    def check(self, data: TrainingData, backbone: Backbone) -> None:
        """Raise if the recipe does not fit the data or the model, before any text is read."""

    @abstractmethod
    def expect(self, data: TrainingData, stage: str, seeds: int) -> None:
        """Announce the phases of a training, with their work, to the progress of the caller."""

    @abstractmethod
    def prepare(self, data: TrainingData, backbone: Backbone) -> Corpus:
        """Read the texts, once for all seeds."""

    @abstractmethod
    def attach(self, corpus: Corpus) -> Context:
        """What is trained, newly initialised with torch's random numbers, attached to the model."""

    @abstractmethod
    def train(self, context: Context, corpus: Corpus, run: SeedRun) -> SeedResult:
        """Train one seed; the result holds the trained context, and notes for the results file."""

    @abstractmethod
    def evaluate(self, result: SeedResult, corpus: Corpus) -> None:
        """Fill in dev, test and check scores of a trained seed, as the exported encoder gives them."""

    @abstractmethod
    def export(self, result: SeedResult, corpus: Corpus, work: Path) -> tuple[TrainedModel, bool]:
        """The model of a seed, and whether its weights must be saved with it. `work` is a folder for large files."""

    def snapshot(self, context: Context, corpus: Corpus) -> Context:
        """What is trained, as it is now, to be exported while training goes on."""
        return context

    def compare_untrained(self, result: SeedResult, corpus: Corpus) -> None:
        """Fill in the scores of the model before training, where a recipe's reading of it has any."""
        return

    def with_teachers(self, teachers: Sequence[Teacher]) -> Recipe[Corpus, Context]:
        """The recipe with these teachers; the recipe itself if it learns from none."""
        return self

    def used_teachers(self) -> Sequence[Teacher]:
        """The teachers it learns from."""
        return ()

    def teacher_fingerprints(self) -> list[str]:
        """Fingerprints of the teachers as they are now: the encoder of a name may be replaced."""
        return [teacher.read_fingerprint() for teacher in self.used_teachers()]

    def record(self, result: SeedResult, corpus: Corpus) -> dict[str, Any]:
        """More about the best seed, for the training report."""
        return {}

    def data_notes(self, data: TrainingData, prefix: str = "") -> list[str]:
        """What a user should know about these settings on this data; `prefix` stands before settings, as in `mntp.`."""
        n_pairs = sum(map(len, data.dev))
        if not data.dev or n_pairs >= MIN_DEV_PAIRS:
            return []
        return [
            f"{n_pairs} dev pairs are too few to choose by, so that what is chosen is largely chance; "
            f"give {MIN_DEV_PAIRS} or more with --dev"
        ]

    def card_rows(self) -> dict[str, str]:
        """Rows of the encoder card's table."""
        return {}


def result_key(recipe: Recipe[Any, Any], data: TrainingData, backbone: Backbone, seeds: int | list[int]) -> str:
    """Hash of everything that the result of a training depends on; names and descriptions are no part of it."""
    parts = [recipe.name, key_settings(recipe), data.key(), backbone.effective_fingerprint, str(backbone.dtype)]
    if recipe.attention is None:
        parts.append(backbone.attention)
    if fingerprints := recipe.teacher_fingerprints():
        parts.append(fingerprints)
    return fingerprint(*parts, seeds)


class Trainer(Generic[Corpus, Context]):
    """One recipe on one model and one data set: texts are read once, then seeds run one by one."""

    def __init__(
        self,
        recipe: Recipe[Corpus, Context],
        data: TrainingData,
        backbone: Backbone,
    ) -> None:
        self.recipe, self.data, self.backbone = recipe, data, backbone
        recipe.check(data, backbone)
        self.corpus = recipe.prepare(data, backbone)

    def run(
        self,
        seed: int,
        *,
        work: Path | None = None,
        on_progress: OnProgress = lambda _: None,
        save_step: SaveModel | None = None,
    ) -> SeedResult:
        """Train and evaluate one seed.

        Args:
            seed: Determines all randomness.
            work: Folder for checkpoints; None: nothing is written.
            on_progress: Called after every step.
            save_step: Called with the model of a step, whether its weights must be saved with it, and the number of the
                step, where the schedule has `save_every`; it needs `work`.

        """
        run = SeedRun(seed, work, on_progress)
        if save_step and work:
            run = replace(run, save_step=partial(self._save_step, save_step, work))
        started = time.perf_counter()
        torch.manual_seed(seed)
        context = self.recipe.attach(self.corpus)
        result = self.recipe.train(context, self.corpus, run)
        result.seconds += time.perf_counter() - started
        self.recipe.evaluate(result, self.corpus)
        return result

    @torch.no_grad()
    def _save_step(self, save: SaveModel, work: Path, context: Context, step: int) -> None:
        result = SeedResult(seed=0, model=self.recipe.snapshot(context, self.corpus))
        save(*self.export(result, work), step)

    def compare_untrained(self, result: SeedResult) -> None:
        """Compare a seed with the model before training, which a search over settings need not know."""
        self.recipe.compare_untrained(result, self.corpus)

    def export(self, result: SeedResult, work: Path) -> tuple[TrainedModel, bool]:
        """The encoder or reranker of a seed, and whether its weights must be saved with it."""
        return self.recipe.export(result, self.corpus, work)

    def record(self, result: SeedResult) -> dict[str, Any]:
        """More about a seed, for the training report."""
        return self.recipe.record(result, self.corpus)
