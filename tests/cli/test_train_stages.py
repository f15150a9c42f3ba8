"""`d2v train` with plans of several stages, and from an encoder that was trained before."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.backbone.attention import attention_mismatch
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError
from decoder2vec.training.loop import History
from toys.command import d2v, one_line
from toys.texts import sentences
from toys.training import toy_examples, toy_pairs

TINY = ["--backbone", "tiny-llama", "--device", "cpu"]
QUICK = ["--set", "mntp.training.steps=6", "--set", "simcse.training.steps=1", "--set", "mntp.training.rate=0.01"]
QUICK += ["--set", "mntp.training.batch=4", "--set", "simcse.training.batch=4"]
PLAN = """
about = "Two stages."

[data]
texts = "corpus.txt"
dev = ["pairs.tsv"]

[[stages]]
name = "predict"
recipe = "lora"
lora = {rank = 2, attention = "bidirectional", objective = {name = "mntp"}, training = {epochs = 1, batch = 8}}

[[stages]]
name = "contrast"
recipe = "soft_prompt"
soft_prompt = {tokens = 2, attention = "bidirectional", training = {epochs = 1, batch = 8}}
data = {triplets = "mine.tsv"}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with texts, triplets, scored pairs and a plan; stages trained elsewhere are not found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("decoder2vec.training.api.cache_root", lambda: tmp_path / "notes")
    pairs = toy_pairs()
    files = {
        "texts.txt": sentences(24),
        "corpus.txt": sentences(24),
        "mine.tsv": [
            "anchor\tpositive\tnegative",
            *("\t".join((example.anchor, example.positive, example.negatives[0])) for example in toy_examples()),
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


def train(*args):
    """What a successful `d2v train ARGS` on tiny-llama prints."""
    result = d2v("train", *args, *TINY)
    assert result.exit_code == 0, result.output
    return result.output


def results(folder):
    return json.loads((Path(folder) / "results.json").read_text())


# notes


@pytest.mark.parametrize("attention", ["causal", "bidirectional:2"])
def test_mntp_with_causal_attention_gives_a_note(attention):
    settings = ["--set", "objective.name=mntp", "--set", f"attention={attention}", "--set", "training.steps=1"]
    output = one_line(train("--recipe", "lora", "--data", "texts.txt", "--out", "enc", *settings))
    note = "mntp under causal attention predicts masked tokens from the tokens before them only"
    for text in (output, Path("enc/README.md").read_text(), " ".join(results("enc")["notes"])):
        assert text.count(note) == (attention == "causal")


@pytest.mark.parametrize(("steps", "is_noted"), [(121, True), (120, False)])
def test_too_many_steps_for_a_small_file_give_a_note(steps, is_noted, monkeypatch):
    """The recipe's steps suit a hundred thousand texts: on a few hundred they would repeat them for hours."""
    monkeypatch.setattr("decoder2vec.training.recipes.recipe.fit", lambda *_, **__: History(start=0.0))
    settings = ["--set", "objective.name=mntp", "--set", "training.batch=4", "--set", f"training.steps={steps}"]
    settings += ["--set", "attention=bidirectional"]
    output = one_line(train("--recipe", "lora", "--data", "texts.txt", "--out", "enc", *settings))
    note = "121 steps of 4 see each of 24 examples 20 times; --set training.steps=120 would see it 20 times"
    assert output.count(note) == is_noted == (note in results("enc")["notes"])


# the recipe `bidirectional`


def test_advice_of_a_stage_is_a_setting_that_works(monkeypatch):
    """`--set training.steps=...` alone would be refused: settings of a plan with stages begin with a stage."""
    monkeypatch.setattr("decoder2vec.training.recipes.recipe.fit", lambda *_, **__: History(start=0.0))
    command = ("--recipe", "bidirectional", "--data", "texts.txt", "--out", "enc")
    output = one_line(train(*command))
    advised = re.findall(r"--set \S+", output)
    names = [f"--set {stage}.training.{name}" for stage in ("mntp", "simcse") for name in ("steps", "batch")]
    assert [option.partition("=")[0] for option in advised] == names
    output = one_line(train(*command, "--overwrite", *" ".join(advised).split()))
    assert "wrote the encoder enc" in output
    assert "--set" not in output  # followed, the advice is not repeated, nor contradicted by "too few steps"
    assert [(stage["steps"], stage["batch"]) for stage in results("enc")["stages"]] == [(53, 9), (53, 9)]


def test_bidirectional_needs_only_plain_texts(own_cache):
    output = train("--recipe", "bidirectional", "--data", "texts.txt", "--out", "enc", *QUICK)
    assert "wrote the encoder enc (best seed: 0)" in output
    encoder = Encoder.load("enc", device="cpu")
    assert encoder.spec.attention == "bidirectional"
    assert not attention_mismatch(encoder.backbone.model, "bidirectional")
    assert [reading.pooling for reading in encoder.spec.readings] == ["mean"]
    first = Encoder.load("enc-stages/1-mntp", device="cpu")
    assert np.isfinite([stage.encode(["The dog runs"]) for stage in (first, encoder)]).all()
    assert encoder.backbone.fingerprint != first.backbone.fingerprint
    assert [results(path)["config"]["lora"]["training"]["steps"] for path in ("enc-stages/1-mntp", "enc")] == [6, 1]
    assert results("enc")["data"] == {"plain texts": "24"} and results("enc")["mean"]["dev"] == {}
    card = Path("enc/README.md").read_text()
    assert card.startswith(
        "# bidirectional: an encoder made of tiny-llama\n\nVectors of whole texts: a text encoded twice"
    )
    assert "No scored pairs were given; the best state was selected on held-out texts." in card
    assert "Spearman" not in card and "- plain texts: 24" in card and own_cache not in card
    assert not re.search(r"\bnan\b|\bNone\b|\{\}|-inf", card)


def test_encoder_can_be_written_to_the_working_directory(folder, monkeypatch):
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    train("--recipe", "bidirectional", "--data", "../texts.txt", "--out", ".", *QUICK)
    assert Encoder.load(folder / "here", device="cpu").spec.attention == "bidirectional"
    assert (folder / "here-stages" / "1-mntp").is_dir()


def test_second_run_needs_overwrite_and_finds_all_stages(folder):
    options = ["--recipe", "bidirectional", "--data", "texts.txt", "--out", "enc", *QUICK]
    train(*options)
    before = Encoder.load("enc", device="cpu").fingerprint
    with pytest.raises(Decoder2VecError, match="enc holds an encoder already"):
        train(*options)
    output = train(*options, "--overwrite", "--results", "again.json")
    assert f"mntp: found in {folder / 'enc-stages' / '1-mntp'}\n" in output
    assert f"simcse: found in {folder / 'enc'}\n" in output
    assert "Nothing to do: enc is up to date (same settings, data and weights)." in one_line(output)
    assert "wrote the encoder" not in output and "parameters trained" not in output
    assert Encoder.load("enc", device="cpu").fingerprint == before
    assert json.loads(Path("again.json").read_text()) == results("enc")


CTRL_C_IN_STEP_4 = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from decoder2vec.cli import main
from decoder2vec.training import loop
assert callable(loop.average_gradients)
steps = []
loop.average_gradients = lambda _: steps.append(1) or (len(steps) == 4 and os.kill(os.getpid(), signal.SIGINT))
main()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_training_resumes_at_the_step_of_ctrl_c(own_cache, quick_python):
    """Long before the first evaluation on dev, and before a checkpoint is due."""
    options = ["--recipe", "bidirectional", "--stages", "mntp", "--data", "texts.txt", *QUICK]
    options += ["--set", "mntp.training.evaluate_every=100"]
    interrupted = quick_python.run(CTRL_C_IN_STEP_4, "train", *options, "--out", "enc", *TINY)
    assert interrupted.returncode == 130, interrupted.stderr
    last_line = interrupted.stderr.splitlines()[-1]
    assert last_line == "interrupted; finished work is kept and reused by the next run"
    assert "Traceback" not in interrupted.stderr and not Path("enc").exists()
    assert "masked texts: resuming from step 3 of 6" in train(*options, "--out", "enc")
    train(*options, "--out", "uninterrupted")
    for key in ("losses", "scores"):
        resumed, expected = (results(path)["seeds"][0]["notes"]["training"][key] for path in ("enc", "uninterrupted"))
        assert resumed == pytest.approx(expected, rel=1e-5)
    assert not Path("enc.unfinished").exists()


def test_stage_with_other_settings_needs_overwrite(folder):
    options = ["--recipe", "bidirectional", "--data", "texts.txt", "--out", "enc", *QUICK]
    train(*options)
    Path("enc").rename("kept")
    changed = [*options, "--set", "mntp.training.steps=1"]
    stage = re.escape(str(folder / "enc-stages" / "1-mntp"))
    with pytest.raises(Decoder2VecError, match=f"^{stage} holds .*; choose another --out, or add --overwrite"):
        train(*changed)
    assert results("enc-stages/1-mntp")["config"]["lora"]["training"]["steps"] == 6
    train(*changed, "--overwrite")
    assert results("enc-stages/1-mntp")["config"]["lora"]["training"]["steps"] == 1


def test_one_stage_can_be_trained_alone():
    output = train("--recipe", "bidirectional", "--stages", "simcse", "--data", "texts.txt", "--out", "enc", *QUICK)
    assert "masked texts" not in output and not Path("enc-stages").exists()
    encoder = Encoder.load("enc", device="cpu")
    assert encoder.spec.backbone == "tiny-llama" and not Path("enc/backbone").exists()
    assert results("enc")["config"]["lora"]["objective"]["name"] == "simcse"


# plans with stages


def test_stages_of_a_plan_share_its_data_and_are_scored():
    output = train(
        *("plan.toml", "--data", ".", "--test", "pairs.tsv", "--out", "enc", "--set", "contrast.training.rate=0.1")
    )
    assert "pairs" in output and "Spearman" in output and "best seed on dev: 0" in output
    first, second = results("enc-stages/1-predict"), results("enc")
    assert first["config"]["data"]["texts"] == second["config"]["data"]["texts"] == "corpus.txt"
    for stage in (first, second):
        assert stage["data"]["chosen on"] == stage["data"]["scored once on"] == "pairs (10 pairs)"
        assert stage["mean"]["dev"] == stage["mean"]["test"] and "pairs" in stage["mean"]["dev"]
    assert "examples" in second["data"] and "plain texts" not in second["data"]
    assert second["config"]["soft_prompt"]["training"]["rate"] == 0.1
    assert Encoder.load("enc", device="cpu").backbone.adapter.kind == "soft_prompt"
    assert "| 2 contrast | soft_prompt | info_nce | 1 epochs of 8 | 0.1 |" in Path("enc/README.md").read_text()


def test_file_to_learn_from_is_for_the_only_stage(folder):
    (folder / "mine.tsv").rename(folder / "other.tsv")
    train("plan.toml", "--stages", "contrast", "--data", "other.tsv", "--out", "enc")
    assert results("enc")["config"]["data"]["triplets"] == "other.tsv" and "examples" in results("enc")["data"]


def test_training_continues_from_an_encoder_folder():
    train("--recipe", "bidirectional", "--stages", "mntp", "--data", "texts.txt", "--out", "first", *QUICK)
    options = ["--recipe", "lora", "--data", "mine.tsv", "--dev", "pairs.tsv", "--set", "training.batch=8"]
    output = d2v("train", *options, "--backbone", "first", "--out", "second", "--device", "cpu").output
    assert "lora on first, 1 seed(s)" in output
    second, first = (Encoder.load(name, device="cpu") for name in ("second", "first"))
    assert second.backbone.fingerprint != first.backbone.fingerprint and Path("second/backbone").is_dir()
    assert Path("second/README.md").read_text().startswith("# lora: an encoder made of first\n")
    assert results("second")["backbone"] == {"name": "first", "fingerprint": second.backbone.fingerprint}


# mistakes

TWO_STAGES = ["--recipe", "bidirectional", "--data", "texts.txt"]
ONE_STAGE = ["--recipe", "lora", "--data", "texts.txt", "--set", "objective.name=mntp"]


@pytest.mark.parametrize("options", [TWO_STAGES, ONE_STAGE], ids=["two stages", "one stage"])
@pytest.mark.parametrize("out", ["mine", "mine/thesis.txt", "mine/thesis.txt/enc", "/proc/nope"])
def test_bad_output_folder_is_refused_before_reading(options, out, folder, monkeypatch):
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("all my work")
    monkeypatch.setattr("decoder2vec.training.data_source.load_data", lambda *_, **__: pytest.fail("data were read"))
    with pytest.raises(
        Decoder2VecError, match=r"is a file; choose|is not empty: .*; choose|^Cannot write to .*; choose"
    ):
        train(*options, "--out", out)


ONLY_ONE_TRAINING = "--grid and --trials choose the settings of one training"
NAMED_TABLES = r"stages is a list of tables, \[\[stages\]\], each with a name of its own"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*TWO_STAGES, "--stages", "simsce"], "Unknown stage 'simsce'. Did you mean simcse"),
        (
            [*TWO_STAGES, "--set", "training.steps=3"],
            "--set training.steps=3 must begin with .* stage: mntp, simcse",
        ),
        ([*TWO_STAGES, "--stages", ""], "Unknown stage ''. Known: mntp, simcse"),
        ([*TWO_STAGES, "--stages", " ,"], "Unknown stage ' ,'. Known: mntp, simcse"),
        (["--recipe", "lora", "--data", "texts.txt", "--stages", ""], "--stages '' chooses among the stages"),
        (
            [*TWO_STAGES, "--set", "mntp=3"],
            "--set mntp=3 names a stage but no setting of it: mntp.training.steps=3",
        ),
        ([*TWO_STAGES, "--set", "mntp.=3"], "--set mntp.=3 names a stage but no setting of it"),
        ([*TWO_STAGES, "--set", "mntp"], "--set mntp names a stage but no setting of it"),
        (
            [*TWO_STAGES, "--stages", "simcse", "--set", "mntp.nonsense=3"],
            r"Unknown setting in \[lora\] 'nonsense'",
        ),
        ([*TWO_STAGES, "--set", "rank=3"], "--set rank=3 must begin with the name of a stage: mntp, simcse"),
        ([*TWO_STAGES, "--set", "mntp.training.setps=3"], r"Unknown setting in \[lora.training\] 'setps'"),
        ([*TWO_STAGES, "--grid", "training.rate=0.1,0.2"], ONLY_ONE_TRAINING),
        ([*TWO_STAGES, "--trials", "2"], ONLY_ONE_TRAINING),
        (["--recipe", "bidirectional", "--data", "nowhere.txt"], "There is no file or folder nowhere.txt"),
        (["--recipe", "bidirectional", "--data", "empty"], "empty has no file 'texts.tsv'"),
        (["--recipe", "bidirectional", "--data", "few.txt"], "mntp learns from plain texts, 4 or more; there are 2"),
        (
            ["--recipe", "bidirectonal", "--data", "texts.txt"],
            "Unknown recipe 'bidirectonal'. Did you mean bidirectional",
        ),
        (["--recipe", "lora", "--data", "mine.tsv", "--stages", "mntp"], "--stages 'mntp' chooses among the stages"),
        (["plan.toml", "--recipe", "bidirectional"], "leave out --recipe"),
        (["contrastive.toml", "--data", "texts.txt"], "texts.txt holds plain texts, which do not say"),
        (["unnamed.toml"], NAMED_TABLES),
        (["duplicate.toml"], NAMED_TABLES),
    ],
)
def test_mistake_is_one_sentence_and_writes_nothing(options, message, folder):
    (folder / "empty").mkdir()
    (folder / "few.txt").write_text("One text.\nAnother text.\n")
    (folder / "unnamed.toml").write_text(PLAN.replace('name = "predict"', ""))
    (folder / "duplicate.toml").write_text(PLAN.replace('name = "predict"', 'name = "contrast"'))
    (folder / "contrastive.toml").write_text(PLAN.replace('{name = "mntp"}', '{name = "info_nce"}'))
    with pytest.raises(Decoder2VecError, match=message) as error:
        train(*options, "--out", "enc")
    assert len(str(error.value).splitlines()) == 1
    assert not (folder / "enc").exists() and not (folder / "enc-stages").exists()
