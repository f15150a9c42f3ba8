"""Several stages: each trains the model that the previous one made, none is repeated, none is lost in a crash."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoder2vec.base_model import load_base_model
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError, StorageError, UnsupportedError
from decoder2vec.text.concepts import ConceptSet
from decoder2vec.training import api, checkpoint
from decoder2vec.training.api import train
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.plan import Plan, Stage, load_plan
from toys.texts import plain_data, sentences
from toys.training import small_recipe, toy_examples, toy_pairs

TEXTS = ["The dog runs", "A long road goes over the green hills", ""]
STAGE = """
[[stages]]
name = "{name}"
recipe = "lora"
[stages.lora]
attention = "bidirectional"
rank = 4
[stages.lora.read]
pooling = "mean"
[stages.lora.objective]
name = "{name}"
[stages.lora.training]
epochs = 9
steps = 3
batch = 4
rate = 1e-2
evaluate_every = 1
patience = 9
"""
PLAN = STAGE.format(name="mntp") + STAGE.format(name="simcse")


class Killed(Exception):
    """Ends a run as a crash would."""


@pytest.fixture(autouse=True)
def own_cache_root(tmp_path, monkeypatch):
    """No test reuses a stage that another has trained; checkpoints are written after every step."""
    monkeypatch.setattr(api, "cache_root", lambda: tmp_path / "notes")
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory):
    """A plan of two stages, and the files that its stages learn from in several tests."""
    folder = tmp_path_factory.mktemp("plan")
    pairs = toy_pairs()
    rows = zip(pairs.left, pairs.right, pairs.scores, strict=True)
    files = {
        "plan.toml": [PLAN],
        "texts.txt": sentences(24),
        "more.txt": sentences(25),
        "reversed.txt": sentences(24)[::-1],
        "few.txt": sentences(2),
        "concepts.txt": ["dog"],
        "pairs.tsv": ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{score}" for a, b, score in rows)],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "plan.toml"


@pytest.fixture(scope="session")
def run(plan_file):
    """run(out, *settings, **options) -> TrainingResult of the plan on tiny-llama and texts.txt."""

    def run(out, *settings, backbone="tiny-llama", **options):
        options = {"device": "cpu", "data": plan_file.parent, **options}
        return train(plan_file, backbone=backbone, out=out, settings=settings, **options)

    return run


@pytest.fixture(scope="module")
def finished(run, tmp_path_factory):
    """(folder, result) of both stages, trained once: do not change the folder."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "cache_root", lambda: folder / "notes")
        return folder, run(folder / "enc")


@pytest.fixture
def trained(monkeypatch):
    """Names of the stages that are trained in a test."""
    names, original = [], api._train_stage

    def train_stage(stage, *args):
        names.append(stage.name)
        return original(stage, *args)

    monkeypatch.setattr(api, "_train_stage", train_stage)
    return names


@pytest.fixture
def run_again(finished, run, tmp_path, trained):
    """run_again(*settings, **options): run the plan in a copy of the finished folder."""
    for name in ("enc", "enc-stages"):
        shutil.copytree(finished[0] / name, tmp_path / name)
    return lambda *settings, **options: run(tmp_path / "enc", *settings, **{"overwrite": True, **options})


@pytest.fixture
def first_trained(run_again, monkeypatch):
    """first_trained(*settings, **options) -> name of the first stage that is not up to date; nothing is trained."""

    def stop(stage, *_):
        raise Killed(stage.name)

    def first(*settings, **options):
        with monkeypatch.context() as patch, pytest.raises(Killed) as killed:
            patch.setattr(api, "_train_stage", stop)
            run_again(*settings, **options)
        return killed.value.args[0]

    return first


def equal_encoders(a, b):
    return a.fingerprint == b.fingerprint and (a.encode(TEXTS) == b.encode(TEXTS)).all()


ONE_STEP = ("mntp.training.steps=1", "simcse.training.steps=1")


# --- results --------------------------------------------------------------------------------------------------------


def test_each_stage_is_an_encoder_and_the_next_trains_on(finished, gap):
    folder, result = finished
    assert sorted(path.name for path in folder.iterdir()) == ["enc", "enc-stages", "notes"]
    assert [path.name for path in (folder / "enc-stages").iterdir()] == ["1-mntp"]
    first, second = (Encoder.load(folder / name, device="cpu") for name in ("enc-stages/1-mntp", "enc"))
    assert equal_encoders(second, result.encoder)
    assert first.spec.attention == second.spec.attention == "bidirectional"
    assert first.backbone.adapter.kind == second.backbone.adapter.kind == "lora"
    merged, _ = load_base_model(folder / "enc-stages/1-mntp", device="cpu")
    assert second.backbone.fingerprint == merged.fingerprint != first.backbone.fingerprint
    untrained = Encoder(second.backbone.with_adapter(None), second.spec)
    assert gap(untrained.encode(TEXTS), first.encode(TEXTS)) < 1e-5, "the second starts as the first ended"
    assert gap(second.encode(TEXTS), first.encode(TEXTS)) > 1e-3, "and learns"


def test_results_name_the_stage_and_the_original_model(finished, own_cache):
    folder, result = finished
    results = result.results
    assert {key: results["stage"][key] for key in ("name", "number")} == {"name": "simcse", "number": 2}
    assert results["backbone"] == {"name": "tiny-llama", "fingerprint": result.encoder.backbone.fingerprint}
    assert results["config"]["lora"]["objective"]["name"] == results["config"]["name"] == "simcse"
    for path, name in (("enc-stages/1-mntp", "plan, stage mntp"), ("enc", "plan")):
        card = (folder / path / "README.md").read_text()
        assert f"# {name}: an encoder made of tiny-llama\n" in card
        assert own_cache not in card and str(folder) not in card


def test_results_and_card_list_the_stages_before(finished):
    folder, result = finished
    first_folder, last_folder = folder / "enc-stages" / "1-mntp", folder / "enc"
    first, last = (json.loads((path / "results.json").read_text()) for path in (first_folder, last_folder))
    summaries = [dict(summary) for summary in result.results["stages"]]
    assert [summary.pop("key") for summary in summaries] == [first["stage"]["key"], last["stage"]["key"]]
    expected = {"recipe": "lora", "steps": 3, "epochs": 9, "batch": 4, "rate": 0.01}
    assert [summary.pop("data") for summary in summaries] == [{"plain texts": "24"}] * 2
    assert summaries == [{"name": name, "objective": name, **expected} for name in ("mntp", "simcse")]
    assert first["stages"] == last["stages"][:1]
    card = (last_folder / "README.md").read_text()
    assert f"| 1 mntp | lora | mntp | 3 steps of 4 | 0.01 | {first['stage']['key']} |\n| 2 simcse | lora |" in card
    assert "## Stages" not in (first_folder / "README.md").read_text(), "the first has none before it"


def test_a_stage_that_is_up_to_date_is_listed_too(run_again):
    stages = run_again("simcse.training.steps=1", "simcse.training.epochs=2").results["stages"]
    assert [(stage["name"], stage["steps"]) for stage in stages] == [("mntp", 3), ("simcse", 1)]


def test_every_stage_is_scored_on_dev_and_test_pairs(run, plan_file, tmp_path):
    pairs = plan_file.with_name("pairs.tsv")
    result = run(tmp_path / "enc", *ONE_STEP, dev=[pairs], test=[pairs])
    dev, test = (result.results["mean"][part]["pairs"] for part in ("dev", "test"))
    assert dev == test and dev.keys() == {"spearman", "pearson"}
    for path in ("enc", "enc-stages/1-mntp"):
        assert "| test: pairs | " in (tmp_path / path / "README.md").read_text()


def test_a_single_stage_has_no_folder_beside_it(run, tmp_path):
    result = run(tmp_path / "enc", "simcse.training.steps=1", stages=["simcse"], seeds=(0, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["enc", "notes"]
    assert result.results["stage"]["number"] == 1 and len(result.results["seeds"]) == 2
    assert result.encoder.spec.attention == "bidirectional"


def test_a_file_goes_to_the_stages_that_learn_from_its_kind(backbone, plan_file, tmp_path):
    """The only stage takes the file, whatever it holds; of several, those that learn from such data."""
    mntp = load_plan(plan_file).stages[0]
    examples = [("anchor", "positive"), *((example.anchor, example.positive) for example in toy_examples())]
    file = tmp_path / "mine.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in examples), encoding="utf-8")
    contrastive = Stage("pull", small_recipe("lora", epochs=1))
    with pytest.raises(DataFileError, match=r"texts.txt holds plain texts, which do not say what"):
        twice = Plan("two", (contrastive, replace(contrastive, name="again")))
        train(twice, plan_file.with_name("texts.txt"), backbone("tiny-llama"), tmp_path / "none")
    alone = train(Plan("one", (contrastive,)), file, backbone("tiny-llama"), tmp_path / "one")
    assert alone.results["config"]["data"]["triplets"] == "mine.tsv"
    texts = shutil.copy(plan_file.with_name("texts.txt"), tmp_path / "plain.txt")
    plan = Plan("two", (replace(mntp, recipe=replace(mntp.recipe, training=contrastive.recipe.training)), contrastive))
    both = train(plan, [texts, file], backbone("tiny-llama"), tmp_path / "two")
    first = json.loads((tmp_path / "two-stages" / "1-mntp" / "results.json").read_text())
    assert first["config"]["data"]["texts"] == "plain.txt" and first["data"] == {"plain texts": "24"}
    assert both.results["config"]["data"]["texts"] == "" and "examples" in both.results["data"]


# --- errors before the first step -----------------------------------------------------------------------------------

IMPOSSIBLE = {
    "no bidirectional layer": (
        "simcse.attention=bidirectional:99",
        "'bidirectional:99' leaves no.*: the model has 4 layers",
    ),
    "no such layer": ("simcse.read.layer=99", "there is no layer 99"),
    "embeddings": ("simcse.read.layer=0", "Layer 0 is the embeddings"),
    "not the top layer": ("mntp.read.layer=2", "mntp predicts from the top layer"),
    "too few texts": ("simcse.data.texts=few.txt", "simcse learns from plain texts, 4 or more; there are 2"),
}


@pytest.mark.parametrize(("setting", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_stage_raises_before_any_is_trained(setting, message, run, trained, tmp_path):
    with pytest.raises(InputError, match=message):
        run(tmp_path / "enc", setting)
    assert trained == [] and not any(tmp_path.iterdir())


def test_attention_that_the_family_cannot_have_raises_first(run, trained, tmp_path):
    with pytest.raises(UnsupportedError, match="mamba cannot be read with bidirectional attention"):
        run(tmp_path / "enc", "mntp.attention=causal", backbone="tiny-mamba")
    assert trained == []


@pytest.mark.parametrize("name", ["soft_prompt", "kv_prefix"])
def test_only_the_last_stage_may_train_what_cannot_be_merged(name, backbone, trained, tmp_path):
    prompt = Stage("prompt", small_recipe(name))
    with pytest.raises(UnsupportedError, match=rf"prompt trains a {name}, .* only the last stage may do that"):
        data = plain_data(contrastive=with_negatives(5), dev=(toy_pairs(),))
        train(Plan("two", (prompt, replace(prompt, name="next"))), data, backbone("tiny-llama"), tmp_path / "enc")
    assert trained == []


@pytest.mark.parametrize(
    "path", ["enc", "enc-stages", "enc-stages/1-mntp", "enc-stages/1-mntp/mine.txt", "enc/mine.txt"]
)
def test_files_of_something_else_raise_and_are_left_alone(path, run, trained, tmp_path):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("all my work")
    with pytest.raises(
        (InputError, StorageError),
        match=r"is a file; choose|is not empty: .*; choose|Cannot write to .*Not a",
    ):
        run(tmp_path / "enc")
    assert trained == [] and (tmp_path / path).read_text() == "all my work"


@pytest.mark.parametrize("last", ["there", "gone"])
def test_a_stage_with_other_settings_is_kept_without_overwrite(last, run_again, trained, tmp_path):
    if last == "gone":
        shutil.rmtree(tmp_path / "enc")
    first_stage = tmp_path / "enc-stages" / "1-mntp"
    before = Encoder.load(first_stage, device="cpu").fingerprint
    folder = first_stage if last == "gone" else tmp_path / "enc"
    with pytest.raises(InputError, match=f"{folder} holds .*; choose another --out, or add --overwrite to replace it"):
        run_again("mntp.training.rate=0.02", overwrite=False)
    assert trained == [] and Encoder.load(first_stage, device="cpu").fingerprint == before


def test_a_last_stage_is_kept_without_overwrite(run_again, trained, tmp_path):
    shutil.rmtree(tmp_path / "enc-stages")
    with pytest.raises(InputError, match=f"{tmp_path / 'enc'} holds an encoder"):
        run_again("mntp.training.rate=0.02", overwrite=False)
    assert trained == []


def test_a_stage_found_elsewhere_replaces_nothing(finished, run, run_again, trained, tmp_path):
    run(tmp_path / "other", ONE_STEP[0], stages=["mntp"])
    shutil.rmtree(tmp_path / "enc")
    run_again(*ONE_STEP, overwrite=False)
    assert trained == ["mntp", "simcse"]
    first = Encoder.load(tmp_path / "enc-stages" / "1-mntp", device="cpu").fingerprint
    assert first == Encoder.load(finished[0] / "enc-stages" / "1-mntp", device="cpu").fingerprint


# --- which stages are repeated --------------------------------------------------------------------------------------


def test_stages_that_are_up_to_date_are_not_trained(finished, run_again, trained, tmp_path, monkeypatch):
    from decoder2vec.backbone import backbone as backbone_module

    original, devices, messages = backbone_module.choose_device, [], []
    monkeypatch.setattr(backbone_module, "choose_device", lambda name=None: original(devices.append(name) or name))
    result = run_again(notify=messages.append)
    assert trained == [] and equal_encoders(result.encoder, finished[1].encoder)
    assert result.results == finished[1].results and result.record == finished[1].record
    assert (finished[1].trained, result.trained) == (True, False)
    found = [message for message in messages if "found in" in message]
    assert found == [f"mntp: found in {tmp_path / 'enc-stages' / '1-mntp'}", f"simcse: found in {tmp_path / 'enc'}"]
    assert set(devices) == {"cpu"}, "encoders that are found are loaded to the requested device, too"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("simcse.objective.temperature=0.1", ["simcse"]), ("mntp.training.rate=0.02", ["mntp", "simcse"])],
)
def test_a_change_repeats_its_stage_and_those_after_it(setting, expected, finished, run_again, trained):
    result = run_again(setting)
    assert trained == expected and result.encoder.fingerprint != finished[1].encoder.fingerprint
    trained.clear()
    run_again(setting)
    assert trained == []


CHANGES = {
    "texts": (["mntp.data.texts=more.txt"], {}, "mntp"),
    "order of the texts": (["mntp.data.texts=reversed.txt"], {}, "mntp"),
    "texts of the second stage": (["simcse.data.texts=more.txt"], {}, "simcse"),
    "dev pairs": (["mntp.data.dev=['pairs.tsv']"], {}, "mntp"),
    "concepts": (["mntp.data.concepts=concepts.txt"], {}, "mntp"),
    "seed": ([], {"seeds": (1,)}, "mntp"),
    "model": ([], {"backbone": "tiny-qwen3"}, "mntp"),
    "dtype": ([], {"dtype": "bfloat16"}, "mntp"),
    "4-bit weights": ([], {"dtype": "4bit"}, "mntp"),
}


@pytest.mark.parametrize(("settings", "options", "expected"), CHANGES.values(), ids=CHANGES)
def test_every_input_of_a_stage_is_part_of_its_key(settings, options, expected, first_trained, monkeypatch):
    # the widths of tiny-llama cannot be computed in 4 bits on every machine, which does not matter here
    monkeypatch.setattr("decoder2vec.backbone.backbone._check_four_bit", lambda model: None)
    assert first_trained(*settings, **options) == expected


def with_negatives(step):
    """The toy examples with other negatives, each of which is the positive of another example."""
    examples = toy_examples()
    return ContrastiveExamples.of(
        [example._replace(negatives=(examples[index - step].positive,)) for index, example in enumerate(examples)]
    )


TRIPLETS = (("a", "b", "c"), ("d", "e", "f"))


@pytest.mark.parametrize(
    ("data", "other"),
    [
        ({"concepts": ConceptSet(frozenset({"dog"}))}, {"concepts": ConceptSet(frozenset({"cat"}))}),
        ({"contrastive": with_negatives(5)}, {"contrastive": with_negatives(6)}),
        ({"triplets": (*TRIPLETS, ("a", "e", "c"))}, {"triplets": (*TRIPLETS, ("a", "e", "f"))}),
        ({"nli": (("neutral", "a", "b"),)}, {"nli": (("entailment", "a", "b"),)}),
        ({"dev": (toy_pairs(),), "test": (toy_pairs("b"),)}, {"dev": (toy_pairs(), toy_pairs("b"))}),
        ({"dev": (toy_pairs(),)}, {"dev": (replace(toy_pairs(), scores=toy_pairs().scores[::-1]),)}),
    ],
    ids=["concepts", "negatives", "triplets", "labels", "dev or test", "scores"],
)
def test_data_with_the_same_texts_may_have_other_keys(data, other):
    assert plain_data(**data).all_texts() == plain_data(**other).all_texts()
    assert plain_data(**data).key() != plain_data(**other).key()
    assert plain_data(**data).key() == plain_data(**data).key()


def test_a_stage_of_another_encoder_is_reused(run, trained, tmp_path):
    messages = []
    run(tmp_path / "first", ONE_STEP[0], stages=["mntp"])
    run(tmp_path / "other" / "enc", *ONE_STEP, notify=messages.append)
    assert trained == ["mntp", "simcse"] and f"mntp: found in {tmp_path / 'first'}" in messages
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["enc"]
    (tmp_path / "first").rename(tmp_path / "moved")
    run(tmp_path / "third" / "enc", *ONE_STEP)
    assert trained[2:] == ["mntp", "simcse"], "a folder that is gone is trained again"


@pytest.mark.parametrize("file", ["results.json", "run.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"], ids=["truncated", "a list", "no text"])
def test_a_stage_with_broken_results_is_trained_again(file, content, run_again, trained, tmp_path):
    shutil.rmtree(tmp_path / "enc")
    (tmp_path / "enc-stages" / "1-mntp" / file).write_bytes(content)
    run_again("simcse.training.steps=1", overwrite=False)
    assert trained == ["mntp", "simcse"]


def test_results_of_another_shape_belong_to_another_encoder(run_again, trained, tmp_path):
    (tmp_path / "enc" / "results.json").write_text('{"stage": 3}')
    with pytest.raises(InputError, match="enc holds an encoder"):
        run_again(overwrite=False)
    run_again()
    assert trained == ["simcse"]


# --- killed runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["masked texts", "texts"])
def test_a_killed_run_resumes_in_its_stage(stage, finished, run, tmp_path):
    def kill(state):
        if state.stage == stage and state.step == 2:
            raise Killed

    out = tmp_path / "enc"
    with pytest.raises(Killed):
        run(out, on_progress=kill)
    assert not out.exists() and (tmp_path / "enc-stages" / "1-mntp").is_dir() == (stage == "texts")
    steps, messages = [], []
    torch.manual_seed(99)
    result = run(out, on_progress=lambda state: steps.append((state.stage, state.step)), notify=messages.append)
    expected = [("masked texts", 3), ("masked texts", 3), ("texts", 1), ("texts", 2), ("texts", 3), ("texts", 3)]
    assert steps == (expected if stage == "masked texts" else expected[-2:])
    assert any(message.startswith("mntp: found in") for message in messages) == (stage == "texts")
    assert equal_encoders(result.encoder, finished[1].encoder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["enc", "enc-stages", "notes"]
    assert [path.name for path in (tmp_path / "enc-stages").iterdir()] == ["1-mntp"]


def test_the_folder_of_a_stage_may_be_the_working_directory(run, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run(Path("."), *ONE_STEP)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "here-stages", "notes"]
