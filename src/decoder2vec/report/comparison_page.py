"""The comparison of evaluations, sweeps and intrinsic dimensions: computed once, written as a page and as Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from decoder2vec.maths.bootstrap import SAMPLES
from decoder2vec.progress import current_progress
from decoder2vec.report.analysis_figures import draw_dimension_comparison
from decoder2vec.report.changes import (
    Change,
    change_table,
    changes_section,
    describe_change,
    describe_format,
    draw_changes,
    format_section,
)
from decoder2vec.report.differences import COMPARING, Differences
from decoder2vec.report.figures import Figure, file_stems, plural, unique_labels
from decoder2vec.report.html import (
    Cell,
    Html,
    Section,
    Table,
    bullets,
    code,
    figure,
    folded,
    join,
    made_by,
    output_file,
    page,
    paragraph,
    subsection,
    table,
)
from decoder2vec.report.leaderboard import (
    FLAG,
    MAX_COMPARED,
    best_against_others,
    data_warnings,
    difference_tables,
    front_sentences,
    headlines,
    leaderboard,
    score_warnings,
    task_tables,
)
from decoder2vec.report.quality_figures import draw_cost, draw_tasks
from decoder2vec.report.ranking import RankedEncoder, drop_tuning_sets, known_costs, rank_encoders, tasks_by_family
from decoder2vec.report.result_files import ReportInputs, SavedSweep
from decoder2vec.report.run_page import PAGE, training_section
from decoder2vec.report.runs import TrainingRun
from decoder2vec.report.sweep_figures import describe_sweep_row, draw_depths, draw_heat_map, draw_layers
from decoder2vec.report.training_figures import draw_overview, draw_run
from decoder2vec.report.trajectory import (
    TrajectoryResult,
    describe_trajectory,
    draw_trajectory,
    trajectory_section,
    trajectory_table,
)
from decoder2vec.storage import write_json

MARKDOWN = "report.md"
CHANGES = "changes.json"
_DRAWING = "drawing"
"""A phase of progress."""
_MAX_NAME = 60
"""Characters of a name that fit into a table."""
_MAX_DRAWN_RUNS = 3
"""With more training runs than this, only the overview is shown."""
_LEGEND = (
    "Bold: the best. ≈: no significant difference from the best. Italic: tasks are missing, so the mean is not ranked. "
    f"“front”: no other encoder is better without costing more. {FLAG}: read with care, see below."
)
_METHOD = (
    f"Paired bootstrap: the items of each task (pairs, queries, few-shot draws or subsets) are resampled {SAMPLES:,} "
    "times with replacement, with the same sample for both encoders, and both are scored again. A difference is "
    "significant if 95 % of the resampled differences lie on one side of 0. It predicts results on other items of the "
    "same kind, not on other tasks. Of twenty comparisons between equal encoders one is expected to look significant."
)


@dataclass
class Comparison:
    """The leaderboard, the differences between its rows, and the figures of each section."""

    inputs: ReportInputs
    rows: list[RankedEncoder]
    differences: Differences
    full_names: dict[str, str]
    """Of the encoders whose names were cut, by the cut name."""
    tasks: list[Figure] = field(default_factory=list)
    cost: list[Figure] = field(default_factory=list)
    layers: list[Figure] = field(default_factory=list)
    dimensions: list[Figure] = field(default_factory=list)
    changes: Sequence[Change] = ()
    """From the first encoder to each of the others."""
    formats: Sequence[Change] = ()
    """From an encoder without an instruction to the same with it."""
    change_figure: Figure | None = None
    trajectories: list[tuple[TrajectoryResult, list[Figure]]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What is compared."""
        if self.rows:
            n_encoders = len(self.rows)
            return f"Comparison of {n_encoders} encoders" if n_encoders > 1 else f"Evaluation of {self.rows[0].name}"
        if self.trajectories:
            return f"Trajectory of {self.trajectories[0][0].model}"
        return f"Sweep of {self.inputs.sweeps[0].model}" if len(self.inputs.sweeps) == 1 else "Analysis of layers"

    @property
    def families(self) -> dict[str, list[str]]:
        """The tasks of each family."""
        return tasks_by_family([row.evaluation for row in self.rows])


def write_comparison(
    inputs: ReportInputs,
    runs: Sequence[TrainingRun],
    out: Path,
    *,
    changes: Sequence[Change] = (),
    formats: Sequence[Change] = (),
    command: str = "",
) -> Path:
    """Compare and draw all inputs, write the page and the same as Markdown, and return the path of the page.

    Args:
        inputs: Evaluations, sweeps and intrinsic dimensions.
        runs: Training runs, for a section of the page.
        out: Folder for the page, its Markdown, the figures, and `changes.json` if there are changes.
        changes: What changed from the first encoder to each of the others, for a section of the page.
        formats: What an instruction changes, for each encoder that was scored with one.
        command: The command that makes the page, for its footer.

    Raises:
        StorageError: The folder cannot be written.
    """
    with output_file(out / PAGE) as html_file, output_file(out / MARKDOWN) as markdown_file:
        comparison = build_comparison(inputs, out)
        if changes:
            comparison.changes, comparison.formats = changes, formats
            comparison.change_figure = draw_changes(changes, out / "changes.png")
            write_json(out / CHANGES, _changes_document(comparison, command), allow_nan=False)
        training = _draw_training(runs, out)
        html_file.write_text(comparison_page(comparison, training, command), encoding="utf-8")
        markdown = comparison_markdown(comparison).encode("utf-8", "replace")
        markdown_file.write_bytes(markdown)
    return out / PAGE


def _changes_document(comparison: Comparison, command: str) -> dict[str, Any]:
    return {
        "changes": [change.to_json() for change in comparison.changes],
        "formats": [change.to_json() for change in comparison.formats],
        "command": command,
    }


def build_comparison(inputs: ReportInputs, out: Path) -> Comparison:
    """Compute and draw everything that the page shows.

    Args:
        inputs: Evaluations, sweeps and intrinsic dimensions.
        out: Folder for the figures.
    """
    evaluations, tuning_sets = drop_tuning_sets(inputs.evaluations)
    if tuning_sets:
        inputs.skipped.append(f"Tuning sets are not part of the means: {', '.join(tuning_sets)}.")
    n_tasks = sum(map(len, tasks_by_family(evaluations).values()))
    progress = current_progress()
    progress.expect(COMPARING, n_tasks)
    progress.expect(_DRAWING, bool(n_tasks) + len(inputs.sweeps) + bool(inputs.dimensions))
    names = unique_labels([evaluation.name for evaluation in evaluations], _MAX_NAME)
    named = [replace(evaluation, name=name) for evaluation, name in zip(evaluations, names, strict=True)]
    full_names = {new.name: old.name for new, old in zip(named, evaluations, strict=True) if new.name != old.name}
    rows = rank_encoders(named)
    comparison = Comparison(inputs, rows, Differences([row.evaluation for row in rows]), full_names)
    results = [TrajectoryResult.load(file) for file in inputs.trajectories]
    with progress.phase(_DRAWING):
        _draw(comparison, out)
        stems = file_stems([f"trajectory {result.model}" for result in results])
        comparison.trajectories = [
            (result, draw_trajectory(result, out, stem)) for result, stem in zip(results, stems, strict=True)
        ]
    return comparison


def _draw(comparison: Comparison, out: Path) -> None:
    inputs, rows, progress = comparison.inputs, comparison.rows, current_progress()
    if comparison.families:
        comparison.tasks = [_draw_tasks(rows, out)]
        comparison.cost = [_draw_cost(rows, out)]
        progress.advance(1, "scores")
    for sweep, stem in zip(inputs.sweeps, file_stems([sweep.name for sweep in inputs.sweeps]), strict=True):
        comparison.layers += _draw_sweep(sweep, out, stem)
        progress.advance(1, sweep.name)
    if len(inputs.sweeps) > 1:
        draw_depths(inputs.sweeps, out / "sweeps.png")
        caption = "The best reading of each model over its depth; scores on different files cannot be compared."
        comparison.layers.insert(0, Figure("Models over their depth", caption, out / "sweeps.png"))
    if inputs.dimensions:
        draw_dimension_comparison(inputs.dimensions, out / "dimension.png")
        caption = "How many directions the vectors of a layer use, by two estimates."
        comparison.dimensions = [Figure("Intrinsic dimension", caption, out / "dimension.png")]
        progress.advance(1, "intrinsic dimension")


def _draw_tasks(rows: Sequence[RankedEncoder], out: Path) -> Figure:
    draw_tasks(rows, out / "tasks.png")
    caption = (
        "Dots: scores, the best of a task in the second colour. Bars: 95 % intervals. Sorted by mean score, best first."
    )
    return Figure("Every task", caption, out / "tasks.png")


def _draw_cost(rows: Sequence[RankedEncoder], out: Path) -> Figure:
    if len(rows) < 2 or not known_costs(rows):
        reason = "no evaluation states the cost of its encoder." if len(rows) > 1 else "it needs two encoders."
        return Figure("Quality against cost", reason)
    draw_cost(rows, out / "cost.png")
    caption = (
        "The line joins the encoders that no other beats without costing more (the Pareto front). Numbers: ranks on "
        "the leaderboard. Hollow: tasks are missing, so the encoder takes no part."
    )
    return Figure("Quality against cost", caption, out / "cost.png")


def _draw_sweep(sweep: SavedSweep, out: Path, stem: str) -> list[Figure]:
    curves, heat_map = out / f"layers-{stem}.png", out / f"sweep-{stem}.png"
    draw_layers(sweep, curves)
    draw_heat_map(sweep, heat_map)
    best = f"{describe_sweep_row(sweep.rows[0])}, {sweep.rows[0].spearman:.1f} on {sweep.data or 'its data'}"
    caption = f"Each template and attention with its best pooling. Star: the best, {best}. {sweep.selection}".strip()
    return [
        Figure(f"{sweep.name}: layer by layer", caption, curves),
        Figure(f"{sweep.name}: heat map", "Spearman x 100 of every pooling and head at every layer.", heat_map),
    ]


def _draw_training(runs: Sequence[TrainingRun], out: Path) -> Html:
    if not runs:
        return Html()
    overview = draw_overview(runs, out)
    if len(runs) > _MAX_DRAWN_RUNS:
        hint = paragraph("For the figures of a run call ", code("d2v report"), " on the encoder's folder.")
        return join(training_section(runs, overview, []), hint)
    stems = file_stems([run.name for run in runs])
    return training_section(runs, overview, [draw_run(run, out, stem) for run, stem in zip(runs, stems, strict=True)])


# the page


def comparison_page(comparison: Comparison, training: Html | None = None, command: str = "") -> str:
    """The page of a comparison.

    Args:
        comparison: Everything that was computed and drawn.
        training: The section on training runs.
        command: The command that makes the page, for its footer.
    """
    sections = [
        Section("standings", "Leaderboard", _leaderboard_section(comparison)),
        Section("trajectory", "Trajectory", _trajectory_part(comparison)),
        Section("changes", "What changed elsewhere?", _changes_part(comparison)),
        Section("formats", "With and without an instruction", format_section(comparison.formats)),
        Section("differences", "Is A really better than B?", _differences_section(comparison)),
        Section("cost", "Quality against cost", _cost_section(comparison)),
        Section("tasks", "Scores by task", _tasks_section(comparison)),
        Section("layers", "Layers", join(*map(figure, comparison.layers))),
        Section("dimension", "Intrinsic dimension", _dimension_section(comparison)),
        Section("training", "Training", training or Html()),
        Section("notes", "Notes", _notes_section(comparison)),
    ]
    return page(
        comparison.title,
        sections,
        kind="comparison report",
        summary=_summary(comparison),
        cards=headlines(comparison.rows) if comparison.rows else (),
        command=command,
    )


def _summary(comparison: Comparison) -> str:
    rows, families = comparison.rows, comparison.families
    if not rows:
        return ""
    n_tasks = sum(map(len, families.values()))
    counts = f"{plural(n_tasks, 'task')} in {plural(len(families), 'family', 'families')}."
    if len(rows) > 1 and rows[0].overall.complete:
        return f"{counts} {best_against_others(rows[:2], comparison.differences)[0]}"
    return counts


def _leaderboard_section(comparison: Comparison) -> Html:
    rows = comparison.rows
    if not rows:
        return Html()
    return join(
        table(leaderboard(rows, comparison.differences), with_title=False),
        paragraph(_LEGEND if len(rows) > 1 else "", muted=True),
        subsection(f"Read with care {FLAG}", bullets(score_warnings(rows))),
        folded("About the data", bullets(data_warnings(rows))),
    )


def _differences_section(comparison: Comparison) -> Html:
    rows, differences = comparison.rows, comparison.differences
    if len(rows) < 2:
        return Html()
    hidden = len(rows) - MAX_COMPARED
    tables = difference_tables(rows, differences)
    return join(
        bullets(best_against_others(rows, differences)),
        paragraph(f"The first {MAX_COMPARED} encoders; {hidden} more are on the leaderboard." if hidden > 0 else ""),
        *(folded(data.title, table(data, with_title=False), is_open=n == 0) for n, data in enumerate(tables)),
        paragraph(_METHOD, muted=True),
    )


def _trajectory_part(comparison: Comparison) -> Html:
    parts = [(result, trajectory_section(result, figures)) for result, figures in comparison.trajectories]
    if len(parts) == 1:
        return parts[0][1]
    return join(*(subsection(result.model, section) for result, section in parts))


def _changes_part(comparison: Comparison) -> Html:
    if comparison.change_figure is None:
        return Html()
    return changes_section(comparison.changes, comparison.change_figure)


def _cost_section(comparison: Comparison) -> Html:
    if len(comparison.rows) < 2:
        return Html()
    figures = [figure(data, with_title=False) for data in comparison.cost]
    return join(*figures, subsection("Pareto front", bullets(front_sentences(comparison.rows))))


def _tasks_section(comparison: Comparison) -> Html:
    if not comparison.rows:
        return Html()
    figures = [figure(data, with_title=False) for data in comparison.tasks]
    tables = task_tables(comparison.rows, comparison.families)
    return join(*figures, *(folded(f"{data.title} in numbers", table(data, with_title=False)) for data in tables))


def dimension_table(comparison: Comparison) -> Table:
    """Peak, last layer and area of each curve of intrinsic dimension."""
    rows = []
    for curve in comparison.inputs.dimensions:
        peak, last = curve.peak, curve.layers[-1]
        area_known = math.isfinite(curve.area)
        rows.append(
            [
                Cell(curve.name, small=f"{curve.texts:,} texts" if curve.texts else ""),
                Cell(f"{peak.twonn:.1f}", peak.twonn, small=f"layer {peak.layer}"),
                Cell(f"{last.twonn:.1f}", last.twonn, small=f"layer {last.layer}"),
                Cell(f"{curve.area:.3f}" if area_known else "–", curve.area if area_known else None),
            ]
        )
    headings = ["encoder", "highest TwoNN", "last layer", "normalised area"]
    return Table("Intrinsic dimension", "TwoNN estimates", headings, rows, sortable=True)


def _dimension_section(comparison: Comparison) -> Html:
    figures = [figure(data, with_title=False) for data in comparison.dimensions]
    return join(*figures, table(dimension_table(comparison), with_title=False))


def _notes_section(comparison: Comparison) -> Html:
    evaluations = [row.evaluation for row in comparison.rows]
    versions = list(dict.fromkeys(one.versions for one in evaluations if one.versions))
    if len(versions) > 1:
        versions = [f"{one.name}: {one.versions}" for one in evaluations if one.versions]
    commands = [join(f"{one.name}: ", code(one.command)) for one in evaluations if one.command]
    return join(
        _counted("Not compared", comparison.differences.notes),
        _counted("Left out", comparison.inputs.skipped),
        folded("Full names", bullets(f"{cut}: {full}" for cut, full in comparison.full_names.items())),
        folded("Commands of the evaluations", bullets(commands)),
        folded("Versions", bullets(versions)),
    )


def _counted(title: str, lines: Sequence[str]) -> Html:
    return folded(f"{title} ({len(lines)})", bullets(lines), is_open=len(lines) <= 6)


# the same as Markdown


def comparison_markdown(comparison: Comparison) -> str:
    """Tables, sentences and figures in the order of the page, as Markdown."""
    rows, differences = comparison.rows, comparison.differences
    parts = [f"# {_escape(comparison.title)}"]
    if rows:
        legend = _escape(_LEGEND) if len(rows) > 1 else ""
        warnings = [_list(score_warnings(rows)), _list(data_warnings(rows))]
        parts += [_markdown_table(leaderboard(rows, differences)), legend, *warnings]
    for result, figures in comparison.trajectories:
        parts += [f"## Trajectory of {_escape(result.model)}", _list(describe_trajectory(result))]
        parts += [*map(_markdown_figure, figures), _markdown_table(trajectory_table(result))]
    if comparison.change_figure is not None:
        parts += ["## What changed elsewhere?", _list([describe_change(change) for change in comparison.changes])]
        parts += [_markdown_figure(comparison.change_figure)]
        parts += [_markdown_table(change_table(change)) for change in comparison.changes]
    if comparison.formats:
        parts += ["## With and without an instruction"]
        parts += [_list([describe_format(change) for change in comparison.formats])]
    if len(rows) > 1:
        parts += ["## Is A really better than B?", _list(best_against_others(rows, differences))]
        parts += [*map(_markdown_table, difference_tables(rows, differences)), _escape(_METHOD)]
        parts += ["## Quality against cost", *map(_markdown_figure, comparison.cost), _list(front_sentences(rows))]
    if rows:
        parts += ["## Scores by task", *map(_markdown_figure, comparison.tasks)]
        parts += map(_markdown_table, task_tables(rows, comparison.families))
    if comparison.layers:
        parts += ["## Layers", *map(_markdown_figure, comparison.layers)]
    if comparison.dimensions:
        parts += ["## Intrinsic dimension", *map(_markdown_figure, comparison.dimensions)]
        parts.append(_markdown_table(dimension_table(comparison)))
    names = [f"{cut}: {full}" for cut, full in comparison.full_names.items()]
    if notes := [*names, *differences.notes, *comparison.inputs.skipped]:
        parts += ["## Notes", _list(notes)]
    parts.append(made_by())
    return "\n\n".join(part for part in parts if part) + "\n"


def _escape(text: str) -> str:
    """The text on one line, without anything that Markdown would read as markup."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|`*_\[\]])", r"\\\1", line)


def _markdown_table(data: Table) -> str:
    lines = [f"| {' | '.join(map(_escape, data.headings))} |"]
    lines.append(f"|{'|'.join('---' if n == data.name_column else '---:' for n in range(len(data.headings)))}|")
    lines += [f"| {' | '.join(map(_markdown_cell, row))} |" for row in data.rows]
    return f"{_escape(f'{data.title}: {data.caption}')}:\n\n" + "\n".join(lines)


def _markdown_cell(cell: Cell) -> str:
    text = _escape(cell.text)
    if cell.mark in ("best", "higher", "lower"):
        text = f"**{text}**"
    elif cell.mark == "partial":
        text = f"*{text}*"
    return text + (" ≈" if cell.mark == "tied" else "") + (f" ({_escape(cell.small)})" if cell.small else "")


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)


def _markdown_figure(data: Figure) -> str:
    if data.file is None:
        return f"{_escape(data.title)}: {_escape(data.caption)}"
    return f"![{_escape(data.title)}]({data.file.name})\n\n{_escape(data.caption)}"
