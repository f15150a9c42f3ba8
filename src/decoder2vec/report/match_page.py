"""A match as one HTML page that needs nothing beside it: it loads nothing, runs no script and can be read aloud."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from decoder2vec.errors import InputError
from decoder2vec.matching.match import Match, Matching, Reasons
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.storage import atomic_file

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1b1b; background: #fff; max-width: 60rem; margin: 0 auto;
  padding: 1rem; overflow-wrap: break-word; }
h1, h2, h3 { line-height: 1.2; }
h2 { border-top: 1px solid #ddd; padding-top: 1rem; }
a { color: #0a4f9e; }
a:focus-visible, summary:focus-visible { outline: 3px solid #0a4f9e; outline-offset: 2px; }
.skip { position: absolute; left: -99rem; } .skip:focus { left: 1rem; background: #fff; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .3rem 0 .8rem; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #e5e5e5; }
td.number, th.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
details { margin: .4rem 0; padding-left: .2rem; }
summary { cursor: pointer; padding: .3rem 0; font-weight: 600; }
.about { color: #555; font-size: .9rem; }
ul.terms { list-style: none; padding: 0; margin: 0 0 .6rem; }
ul.terms li { display: inline-block; border: 1px solid #bbb; border-radius: .8rem; padding: 0 .6rem; margin: .1rem; }
ul.missing li { border-style: dashed; color: #555; }
"""


def write_report(matching: Matching, out: str | Path) -> Path:
    """Write the page (.html) or the same as data (.json); it appears all at once."""
    target = Path(out)
    kind = check_report(target)
    text = page(matching) if kind == ".html" else json.dumps(matching.to_json(), ensure_ascii=False, indent=1) + "\n"
    with atomic_file(target) as file:
        # half of a surrogate pair can stand in JSON, and in no file
        file.write_text(text.encode("utf-8", "replace").decode("utf-8"), encoding="utf-8")
    return target


def check_report(out: str | Path) -> str:
    """The kind of report that a name asks for: .html or .json, and no other."""
    kind = Path(out).suffix.lower()
    if kind not in (".html", ".json"):
        raise InputError(f"{out} must end in .html (a page to read) or .json (the same as data).")
    return kind


def page(matching: Matching) -> str:
    """The whole page."""
    title = f"{matching.left.name} matched with {matching.right.name}"
    body = [
        '<a class="skip" href="#main">To the matches</a>',
        f"<header><h1>{escape(title)}</h1>{_about(matching)}</header>",
        f'<nav aria-label="Documents"><h2>Contents</h2>{_contents(matching)}</nav>',
        '<main id="main">',
        f"<h2>Best of {escape(matching.right.name)} for each of {escape(matching.left.name)}</h2>",
        *(_document(matching, place) for place in range(len(matching.left))),
        f"<h2>Best of {escape(matching.left.name)} for each of {escape(matching.right.name)}</h2>",
        *(_back(matching, place) for place in range(len(matching.right))),
        _skipped(matching.left),
        _skipped(matching.right),
        "</main>",
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    inside = "\n".join(part for part in body if part)
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{inside}\n</body>\n</html>\n'


def _about(matching: Matching) -> str:
    chosen = matching.config
    return (
        f'<p class="about">{len(matching.left)} and {len(matching.right)} documents. A score is {chosen.weight:g} '
        f"of the score by meaning and {1 - chosen.weight:g} of the score by words (BM25), each brought to one scale "
        f"({escape(chosen.fusion)}) among all candidates: it orders one list and is not comparable between lists. "
        "A score is a reason to read a document, not to decide about a person.</p>"
    )


def _contents(matching: Matching) -> str:
    rows = (
        f'<li><a href="#left-{place}">{escape(one.display_name)}</a></li>'
        for place, one in enumerate(matching.left.documents)
    )
    return f"<ul>{''.join(rows)}</ul>"


def _document(matching: Matching, place: int) -> str:
    one, rows = matching.left.documents[place], matching.for_left[place]
    details = "".join(
        _reasons(matching.right.documents[row.right], row, matching.reasons[row.left, row.right]) for row in rows
    )
    others = [(f"#pair-{row.left}-{row.right}", matching.right.documents[row.right]) for row in rows]
    table = _ranking(f"Best matches for {one.display_name}", rows, others)
    return f'<section id="left-{place}"><h3>{_name(one)}</h3>{table}{details}</section>'


def _back(matching: Matching, place: int) -> str:
    one, rows = matching.right.documents[place], matching.for_right[place]
    others = [
        (
            f"#pair-{row.left}-{row.right}" if (row.left, row.right) in matching.reasons else f"#left-{row.left}",
            matching.left.documents[row.left],
        )
        for row in rows
    ]
    table = _ranking(f"Best matches for {one.display_name}", rows, others)
    return f'<section id="right-{place}"><h3>{_name(one)}</h3>{table}</section>'


def _ranking(caption: str, rows: list[Match], others: list[tuple[str, SideDocument]]) -> str:
    lines = [
        [f'<a href="{link}">{_name(other)}</a>', f"{row.score:.3f}", f"{row.dense:.3f}", f"{row.lexical:.2f}"]
        for row, (link, other) in zip(rows, others, strict=True)
    ]
    return _table(caption, ["match", "score", "by meaning", "by words"], lines)


def _reasons(other: SideDocument, row: Match, why: Reasons) -> str:
    sections = [[escape(one.left), escape(one.right), f"{one.score:.3f}"] for one in why.sections]
    pairs = [[escape(one.left), escape(one.right), f"{one.similarity:.3f}"] for one in why.pairs]
    layers = [[escape(name), f"{value:+.4f}"] for name, value in why.layers]
    parts = [
        _table("Sections and the section that fits each best", ["here", "there", "by meaning"], sections, 2),
        _table("Sentences that say the most alike", ["here", "there", "by meaning"], pairs, 2),
        _terms("Terms in both", why.terms.matched, "terms"),
        _terms("Terms that are missing", why.terms.missing, "terms missing"),
        _table("What each layer contributes", ["layer", "contribution"], layers),
    ]
    return (
        f'<details id="pair-{row.left}-{row.right}"><summary>Why {_name(other)}: {row.score:.3f}</summary>'
        f"{''.join(parts)}</details>"
    )


def _terms(title: str, terms: tuple[str, ...], kind: str) -> str:
    if not terms:
        return f'<p class="about">{escape(title)}: none.</p>'
    items = "".join(f"<li>{escape(term)}</li>" for term in terms)
    return f'<p><strong>{escape(title)}</strong></p><ul class="{kind}">{items}</ul>'


def _skipped(side: Side) -> str:
    if not side.skipped:
        return ""
    items = "".join(f"<li>{escape(reason)}</li>" for reason in side.skipped)
    return f"<section><h2>Left out of {escape(side.name)}</h2><ul>{items}</ul></section>"


def _table(caption: str, heads: list[str], rows: list[list[str]], texts: int = 1) -> str:
    """A table of cells that are HTML already; after the first `texts` columns come numbers."""
    if not rows:
        return ""
    kinds = ["" if number < texts else ' class="number"' for number in range(len(heads))]
    head = "".join(f'<th scope="col"{kind}>{name}</th>' for kind, name in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _name(document: SideDocument) -> str:
    """What it is called, and its id where that is something else."""
    display_name = escape(document.display_name)
    return display_name if document.display_name == document.id else f"{display_name} ({escape(document.id)})"
