"""`d2v train` as people use it: one file, a folder, a plan, flags, and every mistake that is easily made."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from decoder2vec.cli import app, main
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from toys.sentences import NOUNS

PLANS = sorted((Path(__file__).parents[2] / "experiments" / "freeze").glob("*.toml"))
QUICK = ["--set", "training.epochs=1", "--set", "pretraining.epochs=1", "--set", "widths=[8]", "--set", "hidden=8"]
TINY = ["--backbone", "tiny-llama", "--device", "cpu"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder to work in, and a cache for pre-trained encoders of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(
        "decoder2vec.training.recipes.recipe.pretrained_root", lambda: tmp_path / "cache" / "pretrained"
    )
    return tmp_path


def write_pairs(file, count=30, seed=0, header="sentence1\tsentence2\tscore"):
    rng = random.Random(seed)
    lines = [header]
    for number in range(count):
        a, b, c = (rng.choice(NOUNS) for _ in range(3))
        lines.append(f"The {a} is near the {b}.\tThe {a} is near the {c}.\t{5.0 if b == c else number % 40 / 10}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def pairs(place):
    return write_pairs(place / "pairs.tsv")


@pytest.fixture
def folder(place):
    """A file for every role, so that every plan can be run."""
    home = place / "data"
    for seed, role in enumerate(("train", "dev", "test")):
        write_pairs(home / f"{role}.tsv", seed=seed)
    texts = [f"A {noun} is here." for noun in NOUNS] * 2
    (home / "texts.txt").write_text("\n".join(texts) + "\n")
    rows = [
        f"{'neutral' if n % 2 else 'entailment'}\tA {noun} is here.\tHere is a {noun}." for n, noun in enumerate(NOUNS)
    ]
    (home / "nli.tsv").write_text("\n".join(["label\tpremise\thypothesis", *rows]) + "\n")
    rows = [f"A {noun} is here.\tHere is a {noun}.\tThere is no {noun}." for noun in NOUNS]
    (home / "triplets.tsv").write_text("\n".join(["anchor\tpositive\tnegative", *rows]) + "\n")
    return home


def d2v(*args):
    """Run `d2v train`; an error that is not meant for the user is raised here."""
    result = CliRunner().invoke(app, ["train", *(str(arg) for arg in args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refused(monkeypatch, capsys, *args):
    """The one sentence on stderr that a mistake gives."""
    monkeypatch.setattr(sys, "argv", ["d2v", "train", *(str(arg) for arg in args)])
    with pytest.raises(SystemExit) as left:
        main()
    message = str(left.value.code)
    assert message.startswith("error: ") and "\n" not in message and "Traceback" not in capsys.readouterr().err
    return message.removeprefix("error: ")


def flat(text):
    return " ".join(text.split())


# --- what works -----------------------------------------------------------------------------------------------------


def test_one_file_of_pairs_is_all_that_is_needed(pairs, place):
    result = d2v("--data", pairs, *TINY, *QUICK)
    assert result.exit_code == 0
    assert "pairs-dev" in result.stdout and "embedding on tiny-llama, 1 seed(s)" in result.stdout
    said = flat(result.stderr)
    assert "3 of the training pairs were set aside to choose on" in said
    assert "scores of pairs are read on a scale of 0 to 5" in said
    assert "wrote the encoder encoder (best seed on dev: 0)" in said
    encoder = Encoder.load(place / "encoder", device="cpu")
    assert 0 <= encoder.score("A dog runs.", "A cat sleeps.") <= 1


def test_flags_are_taken(pairs, place):
    write_pairs(place / "mine" / "d.tsv", seed=1)
    write_pairs(place / "mine" / "e.tsv", seed=2)
    write_pairs(place / "t.tsv", seed=3)
    result = d2v(
        *("--train", pairs, "--dev", "mine/d.tsv", "--dev", "mine/e.tsv", "--test", "t.tsv", "--out", "out/mine"),
        *("--seeds", "0,2", "--results", "out/deep/r.json", "--set", "head=sum", "--set", "pretrain=none"),
        *("--set", "loss=cosent", *TINY, *QUICK),
    )
    assert result.exit_code == 0
    found = json.loads((place / "out" / "deep" / "r.json").read_text())
    assert found == json.loads((place / "out" / "mine" / "results.json").read_text())
    assert found["mean"]["dev"].keys() == {"d", "e", "all files"} and found["mean"]["test"].keys() == {"t"}
    assert [seed["seed"] for seed in found["seeds"]] == [0, 2]
    assert (found["config"]["freeze"]["head"], found["config"]["freeze"]["loss"]) == ("sum", "cosent")
    assert found["command"].startswith("d2v ")
    assert f"{found['mean']['test']['t']['spearman']:.2f} ± " in result.stdout


def test_columns_are_those_of_the_flag_or_of_the_plan(place):
    file = write_pairs(place / "pairs.tsv", header="a\tb\tgrade")
    assert d2v("--data", file, "--columns", "a,b,grade", *TINY, *QUICK).exit_code == 0
    (place / "plan.toml").write_text('[data]\ncolumns = ["a", "b", "grade"]\n')
    assert d2v("plan.toml", "--data", file, "--overwrite", *TINY, *QUICK).exit_code == 0


def test_training_pairs_are_named_once(pairs):
    with pytest.raises(InputError, match="both name what to train on"):
        d2v("--data", pairs, "--train", pairs, *TINY, *QUICK)


def test_an_encoder_is_not_replaced_unasked(place):
    file = write_pairs(place / "pairs.tsv")
    assert d2v("--data", file, *TINY, *QUICK).exit_code == 0
    before = (place / "encoder" / "results.json").read_text()
    with pytest.raises(InputError, match="holds an encoder already"):
        d2v("--data", file, *TINY, *QUICK)
    assert (place / "encoder" / "results.json").read_text() == before


def test_a_plan_and_settings_over_it(folder, place):
    (place / "plan.toml").write_text(
        'about = "Mine."\n[freeze]\nhead = "gated"\npretrain = "none"\n[data]\ndev = ["dev.tsv"]\ntest = ["test.tsv"]\n'
    )
    result = d2v("plan.toml", "--data", folder, "--set", "loss=mse", *TINY, *QUICK)
    found = json.loads((place / "encoder" / "results.json").read_text())
    assert "plan on tiny-llama" in result.stdout
    assert (found["config"]["freeze"]["head"], found["config"]["freeze"]["loss"]) == ("gated", "mse")
    assert "Mine." in (place / "encoder" / "README.md").read_text()
    encoder = Encoder.load(place / "encoder", device="cpu")
    assert encoder.score("A dog runs.", "A dog runs.") == 1


def test_a_search_goes_first(folder, place):
    (place / "plan.toml").write_text('[freeze]\npretrain = "none"\n[search]\nhead = ["sum", "gated", "mlp"]\n')
    result = d2v("plan.toml", "--data", folder, "--search", "3", *TINY, *QUICK)
    said = flat(result.stderr)
    assert all(f"trial {number}: dev" in said for number in range(3))
    assert (place / "encoder" / "encoder.json").is_file()


def test_test_pairs_that_were_trained_on_are_said(folder):
    (folder / "test.tsv").write_bytes((folder / "train.tsv").read_bytes())
    result = d2v("--data", folder, "--test", folder / "test.tsv", "--dev", folder / "dev.tsv", *TINY, *QUICK)
    assert "30 of 30 pairs of test also stand in the training data" in flat(result.stderr)


RUN = (
    "step0",
    "step1",
    "step5",
    "unified",
    "attention_codes",
    "attention_latents",
    "single_layer",
    "snli",
    "mean_latents",
    "noise_1",
    "word_changes",
    "identical_pairs_added",
    "embedding",
    "embedding_nli",
    "embedding_keep_8",
    "scorer",
)


@pytest.mark.parametrize("name", RUN)
def test_plans_of_the_paper_run_on_a_users_own_folder(name, folder, place):
    plan = next(plan for plan in PLANS if plan.stem == name)
    small = ["--set", "training.epochs=1", "--set", "pretraining.epochs=1"]
    result = d2v(plan, "--data", folder, *TINY, *small)
    assert result.exit_code == 0
    found = json.loads((place / "encoder" / "results.json").read_text())
    assert found["config"]["name"] == name
    assert found["mean"]["dev"].keys() == {"dev"} and found["mean"]["test"].keys() == {"test"}
    assert all(np.isfinite(list(found["mean"][part][part].values())).all() for part in ("dev", "test"))
    vectors = Encoder.load(place / "encoder", device="cpu").encode(["A dog.", "A cat."])
    assert np.isfinite(vectors).all() and not np.allclose(vectors[0], vectors[1])


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--data", "nowhere"], "There is no file or folder nowhere"),
        (["--train", "nowhere.tsv"], "There is no file nowhere.tsv."),
        (["--data", "pairs.tsv", "--dev", "nowhere.tsv"], "There is no file nowhere.tsv."),
        (["none.toml", "--data", "pairs.tsv"], "Cannot read the plan none.toml"),
        (["--data", "pairs.tsv", "--set", "los=mse"], "Unknown setting in [freeze] 'los'. Did you mean loss"),
        (["--data", "pairs.tsv", "--set", "loss"], "is not of the form key=value"),
        (["--data", "pairs.tsv", "--set", "head=som"], "Unknown head 'som'. Did you mean sum?"),
        (["--data", "pairs.tsv", "--set", "training.batch=0"], "batch"),
        (["--data", "pairs.tsv", "--seeds", "one"], "--seeds takes whole numbers such as 0,1,2, not 'one'."),
        (["--data", "pairs.tsv", "--seeds", ","], "Give at least one seed"),
        (["--data", "pairs.tsv", "--seeds=-1"], "Give at least one seed, and none below 0."),
        (["--data", "pairs.tsv", "--columns", "a,b"], "Give three column names"),
        (["--data", "pairs.tsv", "--columns", "a,b,c"], "has no column 'a'; it has: sentence1, sentence2, score."),
        (["--data", "pairs.tsv", "--search", "2"], "The plan has no [search] table"),
        (["--data", "pairs.tsv", "--out", "mine"], "mine is not empty and not an encoder"),
        (["--data", "pairs.tsv", "--set", "data.scale=[0, 1]"], "outside the scale 0 to 1"),
        (["--data", "pairs.tsv", "--set", "latents=[{layers=[9]}]"], "is not within 0 to 4"),
        (["--data", "pairs.tsv", "--set", "pretrain=snli"], "has no file 'nli.tsv'"),
        (["--data", "few.tsv"], "few has 5 pairs, too few to set some aside"),
        (["--data", "same.tsv"], "All scores of same are 3: there is nothing to learn"),
    ],
    ids=lambda value: " ".join(value[:6]) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_sentence(args, message, pairs, place, monkeypatch, capsys):
    (place / "mine").mkdir()
    (place / "mine" / "thesis.txt").write_text("all my work")
    write_pairs(place / "few.tsv", count=5)
    same = write_pairs(place / "same.tsv").read_text().splitlines()
    (place / "same.tsv").write_text(
        "\n".join([same[0], *(line.rsplit("\t", 1)[0] + "\t3" for line in same[1:])]) + "\n"
    )
    assert message in refused(monkeypatch, capsys, *args, *TINY, *QUICK)
    assert (place / "mine" / "thesis.txt").read_text() == "all my work"
    assert not (place / "encoder").exists()


def test_a_model_that_does_not_exist_is_one_sentence(pairs, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "tiny-lama" in refused(monkeypatch, capsys, "--data", pairs, "--backbone", "tiny-lama")
