"""`d2v train` with recipes that adapt the model: soft prompts, prefixes, LoRA and full training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from toys.command import cosine, d2v, one_line, tiny_encoder, write_rows
from toys.training import toy_examples, toy_pairs

QUICK = ["--set", "training.epochs=1", "--set", "training.batch=8"]
TINY = ["--backbone", "tiny-llama", "--device", "cpu"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with triplets as CSV and as TSV, and scored pairs for dev."""
    monkeypatch.chdir(tmp_path)
    rows = [(example.anchor, example.positive, example.negatives[0]) for example in toy_examples()]
    (tmp_path / "data").mkdir()
    for name, separator in (("data/mine.csv", ","), ("triplets.tsv", "\t")):
        lines = [separator.join(row) for row in [("anchor", "positive", "negative"), *rows]]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = toy_pairs()
    lines = [f"{a}\t{b}\t{score}" for a, b, score in zip(pairs.left, pairs.right, pairs.scores, strict=True)]
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tscore\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def train(*args):
    """What a successful `d2v train ARGS` prints."""
    result = d2v("train", *args)
    assert result.exit_code == 0, result.output
    return result.output


def read_results(file="enc/results.json"):
    return json.loads(Path(file).read_text())


@pytest.mark.parametrize("recipe", ["soft_prompt", "kv_prefix", "lora", "bottleneck", "conv", "full"])
def test_one_csv_file_is_enough(recipe):
    output = train("--recipe", recipe, "--data", "data/mine.csv", "--out", "enc", *TINY, *QUICK)
    assert "set aside to choose on" in output and "wrote the encoder enc" in output
    results = read_results()
    assert results["config"]["recipe"] == recipe and results["data"]["examples"]
    assert recipe in Path("enc/README.md").read_text()
    assert np.isfinite(Encoder.load("enc").encode(["A cat sleeps."])).all()


@pytest.mark.parametrize("objective", ["punctuation", "punctuation_lm"])
def test_punctuation_score_is_printed_and_saved(objective, folder):
    names, verbs = ("Anna", "Ben", "Ida", "Otto", "Eva"), ("runs", "sings", "waits", "sees")
    lines = [f"{name} {verb}, and {name} knows. Who is {name}?" for name in names for verb in verbs]
    (folder / "data" / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = [f"objective.name={objective}", "attention=bidirectional", "read.max_length=48", "training.steps=2"]
    options = [part for setting in settings for part in ("--set", setting)]
    output = train("--recipe", "lora", "--data", "data/texts.txt", "--out", "enc", *TINY, *options)
    rates = read_results()["seeds"][0]["notes"]["restoration"]
    assert f"seed 0: punctuation and capitals restored with F1 {100 * rates['f1']:.1f}%" in output
    assert "punctuation and capitals restored" in Path("enc/README.md").read_text()


@pytest.mark.parametrize("head", ["pointer", "lm"])
def test_order_of_sentences_is_printed_and_saved(head, folder):
    names, verbs = ("Anna", "Ben", "Ida", "Otto", "Eva"), ("runs", "sings", "waits", "sees")
    lines = [f"{name} {verb}. It rains. {name} goes home." for name in names for verb in verbs]
    (folder / "data" / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = ("--set", f"objective.head={head}", "--set", "training.steps=2")
    output = train("--recipe", "unshuffle", "--data", "data/texts.txt", "--out", "enc", *TINY, *options)
    order = read_results()["seeds"][0]["notes"]["order"]
    found = f"{order['accuracy']:.1f} % of {order['steps']} steps"
    line = f"seed 0: the next sentence found in {found}, by chance in 41.7 %"
    assert line in output and line in Path("enc/README.md").read_text()


def test_grid_is_chosen_on_the_dev_pairs_of_a_folder():
    options = ["--recipe", "soft_prompt", "--data", ".", "--set", "tokens=2", "--grid", "training.rate=0.1,0.01"]
    output = train(*options, "--out", "enc", "--seeds", "0,1", "--results", "results.json", *TINY, *QUICK)
    results = read_results("results.json")
    assert [trial["settings"]["training.rate"] for trial in results["grid"]] == [0.1, 0.01]
    assert results["config"]["soft_prompt"]["training"]["rate"] in (0.1, 0.01)
    assert len(results["seeds"]) == 2 and "dev" in output


def test_adapter_can_be_trained_on_scored_pairs():
    options = ["--recipe", "lora", "--data", "dev.tsv", "--dev", "dev.tsv", "--set", "objective.name=cosent"]
    train(*options, "--out", "enc", *TINY, *QUICK)
    assert Encoder.load("enc").backbone.adapter.kind == "lora"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--recipe", "lora", "--data", "nowhere.csv"], "There is no file or folder nowhere.csv"),
        (["--recipe", "loar", "--data", "data/mine.csv"], "lora"),
        (["plan.toml", "--recipe", "lora"], "leave out --recipe"),
        (["--recipe", "soft_prompt", "--data", "data/mine.csv", "--set", "tokens=0"], "0"),
        (["--recipe", "soft_prompt", "--data", "data/mine.csv", "--set", "place=prepend"], "never sees it"),
        (["--recipe", "lora", "--data", "dev.tsv"], "scored pairs"),
        (["--recipe", "lora", "--data", "data/mine.csv", "--trials", "3"], r"The plan has no \[search\] table"),
    ],
)
def test_mistake_is_reported_and_nothing_written(options, message, folder):
    (folder / "plan.toml").write_text('recipe = "lora"\n')
    with pytest.raises((InputError, ValueError), match=message):
        train(*options, "--out", "enc", *TINY, *QUICK)
    assert not (folder / "enc").exists()


def test_last_line_compares_with_the_untrained_model():
    output = train("--recipe", "lora", "--data", "data/mine.csv", "--out", "enc", *TINY, "--set", "training.steps=2")
    assert "about 2 training step(s)" in output
    assert output.strip().splitlines()[-1].startswith("dev ") and "untrained" in output.strip().splitlines()[-1]


def test_training_that_made_it_worse_is_in_the_headline():
    """The dev scores are the untrained model's own cosines, which a random prompt can only make worse."""
    encoder, pairs = tiny_encoder(template="prompteol", pooling="lasttoken", normed=True), toy_pairs()
    cosines = [cosine(*encoder.encode([a, b])) for a, b in zip(pairs.left, pairs.right, strict=True)]
    dev = write_rows(Path("own.tsv"), zip(pairs.left, pairs.right, cosines, strict=True))
    options = ("--recipe", "soft_prompt", "--data", "triplets.tsv", "--dev", dev, *TINY, "--set", "training.steps=1")
    output = train(*options, "--out", "enc")
    assert "worse than the untrained model" in one_line(output) and "--keep-better" in output.strip().splitlines()[-1]
    assert "made it worse" not in train(*options, "--out", "better", "--keep-better")


def test_files_that_were_not_named_are_not_used(folder):
    (folder / "dev.tsv").write_text("question\tanswer\nWhere?\tHere.\n", encoding="utf-8")
    output = train("--recipe", "lora", "--data", "triplets.tsv", "--out", "enc", *TINY, *QUICK)
    assert "dev.tsv was not named and is not used" in output
    assert "set aside to choose on" in output
    train("--recipe", "lora", "--train", "triplets.tsv", "--out", "other", *TINY, *QUICK)


def test_auto_dev_uses_the_files_beside_the_data():
    train("--recipe", "lora", "--data", "triplets.tsv", "--out", "enc", "--auto-dev", *TINY, *QUICK)
    assert list(read_results()["mean"]["dev"]) == ["dev"]


def test_files_of_a_named_folder_are_used(folder):
    train("--recipe", "lora", "--data", folder, "--out", "enc", *TINY, *QUICK)
    assert list(read_results()["mean"]["dev"]) == ["dev"]
