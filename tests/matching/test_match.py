"""Rankings in both directions and their reasons; fusion equals a plain loop; odd texts and invalid options."""

import doctest
import json
import logging
import re
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from decoder2vec.errors import DataFileError, EncoderError, InputError, UnsupportedError
from decoder2vec.matching import match as match_module
from decoder2vec.matching.match import MatchConfig, fuse, match, match_sides, score_sides
from decoder2vec.matching.section_scores import TextSimilarity, full_text
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.matching.terms import bm25_scores
from toys.sides import JOBS, RESUMES, LetterEncoder


@pytest.mark.parametrize("name", ["minmax", "zscore", "rrf"])
def test_fusion_equals_a_plain_loop(name):
    rng = np.random.default_rng(0)
    dense, lexical = rng.normal(size=(4, 6)), rng.integers(0, 3, (4, 6)).astype(float)
    lexical[2] = 5.0  # all candidates are equal
    expected = np.zeros((4, 6))
    for row, column in product(range(4), range(6)):
        for weight, scores in ((0.3, dense[row]), (0.7, lexical[row])):
            value, spread = scores[column], scores.max() - scores.min()
            if name == "minmax":
                scaled = (value - scores.min()) / spread if spread else 0
            elif name == "zscore":
                scaled = (value - scores.mean()) / scores.std() if spread else 0
            else:
                scaled = 1 / (60 + 1 + sum(other > value for other in scores))
            expected[row, column] += weight * scaled
    np.testing.assert_allclose(fuse(dense, lexical, 0.3, name), expected)


def test_fusion_refuses_invalid_options():
    scores = np.ones((1, 1))
    with pytest.raises(InputError, match="from 0 to 1"):
        fuse(scores, scores, 1.5)
    with pytest.raises(InputError, match="fusion"):
        fuse(scores, scores, 0.5, "magic")


def test_each_direction_is_ranked_by_its_own_fusion():
    config = MatchConfig(weight=0.4, top=10)
    matching = match_sides(JOBS, RESUMES, LetterEncoder(), config)
    job_texts, resume_texts = ([full_text(document) for document in side.documents] for side in (JOBS, RESUMES))
    dense = score_sides(JOBS, RESUMES, TextSimilarity(LetterEncoder()), config.aggregate).dense
    directions = (
        (dense, bm25_scores(job_texts, resume_texts), matching.for_left, "right"),
        (dense.T, bm25_scores(resume_texts, job_texts), matching.for_right, "left"),
    )
    for dense_scores, lexical_scores, rankings, side in directions:
        fused = fuse(dense_scores, lexical_scores, 0.4)
        for row, ranking in enumerate(rankings):
            order = sorted(range(fused.shape[1]), key=lambda column: -fused[row, column])
            assert [getattr(entry, side) for entry in ranking] == order
            np.testing.assert_allclose([entry.score for entry in ranking], sorted(fused[row], reverse=True))
            np.testing.assert_allclose([entry.dense for entry in ranking], dense_scores[row, order])
            np.testing.assert_allclose([entry.lexical for entry in ranking], lexical_scores[row, order])


def test_match_has_reasons():
    matching = match_sides(JOBS, RESUMES, LetterEncoder(), MatchConfig(top=2))
    assert RESUMES.documents[matching.for_left[1][0].right].id == "r2"
    reasons = matching.reasons[1, 1]
    assert {"gas", "pipelines"} <= set(reasons.terms.matched) and "Travel" in reasons.terms.missing
    assert reasons.pairs[0].right == "Welder of gas pipelines & tanks."
    best = matching.for_left[0][0]
    assert [section.left for section in matching.reasons[best.left, best.right].sections] == [
        "You will",
        "Requirements",
    ]
    assert set(matching.reasons) == {(entry.left, entry.right) for ranking in matching.for_left for entry in ranking}


@pytest.mark.parametrize("standardise", [False, True])
def test_every_text_is_encoded_once(standardise):
    encoder = LetterEncoder()
    many = Side("many", [*RESUMES.documents, *(SideDocument(f"m{n}", "night " * n + "bread") for n in range(20))])
    match_sides(JOBS, many, encoder, MatchConfig(top=10, standardise=standardise))
    assert len(encoder.encoded_texts) == len(set(encoder.encoded_texts))


def test_similarity_and_explain_of_the_encoder_are_used():
    class ExplainingEncoder(LetterEncoder):
        def similarity(self, a, b):
            return -np.abs(a[:, None] - b[None]).sum(2)

        def explain(self, a, b):
            return SimpleNamespace(readings=["layer 3"], contributions=[len(a) - len(b)])

    matching = match_sides(JOBS, RESUMES, ExplainingEncoder(), MatchConfig(top=1))
    assert all(entry.dense <= 0 for ranking in matching.for_left for entry in ranking)
    assert all(reasons.layers[0][0] == "layer 3" for reasons in matching.reasons.values())


def test_encoder_that_cannot_explain_is_asked_once():
    class UnexplainingEncoder(LetterEncoder):
        calls = 0

        def explain(self, a, b):
            self.calls += 1
            raise UnsupportedError("no blocks")

    encoder = UnexplainingEncoder()
    assert not any(reasons.layers for reasons in match_sides(JOBS, RESUMES, encoder).reasons.values())
    assert encoder.calls == 1  # every call would encode two texts


def test_one_document_on_each_side_is_enough():
    left, right = Side("one", [SideDocument("x", "Bread.")]), Side("two", [SideDocument("y", "Bread.")])
    matching = match_sides(left, right, LetterEncoder())
    assert len(matching.for_left[0]) == len(matching.for_right[0]) == 1


def test_invalid_sides_options_and_encoders_are_refused():
    with pytest.raises(InputError, match="no document"):
        match_sides(JOBS, Side("none", []), LetterEncoder())
    for invalid in ({"weight": 2}, {"top": 0}, {"fusion": "magic"}, {"aggregate": "some"}):
        with pytest.raises(InputError):
            MatchConfig(**invalid)

    class BrokenEncoder(LetterEncoder):
        def encode(self, texts, **_):
            return np.full((len(texts), 3), np.nan)

    with pytest.raises(EncoderError, match="not finite") as caught:
        match_sides(JOBS, RESUMES, BrokenEncoder())
    assert "rolls" not in str(caught.value)


def test_no_text_is_logged_or_printed(caplog, capsys):
    with caplog.at_level(logging.DEBUG):
        match_sides(JOBS, RESUMES, LetterEncoder())
    output = caplog.text + "".join(capsys.readouterr())
    assert not re.search("rolls|Welder|Brot|パン|Loaf", output)


def test_match_accepts_files_lists_and_sides(tmp_path):
    (tmp_path / "jobs.jsonl").write_text('{"id": "w", "title": "Welder", "text": "Weld pipelines."}\n', "utf-8")
    expected = match_sides(
        Side("jobs.jsonl", [SideDocument("w", "Weld pipelines.", "Welder")]),
        RESUMES,
        LetterEncoder(),
        MatchConfig(weight=0.3, top=2),
    )
    matching = match(tmp_path / "jobs.jsonl", RESUMES, LetterEncoder(), weight=0.3, top=2)
    assert matching == expected
    job = {"id": "w", "title": "Welder", "text": "Weld pipelines."}
    texts = [document.text for document in RESUMES.documents]
    listed = match([job], texts, LetterEncoder(), weight=0.3, top=2)
    assert listed.for_left == expected.for_left
    assert [document.id for document in listed.right.documents] == ["0", "1", "2", "3"]


def test_match_checks_options_and_sides_before_the_encoder(tmp_path):
    for invalid in ({"weight": 2}, {"top": 0}, {"fusion": "magic"}, {"aggregate": "some"}, {"pairs": -1}):
        with pytest.raises(InputError):
            match(tmp_path / "missing", tmp_path / "missing", "no such model", **invalid)
    with pytest.raises(DataFileError, match="does not exist"):
        match(tmp_path / "missing", ["text"], "no such model")
    with pytest.raises(InputError, match="has no `encode`"):
        match(["a"], ["b"], object())


def test_encoder_options_and_encode_kwargs_are_passed_on(own_cache):
    matching = match(["bread"], ["rolls"], "tiny-llama", encoder_options={"layer": 1, "device": "cpu"}, batch_size=1)
    other = match(["bread"], ["rolls"], "tiny-llama", encoder_options={"layer": 2, "device": "cpu"})
    assert matching.for_left[0][0].dense != other.for_left[0][0].dense
    with pytest.raises(InputError, match="no_such_argument"):
        match(["bread"], ["rolls"], "tiny-llama", no_such_argument=1)


def test_matching_as_json_names_documents_by_id():
    data = json.loads(json.dumps(match_sides(JOBS, RESUMES, LetterEncoder(), MatchConfig(top=3)).to_json()))
    first = data["for_left"][1][0]
    assert (first["left"], first["right"]) == ("w", "r2")
    assert "gas" in first["reasons"]["terms"]["matched"]
    assert data["choices"]["top"] == 3 and data["skipped"]["right"] == ["r5.txt: no text in it."]


def test_docstring_examples_run():
    results = doctest.testmod(match_module)
    assert results.attempted > 4 and results.failed == 0
