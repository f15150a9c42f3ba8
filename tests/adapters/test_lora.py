"""LoRA against peft, both merged into the weights and added by hooks."""

from __future__ import annotations

import sys

import pytest
import torch
from peft import PeftModel
from torch.func import functional_call
from transformers import AutoModel

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.lora import Lora, LoraConfig
from decoder2vec.adapters.saving import load_adapter, save_adapter
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.config import Reading
from decoder2vec.errors import InputError, UnsupportedError

FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-opt", "tiny-phi3", "tiny-falcon", "tiny-mamba"]


@torch.no_grad()
def states_of(backbone, batch):
    """[text, token, dim] states of a padded batch."""
    with backbone.adapter_enabled():
        return backbone.model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_saved_folder_loads_in_peft(family, depth, backbone, batch_of, randomised, tmp_path):
    model = backbone(family)
    lora = randomised(Lora.initialise(model, 4, 8, depth=depth))
    save_adapter(lora, tmp_path, model)
    peft_model = PeftModel.from_pretrained(AutoModel.from_pretrained(tiny_folder(family)), tmp_path).eval()
    batch = batch_of(model)
    with torch.no_grad():
        expected = peft_model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state
    states = states_of(model.with_adapter(lora), batch)
    torch.testing.assert_close(states, expected, rtol=1e-4, atol=1e-5)
    assert (states - states_of(model, batch)).abs().max() > 1e-2
    count = sum(parameter.numel() for parameter in peft_model.parameters() if parameter.ndim == 2)
    count -= sum(parameter.numel() for parameter in model.model.parameters() if parameter.ndim == 2)
    assert sum(parameter.numel() for parameter in lora.parameters()) == count


def loss_of(states):
    """A loss with different weights for all states; their squares alone are constant after a norm."""
    return (states * torch.linspace(-1, 1, states.numel()).view_as(states)).mean()


def states_and_gradients(lora, states):
    """The states, and the gradient of a loss on them for each matrix."""
    loss_of(states).backward()
    gradients = {name: parameter.grad for name, parameter in lora.named_parameters()}
    lora.zero_grad()
    return {"states": states.detach(), **gradients}


def reference(model, lora, batch):
    """The stock model with W + s B A in place of each weight."""
    weights = {}
    for name, members in lora.groups.items():
        for index, (path, module) in enumerate(members):
            update = lora.config.alpha / lora.config.rank * lora.upper[name][index] @ lora.lower[name][index]
            weights[f"{path}.weight"] = module.weight + (update.T if model.family == "gpt2" else update)
    inputs = {"input_ids": batch.ids, "attention_mask": batch.mask, "use_cache": False}
    return states_and_gradients(lora, functional_call(model.model, weights, (), inputs).last_hidden_state)


def assert_close(result, expected):
    for name, tensor in expected.items():
        tolerance = {"rtol": 1e-4, "atol": 3e-5 * tensor.abs().max().item()}
        torch.testing.assert_close(result[name], tensor, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture
def modes(monkeypatch):
    """The mode used each time the adapter is enabled: hooks or merged weights."""
    used = []
    for name, mode in (("_add_hooks", "hooks"), ("_swap_weights", "merged")):
        original = getattr(Lora, name)
        monkeypatch.setattr(Lora, name, lambda self, mode=mode, original=original: used.append(mode) or original(self))
    return used


@pytest.mark.parametrize("family", TINY)
def test_hooks_and_merging_give_the_same_gradients(family, backbone, batch_of, randomised, modes):
    """On every family: where hooks are used, the model calls every layer."""
    model = backbone(family)
    lora, batch = randomised(Lora.initialise(model, 4, 8)).requires_grad_(True), batch_of(model)
    expected = reference(model, lora, batch)
    for compiled in (False, True):
        lora.compiled = compiled
        with lora.enabled():
            states = model.model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state
            assert_close(states_and_gradients(lora, states), expected)
    assert modes == ["merged" if "mamba" in family else "hooks", "merged"]
    assert all(parameter.grad is None for parameter in model.model.parameters())


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_gradients_equal_those_of_peft(family, backbone, batch_of, randomised, tmp_path):
    model = backbone(family)
    lora, batch = randomised(Lora.initialise(model, 4, 8)).requires_grad_(True), batch_of(model)
    save_adapter(lora, tmp_path, model)
    peft_model = PeftModel.from_pretrained(AutoModel.from_pretrained(tiny_folder(family)), tmp_path, is_trainable=True)
    loss_of(peft_model.eval()(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state).backward()
    with lora.enabled():
        loss_of(model.model(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state).backward()
    expected = {name: parameter.grad for name, parameter in peft_model.named_parameters() if "lora" in name}
    for name, members in lora.groups.items():
        for index, (path, _) in enumerate(members):
            gradients = {"lora_A": lora.lower[name].grad[index], "lora_B": lora.upper[name].grad[index]}
            assert_close(
                gradients, {key: expected[f"base_model.model.{path}.{key}.default.weight"] for key in gradients}
            )


def test_layers_that_are_never_called_are_trained_too(backbone, batch_of, randomised):
    """Mamba multiplies by the weight of dt_proj without calling the layer; a hook would have no effect."""
    model = backbone("tiny-mamba")
    lora = randomised(Lora(model, LoraConfig(4, 8, targets=("dt_proj", "out_proj")))).requires_grad_(True)
    batch = batch_of(model)
    expected = reference(model, lora, batch)
    with lora.enabled():
        states = model.model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state
        assert_close(states_and_gradients(lora, states), expected)
    assert all(gradient.abs().max() > 0 for gradient in expected.values())


def test_update_without_effect_is_refused(backbone):
    """Dropout needs hooks, and these layers are never called."""
    with pytest.raises(UnsupportedError, match="uses the weights of dt_proj without calling"):
        Lora(backbone("tiny-mamba"), LoraConfig(4, 8, dropout=0.1, targets=("dt_proj", "in_proj")))
    Lora(backbone("tiny-opt"), LoraConfig(4, 8, dropout=0.1, targets=("out_proj",)))  # an ordinary layer of that name


def test_hooks_are_used_only_while_training(backbone, batch_of, randomised, modes):
    model = backbone("tiny-llama")
    lora, batch = randomised(Lora.initialise(model, 4, 8)), batch_of(model)
    frozen = Capture(model.with_adapter(lora), [Reading(-1, "mean", True)])
    frozen(batch)  # frozen
    lora.requires_grad_(True)
    with torch.no_grad():
        frozen(batch)  # no gradients are computed
    frozen(batch)
    assert modes == ["merged", "merged", "hooks"]


def test_model_is_restored_even_after_an_error(backbone, batch_of, randomised):
    model = backbone("tiny-llama")
    before = states_of(model, batch_of(model))
    names = [name for name, _ in model.model.named_parameters()]
    lora = randomised(Lora.initialise(model, 4, 8))
    with pytest.raises(ZeroDivisionError), lora.enabled(), lora.enabled():
        assert not torch.equal(states_of(model, batch_of(model)), before)
        raise ZeroDivisionError
    assert torch.equal(states_of(model, batch_of(model)), before)
    assert [name for name, _ in model.model.named_parameters()] == names


def test_cached_merged_weights_follow_the_matrices(backbone, batch_of, randomised):
    """Merged weights of frozen matrices are cached until the matrices are loaded or trained."""
    model = backbone("tiny-llama")
    lora = randomised(Lora.initialise(model, 4, 8))
    adapted, batch = model.with_adapter(lora), batch_of(model)
    initial = {name: tensor.clone() for name, tensor in lora.state_dict().items()}
    first = states_of(adapted, batch)
    cached = lora.merged_weights()
    assert torch.equal(states_of(adapted, batch), first) and lora.merged_weights() is cached
    for parameter in lora.requires_grad_(True).parameters():
        parameter.grad = torch.ones_like(parameter)
    states_of(adapted, batch)
    torch.optim.AdamW(lora.parameters(), lr=0.1, fused=True).step()  # increases no tensor's version
    assert not torch.equal(states_of(adapted, batch), first)
    lora.requires_grad_(False).load_state_dict(initial)
    assert torch.equal(states_of(adapted, batch), first)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_is_active_in_training_only(dropout, backbone, batch_of, randomised, tmp_path):
    model = backbone("tiny-llama")
    lora = randomised(Lora.initialise(model, 4, 8, dropout))
    save_adapter(lora, tmp_path, model)
    batch = batch_of(model)
    states = states_of(model.with_adapter(lora), batch)
    loaded = states_of(model.with_adapter(load_adapter(tmp_path, model)), batch)
    assert torch.equal(states, loaded), "no dropout, whether new or loaded"
    lora.train()
    differs = not torch.equal(states_of(model.with_adapter(lora), batch), states)
    assert differs == (dropout > 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_changes_nothing_before_training(family, backbone, batch_of):
    model = backbone(family)
    for dropout in (0.0, 0.5):
        lora = Lora.initialise(model, 4, 8, dropout).train()
        assert torch.equal(states_of(model.with_adapter(lora), batch_of(model)), states_of(model, batch_of(model)))


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_only_blocks_up_to_the_depth_have_updates(depth, backbone):
    """rank * (in + out) parameters, summed over the seven projections of each block."""
    lora = Lora.initialise(backbone("tiny-llama"), 3, 6, depth=depth)
    per_block = 3 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
    assert sum(parameter.numel() for parameter in lora.parameters()) == depth * per_block


def test_peft_is_not_required(backbone, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "peft", None)
    model = backbone("tiny-llama")
    save_adapter(Lora.initialise(model, 2, 4), tmp_path, model)
    assert isinstance(load_adapter(tmp_path, model), Lora)


@pytest.mark.parametrize(("rank", "dropout"), [(0, 0.0), (-1, 0.0), (4, 1.0), (4, -0.1)])
def test_invalid_rank_or_dropout_is_refused(rank, dropout, backbone):
    with pytest.raises(InputError, match="rank of LoRA is 1 or more, its dropout 0 or more and below 1"):
        Lora.initialise(backbone("tiny-llama"), rank, 8, dropout)


def test_targets_by_name_and_unknown_targets_refused(backbone):
    model = backbone("tiny-llama")
    lora = Lora(model, LoraConfig(rank=2, targets=("q_proj", "v_proj")))
    assert sum(parameter.numel() for parameter in lora.parameters()) == 4 * 2 * (32 + 32 + 32 + 16)
    with pytest.raises(UnsupportedError, match="llama has no linear layer called c_attn"):
        Lora(model, LoraConfig(targets=("c_attn",)))
