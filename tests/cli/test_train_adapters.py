"""`d2v train` with recipes that adapt the model, and `d2v data mine`, as people use them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from toys.command import d2v
from toys.training import toy_examples, toy_pairs

QUICK = ["--set", "training.epochs=1", "--set", "training.batch=8"]
TINY = ["--backbone", "tiny-llama", "--device", "cpu"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with triplets as CSV and as TSV, and pairs to choose on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    rows = [(one.anchor, one.positive, one.negatives[0]) for one in toy_examples()]
    (tmp_path / "own").mkdir()
    for name, mark in (("own/mine.csv", ","), ("triplets.tsv", "\t")):
        lines = [mark.join(("anchor", "positive", "negative")), *(mark.join(row) for row in rows)]
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = toy_pairs()
    lines = [f"{a}\t{b}\t{score}" for a, b, score in zip(pairs.left, pairs.right, pairs.scores, strict=True)]
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tscore\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def printed(*words):
    done = d2v(*words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("recipe", ["soft_prompt", "kv_prefix", "lora", "full"])
def test_ones_own_csv_is_one_command(recipe):
    out = printed("train", "--recipe", recipe, "--data", "own/mine.csv", "--out", "enc", *TINY, *QUICK)
    assert "set aside to choose on" in out and "wrote the encoder enc" in out
    found = json.loads(Path("enc/results.json").read_text())
    assert found["config"]["recipe"] == recipe and found["data"]["examples"]
    assert recipe in Path("enc/README.md").read_text()
    assert np.isfinite(Encoder.load("enc").encode(["A cat sleeps."])).all()


@pytest.mark.parametrize("form", ["punctuation", "punctuation_lm"])
def test_how_well_marks_came_back_is_told_and_kept(form, place):
    names, verbs = ("Anna", "Ben", "Ida", "Otto", "Eva"), ("runs", "sings", "waits", "sees")
    lines = [f"{name} {verb}, and {name} knows. Who is {name}?" for name in names for verb in verbs]
    (place / "own" / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    wanted = [f"objective.name={form}", "attention=bidirectional", "read.max_length=48", "training.steps=2"]
    words = [word for setting in wanted for word in ("--set", setting)]
    out = printed("train", "--recipe", "lora", "--data", "own/texts.txt", "--out", "enc", *TINY, *words)
    found = json.loads(Path("enc/results.json").read_text())
    told = found["seeds"][0]["notes"]["restoration"]
    assert f"seed 0: marks and capitals restored with F1 {100 * told['f1']:.1f}%" in out
    assert "marks and capitals restored" in Path("enc/README.md").read_text()


def test_a_folder_with_pairs_to_choose_on_and_a_grid():
    words = ["--recipe", "soft_prompt", "--data", ".", "--set", "tokens=2", "--grid", "training.rate=0.1,0.01"]
    out = printed("train", *words, "--out", "enc", "--seeds", "0,1", "--results", "found.json", *TINY, *QUICK)
    found = json.loads(Path("found.json").read_text())
    assert [one["settings"]["training.rate"] for one in found["grid"]] == [0.1, 0.01]
    assert found["config"]["soft_prompt"]["training"]["rate"] in (0.1, 0.01)
    assert len(found["seeds"]) == 2 and "dev" in out


def test_scored_pairs_train_an_adapter_too():
    words = ["--recipe", "lora", "--data", "dev.tsv", "--dev", "dev.tsv", "--set", "objective.name=cosent"]
    printed("train", *words, "--out", "enc", *TINY, *QUICK)
    assert Encoder.load("enc").backbone.adapter.kind == "lora"


def test_negatives_are_mined_and_trained_on():
    out = printed(
        "data",
        "mine",
        "own/mine.csv",
        "--encoder",
        "tiny-llama",
        "--out",
        "hard.jsonl",
        "--count",
        "2",
        "--margin",
        "1",
    )
    assert "negatives for 24 examples" in out
    rows = [json.loads(line) for line in Path("hard.jsonl").read_text().splitlines()]
    assert len(rows) == 24 and all(len(row["negative"]) <= 2 for row in rows)
    printed("train", "--recipe", "lora", "--data", "hard.jsonl", "--out", "enc", *TINY, *QUICK)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipe", "lora", "--data", "nowhere.csv"], "There is no file or folder nowhere.csv"),
        (["--recipe", "loar", "--data", "own/mine.csv"], "lora"),
        (["plan.toml", "--recipe", "lora"], "leave out --recipe"),
        (["--recipe", "soft_prompt", "--data", "own/mine.csv", "--set", "tokens=0"], "0"),
        (["--recipe", "soft_prompt", "--data", "own/mine.csv", "--set", "place=prepend"], "never sees it"),
        (["--recipe", "lora", "--data", "dev.tsv"], "scored pairs"),
        (["--recipe", "lora", "--data", "own/mine.csv", "--search", "3"], "grid|search"),
    ],
)
def test_a_mistake_is_one_sentence(words, message, place):
    (place / "plan.toml").write_text('recipe = "lora"\n')
    with pytest.raises((InputError, ValueError), match=message):
        printed("train", *words, "--out", "enc", *TINY, *QUICK)
    assert not (place / "enc").exists()


def test_what_a_soft_prompt_remembers_is_listed_and_removed(monkeypatch, place):
    monkeypatch.setenv("D2V_CACHE", str(place / "cache"))
    printed("train", "--recipe", "soft_prompt", "--data", "own/mine.csv", "--out", "enc", *TINY, *QUICK)
    assert "1 sets of keys and values" in printed("cache", "ls")
    printed("cache", "rm", "prefix_kv")
    assert "keys and values" not in printed("cache", "ls")
