"""LoRA against peft, with its changes added to the weights and computed beside them."""

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
    """[text, token, dim] of a padded batch; the padding is the same for everyone."""
    with backbone.adapter_enabled():
        return backbone.model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_written_here_is_read_by_peft(family, depth, backbone, batch_of, shaken, tmp_path):
    model = backbone(family)
    lora = shaken(Lora.initialise(model, 4, 8, depth=depth))
    save_adapter(lora, tmp_path, model)
    theirs = PeftModel.from_pretrained(AutoModel.from_pretrained(tiny_folder(family)), tmp_path).eval()
    batch = batch_of(model)
    with torch.no_grad():
        expected = theirs(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state
    found = states_of(model.with_adapter(lora), batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found - states_of(model, batch)).abs().max() > 1e-2
    count = sum(parameter.numel() for parameter in theirs.parameters() if parameter.ndim == 2)
    count -= sum(parameter.numel() for parameter in model.model.parameters() if parameter.ndim == 2)
    assert sum(parameter.numel() for parameter in lora.parameters()) == count


def loss_of(states):
    """One that tells all states apart; their squares alone say nothing behind a norm."""
    return (states * torch.linspace(-1, 1, states.numel()).view_as(states)).mean()


def learned(lora, states):
    """The states, and what a loss on them tells each matrix."""
    loss_of(states).backward()
    gradients = {name: parameter.grad for name, parameter in lora.named_parameters()}
    lora.zero_grad()
    return {"states": states.detach(), **gradients}


def by_torch(model, lora, batch):
    """The stock model with W + s B A in the place of each weight, written out."""
    weights = {}
    for name, members in lora.groups.items():
        for number, (path, module) in enumerate(members):
            change = lora.shape.alpha / lora.shape.rank * lora.upper[name][number] @ lora.lower[name][number]
            weights[f"{path}.weight"] = module.weight + (change.T if model.family == "gpt2" else change)
    given = {"input_ids": batch.ids, "attention_mask": batch.mask, "use_cache": False}
    return learned(lora, functional_call(model.model, weights, (), given).last_hidden_state)


def assert_same(found, expected):
    for name, other in expected.items():
        close = {"rtol": 1e-4, "atol": 2e-5 * other.abs().max().item()}
        torch.testing.assert_close(found[name], other, **close, msg=lambda text, name=name: f"{name}: {text}")


@pytest.fixture
def ways(monkeypatch):
    """Which way is taken, each time the adapter is switched on."""
    taken = []
    for name, way in (("_hook", "beside"), ("_swap", "added")):
        plain = getattr(Lora, name)
        monkeypatch.setattr(Lora, name, lambda self, way=way, plain=plain: taken.append(way) or plain(self))
    return taken


@pytest.mark.parametrize("family", TINY)
def test_both_ways_have_the_states_and_gradients_of_the_changed_weights(family, backbone, batch_of, shaken, ways):
    """On every family: no layer is passed over by its model, where it is the layer's output that is changed."""
    model = backbone(family)
    lora, batch = shaken(Lora.initialise(model, 4, 8)).requires_grad_(True), batch_of(model)
    expected = by_torch(model, lora, batch)
    for compiled in (False, True):
        lora.compiled = compiled
        with lora.enabled():
            found = model.model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state
            assert_same(learned(lora, found), expected)
    assert ways == ["added" if "mamba" in family else "beside", "added"]
    assert all(parameter.grad is None for parameter in model.model.parameters())


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_a_step_has_the_gradients_of_peft(family, backbone, batch_of, shaken, tmp_path):
    model = backbone(family)
    lora, batch = shaken(Lora.initialise(model, 4, 8)).requires_grad_(True), batch_of(model)
    save_adapter(lora, tmp_path, model)
    theirs = PeftModel.from_pretrained(AutoModel.from_pretrained(tiny_folder(family)), tmp_path, is_trainable=True)
    loss_of(theirs.eval()(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state).backward()
    with lora.enabled():
        loss_of(model.model(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state).backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters() if "lora" in name}
    for name, members in lora.groups.items():
        for number, (path, _) in enumerate(members):
            own = {"lora_A": lora.lower[name].grad[number], "lora_B": lora.upper[name].grad[number]}
            assert_same(own, {part: expected[f"base_model.model.{path}.{part}.default.weight"] for part in own})


def test_layers_whose_weights_are_taken_without_a_call_are_learned_too(backbone, batch_of, shaken):
    """Mamba multiplies by the weight of dt_proj itself; a change beside the layer would never be seen."""
    model = backbone("tiny-mamba")
    lora = shaken(Lora(model, LoraConfig(4, 8, targets=("dt_proj", "out_proj")))).requires_grad_(True)
    batch = batch_of(model)
    expected = by_torch(model, lora, batch)
    with lora.enabled():
        found = model.model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state
        assert_same(learned(lora, found), expected)
    assert all(gradient.abs().max() > 0 for gradient in expected.values())


def test_a_change_that_nobody_would_see_is_refused(backbone):
    """With dropout it is computed beside the layers, and these are never called."""
    with pytest.raises(UnsupportedError, match="bare weights of dt_proj"):
        Lora(backbone("tiny-mamba"), LoraConfig(4, 8, dropout=0.1, targets=("dt_proj", "in_proj")))
    Lora(backbone("tiny-opt"), LoraConfig(4, 8, dropout=0.1, targets=("out_proj",)))  # an ordinary layer of that name


def test_the_change_is_computed_beside_the_layers_only_while_it_learns(backbone, batch_of, shaken, ways):
    model = backbone("tiny-llama")
    lora, batch = shaken(Lora.initialise(model, 4, 8)), batch_of(model)
    frozen = Capture(model.with_adapter(lora), [Reading(-1, "mean", True)])
    frozen(batch)  # nothing to learn
    lora.requires_grad_(True)
    with torch.no_grad():
        frozen(batch)  # nothing is learned now
    frozen(batch)
    assert ways == ["added", "added", "beside"]


def test_the_model_is_left_as_it_was_found_even_after_an_error(backbone, batch_of, shaken):
    model = backbone("tiny-llama")
    before = states_of(model, batch_of(model))
    names = [name for name, _ in model.model.named_parameters()]
    lora = shaken(Lora.initialise(model, 4, 8))
    with pytest.raises(ZeroDivisionError), lora.enabled(), lora.enabled():
        assert not torch.equal(states_of(model, batch_of(model)), before)
        raise ZeroDivisionError
    assert torch.equal(states_of(model, batch_of(model)), before)
    assert [name for name, _ in model.model.named_parameters()] == names


def test_the_changed_weights_follow_the_matrices(backbone, batch_of, shaken):
    """Those of frozen matrices are kept for the next pass, but not when matrices have been loaded or trained."""
    model = backbone("tiny-llama")
    lora = shaken(Lora.initialise(model, 4, 8))
    adapted, batch = model.with_adapter(lora), batch_of(model)
    start = {name: tensor.clone() for name, tensor in lora.state_dict().items()}
    first = states_of(adapted, batch)
    kept = lora.merged()
    assert torch.equal(states_of(adapted, batch), first) and lora.merged() is kept
    for parameter in lora.requires_grad_(True).parameters():
        parameter.grad = torch.ones_like(parameter)
    states_of(adapted, batch)
    torch.optim.AdamW(lora.parameters(), lr=0.1, fused=True).step()  # which tells no tensor that it has changed
    assert not torch.equal(states_of(adapted, batch), first)
    lora.requires_grad_(False).load_state_dict(start)
    assert torch.equal(states_of(adapted, batch), first)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_is_for_training_only(dropout, backbone, batch_of, shaken, tmp_path):
    model = backbone("tiny-llama")
    lora = shaken(Lora.initialise(model, 4, 8, dropout))
    save_adapter(lora, tmp_path, model)
    batch = batch_of(model)
    found = states_of(model.with_adapter(lora), batch)
    read = states_of(model.with_adapter(load_adapter(tmp_path, model)), batch)
    assert torch.equal(found, read), "as it comes from its maker, or from disk"
    lora.train()
    differs = not torch.equal(states_of(model.with_adapter(lora), batch), found)
    assert differs == (dropout > 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_changes_nothing_before_it_is_trained(family, backbone, batch_of):
    model = backbone(family)
    for dropout in (0.0, 0.5):
        lora = Lora.initialise(model, 4, 8, dropout).train()
        assert torch.equal(states_of(model.with_adapter(lora), batch_of(model)), states_of(model, batch_of(model)))


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_only_the_blocks_that_run_are_changed(depth, backbone):
    """r (in + out), summed over the seven projections of each block."""
    lora = Lora.initialise(backbone("tiny-llama"), 3, 6, depth=depth)
    each = 3 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
    assert sum(parameter.numel() for parameter in lora.parameters()) == depth * each


def test_peft_is_not_needed(backbone, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "peft", None)
    model = backbone("tiny-llama")
    save_adapter(Lora.initialise(model, 2, 4), tmp_path, model)
    assert isinstance(load_adapter(tmp_path, model), Lora)


@pytest.mark.parametrize(("rank", "dropout"), [(0, 0.0), (-1, 0.0), (4, 1.0), (4, -0.1)])
def test_ranks_and_dropouts_that_are_none_are_refused(rank, dropout, backbone):
    with pytest.raises(InputError, match="rank of LoRA is 1 or more, its dropout 0 or more and below 1"):
        Lora.initialise(backbone("tiny-llama"), rank, 8, dropout)


def test_layers_can_be_chosen_by_name_and_missing_ones_are_refused(backbone):
    model = backbone("tiny-llama")
    lora = Lora(model, LoraConfig(rank=2, targets=("q_proj", "v_proj")))
    assert sum(parameter.numel() for parameter in lora.parameters()) == 4 * 2 * (32 + 32 + 32 + 16)
    with pytest.raises(UnsupportedError, match="llama has no linear layer called c_attn"):
        Lora(model, LoraConfig(targets=("c_attn",)))
