"""`train`: what it accepts, the results and card it writes, seeds, output folders, and runs that are interrupted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import decoder2vec
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import is_encoder_folder
from decoder2vec.errors import BackboneError, DataFileError, InputError, StorageError, UnsupportedError
from decoder2vec.text.data_check import count_overlap
from decoder2vec.text.files import Triplets
from decoder2vec.training import api, checkpoint
from decoder2vec.training.api import train
from decoder2vec.training.data import TrainingData
from decoder2vec.training.plan import Plan, load_plan
from toys.training import small_recipe, toy_data, toy_examples

SETTINGS = [
    "widths=[8]",
    "hidden=8",
    "pretrain=none",
    "head=sum",
    "training.epochs=2",
    "training.batch=16",
    "latents=[{}]",
]
PROMPTED = 'latents=[{layers=[2, 4]}, {template="prompteol", layers=[3]}]'


class Killed(Exception):
    """Ends a run as a crash would."""


@pytest.fixture(autouse=True)
def own_cache_root(tmp_path_factory, monkeypatch):
    """No test reuses a stage that another has trained."""
    folder = tmp_path_factory.mktemp("cache-root")
    monkeypatch.setattr(api, "cache_root", lambda: folder)


@pytest.fixture
def run(data, backbone, tmp_path):
    """run(*settings, **options) -> TrainingResult of a small FREEZE training; an earlier encoder is replaced."""

    def go(*settings, data=data, out=tmp_path / "encoder", **options):
        options = {"overwrite": True, **options}
        return train(None, data, backbone("tiny-llama"), out, settings=[*SETTINGS, *settings], **options)

    return go


@pytest.fixture
def triplets_file(tmp_path):
    """A folder with the toy examples in triplets.tsv."""
    rows = [(example.anchor, example.positive, example.negatives[0]) for example in toy_examples()]
    lines = ["\t".join(row) for row in [("anchor", "positive", "negative"), *rows]]
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "triplets.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


# --- arguments ------------------------------------------------------------------------------------------------------

QUICK = ["training.epochs=1", "training.batch=8", "rank=2"]


def test_a_name_and_a_file_are_enough(triplets_file, tmp_path):
    """As in the example of the docstring."""
    result = decoder2vec.train("lora", triplets_file, "tiny-llama", tmp_path / "enc", settings=QUICK, device="cpu")
    assert result.trained and result.encoder.encode("A cat sleeps.").shape == (32,)
    loaded = Encoder.load(tmp_path / "enc", device="cpu")
    assert loaded.fingerprint == result.encoder.fingerprint
    config = result.results["config"]
    assert (config["name"], config["lora"]["rank"], config["data"]["triplets"]) == ("lora", 2, "triplets.tsv")


def test_freeze_learns_from_a_file_of_triplets_of_any_name(data, triplets_file, write_pairs, backbone, tmp_path):
    """Without scored pairs to train on, the file named by the caller holds the triplets."""
    file = triplets_file.rename(triplets_file.with_name("mine.tsv"))
    dev = write_pairs(tmp_path / "dev.tsv", data.dev[0])
    settings = [*SETTINGS, "loss=none", "pretrain=contrastive"]
    result = train(None, file, backbone("tiny-llama"), tmp_path / "enc", dev=[dev], settings=settings)
    assert result.results["config"]["data"]["triplets"] == "mine.tsv"


def test_every_form_of_a_plan_gives_the_same_encoder(backbone, triplets_file, tmp_path):
    """A name with settings, a recipe object, a plan object, a TOML file as path and as text."""
    settings = [*QUICK, "read.template=plain", "choose_by=spearman"]
    (recipe,) = (stage.recipe for stage in load_plan("lora", settings).stages)
    file = tmp_path / "plan.toml"
    lines = ["[lora]", "rank = 2", 'read.template = "plain"', "training = {epochs = 1, batch = 8}"]
    lines.append('choose_by = "spearman"')
    file.write_text("\n".join(['recipe = "lora"', *lines]) + "\n")
    sources = {
        "name": ("lora", settings),
        "recipe": (recipe, []),
        "plan": (Plan.of(recipe), []),
        "file": (file, []),
        "text": (str(file), []),
    }
    results = {
        name: train(source, triplets_file, backbone("tiny-llama"), tmp_path / name, settings=settings)
        for name, (source, settings) in sources.items()
    }
    assert all(result.trained for result in results.values())
    assert len({result.encoder.fingerprint for result in results.values()}) == 1
    names = [result.results["config"]["name"] for result in results.values()]
    assert names == ["lora", "lora", "lora", "plan", "plan"]


def test_data_in_memory_equal_those_of_files(backbone, triplets_file, tmp_path):
    """And so does a model that is given by name, or as a `Backbone`."""
    from decoder2vec.training.data import DataFiles, load_data

    in_memory = load_data(triplets_file.parent, DataFiles(), needs=["contrastive"])
    by_name = train("lora", triplets_file, "tiny-llama", tmp_path / "a", settings=QUICK, device="cpu", dtype="float32")
    by_object = train("lora", in_memory, backbone("tiny-llama"), tmp_path / "b", settings=QUICK)
    assert by_name.encoder.fingerprint == by_object.encoder.fingerprint
    assert by_name.results["data"] == by_object.results["data"]
    assert by_name.results["notes"] == by_object.results["notes"]


def test_files_of_the_caller_are_used_and_recorded(backbone, make_pairs, write_pairs, tmp_path):
    """They take precedence over those of the plan; settings and results name them from the data folder."""
    (tmp_path / "data").mkdir()
    for seed, name in enumerate(("train", "dev", "mine", "data/train", "data/dev")):
        write_pairs(tmp_path / f"{name}.tsv", make_pairs(name, 25, seed))
    result = train(
        None,
        tmp_path / "data",
        backbone("tiny-llama"),
        tmp_path / "enc",
        train=tmp_path / "mine.tsv",
        dev=[tmp_path / "dev.tsv"],
        test=[str(tmp_path / "train.tsv")],
        settings=[*SETTINGS, "data.train=train.tsv", "data.dev=['dev.tsv']"],
    )
    config = result.results["config"]["data"]
    assert (config["train"], config["dev"], config["test"]) == ("../mine.tsv", ["../dev.tsv"], ["../train.tsv"])
    assert result.results["data"] == {
        "scored pairs": "mine (25 pairs)",
        "chosen on": "dev (25 pairs)",
        "scored once on": "train (25 pairs)",
    }


def test_one_file_setting_or_seed_needs_no_list(backbone, triplets_file, write_pairs, make_pairs, tmp_path):
    dev, test = (str(write_pairs(tmp_path / f"{name}.tsv", make_pairs(name, 25, 1))) for name in ("dev", "test"))
    one = {"dev": dev, "test": Path(test), "seeds": 1, "settings": "training.steps=2"}
    lists = {name: [value] for name, value in one.items()}
    alone, listed = (
        train("lora", triplets_file, backbone("tiny-llama"), tmp_path / out, **options)
        for out, options in (("a", one), ("b", lists))
    )
    assert alone.encoder.fingerprint == listed.encoder.fingerprint
    assert alone.results["config"] == listed.results["config"] and alone.results["best_seed"] == 1
    with pytest.raises(BackboneError, match="no teacher 'tiny-gtp2'"):
        train("distill", triplets_file, backbone("tiny-llama"), tmp_path / "c", teachers="tiny-gtp2")


@pytest.mark.parametrize("data", [Triplets("mine", [("a", "b", "c")]), [("a", "b", "c")]])
def test_data_in_memory_without_training_data_raise(data, backbone, tmp_path):
    with pytest.raises(InputError, match="TrainingData"):
        train("lora", data, backbone("tiny-llama"), tmp_path / "encoder")


@pytest.mark.parametrize("files", [{"train": "t.tsv"}, {"dev": ["d.tsv"]}, {"test": ["t.tsv"]}, {"columns": "abc"}])
def test_files_beside_data_in_memory_raise(files, run):
    with pytest.raises(InputError, match="put the pairs into the TrainingData"):
        run(**files)


def test_scores_outside_the_scale_of_data_in_memory_raise(run, data):
    with pytest.raises(InputError, match=r"scores of train lie outside the scale 0 to 1 \(they go from 0\.1 to 5\)"):
        run(data=replace(data, scale=(0.0, 1.0)))


def test_a_backbone_with_an_adapter_raises(backbone, tmp_path):
    first = train(small_recipe("lora", epochs=1), toy_data(), backbone("tiny-llama"), tmp_path / "first")
    with pytest.raises(UnsupportedError, match="has a lora already; give the folder of its encoder"):
        train(small_recipe("lora", epochs=1), toy_data(), first.encoder.backbone, tmp_path / "second")
    second = train(small_recipe("lora", epochs=1), toy_data(), tmp_path / "first", tmp_path / "second", device="cpu")
    assert second.results["backbone"]["name"] == str(tmp_path / "first")
    assert (tmp_path / "second" / "backbone").is_dir(), "the model with the first LoRA merged"


def test_later_stages_keep_the_dtype_of_a_backbone(tmp_path):
    """On a GPU the default would be another than that of the object."""
    model = Backbone.load("tiny-llama", device="cpu", dtype="bfloat16")
    recipe = small_recipe("lora", epochs=1)
    plan = Plan("two", tuple(replace(Plan.of(recipe).stages[0], name=name) for name in ("first", "second")))
    result = train(plan, toy_data(), model, tmp_path / "enc")
    assert result.encoder.backbone.dtype == torch.bfloat16
    again = train(plan, toy_data(), model, tmp_path / "enc", overwrite=True)
    assert not again.trained and again.encoder.backbone.dtype == torch.bfloat16


# --- a second call --------------------------------------------------------------------------------------------------


def test_a_second_call_trains_nothing(run, tmp_path, monkeypatch):
    first = run(seeds=[0, 1], command="first")
    messages = []
    monkeypatch.setattr(api, "_train_stage", lambda *_: pytest.fail("a stage is trained"))
    second = run(seeds=[0, 1], command="second", notify=messages.append)
    assert (first.trained, second.trained) == (True, False)
    assert messages[-1] == f"embedding: found in {tmp_path / 'encoder'}"
    assert second.encoder.fingerprint == first.encoder.fingerprint
    assert (second.results, second.record) == (first.results, first.record)


def test_a_second_call_with_a_grid_tries_it_and_trains_the_best(backbone, tmp_path):
    recipe, out = small_recipe("lora", epochs=1), tmp_path / "enc"
    options = {"grid": {"training.rate": [1e-2, 1e-3]}, "overwrite": True}
    first = train(recipe, toy_data(), backbone("tiny-llama"), out, **options)
    assert [trial["settings"] for trial in first.results["grid"]] == [{"training.rate": 1e-2}, {"training.rate": 1e-3}]
    second = train(recipe, toy_data(), backbone("tiny-llama"), out, **options)
    assert not second.trained and second.results == first.results


@pytest.mark.parametrize("change", ["setting", "dev", "test", "seeds", "attention"])
def test_a_call_with_other_inputs_trains_again(change, run, data, tmp_path):
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    out = tmp_path / "encoder"
    train(None, data, model, out, settings=SETTINGS)
    settings = [*SETTINGS, "dropout=0.2"] if change == "setting" else SETTINGS
    changes = {"dev": {"dev": data.test, "test": data.dev}, "test": {"test": data.dev}}.get(change, {})
    if change == "attention":
        model.set_attention("bidirectional")
    seeds = [1] if change == "seeds" else [0]
    result = train(None, replace(data, **changes), model, out, settings=settings, seeds=seeds, overwrite=True)
    assert result.trained
    assert result.encoder.spec.attention == ("bidirectional" if change == "attention" else "causal")


def test_an_encoder_is_not_replaced_without_overwrite(run, tmp_path, monkeypatch):
    first = run()
    monkeypatch.setattr(api, "load_plan", lambda *_, **__: pytest.fail("the plan is read"))
    with pytest.raises(InputError, match=r"encoder holds an encoder already; choose another --out, or add --overwrite"):
        run(overwrite=False)
    assert Encoder.load(tmp_path / "encoder", device="cpu").fingerprint == first.encoder.fingerprint


# --- results --------------------------------------------------------------------------------------------------------


def test_results_hold_all_that_is_needed_to_repeat_a_run(run, tmp_path):
    result = run(seeds=[0, 3], command="d2v train plan.toml")
    results = json.loads((tmp_path / "encoder" / "results.json").read_text())
    assert results == json.loads(json.dumps(result.results))
    assert results.keys() >= {"config", "command", "seeds", "mean", "sd", "versions", "seconds"}
    assert results["command"] == "d2v train plan.toml"
    assert results["config"]["freeze"]["widths"] == [8] and results["config"]["data"]["train"] == "train.tsv"
    assert [seed["seed"] for seed in results["seeds"]] == [0, 3]
    for seed in results["seeds"]:
        assert seed.keys() >= {"seed", "dev", "test", "checks", "notes", "seconds"}
        assert seed["dev"]["dev"].keys() == seed["test"]["test"].keys() == {"spearman", "pearson"}
    assert {"torch", "transformers", "decoder2vec"} <= results["versions"].keys()
    assert results["seconds"] > 0


def test_means_and_deviations_are_those_over_the_seeds(run):
    results = run(seeds=[0, 1, 2]).results
    for part in ("dev", "test"):
        for metric in ("spearman", "pearson"):
            values = [seed[part][part][metric] for seed in results["seeds"]]
            assert results["mean"][part][part][metric] == pytest.approx(np.mean(values), abs=0.006)
            assert results["sd"][part][part][metric] == pytest.approx(np.std(values, ddof=1), abs=0.006)
    assert run(seeds=[0]).results["sd"]["dev"]["dev"] == {"spearman": 0.0, "pearson": 0.0}


def test_several_files_have_a_common_mean(run, data, make_pairs):
    more = replace(data, test=(*data.test, make_pairs("other", 20, 7)))
    results = run(data=more, seeds=[0, 1]).results
    assert results["mean"]["test"].keys() == {"test", "other", "all files"}
    values = [[scores["spearman"] for scores in seed["test"].values()] for seed in results["seeds"]]
    assert results["mean"]["test"]["all files"]["spearman"] == pytest.approx(np.mean(values), abs=0.006)
    assert "all files" not in results["mean"]["dev"]


def test_the_seed_best_on_dev_is_saved_whatever_test_says(run):
    several = run(seeds=[0, 1, 2])
    best = max(several.results["seeds"], key=lambda seed: seed["dev"]["dev"]["pearson"])
    assert several.results["best_seed"] == best["seed"]
    alone = run(seeds=[best["seed"]])
    assert alone.encoder.fingerprint == several.encoder.fingerprint


def test_the_saved_encoder_is_the_one_returned(run, tmp_path, data):
    encoder = run(PROMPTED).encoder
    loaded = Encoder.load(tmp_path / "encoder", device="cpu", dtype="float32")
    assert loaded.fingerprint == encoder.fingerprint
    assert {reading.template for reading in loaded.spec.readings} == {
        "{text}",
        'This sentence : "{text}" means in one word: "',
    }
    texts = data.dev[0].left
    np.testing.assert_allclose(loaded.encode(texts), encoder.encode(texts), atol=1e-6)
    assert (loaded.score(texts, texts) == 1).all()


def test_a_prompt_of_all_readings_becomes_the_template(run):
    encoder = run('latents=[{template="prompteol", layers=[1, 3]}]').encoder
    assert encoder.spec.template == 'This sentence : "{text}" means in one word: "'
    assert [reading.template for reading in encoder.spec.readings] == ["", ""]


def test_the_card_has_scores_settings_data_and_an_example(run, tmp_path):
    result = run(seeds=[0, 1], command="d2v train my.toml")
    card = (tmp_path / "encoder" / "README.md").read_text()
    mean, deviation = (result.results[key]["test"]["test"] for key in ("mean", "sd"))
    assert f"| test: test | {mean['spearman']:.2f} ± {deviation['spearman']:.2f} |" in card
    assert "# embedding: an encoder made of tiny-llama" in card
    assert 'Encoder.load("this folder")' in card and "# for any index" in card
    assert f"| dimensions | {result.encoder.dim} |" in card
    assert f"| fingerprint | {result.encoder.fingerprint} |" in card
    assert f"| seeds | 0, 1 (kept: {result.results['best_seed']}) |" in card
    assert "- `d2v train my.toml`" in card and "- scored pairs: train (" in card
    assert "equal texts: mean score 1.0" in card
    trained = sum(parameter.numel() for parameter in result.encoder.head.net.parameters())
    assert f"| trained parameters | {trained:,} (" in card


def test_the_card_of_a_pair_scorer_does_not_promise_an_index(run, tmp_path):
    run("head=mlp")
    card = (tmp_path / "encoder" / "README.md").read_text()
    assert "# compare with encoder.similarity" in card and "index" not in card


def test_notes_about_the_data_are_in_results_and_card(run, data, tmp_path):
    note = "3 of 20 pairs of test are also in the training data"
    result = run(data=replace(data, notes=(note,)))
    few = "20 dev pairs are too few to choose by, so that what is chosen is largely chance; give 50 or more with --dev"
    assert result.results["notes"][:2] == [few, note], "notes about the training follow"
    assert f"- {note}" in (tmp_path / "encoder" / "README.md").read_text()


def test_missing_tasks_are_reported_before_a_model_is_loaded(tmp_path):
    with pytest.raises(DataFileError, match="none is not a folder; tasks are read from a folder"):
        train("lora", toy_data(), "no/model", tmp_path / "encoder", tasks=tmp_path / "none")


def test_pairs_seen_in_training_are_saved_with_the_encoder(run, data, tmp_path):
    run()
    seen = np.load(tmp_path / "encoder" / "seen.npy")
    assert count_overlap(data.train.right, [text.upper() for text in data.train.left], seen) == len(data.train)
    unseen = len(data.test[0]) - count_overlap(data.test[0].left, data.test[0].right, seen)
    assert unseen > 0


def test_the_record_has_values_for_every_layer(run, tmp_path):
    run()
    record = json.loads((tmp_path / "encoder" / "run.json").read_text())
    assert [reading["layer"] for reading in record["readings"]] == [1, 2, 3, 4]
    layers = record["layers"]
    assert all(len(layers[key]) == 4 for key in ("weights", "without"))
    assert all(len(layers[key]["pearson"]) == 4 for key in ("raw", "codes"))
    assert sum(layers["weights"]) == pytest.approx(1, abs=1e-4)
    assert [example["truth"] for example in record["examples"]] == [0.88, 0.2, 0.96, 0.28, 0.04, 0.2, 0.0, 1.0]
    assert record["errors"]["data"] == "test" and len(record["errors"]["all"]) == 20
    worst = [abs(pair["score"] - pair["truth"]) for pair in record["errors"]["worst"]]
    assert worst[0] == pytest.approx(max(np.abs(record["errors"]["all"])), abs=2e-3)
    share = record["parameters"]
    assert share["all"] == share["trained"] + share["backbone"]
    assert share["percent"] == pytest.approx(100 * share["trained"] / share["all"], abs=0.01)


def test_errors_are_on_the_scale_of_the_calibration(run, data):
    """Without training pairs that is the scale of the dev pairs, not the range of the pairs shown."""
    narrow = replace(data.test[0], scores=[2 + score / 5 for score in data.test[0].scores])
    without_pairs = TrainingData(None, data.dev, (narrow,), triplets=data.triplets)
    record = run("pretrain=contrastive", "loss=none", "pretraining.epochs=1", data=without_pairs).record
    truths = {pair["truth"] for pair in record["errors"]["worst"]}
    assert min(truths) >= 0.4 and max(truths) <= 0.6


@pytest.mark.parametrize("seeds", [[], [-1], [0, -3]])
def test_missing_or_negative_seeds_raise(seeds, run):
    with pytest.raises(InputError, match="Give at least one seed, and none below 0"):
        run(seeds=seeds)


def test_repeated_seeds_raise(run):
    with pytest.raises(InputError, match="seed 2 is repeated; give every seed once"):
        run(seeds=[0, 2, 2])


# --- output folders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_folder_or_file_of_something_else_is_left_alone(kind, run, tmp_path):
    out = tmp_path / "mine"
    if kind == "folder":
        out.mkdir()
        (out / "thesis.txt").write_text("all my work")
    else:
        out.write_text("all my work")
    with pytest.raises(InputError, match=r"(is not empty: .*|is a file); choose another folder"):
        run(out=out)
    assert (out / "thesis.txt" if kind == "folder" else out).read_text() == "all my work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"], "and nothing is left beside it"


def test_an_encoder_in_the_folder_for_checkpoints_is_left_alone(run, tmp_path):
    run(out=tmp_path / "mine.unfinished")
    with pytest.raises(InputError, match=r"mine\.unfinished is not empty: it holds README\.md"):
        run(out=tmp_path / "mine")
    assert is_encoder_folder(tmp_path / "mine.unfinished")


@pytest.mark.parametrize("path", ["notes.txt/encoder", "notes.txt/below/encoder", "/proc/nope", "/proc/nope/encoder"])
def test_a_path_that_cannot_be_written_raises_before_reading(path, run, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("all my work")
    monkeypatch.setattr(api, "load_plan", lambda *_, **__: pytest.fail("the plan is read"))
    with pytest.raises(StorageError, match=r"Cannot write to .*; choose another place"):
        run(out=tmp_path / path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_and_an_older_encoder_are_replaced(run, tmp_path):
    (tmp_path / "encoder").mkdir()
    first = run(overwrite=False).encoder.fingerprint
    second = run(seeds=[1]).encoder.fingerprint
    assert first != second
    assert Encoder.load(tmp_path / "encoder", device="cpu").fingerprint == second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder"]


@pytest.mark.parametrize("out", [".", "../here"])
def test_the_encoder_may_be_saved_to_the_working_directory(out, run, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run(out=Path(out))
    assert (tmp_path / "here" / "encoder.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_two_dots_name_the_folder_above(run, tmp_path, monkeypatch):
    (tmp_path / "above" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "above" / "here")
    with pytest.raises(InputError, match="above is not empty: it holds here"):
        run(out=Path(".."))


# --- interrupted runs -----------------------------------------------------------------------------------------------


def kill_at(step, stage):
    """An `on_progress` that kills the run."""

    def on_progress(state):
        if state.stage == stage and state.step >= step:
            raise Killed

    return on_progress


@pytest.mark.parametrize("stage", ["autoencoders", "pairs"])
def test_a_killed_run_resumes_with_the_same_numbers(stage, run, tmp_path, monkeypatch, own_pretrained):
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    settings = [
        "pretrain=autoencoder",
        "pretraining.batch=8",
        "pretraining.epochs=3",
        "training.epochs=4",
        "dropout=0.1",
    ]
    with pytest.raises(Killed):
        run(*settings, on_progress=kill_at(8, stage), out=tmp_path / "killed")
    assert not (tmp_path / "killed").exists()
    steps = []
    resumed = run(*settings, on_progress=lambda state: steps.append((state.stage, state.step)), out=tmp_path / "killed")
    assert min(step for name, step in steps if name == stage) > 1, "it resumes"
    for file in own_pretrained.iterdir():
        file.unlink()
    whole = run(*settings, out=tmp_path / "whole")
    assert resumed.encoder.fingerprint == whole.encoder.fingerprint
    assert resumed.results["mean"] == whole.results["mean"]
    assert not (tmp_path / "killed.unfinished").exists()


@pytest.mark.parametrize("change", ["dev", "scale", "setting"])
def test_the_checkpoint_of_another_run_is_not_resumed(change, run, data, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    with pytest.raises(Killed):
        run("training.epochs=4", on_progress=kill_at(8, "pairs"), out=tmp_path / "killed")
    other = {
        "dev": replace(data, dev=data.test, test=data.dev),
        "scale": replace(data, scale=(0.0, 10.0)),
        "setting": data,
    }[change]
    settings = ["training.epochs=4", *(["dropout=0.2"] if change == "setting" else [])]
    after_kill = run(*settings, data=other, out=tmp_path / "killed")
    fresh = run(*settings, data=other, out=tmp_path / "fresh")
    assert after_kill.encoder.fingerprint == fresh.encoder.fingerprint
    assert after_kill.results["seeds"][0]["notes"] == fresh.results["seeds"][0]["notes"]
