"""Figures of one run over the layers: correlations, the loss of the autoencoders, what each layer is worth."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.maths.metrics import METRICS
from decoder2vec.report.figures import (
    COLOURS,
    MARKERS,
    QUIET,
    Place,
    curve_name,
    groups,
    layer_axis,
    legend_below,
    log_axis,
    panels,
    short,
    whole_numbers,
)
from decoder2vec.report.runs import History, Layers, Run

_CURVES = (
    ("raw", "pearson", "raw cosine, Pearson", COLOURS[1], "-", "s"),
    ("raw", "spearman", "raw cosine, Spearman", COLOURS[1], ":", "s"),
    ("codes", "pearson", "trained codes, Pearson", COLOURS[0], "-", "o"),
    ("codes", "spearman", "trained codes, Spearman", COLOURS[0], ":", "o"),
)


def draw_correlations(run: Run, file: Path) -> None:
    """How well the cosine of each layer alone follows human scores, raw and trained."""
    layers = _layers_of(run)
    found = groups(run.readings)
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    size = (max(7.2, 3.3 * columns), 1.3 + 2.7 * rows)
    with panels(file, _correlation_title(run, layers), rows, columns, size, sharey=True, sharex=True) as (figure, grid):
        for axes in grid.flat[len(found) :]:
            axes.set_axis_off()
        for axes, (group, numbers) in zip(grid.flat, found.items(), strict=False):
            for kind, metric, name, colour, style, marker in _CURVES:
                if values := getattr(layers, kind).get(metric):
                    x, y = [run.readings[n].layer for n in numbers], [values[n] for n in numbers]
                    axes.plot(x, y, color=colour, linestyle=style, marker=marker, label=name)
            axes.set_title(short(group, 46))
            layer_axis(axes, run.readings)
            axes.tick_params(labelbottom=True)
        for row in grid:
            row[0].set_ylabel(f"correlation on {short(layers.data, 20)} x 100")
        legend_below(figure, grid[0][0], columns=2)


def _correlation_title(run: Run, layers: Layers) -> str:
    said = []
    for kind, words in (("raw", "raw cosine"), ("codes", "trained codes")):
        if values := getattr(layers, kind).get("pearson"):
            best = int(np.nanargmax(np.nan_to_num(values, nan=-np.inf)))
            said.append(f"{words} best at layer {run.readings[best].layer} (Pearson {values[best]:.1f})")
    return f"{run.name}: {', '.join(said)}"


def draw_autoencoders(run: Run, file: Path) -> None:
    """What the autoencoders lose in each layer, in the latents' own units and as a share of their variance."""
    seeds = [seed for seed in run.seeds if len(seed.error) == len(run.pretrained)]
    error = np.array([seed.error for seed in seeds])
    share = np.array([seed.unexplained for seed in seeds if seed.unexplained])
    seeds_said = f", mean of {len(seeds)} seeds" if len(seeds) > 1 else ""
    title = f"{run.name}: what the autoencoders lose in each layer{seeds_said}"
    columns = 2 if share.size else 1
    with panels(file, title, 1, columns, (3.7 * columns + 0.2, 3.7)) as (figure, grid):
        raw = grid[0][0]
        _curves(raw, run.pretrained, np.where(error > 0, error, np.nan))
        log_axis(raw, "y")
        raw.set_title("raw error")
        raw.set_ylabel("mean squared error (log axis)")
        if share.size:
            part = grid[0][1]
            _curves(part, run.pretrained, share)
            part.axhline(1, color=QUIET, linewidth=1, linestyle="--")
            part.set_ylim(0, 1.1 * float(share[np.isfinite(share)].max(initial=1.0)))
            part.set_title("not explained")
            part.set_ylabel("share of variance (1 - R²)")
        if len(groups(run.pretrained)) > 1:
            legend_below(figure, raw, columns=2)


def draw_worth(run: Run, file: Path) -> None:
    """What each layer's codes score alone, what is lost without them, and their weights in the sum."""
    layers = _layers_of(run)
    parts = worth_parts(run)
    about = f"{run.name}: what each layer is worth on {layers.data}"
    if layers.everything is not None:
        about += f"; all together: Pearson {layers.everything:.1f}"
    with panels(file, about, 1, len(parts), (max(4.6, 3.2 * len(parts)), 3.6)) as (figure, grid):
        for axes, (title, label, values, line) in zip(grid[0], parts, strict=True):
            _curves(axes, run.readings, np.array([values]))
            if line is not None:
                axes.axhline(line, color=QUIET, linewidth=1, linestyle="--")
            axes.set_title(title)
            axes.set_ylabel(label)
        if len(groups(run.readings)) > 1:
            legend_below(figure, grid[0][0], columns=2)


def worth_parts(run: Run) -> list[tuple[str, str, Sequence[float], float | None]]:
    """Title, axis label, values and dashed line of each panel there are numbers for."""
    layers = run.layers
    if layers is None or len(run.readings) < 2:
        return []
    found: list[tuple[str, str, Sequence[float], float | None]] = []
    if codes := layers.codes.get("pearson"):
        found.append(("codes alone; dashed: all layers", "Pearson x 100", codes, layers.everything))
    if layers.without and layers.everything is not None:
        lost = [layers.everything - value for value in layers.without]
        found.append(("lost without the layer", "points of Pearson", lost, 0.0))
    if layers.weights and run.head == "sum":
        found.append(("weight; dashed: all equal", "weight in the sum", layers.weights, 1 / len(layers.weights)))
    return found


def _layers_of(run: Run) -> Layers:
    assert run.layers is not None
    return run.layers


def _curves(axes: Any, places: Sequence[Place], values: Any) -> None:
    """One curve for each group: the mean over rows of [seed, reading], with a thin line for each row."""
    for number, (group, members) in enumerate(groups(places).items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        layers = [places[member].layer for member in members]
        if len(values) > 1:
            for row in values:
                axes.plot(layers, row[members], color=colour, linewidth=0.7, alpha=0.45)
        mean = values[:, members].mean(axis=0)
        axes.plot(layers, mean, color=colour, marker=marker, label=short(group))
    layer_axis(axes, places)


_SCORES = {"autoencoders": "error on held-out texts", "inference": "held-out accuracy in %"}
_NAMES = {"training": "human scores", "training after selection": "after selection"}


def draw_training(run: Run, file: Path) -> None:
    """Loss and score of every epoch, one row of panels for each stage and one colour for each seed."""
    stages = list(dict.fromkeys(history.name for seed in run.seeds for history in seed.histories))
    title = f"{run.name}: training by {len(run.seeds)} seed{'s' * (len(run.seeds) > 1)}"
    with panels(file, title, len(stages), 2, (7.4, 1.1 + 2.3 * len(stages))) as (figure, grid):
        for row, stage in zip(grid, stages, strict=True):
            for number, seed in enumerate(run.seeds):
                for history in seed.histories:
                    if history.name == stage:
                        _history(row, history, COLOURS[number % len(COLOURS)], f"seed {seed.number}", run.metric)
            for axes in row:
                axes.set_xlabel("epoch")
                whole_numbers(axes.xaxis)
        legend_below(figure, grid[0][0], columns=8)


def _history(row: Sequence[Any], history: History, colour: str, label: str, metric: str) -> None:
    what = _NAMES.get(history.name, f"pre-training, {history.stage}")
    epochs = range(1, len(history.losses) + 1)
    row[0].plot(epochs, history.losses, color=colour, marker=".", label=label)
    row[0].set_title(f"{what}: loss")
    row[0].set_ylabel("mean training loss")
    sign = -1 if history.stage == "autoencoders" else 1  # the loop maximises, people read an error
    scores = sign * np.array([history.start, *history.scores])
    row[1].plot(range(len(scores)), np.where(np.isfinite(scores), scores, np.nan), color=colour, marker=".")
    if 0 <= history.best + 1 < len(scores):
        row[1].plot(history.best + 1, scores[history.best + 1], "*", color=colour, markersize=11)
    row[1].set_title(f"{what}: {'error' if sign < 0 else 'score'}")
    row[1].set_ylabel(_SCORES.get(history.stage, f"{metric.capitalize()} on dev x 100"))


def draw_errors(run: Run, file: Path) -> None:
    """The distribution of the errors, and its quantiles against those of a normal one."""
    assert run.errors is not None
    errors = np.array(run.errors.values)
    mean, deviation = float(errors.mean()), float(errors.std())
    title = f"{run.name} on {run.errors.data}: the score is {_leaning(mean)}, give or take {deviation:.2f}"
    with panels(file, title, 1, 2, (7.4, 3.6)) as (_, grid):
        _histogram(grid[0][0], errors, mean, deviation)
        _quantiles(grid[0][1], errors, mean, deviation)


def _leaning(mean: float) -> str:
    return (
        f"{abs(mean):.2f} too {'high' if mean > 0 else 'low'} on average" if abs(mean) >= 0.005 else "right on average"
    )


def _histogram(axes: Any, errors: Any, mean: float, deviation: float) -> None:
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


def _quantiles(axes: Any, errors: Any, mean: float, deviation: float) -> None:
    from scipy.stats import norm

    expected = norm.ppf((np.arange(len(errors)) + 0.5) / len(errors))
    found = (np.sort(errors) - mean) / (deviation or 1.0)
    axes.plot(expected, found, "o", color=COLOURS[0], markersize=3, rasterized=True)
    axes.plot(expected[[0, -1]], expected[[0, -1]], color=QUIET, linewidth=1, linestyle="--")
    excess = float((found**4).mean() - 3) if deviation > 0 else 0.0
    tails = "about as heavy as" if abs(excess) < 0.5 else "heavier than" if excess > 0 else "lighter than"
    axes.set_title(f"Q-Q: tails {tails} normal")
    axes.set_xlabel("normal quantile (standard deviations)")
    axes.set_ylabel("error quantile (standard deviations)")


_COLOURED = 7
"""More encoders than these are drawn alike: nobody tells ten colours apart."""


def seed_scores(run: Run, part: str, metric: str, files: Sequence[str] = ()) -> list[float]:
    """For each seed the mean over the files of dev or test (or over some of them), where they have that metric."""
    found = []
    for seed in run.seeds:
        chosen = {name: scores for name, scores in getattr(seed, part).items() if not files or name in files}
        values = [scores[metric] for scores in chosen.values() if metric in scores]
        found += [float(np.mean(values))] if values else []
    return found


def part_files(runs: Sequence[Run], part: str) -> list[str]:
    """The different files the runs were scored on."""
    return list(dict.fromkeys(name for run in runs for seed in run.seeds for name in getattr(seed, part)))


def shared_files(runs: Sequence[Run], part: str) -> list[str]:
    """The files that all runs were scored on, since only those can be compared; if there are none, all files."""
    scored = [names for run in runs if (names := part_files([run], part))]
    every = part_files(runs, part)
    return [name for name in every if all(name in names for names in scored)] or every


def draw_ladder(runs: Sequence[Run], file: Path) -> None:
    """Scores of all runs on dev and test as bars, with every seed and the spread."""
    parts = [part for part in ("dev", "test") if part_files(runs, part)]
    size = (1.6 + 3.5 * len(parts), 1.5 + 0.5 * len(runs))
    with panels(file, _best_said(runs, parts), 1, len(parts), size, sharey=True) as (figure, grid):
        for axes, part in zip(grid[0], parts, strict=True):
            files = shared_files(runs, part)
            for number, metric in enumerate(METRICS):
                scores = [seed_scores(run, part, metric, files) for run in runs]
                _bars(axes, scores, metric, COLOURS[number], -0.2 + 0.4 * number)
            axes.set_title(f"{part}: {short(files[0], 30) if len(files) == 1 else f'mean over {len(files)} files'}")
            axes.set_xlabel("correlation x 100")
            axes.axvline(0, color="black", linewidth=0.8)
            axes.grid(visible=False, axis="y")
        grid[0][0].set_yticks(range(len(runs)), [short(run.name, 32) for run in runs])
        grid[0][0].set_ylim(len(runs) - 0.4, -0.6)
        legend_below(figure, grid[0][0])


def _best_said(runs: Sequence[Run], parts: Sequence[str]) -> str:
    """The best run by dev, where choices are made; its test score is only reported."""
    chosen = parts[0]
    means = {
        number: float(np.mean(found))
        for number, run in enumerate(runs)
        if (found := seed_scores(run, chosen, "spearman", shared_files(runs, chosen)))
    }
    if len(means) < 2:
        return f"Scores of {runs[0].name}" if len(runs) == 1 else "Scores of the runs"
    number = max(means, key=lambda number: np.nan_to_num(means[number], nan=-np.inf))
    best = runs[number]
    said = f"Scores of {len(runs)} runs. Highest Spearman on {chosen}: {best.name} ({means[number]:.1f}"
    test = seed_scores(best, "test", "spearman", shared_files(runs, "test")) if chosen == "dev" else []
    return f"{said}; on test {np.mean(test):.1f})" if test else f"{said})"


def _bars(axes: Any, rows: Sequence[list[float]], metric: str, colour: str, offset: float) -> None:
    label = metric.capitalize()
    for row, scores in enumerate(rows):
        if not scores:
            continue
        mean, place = float(np.mean(scores)), row + offset
        spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
        axes.barh(place, mean, 0.36, color=colour, alpha=0.55, label=label)
        label = "_"  # once in the legend is enough
        if len(scores) > 1:
            axes.errorbar(mean, place, xerr=spread, color=colour, linewidth=1.4, capsize=2.5, zorder=4)
        dots = {"color": "white", "markeredgecolor": "black", "markeredgewidth": 0.7, "markersize": 2.8}
        axes.plot(scores, [place] * len(scores), "o", zorder=5, **dots)
        words = f"{mean:.1f} ± {spread:.1f}" if len(scores) > 1 else f"{mean:.1f}"
        axes.text(1.01, place, words, transform=axes.get_yaxis_transform(), va="center", size=7, color=colour)


def draw_parameters(runs: Sequence[Run], file: Path) -> None:
    """How many numbers each run trained, as a share of the frozen model's."""
    shown = [(run, 100 * run.trained / run.frozen) for run in runs if run.trained is not None and run.frozen]
    values = [max(share, 1e-9) for _, share in shown]
    with panels(file, "Numbers trained, in % of the frozen model's", 1, 1, (7.2, 1.1 + 0.3 * len(shown))) as (_, grid):
        axes = grid[0][0]
        axes.plot(values, range(len(shown)), "o", color=COLOURS[0], markersize=7)
        for row, (run, share) in enumerate(shown):
            words = f"{run.trained:,} = {share:,.1f} %" if share >= 1 else f"{run.trained:,} = {share:.2g} %"
            axes.text(1.01, row, words, transform=axes.get_yaxis_transform(), va="center", size=8)
        if max(values) > 30 * min(values):
            log_axis(axes, "x")
        else:
            axes.set_xlim(0, 1.1 * max(values))
        axes.set_yticks(range(len(shown)), [short(run.name, 32) for run, _ in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel("% of the frozen model's parameters" + (" (log axis)" if axes.get_xscale() == "log" else ""))


def draw_examples(runs: Sequence[Run], file: Path) -> None:
    """The example pairs, one row each: human score, the paper's, and that of every encoder."""
    shown = [run for run in runs if run.examples]
    pairs = list(dict.fromkeys((pair.left, pair.right) for run in shown for pair in run.examples))
    known = {(pair.left, pair.right): pair for run in shown for pair in run.examples}
    title = f"The paper's examples by {len(shown)} encoder{'s' * (len(shown) > 1)}"
    with panels(file, title, 1, 1, (8.4, 1.6 + 0.5 * len(pairs))) as (figure, grid):
        axes = grid[0][0]
        for row, pair in enumerate(pairs):
            label = "_" if row else None
            truth, paper = known[pair].truth, known[pair].paper
            axes.plot(truth, row, "D", color="black", markersize=8, zorder=4, label=label or "people")
            if paper is not None:
                axes.plot(paper, row, "x", color=QUIET, markersize=8, mew=2.2, zorder=3, label=label or "the paper")
        _dots(axes, shown, pairs)
        names = [f"{short(left, 60)}\n{short(right, 60)}" for left, right in pairs]
        axes.set_yticks(range(len(pairs)), names, fontsize=7.5)
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.set_xlim(-0.04, 1.04)
        axes.set_xlabel("score (0 = unrelated, 1 = the same)")
        legend_below(figure, axes, columns=5)


def _dots(axes: Any, runs: Sequence[Run], pairs: Sequence[tuple[str, str]]) -> None:
    """The scores of the encoders, a little apart from each other so that equal ones do not hide one another."""
    for number, run in enumerate(runs):
        scores = {(pair.left, pair.right): pair.score for pair in run.examples}
        rows = [row for row, pair in enumerate(pairs) if pair in scores]
        shift = 0.5 * (number / (len(runs) - 1) - 0.5) if len(runs) > 1 else 0.0
        look = {"color": COLOURS[0], "marker": "o", "alpha": 0.5, "label": "_" if number else "an encoder"}
        if len(runs) < _COLOURED:
            look = {"color": COLOURS[number], "marker": MARKERS[number], "label": curve_name(short(run.name, 28))}
        axes.plot([scores[pairs[row]] for row in rows], [row + shift for row in rows], linestyle="", **look)


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
