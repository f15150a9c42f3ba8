"""Logits are those of each family's own language model, whatever it does to them; a missing head is told."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from decoder2vec.backbone import lm_head
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import TINY, tiny_folder, tiny_tokenizer
from decoder2vec.errors import BackboneError
from toys.texts import SIZES, built

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = torch.tensor([[30, 400, 95, 7, 88, 311], [5, 6, 300, 41, 41, 222]])

CHANGED = {
    "capped": ("gemma2", {"final_logit_softcapping": 1.5, "head_dim": 8, "num_key_value_heads": 2}),
    "divided": ("granite", {"logits_scaling": 7.0}),
    "multiplied": ("cohere", {"logit_scale": 0.3}),
    "biased": ("phi", {}),
    "biased, of other names": ("gptj", {"rotary_dim": 8}),
    "narrower than the states": ("opt", {"word_embed_proj_dim": 16, "ffn_dim": 64}),
}
"""What families do to their logits, or to the states before them, with settings under which it is seen."""


@torch.no_grad()
def logits_of(language_model):
    return language_model(input_ids=IDS, use_cache=False).logits.flatten(0, 1)


@torch.no_grad()
def states_of(backbone):
    return backbone.model(input_ids=IDS, use_cache=False).last_hidden_state.flatten(0, 1)


def load(folder):
    return Backbone.load(folder, device="cpu", dtype="float32")


@pytest.mark.parametrize("name", TINY)
def test_logits_are_those_of_the_stock_language_model(name, backbone):
    model = backbone(name)
    with quiet_transformers():
        stock = AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()
    torch.testing.assert_close(LMHead(model)(states_of(model)), logits_of(stock))


@pytest.mark.parametrize(("family", "settings"), CHANGED.values(), ids=CHANGED)
def test_logits_that_a_family_changes_are_changed(family, settings, tmp_path):
    stock = built(family, tmp_path, **settings)
    backbone = load(tmp_path)
    states, expected = states_of(backbone), logits_of(stock)
    torch.testing.assert_close(LMHead(backbone)(states), expected)
    if "word_embed_proj_dim" in settings:
        assert states.shape[1] == 16 < backbone.dim
    else:
        plain = states @ stock.get_output_embeddings().weight.T
        assert (plain - expected).abs().max() > 0.1 * expected.abs().max(), "the setting was meant to do something"


def test_a_model_that_is_kept_under_another_name_than_it_declares_is_found(tmp_path):
    """Else the whole model would run, and tell what comes after nothing."""
    few = {"num_local_experts": 2, "intermediate_size_mlp": 64, "head_dim": 8, "num_key_value_heads": 2}
    stock = built("llama4_text", tmp_path, **few)
    assert not hasattr(stock, stock.base_model_prefix)
    backbone = load(tmp_path)
    torch.testing.assert_close(LMHead(backbone)(states_of(backbone)), logits_of(stock))


def test_gradients_reach_the_states_and_no_weight(backbone):
    head = LMHead(backbone("tiny-gpt2"))
    states = states_of(backbone("tiny-gpt2")).requires_grad_()
    head(states)[1].sum().backward()
    assert states.grad[1].abs().max() > 0 and not states.grad[0].any()
    assert not any(parameter.requires_grad for parameter in head.model.parameters())
    assert sum(1 for _ in head.model.parameters()) == 1, "the model itself is not held a second time"


def test_a_head_does_its_work_in_the_format_of_its_model(own_cache):
    model = Backbone.load("tiny-llama", device="cpu", dtype="float64")
    assert LMHead(model)(states_of(model)).dtype == torch.float64


# --- no head --------------------------------------------------------------------------------------------------------

OWN_HEAD = ["llama", "gpt_neox", "phi", "mamba2"]
TIED = ["gpt2", "opt", "falcon", "mamba"]


def without_head(family, folder):
    """A folder of the model alone, as many are shared."""
    with quiet_transformers():
        stock = AutoModelForCausalLM.from_pretrained(tiny_folder(f"tiny-{family}"), dtype=torch.float32).eval()
        stock.base_model.save_pretrained(folder)
    tiny_tokenizer(pad=True, bos=False).save_pretrained(folder)
    return stock


@pytest.mark.parametrize("family", OWN_HEAD)
def test_a_folder_without_a_head_is_refused(family, tmp_path):
    without_head(family, tmp_path)
    with pytest.raises(BackboneError, match=f"{tmp_path} has no language-model head, so no word can be predicted"):
        LMHead(load(tmp_path))


@pytest.mark.parametrize("family", TIED)
def test_where_the_embeddings_are_the_head_none_is_missing(family, tmp_path):
    stock = without_head(family, tmp_path)
    backbone = load(tmp_path)
    torch.testing.assert_close(LMHead(backbone)(states_of(backbone)), logits_of(stock))


def test_a_family_that_transformers_knows_no_language_model_of_is_refused_in_one_line(tmp_path):
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    AutoModel.from_config(AutoConfig.for_model("clip_text_model", vocab_size=len(tokenizer), **SIZES)).save_pretrained(
        tmp_path
    )
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BackboneError, match=r"knows no language-model head for .*CLIPTextConfig") as caught:
        LMHead(load(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("at_once", [100, 5, 1], ids=["whole", "in parts", "one by one"])
def test_losses_gradients_and_likeliest_words_do_not_depend_on_how_many_go_through_at_once(at_once, monkeypatch):
    monkeypatch.setattr(lm_head, "_AT_ONCE", at_once)
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    head, truth = LMHead(model), torch.arange(12) * 30
    states = states_of(model).requires_grad_(True)
    with quiet_transformers():
        stock = AutoModelForCausalLM.from_pretrained(tiny_folder("tiny-llama"), dtype=torch.float32).eval()
    logits = stock.lm_head(states)
    expected = -logits.log_softmax(dim=1)[torch.arange(12), truth].sum()
    found = head.cross_entropy(states, truth)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(loss, states)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients)
    assert head.predict(states.detach()).tolist() == logits.argmax(dim=1).tolist()
