"""LoRA against peft, with its changes added to the weights and computed beside them."""

from __future__ import annotations

import sys

import pytest
import torch
from peft import PeftModel
from transformers import AutoModel

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.files import read_adapter, write_adapter
from decoder2vec.adapters.lora import Lora, LoraShape
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.spec import Reading

FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-opt", "tiny-phi3", "tiny-falcon", "tiny-mamba"]


@torch.no_grad()
def states_of(backbone, batch):
    """[text, token, dim] of a padded batch; the padding is the same for everyone."""
    with backbone.adapter_on():
        return backbone.model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).last_hidden_state


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_written_here_is_read_by_peft(family, depth, backbone, batch_of, shaken, tmp_path):
    model = backbone(family)
    lora = shaken(Lora.start(model, 4, 8, depth=depth))
    write_adapter(lora, tmp_path, model)
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


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_changes_added_to_the_weights_equal_changes_beside_them(family, backbone, batch_of, shaken):
    """In vectors and gradients."""
    model, found = backbone(family), []
    for beside in (False, True):
        torch.manual_seed(0)
        lora = shaken(Lora.start(model, 4, 8)).requires_grad_(True)
        lora._beside = beside
        adapted = model.with_adapter(lora)
        with adapted.adapter_on():
            vectors = Capture(adapted, [Reading(-1, "mean", True)])(batch_of(model))
            vectors.pow(2).sum().backward()
        found.append([vectors.detach(), *(parameter.grad for parameter in lora.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * other.abs().max().item())
    assert all(parameter.grad is None for parameter in model.model.parameters())


def test_the_model_is_left_as_it_was_found_even_after_an_error(backbone, batch_of, shaken):
    model = backbone("tiny-llama")
    before = states_of(model, batch_of(model))
    names = [name for name, _ in model.model.named_parameters()]
    lora = shaken(Lora.start(model, 4, 8))
    with pytest.raises(ZeroDivisionError), lora.switched_on(), lora.switched_on():
        assert not torch.equal(states_of(model, batch_of(model)), before)
        raise ZeroDivisionError
    assert torch.equal(states_of(model, batch_of(model)), before)
    assert [name for name, _ in model.model.named_parameters()] == names


def test_the_changed_weights_follow_the_matrices(backbone, batch_of, shaken):
    """Those of frozen matrices are kept for the next pass, but not when matrices have been loaded or trained."""
    model = backbone("tiny-llama")
    lora = shaken(Lora.start(model, 4, 8))
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
    lora = shaken(Lora.start(model, 4, 8, dropout))
    write_adapter(lora, tmp_path, model)
    batch = batch_of(model)
    found = states_of(model.with_adapter(lora), batch)
    read = states_of(model.with_adapter(read_adapter(tmp_path, model)), batch)
    assert torch.equal(found, read), "as it comes from its maker, or from disk"
    lora.train()
    differs = not torch.equal(states_of(model.with_adapter(lora), batch), found)
    assert differs == (dropout > 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_changes_nothing_before_it_is_trained(family, backbone, batch_of):
    model = backbone(family)
    for dropout in (0.0, 0.5):
        lora = Lora.start(model, 4, 8, dropout).train()
        assert torch.equal(states_of(model.with_adapter(lora), batch_of(model)), states_of(model, batch_of(model)))


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_only_the_blocks_that_run_are_changed(depth, backbone):
    """r (in + out), summed over the seven projections of each block."""
    lora = Lora.start(backbone("tiny-llama"), 3, 6, depth=depth)
    each = 3 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
    assert sum(parameter.numel() for parameter in lora.parameters()) == depth * each


def test_peft_is_not_needed(backbone, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "peft", None)
    model = backbone("tiny-llama")
    write_adapter(Lora.start(model, 2, 4), tmp_path, model)
    assert isinstance(read_adapter(tmp_path, model), Lora)


@pytest.mark.parametrize(("rank", "dropout"), [(0, 0.0), (-1, 0.0), (4, 1.0), (4, -0.1)])
def test_ranks_and_dropouts_that_are_none_are_refused(rank, dropout, backbone):
    with pytest.raises(InputError, match="rank of LoRA is 1 or more, its dropout 0 or more and below 1"):
        Lora.start(backbone("tiny-llama"), rank, 8, dropout)


def test_layers_can_be_chosen_by_name_and_missing_ones_are_refused(backbone):
    model = backbone("tiny-llama")
    lora = Lora(model, LoraShape(rank=2, targets=("q_proj", "v_proj")))
    assert sum(parameter.numel() for parameter in lora.parameters()) == 4 * 2 * (32 + 32 + 32 + 16)
    with pytest.raises(UnsupportedError, match="llama has no linear layer called c_attn"):
        Lora(model, LoraShape(targets=("c_attn",)))
