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
from decoder2vec.matching.evaluation import FITS, read_labelled_set
from decoder2vec.matching.match import MatchConfig, fuse, match, match_sides, score_sides
from decoder2vec.matching.section_scores import SectionedSide, TextSimilarity
from decoder2vec.matching.sides import Side, SideDocument
from toys.sides import JOBS, RESUMES, LetterEncoder, WordEncoder


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


def test_calibrated_scores_equal_a_plain_computation():
    config = MatchConfig(weight=0.4, top=10)
    matching = match_sides(JOBS, RESUMES, LetterEncoder(), config)
    scores = score_sides(JOBS, RESUMES, TextSimilarity(LetterEncoder()), config.aggregate)
    dense, lexical = scores.dense_with_reference, scores.lexical_with_reference
    n, m = len(JOBS), len(RESUMES)
    unrelated = [[dense[n + i, m + j] for j in range(6) if i != j] for i in range(6)]
    level, mean = np.median(unrelated), np.mean(unrelated)
    parts = np.zeros_like(dense)
    trust = 2 / (2 + 2)  # of three jobs and four resumes
    row_means, column_means = ([float(np.mean(row)) for row in matrix] for matrix in (dense, dense.T))

    def offset_in_list(means, index, count):
        group = means[:count] if index < count else means[count:]
        return means[index] - sum(group) / len(group)

    for i, j in product(range(n + 6), range(m + 6)):
        with_right = [dense[i, m + k] for k in range(6) if k != i - n]
        with_left = [dense[n + k, j] for k in range(6) if k != j - m]
        to_reference = np.mean(with_right) - mean, np.mean(with_left) - mean
        in_list = offset_in_list(row_means, i, n), offset_in_list(column_means, j, m)
        offsets = [trust * own + (1 - trust) * other for own, other in zip(in_list, to_reference, strict=True)]
        expected_unrelated = min(max(level + sum(offsets), level + min(offsets)), (level + 1) / 2)
        parts[i, j] = 0.4 * (dense[i, j] - expected_unrelated) / (1 - expected_unrelated) + 0.6 * lexical[i, j]
    fit = np.median([parts[n + k, m + k] for k in range(6)])
    for row, ranking in enumerate(matching.for_left):
        order = sorted(range(m), key=lambda column: -parts[row, column])
        assert [entry.right for entry in ranking] == order
        for entry in ranking:
            part = parts[row, entry.right]
            expected = 0.5 * part / fit if part < fit else 0.5 + 0.5 * (part - fit) / (1 - fit)
            np.testing.assert_allclose(entry.score, max(0, expected))
            np.testing.assert_allclose(
                [entry.dense, entry.lexical], [dense[row, entry.right], lexical[row, entry.right]]
            )
    assert matching.for_right == [
        sorted(
            (entry for ranking in matching.for_left for entry in ranking if entry.right == j),
            key=lambda entry: -entry.share_below,
        )
        for j in range(m)
    ]


@pytest.mark.parametrize("aggregate", ["sections", "whole", "best"])
def test_scores_hardly_depend_on_the_other_candidates(aggregate):
    labelled = read_labelled_set()
    job, resume = next(zip(*np.nonzero(labelled.grades == FITS), strict=True))
    similarity, config = TextSimilarity(WordEncoder()), MatchConfig(aggregate=aggregate)
    similar_first = np.argsort(-labelled.grades[job], kind="stable")
    candidates = [labelled.resumes.documents[index] for index in (resume, *similar_first[similar_first != resume])]
    other_jobs = [document for index, document in enumerate(labelled.jobs.documents) if index != job]
    scores = []
    for n_candidates, n_other_jobs in ((1, 0), (10, 0), (100, 0), (10, 9), (100, 19)):
        jobs = Side("jobs", [labelled.jobs.documents[job], *other_jobs[:n_other_jobs]])
        side_scores = score_sides(jobs, Side("resumes", candidates[:n_candidates]), similarity, aggregate)
        scores.append(side_scores.fused(config).for_left[0, 0])
    np.testing.assert_allclose(scores[:3], scores[0], atol=1e-6)  # one job: not at all
    np.testing.assert_allclose(scores[3:], scores[0], atol=0.02)


def test_score_meaning_tells_whether_lists_compare():
    many = [f"Bread number {n} of a baker." for n in range(20)]
    assert "can be compared between lists" in match(["bread"], many, LetterEncoder()).score_meaning
    assert "other lists differ" in match(["bread"], many, LetterEncoder(), standardise=True).score_meaning


@pytest.mark.parametrize("text", ["Bake bread.", "C++ and R on Linux", "日本のパン職人です。"])
def test_the_same_text_twice_has_a_score_of_one(text):
    for others in ([], ["Weld pipes.", "Knit socks."]):
        same = match([text], [text, *others], WordEncoder()).for_left[0][0]
        assert same.right == 0
        np.testing.assert_allclose(same.score, 1.0)


def test_lone_candidate_that_fits_has_a_high_score():
    job, text = ["Bake bread and rolls."], "We bake bread and rolls at night."
    good, bad = (match(job, [other], WordEncoder()).for_left[0][0] for other in (text, "Weld pipes."))
    assert good.score > 0.4 > 0.1 > bad.score and good.share_below > 0.9 > bad.share_below


@pytest.mark.parametrize("fusion", ["minmax", "zscore", "rrf"])
def test_other_fusions_rank_each_direction_by_its_own_list(fusion):
    config = MatchConfig(weight=0.4, fusion=fusion, top=10)
    matching = match_sides(JOBS, RESUMES, LetterEncoder(), config)
    scores = score_sides(JOBS, RESUMES, TextSimilarity(LetterEncoder()))
    for matrix, rankings, side in (
        (fuse(scores.dense, scores.lexical, 0.4, fusion), matching.for_left, "right"),
        (fuse(scores.dense.T, scores.lexical.T, 0.4, fusion), matching.for_right, "left"),
    ):
        for row, ranking in enumerate(rankings):
            order = sorted(range(matrix.shape[1]), key=lambda column: -matrix[row, column])
            assert [getattr(entry, side) for entry in ranking] == order
    assert "cannot be compared" in matching.score_meaning
    assert all(entry.share_below is None for ranking in matching.for_left for entry in ranking)
    assert matching.to_json()["for_left"][0][0]["above"] is None


def test_match_has_reasons():
    matching = match_sides(JOBS, RESUMES, LetterEncoder(), MatchConfig(top=2, weight=0.2))
    assert RESUMES.documents[matching.for_left[1][0].right].id == "r2"
    reasons = matching.reasons[1, 1]
    assert {"gas", "pipelines"} <= set(reasons.terms.matched) and "Travel" in reasons.terms.missing
    assert reasons.pairs[0] == (
        "Weld pipelines for gas.",
        "Welder of gas pipelines & tanks.",
        reasons.pairs[0].similarity,
    )
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


def test_sentences_are_encoded_only_from_similar_passages():
    text = "\n\n".join(f"Skills\nBread number {n} is baked in oven {n}. Rolls of kind {n} are sold." for n in range(12))
    encoder = LetterEncoder()
    right = Side("long", [SideDocument("long", text)])
    match_sides(JOBS, right, encoder, MatchConfig(top=1))
    passages = {*SectionedSide.of(right).passages}
    sentences = [one for one in encoder.encoded_texts if one not in passages and one in text]
    assert 0 < len(sentences) <= 2 * 2 * len(JOBS) < 24


def test_boilerplate_is_no_reason():
    hollow = (
        "Excellent communication skills are required. Responsibilities include the following:\nTravel is part of it."
    )
    matching = match([f"Weld gas pipelines. {hollow}"], [f"{hollow}\nWelder of gas pipelines."], LetterEncoder())
    assert [pair[:2] for pair in matching.reasons[0, 0].pairs] == [("Weld gas pipelines.", "Welder of gas pipelines.")]


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
    data = json.loads(json.dumps(match_sides(JOBS, RESUMES, LetterEncoder(), MatchConfig(top=3, weight=0.2)).to_json()))
    first = data["for_left"][1][0]
    assert (first["left"], first["right"]) == ("w", "r2")
    assert "gas" in first["reasons"]["terms"]["matched"]
    assert "0.5 short texts that fit" in data["score_meaning"] and 0 <= first["score"] <= 1 >= first["above"] > 0.5
    assert data["choices"]["top"] == 3 and data["skipped"]["right"] == ["r5.txt: no text in it."]


def test_docstring_examples_run():
    results = doctest.testmod(match_module)
    assert results.attempted > 4 and results.failed == 0
