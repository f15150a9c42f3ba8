"""Plain text of HTML, Markdown and reStructuredText: what a reader sees, without marks, and the title.

All functions take time proportional to the length of the text, whatever it contains.
"""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import NamedTuple


class PlainText(NamedTuple):
    """A text without marks, and its title, empty if there is none."""

    text: str
    title: str = ""


# --- HTML -----------------------------------------------------------------------------------------------------------

_UNREAD = frozenset({"nav", "noscript", "template", "svg", "select", "button"})
"""Elements whose text is not part of the page's content; scripts and styles are removed before."""
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        """address article aside blockquote body center dd details dialog div dl dt fieldset figcaption figure footer h1
        h2 h3 h4 h5 h6 header hr html li main ol p pre section summary table tbody tfoot thead title tr ul""",
    )
)
_OPAQUE = re.compile(r"<(script|style)\b", re.IGNORECASE | re.ASCII)
_TAG = re.compile(r"</?[a-zA-Z][^\s/<>]*")
_QUOTED_OR_BRACKET = re.compile(r"""=\s*(?:"[^"]*"|'[^']*')|[<>]""")


def html_to_text(html: str) -> PlainText:
    """Return the visible text of an HTML page; navigation, scripts and styles are left out."""
    parser = _VisibleText()
    parser.feed(_simplified(html))
    parser.close()
    paragraphs = (" ".join(paragraph.split()) for paragraph in "".join(parser.pieces).split("\n\n"))
    text = "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
    title = " ".join("".join(parser.title).split())
    return PlainText(text, title)


class _VisibleText(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title: list[str] = []
        self._unread_depth = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unread_depth += tag in _UNREAD
        if tag == "title" and not self._unread_depth:  # a picture inside the page may have one, too
            self._in_title = not self.title
        self._separate(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._separate(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _UNREAD:
            self._unread_depth = max(0, self._unread_depth - 1)
        if tag == "title":
            self._in_title = False
        self._separate(tag)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._unread_depth:
            self.pieces.append(re.sub(r"\n+", "\n", data))

    def _separate(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.pieces.append("\n\n")
        elif tag in ("br", "td", "th"):
            self.pieces.append(" ")


def _simplified(html: str) -> str:
    """Remove comments, declarations, scripts, styles and attributes, and escape every < that opens no tag.

    The standard parser searches all of the rest for the end of each of them, which never ends on hostile pages.
    """
    pieces, position = [], 0
    while (start := html.find("<", position)) >= 0:
        pieces.append(html[position:start])
        if opaque := _OPAQUE.match(html, start):
            end_tag = re.compile(rf"</{opaque[1]}(?=[\s/>])", re.IGNORECASE | re.ASCII).search(html, start)
            position = _after(html, ">", end_tag.end() if end_tag else len(html))
        elif tag := _TAG.match(html, start):
            bracket = next((match for match in _QUOTED_OR_BRACKET.finditer(html, tag.end()) if match[0] in "<>"), None)
            if bracket and bracket[0] == ">":
                position = bracket.end()
                pieces.append(f"{tag[0]}/>" if html[position - 2] == "/" else f"{tag[0]}>")
            else:
                position = bracket.start() if bracket else len(html)
                pieces.append(html[start:position].replace("<", "&lt;"))
        elif html.startswith(("<!", "<?", "</"), start):
            position = _after(html, "-->" if html.startswith("<!--", start) else ">", start)
        else:
            position = start + 1
            pieces.append("&lt;")
    pieces.append(html[position:])
    return "".join(pieces)


def _after(text: str, end: str, start: int) -> int:
    """Return the offset after the next `end`, or the length of the text if there is none."""
    found = text.find(end, start)
    return found + len(end) if found >= 0 else len(text)


# --- Markdown -------------------------------------------------------------------------------------------------------

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?P<fields>(?:(?!---[ \t]*$).*\n){0,200})---[ \t]*(?:\n|\Z)", re.MULTILINE)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+)$", re.MULTILINE)
_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_HEADING = re.compile(r"\s{0,3}#{1,6}(?:\s|$)")
_RULE = re.compile(r"\s{0,3}(?:=+|-{2,}|[-*_](?:\s*[-*_]){2,})\s*")
_TABLE_RULE = frozenset("|-: \t")
_LINK_TARGET = re.compile(r"\s{0,3}\[[^\]\n]{1,200}\]:\s+\S.*")
_QUOTE = re.compile(r"^\s{0,3}(?:>\s?)+")
_STAR_ITEM = re.compile(r"^(\s*)[*+](\s+)")
_CODE = re.compile(r"(?<![\\`])(`{1,3})(?!`)(?P<code>[^\n]+?)(?<!`)\1(?!`)")
_INLINE = (
    (re.compile(r"!\[([^\[\]\n]*)\]\([^()\n]{0,2000}\)"), r"\1"),  # pictures, before the links around them
    (re.compile(r"\[([^\[\]\n]*)\]\([^()\n]{0,2000}(?:\([^()\n]{0,200}\)[^()\n]{0,200})?\)"), r"\1"),
    (re.compile(r"\[([^\[\]\n]+)\]\[[^\[\]\n]{0,200}\]"), r"\1"),
    (re.compile(r"<((?:https?://|mailto:)[^<>\s]{1,2000})>"), r"\1"),
    (re.compile(r"</?[a-zA-Z][^<>\n]{0,500}>|<!--[^<>\n]{0,2000}-->"), ""),
    (re.compile(r"(?<!\\)(\*{1,3})(?=\S)([^*\n]+)(?<=\S)\1"), r"\2"),
    (re.compile(r"(?<![\w\\])(_{1,3})(?=\S)([^_\n]+)(?<=\S)\1(?!\w)"), r"\2"),
    (re.compile(r"~~([^~\n]+)~~"), r"\1"),
    (re.compile(r"\\([!-/:-@\[-`{-~])"), r"\1"),
)


def markdown_to_text(markdown: str) -> PlainText:
    """Return a Markdown text without its marks; the title is in its front matter, or its first heading."""
    markdown = markdown.replace("\r\n", "\n").replace("\r", "\n")
    front = _FRONT_MATTER.match(markdown)
    front_title = _FRONT_TITLE.search(front["fields"]) if front else None
    title = front_title[1].strip().strip("\"'") if front_title else ""
    lines: list[str] = []
    fence = ""
    for line in markdown[front.end() if front else 0 :].split("\n"):
        mark = _FENCE.match(line)
        if mark and mark[1] == (fence or mark[1]):
            fence = "" if fence else mark[1]
        elif fence:
            lines.append(line)
        elif _HEADING.match(line):
            text = _inline(line.strip().strip("#").strip())
            title = title or text
            lines += ["", text, ""]
        elif _RULE.fullmatch(line):
            if line.lstrip().startswith(("=", "--")) and lines and lines[-1].strip():  # the line above is a heading
                title = title or lines[-1].strip()
            lines.append("")
        elif not _LINK_TARGET.fullmatch(line) and not ("|" in line and _TABLE_RULE.issuperset(line)):
            lines.append(_markdown_line(line))
    return PlainText(_join_lines(lines), title)


def _markdown_line(line: str) -> str:
    line = _STAR_ITEM.sub(r"\1-\2", _QUOTE.sub("", line))
    if line.lstrip().startswith("|"):
        line = "  ".join(cell.strip() for cell in line.strip().strip("|").split("|"))
    return _inline(line)


def _inline(text: str) -> str:
    text, codes = _set_code_aside(text, _CODE)
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return _put_code_back(unescape(text), codes)


def _set_code_aside(text: str, pattern: re.Pattern[str]) -> tuple[str, list[str]]:
    """Replace each code by its number between NUL characters, so that no mark is found in it."""
    codes: list[str] = []

    def number(match: re.Match[str]) -> str:
        codes.append(match["code"].strip())
        return f"\0{len(codes) - 1}\0"

    return pattern.sub(number, text.replace("\0", "")), codes


def _put_code_back(text: str, codes: list[str]) -> str:
    return re.sub("\0([0-9]+)\0", lambda number: codes[int(number[1])], text)


def _join_lines(lines: list[str]) -> str:
    """Join lines, with at most one empty line between them."""
    text = "\n".join(line.rstrip() for line in lines)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


# --- reStructuredText -----------------------------------------------------------------------------------------------

_RST_RULE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*|(?:=+|-+)(?:\s+(?:=+|-+))+\s*|\+[-=+]+\+\s*")
_RST_DIRECTIVE = re.compile(r"\s*\.\.\s+(?:\|[^|]{1,100}\|\s+)?[\w:+-]{1,100}::(?P<argument>.*)")
_RST_COMMENT = re.compile(r"\s*(?:\.\.(?:\s.*)?|__ .*)")
_RST_OPTION = re.compile(r"\s+:[\w-]{1,50}:.*")
_RST_SHOWN = re.compile(r"\s*\.\.\s+(?:note|warning|tip|important|hint|caution|danger|attention|topic|rubric)::")
_RST_CODE = re.compile(r"``(?P<code>[^`\n]+)``")
_RST_INLINE = (
    (re.compile(r"`([^`<\n]*[^`<\s])\s*<[^`<>\n]{1,2000}>`_{0,2}"), r"`\1`"),  # a link or role with a target
    (re.compile(r":[\w.:+-]{1,50}:`([^`\n]+)`"), r"\1"),
    (re.compile(r"`([^`\n]+)`_{0,2}"), r"\1"),
    (re.compile(r"(\*{1,2})(?=\S)([^*\n]+)(?<=\S)\1"), r"\2"),
    (re.compile(r"\b([a-zA-Z][\w-]{0,100})_(?!\w)"), r"\1"),
    (re.compile(r"::$"), ":"),
)


def rst_to_text(rst: str) -> PlainText:
    """Return a reStructuredText without its marks; the title is its first heading."""
    lines: list[str] = []
    title = ""
    in_directive = False
    for line in rst.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if _RST_RULE.fullmatch(line):
            if not title and lines and lines[-1].strip():
                title = lines[-1].strip()
            lines.append("")
        elif directive := _RST_DIRECTIVE.fullmatch(line):
            in_directive = True
            lines.append(_rst_inline(directive["argument"].strip()) if _RST_SHOWN.match(line) else "")
        elif _RST_COMMENT.fullmatch(line) or (in_directive and _RST_OPTION.fullmatch(line)):
            continue
        else:
            in_directive = in_directive and (not line.strip() or line[0].isspace())
            lines.append(_rst_inline(line))
    return PlainText(_join_lines(lines), title)


def _rst_inline(text: str) -> str:
    text, codes = _set_code_aside(text, _RST_CODE)
    for pattern, replacement in _RST_INLINE:
        text = pattern.sub(replacement, text)
    return _put_code_back(text, codes)
