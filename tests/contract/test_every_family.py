"""On every family: an adapter reads a text the same way however it is batched and padded, and after save and load."""

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
from toys.training import small_recipe, toy_data, toy_examples

TEXTS = ("the dogs run over the long road in the rain and sing of boats that sail", "a", "cats sleep")
WINDOWED = ("mistral", "gemma2", "gemma3_text", "gpt_neo")
"""Left padding moves a prefix away from the text, out of the window of some layers; no text is ever padded there."""
NO_PREFIX = ("mamba", "mamba2")


@pytest.fixture(scope="module", params=TINY)
def model(request, own_cache):
    return Backbone.load(request.param, device="cpu", dtype="float32")


def encoder_of(adapted):
    return Encoder(adapted, EncoderSpec(adapted.name, (Reading(-1, "lasttoken", True),)))


def checked(encoder, loaded, padded, gap):
    """One vector for a text, whatever stands beside it."""
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    sides = ("right",) if encoder.backbone.adapter and _leaves_the_window(encoder.backbone) else ("right", "left")
    vectors = encoder.encode(TEXTS)
    assert gap(vectors, alone) < 1e-4
    assert all(gap(padded(encoder, TEXTS, side), alone) < 1e-4 for side in sides)
    assert loaded.fingerprint == encoder.fingerprint
    assert (loaded.encode(TEXTS) == vectors).all()
    return alone


def _leaves_the_window(backbone):
    return backbone.adapter.kind == "kv_prefix" and backbone.family in WINDOWED


@pytest.mark.parametrize("name", ["soft_prompt", "kv_prefix", "lora"])
def test_an_adapter_reads_a_text_one_way(name, model, padded, gap, tmp_path):
    torch.manual_seed(0)
    if name == "kv_prefix" and model.family in NO_PREFIX:
        with pytest.raises(UnsupportedError, match=f"{model.family} keeps no keys and values"):
            small_recipe(name).attach(model, model.n_layers)
        return
    adapted, module = small_recipe(name).attach(model, model.n_layers)
    for parameter in module.requires_grad_(False).parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    encoder = encoder_of(adapted)
    encoder.save(tmp_path / "encoder")
    found = checked(encoder, Encoder.load(tmp_path / "encoder", device="cpu", dtype="float32"), padded, gap)
    assert gap(found, encoder_of(model).encode(TEXTS)) > 1e-2, "the adapter does something"


def test_a_fine_tuned_model_reads_a_text_one_way(model, padded, gap, tmp_path):
    few = toy_data(contrastive=ContrastiveExamples.of(toy_examples()[:6]))
    training = Trainer(small_recipe("full", epochs=1), few, model)
    result = training.run(0)
    alone = training.saved_alone(result, tmp_path)[0]
    assert alone.fingerprint != result.encoder.fingerprint, "which is that of a run, and not of weights"
    result.encoder.backbone.fingerprint = alone.backbone.fingerprint
    checked(result.encoder, alone, padded, gap)
