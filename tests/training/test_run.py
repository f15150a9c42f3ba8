"""From a plan to a saved encoder: results, card, seeds, and runs that are cut short."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from decoder2vec.encoder import Encoder, is_encoder_folder
from decoder2vec.errors import InputError, StorageError
from decoder2vec.text.data_check import count_overlap
from decoder2vec.training import checkpoint
from decoder2vec.training.api import train
from decoder2vec.training.data import TrainingData
from decoder2vec.training.plan import read_plan

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


@pytest.fixture
def run(data, backbone, tmp_path):
    def go(*settings, data=data, out=tmp_path / "encoder", **kwargs):
        return train(read_plan(None, [*SETTINGS, *settings]), data, backbone("tiny-llama"), out, **kwargs)

    return go


def test_results_hold_all_that_is_needed_to_judge_and_repeat_a_run(run, tmp_path):
    outcome = run(seeds=[0, 3], command="d2v train plan.toml")
    found = json.loads((tmp_path / "encoder" / "results.json").read_text())
    assert found == json.loads(json.dumps(outcome.results))
    assert found.keys() >= {"config", "command", "seeds", "mean", "sd", "versions", "seconds"}
    assert found["command"] == "d2v train plan.toml"
    assert found["config"]["freeze"]["widths"] == [8] and found["config"]["data"]["train"] == "train.tsv"
    assert [seed["seed"] for seed in found["seeds"]] == [0, 3]
    for seed in found["seeds"]:
        assert seed.keys() >= {"seed", "dev", "test", "checks", "notes", "seconds"}
        assert seed["dev"]["dev"].keys() == seed["test"]["test"].keys() == {"spearman", "pearson"}
    assert {"torch", "transformers", "decoder2vec"} <= found["versions"].keys()
    assert found["seconds"] > 0


def test_means_and_deviations_are_those_over_the_seeds(run):
    found = run(seeds=[0, 1, 2]).results
    for part in ("dev", "test"):
        for metric in ("spearman", "pearson"):
            values = [seed[part][part][metric] for seed in found["seeds"]]
            assert found["mean"][part][part][metric] == pytest.approx(np.mean(values), abs=0.006)
            assert found["sd"][part][part][metric] == pytest.approx(np.std(values, ddof=1), abs=0.006)
    assert run(seeds=[0]).results["sd"]["dev"]["dev"] == {"spearman": 0.0, "pearson": 0.0}


def test_several_files_have_a_mean_of_their_own(run, data, make_pairs):
    more = replace(data, test=(*data.test, make_pairs("other", 20, 7)))
    found = run(data=more, seeds=[0, 1]).results
    assert found["mean"]["test"].keys() == {"test", "other", "all files"}
    values = [[scores["spearman"] for scores in seed["test"].values()] for seed in found["seeds"]]
    assert found["mean"]["test"]["all files"]["spearman"] == pytest.approx(np.mean(values), abs=0.006)
    assert "all files" not in found["mean"]["dev"]


def test_the_seed_that_is_best_on_dev_is_kept_whatever_test_says(run, data):
    found = run(seeds=[0, 1, 2])
    by_dev = max(found.results["seeds"], key=lambda seed: seed["dev"]["dev"]["pearson"])
    assert found.results["best_seed"] == by_dev["seed"]
    alone = run(seeds=[by_dev["seed"]])
    assert alone.encoder.fingerprint == found.encoder.fingerprint


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


def test_one_prompt_for_all_readings_becomes_the_encoders_own(run):
    encoder = run('latents=[{template="prompteol", layers=[1, 3]}]').encoder
    assert encoder.spec.template == 'This sentence : "{text}" means in one word: "'
    assert [reading.template for reading in encoder.spec.readings] == ["", ""]


def test_the_card_says_what_it_is_how_good_it_is_and_how_to_use_it(run, tmp_path):
    outcome = run(seeds=[0, 1], command="d2v train my.toml")
    card = (tmp_path / "encoder" / "README.md").read_text()
    mean, spread = (outcome.results[key]["test"]["test"] for key in ("mean", "sd"))
    assert f"| test: test | {mean['spearman']:.2f} ± {spread['spearman']:.2f} |" in card
    assert "# embedding: an encoder made of tiny-llama" in card
    assert 'Encoder.load("this folder")' in card and "an index can hold them" in card
    assert f"| dimensions | {outcome.encoder.dim} |" in card
    assert f"| fingerprint | {outcome.encoder.fingerprint} |" in card
    assert f"| seeds | 0, 1 (kept: {outcome.results['best_seed']}) |" in card
    assert "- `d2v train my.toml`" in card and "- scored pairs: train (" in card
    assert "equal texts: mean score 1.0" in card
    trained = sum(parameter.numel() for parameter in outcome.encoder.head.net.parameters())
    assert f"| trained numbers | {trained:,} (" in card


def test_the_card_of_a_pair_scorer_does_not_promise_an_index(run, tmp_path):
    run("head=mlp")
    assert "read by encoder.similarity" in (tmp_path / "encoder" / "README.md").read_text()


def test_what_is_known_of_the_data_stands_in_results_and_card(run, data, tmp_path):
    note = "3 of 20 pairs of test also stand in the training data"
    outcome = run(data=replace(data, notes=(note,)))
    assert outcome.results["notes"][0] == note, "what is known of the training follows, and depends on how it went"
    assert "- 3 of 20 pairs of test also stand" in (tmp_path / "encoder" / "README.md").read_text()


def test_pairs_seen_in_training_are_kept_with_the_encoder(run, data, tmp_path):
    run()
    seen = np.load(tmp_path / "encoder" / "seen.npy")
    assert count_overlap(data.train.right, [text.upper() for text in data.train.left], seen) == len(data.train)
    unseen = len(data.test[0]) - count_overlap(data.test[0].left, data.test[0].right, seen)
    assert unseen > 0


def test_the_record_of_a_run_has_a_number_for_every_layer(run, tmp_path, data):
    run()
    found = json.loads((tmp_path / "encoder" / "run.json").read_text())
    assert [reading["layer"] for reading in found["readings"]] == [1, 2, 3, 4]
    layers = found["layers"]
    assert all(len(layers[key]) == 4 for key in ("weights", "without"))
    assert all(len(layers[key]["pearson"]) == 4 for key in ("raw", "codes"))
    assert sum(layers["weights"]) == pytest.approx(1, abs=1e-4)
    assert [example["truth"] for example in found["examples"]] == [0.88, 0.2, 0.96, 0.28, 0.04, 0.2, 0.0, 1.0]
    assert found["errors"]["data"] == "test" and len(found["errors"]["all"]) == 20
    worst = [abs(pair["score"] - pair["truth"]) for pair in found["errors"]["worst"]]
    assert worst[0] == pytest.approx(max(np.abs(found["errors"]["all"])), abs=2e-3)
    share = found["parameters"]
    assert share["percent"] == pytest.approx(100 * share["trained"] / share["backbone"], abs=0.01)


def test_errors_are_on_the_scale_the_score_was_calibrated_on(run, data):
    """Without training pairs that is the scale of the dev pairs, not the range of the pairs shown."""
    narrow = replace(data.test[0], scores=[2 + score / 5 for score in data.test[0].scores])
    only = TrainingData(None, data.dev, (narrow,), triplets=data.triplets)
    found = run("pretrain=contrastive", "loss=none", "pretraining.epochs=1", data=only).record["errors"]
    truths = {pair["truth"] for pair in found["worst"]}
    assert min(truths) >= 0.4 and max(truths) <= 0.6


# --- folders and kills ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_folder_that_is_not_an_encoder_is_refused_and_left_alone(kind, run, tmp_path):
    out = tmp_path / "mine"
    if kind == "folder":
        out.mkdir()
        (out / "thesis.txt").write_text("all my work")
    else:
        out.write_text("all my work")
    with pytest.raises(InputError, match=r"(is not empty and not an encoder|is a file); choose another folder"):
        run(out=out)
    assert (out / "thesis.txt" if kind == "folder" else out).read_text() == "all my work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"], "and nothing is left beside it"


def test_an_encoder_where_the_state_would_be_kept_is_left_alone(run, tmp_path):
    run(out=tmp_path / "mine.unfinished")
    with pytest.raises(InputError, match=r"mine\.unfinished holds an encoder, and is where this run would keep"):
        run(out=tmp_path / "mine")
    assert is_encoder_folder(tmp_path / "mine.unfinished")


@pytest.mark.parametrize("place", ["notes.txt/encoder", "notes.txt/below/encoder", "/proc/nope", "/proc/nope/encoder"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(place, run, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("all my work")
    monkeypatch.setattr("decoder2vec.training.api.start_training", lambda *_: pytest.fail("it was begun"))
    with pytest.raises(StorageError, match=r"Cannot write to .*; choose another place"):
        run(out=tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_empty_folder_and_an_older_encoder_are_replaced(run, tmp_path):
    (tmp_path / "encoder").mkdir()
    first = run().encoder.fingerprint
    second = run(seeds=[1]).encoder.fingerprint
    assert first != second
    assert Encoder.load(tmp_path / "encoder", device="cpu").fingerprint == second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder"]


def test_the_folder_one_stands_in_may_be_the_target(run, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    run(out=type(tmp_path)("."))
    assert (tmp_path / "here" / "encoder.json").is_file()


@pytest.mark.parametrize("seeds", [[], [-1], [0, -3]])
def test_seeds_that_are_none_are_refused(seeds, run):
    with pytest.raises(InputError, match="Give at least one seed, and none below 0"):
        run(seeds=seeds)


class Killed(Exception):
    pass


def kill_at(step, stage):
    def on_progress(note):
        if note.stage == stage and note.step >= step:
            raise Killed

    return on_progress


@pytest.mark.parametrize("stage", ["autoencoders", "pairs"])
def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been(stage, run, tmp_path, monkeypatch, own_pretrained):
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
    resumed = run(*settings, on_progress=lambda note: steps.append((note.stage, note.step)), out=tmp_path / "killed")
    assert min(step for name, step in steps if name == stage) > 1, "it did not begin anew"
    for file in own_pretrained.iterdir():
        file.unlink()
    whole = run(*settings, out=tmp_path / "whole")
    assert resumed.encoder.fingerprint == whole.encoder.fingerprint
    assert resumed.results["mean"] == whole.results["mean"]
    assert not (tmp_path / "killed.unfinished").exists()


@pytest.mark.parametrize("change", ["dev", "scale", "setting"])
def test_an_unfinished_run_of_something_else_is_not_taken_up(change, run, data, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    with pytest.raises(Killed):
        run("training.epochs=4", on_progress=kill_at(8, "pairs"), out=tmp_path / "killed")
    other = {
        "dev": replace(data, dev=data.test, test=data.dev),
        "scale": replace(data, scale=(0.0, 10.0)),
        "setting": data,
    }[change]
    settings = ["training.epochs=4", *(["dropout=0.2"] if change == "setting" else [])]
    found = run(*settings, data=other, out=tmp_path / "killed")
    fresh = run(*settings, data=other, out=tmp_path / "fresh")
    assert found.encoder.fingerprint == fresh.encoder.fingerprint
    assert found.results["seeds"][0]["notes"] == fresh.results["seeds"][0]["notes"]
