"""The page of a matching: for every document of each side its best matches, with the reasons. It runs no script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from decoder2vec.errors import InputError
from decoder2vec.matching.match import Match, Matching, Reasons
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.report.html import (
    Cell,
    Html,
    Section,
    Table,
    bullets,
    chips,
    folded,
    join,
    link,
    output_file,
    page,
    subsection,
    table,
)


def check_report_path(out: str | Path) -> str:
    """The ending of a report's path, .html or .json; refuse any other."""
    ending = Path(out).suffix.lower()
    if ending not in (".html", ".json"):
        raise InputError(f"{out} must end in .html (a page to read) or .json (the same as data).")
    return ending


def write_matching(matching: Matching, out: Path, command: str = "") -> Path:
    """Write a matching as a page (.html) or as data (.json), and return its path."""
    if check_report_path(out) == ".html":
        text = match_page(matching, command)
    else:
        text = json.dumps(matching.to_json(), ensure_ascii=False, indent=1) + "\n"
        text = text.encode("utf-8", "replace").decode("utf-8")  # JSON may hold half a surrogate pair, UTF-8 cannot
    with output_file(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return out


def match_page(matching: Matching, command: str = "") -> str:
    """The page of a matching.

    Args:
        matching: Both sides, their rankings and the reasons.
        command: The command that makes the page, for its footer.
    """
    left, right = matching.left, matching.right
    contents = [link(document.display_name, f"left-{index}") for index, document in enumerate(left.documents)]
    sections = [
        Section("contents", "Contents", bullets(contents, columns=True)),
        Section(
            "for-left",
            f"Best of {right.name} for each of {left.name}",
            join(*(_left_document(matching, index) for index in range(len(left)))),
        ),
        Section(
            "for-right",
            f"Best of {left.name} for each of {right.name}",
            join(*(_right_document(matching, index) for index in range(len(right)))),
        ),
        _skipped_section("skipped-left", left),
        _skipped_section("skipped-right", right),
    ]
    title = f"{left.name} matched with {right.name}"
    return page(title, sections, kind="matching report", summary=_explain_scores(matching), command=command)


def _explain_scores(matching: Matching) -> str:
    choices = matching.config
    return (
        f"{len(matching.left)} and {len(matching.right)} documents. A score is {choices.weight:g} x the score by "
        f"meaning + {1 - choices.weight:g} x the score by words (BM25), each brought to one scale ({choices.fusion}) "
        "over all candidates: it orders one list and cannot be compared between lists. "
        "A score is a reason to read a document, not to decide about a person."
    )


def _left_document(matching: Matching, index: int) -> Html:
    document, matches = matching.left.documents[index], matching.for_left[index]
    links = [f"#pair-{match.left}-{match.right}" for match in matches]
    ranking = _ranking(matching, document, matches, [matching.right.documents[match.right] for match in matches], links)
    reasons = [
        _reasons(matching.right.documents[match.right], match, matching.reasons[match.left, match.right])
        for match in matches
    ]
    return subsection(_name(document), ranking, *reasons, id=f"left-{index}")


def _right_document(matching: Matching, index: int) -> Html:
    document, matches = matching.right.documents[index], matching.for_right[index]
    links = [
        f"#pair-{match.left}-{match.right}" if (match.left, match.right) in matching.reasons else f"#left-{match.left}"
        for match in matches
    ]
    ranking = _ranking(matching, document, matches, [matching.left.documents[match.left] for match in matches], links)
    return subsection(_name(document), ranking, id=f"right-{index}")


def _ranking(
    matching: Matching,
    document: SideDocument,
    matches: Sequence[Match],
    others: Sequence[SideDocument],
    links: Sequence[str],
) -> Html:
    """The table of the best matches of a document; bars show the scores within this list."""
    best = max((match.score for match in matches), default=0.0)
    full = 1.0 if matching.config.fusion == "minmax" or best <= 0 else best  # only minmax scores end at 1
    rows = [
        [
            Cell(_name(other), link=target),
            Cell(f"{match.score:.3f}", bar=match.score / full),
            Cell(f"{match.dense:.3f}"),
            Cell(f"{match.lexical:.2f}"),
        ]
        for match, other, target in zip(matches, others, links, strict=True)
    ]
    data = Table(f"Best matches for {document.display_name}", "", ["match", "score", "by meaning", "by words"], rows)
    return table(data, with_title=False)


def _reasons(other: SideDocument, match: Match, reasons: Reasons) -> Html:
    sections = [[Cell(row.left), Cell(row.right), Cell(f"{row.score:.3f}")] for row in reasons.sections]
    pairs = [[Cell(row.left), Cell(row.right), Cell(f"{row.similarity:.3f}")] for row in reasons.pairs]
    layers = [[Cell(name), Cell(f"{value:+.4f}")] for name, value in reasons.layers]
    headings = ["this document", "the match", "by meaning"]
    return folded(
        f"Why {_name(other)}: {match.score:.3f}",
        table(Table("Matching sections", "", headings, sections, text_columns=(0, 1))),
        table(Table("Most similar sentences", "", headings, pairs, text_columns=(0, 1))),
        chips("Terms in both", reasons.terms.matched),
        chips("Terms missing from the match", reasons.terms.missing, absent=True),
        table(Table("Contribution of each layer", "", ["layer", "contribution"], layers)),
        id=f"pair-{match.left}-{match.right}",
    )


def _skipped_section(id: str, side: Side) -> Section:
    return Section(id, f"Left out of {side.name}", bullets(side.skipped))


def _name(document: SideDocument) -> str:
    """The document's name, with its id if that is something else."""
    return document.display_name if document.display_name == document.id else f"{document.display_name} ({document.id})"
