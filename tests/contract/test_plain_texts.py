"""What a model learns from plain texts, with LoRA under bidirectional attention, is saved and loaded as it was."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from decoder2vec.recipes.objective import Objective

from decoder2vec.backbone.attention import attention_fault
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.training import checkpoint
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import plain_data
from toys.training import small_recipe

OBJECTIVES = ("simcse", "mntp")
FAMILIES = ("tiny-llama", "tiny-qwen3", "tiny-gpt2", "tiny-gemma3_text")
TEXTS = ("cats sleep", "the dogs run over the long road in the rain and sing of boats that sail", "a", "")


class Killed(Exception):
    pass


def recipe_for(objective, every=1):
    """Four steps, with a look after each."""
    return small_recipe(
        "lora",
        batch=5,
        every=every,
        attention="bidirectional",
        objective=Objective(objective, temperature=0.3, dropout=0.5),
        read=ReadSettings(pooling="mean"),
    )


def begin(family, objective, **options):
    backbone = Backbone.load(family, device="cpu", dtype="float32")
    return Trainer(recipe_for(objective, **options), plain_data(), backbone)


@pytest.fixture(scope="module", params=[(name, family) for name in OBJECTIVES for family in FAMILIES], ids="-".join)
def trained(request, own_cache, tmp_path_factory):
    objective, family = request.param
    training = begin(family, objective)
    weights = {name: tensor.clone() for name, tensor in training.backbone.model.state_dict().items()}
    result = training.run(0)
    folder = tmp_path_factory.mktemp("texts") / "encoder"
    result.encoder.save(folder)
    loaded = Encoder.load(folder, device="cpu", dtype="float32")
    return SimpleNamespace(training=training, result=result, weights=weights, loaded=loaded)


def test_a_saved_encoder_gives_identical_vectors_and_still_looks_both_ways(trained):
    encoder, loaded = trained.result.encoder, trained.loaded
    assert (loaded.encode(TEXTS) == encoder.encode(TEXTS)).all()
    assert loaded.fingerprint == encoder.fingerprint
    assert loaded.spec.attention == loaded.backbone.attention == "bidirectional"
    assert not attention_fault(loaded.backbone.model, "bidirectional") and not attention_fault(
        encoder.backbone.model, "bidirectional"
    )


def test_something_was_learned_and_the_given_model_stays_as_it_was(trained):
    result, backbone = trained.result, trained.training.backbone
    history = result.notes["training"]
    assert len(history["scores"]) == 4 and np.isfinite([*history["losses"], *history["scores"]]).all()
    assert result.own_score == max(history["scores"]) > history["start"]
    assert all(torch.equal(tensor, trained.weights[name]) for name, tensor in backbone.model.state_dict().items())
    assert not any(module.training for module in backbone.model.modules())
    bare = Encoder(backbone.with_adapter(None), result.encoder.spec).encode(TEXTS)
    assert not np.allclose(result.encoder.encode(TEXTS), bare, atol=1e-3)


@pytest.mark.parametrize("every", [1, 2, 100])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been(objective, every, own_cache, tmp_path, monkeypatch):
    """In the middle of an epoch, so that the random numbers of its second half are those of the first run."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    training, steps = begin("tiny-llama", objective, every=every), []

    def kill(note):
        if note.step == 3:
            raise Killed

    with pytest.raises(Killed):
        training.run(0, work=tmp_path, on_progress=kill)
    assert not any(module.training for module in training.backbone.model.modules())
    again, other = (begin("tiny-llama", objective, every=every) for _ in range(2))
    resumed, whole = again.run(0, work=tmp_path, on_progress=lambda note: steps.append(note.step)), other.run(0)
    assert steps[0] == 4, "it did not begin anew"
    assert resumed.notes == whole.notes
    assert resumed.encoder.fingerprint == whole.encoder.fingerprint
    assert (resumed.encoder.encode(TEXTS) == whole.encoder.encode(TEXTS)).all()
