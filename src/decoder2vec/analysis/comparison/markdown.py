"""The comparison as markdown, for a README or a pull request; its figures lie beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from decoder2vec.analysis.comparison.cells import Cell, Table
from decoder2vec.analysis.comparison.contents import Contents
from decoder2vec.analysis.comparison.leaderboard import about_data, flags, leaderboard, task_tables
from decoder2vec.analysis.comparison.page import LEGEND, METHOD, dimension_table, title_of
from decoder2vec.analysis.comparison.standings import families
from decoder2vec.analysis.comparison.verdicts import fronts, matrices, sentences
from decoder2vec.analysis.report.figures import Picture


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
