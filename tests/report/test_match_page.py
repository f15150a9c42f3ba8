"""The page of a matching: self-contained, every text escaped, an overview first, bars by score, texts at hand."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from decoder2vec.errors import InputError, StorageError
from decoder2vec.matching.match import MatchConfig, match, match_sides
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.report.api import match_report
from toys.html_page import HOSTILE_TEXT, Page

LEFT = Side("jobs", [SideDocument("a", "Bake bread at night.", "Baker"), SideDocument("b", HOSTILE_TEXT, HOSTILE_TEXT)])
RIGHT = Side(
    "resumes",
    [SideDocument("r1", "I bake bread."), SideDocument("r2", f"Welder. {HOSTILE_TEXT}", fields={"name": HOSTILE_TEXT})],
    [HOSTILE_TEXT],
)


class LetterCounts:
    """An encoder whose vectors count letters."""

    def encode(self, texts, **_):
        return np.array([[text.lower().count(letter) for letter in "abdeginrtw"] for text in texts], float) + 0.1


@pytest.fixture
def matching():
    return match_sides(LEFT, RIGHT, LetterCounts(), MatchConfig(top=2))


def test_page_is_escaped_linked_and_without_script(matching, tmp_path):
    page = Page(match_report(matching, tmp_path / "new" / "match.html", command="d2v match --left x"))
    assert not {"script", "img", "iframe"} & set(page.tags)
    assert page.text.count(HOSTILE_TEXT) >= 8
    assert len(page.ids) == len(set(page.ids))
    targets = [address[1:] for address in page.addresses if address != "data:,"]
    assert {"left-0", "left-1", "pair-0-0", "pair-1-1"} <= set(targets) <= set(page.ids)
    assert page.tags.count("details") == 2 + 4 * 3  # the texts of the jobs; each match, its reasons and its text
    assert page.text.index("All pairs at a glance") < page.text.index("Best of resumes")
    assert "jobs matched with resumes" in page.text and "d2v match --left x" in page.text
    assert page.policy.startswith("default-src 'none';") and "script-src" not in page.policy


def test_bars_show_the_scores(matching, tmp_path):
    source = Page(match_report(matching, tmp_path / "match.html")).source
    cards = re.findall(r'class="score">.*?</span>([\d.]+)</span><span class="bar".*?width: ([\d.]+)%', source)
    assert [score for score, _ in cards] == [f"{entry.score:.2f}" for row in matching.for_left for entry in row]
    assert [width for _, width in cards] == [f"{100 * entry.score:.1f}" for row in matching.for_left for entry in row]


def test_overview_has_a_cell_for_every_pair(matching, tmp_path):
    source = Page(match_report(matching, tmp_path / "match.html")).source
    cells = re.findall(r'--heat: (\d+)%".*?><a href="#pair-(\d)-(\d)">(\d+)</a>', source)
    assert [(int(i), int(j)) for _, i, j, _ in cells] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    scores = [f"{100 * max(0, matching.scores[int(i), int(j)]):.0f}" for _, i, j, _ in cells]
    assert [text for *_, text in cells] == scores
    assert max(cells, key=lambda cell: int(cell[3]))[0] == "100"


def test_overview_of_many_documents_shows_those_in_lists(tmp_path):
    many = Side("many", [SideDocument(f"r{n}", f"I bake {n} loaves of bread.") for n in range(60)])
    matching = match_sides(LEFT, many, LetterCounts(), MatchConfig(top=3))
    source = Page(match_report(matching, tmp_path / "match.html")).source
    assert source.count('scope="col"><span>') == 40 and "40 of 60 documents" in source


def test_names_are_readable_and_texts_at_hand(tmp_path):
    (tmp_path / "resumes.csv").write_text("id,text\n16852,Pastry chef from Ghent\n16853,Welder\n", "utf-8")
    matching = match(LEFT, tmp_path / "resumes.csv", LetterCounts())
    page = Page(match_report(matching, tmp_path / "match.html"))
    assert "Pastry chef from Ghent" in page.text and "16852" not in page.text
    assert "Best of resumes for each of jobs" in page.text and "Bake bread at night." in page.text


@pytest.mark.parametrize("fusion", ["zscore", "rrf"])
def test_bars_of_other_fusions_are_relative_to_the_best(fusion, tmp_path):
    matching = match_sides(LEFT, RIGHT, LetterCounts(), MatchConfig(top=2, fusion=fusion))
    shares = re.findall(r"style=\"width: ([\d.]+)%", Page(match_report(matching, tmp_path / "match.html")).source)
    assert shares[0] == "100.0" and all(0 <= float(share) <= 100 for share in shares)


def test_report_is_also_written_as_json(matching, tmp_path):
    data = json.loads(match_report(matching, tmp_path / "match.json").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(matching.to_json()))


def test_wrong_ending_and_unwritable_folder_are_refused(matching, tmp_path):
    with pytest.raises(InputError, match=r"must end in \.html .* or \.json"):
        match_report(matching, tmp_path / "match.pdf")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(StorageError, match=r"Cannot write to .*file"):
        match_report(matching, tmp_path / "file" / "match.html")


def test_lone_surrogate_does_not_break_the_report(tmp_path):
    odd = Side("odd", [SideDocument("x", "Bread \ud83d.")])
    assert "Bread" in Page(match_report(match_sides(odd, odd, LetterCounts()), tmp_path / "match.html")).text


def test_page_shows_contributions_of_layers(tmp_path):
    class ExplainingEncoder(LetterCounts):
        def explain(self, a, b):
            return SimpleNamespace(readings=["layer 3"], contributions=[len(a) - len(b)])

    matching = match_sides(LEFT, RIGHT, ExplainingEncoder(), MatchConfig(top=1))
    assert "layer 3" in Page(match_report(matching, tmp_path / "match.html")).text
