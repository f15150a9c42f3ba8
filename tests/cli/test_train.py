"""`d2v train` on scored pairs: one file, a folder, a plan, options and mistakes."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.cli import main
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.training.plan import read_variants
from toys.command import d2v, one_line
from toys.sentences import NOUNS

PLANS = {
    name: file
    for file in sorted((Path(__file__).parents[2] / "experiments" / "freeze").glob("*.toml"))
    for name in read_variants(file)
}
"""The file of every FREEZE plan, by the name of its variant."""
QUICK = ["--set", "training.epochs=1", "--set", "pretraining.epochs=1", "--set", "widths=[8]", "--set", "hidden=8"]
TINY = ["--backbone", "tiny-llama", "--device", "cpu"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, and a cache of pre-trained networks per test."""
    monkeypatch.chdir(tmp_path)
    pretrained = tmp_path / "cache" / "pretrained"
    monkeypatch.setattr("decoder2vec.training.recipes.freeze.pretrained_root", lambda: pretrained)
    return tmp_path


def write_pairs(file, count=30, seed=0, header="sentence1\tsentence2\tscore"):
    """A TSV of scored pairs; those with the same text score 5."""
    rng = random.Random(seed)
    lines = [header]
    for index in range(count):
        a, b, c = (rng.choice(NOUNS) for _ in range(3))
        lines.append(f"The {a} is near the {b}.\tThe {a} is near the {c}.\t{5.0 if b == c else index % 40 / 10}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@pytest.fixture
def pairs(folder):
    return write_pairs(folder / "pairs.tsv")


@pytest.fixture
def data(folder):
    """A data folder with a file for every role, so that every plan can be run."""
    data = folder / "data"
    for seed, role in enumerate(("train", "dev", "test")):
        write_pairs(data / f"{role}.tsv", seed=seed)
    texts = [f"A {noun} is here." for noun in NOUNS] * 2
    (data / "texts.txt").write_text("\n".join(texts) + "\n")
    rows = [
        f"{'neutral' if n % 2 else 'entailment'}\tA {noun} is here.\tHere is a {noun}." for n, noun in enumerate(NOUNS)
    ]
    (data / "nli.tsv").write_text("\n".join(["label\tpremise\thypothesis", *rows]) + "\n")
    rows = [f"A {noun} is here.\tHere is a {noun}.\tThere is no {noun}." for noun in NOUNS]
    (data / "triplets.tsv").write_text("\n".join(["anchor\tpositive\tnegative", *rows]) + "\n")
    return data


def train(*args):
    """The result of `d2v train ARGS`; errors are raised."""
    return d2v("train", *args)


@pytest.fixture
def error_of(monkeypatch, capsys):
    """error_of(*args) -> the sentence that `d2v train ARGS` ends with."""

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["d2v", "train", *(str(arg) for arg in args)])
        with pytest.raises(SystemExit) as caught:
            main()
        message = str(caught.value.code)
        assert message.startswith("error: ") and "\n" not in message and "Traceback" not in capsys.readouterr().err
        return message.removeprefix("error: ")

    return run


# inputs and options


def test_one_file_of_pairs_is_enough(pairs, folder):
    result = train("--data", pairs, *TINY, *QUICK)
    assert result.exit_code == 0
    assert "pairs-dev" in result.stdout and "embedding on tiny-llama, 1 seed(s)" in result.stdout
    messages = one_line(result.stderr)
    assert "3 of the training pairs were set aside to choose on" in messages
    assert "scores of pairs are read on a scale of 0 to 5" in messages
    assert "wrote the encoder encoder (best seed on dev: 0)" in messages
    encoder = Encoder.load(folder / "encoder", device="cpu")
    assert 0 <= encoder.score("A dog runs.", "A cat sleeps.") <= 1


def test_options_are_applied(pairs, folder):
    write_pairs(folder / "mine" / "d.tsv", seed=1)
    write_pairs(folder / "mine" / "e.tsv", seed=2)
    write_pairs(folder / "t.tsv", seed=3)
    result = train(
        *("--train", pairs, "--dev", "mine/d.tsv", "--dev", "mine/e.tsv", "--test", "t.tsv", "--out", "out/mine"),
        *("--seeds", "0,2", "--results", "out/deep/r.json", "--set", "head=sum", "--set", "pretrain=none"),
        *("--set", "loss=cosent", *TINY, *QUICK),
    )
    assert result.exit_code == 0
    results = json.loads((folder / "out" / "deep" / "r.json").read_text())
    assert results == json.loads((folder / "out" / "mine" / "results.json").read_text())
    assert results["mean"]["dev"].keys() == {"d", "e", "all files"} and results["mean"]["test"].keys() == {"t"}
    assert [seed["seed"] for seed in results["seeds"]] == [0, 2]
    assert (results["config"]["freeze"]["head"], results["config"]["freeze"]["loss"]) == ("sum", "cosent")
    assert results["config"]["data"]["dev"] == ["mine/d.tsv", "mine/e.tsv"]
    assert (results["config"]["data"]["train"], results["config"]["data"]["test"]) == ("pairs.tsv", ["t.tsv"])
    assert results["command"].startswith("d2v ")
    assert f"{results['mean']['test']['t']['spearman']:.2f} ± " in result.stdout


def test_columns_are_taken_from_the_option_or_the_plan(folder):
    file = write_pairs(folder / "pairs.tsv", header="a\tb\tgrade")
    assert train("--data", file, "--columns", "a,b,grade", *TINY, *QUICK).exit_code == 0
    (folder / "plan.toml").write_text('[data]\ncolumns = ["a", "b", "grade"]\n')
    assert train("plan.toml", "--data", file, "--overwrite", *TINY, *QUICK).exit_code == 0


def test_training_pairs_named_twice_are_refused(pairs):
    with pytest.raises(InputError, match="both name what to train on"):
        train("--data", pairs, "--train", pairs, *TINY, *QUICK)


def test_encoder_is_not_replaced_without_overwrite(pairs, folder):
    assert train("--data", pairs, *TINY, *QUICK).exit_code == 0
    before = (folder / "encoder" / "results.json").read_text()
    with pytest.raises(InputError, match="holds an encoder already"):
        train("--data", pairs, *TINY, *QUICK)
    assert (folder / "encoder" / "results.json").read_text() == before


def test_same_command_with_overwrite_has_nothing_to_do(pairs, folder):
    first = train("--data", pairs, *TINY, *QUICK)
    before = (folder / "encoder" / "results.json").read_text()
    second = train("--data", pairs, "--overwrite", "--results", "again.json", *TINY, *QUICK)
    messages = one_line(second.stderr)
    assert "Nothing to do: encoder is up to date (same settings, data and weights)." in messages
    assert "wrote the encoder" not in messages and "parameters trained" not in messages
    assert second.stdout == first.stdout, "the scores are printed again"
    assert (folder / "encoder" / "results.json").read_text() == before
    assert json.loads((folder / "again.json").read_text()) == json.loads(before)
    third = train("--data", pairs, "--overwrite", *TINY, *QUICK, "--set", "dropout=0.3")
    assert "wrote the encoder" in third.stderr


def test_settings_take_precedence_over_a_plan(data, folder):
    (folder / "plan.toml").write_text(
        'about = "Mine."\n[freeze]\nhead = "gated"\npretrain = "none"\n[data]\ndev = ["dev.tsv"]\ntest = ["test.tsv"]\n'
    )
    result = train("plan.toml", "--data", data, "--set", "loss=mse", *TINY, *QUICK)
    results = json.loads((folder / "encoder" / "results.json").read_text())
    assert "plan on tiny-llama" in result.stdout
    assert (results["config"]["freeze"]["head"], results["config"]["freeze"]["loss"]) == ("gated", "mse")
    assert "Mine." in (folder / "encoder" / "README.md").read_text()
    encoder = Encoder.load(folder / "encoder", device="cpu")
    assert encoder.score("A dog runs.", "A dog runs.") == 1


def test_variant_of_a_plan_is_trained(data, folder):
    (folder / "base.toml").write_text('[freeze]\npretrain = "none"\n')
    matrix = '[matrix.head]\ngated = {freeze = {head = "gated"}}\nmlp = {freeze = {head = "mlp"}}\n'
    (folder / "plan.toml").write_text(f'extends = "base.toml"\n{matrix}')
    result = train("plan.toml", "--variant", "mlp", "--data", data, *TINY, *QUICK)
    config = json.loads((folder / "encoder" / "results.json").read_text())["config"]
    assert (config["name"], config["freeze"]["head"], config["freeze"]["pretrain"]) == ("mlp", "mlp", "none")
    assert "mlp on tiny-llama" in result.stdout
    with pytest.raises(InputError, match="describes 2 plans; choose one with --variant: gated, mlp"):
        train("plan.toml", "--data", data, "--out", "other", *TINY, *QUICK)
    with pytest.raises(InputError, match="Unknown variant 'gatde'"):
        train("plan.toml", "--variant", "gatde", "--data", data, "--out", "other", *TINY, *QUICK)


def test_trials_choose_the_settings_before_training(data, folder):
    (folder / "plan.toml").write_text('[freeze]\npretrain = "none"\n[search]\nhead = ["sum", "gated", "mlp"]\n')
    result = train("plan.toml", "--data", data, "--trials", "3", *TINY, *QUICK)
    messages = one_line(result.stderr)
    assert all(f"trial {index}: dev" in messages for index in range(3))
    assert (folder / "encoder" / "encoder.json").is_file()


def test_test_pairs_that_were_trained_on_are_reported(data):
    (data / "test.tsv").write_bytes((data / "train.tsv").read_bytes())
    result = train("--data", data, "--test", data / "test.tsv", "--dev", data / "dev.tsv", *TINY, *QUICK)
    assert "30 of 30 pairs of test are also in the training data" in one_line(result.stderr)


PAPER_PLANS = (
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


@pytest.mark.parametrize("name", PAPER_PLANS)
def test_plans_of_the_paper_run_on_any_data_folder(name, data, folder):
    one_epoch = ["--set", "training.epochs=1", "--set", "pretraining.epochs=1"]
    result = train(PLANS[name], "--variant", name, "--data", data, *TINY, *one_epoch)
    assert result.exit_code == 0
    results = json.loads((folder / "encoder" / "results.json").read_text())
    assert results["config"]["name"] == name
    assert results["mean"]["dev"].keys() == {"dev"} and results["mean"]["test"].keys() == {"test"}
    assert all(np.isfinite(list(results["mean"][part][part].values())).all() for part in ("dev", "test"))
    vectors = Encoder.load(folder / "encoder", device="cpu").encode(["A dog.", "A cat."])
    assert np.isfinite(vectors).all() and not np.allclose(vectors[0], vectors[1])


# mistakes


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--data", "nowhere"], "There is no file or folder nowhere"),
        (["--train", "nowhere.tsv"], "There is no file nowhere.tsv."),
        (["--data", "pairs.tsv", "--dev", "nowhere.tsv"], "There is no file nowhere.tsv."),
        (["none.toml", "--data", "pairs.tsv"], "Cannot read the plan none.toml"),
        (["--data", "pairs.tsv", "--set", "los=mse"], "Unknown setting in [freeze] 'los'. Did you mean loss"),
        (["--data", "pairs.tsv", "--set", "loss"], "is not of the form key=value"),
        (["--data", "pairs.tsv", "--variant", "x"], "--variant x chooses among the plans of a file"),
        (["--data", "pairs.tsv", "--set", "head=som"], "Unknown head 'som'. Did you mean sum?"),
        (["--data", "pairs.tsv", "--set", "training.batch=0"], "batch"),
        (["--data", "pairs.tsv", "--seeds", "one"], "--seeds takes whole numbers such as 0,1,2, not 'one'."),
        (["--data", "pairs.tsv", "--seeds", ","], "Give at least one seed"),
        (["--data", "pairs.tsv", "--seeds=-1"], "Give at least one seed, and none below 0."),
        (["--data", "pairs.tsv", "--columns", "a,b"], "Give three column names"),
        (["--data", "pairs.tsv", "--columns", "a,b,c"], "has no column 'a'; it has: sentence1, sentence2, score."),
        (["--data", "pairs.tsv", "--trials", "2"], "The plan has no [search] table"),
        (["--data", "pairs.tsv", "--out", "mine"], "mine is not empty"),
        (["--data", "pairs.tsv", "--set", "data.scale=[0, 1]"], "outside the scale 0 to 1"),
        (["--data", "pairs.tsv", "--set", "latents=[{layers=[9]}]"], "is not within 0 to 4"),
        (["--data", "pairs.tsv", "--set", "pretrain=snli"], "No file of nli was named"),
        (["--data", "few.tsv"], "few has 5 pairs, too few to set some aside"),
        (["--data", "same.tsv"], "All scores of same are 3: there is nothing to learn"),
    ],
    ids=lambda value: " ".join(value[:6]) if isinstance(value, list) else None,
)
def test_mistake_is_one_sentence_and_writes_nothing(args, message, pairs, folder, error_of):
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("all my work")
    write_pairs(folder / "few.tsv", count=5)
    header, *rows = write_pairs(folder / "same.tsv").read_text().splitlines()
    same_scores = [row.rsplit("\t", 1)[0] + "\t3" for row in rows]
    (folder / "same.tsv").write_text("\n".join([header, *same_scores]) + "\n")
    assert message in error_of(*args, *TINY, *QUICK)
    assert (folder / "mine" / "thesis.txt").read_text() == "all my work"
    assert not (folder / "encoder").exists()


def test_unknown_model_is_one_sentence(pairs, error_of):
    assert "tiny-lama" in error_of("--data", pairs, "--backbone", "tiny-lama")


def test_model_in_place_of_the_plan_is_named_with_its_option():
    write_pairs(Path("pairs.tsv"))
    with pytest.raises(InputError, match=r"no plan tiny-llama; .* --backbone tiny-llama"):
        d2v("train", "tiny-llama", "--recipe", "lora", "--data", "pairs.tsv")
