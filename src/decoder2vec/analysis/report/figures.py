"""Every figure of a report: which there are, what each shows, and why one is missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoder2vec.analysis.report.comparison_figures import draw_examples, draw_ladder, draw_parameters, part_files
from decoder2vec.analysis.report.layer_figures import draw_autoencoders, draw_correlations, draw_worth, worth_parts
from decoder2vec.analysis.report.record import Run
from decoder2vec.analysis.report.training_figures import draw_errors, draw_training


@dataclass(frozen=True)
class Picture:
    """A figure on disk and what it shows; without a file, why there is none."""

    title: str
    about: str
    file: Path | None = None


def draw_overview(runs: Sequence[Run], out: Path) -> list[Picture]:
    """The figures that set all runs side by side."""
    figures = (
        _Figure(
            "The ladder",
            "Bars: mean over seeds. Dots: each seed. Lines: one standard deviation either way. In points, x 100.",
            "ladder",
            draw_ladder,
            any(part_files(runs, part) for part in ("dev", "test")),
            "no run holds scores (results.json).",
        ),
        _Figure(
            "The paper's eight examples",
            "Black diamonds: what people say. Crosses: the paper's final model. Dots: the encoders of this report.",
            "examples",
            draw_examples,
            any(run.examples for run in runs),
            "they are scored in run.json, which no run here has.",
        ),
        _Figure(
            "Trained parameters",
            "Numbers trained, as a share of those of the frozen model.",
            "parameters",
            draw_parameters,
            any(run.trained is not None and run.frozen for run in runs),
            "they are counted in run.json, which no run here has.",
        ),
    )
    return [figure.made(runs, out / f"{figure.stem}.png") for figure in figures]


def draw_run(run: Run, out: Path, stem: str) -> list[Picture]:
    """The figures of one run."""
    lacking = "it is kept in the encoder's run.json, which is not here."
    mixed = "this encoder mixes its layers before texts are compared, so no layer has a score of its own."
    alone = _one_reading(run)
    figures = (
        _Figure(
            "Correlation of each layer",
            "The cosine of one layer at a time against human scores: of the raw latents, and of the trained codes.",
            "layers",
            draw_correlations,
            run.layers is not None and len(run.readings) > 1 and bool(run.layers.raw),
            alone or lacking,
        ),
        _Figure(
            "Loss of the autoencoders",
            "Error on held-out texts; thin lines: each seed. A raw error depends on how large a layer's numbers are, "
            "the share does not. Dashed: an autoencoder that knows only the mean.",
            "autoencoders",
            draw_autoencoders,
            any(seed.error for seed in run.seeds),
            "this run did not pre-train autoencoders." if run.seeds else "results.json is not here.",
        ),
        _Figure(
            "What each layer is worth",
            "Lost without: its cosine is replaced by the mean of the others'; the head is not trained again.",
            "worth",
            draw_worth,
            bool(worth_parts(run)),
            alone or (mixed if run.layers is not None else lacking),
        ),
        _Figure(
            "Training",
            "Loss and score after each epoch; 0 is before training. Stars: the epoch that was kept.",
            "training",
            draw_training,
            any(seed.histories for seed in run.seeds),
            "nothing was trained in this run." if run.seeds else "results.json is not here.",
        ),
        _Figure(
            "Errors",
            "Score minus human score. On the right, dots on the line would be a normal distribution.",
            "errors",
            draw_errors,
            run.errors is not None and len(run.errors.values) > 1,
            lacking,
        ),
    )
    return [figure.made(run, out / f"{stem}-{figure.stem}.png") for figure in figures]


def _one_reading(run: Run) -> str:
    """One layer makes no curve, but a sentence; empty where there are more."""
    if len(run.readings) != 1 or run.layers is None:
        return ""
    said = [f"this encoder reads one place only: {run.readings[0].label}"]
    for kind, words in (("raw", "raw cosine"), ("codes", "trained codes")):
        scores = [f"{metric.capitalize()} {values[0]:.1f}" for metric, values in getattr(run.layers, kind).items()]
        said += [f"{words}: {', '.join(scores)}"] if scores else []
    return "; ".join(said) + f" (on {run.layers.data}, x 100)."


def file_stems(names: Sequence[str]) -> list[str]:
    """A file name for each run, all different, that every file system takes."""
    found: list[str] = []
    for name in names:
        stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "run"
        taken = sum(stem == other or other.startswith(f"{stem}--") for other in found)
        found.append(f"{stem}--{taken + 1}" if taken else stem)
    return found


@dataclass(frozen=True)
class _Figure:
    title: str
    about: str
    stem: str
    draw: Callable[[Any, Path], None]
    possible: bool
    lacking: str

    def made(self, shown: Any, file: Path) -> Picture:
        if not self.possible:
            return Picture(self.title, self.lacking)
        self.draw(shown, file)
        return Picture(self.title, self.about, file)
