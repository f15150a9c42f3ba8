"""The comparison as one HTML page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from decoder2vec.analysis.comparison.cells import Cell, Table
from decoder2vec.analysis.comparison.contents import Contents
from decoder2vec.analysis.comparison.leaderboard import FLAG, about_data, flags, leaderboard, task_tables
from decoder2vec.analysis.comparison.markup import bullets, figure, folded, table, whole_page
from decoder2vec.analysis.comparison.standings import families
from decoder2vec.analysis.comparison.verdicts import MOST, fronts, headlines, matrices, sentences
from decoder2vec.maths.paired_bootstrap import SAMPLES

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
