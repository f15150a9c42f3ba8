"""Calibration of an encoder: what is fitted, what is written, and the probabilities that users then see."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.calibration import calibrate, positive_labels
from decoder2vec.encoder import Encoder
from decoder2vec.errors import EncoderError, InputError
from decoder2vec.matching.match import match
from decoder2vec.quick_encoder import QuickEncoder
from decoder2vec.search.index import Index
from decoder2vec.text.files import ScoredPairs
from toys.command import d2v

THINGS = ["bread", "water pumps", "old songs", "maps", "goats", "shoes", "green tea", "clocks", "wool", "bricks"]
OTHERS = ["Rain fell on the hills all night.", "Nobody knows when the train leaves, not even the driver."]
PAIRS = ScoredPairs(
    "toy",
    [f"We sell {thing}." for thing in THINGS for _ in range(3)],
    [text for thing in THINGS for text in (f"They sell {thing}.", *OTHERS)],
    [1.0, 0.0, 0.0] * len(THINGS),
)


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def encoder():
    return Encoder.from_pretrained(
        "tiny-llama", device="cpu", dtype="float32", layer=0, pooling="mean", template="plain"
    )


@pytest.fixture
def labelled():
    """A file of the pairs."""
    rows = zip(PAIRS.left, PAIRS.right, PAIRS.scores, strict=True)
    lines = ["sentence1\tsentence2\tlabel", *(f"{left}\t{right}\t{score:g}" for left, right, score in rows)]
    Path("labelled.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return "labelled.tsv"


def test_saved_encoder_gets_probabilities_and_nothing_else(encoder, labelled):
    folder = encoder.save("enc", copy_backbone=True)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    curves = {name: score.curve for name, score in calibrate("enc", labelled, device="cpu").scores.items()}
    after = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert [file.name for file in before if before[file] != after[file]] == ["encoder.json"]
    assert before.keys() == after.keys()
    assert Encoder.load("enc", device="cpu").probabilities == curves
    assert QuickEncoder.load("enc").probabilities == curves
    assert Encoder.load("enc", device="cpu").fingerprint == encoder.fingerprint


def test_curve_is_that_of_the_similarities(encoder):
    result = calibrate(encoder, PAIRS)
    left, right = encoder.encode(PAIRS.left), encoder.encode(PAIRS.right)
    expected = encoder.similarity_pairwise(left, right).numpy()
    np.testing.assert_allclose(result.scores["similarity"].scores, expected, atol=1e-5)
    assert result.scores["similarity"].quality.auc > 0.9
    assert result.folder is None


def test_calibrated_encoder_is_saved_with_its_probabilities(encoder):
    calibrate(encoder, PAIRS, out="copy")
    assert Encoder.load("copy", device="cpu").probabilities == encoder.probabilities != {}
    encoder.save("again")
    assert Encoder.load("again", device="cpu").probabilities == encoder.probabilities
    assert Encoder(encoder.backbone, encoder.spec).probabilities == {}


def test_copy_of_a_saved_encoder_has_all_its_files(encoder, labelled):
    encoder.save("enc", extra_files={"README.md": b"a card"})
    calibrate("enc", labelled, out="copy", device="cpu")
    assert Path("copy/README.md").read_bytes() == b"a card"
    assert Encoder.load("copy", device="cpu").probabilities
    assert not Encoder.load("enc", device="cpu").probabilities


@pytest.mark.parametrize("mode", ["dense", "hybrid", "lexical"])
def test_hits_have_the_probability_of_their_similarity(encoder, mode):
    calibrate(encoder, PAIRS)
    index = Index.create("idx", encoder)
    index.add([*PAIRS.right[:6], "We sell maps and " + "many other things " * 200])
    hits = Index.open("idx", for_queries=True).search("We sell maps.", mode=mode)
    query = encoder.encode(["We sell maps."])
    assert hits
    for hit in hits:
        similarity = float(encoder.similarity(query, encoder.encode([hit.text]))[0, 0])
        assert hit.probability.value == pytest.approx(encoder.probabilities["search"](similarity).value, abs=1e-4)
        assert hit.probability.low < hit.probability.value < hit.probability.high


@pytest.mark.parametrize("name", ["idx", "idx/encoder"])
def test_existing_index_gets_probabilities_and_stays_whole(encoder, labelled, name):
    index = Index.create("idx", encoder)
    index.add(["We sell maps."])
    result = calibrate(name, labelled, device="cpu")
    assert result.folder == Path("idx/encoder")
    opened = Index.open("idx", device="cpu")
    opened.verify()
    similarity = float(encoder.similarity(encoder.encode("maps"), encoder.encode("We sell maps.")))
    expected = result.scores["search"].curve(similarity)
    assert opened.search("maps")[0].probability == pytest.approx(expected, abs=1e-5)


def test_prompts_of_queries_are_calibrated(encoder):
    prompted = Encoder.from_pretrained(
        "tiny-llama", device="cpu", layer=0, pooling="mean", template="plain", prompts={"query": "search for: "}
    )
    scores = calibrate(prompted, PAIRS).scores
    left, right = prompted.encode_query(PAIRS.left), prompted.encode(PAIRS.right)
    np.testing.assert_allclose(scores["search"].scores, prompted.similarity_pairwise(left, right), atol=1e-5)
    assert not np.allclose(scores["search"].scores, scores["similarity"].scores)


def test_matches_have_probabilities(encoder):
    calibrate(encoder, PAIRS)
    jobs, resumes = ["We sell bread.", "We sell maps."], ["They sell maps.", *OTHERS]
    matching = match(jobs, resumes, encoder)
    curve = encoder.probabilities["match"]
    for best in (best for ranking in matching.for_left for best in ranking):
        assert best.probability == curve(matching.scores[best.left, best.right])
    assert matching.to_json()["for_left"][0][0]["probability"].keys() == {"value", "low", "high"}
    assert "d2v calibrate" in matching.score_meaning
    for options in ({"fusion": "minmax"}, {"weight": 0.5}, {"aggregate": "whole"}):  # other scores than were fitted
        assert match(jobs, resumes, encoder, **options).for_left[0][0].probability is None


def test_encoder_without_calibration_gives_none(encoder):
    assert match(["a"], ["b"], encoder).for_left[0][0].probability is None
    index = Index.create("idx", encoder)
    index.add(["We sell maps."])
    assert index.search("maps")[0].probability is None


def test_graded_scores_need_a_limit():
    pairs = ScoredPairs("graded", ["a"] * 3, ["b"] * 3, [0.0, 2.5, 5.0])
    with pytest.raises(InputError, match="--positive-from"):
        positive_labels(pairs)
    assert positive_labels(pairs, 2.5).tolist() == [False, True, True]


def test_reversed_labels_are_refused_and_nothing_is_written(encoder, labelled):
    encoder.save("enc")
    before = Path("enc/encoder.json").read_bytes()
    reversed_pairs = ScoredPairs("toy", PAIRS.left, PAIRS.right, [1 - score for score in PAIRS.scores])
    with pytest.raises(InputError, match="check the labels"):
        calibrate("enc", reversed_pairs, device="cpu")
    assert Path("enc/encoder.json").read_bytes() == before


@pytest.mark.parametrize("name", ["tiny-llama", "smollm2-135m-general"])
def test_model_or_builtin_encoder_needs_a_folder(name):
    with pytest.raises(InputError, match="--out"):
        calibrate(name, PAIRS)


def test_damaged_probabilities_are_refused(encoder):
    calibrate(encoder, PAIRS, out="enc")
    file = Path("enc/encoder.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"probabilities": {"similarity": [1, 2]}}))
    with pytest.raises(EncoderError, match="d2v calibrate"):
        Encoder.load("enc", device="cpu")


def test_command_writes_a_figure_and_others_print_probabilities(encoder, labelled):
    encoder.save("enc", copy_backbone=True)
    result = d2v("calibrate", "enc", "--data", labelled, "--plot", "curves.png", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "10 positive and 20 negative" in result.output
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    printed = d2v("similarity", "We sell maps.", "They sell maps.", "--encoder", "enc").output
    assert "probability: " in printed
    Path("jobs.jsonl").write_text('{"id": "1", "text": "We sell maps."}\n')
    printed = d2v("match", "--left", "jobs.jsonl", "--right", "jobs.jsonl", "--encoder", "enc").output
    assert "probability" in printed
    assert d2v("index", "jobs.jsonl", "--encoder", "enc", "--out", "idx").exit_code == 0
    assert "% (" in d2v("search", "idx", "maps").output
    (hit,) = map(json.loads, d2v("search", "idx", "maps", "--json").output.splitlines())
    assert hit["probability"]["low"] < hit["probability"]["value"] < hit["probability"]["high"]
