"""The report of a match: a complete, escaped page that loads nothing, or the same as JSON."""

import json
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from decoder2vec.errors import InputError
from decoder2vec.matching.match import MatchConfig, match_sides
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.report.match_page import page, write_report
from toys.sides import JOBS, RESUMES, LetterEncoder


class PageOutline(HTMLParser):
    """Tags, ids, links and texts of a page; asserts that every tag is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.texts = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append(tag)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes[name] for name in ("href", "src") if name in attributes]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_page_is_complete_escaped_and_loads_nothing(tmp_path):
    matching = match_sides(JOBS, RESUMES, LetterEncoder(), MatchConfig(top=3))
    file = write_report(matching, tmp_path / "new" / "report.html")
    outline = PageOutline()
    outline.feed(file.read_text("utf-8"))
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert all(link.startswith("#") and link[1:] in outline.ids for link in outline.links)
    assert not {"script", "img", "link", "iframe", "b"} & set(outline.tags)
    text = " ".join(outline.texts)
    assert "Ann <b>Loaf</b>" in text and "gas pipelines & tanks" in text and "r5.txt: no text in it." in text
    assert 'lang="en"' in file.read_text("utf-8") and "<caption>" in file.read_text("utf-8")


def test_page_shows_contributions_of_layers():
    class ExplainingEncoder(LetterEncoder):
        def explain(self, a, b):
            return SimpleNamespace(readings=["layer 3"], contributions=[len(a) - len(b)])

    assert "layer 3" in page(match_sides(JOBS, RESUMES, ExplainingEncoder(), MatchConfig(top=1)))


def test_report_as_json_names_documents_by_id(tmp_path):
    matching = match_sides(JOBS, RESUMES, LetterEncoder(), MatchConfig(top=3))
    data = json.loads(write_report(matching, tmp_path / "report.json").read_text("utf-8"))
    first = data["for_left"][1][0]
    assert (first["left"], first["right"]) == ("w", "r2")
    assert "gas" in first["reasons"]["terms"]["matched"]
    with pytest.raises(InputError, match=r"\.html"):
        write_report(matching, tmp_path / "report.docx")


def test_lone_surrogate_does_not_break_the_report(tmp_path):
    odd = Side("odd", [SideDocument("x", "Bread \ud83d.")])
    assert "Bread" in write_report(match_sides(odd, odd, LetterEncoder()), tmp_path / "r.html").read_text("utf-8")
