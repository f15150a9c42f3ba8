"""All that a comparison shows: computed and drawn once, written as a page and as markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path

from decoder2vec.errors import StorageError
from decoder2vec.maths.bootstrap import SAMPLES
from decoder2vec.report.analysis_figures import draw_dimensions
from decoder2vec.report.differences import Differences
from decoder2vec.report.figures import labels
from decoder2vec.report.html import Cell, Table, bullets, figure, folded, table, whole_page
from decoder2vec.report.leaderboard import (
    FLAG,
    MOST,
    about_data,
    flags,
    fronts,
    headlines,
    leaderboard,
    matrices,
    sentences,
    task_tables,
)
from decoder2vec.report.quality_figures import draw_cost, draw_tasks, known_costs
from decoder2vec.report.result_files import Found, SavedSweep
from decoder2vec.report.run_page import runs_part
from decoder2vec.report.runs import Run
from decoder2vec.report.standings import Standing, families, standings, without_tuning
from decoder2vec.report.sweep_figures import describe, draw_depths, draw_heat_map, draw_layers
from decoder2vec.report.training_figures import Picture, draw_overview, draw_run, file_stems
from decoder2vec.storage import atomic_file

_LONGEST = 60
"""Letters of a name that a table can take."""
OnProgress = Callable[[str], object]


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


def fill_contents(found: Found, out: Path, on_progress: OnProgress) -> Contents:
    """Compute and draw everything that was found; `watch` hears of each finished part."""
    evaluations, dropped = without_tuning(found.evaluations)
    if dropped:
        found.left_out.append(f"Files one chooses on say nothing about others: {', '.join(dropped)}.")
    named = labels([one.name for one in evaluations], _LONGEST)
    pairs = list(zip(evaluations, named, strict=True))
    rows = standings([replace(one, name=name) for one, name in pairs])
    cut = {name: one.name for one, name in pairs if name != one.name}
    contents = Contents(found, rows, Differences([row.evaluation for row in rows], on_progress), cut)
    if any(row.overall.of for row in rows):
        contents.tasks = [_draw_tasks(rows, out)]
        contents.cost = [_draw_cost(rows, out)]
        on_progress("scores")
    for sweep, stem in zip(found.sweeps, file_stems([one.name for one in found.sweeps]), strict=True):
        contents.layers += _sweep(sweep, out, stem)
        on_progress(sweep.name)
    if len(found.sweeps) > 1:
        draw_depths(found.sweeps, out / "sweeps.png")
        about = "Curves of different models over the same depth; scores on different files cannot be compared."
        contents.layers.insert(0, Picture("Models over their depth", about, out / "sweeps.png"))
    if found.dimensions:
        draw_dimensions(found.dimensions, out / "dimension.png")
        about = "How many directions the vectors of a layer really use, by two estimates."
        contents.dimensions = [Picture("Intrinsic dimension", about, out / "dimension.png")]
        on_progress("intrinsic dimension")
    return contents


def _draw_tasks(rows: Sequence[Standing], out: Path) -> Picture:
    draw_tasks(rows, out / "tasks.png")
    about = "Dots: scores, the best of a task in the second colour. Bars: 95 % intervals. From the best mean down."
    return Picture("Every task", about, out / "tasks.png")


def _draw_cost(rows: Sequence[Standing], out: Path) -> Picture:
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


LEGEND = (
    "Bold: the best. ≈: this data shows no difference from the best. Italic: tasks are missing, so the mean is not "
    f"ranked. “front”: no other encoder is better without costing more. {FLAG}: read with care, see below."
)
METHOD = (
    f"Paired bootstrap: the items of each task (pairs, queries, draws or subsets) are drawn {SAMPLES:,} times with "
    "replacement, the same ones for both encoders, and both are scored anew. A difference is shown where 95 % of the "
    "differences lie on one side of 0. It says what other items of the same kind would do, not other tasks; and of "
    "twenty comparisons between equals one is expected to look like a difference."
)


def title_of(contents: Contents) -> str:
    """What is compared."""
    count, sweeps = len(contents.rows), len(contents.found.sweeps)
    if count:
        return f"Comparison of {count} encoders" if count > 1 else f"Evaluation of {contents.rows[0].name}"
    return f"Sweep of {contents.found.sweeps[0].model}" if sweeps == 1 else "What the layers know"


def comparison_page(contents: Contents, training: str = "") -> str:
    """The page; `training` is the part on training runs, already HTML."""
    parts = [
        ("standings", "Leaderboard", _standings(contents)),
        ("differences", "Is A really better than B?", _differences(contents)),
        ("cost", "Quality against cost", _cost(contents)),
        ("tasks", "Task by task", _tasks(contents)),
        ("layers", "Layers", "\n".join(map(figure, contents.layers))),
        ("dimension", "Intrinsic dimension", _dimension(contents)),
        ("training", "Training", f'<div class="training">{training}</div>' if training else ""),
        ("notes", "Notes", _notes(contents)),
    ]
    shown = [part for part in parts if part[2]]
    title = title_of(contents)
    links = "".join(f'<a href="#{name}">{escape(heading)}</a>' for name, heading, _ in shown)
    body = "\n".join(
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(heading)}</h2>\n{content}</section>'
        for name, heading, content in shown
    )
    header = f"<header><h1>{escape(title)}</h1>\n{_summary(contents)}\n{_cards(contents)}"
    return whole_page(title, f'{header}\n<nav aria-label="Parts">{links}</nav></header>\n<main>\n{body}\n</main>')


def _summary(contents: Contents) -> str:
    rows = contents.rows
    if not rows:
        return ""
    tasks = families([row.evaluation for row in rows])
    count = sum(map(len, tasks.values()))
    words = f"{count} task{'s' * (count != 1)} in {len(tasks)} famil{'ies' if len(tasks) != 1 else 'y'}."
    if len(rows) > 1 and rows[0].overall.complete:
        words += f" {sentences(rows[:2], contents.differences)[0]}"
    return f"<p>{escape(words)}</p>"


def _cards(contents: Contents) -> str:
    if not contents.rows:
        return ""
    cards = "".join(
        f"<div><dt>{escape(what)}</dt><dd>{escape(who)}</dd><dd>{escape(how)}</dd></div>"
        for what, who, how in headlines(contents.rows)
    )
    return f'<dl class="cards">{cards}</dl>'


def _standings(contents: Contents) -> str:
    if not contents.rows:
        return ""
    care = bullets(flags(contents.rows))
    care = f"<h3>Read with care {FLAG}</h3>{care}" if care else ""
    care += folded("About the data", bullets(about_data(contents.rows)))
    shown = table(leaderboard(contents.rows, contents.differences))
    legend = f'<p class="about">{escape(LEGEND)}</p>' if len(contents.rows) > 1 else ""
    return f"{shown}{legend}{care}"


def _differences(contents: Contents) -> str:
    if len(contents.rows) < 2:
        return ""
    rest = len(contents.rows) - MOST
    more = f"<p>The first {MOST} encoders; {rest} more are on the leaderboard.</p>" if rest > 0 else ""
    tables = [
        folded(shown.caption.split(":")[0], table(shown), stands_open=number == 0)
        for number, shown in enumerate(matrices(contents.rows, contents.differences))
    ]
    said = bullets(sentences(contents.rows, contents.differences))
    return f'{said}{more}{"".join(tables)}<p class="about">{escape(METHOD)}</p>'


def _cost(contents: Contents) -> str:
    if len(contents.rows) < 2:
        return ""
    lines = [f"By {cost}: {', '.join(names)}." for cost, names in fronts(contents.rows)]
    said = f"<h3>No other is better without costing more</h3>{bullets(lines)}"
    return "\n".join(figure(one, heading=False) for one in contents.cost) + (said if lines else "")


def _tasks(contents: Contents) -> str:
    if not contents.rows:
        return ""
    shown = task_tables(contents.rows, families([row.evaluation for row in contents.rows]))
    tables = "".join(folded(f"{one.caption.split(':')[0]} in numbers", table(one)) for one in shown)
    return "\n".join(figure(one, heading=False) for one in contents.tasks) + tables


def dimension_table(contents: Contents) -> Table:
    """The peak of each curve and its area."""
    lines = []
    for one in contents.found.dimensions:
        peak = one.peak
        lines.append(
            [
                Cell(one.name, small=f"{one.texts:,} texts" if one.texts else ""),
                Cell(f"{peak.twonn:.1f}", peak.twonn, small=f"layer {peak.layer}"),
                Cell(f"{one.layers[-1].twonn:.1f}", one.layers[-1].twonn, small=f"layer {one.layers[-1].layer}"),
                Cell(f"{one.area:.3f}" if one.area == one.area else "–", one.area if one.area == one.area else None),
            ]
        )
    heads = ["encoder", "highest TwoNN", "last layer", "normalised area"]
    return Table("Intrinsic dimension", heads, lines, sortable=True)


def _dimension(contents: Contents) -> str:
    if not contents.found.dimensions:
        return ""
    return "\n".join(figure(one, heading=False) for one in contents.dimensions) + table(dimension_table(contents))


def _notes(contents: Contents) -> str:
    rows = [row.evaluation for row in contents.rows]
    how = [f"{one.name}: {one.command}" for one in rows if one.command]
    names = [f"{name}: {whole}" for name, whole in contents.cut.items()]
    versions = list(dict.fromkeys(one.versions for one in rows if one.versions))
    if len(versions) > 1:
        versions = [f"{one.name}: {one.versions}" for one in rows if one.versions]
    return "".join(
        (
            _listed("Not compared", contents.differences.notes),
            _listed("Left out", contents.found.left_out),
            folded("Whole names", bullets(names)),
            folded("How the scores were made", bullets(how)),
            folded("Versions", bullets(versions)),
        )
    )


def _listed(title: str, lines: Sequence[str]) -> str:
    return folded(f"{title} ({len(lines)})", bullets(lines), stands_open=len(lines) <= 6) if lines else ""


def comparison_markdown(contents: Contents) -> str:
    """Tables, sentences and figures in the order of the page."""
    rows = contents.rows
    parts = [f"# {plain(title_of(contents))}"]
    if rows:
        parts += [_table(leaderboard(rows, contents.differences)), _list(flags(rows)), _list(about_data(rows))]
    if len(rows) > 1:
        parts.insert(2, plain(LEGEND))
        parts += ["## Is A really better than B?", _list(sentences(rows, contents.differences))]
        parts += [_table(one) for one in matrices(rows, contents.differences)] + [plain(METHOD)]
        parts += ["## Quality against cost", *_pictures(contents.cost)]
        parts += [_list([f"By {cost}: {', '.join(names)}." for cost, names in fronts(rows)])]
    if rows:
        parts += ["## Task by task", *_pictures(contents.tasks)]
        parts += [_table(one) for one in task_tables(rows, families([row.evaluation for row in rows]))]
    if contents.layers:
        parts += ["## Layers", *_pictures(contents.layers)]
    if contents.dimensions:
        parts += ["## Intrinsic dimension", *_pictures(contents.dimensions), _table(dimension_table(contents))]
    names = [f"{name}: {whole}" for name, whole in contents.cut.items()]
    if notes := [*names, *contents.differences.notes, *contents.found.left_out]:
        parts += ["## Notes", _list(notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: str) -> str:
    """A text on one line in which nothing is markup."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\|`*_\[\]])", r"\\\1", line)


def _table(shown: Table) -> str:
    """A table; one without rows is nothing."""
    lines = [f"| {' | '.join(map(plain, shown.heads))} |"]
    lines.append(f"|{'|'.join('---' if number == shown.names else '---:' for number in range(len(shown.heads)))}|")
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in shown.rows]
    return f"{plain(shown.caption)}:\n\n" + "\n".join(lines)


def _cell(cell: Cell) -> str:
    text = plain(cell.text)
    text = f"**{text}**" if cell.mark in ("best", "up", "down") else f"*{text}*" if cell.mark == "partial" else text
    return text + (" ≈" if cell.mark == "near" else "") + (f" ({plain(cell.small)})" if cell.small else "")


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {plain(line)}" for line in lines)


def _pictures(pictures: Sequence[Picture]) -> list[str]:
    return [
        f"![{plain(one.title)}]({one.file.name})\n\n{plain(one.about)}"
        if one.file
        else f"{plain(one.title)}: {plain(one.about)}"
        for one in pictures
    ]


PAGE, MARKDOWN = "index.html", "report.md"
_WHOLE = 3
"""With more training runs than these, only what sets them side by side is shown."""


def write_comparison(
    found: Found, runs: Sequence[Run], out: Path, on_progress: Callable[[str], object] = lambda _: None
) -> Path:
    """Draw and write everything that was found into `out`; `watch` hears of each finished part."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with atomic_file(out / PAGE) as page, atomic_file(out / MARKDOWN) as markdown:  # a refusal comes first
            contents = fill_contents(found, out, on_progress)
            page.write_text(comparison_page(contents, _training(runs, out)), encoding="utf-8")
            markdown.write_text(comparison_markdown(contents), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write to {out}: {error.strerror or error}; choose another folder: --out.") from None
    return out / PAGE


def _training(runs: Sequence[Run], out: Path) -> str:
    if not runs:
        return ""
    stems = file_stems([run.name for run in runs])
    own = [draw_run(run, out, stem) for run, stem in zip(runs, stems, strict=True)] if len(runs) <= _WHOLE else []
    more = "" if own else "<p>Each run by itself: <code>d2v report</code> on the encoder's folder.</p>"
    return runs_part(runs, draw_overview(runs, out), own) + more
