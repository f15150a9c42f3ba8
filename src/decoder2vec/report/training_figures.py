"""Figures of training runs: scores of all runs side by side, and layers, losses and errors of each run.

Each `draw_*` function writes one figure and returns its headline: the title in the PNG, a sentence above it in a page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from decoder2vec.maths.metrics import METRICS
from decoder2vec.report.figures import (
    COLOURS,
    GREY,
    Figure,
    ReadingLabel,
    colour,
    curve_style,
    group_readings,
    integer_ticks,
    layer_axis,
    legend_below,
    legend_label,
    log_axis,
    panels,
    plural,
    shorten,
)
from decoder2vec.report.runs import LayerScores, TrainingCurve, TrainingRun

_CORRELATION_CURVES = (
    ("raw", "pearson", "raw cosine, Pearson", COLOURS[1], "-", "s"),
    ("raw", "spearman", "raw cosine, Spearman", COLOURS[1], ":", "s"),
    ("codes", "pearson", "trained codes, Pearson", COLOURS[0], "-", "o"),
    ("codes", "spearman", "trained codes, Spearman", COLOURS[0], ":", "o"),
)
_SCORE_KINDS = (("raw", "raw cosine"), ("codes", "trained codes"))
_CURVE_TITLES = {"pretraining": "pre-training", "training after selection": "after selection"}
_MAX_COLOURS = 7
"""More encoders than this get the same colour: nobody can distinguish ten."""


@dataclass(frozen=True)
class _FigurePlan:
    """A figure that is drawn if its data is there."""

    title: str
    caption: str
    stem: str
    draw: Callable[[Any, Path], str]
    possible: bool
    reason: str
    """Why it is not possible."""

    def run(self, data: Any, file: Path) -> Figure:
        if not self.possible:
            return Figure(self.title, self.reason)
        headline = self.draw(data, file)
        return Figure(self.title, self.caption, file, headline)


def draw_overview(runs: Sequence[TrainingRun], out: Path) -> list[Figure]:
    """Draw the figures that show all runs side by side: scores, trained parameters, example pairs if there are any."""
    plans = [
        _FigurePlan(
            "Scores of all runs",
            "Bars: mean over seeds. Dots: single seeds. Lines: one standard deviation either way. In points (x 100).",
            "ladder",
            draw_scores,
            any(scored_files(runs, split) for split in ("dev", "test")),
            "no run has scores (results.json).",
        )
    ]
    if len(runs) > 1:  # of a single run it would be one dot: its page has the number
        plans.append(
            _FigurePlan(
                "Trained parameters",
                "Trained parameters as a share of the parameters of the model.",
                "parameters",
                draw_parameters,
                any(run.trained_share is not None for run in runs),
                "their number is in run.json, which none of these runs has.",
            )
        )
    if any(run.examples for run in runs):
        plans.append(
            _FigurePlan(
                "Example pairs from the paper",
                "Diamonds: human scores. Crosses: the paper's final model. Dots: the encoders of this report.",
                "examples",
                draw_examples,
                possible=True,
                reason="",
            )
        )
    return [plan.run(runs, out / f"{plan.stem}.png") for plan in plans]


def draw_run(run: TrainingRun, out: Path, stem: str) -> list[Figure]:
    """Draw the figures of one run.

    Args:
        run: The run.
        out: Folder for the figures.
        stem: How their file names begin.
    """
    no_record = "it needs the encoder's run.json, which is missing."
    mixed = "this encoder mixes its layers before texts are compared, so no layer has a score of its own."
    single = _scores_without_curve(run)
    trained = [curve for seed in run.seeds for curve in seed.curves]
    plans = (
        _FigurePlan(
            "Correlation of each layer",
            "Cosine of one layer at a time against human scores: of the raw latents, and of the trained codes.",
            "layers",
            draw_correlations,
            run.layers is not None and _has_curves(run.readings) and bool(run.layers.raw),
            single or no_record,
        ),
        _FigurePlan(
            "Reconstruction error of the autoencoders",
            "Error on held-out texts; thin lines: single seeds. The raw error depends on the scale of a layer, "
            "the share does not. Dashed: an autoencoder that always predicts the mean.",
            "autoencoders",
            draw_autoencoders,
            _has_curves(run.autoencoder_readings) and any(seed.reconstruction_error for seed in run.seeds),
            _autoencoders_without_curve(run),
        ),
        _FigurePlan(
            "Importance of each layer",
            "Lost without a layer: its cosine is replaced by the mean of the others, without training the head again.",
            "worth",
            draw_importance,
            bool(_importance_panels(run)),
            single or (mixed if run.layers is not None else no_record),
        ),
        _FigurePlan(
            "Training",
            "Loss and score at each evaluation; 0 is before training. Stars: the selected state.",
            "training",
            draw_training,
            any(_is_curve(curve.losses) or _is_curve((curve.start_score, *curve.scores)) for curve in trained),
            _training_without_curve(run),
        ),
        _FigurePlan(
            "Error distribution",
            "Score minus human score. On the right, a normal distribution would follow the dashed line.",
            "errors",
            draw_errors,
            run.errors is not None and len(run.errors.values) > 1,
            no_record,
        ),
    )
    return [plan.run(run, out / f"{stem}-{plan.stem}.png") for plan in plans]


def _has_curves(readings: Sequence[ReadingLabel]) -> bool:
    """Whether a template and pooling is read at two layers or more: a single one is a dot and no curve."""
    return any(len(members) > 1 for members in group_readings(readings).values())


def _is_curve(values: Sequence[float]) -> bool:
    return int(np.isfinite(values).sum()) > 1


def _scores_without_curve(run: TrainingRun) -> str:
    """The scores of a run that reads one layer of each template, in words; empty for other runs."""
    if not run.readings or _has_curves(run.readings) or run.layers is None:
        return ""
    parts = []
    for index, reading in enumerate(run.readings):
        parts.append(reading.text)
        for kind, name in _SCORE_KINDS:
            curves = getattr(run.layers, kind).items()
            scores = [f"{metric.capitalize()} {values[index]:.1f}" for metric, values in curves]
            parts += [f"{name}: {', '.join(scores)}"] if scores else []
    only = "only one reading" if len(run.readings) == 1 else "only one layer of each template and pooling"
    return f"this encoder has {only}: {'; '.join(parts)} (on {run.layers.data}, x 100)."


def _autoencoders_without_curve(run: TrainingRun) -> str:
    """Why the errors of the autoencoders are no curve, with the errors if there are any."""
    if not run.seeds:
        return "results.json is missing."
    errors = [
        f"{reading.text}: {value:.3g}"
        for reading, value in zip(run.autoencoder_readings, run.seeds[0].reconstruction_error, strict=False)
    ]
    return f"{'; '.join(errors)} (mean squared error)." if errors else "this run did not pre-train autoencoders."


def _training_without_curve(run: TrainingRun) -> str:
    """Why the training is no curve, with the loss of a single evaluation."""
    if not run.seeds:
        return "results.json is missing."
    losses = [f"seed {seed.seed}: {curve.losses[-1]:.4g}" for seed in run.seeds for curve in seed.curves]
    return f"one evaluation; mean loss of {', '.join(losses)}." if losses else "nothing was trained in this run."


# all runs


def seed_scores(run: TrainingRun, split: str, metric: str, files: Sequence[str] = ()) -> list[float]:
    """For each seed with this metric the mean over files.

    Args:
        run: The run.
        split: `dev` or `test`.
        metric: `spearman` or `pearson`.
        files: The files to average over; empty: all.
    """
    means = []
    for seed in run.seeds:
        by_file = {name: scores for name, scores in getattr(seed, split).items() if not files or name in files}
        values = [scores[metric] for scores in by_file.values() if metric in scores]
        means += [float(np.mean(values))] if values else []
    return means


def scored_files(runs: Sequence[TrainingRun], split: str) -> list[str]:
    """The distinct files of dev or test that the runs were scored on."""
    return list(dict.fromkeys(name for run in runs for seed in run.seeds for name in getattr(seed, split)))


def shared_files(runs: Sequence[TrainingRun], split: str) -> list[str]:
    """The files that all runs were scored on, since only those can be compared; all files if there are none."""
    scored = [names for run in runs if (names := scored_files([run], split))]
    files = scored_files(runs, split)
    return [name for name in files if all(name in names for names in scored)] or files


def draw_scores(runs: Sequence[TrainingRun], file: Path) -> str:
    """Draw the scores of all runs on dev and test as bars, with every seed and the standard deviation."""
    splits = [split for split in ("dev", "test") if scored_files(runs, split)]
    headline = _scores_headline(runs, splits)
    size = (1.6 + 3.5 * len(splits), 1.5 + 0.5 * len(runs))
    with panels(file, headline, 1, len(splits), size, with_svg=True, sharey=True) as (figure, grid):
        for axes, split in zip(grid[0], splits, strict=True):
            files = shared_files(runs, split)
            for index, metric in enumerate(METRICS):
                scores = [seed_scores(run, split, metric, files) for run in runs]
                _draw_bars(axes, scores, metric, COLOURS[index], -0.2 + 0.4 * index)
            axes.set_title(f"{split}: {shorten(files[0], 30) if len(files) == 1 else f'mean over {len(files)} files'}")
            axes.set_xlabel("correlation x 100")
            axes.axvline(0, color="black", linewidth=0.8)
            axes.grid(visible=False, axis="y")
        grid[0][0].set_yticks(range(len(runs)), [shorten(run.name, 32) for run in runs])
        grid[0][0].set_ylim(len(runs) - 0.4, -0.6)
        legend_below(figure, grid[0][0])
    return headline


def _scores_headline(runs: Sequence[TrainingRun], splits: Sequence[str]) -> str:
    """Name the best run on dev, where selections are made; its test score is only reported."""
    split = splits[0]
    means = {
        index: float(np.mean(scores))
        for index, run in enumerate(runs)
        if (scores := seed_scores(run, split, "spearman", shared_files(runs, split)))
    }
    if len(means) < 2:
        return f"Scores of {runs[0].name}" if len(runs) == 1 else "Scores of the runs"
    best = max(means, key=lambda index: np.nan_to_num(means[index], nan=-np.inf))
    headline = f"Scores of {len(runs)} runs. Highest Spearman on {split}: {runs[best].name} ({means[best]:.1f}"
    test = seed_scores(runs[best], "test", "spearman", shared_files(runs, "test")) if split == "dev" else []
    return f"{headline}; on test {np.mean(test):.1f})" if test else f"{headline})"


def _draw_bars(axes: Any, rows: Sequence[list[float]], metric: str, bar_colour: str, offset: float) -> None:
    label = metric.capitalize()
    for row, scores in enumerate(rows):
        if not scores:
            continue
        mean, y = float(np.mean(scores)), row + offset
        deviation = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
        axes.barh(y, mean, 0.36, color=bar_colour, alpha=0.55, label=label)
        label = "_"  # once in the legend is enough
        if len(scores) > 1:
            axes.errorbar(mean, y, xerr=deviation, color=bar_colour, linewidth=1.4, capsize=2.5, zorder=4)
        dots = {"color": "white", "markeredgecolor": "black", "markeredgewidth": 0.7, "markersize": 2.8}
        axes.plot(scores, [y] * len(scores), "o", zorder=5, **dots)
        text = f"{mean:.1f} ± {deviation:.1f}" if len(scores) > 1 else f"{mean:.1f}"
        axes.text(1.01, y, text, transform=axes.get_yaxis_transform(), va="center", size=7, color=bar_colour)


def draw_examples(runs: Sequence[TrainingRun], file: Path) -> str:
    """Draw the example pairs, one row each: human score, the paper's, and that of every encoder."""
    shown = [run for run in runs if run.examples]
    pairs = {(pair.text_a, pair.text_b): pair for run in shown for pair in run.examples}
    headline = f"The paper's example pairs, scored by {plural(len(shown), 'encoder')}"
    with panels(file, headline, 1, 1, (8.4, 1.6 + 0.5 * len(pairs)), with_svg=True) as (figure, grid):
        axes = grid[0][0]
        for row, pair in enumerate(pairs.values()):
            hidden = "_" if row else None  # once in the legend is enough
            axes.plot(pair.human, row, "D", color="black", markersize=8, zorder=4, label=hidden or "human")
            if pair.paper is not None:
                axes.plot(pair.paper, row, "x", color=GREY, markersize=8, mew=2.2, zorder=3, label=hidden or "paper")
        _draw_example_scores(axes, shown, list(pairs))
        names = [f"{shorten(text_a, 60)}\n{shorten(text_b, 60)}" for text_a, text_b in pairs]
        axes.set_yticks(range(len(pairs)), names, fontsize=7.5)
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.set_xlim(-0.04, 1.04)
        axes.set_xlabel("score (0 = unrelated, 1 = the same)")
        legend_below(figure, axes, columns=5)
    return headline


def _draw_example_scores(axes: Any, runs: Sequence[TrainingRun], pairs: Sequence[tuple[str, str]]) -> None:
    """Draw the scores of the encoders, shifted so that equal ones do not hide each other."""
    for index, run in enumerate(runs):
        scores = {(pair.text_a, pair.text_b): pair.score for pair in run.examples}
        rows = [row for row, pair in enumerate(pairs) if pair in scores]
        shift = 0.5 * (index / (len(runs) - 1) - 0.5) if len(runs) > 1 else 0.0
        style: dict[str, Any]
        if len(runs) < _MAX_COLOURS:
            style = {**curve_style(index), "label": legend_label(shorten(run.name, 28))}
        else:
            style = {"color": COLOURS[0], "marker": "o", "alpha": 0.5, "label": "_" if index else "an encoder"}
        axes.plot([scores[pairs[row]] for row in rows], [row + shift for row in rows], linestyle="", **style)


def draw_parameters(runs: Sequence[TrainingRun], file: Path) -> str:
    """Draw the number of trained parameters of each run, as a share of those of the model."""
    counts = [(run.name, run.trained_parameters, share) for run in runs if (share := run.trained_share) is not None]
    shares = [max(share, 1e-9) for *_, share in counts]
    headline = "Trained parameters, in % of the encoder's"
    with panels(file, headline, 1, 1, (7.2, 1.1 + 0.3 * len(counts)), with_svg=True) as (_, grid):
        axes = grid[0][0]
        axes.plot(shares, range(len(counts)), "o", color=COLOURS[0], markersize=7)
        for row, (_, count, share) in enumerate(counts):
            text = f"{count:,} = {share:,.1f} %" if share >= 1 else f"{count:,} = {share:.2g} %"
            axes.text(1.01, row, text, transform=axes.get_yaxis_transform(), va="center", size=8)
        if max(shares) > 30 * min(shares):
            log_axis(axes, "x")
        else:
            axes.set_xlim(0, 1.1 * max(shares))
        axes.set_yticks(range(len(counts)), [shorten(name, 32) for name, *_ in counts])
        axes.set_ylim(len(counts) - 0.5, -0.5)
        axes.set_xlabel("% of the encoder's parameters" + (" (log axis)" if axes.get_xscale() == "log" else ""))
    return ""  # the title of the figure says the same


# one run


def draw_correlations(run: TrainingRun, file: Path) -> str:
    """Draw how well the cosine of each layer alone correlates with human scores, raw and trained."""
    layers = _layer_scores(run)
    groups = group_readings(run.readings)
    n_columns = min(3, len(groups))
    n_rows = -(-len(groups) // n_columns)
    size = (max(7.2, 3.3 * n_columns), 1.3 + 2.7 * n_rows)
    headline = _correlation_headline(run, layers)
    options = {"with_svg": True, "sharey": True, "sharex": True}
    with panels(file, headline, n_rows, n_columns, size, **options) as (figure, grid):
        for axes in grid.flat[len(groups) :]:
            axes.set_axis_off()
        for axes, (group, members) in zip(grid.flat, groups.items(), strict=False):
            for kind, metric, name, line_colour, linestyle, marker in _CORRELATION_CURVES:
                if values := getattr(layers, kind).get(metric):
                    x, y = [run.readings[member].layer for member in members], [values[member] for member in members]
                    axes.plot(x, y, color=line_colour, linestyle=linestyle, marker=marker, label=name)
            axes.set_title(shorten(group, 46))
            layer_axis(axes, run.readings)
            axes.tick_params(labelbottom=True)
        for row in grid:
            row[0].set_ylabel(f"correlation on {shorten(layers.data, 20)} x 100")
        legend_below(figure, grid[0][0], columns=2)
    return headline


def _correlation_headline(run: TrainingRun, layers: LayerScores) -> str:
    parts = []
    for kind, name in _SCORE_KINDS:
        if values := getattr(layers, kind).get("pearson"):
            best = int(np.nanargmax(np.nan_to_num(values, nan=-np.inf)))
            parts.append(f"{name} best at layer {run.readings[best].layer} (Pearson {values[best]:.1f})")
    return f"{run.name}: {', '.join(parts)}"


def draw_autoencoders(run: TrainingRun, file: Path) -> str:
    """Draw the reconstruction error of the autoencoder of each layer, and its share of the layer's variance."""
    readings = run.autoencoder_readings
    seeds = [seed for seed in run.seeds if len(seed.reconstruction_error) == len(readings)]
    error = np.array([seed.reconstruction_error for seed in seeds])
    share = np.array([seed.unexplained for seed in seeds if seed.unexplained])
    mean_of = f", mean of {len(seeds)} seeds" if len(seeds) > 1 else ""
    headline = f"{run.name}: reconstruction error of the autoencoder of each layer{mean_of}"
    n_columns = 2 if share.size else 1
    with panels(file, headline, 1, n_columns, (3.7 * n_columns + 0.2, 3.7), with_svg=True) as (figure, grid):
        raw_axes = grid[0][0]
        _draw_groups(raw_axes, readings, np.where(error > 0, error, np.nan))
        log_axis(raw_axes, "y")
        raw_axes.set_title("raw error")
        raw_axes.set_ylabel("mean squared error (log axis)")
        if share.size:
            share_axes = grid[0][1]
            _draw_groups(share_axes, readings, share)
            share_axes.axhline(1, color=GREY, linewidth=1, linestyle="--")
            share_axes.set_ylim(0, 1.1 * float(share[np.isfinite(share)].max(initial=1.0)))
            share_axes.set_title("not explained")
            share_axes.set_ylabel("share of variance (1 - R²)")
        if len(group_readings(readings)) > 1:
            legend_below(figure, raw_axes, columns=2)
    return headline


def draw_importance(run: TrainingRun, file: Path) -> str:
    """Draw the score of each layer's codes alone, the loss without them, and their weights in the sum."""
    layers = _layer_scores(run)
    importance = _importance_panels(run)
    headline = f"{run.name}: importance of each layer on {layers.data}"
    if layers.all_readings is not None:
        headline += f"; all together: Pearson {layers.all_readings:.1f}"
    size = (max(4.6, 3.2 * len(importance)), 3.6)
    with panels(file, headline, 1, len(importance), size, with_svg=True) as (figure, grid):
        for axes, panel in zip(grid[0], importance, strict=True):
            _draw_groups(axes, run.readings, np.array([panel.values]))
            if panel.baseline is not None:
                axes.axhline(panel.baseline, color=GREY, linewidth=1, linestyle="--")
            axes.set_title(panel.title)
            axes.set_ylabel(panel.label)
        if len(group_readings(run.readings)) > 1:
            legend_below(figure, grid[0][0], columns=2)
    return headline


class _ImportancePanel(NamedTuple):
    title: str
    label: str
    values: Sequence[float]
    baseline: float | None
    """Where the dashed line is."""


def _importance_panels(run: TrainingRun) -> list[_ImportancePanel]:
    """The panels that there are values for."""
    layers = run.layers
    if layers is None or not _has_curves(run.readings):
        return []
    importance = []
    if codes := layers.codes.get("pearson"):
        importance.append(
            _ImportancePanel("codes alone; dashed: all layers", "Pearson x 100", codes, layers.all_readings)
        )
    if layers.without and layers.all_readings is not None:
        lost = [layers.all_readings - value for value in layers.without]
        importance.append(_ImportancePanel("lost without the layer", "points of Pearson", lost, 0.0))
    if layers.weights and run.head == "sum":
        equal = 1 / len(layers.weights)
        importance.append(_ImportancePanel("weight; dashed: all equal", "weight in the sum", layers.weights, equal))
    return importance


def _layer_scores(run: TrainingRun) -> LayerScores:
    assert run.layers is not None
    return run.layers


def _draw_groups(axes: Any, readings: Sequence[ReadingLabel], values: Any) -> None:
    """Draw one curve for each group: the mean over seeds of [seeds, readings], with a thin line for each seed."""
    for index, (group, members) in enumerate(group_readings(readings).items()):
        layers = [readings[member].layer for member in members]
        if len(values) > 1:
            for row in values:
                axes.plot(layers, row[members], color=colour(index), linewidth=0.7, alpha=0.45)
        axes.plot(layers, values[:, members].mean(axis=0), **curve_style(index), label=shorten(group))
    layer_axis(axes, readings)


def draw_training(run: TrainingRun, file: Path) -> str:
    """Draw loss and score at every evaluation, one row of panels for each stage and one colour for each seed."""
    names = list(dict.fromkeys(curve.name for seed in run.seeds for curve in seed.curves))
    headline = f"{run.name}: training with {plural(len(run.seeds), 'seed')}"
    with panels(file, headline, len(names), 2, (7.4, 1.1 + 2.3 * len(names)), with_svg=True) as (figure, grid):
        for row, name in zip(grid, names, strict=True):
            curves = {
                index: curve for index, seed in enumerate(run.seeds) for curve in seed.curves if curve.name == name
            }
            if any(_is_curve(curve.losses) for curve in curves.values()):
                _draw_losses(row[0], curves)
            else:
                _write_losses(row[0], [curve.losses[-1] for curve in curves.values()])
            _draw_dev_scores(row[1], curves, [f"seed {seed.seed}" for seed in run.seeds])
        legend_below(figure, grid[0][1], columns=8)
    return headline


def _draw_losses(axes: Any, curves: Mapping[int, TrainingCurve]) -> None:
    """Draw the losses of seeds, by the index of the seed."""
    for index, curve in curves.items():
        axes.plot(range(1, len(curve.losses) + 1), curve.losses, color=colour(index), marker=".")
        axes.set_title(f"{_curve_title(curve)}: loss")
        axes.set_xlabel(_evaluation_label(curve))
    axes.set_ylabel("mean training loss")
    integer_ticks(axes.xaxis)


def _write_losses(axes: Any, losses: Sequence[float]) -> None:
    """Write the loss of a single evaluation instead of drawing a dot for each seed."""
    axes.set_axis_off()
    text = f"one evaluation\nmean loss {', '.join(f'{loss:.4g}' for loss in losses)}"
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")


def _draw_dev_scores(axes: Any, curves: Mapping[int, TrainingCurve], labels: Sequence[str]) -> None:
    """Draw the values by which the states of seeds were selected, by the index of the seed."""
    for index, curve in curves.items():
        scores = np.array([curve.start_score, *curve.scores]) * (-1 if curve.lower_is_better else 1)
        values = np.where(np.isfinite(scores), scores, np.nan)
        axes.plot(range(len(values)), values, color=colour(index), marker=".", label=labels[index])
        if 0 <= curve.best + 1 < len(scores):
            axes.plot(curve.best + 1, scores[curve.best + 1], "*", color=colour(index), markersize=11)
        axes.set_title(f"{_curve_title(curve)}: {'held-out loss' if curve.lower_is_better else 'score'}")
        axes.set_xlabel(_evaluation_label(curve))
        axes.set_ylabel(curve.metric)
    integer_ticks(axes.xaxis)


def _curve_title(curve: TrainingCurve) -> str:
    return f"{_CURVE_TITLES.get(curve.name, curve.name)}, {curve.stage}"


def _evaluation_label(curve: TrainingCurve) -> str:
    return f"evaluation (every {curve.evaluate_every} steps)" if curve.evaluate_every else "epoch"


def draw_errors(run: TrainingRun, file: Path) -> str:
    """Draw the distribution of the errors, and its quantiles against those of a normal distribution."""
    assert run.errors is not None
    errors = np.array(run.errors.values)
    mean, deviation = float(errors.mean()), float(errors.std())
    direction = f"{abs(mean):.2f} too {'high' if mean > 0 else 'low'}" if abs(mean) >= 0.005 else "right"
    headline = (
        f"{run.name} on {run.errors.data}: the score is {direction} on average, with a standard deviation of "
        f"{deviation:.2f}"
    )
    with panels(file, headline, 1, 2, (7.4, 3.6), with_svg=True) as (_, grid):
        _draw_histogram(grid[0][0], errors, mean, deviation)
        _draw_quantiles(grid[0][1], errors, mean, deviation)
    return headline


def _draw_histogram(axes: Any, errors: Any, mean: float, deviation: float) -> None:
    from scipy.stats import norm

    bins = int(np.clip(np.sqrt(len(errors)) * 1.5, 5, 40))
    _, edges, _ = axes.hist(errors, bins=bins, color=COLOURS[5], edgecolor="white", linewidth=0.4)
    if deviation > 0:
        x = np.linspace(edges[0], edges[-1], 200)
        axes.plot(x, len(errors) * (edges[1] - edges[0]) * norm.pdf(x, mean, deviation), color=COLOURS[1])
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_title(f"{len(errors):,} errors; line: normal")
    axes.set_xlabel("score - human score (both from 0 to 1)")
    axes.set_ylabel("pairs")


def _draw_quantiles(axes: Any, errors: Any, mean: float, deviation: float) -> None:
    from scipy.stats import norm

    expected = norm.ppf((np.arange(len(errors)) + 0.5) / len(errors))
    quantiles = (np.sort(errors) - mean) / (deviation or 1.0)
    # thousands of points: as pixels, in a colour that suits both themes since the page cannot change it
    axes.plot(expected, quantiles, "o", color=COLOURS[5], markersize=3, rasterized=True)
    axes.plot(expected[[0, -1]], expected[[0, -1]], color=GREY, linewidth=1, linestyle="--")
    excess_kurtosis = float((quantiles**4).mean() - 3) if deviation > 0 else 0.0
    heavier = "heavier than" if excess_kurtosis > 0 else "lighter than"
    tails = "about as heavy as" if abs(excess_kurtosis) < 0.5 else heavier
    axes.set_title(f"Q-Q: tails {tails} normal")
    axes.set_xlabel("normal quantile (standard deviations)")
    axes.set_ylabel("error quantile (standard deviations)")
