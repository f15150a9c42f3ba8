"""Two sides matched: every score against a plain loop, both directions, odd texts, a page that asks for nothing."""

import json
import logging
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from decoder2vec.errors import EncoderError, InputError, UnsupportedError
from decoder2vec.matching.match import MatchChoices, fuse, match_sides, score_sides
from decoder2vec.matching.section_scores import Similarities, document_sections, full_text
from decoder2vec.matching.sides import Document, Side
from decoder2vec.matching.terms import lexical_scores
from decoder2vec.report import match_report
from decoder2vec.report.match_page import match_page

JOBS = Side(
    "jobs",
    [
        Document("b", "You will: bake bread at night.\nRequirements: an oven school diploma.", "Baker"),
        Document("w", "Weld pipelines for gas. Travel is part of it.", "Welder"),
        Document("only", "", "Cook", {"skills": "soup and fish"}),
    ],
)
RESUMES = Side(
    "resumes",
    [
        Document("r1", "Summary\nI bake rolls.\nEducation\nOven school, 2019.", fields={"name": "Ann <b>Loaf</b>"}),
        Document("r2", "Welder of gas pipelines & tanks."),
        Document("r3", "Ich backe Brot in der Nacht. Ich habe Backen gelernt."),
        Document("r4", "日本のパン職人です。"),
    ],
    ["r5.txt: no text in it."],
)


class Letters:
    """An encoder whose vectors count letters."""

    def __init__(self):
        self.read = []

    def encode(self, texts, **_):
        self.read += texts
        return np.array([[text.lower().count(sign) for sign in "abcdeghilnoprstuw"] for text in texts], float) + 0.1


def cosine(a, b):
    left, right = Letters().encode([a, b])
    return left @ right / np.linalg.norm(left) / np.linalg.norm(right)


def plain_score(job, resume, aggregate):
    if aggregate == "whole":
        return cosine(full_text(job), full_text(resume))
    mine, theirs = document_sections(job), document_sections(resume)
    table = [[cosine(one.text, other.text) for other in theirs] for one in mine]
    if aggregate == "best":
        return max(map(max, table))
    ways = (table, mine), ([list(column) for column in zip(*table, strict=True)], theirs)
    means = [
        sum(max(row) * len(one.text.split()) for row, one in zip(rows, sections, strict=True))
        / sum(len(one.text.split()) for one in sections)
        for rows, sections in ways
    ]
    return sum(means) / 2


@pytest.mark.parametrize("aggregate", ["whole", "sections", "best"])
def test_scores_by_meaning_are_those_of_a_plain_loop(aggregate):
    found = score_sides(JOBS, RESUMES, Similarities(Letters()), aggregate)
    expected = [[plain_score(job, resume, aggregate) for resume in RESUMES.documents] for job in JOBS.documents]
    np.testing.assert_allclose(found.dense, expected)


def test_both_directions_are_ranked_by_their_own_fusion():
    choices = MatchChoices(weight=0.4, top=10)
    found = match_sides(JOBS, RESUMES, Letters(), choices)
    texts = [[full_text(one) for one in side.documents] for side in (JOBS, RESUMES)]
    dense = score_sides(JOBS, RESUMES, Similarities(Letters()), choices.aggregate).dense
    there, back = lexical_scores(*texts), lexical_scores(*texts[::-1])
    ways = (dense, there, found.for_left, "right"), (dense.T, back, found.for_right, "left")
    for meaning, words, rankings, side in ways:
        table = fuse(meaning, words, 0.4)
        for row, ranking in enumerate(rankings):
            order = sorted(range(table.shape[1]), key=lambda column: -table[row, column])
            assert [getattr(one, side) for one in ranking] == order
            np.testing.assert_allclose([one.score for one in ranking], sorted(table[row], reverse=True))
            np.testing.assert_allclose([one.dense for one in ranking], meaning[row, order])
            np.testing.assert_allclose([one.lexical for one in ranking], words[row, order])


def test_a_match_says_why():
    found = match_sides(JOBS, RESUMES, Letters(), MatchChoices(top=2))
    assert RESUMES.documents[found.for_left[1][0].right].id == "r2"
    why = found.reasons[1, 1]
    assert {"gas", "pipelines"} <= set(why.terms.matched) and "Travel" in why.terms.missing
    assert why.pairs[0].right == "Welder of gas pipelines & tanks."
    assert [one.left for one in found.reasons[found.for_left[0][0].left, found.for_left[0][0].right].sections] == [
        "You will",
        "Requirements",
    ]
    assert set(found.reasons) == {(one.left, one.right) for rows in found.for_left for one in rows}


@pytest.mark.parametrize("standardise", [False, True])
def test_every_text_is_read_once(standardise):
    encoder = Letters()
    many = Side("many", [*RESUMES.documents, *(Document(f"m{n}", "night " * n + "bread") for n in range(20))])
    match_sides(JOBS, many, encoder, MatchChoices(top=10, standardise=standardise))
    assert len(encoder.read) == len(set(encoder.read))


def test_standardised_similarities_are_cosines_of_standard_scores():
    class Drawn:
        def encode(self, texts, **_):
            rows = [np.random.default_rng(int(text)).normal(3, [1, 5, 0.1], 3) for text in texts]
            return np.array(rows, np.float32)

    texts = [str(n) for n in range(30)]
    vectors = Drawn().encode(texts).astype(float)
    scaled = (vectors - vectors.mean(0)) / vectors.std(0)
    unit = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    plain = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    bare = Similarities(Drawn())
    found = bare.standardised([*texts, texts[0]])(texts[:4], texts[4:9])
    np.testing.assert_allclose(found, unit[:4] @ unit[4:9].T, atol=1e-4)
    np.testing.assert_allclose(bare(texts[:4], texts[4:9]), plain[:4] @ plain[4:9].T)  # which stays as it was
    with pytest.raises(InputError, match="too few"):
        bare.standardised(texts[:5])


def test_a_long_text_is_read_in_parts_and_no_word_is_lost():
    long = Document("long", "\n".join(f"Sentence number {n} of a long life in bakeries." for n in range(120)))
    encoder = Letters()
    score_sides(JOBS, Side("long", [long]), Similarities(encoder), "whole")
    parts = [text for text in encoder.read if text.startswith("Sentence")]
    assert " ".join(parts).split() == long.text.split()
    assert max(len(part.split()) for part in parts) <= 200


def test_the_encoders_own_similarity_and_explanation_are_used():
    class Explaining(Letters):
        def similarity(self, a, b):
            return -np.abs(a[:, None] - b[None]).sum(2)

        def explain(self, a, b):
            from types import SimpleNamespace

            return SimpleNamespace(readings=["layer 3"], contributions=[len(a) - len(b)])

    found = match_sides(JOBS, RESUMES, Explaining(), MatchChoices(top=1))
    assert all(row.dense <= 0 for rows in found.for_left for row in rows)
    assert all(why.layers[0][0] == "layer 3" for why in found.reasons.values())
    assert "layer 3" in match_page(found)


def test_an_encoder_that_cannot_explain_is_no_error():
    class Silent(Letters):
        asked = 0

        def explain(self, a, b):
            self.asked += 1
            raise UnsupportedError("no blocks")

    encoder = Silent()
    assert not any(why.layers for why in match_sides(JOBS, RESUMES, encoder).reasons.values())
    assert encoder.asked == 1  # to ask costs the reading of two texts


def test_one_document_on_each_side_is_enough():
    one = Side("one", [Document("x", "Bread.")])
    found = match_sides(one, Side("two", [Document("y", "Bread.")]), Letters())
    assert len(found.for_left[0]) == len(found.for_right[0]) == 1


def test_what_cannot_be_matched_is_refused():
    with pytest.raises(InputError, match="no document"):
        match_sides(JOBS, Side("none", []), Letters())
    for wrong in ({"weight": 2}, {"top": 0}, {"fusion": "magic"}, {"aggregate": "some"}):
        with pytest.raises(InputError):
            MatchChoices(**wrong)

    class Broken(Letters):
        def encode(self, texts, **_):
            return np.full((len(texts), 3), np.nan)

    with pytest.raises(EncoderError, match="not finite") as caught:
        match_sides(JOBS, RESUMES, Broken())
    assert "rolls" not in str(caught.value)


def test_no_text_gets_into_a_log(caplog, capsys):
    with caplog.at_level(logging.DEBUG):
        match_sides(JOBS, RESUMES, Letters())
    said = caplog.text + "".join(capsys.readouterr())
    assert not re.search("rolls|Welder|Brot|パン|Loaf", said)


class Outline(HTMLParser):
    """What a page is made of: tags that must be closed, targets, links."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.texts = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given[name] for name in ("href", "src") if name in given]
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_is_whole_escaped_and_asks_for_nothing_outside(tmp_path):
    found = match_sides(JOBS, RESUMES, Letters(), MatchChoices(top=3))
    file = match_report(found, tmp_path / "new" / "report.html")
    outline = Outline()
    outline.feed(file.read_text("utf-8"))
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    icon, *links = outline.links
    assert icon == "data:,"  # empty: nothing is requested
    assert all(link.startswith("#") and link[1:] in outline.ids for link in links)
    assert outline.tags.count("link") == 1 and not {"script", "img", "iframe", "b"} & set(outline.tags)
    shown = " ".join(outline.texts)
    assert "Ann <b>Loaf</b>" in shown and "gas pipelines & tanks" in shown and "r5.txt: no text in it." in shown
    assert 'lang="en"' in file.read_text("utf-8") and "<caption>" in file.read_text("utf-8")


def test_the_report_as_data_names_documents_by_their_ids(tmp_path):
    found = match_sides(JOBS, RESUMES, Letters(), MatchChoices(top=3))
    data = json.loads(match_report(found, tmp_path / "report.json").read_text("utf-8"))
    first = data["for_left"][1][0]
    assert (first["left"], first["right"]) == ("w", "r2")
    assert "gas" in first["reasons"]["terms"]["matched"]
    with pytest.raises(InputError, match=r"\.html"):
        match_report(found, tmp_path / "report.docx")


def test_half_a_surrogate_pair_does_not_break_the_report(tmp_path):
    odd = Side("odd", [Document("x", "Bread \ud83d.")])
    assert "Bread" in match_report(match_sides(odd, odd, Letters()), tmp_path / "r.html").read_text("utf-8")


def test_a_document_that_is_nothing_but_a_heading_is_matched_as_a_whole():
    assert [section.text for section in document_sections(Document("a", "Skills"))] == ["Skills"]
