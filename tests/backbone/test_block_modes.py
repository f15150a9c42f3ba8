"""Attention dropout and casts of weights: active inside their contexts, and without a trace afterwards."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.block_modes import attention_dropout, computing_in
from decoder2vec.backbone.tiny import TINY
from toys.texts import built

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = torch.tensor([[30, 400, 95, 7, 88, 311, 12], [5, 6, 300, 41, 41, 222, 9]])
NO_ATTENTION_DROPOUT = ("mamba", "mamba2", "falcon")
"""State-space models have no attention; in Falcon transformers applies dropout only with ALiBi."""
WITH_ATTENTION_DROPOUT = [name for name, family in TINY.items() if family not in NO_ATTENTION_DROPOUT]


@torch.no_grad()
def states_of(backbone):
    return backbone.model(input_ids=IDS, use_cache=False).last_hidden_state


def as_backbone(language_model):
    """A backbone without tokenizer and fingerprint."""
    return Backbone("toy", language_model.base_model, None, "causal", "")


def module_state(model):
    """Name, identity and plain attributes of every module."""
    return [
        (name, id(module), {key: value for key, value in vars(module).items() if isinstance(value, str | int | float)})
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize("name", WITH_ATTENTION_DROPOUT)
def test_passes_differ_inside_the_context_only(name, backbone):
    model = backbone(name)
    plain = states_of(model)
    assert torch.equal(states_of(model), plain)
    with attention_dropout(model, 0.3):
        first, second = states_of(model), states_of(model)
    scale = plain.abs().max()
    assert (first - second).abs().max() > 0.01 * scale and (first - plain).abs().max() > 0.01 * scale
    assert torch.equal(states_of(model), plain)


@pytest.mark.parametrize("name", TINY)
def test_model_is_restored_even_after_an_error(name, backbone):
    model = backbone(name)
    before, weights = module_state(model.model), [id(tensor) for tensor in model.model.parameters()]
    with pytest.raises(ZeroDivisionError), attention_dropout(model, 0.3), attention_dropout(model, 0.6):
        assert (module_state(model.model) != before) == (model.family not in NO_ATTENTION_DROPOUT[:2])
        raise ZeroDivisionError
    assert module_state(model.model) == before
    assert [id(tensor) for tensor in model.model.parameters()] == weights


def test_model_in_training_mode_stays_in_training_mode():
    model = as_backbone(built("gpt2"))
    model.model.train()
    before = module_state(model.model)
    with attention_dropout(model, 0.3):
        pass
    assert module_state(model.model) == before


def test_falcon_with_alibi_has_attention_dropout():
    model = as_backbone(built("falcon", alibi=True))
    with attention_dropout(model, 0.3):
        assert not torch.equal(states_of(model), states_of(model))


OTHER_DROPOUTS = {
    "gpt2": ("resid_pdrop", "embd_pdrop"),
    "gpt_neo": ("resid_dropout", "embed_dropout"),
    "gptj": ("resid_pdrop", "embd_pdrop"),
    "opt": ("dropout", "layerdrop"),
    "gpt_neox": ("hidden_dropout",),
    "phi": ("resid_pdrop", "embd_pdrop"),
    "phi3": ("resid_pdrop", "embd_pdrop"),
    "bloom": ("hidden_dropout",),
    "falcon": ("hidden_dropout",),
}
"""Settings of each family for dropout of anything but attention weights."""
FAMILY_SETTINGS = {
    "gptj": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global"], 2]]},
    "falcon": {"alibi": True},
}


@pytest.mark.parametrize("family", OTHER_DROPOUTS)
def test_only_attention_weights_are_dropped(family):
    """At a rate so low that no weight is ever dropped, the states are those of the model in eval mode."""
    model = as_backbone(built(family, **dict.fromkeys(OTHER_DROPOUTS[family], 0.5), **FAMILY_SETTINGS.get(family, {})))
    plain = states_of(model)
    with attention_dropout(model, 1e-9):
        torch.testing.assert_close(states_of(model), plain)
    model.model.train()
    assert not torch.allclose(states_of(model), plain), "the settings must make a difference"


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_dropped_share_is_the_requested_rate(family):
    """The rate is a number, a module, or a number under another name."""
    model = as_backbone(built(family, attn_implementation="eager"))
    causal = torch.ones(60, 60).tril().bool()
    torch.manual_seed(0)
    with attention_dropout(model, 0.3), torch.no_grad():
        output = model.model(input_ids=torch.arange(3, 63).repeat(4, 1), use_cache=False, output_attentions=True)
    weights = torch.stack(output.attentions)[..., causal]
    assert weights.shape[0] == 2, "two layers"
    assert (weights == 0).float().mean().item() == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / weights.numel()))
    assert weights.sum().item() / (2 * 4 * 4 * 60) == pytest.approx(1, abs=0.05), "the others are scaled up"


def test_other_dropouts_inside_attention_stay_inactive(backbone):
    model = backbone("tiny-gpt2")
    with attention_dropout(model, 0.3):
        active = [module for module in model.model.modules() if isinstance(module, nn.Dropout) and module.training]
        assert active == [block.attn.attn_dropout for block in model.blocks]


def test_a_model_computes_in_another_dtype_and_gets_gradients_in_its_own():
    wide, narrow = (Backbone.load("tiny-llama", device="cpu", dtype=dtype) for dtype in ("float32", "bfloat16"))
    wide.model.requires_grad_(True)
    ids = torch.arange(3, 12)[None]
    with computing_in(wide.model, torch.bfloat16):
        states = wide.model(input_ids=ids).last_hidden_state
        states.float().square().sum().backward()
    assert torch.equal(states, narrow.model(input_ids=ids).last_hidden_state)
    assert wide.dtype == torch.float32
    assert all(parameter.grad.dtype == torch.float32 for parameter in wide.model.parameters())
    narrow.model.requires_grad_(True)
    narrow.model(input_ids=ids).last_hidden_state.float().square().sum().backward()
    for parameter, other in zip(wide.model.parameters(), narrow.model.parameters(), strict=True):
        assert torch.equal(parameter.grad, other.grad.float())
    assert wide.model(input_ids=ids).last_hidden_state.dtype == torch.float32, "afterwards as before"
