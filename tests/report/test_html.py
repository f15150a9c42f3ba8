"""The page system: text is escaped in one place, blocks without content vanish, policy and script match."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from decoder2vec.package import __version__
from decoder2vec.report.figures import Figure
from decoder2vec.report.html import (
    SCRIPT,
    Cell,
    Html,
    Section,
    Table,
    bar,
    bullets,
    figure,
    folded,
    join,
    page,
    paragraph,
    subsection,
    table,
    tag,
    terms,
)
from toys.html_page import HOSTILE_TEXT, Page

ESCAPED = "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quotes&quot;"


def make_table(**options):
    rows = [[Cell("a"), Cell("1.0", 1.0)], [Cell("b"), Cell("2.0", 2.0)]]
    return Table("Scores", "In points", ["name", "score"], rows, **options)


def parse(text, tmp_path):
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    return Page(tmp_path / "page.html")


def test_text_and_attributes_are_escaped_and_html_is_not():
    assert tag("p", HOSTILE_TEXT, tag("b", "x"), title=HOSTILE_TEXT) == f'<p title="{ESCAPED}">{ESCAPED}<b>x</b></p>'
    assert join(HOSTILE_TEXT, Html("<br>")) == f"{ESCAPED}<br>"
    assert tag("p", "a" + tag("b", "x")) == "<p>a&lt;b&gt;x&lt;/b&gt;</p>"  # what is no longer `Html` is escaped


def test_attributes_are_renamed_or_left_out():
    assert tag("td", class_="x", data_value=1.5, id=None) == '<td class="x" data-value="1.5"></td>'
    assert tag("details", open=True, hidden=False) == "<details open></details>"
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


@pytest.mark.parametrize(
    "block",
    [
        lambda text: paragraph(text),
        lambda text: subsection(text, paragraph(text)),
        lambda text: bullets([text]),
        lambda text: terms(text, [text], "missing"),
        lambda text: folded(text, text),
        lambda text: table(Table(text, text, [text], [[Cell(text, small=text, link=f"#{text}")]])),
        lambda text: figure(Figure(text, text)),
        lambda text: page(text, [Section("s", text, paragraph(text))], kind=text, summary=text, command=text),
        lambda text: page("x", [], kind="x", cards=[(text, text, text)]),
    ],
)
def test_every_block_escapes_its_texts(block):
    assert "<script>alert" not in block(HOSTILE_TEXT) and ESCAPED in block(HOSTILE_TEXT)


def test_blocks_without_content_vanish():
    empty_table = Table("t", "c", ["x"], [])
    blocks = (paragraph(""), subsection("t", ""), bullets([]), folded("t", Html()), table(empty_table))
    assert all(block == "" and isinstance(block, Html) for block in blocks)


def test_page_has_header_footer_and_navigation(tmp_path):
    sections = [Section("a", "First", paragraph("one")), Section("b", "Empty", Html()), Section("c", "Last", Html("x"))]
    parsed = parse(page("Title", sections, kind="toy report", command="d2v toy --x 1"), tmp_path)
    assert f"Made by decoder2vec {__version__}. d2v toy --x 1" in parsed.text
    assert "decoder2vec toy report Title First Last First one Last x" in parsed.text
    assert {"#a", "#c", "#main"} <= set(parsed.addresses) and "#b" not in parsed.addresses


@pytest.mark.parametrize("sortable", [True, False])
def test_only_our_script_may_run_and_only_if_needed(sortable, tmp_path):
    source = page("Title", [Section("s", "S", table(make_table(sortable=sortable)))], kind="toy")
    parsed = parse(source, tmp_path)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert parsed.policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'")
    assert (f"script-src 'sha256-{digest}'" in parsed.policy) == sortable == ("script" in parsed.tags)


def test_table_is_accessible():
    source = table(make_table(footer=[Cell("mean"), Cell("1.5")]), with_title=False)
    assert '<div class="wide" tabindex="0" role="region" aria-label="Scores">' in source
    assert '<caption><span class="hidden">Scores: </span> In points</caption>' in source
    assert '<th scope="col" class="name">name</th>' in source and '<th scope="row" class="name">a</th>' in source
    assert '<td data-value="1.0">1.0</td>' in source and "<tfoot><tr>" in source


def test_bars_end_at_the_full_width():
    source = "".join(bar(value) for value in (-0.5, 0.25, 3.0))
    assert re.findall(r"width: ([\d.]+)%", source) == ["0.0", "25.0", "100.0"]


def test_half_a_surrogate_pair_does_not_break_a_page():
    assert "odd ? title" in page("odd \ud83d title", [], kind="toy")


def test_figure_uses_the_colours_and_ids_of_the_page(tmp_path):
    from decoder2vec.report.figures import COLOURS, panels

    for name in ("one", "two"):
        with panels(tmp_path / f"{name}.png", "Title", 1, 1, (3, 2), with_svg=True) as (_, grid):
            grid[0][0].plot([0, 1], [0, 1], color=COLOURS[1], marker="o")
    drawings = [figure(Figure("Title", "Caption.", tmp_path / f"{name}.png", "Headline")) for name in ("one", "two")]
    ids = [set(re.findall(r' id="([^"]*)"', drawing)) for drawing in drawings]
    assert ids[0] and not ids[0] & ids[1]
    for drawing, own in zip(drawings, ids, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^")]*)', drawing)) <= own
        assert "var(--c1)" in drawing and COLOURS[1].lower() not in drawing and "#000000" not in drawing
        assert 'aria-label="Title. Caption."' in drawing and "<p>Headline</p>" in drawing
