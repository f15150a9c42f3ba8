"""Dropout in the attention: at work while it is switched on, nowhere else, and gone without a trace."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY
from decoder2vec.backbone.training_modes import attention_dropout
from toys.texts import built

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = torch.tensor([[30, 400, 95, 7, 88, 311, 12], [5, 6, 300, 41, 41, 222, 9]])
WITHOUT = ("mamba", "mamba2", "falcon")
"""State-space models have no attention; transformers drops nothing in Falcon's unless its positions are ALiBi's."""
DROPPING = [name for name, family in TINY.items() if family not in WITHOUT]


@torch.no_grad()
def states_of(backbone):
    return backbone.model(input_ids=IDS, use_cache=False).last_hidden_state


def bare(language_model):
    """A backbone that is only read."""
    return Backbone("made up", language_model.base_model, None, "causal", "")


def everything(model):
    """Numbers and flags of every module, and which modules there are."""
    return [
        (name, id(module), {key: value for key, value in vars(module).items() if isinstance(value, str | int | float)})
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize("name", DROPPING)
def test_two_passes_differ_while_it_is_on_and_only_then(name, backbone):
    model = backbone(name)
    plain = states_of(model)
    assert torch.equal(states_of(model), plain)
    with attention_dropout(model, 0.3):
        one, other = states_of(model), states_of(model)
    scale = plain.abs().max()
    assert (one - other).abs().max() > 0.01 * scale and (one - plain).abs().max() > 0.01 * scale
    assert torch.equal(states_of(model), plain)


@pytest.mark.parametrize("name", TINY)
def test_a_model_is_left_as_it_was_even_after_an_error(name, backbone):
    model = backbone(name)
    before, weights = everything(model.model), [id(tensor) for tensor in model.model.parameters()]
    with pytest.raises(ZeroDivisionError), attention_dropout(model, 0.3), attention_dropout(model, 0.6):
        assert (everything(model.model) != before) == (model.family not in WITHOUT[:2])
        raise ZeroDivisionError
    assert everything(model.model) == before
    assert [id(tensor) for tensor in model.model.parameters()] == weights


def test_a_model_in_training_stays_in_training():
    model = bare(built("gpt2"))
    model.model.train()
    before = everything(model.model)
    with attention_dropout(model, 0.3):
        pass
    assert everything(model.model) == before


def test_attention_with_alibi_is_dropped_in_falcon():
    model = bare(built("falcon", alibi=True))
    with attention_dropout(model, 0.3):
        assert not torch.equal(states_of(model), states_of(model))


OTHERS = {
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
"""What families drop besides attention weights, if asked to."""
SHAPES = {"gptj": {"rotary_dim": 8}, "gpt_neo": {"attention_types": [[["global"], 2]]}, "falcon": {"alibi": True}}


@pytest.mark.parametrize("family", OTHERS)
def test_nothing_but_attention_weights_is_dropped(family):
    """With a share so small that no weight is ever dropped, the states are those of the model at rest."""
    model = bare(built(family, **dict.fromkeys(OTHERS[family], 0.5), **SHAPES.get(family, {})))
    plain = states_of(model)
    with attention_dropout(model, 1e-9):
        torch.testing.assert_close(states_of(model), plain)
    model.model.train()
    assert not torch.allclose(states_of(model), plain), "the settings were meant to do something"


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_the_share_that_is_dropped_is_the_one_asked_for(family):
    """Kept as a number, as a module, and as a number of another name."""
    model = bare(built(family, attn_implementation="eager"))
    causal = torch.ones(60, 60).tril().bool()
    torch.manual_seed(0)
    with attention_dropout(model, 0.3), torch.no_grad():
        found = model.model(input_ids=torch.arange(3, 63).repeat(4, 1), use_cache=False, output_attentions=True)
    weights = torch.stack(found.attentions)[..., causal]
    assert weights.shape[0] == 2, "two layers"
    assert (weights == 0).float().mean().item() == pytest.approx(0.3, abs=4 * math.sqrt(0.21 / weights.numel()))
    assert weights.sum().item() / (2 * 4 * 4 * 60) == pytest.approx(1, abs=0.05), "the rest is scaled up"


def test_modules_inside_an_attention_layer_that_are_not_for_its_weights_stay_quiet(backbone):
    model = backbone("tiny-gpt2")
    with attention_dropout(model, 0.3):
        awake = [module for module in model.model.modules() if isinstance(module, nn.Dropout) and module.training]
        assert awake == [block.attn.attn_dropout for block in model.blocks]
