"""FREEZE's pre-training: what it changes, what it reports, and when a cached network is reused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from decoder2vec.heads.codes import CodeSpec
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.freeze import PRETRAININGS, FreezeRecipe, LatentSource
from decoder2vec.training.teachers import Teacher
from toys.codes import equal_states, net_state

LONG = Schedule(epochs=30, batch=8, rate=1e-2, patience=30)


@pytest.mark.parametrize(("kind", "stage"), [("autoencoder", "autoencoders"), ("snli", "inference")])
def test_pretraining_changes_the_encoders_but_not_the_head(kind, stage, training, own_pretrained):
    result = training(pretrain=kind, pretraining=LONG, training=Schedule(epochs=0)).run(0)
    untrained = net_state(training(training=Schedule(epochs=0)).run(0))
    assert result.notes["pretraining"]["stage"] == stage
    assert result.notes["pretraining"]["best"] >= 0, "it improved on the held-out rows"
    for name, tensor in net_state(result).items():
        assert torch.equal(tensor, untrained[name]) == name.startswith(("pair.", "shift", "scale")), name
    assert [file.suffix for file in own_pretrained.iterdir()] == [".safetensors"]


def test_autoencoders_learn_and_report_their_errors(training):
    note = training(pretrain="autoencoder", pretraining=LONG).run(0).notes["pretraining"]
    assert note["losses"][-1] < 0.6 * note["losses"][0]
    assert note["scores"][note["best"]] > note["start"]
    assert len(note["error"]) == len(note["unexplained"]) == 4
    assert all(0 < share < 1.5 for share in note["unexplained"])


def test_reported_errors_are_in_units_of_the_latents(training):
    """The unexplained share is the error over the variance of the same held-out texts, both before any scaling."""
    trainer = training(pretrain="autoencoder", standardise=False)
    note = trainer.run(0).notes["pretraining"]
    table = trainer.corpus.table
    latents = table.batch(table.rows(trainer.data.texts)[::20]).double().numpy()
    variance = latents.var(axis=1).mean(axis=1)
    np.testing.assert_allclose(np.array(note["error"]) / variance, note["unexplained"], rtol=1e-2)


def test_contrastive_pretraining_alone_makes_an_encoder(training, data):
    triplets_only = TrainingData(None, data.dev, data.test, triplets=data.triplets)
    result = training(data=triplets_only, pretrain="contrastive", loss="none").run(0)
    assert result.notes["pretraining"]["stage"] == "triplets"
    assert "training" not in result.notes
    assert result.dev["dev"].keys() == {"spearman", "pearson"}


# --- reuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["autoencoder", "snli", "contrastive"])
def test_reused_pretraining_gives_the_same_result(kind, training, own_pretrained):
    fresh = training(pretrain=kind).run(0)
    reused = training(pretrain=kind).run(0)
    assert "reused" not in fresh.notes["pretraining"] and reused.notes["pretraining"]["reused"]
    assert equal_states(net_state(fresh), net_state(reused))
    assert (fresh.dev, fresh.test, fresh.checks) == (reused.dev, reused.test, reused.checks)


@pytest.mark.parametrize("kind", ["autoencoder", "snli"])
def test_pretraining_with_another_head_is_reused_exactly(kind, training, own_pretrained):
    """A result must not depend on what happens to be in the cache."""
    fresh = training(pretrain=kind).run(0)
    for file in own_pretrained.iterdir():
        file.unlink()
    training(pretrain=kind, head="mlp", loss="pearson").run(0)
    reused = training(pretrain=kind).run(0)
    assert reused.notes["pretraining"]["reused"]
    assert equal_states(net_state(fresh), net_state(reused))


@pytest.mark.parametrize(
    "changes",
    [
        {"widths": (8,)},
        {"hidden": 10},
        {"standardise": True},
        {"noise": 0.1},
        {"pretraining": Schedule(epochs=2, batch=16)},
        {"latents": (LatentSource(pooling="mean"),)},
        {"changes": ("case",)},
    ],
    ids=str,
)
def test_pretraining_with_other_settings_is_not_reused(changes, training, own_pretrained):
    training(pretrain="autoencoder").run(0)
    assert "reused" not in training(pretrain="autoencoder", **changes).run(0).notes["pretraining"]


def test_pretraining_on_other_texts_or_seeds_is_not_reused(training, data, own_pretrained):
    training(pretrain="autoencoder").run(0)
    assert "reused" not in training(pretrain="autoencoder").run(1).notes["pretraining"]
    fewer_texts = replace(data, texts=data.texts[:-1])
    assert "reused" not in training(data=fewer_texts, pretrain="autoencoder").run(0).notes["pretraining"]


def test_damaged_cache_file_is_trained_again(training, own_pretrained):
    fresh = training(pretrain="autoencoder").run(0)
    next(own_pretrained.iterdir()).write_bytes(b"broken")
    again = training(pretrain="autoencoder").run(0)
    assert "reused" not in again.notes["pretraining"]
    assert equal_states(net_state(fresh), net_state(again))


@pytest.mark.parametrize(("kind", "key"), [("autoencoder", "52cc5c9311cbe361"), ("distill", "8bbaf1895f8f637a")])
def test_keys_and_random_numbers_stay_those_of_versions_with_fewer_settings(kind, key):
    """The keys were recorded before `partial_vocabulary` was a setting; random numbers are drawn from the key."""
    net = SimpleNamespace(spec=CodeSpec(8, (4, 4), noise=0.1))
    context = SimpleNamespace(net=net, table=SimpleNamespace(fingerprint="table"))
    corpus = SimpleNamespace(digests=dict.fromkeys((*PRETRAININGS, "dev", "statistics"), "digest"))
    recipe = FreezeRecipe(pretrain=kind, teachers=(Teacher("bm25", 2.0),), pretraining=Schedule(epochs=2))
    assert recipe._pretraining_key(context, corpus, 0) == key
    changed = replace(recipe, pretraining=Schedule(epochs=2, clip=1.0))
    assert changed._pretraining_key(context, corpus, 0) != key
