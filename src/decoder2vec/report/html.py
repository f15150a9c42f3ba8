"""Tables before they are HTML or markdown."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from decoder2vec.report.figures import COLOURS
from decoder2vec.report.training_figures import Picture


@dataclass(frozen=True)
class Cell:
    """What stands in a cell: words, the number it is sorted by, small print, and how it is marked."""

    text: str
    value: float | None = None
    """None: always below those that have one."""
    small: str = ""
    mark: str = ""
    """best, near (no difference from the best is shown), partial, up, down, even, or nothing."""


@dataclass(frozen=True)
class Table:
    """A table; the column of number `names` names the rows."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 0
    sortable: bool = False


def points(value: float) -> str:
    """A score as people read it."""
    return f"{value:.1f}" if math.isfinite(value) else "not a number"


def amount(value: float) -> str:
    """A count as people read it: 134 M, 1,234."""
    for size, unit in ((1e9, " G"), (1e6, " M")):
        if value >= size:
            return f"{value / size:.3g}{unit}" if value < 100 * size else f"{value / size:,.0f}{unit}"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def signed(value: float) -> str:
    """A difference as people read it: nothing has no sign."""
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}"


STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1d1f21; --soft: #5c6166; --line: #dcdedb; --wash: #f3f4f1;
  --accent: #0b5c8e; --good: #0a6b4b; --bad: #a33c00; --good-wash: #e3f2ec; --bad-wash: #fbeade;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #b57d00; --c5: #2f8fc7; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #e6e6e3; --soft: #a2a8ad; --line: #34383c;
  --wash: #1e2124; --accent: #7cc0ea; --good: #6fd3ae; --bad: #f5a26b; --good-wash: #17332a; --bad-wash: #3a2417;
  --c0: #5ab4e8; --c1: #f08a45; --c2: #3cc79f; --c3: #e0a3c4; --c4: #e8b03d; --c5: #8fd0f2; } }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 80rem; padding: 2.5rem 1.5rem 5rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", Arial, sans-serif;
  overflow-wrap: break-word; font-kerning: normal; }
h1, h2, h3 { line-height: 1.2; text-wrap: balance; letter-spacing: -.012em; }
h1 { font-size: clamp(1.7rem, 4vw, 2.3rem); margin: 0 0 .6rem; }
h2 { font-size: 1.4rem; margin: 3.2rem 0 .6rem; padding-top: 1.3rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p, ul, ol { max-width: 68ch; margin: .5rem 0 .9rem; }
li { margin: .25rem 0; }
p, li, figcaption { text-wrap: pretty; }
a { color: var(--accent); text-underline-offset: .15em; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.3rem; font-size: .92rem; margin: 1.2rem 0 0; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 2px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; margin: 1.6rem 0 0; }
.cards div { background: var(--wash); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem .95rem; }
.cards dt { color: var(--soft); font-size: .82rem; }
.cards dd { margin: 0; overflow-wrap: anywhere; }
.cards dd:nth-of-type(1) { font-weight: 650; line-height: 1.35; }
.cards dd:nth-of-type(2) { color: var(--soft); font-size: .88rem; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; margin: .7rem 0 1.2rem; }
table { border-collapse: collapse; font-size: .9rem; line-height: 1.35; }
caption { text-align: left; color: var(--soft); font-size: .86rem; padding: 0 0 .5rem; }
th, td { padding: .42rem .62rem .42rem .5rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; white-space: nowrap; font-weight: 400; }
th:first-child, td:first-child { padding-left: .25rem; }
thead th, .training tr:first-child > th { font-weight: 600; border-bottom: 2px solid var(--line);
  vertical-align: bottom; white-space: normal; }
th.name, td.name, .training th, .training td { text-align: left; white-space: normal; }
th.name { min-width: 10rem; max-width: 26rem; overflow-wrap: anywhere; }
.training td.number, .training th.number { text-align: right; white-space: nowrap; }
tbody tr:hover { background: var(--wash); }
small { display: block; color: var(--soft); font-size: .78rem; font-weight: 400; }
.best { font-weight: 700; color: var(--accent); }
.near { position: relative; }
.near::after { content: "≈"; color: var(--soft); position: absolute; right: -.05rem; }
.partial { color: var(--soft); font-style: italic; }
.up { background: var(--good-wash); color: var(--good); font-weight: 650; }
.down { background: var(--bad-wash); color: var(--bad); font-weight: 650; }
.even { color: var(--soft); }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
  text-align: inherit; }
th button { position: relative; }
th button::after { content: "↕"; color: var(--soft); font-weight: 400; position: absolute; bottom: 0;
  right: -.75em; }
th[aria-sort="ascending"] button::after { content: "↑"; }
th[aria-sort="descending"] button::after { content: "↓"; }
figure { margin: 1.2rem 0 1.8rem; }
figure svg { display: block; width: 100%; height: auto; min-width: 36rem; }
figure svg text { font-family: inherit; }
figure img { display: block; max-width: 100%; min-width: 34rem; height: auto; background: #fff; border-radius: .4rem; }
figcaption, .about { color: var(--soft); font-size: .88rem; max-width: 75ch; }
details { margin: .5rem 0; }
summary { cursor: pointer; font-weight: 600; padding: .35rem 0; }
code { font-size: .84rem; overflow-wrap: anywhere; font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
@media (max-width: 40rem) { body { padding: 1.2rem 1rem 3rem; } }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
@media print { nav, th button::after { display: none; } details > * { display: block; } }
"""

SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const words = head.classList.contains("name") || column === 0;
      const before = head.getAttribute("aria-sort");
      const up = before ? before === "descending" : words;
      const keyed = [...body.rows].map(row => {
        const cell = row.cells[column];
        return [cell.dataset.value === undefined ? null : Number(cell.dataset.value), cell.textContent, row];
      });
      keyed.sort(([a, x], [b, y]) => {
        if (words && column !== 0) return up ? x.localeCompare(y) : y.localeCompare(x);
        if (a === null || b === null) return (a === null) - (b === null);
        return up ? a - b : b - a;
      });
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.append(...keyed.map(([, , row]) => row));
    });
  });
}
"""


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
