"""What encoders learn before they see a scored pair, and how it is kept and taken up again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.freeze import Source


def numbers(result):
    return {name: tensor.clone() for name, tensor in result.net.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("kind", "stage"), [("autoencoder", "autoencoders"), ("snli", "inference")])
def test_pre_training_changes_the_encoders_and_not_the_head(kind, stage, training, own_pretrained):
    schedule = Schedule(epochs=30, batch=8, rate=1e-2, patience=30)
    found = training(pretrain=kind, pretraining=schedule, training=Schedule(epochs=0)).run(0)
    plain = training(training=Schedule(epochs=0)).run(0)
    assert found.notes["pretraining"]["stage"] == stage
    assert found.notes["pretraining"]["best"] >= 0, "it got better on what was held out"
    for name, tensor in numbers(found).items():
        assert torch.equal(tensor, numbers(plain)[name]) == name.startswith(("pair.", "shift", "scale")), name
    assert [file.suffix for file in own_pretrained.iterdir()] == [".safetensors"]


def test_autoencoders_learn_to_rebuild_and_say_how_well(training):
    schedule = Schedule(epochs=30, batch=8, rate=1e-2, patience=30)
    note = training(pretrain="autoencoder", pretraining=schedule).run(0).notes["pretraining"]
    assert note["losses"][-1] < 0.6 * note["losses"][0]
    assert note["scores"][note["best"]] > note["start"]
    assert len(note["error"]) == len(note["unexplained"]) == 4
    assert all(0 < share < 1.5 for share in note["unexplained"])


def test_errors_of_autoencoders_are_told_in_the_latents_own_units(training):
    """The share of variance is the error over the variance of the same held-out texts, both before any scaling."""
    made = training(pretrain="autoencoder", standardise=False)
    note = made.run(0).notes["pretraining"]
    latents = made.table.batch(made.table.rows(made.data.texts)[::20]).double().numpy()
    variance = latents.var(axis=1).mean(axis=1)
    np.testing.assert_allclose(np.array(note["error"]) / variance, note["unexplained"], rtol=1e-2)


def test_contrastive_pre_training_alone_makes_an_encoder(training, data):
    only = TrainingData(None, data.dev, data.test, triplets=data.triplets)
    result = training(data=only, pretrain="contrastive", loss="none").run(0)
    assert result.notes["pretraining"]["stage"] == "triplets"
    assert "training" not in result.notes
    assert result.dev["dev"].keys() == {"spearman", "pearson"}


@pytest.mark.parametrize("kind", ["autoencoder", "snli", "contrastive"])
def test_what_was_pre_trained_before_serves_as_well_as_new(kind, training, own_pretrained):
    fresh = training(pretrain=kind).run(0)
    reused = training(pretrain=kind).run(0)
    assert "reused" not in fresh.notes["pretraining"] and reused.notes["pretraining"]["reused"]
    assert same(numbers(fresh), numbers(reused))
    assert (fresh.dev, fresh.test, fresh.checks) == (reused.dev, reused.test, reused.checks)


@pytest.mark.parametrize("kind", ["autoencoder", "snli"])
def test_encoders_pre_trained_under_another_head_are_those_of_this_one(kind, training, own_pretrained):
    """A result must not depend on what happens to lie in the cache."""
    fresh = training(pretrain=kind).run(0)
    for file in own_pretrained.iterdir():
        file.unlink()
    training(pretrain=kind, head="mlp", loss="pearson").run(0)
    reused = training(pretrain=kind).run(0)
    assert reused.notes["pretraining"]["reused"]
    assert same(numbers(fresh), numbers(reused))


@pytest.mark.parametrize(
    "changes",
    [
        {"widths": (8,)},
        {"hidden": 10},
        {"standardise": True},
        {"noise": 0.1},
        {"pretraining": Schedule(epochs=2, batch=16)},
        {"latents": (Source(pooling="mean"),)},
        {"changes": ("case",)},
    ],
    ids=str,
)
def test_another_pre_training_is_not_taken_over(changes, training, own_pretrained):
    training(pretrain="autoencoder").run(0)
    assert "reused" not in training(pretrain="autoencoder", **changes).run(0).notes["pretraining"]


def test_other_texts_or_seeds_are_another_pre_training(training, data, own_pretrained):
    training(pretrain="autoencoder").run(0)
    assert "reused" not in training(pretrain="autoencoder").run(1).notes["pretraining"]
    fewer = replace(data, texts=data.texts[:-1])
    assert "reused" not in training(data=fewer, pretrain="autoencoder").run(0).notes["pretraining"]


def test_a_damaged_file_of_pre_trained_encoders_is_made_again(training, own_pretrained):
    fresh = training(pretrain="autoencoder").run(0)
    next(own_pretrained.iterdir()).write_bytes(b"broken")
    again = training(pretrain="autoencoder").run(0)
    assert "reused" not in again.notes["pretraining"]
    assert same(numbers(fresh), numbers(again))
