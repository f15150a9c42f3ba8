"""Objectives on plain texts, with LoRA and bidirectional attention: training, saving, loading, resuming."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from decoder2vec.backbone.attention import attention_mismatch
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.training import checkpoint
from decoder2vec.training.objectives.mntp import MNTPConfig
from decoder2vec.training.objectives.simcse import SimCSEConfig
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.recipe import Trainer
from toys.texts import plain_data
from toys.training import small_recipe

OBJECTIVES = {"simcse": SimCSEConfig(temperature=0.3, dropout=0.5), "mntp": MNTPConfig()}
FAMILIES = ("tiny-llama", "tiny-qwen3", "tiny-gpt2", "tiny-gemma3_text")
TEXTS = ("cats sleep", "the dogs run over the long road in the rain and sing of boats that sail", "a", "")


class Killed(Exception):
    """Stands for a process that is killed."""


def new_trainer(family, objective, every=1):
    """Four steps, with an evaluation after every `every`, on a model of its own."""
    recipe = small_recipe(
        "lora",
        batch=5,
        every=every,
        attention="bidirectional",
        objective=OBJECTIVES[objective],
        read=ReadSettings(pooling="mean"),
    )
    return Trainer(recipe, plain_data(), Backbone.load(family, device="cpu", dtype="float32"))


@pytest.fixture(scope="module", params=[(name, family) for name in OBJECTIVES for family in FAMILIES], ids="-".join)
def trained(request, own_cache, tmp_path_factory):
    """A trained model: its backbone and original weights, result, encoder, and the encoder loaded from disk."""
    objective, family = request.param
    trainer = new_trainer(family, objective)
    weights = {name: tensor.clone() for name, tensor in trainer.backbone.model.state_dict().items()}
    result = trainer.run(0)
    folder = tmp_path_factory.mktemp("texts")
    encoder, _ = trainer.export(result, folder)
    encoder.save(folder / "encoder")
    loaded = Encoder.load(folder / "encoder", device="cpu", dtype="float32")
    return SimpleNamespace(backbone=trainer.backbone, weights=weights, result=result, encoder=encoder, loaded=loaded)


def test_saved_encoder_is_identical_and_stays_bidirectional(trained):
    encoder, loaded = trained.encoder, trained.loaded
    assert (loaded.encode(TEXTS) == encoder.encode(TEXTS)).all()
    assert loaded.fingerprint == encoder.fingerprint
    assert loaded.spec.attention == loaded.backbone.attention == "bidirectional"
    assert not attention_mismatch(loaded.backbone.model, "bidirectional")
    assert not attention_mismatch(encoder.backbone.model, "bidirectional")


def test_dev_metric_improves_and_backbone_is_unchanged(trained):
    result, backbone = trained.result, trained.backbone
    history = result.notes["training"]
    assert len(history["scores"]) == 4 and np.isfinite([*history["losses"], *history["scores"]]).all()
    assert result.dev_metric == max(history["scores"]) > history["start"]
    assert history["metric"]["name"].startswith("loss on held-out texts") and history["metric"]["lower_is_better"]
    assert all(torch.equal(tensor, trained.weights[name]) for name, tensor in backbone.model.state_dict().items())
    assert not any(module.training for module in backbone.model.modules())
    untrained = Encoder(backbone.with_adapter(None), trained.encoder.spec).encode(TEXTS)
    assert not np.allclose(trained.encoder.encode(TEXTS), untrained, atol=1e-3)


@pytest.mark.parametrize("every", [1, 2, 100])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_resumed_run_equals_an_uninterrupted_one(objective, every, own_cache, tmp_path, monkeypatch):
    """Killed within an epoch, so that random numbers must continue where the first run stopped."""
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)

    def kill(progress):
        if progress.step == 3:
            raise Killed

    killed, steps = new_trainer("tiny-llama", objective, every), []
    with pytest.raises(Killed):
        killed.run(0, work=tmp_path, on_progress=kill)
    assert not any(module.training for module in killed.backbone.model.modules())
    trainers = [new_trainer("tiny-llama", objective, every) for _ in range(2)]
    resumed = trainers[0].run(0, work=tmp_path, on_progress=lambda progress: steps.append(progress.step))
    whole = trainers[1].run(0)
    assert steps[0] == 4, "it should not start again"
    assert resumed.notes == whole.notes
    resumed_encoder, whole_encoder = (
        trainer.export(result, tmp_path)[0] for trainer, result in zip(trainers, (resumed, whole), strict=True)
    )
    assert resumed_encoder.fingerprint == whole_encoder.fingerprint
    assert (resumed_encoder.encode(TEXTS) == whole_encoder.encode(TEXTS)).all()
