"""`d2v choose`: trained and quick, files and figure, and one sentence for bad input."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from PIL import Image

from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.errors import Decoder2VecError
from toys.choosing import write_gap
from toys.command import d2v

OPTIONS = ("--device", "cpu", "--dtype", "float32")
SOURCES = ("base=tiny-llama", "both=tiny-llama#bidirectional")


@pytest.fixture
def labelled(tmp_path):
    """Texts whose label is their last word."""
    file = tmp_path / "labelled.tsv"
    rows = [f"{word}\t{n}: we saw a {word}" for n in range(30) for word in ("cat", "tree")]
    file.write_text("label\ttext\n" + "\n".join(rows) + "\n", "utf-8")
    return file


def test_training_prints_layers_probes_controls_weights_and_a_verdict(labelled, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["d2v", "choose", str(labelled)])
    fast = ("--layers", "0,2", "--seeds", "1,2", "--epochs", 6, "--aggregators", "mean,attention")
    result = d2v("choose", *SOURCES, "--data", labelled, "--out", out, *fast, *OPTIONS)
    for phrase in (
        "labelled: classification, 36 training, 12 validation and 12 test examples",
        "best layer of each source",
        "base + linear layer",
        "2 copies of the base",
        "shuffled labels",
        "source weights by epoch, attention of",
        "cosine to base: base 1.00",
        "Best on validation data:",
    ):
        assert phrase in result.stdout
    document = json.loads((out / "choose.json").read_text("utf-8"))
    assert document["command"].startswith("d2v ") and len(document["layers"]) == 4
    assert [control["name"] for control in document["controls"]][1:] == [
        "base + linear layer",
        "2 copies of the base",
        "shuffled labels",
    ]
    assert document["versions"]
    with Image.open(out / "choose.png") as image:
        assert image.width > 800
    again = d2v("choose", *SOURCES, "--data", labelled, "--out", out, "--quick", *OPTIONS)  # replaces its own files
    assert "By LogME, without training" in again.stdout
    assert json.loads((out / "choose.json").read_text("utf-8"))["probes"] == []


def test_quick_mode_as_json(labelled):
    result = d2v("choose", "tiny-llama", "--data", labelled, "--quick", "--json", *OPTIONS)
    document = json.loads(result.stdout)
    assert len(document["layers"]) == 5 and document["controls"] == []
    assert document["best_layers"]["tiny-llama"]["logme"] == max(row["logme"] for row in document["layers"])


def test_cosines_with_a_model_of_the_task(labelled):
    options = ("--data", labelled, "--quick", "--target", "tiny-llama#bidirectional")
    cosines = json.loads(d2v("choose", *SOURCES, *options, "--json", *OPTIONS).stdout)["cosines"]
    assert cosines.pop("target") == "target"
    assert cosines["both"] == pytest.approx(1, abs=1e-3) and abs(cosines["base"]) <= 1
    printed = d2v("choose", *SOURCES, *options, *OPTIONS).stdout
    assert f"cosine to target: base {cosines['base']:.2f}, both 1.00\n" in printed


def test_another_tokenizer_is_aligned_by_words_on_request(labelled, tmp_path):
    folder = shutil.copytree(tiny_folder("tiny-llama"), tmp_path / "lower")
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokenizer["normalizer"] = {"type": "Replace", "pattern": {"String": "tree"}, "content": "oak wood"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    options = ("--data", labelled, "--quick", "--json", *OPTIONS)
    with pytest.raises(Decoder2VecError, match="--align-words"):
        d2v("choose", "tiny-llama", folder, *options)
    together = json.loads(d2v("choose", "tiny-llama", folder, "--align-words", *options).stdout)
    alone = [json.loads(d2v("choose", source, *options).stdout) for source in ("tiny-llama", folder)]
    assert together["layers"] == [row for document in alone for row in document["layers"]]


def test_gap_is_scored_by_gender(tmp_path):
    file = write_gap(tmp_path / "gap.tsv", repeat=6)
    fast = ("--layers", "2", "--seeds", "1", "--epochs", 3)
    result = d2v("choose", "tiny-llama", "--data", file, *fast, *OPTIONS)
    assert "gap: span pair, 36 training, 12 validation and 12 test examples" in result.stdout
    assert "feminine" in result.stdout and "masculine" in result.stdout and "test f1" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seeds", "one"), "--seeds takes numbers"),
        (("--seeds", ""), "no seeds"),
        (("--layers", "99"), "there is no layer 99"),
        (("--aggregators", "max"), "Unknown aggregator 'max'"),
        (("--limit", "2"), "limit of 2 texts"),
    ],
)
def test_bad_options_are_one_sentence(labelled, options, message):
    with pytest.raises(Decoder2VecError, match=message):
        d2v("choose", "tiny-llama", "--data", labelled, *options, *OPTIONS)


def test_a_folder_with_other_files_is_refused_before_the_work(labelled, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(Decoder2VecError, match=r"holds notes.txt, which is no result of choose"):
        d2v("choose", "no-such-model", "--data", labelled, "--out", tmp_path / "mine")
