"""`d2v prune`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError, UnsupportedError
from toys.command import d2v
from toys.training import toy_examples

CURVE = ["--triplets", "triplets.tsv", "--samples", "24", "--batch", "8", "--device", "cpu"]


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    """The current folder, with a file of triplets and a file of one triplet."""
    monkeypatch.chdir(tmp_path)
    rows = ["\t".join((example.anchor, example.positive, example.negatives[0])) for example in toy_examples()]
    for name, lines in (("triplets.tsv", rows), ("one.tsv", rows[:1])):
        Path(name).write_text("\n".join(["anchor\tpositive\tnegative", *lines]) + "\n", encoding="utf-8")
    return tmp_path


def run(*arguments):
    """The output of a command that succeeds."""
    result = d2v(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_curve_alone_is_drawn_and_no_model_written():
    output = run("prune", "tiny-llama", *CURVE, "--plot", "--out", "curve")
    assert sorted(file.name for file in Path("curve").iterdir()) == ["curve.png", "pruning.json"]
    note = json.loads(Path("curve/pruning.json").read_text())
    assert note["model"] == note["curve"]["model"] == "tiny-llama" and "torch" in note["versions"]
    assert len(note["curve"]["losses"]) == 4
    assert f"{note['curve']['losses'][1]:.4f}" in output and "small" in output
    assert ("drop-rise-drop shape is absent" in output) == (not note["curve"]["drop_rise_drop"])


@pytest.mark.parametrize(("options", "depth"), [(["--keep", "70%"], 2), (["--layers", "3"], 3), (["--keep", "25%"], 1)])
def test_share_or_number_of_layers_needs_no_triplets(options, depth):
    output = run("prune", "tiny-gpt2", *options, "--out", "cut", "--device", "cpu")
    assert Backbone.load("cut").n_layers == depth
    assert f"kept {depth} of 4 layers" in output and "parameters" in output
    note = json.loads(Path("cut/pruning.json").read_text())
    assert note["cut"]["layers"] == depth and "curve" not in note


def test_small_model_by_the_curve_can_be_trained():
    run("prune", "tiny-qwen3", *CURVE, "--keep", "small", "--plot", "--out", "cut")
    note = json.loads(Path("cut/pruning.json").read_text())
    assert note["asked"] == "small" and note["cut"]["layers"] == note["curve"]["small"]
    assert Path("cut/curve.png").is_file() and Backbone.load("cut").n_layers == note["curve"]["small"]
    quick = ["--set", "training.epochs=1", "--set", "training.batch=8", "--device", "cpu"]
    run("train", "--recipe", "lora", "--backbone", "cut", "--data", "triplets.tsv", "--out", "enc", *quick)
    assert np.isfinite(Encoder.load("enc").encode(["A cat sleeps."])).all()
    assert Encoder.load("enc").backbone.n_layers == note["curve"]["small"]


def test_saved_encoder_is_cut():
    Encoder.from_pretrained("tiny-llama", device="cpu").save("enc")
    run("prune", "enc", "--layers", "2", "--out", "cut", "--device", "cpu")
    assert Backbone.load("cut").n_layers == 2
    assert json.loads(Path("cut/pruning.json").read_text())["model"] == "enc"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ([], InputError, "Choose what to keep"),
        (["--keep", "0%"], InputError, "above 0% and below 100%"),
        (["--keep", "100%"], InputError, "above 0% and below 100%"),
        (["--keep", "medium"], InputError, "Unknown choice 'medium'"),
        (["--keep", "small"], InputError, "give triplets"),
        (["--keep", "50%", "--layers", "2"], InputError, "not both"),
        (["--layers", "4"], InputError, "The model has 4 layers, and 4 means to keep 4"),
        (["--layers", "0"], InputError, "choose 1 to 3"),
        (["--layers", "2", "--plot"], InputError, "no curve to draw"),
        (["--triplets", "one.tsv", "--keep", "small"], DataFileError, "one triplet"),
        (["--triplets", "nowhere.tsv"], DataFileError, "nowhere.tsv"),
        ([*CURVE, "--pooling", "meen"], InputError, "mean"),
        ([*CURVE, "--scale", "0"], InputError, "scale"),
    ],
)
def test_mistakes_are_one_sentence_and_write_nothing(options, error, message):
    with pytest.raises(error, match=message):
        d2v("prune", "tiny-llama", *options, "--out", "cut")
    assert not Path("cut").exists()


def test_existing_files_are_not_overwritten():
    Path("cut").mkdir()
    Path("cut/mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        d2v("prune", "tiny-llama", "--layers", "2", "--out", "cut")
    run("prune", "tiny-llama", "--layers", "2", "--out", "model", "--device", "cpu")
    with pytest.raises(InputError, match="contains a model"):
        d2v("prune", "tiny-llama", *CURVE, "--out", "model")
    assert Path("cut/mine.txt").read_text() == "mine"


def test_encoder_with_a_soft_prompt_is_refused():
    quick = ["--set", "training.epochs=1", "--set", "training.batch=8", "--set", "tokens=2", "--device", "cpu"]
    options = ["--recipe", "soft_prompt", "--backbone", "tiny-llama", "--data", "triplets.tsv"]
    run("train", *options, "--out", "enc", *quick)
    with pytest.raises(UnsupportedError, match="cannot be merged"):
        d2v("prune", "enc", "--layers", "2", "--out", "cut")


# --- vocabulary -----------------------------------------------------------------------------------------------------


@pytest.fixture
def texts():
    texts = [example.anchor for example in toy_examples()]
    Path("texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    Path("others.txt").write_text("Quantum zebras\n" + texts[0] + "\n", encoding="utf-8")
    return texts


def test_vocabulary_is_pruned_and_counted(texts):
    output = run("prune", "tiny-gpt2", "--vocabulary", "texts.txt", "--held-out", "others.txt", "--out", "small")
    assert "of 512 tokens" in output and "24 of 24 texts keep their tokens" in output
    assert "of 2 held-out texts 1 fall back" in output
    whole, small = (Encoder.from_pretrained(name, device="cpu", dtype="float32") for name in ("tiny-gpt2", "small"))
    assert np.array_equal(whole.encode(texts), small.encode(texts))
    assert json.loads(Path("small/pruning.json").read_text())["vocabulary"]["off"] == 0


def test_vocabulary_size_is_a_limit(texts):
    run("prune", "tiny-llama", "--vocabulary", "texts.txt", "--vocabulary-size", "280", "--out", "small")
    assert Backbone.load("small").vocabulary_size <= 280


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--vocabulary", "texts.txt", "--layers", "2"], "one after the other"),
        (["--vocabulary", "texts.txt", "--keep", "50%"], "one after the other"),
        (["--vocabulary-size", "300", "--layers", "2"], "--vocabulary FILE"),
        (["--held-out", "others.txt", "--layers", "2"], "--vocabulary FILE"),
        (["--vocabulary", "texts.txt", "--vocabulary-size", "20"], "always kept"),
        (["--vocabulary", "texts.txt", "--plot"], "--plot belongs to the curve of --triplets; leave it out"),
        (["--vocabulary", "texts.txt", "--samples", "5"], "--samples belongs to the curve of --triplets"),
        (["--layers", "2", "--samples", "5"], "--samples belongs to the curve of --triplets"),
    ],
)
def test_mistakes_about_the_vocabulary_are_one_sentence(options, message, texts):
    with pytest.raises(InputError, match=message):
        d2v("prune", "tiny-llama", *options, "--out", "small")
    assert not Path("small").exists()
