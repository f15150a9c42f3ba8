"""Learning curve: how well each recipe does with how much data, which one to use, and what more data would give.

For every recipe and size, the learning rate is chosen on dev with the first seed. Then each seed trains on a random
sample of its own; the smaller samples of a seed are part of its larger ones, and all recipes get the same.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.sources import Notify
from decoder2vec.base_model import load_base_model
from decoder2vec.config import to_table, with_settings
from decoder2vec.errors import DivergedError, InputError
from decoder2vec.maths.learning_curve import Forecast, forecast, half_interval, round_figures
from decoder2vec.progress import current_progress
from decoder2vec.report.curve_figures import draw_learning_curve
from decoder2vec.storage import check_replaceable, parse_json, versions, write_json
from decoder2vec.text.files import ScoredPairs, naming_lines
from decoder2vec.training.data import TrainingData, check_scores
from decoder2vec.training.data_source import DataSource
from decoder2vec.training.defaults import choose_reading, choose_schedule
from decoder2vec.training.hyperparameters import Grid
from decoder2vec.training.loop import OnProgress
from decoder2vec.training.plan import PLAN_RECIPES, Stage, load_plan
from decoder2vec.training.recipes import recipes as registered_recipes
from decoder2vec.training.recipes.recipe import Trainer, check_seeds, result_key
from decoder2vec.training.results import mean_score

SIZES: tuple[int | str, ...] = (50, 200, 1000, 5000, "all")
RECIPES = ("freeze", "soft_prompt", "lora", "bottleneck", "conv", "full")
CURVE_FILE = "curve.json"
_METRIC = "spearman"
_RATE = "training.rate"
_RATE_FACTORS = (0.3, 1.0, 3.0)
"""By default these multiples of a recipe's own learning rate are tried."""
_MIN_SIZE = 2
_MORE = 0.4
"""Forecasts are for about this share of more data."""
_WRITTEN = (CURVE_FILE, "curve.png", "curve.svg", "runs/*.json", "unfinished/*")


@dataclass(frozen=True)
class CurvePoint:
    """One recipe at one size, with the settings that were best on dev."""

    recipe: str
    size: int
    settings: dict[str, Any]
    tried: list[dict[str, Any]]
    """Settings and dev score of each choice; None if training diverged."""
    runs: list[dict[str, Any]]
    """What each seed gave."""

    def scores(self, part: str) -> list[float]:
        """The mean correlation over the files of dev or test, of each seed that did not diverge."""
        return [run[part] for run in self.runs if run.get(part) is not None]

    def mean(self, part: str) -> float:
        """The mean over seeds; minus infinity if all diverged."""
        scores = self.scores(part)
        return float(np.mean(scores)) if scores else -math.inf

    def to_json(self) -> dict[str, Any]:
        """For the curve's file."""
        document: dict[str, Any] = asdict(self)
        document["parameters"] = max((run.get("parameters", 0) for run in self.runs), default=0)
        for part in ("dev", "test"):
            scores = self.scores(part)
            mean = round(self.mean(part), 2) if scores else None
            document[part] = {"seeds": scores, "mean": mean, "half_interval": half_interval(scores)}
        return document


@dataclass(frozen=True)
class LearningCurve:
    """Every recipe at every size."""

    points: list[CurvePoint]
    noun: str = "examples"
    """What sizes count: pairs or examples."""
    shown: str = "dev"
    """The scores of the figure and of forecasts: test where there are test files; recipes are compared on dev."""
    document: dict[str, Any] = field(default_factory=dict)
    """What `curve.json` holds."""

    @property
    def recipes(self) -> list[str]:
        """The recipes in the order in which they were named."""
        return list(dict.fromkeys(point.recipe for point in self.points))

    @property
    def sizes(self) -> list[int]:
        """The sizes in ascending order."""
        return sorted({point.size for point in self.points})

    def at(self, size: int) -> list[CurvePoint]:
        """The points of a size, the best on dev first."""
        return sorted((p for p in self.points if p.size == size), key=lambda point: -point.mean("dev"))

    def sentence(self) -> str:
        """Which recipe to use at which size, and where that is not certain."""
        winners = [(size, self.at(size)[0].recipe) for size in self.sizes]
        spans = [(recipe, [size for size, _ in group]) for recipe, group in groupby(winners, key=lambda pair: pair[1])]
        bounds = [round_figures(math.sqrt(before[1][-1] * after[1][0]), 2) for before, after in pairwise(spans)]
        if not bounds:
            every = f"every size from {self.sizes[0]:,} to " if len(self.sizes) > 1 else ""
            text = f"Use {spans[0][0]} at {every}{self.sizes[-1]:,} {self.noun}"
        else:
            text = f"Below {bounds[0]:,} {self.noun} use {spans[0][0]}"
            for (recipe, _), (low, high) in zip(spans[1:-1], pairwise(bounds), strict=True):
                text += f", from {low:,} to {high:,} {recipe}"
            text += f", above {spans[-1][0]}"
        return f"{text}{self._doubt()}."

    def _doubt(self) -> str:
        """At which sizes the best recipe is not distinguishable from the second."""
        if len(self.recipes) == 1:
            return ""
        if max(len(point.runs) for point in self.points) < 2:
            return "; with one seed that may be chance"
        unclear = [f"{size:,}" for size in self.sizes if not _leads(*self.at(size)[:2])]
        if not unclear:
            return "; the lead is larger than chance at every size"
        sizes = " and ".join([", ".join(unclear[:-1]), unclear[-1]] if len(unclear) > 1 else unclear)
        return f"; at {sizes} the lead may be chance"

    def forecasts(self) -> dict[str, Forecast | None]:
        """By recipe, what about 40 % more data would give; None where too few sizes were measured."""
        sizes = self.sizes
        more = round_figures(max(1.0, _MORE * sizes[-1]), 1)
        forecasts = {}
        for recipe in self.recipes:
            points = [p for size in sizes for p in self.at(size) if p.recipe == recipe and p.scores(self.shown)]
            half_width = half_interval(points[-1].scores(self.shown)) if points else None
            measured, means = [p.size for p in points], [p.mean(self.shown) for p in points]
            forecasts[recipe] = forecast(measured, means, sizes[-1] + more, half_width)
        return forecasts

    def forecast_lines(self) -> list[str]:
        """The forecasts as sentences; one that failed on the held-out size is not given."""
        lines = []
        for recipe, result in self.forecasts().items():
            if result is None:
                lines.append(f"{recipe}: no forecast from fewer than 4 sizes")
            elif not result.believed:
                lines.append(
                    f"{recipe}: no forecast: without the last size, the fit misses it by {abs(result.error):.1f} "
                    f"points, more than {result.allowed:.1f}"
                )
            else:
                lines.append(
                    f"{recipe}: {result.size - self.sizes[-1]:,} more {self.noun}: about {result.gain:+.1f} points "
                    f"(without the last size, the fit misses it by {abs(result.error):.1f})"
                )
        return lines


def learning_curve(
    data: TrainingData | str | Path | Sequence[str | Path] | None = None,
    backbone: Backbone | str | Path = "smollm2-135m",
    out: str | Path = "curve",
    *,
    sizes: Sequence[int | str] = SIZES,
    recipes: Sequence[str] = RECIPES,
    train: str | Path | None = None,
    dev: Sequence[str | Path] = (),
    test: Sequence[str | Path] = (),
    columns: Sequence[str] | None = None,
    auto_dev: bool = False,
    settings: Sequence[str] = (),
    grid: Grid | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    device: str | torch.device | None = None,
    dtype: str | None = None,
    notify: Notify = lambda _: None,
    on_progress: OnProgress = lambda _: None,
    command: str = "",
) -> LearningCurve:
    """Train every recipe on growing samples of the data; called again, it resumes where it was interrupted.

    Writes `curve.json`, `curve.png` and the result of every run to `out`; no encoder is saved.

    Args:
        data: A folder, files to learn from, or a `TrainingData`: scored pairs, triplets, pairs or labelled texts.
        backbone: The model, or an encoder to train further.
        out: Folder for the results.
        sizes: Numbers of examples, and "all". Sizes above the number of examples are left out.
        recipes: What to compare. With `freeze` among them, or on scored pairs, all learn from scores (`cosent`).
        train: File to learn from, where `data` is a folder.
        dev: Files of scored pairs to choose on; they do not count as examples.
        test: Files of scored pairs to evaluate, once for each seed of a chosen setting.
        columns: Columns of the two texts and the score.
        auto_dev: Where `data` names files, also use files named dev or test beside the first of them.
        settings: `key=value` for all recipes, or with the name of one before it: `lora.rank=8`.
        grid: Values to choose from on dev, at every size; by default 0.3, 1 and 3 times each recipe's learning rate.
        seeds: Each draws its own samples; intervals are over seeds.
        device: cuda, mps or cpu; by default the best there is. A `Backbone` has its own.
        dtype: float32 or bfloat16. A `Backbone` has its own.
        notify: Called with messages for the user.
        on_progress: Called after every training step.
        command: The command line, for the results file.

    Raises:
        InputError: A recipe, a size or the data do not fit.

    Example:
        >>> import decoder2vec as d2v
        >>> from decoder2vec.text.files import ScoredPairs
        >>> texts = [f"The {animal} sleeps." for animal in ("cat", "dog", "bird", "horse", "fish", "mouse")]
        >>> pairs = ScoredPairs("pairs", texts, texts[::-1], [0.0, 0.2, 0.9, 1.0, 0.3, 0.1])
        >>> data = d2v.TrainingData(pairs, (pairs,))
        >>> options = {"recipes": ["lora"], "seeds": [0], "grid": {"training.rate": [1e-3]}}
        >>> d2v.learning_curve(data, "tiny-llama", "my-curve", sizes=[4, "all"], **options).sentence()
        'Use lora at every size from 4 to 6 pairs.'
    """
    check_seeds(seeds)
    folder = Path(out).absolute()
    check_replaceable(folder, _WRITTEN)
    source = DataSource.of(data, train, dev, test, columns, auto_dev=auto_dev)
    stages = _load_stages(recipes, source, settings, backbone, notify)
    with naming_lines(*source.paths()):
        counts = _resolve_sizes(sizes, min(_n_examples(stage_data) for _, stage_data in stages), notify)
        model = backbone
        if not isinstance(model, Backbone):
            model, _ = load_base_model(model, device=device, dtype=dtype, notify=notify)
        runner = _Runner(model, folder, tuple(seeds), notify, on_progress)
        curve = runner.curve(stages, counts, [_choices(stage, grid) for stage, _ in stages])
        document = _document(curve, stages, model, command)
        write_json(folder / CURVE_FILE, document)
        draw_learning_curve(document, folder / "curve.png")
    return replace(curve, document=document)


def parse_sizes(text: str) -> list[int | str]:
    """`50,200,all` to sizes."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not all(name == "all" or name.isdecimal() for name in names):
        raise InputError(f"--curve takes numbers of examples such as 50,200,1000,all, not {text!r}.")
    return [name if name == "all" else int(name) for name in names]


def _resolve_sizes(sizes: Sequence[int | str], n_examples: int, notify: Notify) -> list[int]:
    """The sizes in ascending order; those above the number of examples are left out."""
    counts = sorted({n_examples if size == "all" else int(size) for size in sizes})
    if not counts or counts[0] < _MIN_SIZE:
        raise InputError(f"The sizes of a curve are {_MIN_SIZE} examples or more, or all.")
    if larger := [f"{count:,}" for count in counts if count > n_examples]:
        notify(f"there are {n_examples:,} examples: sizes {', '.join(larger)} are left out")
    if not (fitting := [count for count in counts if count <= n_examples]):
        raise InputError(f"There are {n_examples:,} examples, fewer than the smallest size of the curve.")
    return fitting


def _load_stages(
    names: Sequence[str], source: DataSource, settings: Sequence[str], backbone: Backbone | str | Path, notify: Notify
) -> list[tuple[Stage, TrainingData]]:
    """A stage for each recipe, with all data; the objective is one that learns from these."""
    if not names or len(set(names)) < len(names):
        raise InputError("Give the recipes to compare, each once.")
    learns_scores = "freeze" in names or source.has_scored_pairs()
    stages: list[tuple[Stage, TrainingData]] = []
    for name in names:
        if name in (*PLAN_RECIPES, "rerank"):
            raise InputError(f"A curve compares recipes that learn an encoder from examples, which {name} does not.")
        chosen = _settings_of(name, settings)
        if learns_scores and name != "freeze" and not any(setting.startswith("objective.name=") for setting in chosen):
            chosen = ["objective.name=cosent", *chosen]
        report: Notify = (lambda _: None) if stages else notify  # notes on the data are the same for all recipes
        ((stage, data),) = source.load(choose_reading(load_plan(name, chosen), backbone, report), report)
        if stage.recipe.training.save_every:
            raise InputError("A curve saves no encoders; leave out training.save_every.")
        stages.append((replace(stage, name=name), data))
    return stages


def _settings_of(recipe: str, settings: Sequence[str]) -> list[str]:
    """Settings for all recipes and those that begin with the name of this one."""
    others = tuple(f"{name}." for name in registered_recipes() if name != recipe)
    return [setting.removeprefix(f"{recipe}.") for setting in settings if not setting.startswith(others)]


def _n_examples(data: TrainingData) -> int:
    if data.train:
        return len(data.train)
    if data.contrastive:
        return len(data.contrastive)
    raise InputError("A curve needs scored pairs, triplets, pairs or labelled texts to learn from.")


def sample(data: TrainingData, size: int, seed: int) -> TrainingData:
    """A random sample of the examples in their order; that of a smaller size is a part of it."""
    order = np.random.default_rng(seed).permutation(_n_examples(data))
    rows = np.sort(order[:size])
    if data.train is None:
        assert data.contrastive is not None
        return replace(data, contrastive=data.contrastive.subset(rows))
    every = data.train
    columns: list[Any] = [[column[row] for row in rows] for column in (every.left, every.right, every.scores)]
    pairs = ScoredPairs(every.name, *columns)
    check_scores(pairs, data.scale)
    texts = tuple(pairs.texts()) if data.texts and set(data.texts) <= set(every.texts()) else data.texts
    return replace(data, train=pairs, texts=texts)


def _choices(stage: Stage, grid: Grid | None) -> list[dict[str, Any]]:
    """The settings to choose from."""
    rate = stage.recipe.training.rate
    values = grid or {_RATE: [float(f"{factor * rate:.2g}") for factor in _RATE_FACTORS]}
    choices = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    for choice in choices:
        with_settings(stage.recipe, choice)  # an unknown setting is found before anything is trained
    return choices


@dataclass(frozen=True)
class _Runner:
    """Trains the runs of a curve; one whose result is on disk is not trained again."""

    backbone: Backbone
    folder: Path
    seeds: tuple[int, ...]
    notify: Notify
    on_progress: OnProgress

    def curve(
        self,
        stages: Sequence[tuple[Stage, TrainingData]],
        sizes: Sequence[int],
        choices: Sequence[Sequence[dict[str, Any]]],
    ) -> LearningCurve:
        """Train every recipe at every size; `choices` are the settings of each recipe to choose from."""
        for (stage, data), tried in zip(stages, choices, strict=True):
            for size in sizes:
                smaller, n_choices = sample(data, size, self.seeds[0]), len(tried) if len(tried) > 1 else 0
                recipe = self._with_schedule(stage, smaller).recipe
                recipe.expect(smaller, f"{stage.name} {size:,}", n_choices + len(self.seeds))
        points = [
            self.point(stage, data, size, tried)
            for (stage, data), tried in zip(stages, choices, strict=True)
            for size in sizes
        ]
        data = stages[0][1]
        return LearningCurve(points, "pairs" if data.train else "examples", "test" if data.test else "dev")

    def point(self, stage: Stage, data: TrainingData, size: int, choices: Sequence[dict[str, Any]]) -> CurvePoint:
        """Choose the settings on dev with the first seed, and train all seeds with them."""
        label = f"{stage.name} {size:,}"
        attempts: list[dict[str, Any]] = []
        with current_progress().stage(label):
            if len(choices) > 1:
                smaller = sample(data, size, self.seeds[0]).without_test()
                for choice in choices:
                    dev = self._run(stage, smaller, size, choice, self.seeds[0]).get("dev")
                    attempts.append({"settings": choice, "dev": dev})
            best = max(attempts, key=lambda tried: -math.inf if tried["dev"] is None else tried["dev"], default=None)
            chosen = best["settings"] if best else choices[0]
            runs = [self._run(stage, sample(data, size, seed), size, chosen, seed) for seed in self.seeds]
        current_progress().drop(label)
        point = CurvePoint(stage.name, size, chosen, attempts, runs)
        means = ", ".join(f"{part} {point.mean(part):.2f}" for part in ("dev", "test") if point.scores(part))
        self.notify(
            f"{label}: {means or 'diverged'} ({', '.join(f'{name}={value}' for name, value in chosen.items())})"
        )
        return point

    def _with_schedule(self, stage: Stage, data: TrainingData) -> Stage:
        """The stage with more epochs and smaller batches, if the sample is small."""
        return choose_schedule(stage, data, lambda _: None)

    def _run(self, stage: Stage, data: TrainingData, size: int, choice: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The result of one training, from disk if it is there."""
        stage = self._with_schedule(stage, data)
        recipe = with_settings(stage.recipe, dict(choice))
        key = result_key(recipe, data, self.backbone, seed)
        file = self.folder / "runs" / f"{stage.name}-{size}-{key}.json"
        if (finished := _read_run(file)) is not None:
            return finished
        attention = self.backbone.attention
        try:
            trainer = Trainer(recipe, data, self.backbone)
            result = trainer.run(seed, work=self.folder / "unfinished", on_progress=self.on_progress)
            trainer.compare_untrained(result)
        except DivergedError as error:
            document: dict[str, Any] = {"seed": seed, "dev": None, "test": None, "diverged": str(error)}
        else:
            document = {"seed": seed, "parameters": result.n_trained, "seconds": round(result.seconds, 2)}
            document |= _means({"dev": result.dev, "test": result.test})
            document["untrained"] = _means(result.untrained)
        finally:
            if self.backbone.attention != attention:
                self.backbone.set_attention(attention)
        document |= {"recipe": recipe.name, "size": size, "settings": dict(choice)}
        write_json(file, document)
        shutil.rmtree(self.folder / "unfinished", ignore_errors=True)
        return document


def _read_run(file: Path) -> dict[str, Any] | None:
    """The result of a run; None if there is none, or a damaged one, which is trained again."""
    try:
        document = parse_json(file.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _means(scores: Mapping[str, Any]) -> dict[str, float | None]:
    """The mean correlation over the files of each part."""
    return {part: round(mean_score(files, _METRIC), 3) if files else None for part, files in scores.items()}


def _document(
    curve: LearningCurve, stages: Sequence[tuple[Stage, TrainingData]], backbone: Backbone, command: str
) -> dict[str, Any]:
    runs = [run for point in curve.points for run in point.runs]
    untrained: dict[str, Any] = next((run["untrained"] for run in runs if run.get("untrained")), {})
    return {
        "command": command,
        "backbone": {"name": backbone.name, "fingerprint": backbone.fingerprint},
        "metric": _METRIC,
        "sentence": curve.sentence(),
        "forecasts": {
            recipe: None if result is None else {**asdict(result), "believed": result.believed}
            for recipe, result in curve.forecasts().items()
        },
        "forecast_lines": curve.forecast_lines(),
        "recipes": curve.recipes,
        "sizes": curve.sizes,
        "noun": curve.noun,
        "shown": curve.shown,
        "untrained": untrained,
        "data": stages[0][1].describe(),
        "points": [point.to_json() for point in curve.points],
        "config": {stage.name: to_table(stage.recipe) for stage, _ in stages},
        "versions": versions(),
    }


def _leads(first: CurvePoint, second: CurvePoint) -> bool:
    """Whether the paired differences of the seeds on dev are above zero by more than chance."""
    pairs = zip(first.runs, second.runs, strict=True)
    differences = [a["dev"] - b["dev"] for a, b in pairs if None not in (a["dev"], b["dev"])]
    half_width = half_interval(differences)
    return half_width is not None and float(np.mean(differences)) > half_width
