"""The page of a matching: all pairs at a glance, and for every document its best matches with reasons and texts.

It runs no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from decoder2vec.matching.match import Match, Matching
from decoder2vec.matching.reasons import Reasons
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.report.html import (
    Cell,
    Html,
    Section,
    Table,
    bar,
    bullets,
    folded,
    join,
    page,
    paragraph,
    table,
    tag,
    terms,
)
from decoder2vec.search.file_formats import TABLE_SUFFIXES

_MAX_COLUMNS = 40
"""Documents of the right side in the overview; of more, those that are in the most lists."""
_MATCHES_OF_RIGHT = 3
"""Best left documents that are listed for each right document."""
_HOT, _WARM = 0.62, 0.47
"""Share of the colour range from which the text of a cell changes its colour to stay readable."""


def match_page(matching: Matching, command: str = "") -> str:
    """The page of a matching.

    Args:
        matching: Both sides, their rankings and the reasons.
        command: The command that makes the page, for its footer.
    """
    left, right = matching.left, matching.right
    left_name, right_name = _side_name(left), _side_name(right)
    sections = [
        Section("overview", "All pairs at a glance", _overview(matching)),
        Section(
            "for-left",
            f"Best of {right_name} for each of {left_name}",
            join(*(_left_document(matching, index) for index in range(len(left)))),
        ),
        Section("for-right", f"Best of {left_name} for each of {right_name}", _right_table(matching)),
        _skipped_section("skipped-left", left),
        _skipped_section("skipped-right", right),
    ]
    summary = f"{matching.score_meaning} A score is a reason to read a document, not to decide about a person."
    return page(
        f"{left_name} matched with {right_name}", sections, kind="matching report", summary=summary, command=command
    )


def _overview(matching: Matching) -> Html:
    """The scores of all pairs as a coloured table; the best of each row are links to their reasons."""
    columns = _overview_columns(matching)
    scores = np.maximum(matching.scores[:, columns], 0.0)
    low, high = float(scores.min()), float(scores.max())
    heat = (scores - low) / (high - low) if high > low else np.zeros_like(scores)
    headings = [tag("th", tag("span", _name(matching.right.documents[j])), scope="col") for j in columns]
    rows = []
    for i, document in enumerate(matching.left.documents):
        cells = [_overview_cell(matching, i, j, float(heat[i, n])) for n, j in enumerate(columns)]
        name = tag("th", tag("a", _name(document), href=f"#left-{i}"), scope="row")
        rows.append(join(tag("tr", name, *cells), Html("\n")))
    caption = tag("caption", tag("span", "Scores of all pairs, in percent", class_="hidden"))
    head = tag("thead", tag("tr", tag("td"), *headings))
    heat_table = tag("table", caption, head, Html("\n"), tag("tbody", *rows), class_="heat")
    note = "Scores in percent; a link leads to the reasons."
    if len(columns) < len(matching.right):
        note += f" {len(columns)} of {len(matching.right)} documents: those that are in the most lists."
    region = tag("div", heat_table, class_="wide", tabindex=0, role="region", aria_label="Scores of all pairs")
    return join(paragraph(note, muted=True), region)


def _overview_columns(matching: Matching) -> list[int]:
    """Indices of the right documents to show, in their order."""
    counts = np.zeros(len(matching.right))
    for ranking in matching.for_left:
        for match in ranking:
            counts[match.right] += 1
    return sorted(int(index) for index in np.argsort(-counts, kind="stable")[:_MAX_COLUMNS])


def _overview_cell(matching: Matching, i: int, j: int, heat: float) -> Html:
    step = round(20 * heat) / 20  # the text colour changes between two steps, so that it is readable on each
    classes = [name for name, limit in (("hot", _HOT), ("warm", _WARM)) if step > limit]
    names = f"{_name(matching.left.documents[i])} – {_name(matching.right.documents[j])}"
    text = f"{100 * max(0.0, float(matching.scores[i, j])):.0f}"
    content = tag("a", text, href=f"#pair-{i}-{j}") if (i, j) in matching.reasons else text
    return tag("td", content, class_=" ".join(classes) or None, style=f"--heat: {100 * step:.0f}%", title=names)


def _left_document(matching: Matching, index: int) -> Html:
    document = matching.left.documents[index]
    cards = [_match_card(matching, match, rank) for rank, match in enumerate(matching.for_left[index], 1)]
    return join(
        tag(
            "section",
            tag("h3", _name(document)),
            _text(document),
            tag("ol", *cards, class_="matches"),
            class_="ranking",
            id=f"left-{index}",
        ),
        Html("\n"),
    )


def _match_card(matching: Matching, match: Match, rank: int) -> Html:
    """One match: its line is always visible, the reasons of the first one, too."""
    other, reasons = matching.right.documents[match.right], matching.reasons[match.left, match.right]
    head = tag(
        "div",
        tag("span", str(rank), class_="rank", aria_hidden="true"),
        tag("h4", _name(other)),
        tag("span", tag("span", "score ", class_="hidden"), f"{match.score:.2f}", class_="score"),
        bar(_bar_share(matching, match)),
        class_="match-head",
    )
    parts = f"By meaning {match.dense:.2f}, terms in common {100 * match.lexical:.0f} %"
    if match.share_below is not None:
        parts += f"; above {100 * match.share_below:.0f} % of all pairs"
    if match.probability:
        parts += f"; probability {match.probability}"
    body = (
        tag("p", f"{parts}.", class_="score-parts"),
        terms("In both", reasons.terms.matched, "matched"),
        terms("Missing", reasons.terms.missing, "missing"),
        folded("Sentences and sections", *_reason_tables(reasons), is_open=rank == 1),
        _text(other),
    )
    id = f"pair-{match.left}-{match.right}"
    return tag("li", tag("details", tag("summary", head), *body, class_="match", open=rank == 1), id=id)


def _bar_share(matching: Matching, match: Match) -> float:
    """Length of the bar: the score, or its share of the best one where scores do not end at 1."""
    if matching.config.fusion in ("calibrated", "minmax"):
        return match.score
    best = matching.for_left[match.left][0].score
    return match.score / best if best > 0 else 0.0


def _reason_tables(reasons: Reasons) -> Sequence[Html]:
    sections = [[Cell(row.left), Cell(row.right), Cell(f"{row.score:.2f}")] for row in reasons.sections]
    pairs = [[Cell(row.left), Cell(row.right), Cell(f"{row.similarity:.2f}")] for row in reasons.pairs]
    layers = [[Cell(name), Cell(f"{value:+.4f}")] for name, value in reasons.layers]
    headings = ["this document", "the match", "by meaning"]
    return (
        table(Table("Most similar sentences", "", headings, pairs, text_columns=(0, 1))),
        table(Table("Sections, each with its best match", "", headings, sections, text_columns=(0, 1))),
        table(Table("Contribution of each layer", "", ["layer", "contribution"], layers)),
    )


def _right_table(matching: Matching) -> Html:
    """One row for each right document: its best left documents."""
    rows = []
    for document, matches in zip(matching.right.documents, matching.for_right, strict=True):
        best = [
            Cell(
                _name(matching.left.documents[match.left]),
                small=f"{match.score:.2f}",
                link=f"#pair-{match.left}-{match.right}"
                if (match.left, match.right) in matching.reasons
                else f"#left-{match.left}",
            )
            for match in matches[:_MATCHES_OF_RIGHT]
        ]
        rows.append([Cell(_name(document)), *best])
    columns = ["best", "second", "third"][: max(len(row) - 1 for row in rows)]
    headings = [_side_name(matching.right), *columns]
    data = Table("Best matches", "", headings, rows, text_columns=range(1, len(headings)))
    return table(data, with_title=False)


def _text(document: SideDocument) -> Html:
    """The whole text of a document and its further fields, folded."""
    fields = [
        f"{name}: {value}" for name, value in document.fields.items() if name != "name" and value != document.text
    ]
    return folded("Text", tag("p", "\n\n".join(filter(None, [document.text, *fields])), class_="full-text"))


def _skipped_section(id: str, side: Side) -> Section:
    return Section(id, f"Left out of {side.name}", bullets(side.skipped))


def _side_name(side: Side) -> str:
    """The name of a side without the ending of its file."""
    return side.name.removesuffix(Path(side.name).suffix) if Path(side.name).suffix in TABLE_SUFFIXES else side.name


def _name(document: SideDocument) -> str:
    return document.display_name
