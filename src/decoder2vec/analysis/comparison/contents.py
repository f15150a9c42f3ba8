"""All that a comparison shows: computed and drawn once, written as a page and as markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from decoder2vec.analysis.comparison.differences import Differences
from decoder2vec.analysis.comparison.dimension_figure import draw_dimensions
from decoder2vec.analysis.comparison.gather import Found
from decoder2vec.analysis.comparison.quality_figures import draw_cost, draw_tasks, known_costs
from decoder2vec.analysis.comparison.standings import Standing, standings, without_tuning
from decoder2vec.analysis.comparison.sweep_figures import draw_depths, draw_heat_map, draw_layers
from decoder2vec.analysis.comparison.sweep_file import SavedSweep
from decoder2vec.analysis.drawing import labels
from decoder2vec.analysis.report.figures import Picture, file_stems
from decoder2vec.analysis.sweep_plot import describe

_LONGEST = 60
"""Letters of a name that a table can take."""
Watch = Callable[[str], object]


@dataclass
class Contents:
    """The leaderboard, the differences between its lines, and the figures of each part."""

    found: Found
    rows: list[Standing]
    differences: Differences
    cut: dict[str, str]
    """Whole names of the encoders whose names were too long."""
    tasks: list[Picture] = field(default_factory=list)
    cost: list[Picture] = field(default_factory=list)
    layers: list[Picture] = field(default_factory=list)
    dimensions: list[Picture] = field(default_factory=list)


def fill_contents(found: Found, out: Path, watch: Watch) -> Contents:
    """Compute and draw everything that was found; `watch` hears of each finished part."""
    evaluations, dropped = without_tuning(found.evaluations)
    if dropped:
        found.left_out.append(f"Files one chooses on say nothing about others: {', '.join(dropped)}.")
    named = labels([one.name for one in evaluations], _LONGEST)
    pairs = list(zip(evaluations, named, strict=True))
    rows = standings([replace(one, name=name) for one, name in pairs])
    cut = {name: one.name for one, name in pairs if name != one.name}
    contents = Contents(found, rows, Differences([row.evaluation for row in rows], watch), cut)
    if any(row.overall.of for row in rows):
        contents.tasks = [_tasks(rows, out)]
        contents.cost = [_cost(rows, out)]
        watch("scores")
    for sweep, stem in zip(found.sweeps, file_stems([one.name for one in found.sweeps]), strict=True):
        contents.layers += _sweep(sweep, out, stem)
        watch(sweep.name)
    if len(found.sweeps) > 1:
        draw_depths(found.sweeps, out / "sweeps.png")
        about = "Curves of different models over the same depth; scores on different files cannot be compared."
        contents.layers.insert(0, Picture("Models over their depth", about, out / "sweeps.png"))
    if found.dimensions:
        draw_dimensions(found.dimensions, out / "dimension.png")
        about = "How many directions the vectors of a layer really use, by two estimates."
        contents.dimensions = [Picture("Intrinsic dimension", about, out / "dimension.png")]
        watch("intrinsic dimension")
    return contents


def _tasks(rows: Sequence[Standing], out: Path) -> Picture:
    draw_tasks(rows, out / "tasks.png")
    about = "Dots: scores, the best of a task in the second colour. Bars: 95 % intervals. From the best mean down."
    return Picture("Every task", about, out / "tasks.png")


def _cost(rows: Sequence[Standing], out: Path) -> Picture:
    if len(rows) < 2 or not known_costs(rows):
        why = "no evaluation here says what its encoder costs." if len(rows) > 1 else "it takes two encoders."
        return Picture("Quality against cost", why)
    draw_cost(rows, out / "cost.png")
    about = (
        "The line joins the encoders that no other beats without costing more (the Pareto front). Numbers: places on "
        "the leaderboard. Hollow: tasks are missing, so it takes no part."
    )
    return Picture("Quality against cost", about, out / "cost.png")


def _sweep(sweep: SavedSweep, out: Path, stem: str) -> list[Picture]:
    curves, heat = out / f"layers-{stem}.png", out / f"sweep-{stem}.png"
    draw_layers(sweep, curves)
    draw_heat_map(sweep, heat)
    best = f"Star: the best, {describe(sweep.rows[0])}, {sweep.rows[0].spearman:.1f} on {sweep.data or 'its data'}."
    return [
        Picture(f"{sweep.name}: layer by layer", f"Each prompt and direction by its best pooling. {best}", curves),
        Picture(f"{sweep.name}: heat map", "Spearman x 100 of every pooling and head at every layer.", heat),
    ]
