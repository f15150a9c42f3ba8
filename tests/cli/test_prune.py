"""`d2v prune` as people use it."""

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

CURVE = ["--triples", "triplets.tsv", "--samples", "24", "--batch", "8", "--device", "cpu"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with triplets, and one row of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    rows = ["\t".join((one.anchor, one.positive, one.negatives[0])) for one in toy_examples()]
    for name, some in (("triplets.tsv", rows), ("one.tsv", rows[:1])):
        Path(name).write_text("\n".join(["anchor\tpositive\tnegative", *some]) + "\n", encoding="utf-8")
    return tmp_path


def printed(*words):
    done = d2v(*words)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_curve_alone_is_drawn_and_recorded_and_no_model_is_written():
    out = printed("prune", "tiny-llama", *CURVE, "--plot", "--out", "curve")
    assert sorted(file.name for file in Path("curve").iterdir()) == ["curve.png", "pruning.json"]
    found = json.loads(Path("curve/pruning.json").read_text())
    assert found["model"] == found["curve"]["model"] == "tiny-llama" and "torch" in found["versions"]
    assert len(found["curve"]["losses"]) == 4
    assert f"{found['curve']['losses'][1]:.4f}" in out and "small" in out
    assert ("drop-rise-drop shape is absent" in out) == (not found["curve"]["drop_rise_drop"])


@pytest.mark.parametrize(("words", "depth"), [(["--keep", "70%"], 2), (["--layers", "3"], 3), (["--keep", "25%"], 1)])
def test_a_share_or_a_number_needs_no_triples(words, depth):
    out = printed("prune", "tiny-gpt2", *words, "--out", "cut", "--device", "cpu")
    assert Backbone.load("cut").n_layers == depth
    assert f"kept {depth} of 4 layers" in out and "parameters" in out
    found = json.loads(Path("cut/pruning.json").read_text())
    assert found["cut"]["layers"] == depth and "curve" not in found


def test_small_is_what_the_curve_says_and_any_recipe_trains_it():
    printed("prune", "tiny-qwen3", *CURVE, "--keep", "small", "--plot", "--out", "cut")
    found = json.loads(Path("cut/pruning.json").read_text())
    assert found["asked"] == "small" and found["cut"]["layers"] == found["curve"]["small"]
    assert Path("cut/curve.png").is_file() and Backbone.load("cut").n_layers == found["curve"]["small"]
    quick = ["--set", "training.epochs=1", "--set", "training.batch=8", "--device", "cpu"]
    printed("train", "--recipe", "lora", "--backbone", "cut", "--data", "triplets.tsv", "--out", "enc", *quick)
    assert np.isfinite(Encoder.load("enc").encode(["A cat sleeps."])).all()
    assert Encoder.load("enc").backbone.n_layers == found["curve"]["small"]


def test_an_encoder_is_cut_too():
    Encoder.from_pretrained("tiny-llama", device="cpu").save("enc")
    printed("prune", "enc", "--layers", "2", "--out", "cut", "--device", "cpu")
    assert Backbone.load("cut").n_layers == 2
    assert json.loads(Path("cut/pruning.json").read_text())["model"] == "enc"


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ([], InputError, "Say what to keep"),
        (["--keep", "0%"], InputError, "above 0% and below 100%"),
        (["--keep", "100%"], InputError, "above 0% and below 100%"),
        (["--keep", "medium"], InputError, "Unknown choice 'medium'"),
        (["--keep", "small"], InputError, "give triples"),
        (["--keep", "50%", "--layers", "2"], InputError, "not both"),
        (["--layers", "4"], InputError, "The model has 4 layers, and 4 means to keep 4"),
        (["--layers", "0"], InputError, "choose 1 to 3"),
        (["--layers", "2", "--plot"], InputError, "no curve to draw"),
        (["--triples", "one.tsv", "--keep", "small"], InputError, "one triple"),
        (["--triples", "nowhere.tsv"], DataFileError, "nowhere.tsv"),
        ([*CURVE, "--pooling", "meen"], InputError, "mean"),
        ([*CURVE, "--scale", "0"], InputError, "scale"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing(words, error, said):
    with pytest.raises(error, match=said):
        d2v("prune", "tiny-llama", *words, "--out", "cut")
    assert not Path("cut").exists()


def test_nothing_that_is_there_is_overwritten():
    Path("cut").mkdir()
    Path("cut/mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        d2v("prune", "tiny-llama", "--layers", "2", "--out", "cut")
    printed("prune", "tiny-llama", "--layers", "2", "--out", "model", "--device", "cpu")
    with pytest.raises(InputError, match="holds a model"):
        d2v("prune", "tiny-llama", *CURVE, "--out", "model")
    assert Path("cut/mine.txt").read_text() == "mine"


def test_an_encoder_with_a_soft_prompt_is_refused_in_words():
    quick = ["--set", "training.epochs=1", "--set", "training.batch=8", "--set", "tokens=2", "--device", "cpu"]
    words = ["--recipe", "soft_prompt", "--backbone", "tiny-llama", "--data", "triplets.tsv"]
    printed("train", *words, "--out", "enc", *quick)
    with pytest.raises(UnsupportedError, match="cannot be merged"):
        d2v("prune", "enc", "--layers", "2", "--out", "cut")
