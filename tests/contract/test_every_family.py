"""On every family: an adapted model gives a text one vector, however it is batched, padded, saved and loaded."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.recipes.recipe import Trainer
from toys.contract import TOY_RECIPES
from toys.training import perturbed, small_recipe, toy_data, toy_examples

TEXTS = ("the dogs run over the long road in the rain and sing of boats that sail", "a", "cats sleep")
WINDOWED = ("mistral", "gemma2", "gemma3_text", "gpt_neo")
"""Left padding moves a prefix away from the text, out of the window of some layers; texts are never padded there."""
WITHOUT_KEYS_AND_VALUES = ("mamba", "mamba2")


@pytest.fixture(scope="module", params=TINY)
def model(request, own_cache):
    return Backbone.load(request.param, device="cpu", dtype="float32")


def encoder_of(backbone):
    return Encoder(backbone, EncoderSpec(backbone.name, (Reading(-1, "lasttoken", True),)))


def padding_sides(backbone):
    """On which sides texts may be padded."""
    prefix = backbone.adapter is not None and backbone.adapter.kind == "kv_prefix"
    return ("right",) if prefix and backbone.family in WINDOWED else ("right", "left")


def check_one_vector_per_text(encoder, loaded, encode_padded, gap):
    """Compare vectors of texts encoded alone, together, padded, and by the loaded encoder; returns those alone."""
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    together = encoder.encode(TEXTS)
    assert gap(together, alone) < 1e-4
    assert all(gap(encode_padded(encoder, TEXTS, side), alone) < 1e-4 for side in padding_sides(encoder.backbone))
    assert loaded.fingerprint == encoder.fingerprint
    assert (loaded.encode(TEXTS) == together).all()
    return alone


@pytest.mark.parametrize("name", ["soft_prompt", "kv_prefix", "lora", "bottleneck", "conv"])
def test_an_adapter_gives_one_vector_per_text(name, model, encode_padded, gap, tmp_path):
    torch.manual_seed(0)
    if name == "kv_prefix" and model.family in WITHOUT_KEYS_AND_VALUES:
        with pytest.raises(UnsupportedError, match=f"{model.family} has no keys and values"):
            small_recipe(name).adapt(model, model.n_layers)
        return
    adapted, module = small_recipe(name).adapt(model, model.n_layers)
    perturbed(module).requires_grad_(False)
    encoder = encoder_of(adapted)
    encoder.save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder", device="cpu", dtype="float32")
    vectors = check_one_vector_per_text(encoder, loaded, encode_padded, gap)
    assert gap(vectors, encoder_of(model).encode(TEXTS)) > 1e-2, "the adapter changes them"


def test_a_fine_tuned_model_gives_one_vector_per_text(model, encode_padded, gap, tmp_path):
    few = toy_data(contrastive=ContrastiveExamples.of(toy_examples()[:6]))
    trainer = Trainer(small_recipe("full", epochs=1), few, model)
    result = trainer.run(0)
    exported, has_own_weights = trainer.export(result, tmp_path)
    assert has_own_weights
    encoder = Encoder(result.model.backbone, exported.spec)
    assert exported.fingerprint != encoder.fingerprint, "which is that of a run, not of weights"
    encoder.backbone.fingerprint = exported.backbone.fingerprint
    check_one_vector_per_text(encoder, exported, encode_padded, gap)


def test_freeze_gives_one_vector_per_text(model, encode_padded, gap, tmp_path):
    toy = TOY_RECIPES["freeze"]
    trainer = Trainer(toy.one_step(), toy.data, model)
    encoder, _ = trainer.export(trainer.run(0), tmp_path)
    encoder.save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder", device="cpu", dtype="float32")
    check_one_vector_per_text(encoder, loaded, encode_padded, gap)
