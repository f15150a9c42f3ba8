"""The HTML page system of all reports: page shell, sorting script and building blocks; the styles are in CSS files.

Text becomes HTML in one place, `tag`: a plain string is escaped, an `Html` string is inserted unchanged. A page holds
everything it shows and loads nothing, works without JavaScript, and follows the reader's light or dark theme.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from decoder2vec.errors import InputError, StorageError
from decoder2vec.package import __version__
from decoder2vec.report.figures import COLOURS, Figure
from decoder2vec.storage import atomic_file

STYLE = "".join(
    resources.files("decoder2vec.report").joinpath(name).read_text(encoding="utf-8")
    for name in ("theme.css", "report.css")
)
"""The style sheet of a report; the served page has the first part, too."""

SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const byText = heading.classList.contains("name");
      const previous = heading.getAttribute("aria-sort");
      const ascending = previous ? previous === "descending" : byText || column === 0;
      const rows = [...body.rows].map(row => {
        const cell = row.cells[column];
        const value = cell.dataset.value === undefined ? null : Number(cell.dataset.value);
        return {row, text: cell.textContent, value};
      });
      rows.sort((a, b) => {
        if (byText) return ascending ? a.text.localeCompare(b.text) : b.text.localeCompare(a.text);
        if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
        return ascending ? a.value - b.value : b.value - a.value;
      });
      headings.forEach(other => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      body.append(...rows.map(({row}) => row));
    });
  });
}
"""
_VOID_TAGS = ("meta", "link")

MADE_BY = "Made by decoder2vec"
"""In the footer of every page, also in Markdown, before the version."""


class Html(str):
    """A string that already is HTML. Every other string is escaped when it enters a page."""


@dataclass(frozen=True)
class Cell:
    """A table cell."""

    text: str
    value: float | None = None
    """Sort key; cells without one always come last."""
    small: str = ""
    """A second line in small print."""
    mark: str = ""
    """best, tied (no significant difference from the best), partial, higher, lower, even, or nothing."""
    link: str = ""
    """Where the text links to, such as `#left-3`."""


@dataclass(frozen=True)
class Table:
    """A table. One column names the rows, some may hold long texts, all others hold numbers."""

    title: str
    caption: str
    """What the numbers are, after the title."""
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    name_column: int = 0
    """Index of the column that names the rows."""
    text_columns: Collection[int] = ()
    """Indices of columns that hold long texts."""
    footer: Sequence[Cell] = ()
    """A last row, set apart from the others."""
    sortable: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page with a heading that the page's navigation links to; left out if the body is empty."""

    id: str
    title: str
    body: Html


def tag(name: str, /, *content: str, **attributes: str | float | bool | None) -> Html:
    """An HTML element; every text in it is escaped here.

    Args:
        name: Name of the element.
        content: Its children: plain strings are escaped, `Html` is inserted unchanged.
        attributes: Its attributes. Underscores become hyphens, and one at the end is dropped (`class_`). None and
            False leave the attribute out, True writes it without a value.
    """
    shown = "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{name}{shown}>" if name in _VOID_TAGS else f"<{name}{shown}>{join(*content)}</{name}>")


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def join(*parts: str) -> Html:
    """The parts one after another: plain strings are escaped, `Html` is inserted unchanged."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def page(
    title: str,
    sections: Iterable[Section],
    *,
    kind: str,
    summary: str = "",
    cards: Iterable[tuple[str, str, str]] = (),
    command: str = "",
) -> str:
    """A whole page. Its content security policy lets the browser load nothing and run only our own script.

    Args:
        title: Heading of the page.
        sections: Parts of the page, in order; those without a body are left out.
        kind: What the page is, such as `matching`; shown above the title.
        summary: Text below the title.
        cards: Key facts as label, name and detail.
        command: The command that makes the page, for the footer.
    """
    shown = [section for section in sections if section.body]
    links = [tag("a", section.title, href=f"#{section.id}") for section in shown]
    header = tag(
        "header",
        tag("p", tag("strong", "decoder2vec"), f" {kind}", class_="brand"),
        tag("h1", title),
        paragraph(summary),
        _cards(cards),
        tag("nav", *links, aria_label="Sections") if len(links) > 1 else Html(),
    )
    main = tag("main", *map(_section, shown), id="main")
    skip_link = tag("a", "Skip to the content", class_="skip", href="#main")
    body = join(skip_link, Html("\n"), header, Html("\n"), main, Html("\n"), _footer(command))
    scripts = '<table class="sortable' in body
    if scripts:
        body = join(body, Html("\n"), tag("script", Html(SCRIPT)))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_content_security_policy(scripts)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),  # or browsers request /favicon.ico
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    document = join(Html("<!DOCTYPE html>\n"), tag("html", head, Html("\n"), tag("body", body), lang="en"), Html("\n"))
    return document.encode("utf-8", "replace").decode("utf-8")  # JSON may hold half a surrogate pair, UTF-8 cannot


def _content_security_policy(scripts: bool) -> str:
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    if scripts:
        digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    return policy


def _section(section: Section) -> Html:
    heading = tag("h2", section.title, id=section.id)
    return join(tag("section", heading, Html("\n"), section.body, aria_labelledby=section.id), Html("\n"))


def _cards(cards: Iterable[tuple[str, str, str]]) -> Html:
    shown = [
        tag("div", tag("dt", label), tag("dd", name), tag("dd", detail) if detail else Html())
        for label, name, detail in cards
    ]
    return tag("dl", *shown, class_="cards") if shown else Html()


def made_by() -> str:
    """The sentence by which a report is told from other files."""
    return f"{MADE_BY} {__version__}."


def _footer(command: str) -> Html:
    return tag("footer", tag("p", made_by()), tag("p", tag("code", command)) if command else Html())


def paragraph(*content: str, muted: bool = False) -> Html:
    """A paragraph, or nothing if it has no content."""
    return tag("p", *content, class_="muted" if muted else None) if any(content) else Html()


def code(text: str) -> Html:
    """A command or a name in a monospaced font."""
    return tag("code", text)


def subsection(title: str, *content: str, id: str | None = None) -> Html:
    """A part of a section under a smaller heading; nothing if it has no content."""
    return tag("section", tag("h3", title), Html("\n"), *content, id=id) if any(content) else Html()


def bullets(lines: Iterable[str]) -> Html:
    """A bullet list, or nothing."""
    items = [tag("li", line) for line in lines]
    return tag("ul", *items) if items else Html()


def terms(label: str, words: Sequence[str], kind: str) -> Html:
    """A labelled row of terms, or nothing; their kind is `matched` or `missing`."""
    items = [tag("li", word) for word in words]
    return tag("div", tag("h5", label), tag("ul", *items), class_=f"terms {kind}") if items else Html()


def bar(share: float) -> Html:
    """A bar for a value between 0 and 1; the text next to it says the value."""
    width = 100 * min(1.0, max(0.0, share))
    return tag("span", tag("span", style=f"width: {width:.1f}%"), class_="bar", aria_hidden="true")


def folded(title: str, *content: str, is_open: bool = False, id: str | None = None) -> Html:
    """A part that opens and closes by a click on its title; nothing if it has no content."""
    if not any(content):
        return Html()
    return join(tag("details", tag("summary", title), Html("\n"), *content, id=id, open=is_open), Html("\n"))


def table(data: Table, *, with_title: bool = True) -> Html:
    """A table that a screen reader can follow, or nothing if it has no rows.

    Args:
        data: The table.
        with_title: False shows the title to screen readers only, for a table under a heading that says the same.
    """
    if not data.rows:
        return Html()
    headings = [
        tag("th", heading, scope="col", class_=_column_kind(data, n)) for n, heading in enumerate(data.headings)
    ]
    parts = [
        _caption(data, with_title),
        tag("thead", tag("tr", *headings)),
        Html("\n"),
        tag("tbody", *(_row(data, row) for row in data.rows)),
        tag("tfoot", _row(data, data.footer)) if data.footer else Html(),
    ]
    kinds = ["sortable"] if data.sortable and len(data.rows) > 1 else []
    kinds += ["texts"] if data.text_columns else []
    shown = tag("table", *parts, class_=" ".join(kinds) or None)
    return tag("div", shown, class_="wide", tabindex=0, role="region", aria_label=data.title)


def _caption(data: Table, with_title: bool) -> Html:
    title = tag("strong", data.title) if with_title else tag("span", f"{data.title}: ", class_="hidden")
    return tag("caption", title, " ", data.caption)


def _column_kind(data: Table, column: int) -> str | None:
    return "name" if column == data.name_column else "text" if column in data.text_columns else None


def _row(data: Table, row: Sequence[Cell]) -> Html:
    return join(tag("tr", *(_cell(cell, _column_kind(data, column)) for column, cell in enumerate(row))), Html("\n"))


def _cell(cell: Cell, kind: str | None) -> Html:
    content = tag("a", cell.text, href=cell.link) if cell.link else cell.text
    is_name = kind == "name"
    return tag(
        "th" if is_name else "td",
        content,
        tag("small", cell.small) if cell.small else Html(),
        scope="row" if is_name else None,
        class_=" ".join(filter(None, (kind, cell.mark))) or None,
        data_value=None if cell.value is None else repr(cell.value),
    )


def figure(data: Figure, *, with_title: bool = True) -> Html:
    """A figure as a drawing in the page's own colours, or a sentence why there is none.

    Args:
        data: The figure; its SVG lies next to the PNG.
        with_title: False leaves the title out, for a figure under a heading that says the same.
    """
    if data.file is None:
        return paragraph(f"{data.title}: {data.caption}", muted=True)
    svg = data.file.with_suffix(".svg").read_text(encoding="utf-8")
    prefix = f"f{zlib.crc32(data.file.stem.encode()):08x}"
    drawing = _inline_svg(svg, f"{data.title}. {data.caption}", prefix)
    return tag(
        "figure",
        tag("h3", data.title) if with_title else Html(),
        paragraph(data.headline),
        tag("div", drawing, class_="wide"),
        tag("figcaption", data.caption),
    )


def _inline_svg(svg: str, label: str, prefix: str) -> Html:
    """An SVG of matplotlib as a part of the page.

    Colours become the page's variables, so that the theme applies. Ids get a prefix: equal ids in two figures would
    refer to the first one, which may be inside a closed part of the page and is then not rendered. Without needless
    whitespace, attributes and digits (coordinates in hundredths of a point) it has half the size.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.S)
    svg = re.sub(r' id="[^"]*_\d+"', "", svg)  # ids of groups; those of clips and markers have no underscore
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = re.sub(r'style="[^"]*"', lambda match: _themed(match[0]), svg)
    svg = re.sub(r'(?<= d=")[^"]*|(?<= [xy]=")[^"]*', lambda match: _rounded(match[0]), svg)
    width = re.search(r'viewBox="0 0 ([\d.]+)', svg)
    style = f"max-width: {1.45 * float(width[1]):.0f}px" if width else None  # the same font size in all figures
    attributes = {"role": "img", "aria-label": label, "fill": "currentColor", "style": style}
    opening = f"<svg{''.join(_attribute(key, value) for key, value in attributes.items())} viewBox="
    return Html(re.sub(r"<svg [^>]*?viewBox=", lambda _: opening, svg, count=1))


def _themed(style: str) -> str:
    style = re.sub(r"font-family: [^;\"]*;? ?", "", style)  # the page has its own font
    style = re.sub(r"font: ([^;\"]*?)([\d.]+px) [^;\"]*", r"font-size: \2", style)  # the same in older matplotlib
    style = style.replace("#000000", "currentColor").replace("#ffffff", "var(--background)")
    style = style.replace("#b0b0b0", "var(--grid)")
    for index, colour in enumerate(COLOURS[:6]):
        style = style.replace(colour.lower(), f"var(--c{index})")
    return style


def _rounded(coordinates: str) -> str:
    shorter = re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), coordinates)
    return " ".join(shorter.split())


class _HasJson(Protocol):
    def to_json(self) -> Any:
        """The result as a document."""


def write_result(result: _HasJson, out: Path, draw: Callable[[], str]) -> Path:
    """Write a result as a page (.html), which `draw` returns, or as data (.json), and return its path."""
    text = draw() if check_report_path(out) == ".html" else json_text(result)
    with output_file(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return out


def check_report_path(out: str | Path) -> str:
    """The ending of a report's path, .html or .json; refuse any other."""
    ending = Path(out).suffix.lower()
    if ending not in (".html", ".json"):
        raise InputError(f"{out} must end in .html (a page to read) or .json (the same as data).")
    return ending


def json_text(result: _HasJson) -> str:
    """The text of a result as JSON."""
    text = json.dumps(result.to_json(), ensure_ascii=False, indent=1) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")  # JSON may hold half a surrogate pair, UTF-8 cannot


@contextmanager
def output_file(file: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `file` when the block ends without an error.

    Open it before any work: what cannot be written fails at once, not after minutes of drawing.

    Raises:
        StorageError: The file cannot be written.
    """
    try:
        with atomic_file(file) as temporary:
            yield temporary
    except OSError as error:
        reason = error.strerror or error
        raise StorageError(f"Cannot write to {file.parent}: {reason}; choose another folder: --out.") from None
