"""HTML of tables and figures; every word that comes from a file is escaped here."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from html import escape

from decoder2vec.analysis.comparison.cells import Cell, Table
from decoder2vec.analysis.comparison.style import SCRIPT, STYLE
from decoder2vec.analysis.drawing import COLOURS
from decoder2vec.analysis.report.figures import Picture


def whole_page(title: str, body: str) -> str:
    """A page that may load nothing and run nothing but its own script: the browser itself sees to that."""
    own = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{own}'"
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}</style>'
    )
    script = f"<script>{SCRIPT}</script>"
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n{script}\n</body>\n</html>\n'


def table(shown: Table) -> str:
    """A table with a caption and heads that a screen reader can follow."""
    heads = "".join(
        f'<th scope="col"{_kind("name" if number == shown.names else "")}>{escape(head)}</th>'
        for number, head in enumerate(shown.heads)
    )
    body = "\n".join(f"<tr>{''.join(_cell(c, n == shown.names) for n, c in enumerate(row))}</tr>" for row in shown.rows)
    kind = ' class="sortable"' if shown.sortable and len(shown.rows) > 1 else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(shown.caption)}"><table{kind}>'
        f"<caption>{escape(shown.caption)}</caption>"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell, names: bool) -> str:
    kinds = " ".join(part for part in ("name" if names else "", cell.mark) if part)
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    small = f"<small>{escape(cell.small)}</small>" if cell.small else ""
    tag = "th" if names else "td"
    scope = ' scope="row"' if names else ""
    return f"<{tag}{scope}{_kind(kinds)}{value}>{escape(cell.text)}{small}</{tag}>"


def _kind(name: str) -> str:
    return f' class="{name}"' if name else ""


def bullets(lines: Iterable[str]) -> str:
    """A list, or nothing."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def folded(title: str, body: str, stands_open: bool = False) -> str:
    """A part that opens by a click; nothing where it is empty."""
    return f"<details{' open' * stands_open}><summary>{escape(title)}</summary>\n{body}</details>" if body else ""


def figure(picture: Picture, heading: bool = True) -> str:
    """A figure inside the page, in the colours of the page; what it shows is said for those who cannot see it."""
    if picture.file is None:
        return f'<p class="about">{escape(picture.title)}: {escape(picture.about)}</p>'
    title, about = escape(picture.title), escape(picture.about)
    drawn = _inside(picture.file.with_suffix(".svg").read_text(encoding="utf-8"), f"{title}. {about}")
    head = f"<h3>{title}</h3>" if heading else ""
    return f'<figure>{head}<div class="wide">{drawn}</div><figcaption>{about}</figcaption></figure>'


def _inside(svg: str, label: str) -> str:
    """A drawing as matplotlib writes it, as a part of a page: no ids that meet others, colours by name."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r' id="[^"]*_\d+"', "", svg)  # ids of parts; those of clips and markers have no underscore
    svg = re.sub(r'style="[^"]*"', lambda found: _themed(found[0]), svg)
    width = re.search(r'viewBox="0 0 ([\d.]+)', svg)
    wide = f"max-width: {1.45 * float(width[1]):.0f}px" if width else ""  # letters of one size in all figures
    start = f'<svg role="img" aria-label="{label}" fill="currentColor" style="{wide}" viewBox='
    return re.sub(r"<svg [^>]*?viewBox=", lambda _: start, svg, count=1)


def _themed(style: str) -> str:
    style = re.sub(r"font-family: [^;\"]*;? ?", "", style)  # the page has a face of its own
    style = re.sub(r"font: ([^;\"]*?)([\d.]+px) [^;\"]*", r"font-size: \2", style)  # the same by an older matplotlib
    style = style.replace("#000000", "currentColor").replace("#ffffff", "var(--paper)")
    for number, colour in enumerate(COLOURS[:6]):
        style = style.replace(colour.lower(), f"var(--c{number})")
    return style
