"""`d2v train` in stages, and on from an encoder, as people use it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.backbone.attention import attention_mismatch
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError
from decoder2vec.training.loop import History
from toys.command import d2v
from toys.texts import sentences
from toys.training import toy_examples, toy_pairs

TINY = ["--backbone", "tiny-llama", "--device", "cpu"]
QUICK = ["--set", "mntp.training.steps=6", "--set", "simcse.training.steps=1", "--set", "mntp.training.rate=0.01"]
QUICK += ["--set", "mntp.training.batch=4", "--set", "simcse.training.batch=4"]
PLAN = """
about = "Two stages and a third."

[data]
texts = "corpus.txt"
dev = ["pairs.tsv"]

[[stages]]
name = "tell"
recipe = "lora"
lora = {rank = 2, attention = "bidirectional", objective = {name = "mntp"}, training = {epochs = 1, batch = 8}}

[[stages]]
name = "pull"
recipe = "soft_prompt"
soft_prompt = {tokens = 2, attention = "bidirectional", training = {epochs = 1, batch = 8}}
data = {triplets = "mine.tsv"}
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with plain texts, triplets, pairs to choose on and a plan; stages done elsewhere are not heard of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("decoder2vec.training.api.cache_root", lambda: tmp_path / "notes")
    pairs = toy_pairs()
    files = {
        "texts.txt": sentences(24),
        "corpus.txt": sentences(24),
        "mine.tsv": [
            "anchor\tpositive\tnegative",
            *("\t".join((one.anchor, one.positive, one.negatives[0])) for one in toy_examples()),
        ],
        "pairs.tsv": [
            "sentence1\tsentence2\tscore",
            *(f"{a}\t{b}\t{score}" for a, b, score in zip(pairs.left, pairs.right, pairs.scores, strict=True)),
        ],
        "plan.toml": [PLAN],
    }
    for name, lines in files.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def printed(*words):
    done = d2v("train", *words, *TINY)
    assert done.exit_code == 0, done.output
    return done.output


def results(folder):
    return json.loads((Path(folder) / "results.json").read_text())


@pytest.mark.parametrize("attention", ["causal", "bidirectional:2"])
def test_hidden_tokens_that_are_told_from_one_side_are_remarked_on(attention):
    settings = ["--set", "objective.name=mntp", "--set", f"attention={attention}", "--set", "training.steps=1"]
    out = " ".join(printed("--recipe", "lora", "--data", "texts.txt", "--out", "enc", *settings).split())
    note = "mntp under causal attention tells hidden tokens from what stands before them only"
    for text in (out, Path("enc/README.md").read_text(), " ".join(results("enc")["notes"])):
        assert text.count(note) == (attention == "causal")


def test_the_folder_one_stands_in_may_hold_the_encoder(place, monkeypatch):
    (place / "here").mkdir()
    monkeypatch.chdir(place / "here")
    printed("--recipe", "bidirectional", "--data", "../texts.txt", "--out", ".", *QUICK)
    assert Encoder.load(place / "here", device="cpu").spec.attention == "bidirectional"
    assert (place / "here-stages" / "1-mntp").is_dir()


@pytest.mark.parametrize(("steps", "told"), [(121, True), (120, False)])
def test_steps_that_are_too_many_for_a_small_file_are_told(steps, told, monkeypatch):
    """The recipe has enough for a hundred thousand texts: with a few hundred, hours would go into the same ones."""
    monkeypatch.setattr("decoder2vec.training.recipes.recipe.fit", lambda *_, **__: History(start=0.0))
    settings = ["--set", "objective.name=mntp", "--set", "training.batch=4", "--set", f"training.steps={steps}"]
    settings += ["--set", "attention=bidirectional"]
    out = " ".join(printed("--recipe", "lora", "--data", "texts.txt", "--out", "enc", *settings).split())
    note = "121 steps of 4 read each of 24 texts 20 times; training.steps=120 would read it 20 times"
    assert out.count(note) == told == (note in results("enc")["notes"])


def test_plain_texts_are_one_command(own_cache):
    out = printed("--recipe", "bidirectional", "--data", "texts.txt", "--out", "enc", *QUICK)
    assert "wrote the encoder enc (best seed: 0)" in out
    found = Encoder.load("enc", device="cpu")
    assert found.spec.attention == "bidirectional" and not attention_mismatch(found.backbone.model, "bidirectional")
    assert [reading.pooling for reading in found.spec.readings] == ["mean"]
    first = Encoder.load("enc-stages/1-mntp", device="cpu")
    vectors = [encoder.encode(["The dog runs"]) for encoder in (first, found)]
    assert np.isfinite(vectors).all() and found.backbone.fingerprint != first.backbone.fingerprint
    assert [results(place)["config"]["lora"]["training"]["steps"] for place in ("enc-stages/1-mntp", "enc")] == [6, 1]
    assert results("enc")["data"] == {"plain texts": "24"} and results("enc")["mean"]["dev"] == {}
    card = Path("enc/README.md").read_text()
    assert card.startswith("# simcse: an encoder made of tiny-llama\n\nVectors of whole texts: a text read twice")
    assert "No scored pairs were given; the best state was chosen on texts that were set aside." in card
    assert "Spearman" not in card and "- plain texts: 24" in card and own_cache not in card
    assert not re.search(r"\bnan\b|\bNone\b|\{\}|-inf", card)


def test_a_second_run_is_refused_unless_it_may_overwrite_and_then_finds_everything():
    words = ["--recipe", "bidirectional", "--data", "texts.txt", "--out", "enc", *QUICK]
    printed(*words)
    before = Encoder.load("enc", device="cpu").fingerprint
    with pytest.raises(Decoder2VecError, match="enc holds an encoder already"):
        printed(*words)
    out = printed(*words, "--overwrite", "--results", "found.json")
    assert "mntp: found in enc-stages/1-mntp" in out and "simcse: found in enc" in out
    assert "nothing was to be done: enc was trained before" in out
    assert "wrote the encoder" not in out and "s of training" not in out
    assert Encoder.load("enc", device="cpu").fingerprint == before
    assert json.loads(Path("found.json").read_text()) == results("enc")


CTRL_C_IN_THE_FOURTH_STEP = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from decoder2vec.cli import main
from decoder2vec.training import loop
steps = []
loop.add_up_gradients = lambda _: steps.append(1) or (len(steps) == 4 and os.kill(os.getpid(), signal.SIGINT))
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_keeps_every_step_and_the_next_start_says_from_where_it_goes_on(own_cache):
    """Long before the first look at dev, and before a checkpoint would be due."""
    words = ["--recipe", "bidirectional", "--stages", "mntp", "--data", "texts.txt", *QUICK]
    words += ["--set", "mntp.training.evaluate_every=100"]
    command = [sys.executable, "-c", CTRL_C_IN_THE_FOURTH_STEP, "train", *words, "--out", "enc", *TINY]
    stopped = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert stopped.returncode == 130, stopped.stderr
    assert stopped.stderr.splitlines()[-1] == "stopped; what was finished is kept and will be reused"
    assert "Traceback" not in stopped.stderr and not Path("enc").exists()
    assert "masked texts: going on from step 3 of 6" in printed(*words, "--out", "enc")
    printed(*words, "--out", "whole")
    for part in ("losses", "scores"):
        found, expected = (results(place)["seeds"][0]["notes"]["training"][part] for place in ("enc", "whole"))
        assert found == pytest.approx(expected, rel=1e-5)
    assert not Path("enc.unfinished").exists()


def test_a_stage_that_was_trained_otherwise_is_kept_unless_it_may_be_replaced():
    words = ["--recipe", "bidirectional", "--data", "texts.txt", "--out", "enc", *QUICK]
    printed(*words)
    Path("enc").rename("kept")
    changed = [*words, "--set", "mntp.training.steps=1"]
    with pytest.raises(
        Decoder2VecError, match=r"^enc-stages/1-mntp holds .*; choose another --out, or add --overwrite"
    ):
        printed(*changed)
    assert results("enc-stages/1-mntp")["config"]["lora"]["training"]["steps"] == 6
    printed(*changed, "--overwrite")
    assert results("enc-stages/1-mntp")["config"]["lora"]["training"]["steps"] == 1


def test_one_of_the_stages_alone():
    out = printed("--recipe", "bidirectional", "--stages", "simcse", "--data", "texts.txt", "--out", "enc", *QUICK)
    assert "masked texts" not in out and not Path("enc-stages").exists()
    found = Encoder.load("enc", device="cpu")
    assert found.spec.backbone == "tiny-llama" and not Path("enc/backbone").exists()
    assert results("enc")["config"]["lora"]["objective"]["name"] == "simcse"


def test_a_plan_of_ones_own_with_scores_and_data_that_all_stages_share():
    out = printed("plan.toml", "--data", ".", "--test", "pairs.tsv", "--out", "enc", "--set", "pull.training.rate=0.1")
    assert "pairs" in out and "Spearman" in out and "best seed on dev: 0" in out
    first, second = results("enc-stages/1-tell"), results("enc")
    assert first["config"]["data"]["texts"] == second["config"]["data"]["texts"] == "corpus.txt"
    for one in (first, second):
        assert one["data"]["chosen on"] == one["data"]["scored once on"] == "pairs (10 pairs)"
        assert one["mean"]["dev"] == one["mean"]["test"] and "pairs" in one["mean"]["dev"]
    assert "examples" in second["data"] and "plain texts" not in second["data"]
    assert second["config"]["soft_prompt"]["training"]["rate"] == 0.1
    assert Encoder.load("enc", device="cpu").backbone.adapter.kind == "soft_prompt"
    assert "| 2 pull | soft_prompt | info_nce | 1 epochs of 8 | 0.1 |" in Path("enc/README.md").read_text()


def test_training_goes_on_from_an_encoder_by_its_folder():
    printed("--recipe", "bidirectional", "--stages", "mntp", "--data", "texts.txt", "--out", "first", *QUICK)
    words = ["--recipe", "lora", "--data", "mine.tsv", "--dev", "pairs.tsv", "--set", "training.batch=8"]
    out = d2v("train", *words, "--backbone", "first", "--out", "second", "--device", "cpu").output
    assert "lora on first, 1 seed(s)" in out
    found, first = (Encoder.load(name, device="cpu") for name in ("second", "first"))
    assert found.backbone.fingerprint != first.backbone.fingerprint and Path("second/backbone").is_dir()
    assert Path("second/README.md").read_text().startswith("# lora: an encoder made of first\n")
    assert results("second")["backbone"] == {"name": "first", "fingerprint": found.backbone.fingerprint}


PIPELINE = ["--recipe", "bidirectional", "--data", "texts.txt"]


ONE = ["--recipe", "lora", "--data", "texts.txt", "--set", "objective.name=mntp"]


@pytest.mark.parametrize("words", [PIPELINE, ONE], ids=["stages", "one training"])
@pytest.mark.parametrize("out", ["mine", "mine/thesis.txt", "mine/thesis.txt/enc", "/proc/nope"])
def test_a_bad_place_for_the_encoder_is_refused_before_data_and_model_are_read(words, out, place, monkeypatch):
    (place / "mine").mkdir()
    (place / "mine" / "thesis.txt").write_text("all my work")
    monkeypatch.setattr("decoder2vec.training.data.load_data", lambda *_, **__: pytest.fail("data were read"))
    with pytest.raises(Decoder2VecError, match=r"is a file; choose|not an encoder; choose|^Cannot write to .*; choose"):
        printed(*words, "--out", out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*PIPELINE, "--stages", "simsce"], "Unknown stage 'simsce'. Did you mean simcse"),
        ([*PIPELINE, "--set", "training.steps=3"], "--set training.steps=3 must begin with .* stage: mntp, simcse"),
        ([*PIPELINE, "--stages", ""], "--stages '' names no stage; there are mntp, simcse"),
        ([*PIPELINE, "--stages", " ,"], "--stages ' ,' names no stage; there are mntp, simcse"),
        (["--recipe", "lora", "--data", "texts.txt", "--stages", ""], "--stages '' chooses among the stages"),
        ([*PIPELINE, "--set", "mntp=3"], "--set mntp=3 names a stage but no setting of it: mntp.training.steps=3"),
        ([*PIPELINE, "--set", "mntp.=3"], "--set mntp.=3 names a stage but no setting of it"),
        ([*PIPELINE, "--set", "mntp"], "--set mntp names a stage but no setting of it"),
        ([*PIPELINE, "--stages", "simcse", "--set", "mntp.nonsense=3"], r"Unknown setting in \[lora\] 'nonsense'"),
        ([*PIPELINE, "--set", "rank=3"], "--set rank=3 must begin with the name of a stage: mntp, simcse"),
        ([*PIPELINE, "--set", "mntp.training.setps=3"], r"Unknown setting in \[lora.training\] 'setps'"),
        ([*PIPELINE, "--grid", "training.rate=0.1,0.2"], "--grid and --search choose the settings of one training"),
        ([*PIPELINE, "--search", "2"], "--grid and --search choose the settings of one training"),
        (["--recipe", "bidirectional", "--data", "nowhere.txt"], "There is no file or folder nowhere.txt"),
        (["--recipe", "bidirectional", "--data", "empty"], "empty has no file 'texts.tsv'"),
        (["--recipe", "bidirectional", "--data", "few.txt"], "mntp learns from plain texts, 4 or more; there are 2"),
        (
            ["--recipe", "bidirectonal", "--data", "texts.txt"],
            "Unknown recipe 'bidirectonal'. Did you mean bidirectional",
        ),
        (["--recipe", "lora", "--data", "mine.tsv", "--stages", "mntp"], "--stages 'mntp' chooses among the stages"),
        (["plan.toml", "--recipe", "bidirectional"], "leave out --recipe"),
        (["plan.toml", "--stages", "pull", "--data", "mine.tsv"], "No stage learns from plain texts, so mine.tsv"),
        (["unnamed.toml"], r"stages is a list of tables, \[\[stages\]\], each with a name of its own"),
        (["twice.toml"], r"stages is a list of tables, \[\[stages\]\], each with a name of its own"),
    ],
)
def test_a_mistake_is_one_sentence(words, message, place):
    (place / "empty").mkdir()
    (place / "few.txt").write_text("One text.\nAnother text.\n")
    (place / "unnamed.toml").write_text(PLAN.replace('name = "tell"', ""))
    (place / "twice.toml").write_text(PLAN.replace('name = "tell"', 'name = "pull"'))
    with pytest.raises(Decoder2VecError, match=message) as error:
        printed(*words, "--out", "enc")
    assert len(str(error.value).splitlines()) == 1
    assert not (place / "enc").exists() and not (place / "enc-stages").exists()
