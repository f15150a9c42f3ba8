"""Logits equal those of each family's own language model; a model without a head is refused."""

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
from toys.hybrids import HYBRIDS, SETTINGS
from toys.texts import SIZES, built

pytestmark = pytest.mark.usefixtures("one_thread")

IDS = torch.tensor([[30, 400, 95, 7, 88, 311], [5, 6, 300, 41, 41, 222]])

TRANSFORMED_LOGITS = {
    "capped": ("gemma2", {"final_logit_softcapping": 1.5, "head_dim": 8, "num_key_value_heads": 2}),
    "divided": ("granite", {"logits_scaling": 7.0}),
    "multiplied": ("cohere", {"logit_scale": 0.3}),
    "multiplied by a number of the base model": (
        "falcon_h1",
        {**SETTINGS, **HYBRIDS["falcon_h1"], "lm_head_multiplier": 0.3},
    ),
    "biased": ("phi", {}),
    "biased under another name": ("gptj", {"rotary_dim": 8}),
    "projected to a lower width": ("opt", {"word_embed_proj_dim": 16, "ffn_dim": 64}),
}
"""What families do to their logits or to the states before them, with settings that make a difference."""


@torch.no_grad()
def logits_of(language_model):
    return language_model(input_ids=IDS, use_cache=False).logits.flatten(0, 1)


@torch.no_grad()
def states_of(backbone):
    return backbone.model(input_ids=IDS, use_cache=False).last_hidden_state.flatten(0, 1)


def load(folder):
    return Backbone.load(folder, device="cpu", dtype="float32")


@pytest.mark.parametrize("name", TINY)
def test_logits_equal_the_stock_language_model(name, backbone):
    model = backbone(name)
    with quiet_transformers():
        reference = AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()
    torch.testing.assert_close(LMHead(model)(states_of(model)), logits_of(reference))


@pytest.mark.parametrize(("family", "settings"), TRANSFORMED_LOGITS.values(), ids=TRANSFORMED_LOGITS)
def test_logits_are_transformed_as_the_family_does(family, settings, tmp_path):
    reference = built(family, tmp_path, **settings)
    backbone = load(tmp_path)
    states, expected = states_of(backbone), logits_of(reference)
    torch.testing.assert_close(LMHead(backbone)(states), expected)
    if "word_embed_proj_dim" in settings:
        assert states.shape[1] == 16 < backbone.dim
    else:
        plain = states @ reference.get_output_embeddings().weight.T
        assert (plain - expected).abs().max() > 0.1 * expected.abs().max(), "the setting must make a difference"


def test_base_model_under_an_undeclared_name_is_found(tmp_path):
    """Otherwise the whole model would run on the placeholder ids."""
    sizes = {"num_local_experts": 2, "intermediate_size_mlp": 64, "head_dim": 8, "num_key_value_heads": 2}
    reference = built("llama4_text", tmp_path, **sizes)
    assert not hasattr(reference, reference.base_model_prefix)
    backbone = load(tmp_path)
    torch.testing.assert_close(LMHead(backbone)(states_of(backbone)), logits_of(reference))


def test_gradients_reach_the_states_and_no_weight(backbone):
    head = LMHead(backbone("tiny-gpt2"))
    states = states_of(backbone("tiny-gpt2")).requires_grad_()
    head(states)[1].sum().backward()
    assert states.grad[1].abs().max() > 0 and not states.grad[0].any()
    assert not any(parameter.requires_grad for parameter in head.model.parameters())
    assert sum(1 for _ in head.model.parameters()) == 1, "the model itself is not loaded a second time"


def test_head_has_the_dtype_of_the_backbone(own_cache):
    model = Backbone.load("tiny-llama", device="cpu", dtype="float64")
    assert LMHead(model)(states_of(model)).dtype == torch.float64


# --- folders without a head ------------------------------------------------------------------------------------------

UNTIED = ["llama", "gpt_neox", "phi", "mamba2"]
TIED = ["gpt2", "opt", "falcon", "mamba"]


def save_without_head(family, folder):
    """Save the base model alone, as many published folders hold it; return the full model."""
    with quiet_transformers():
        reference = AutoModelForCausalLM.from_pretrained(tiny_folder(f"tiny-{family}"), dtype=torch.float32).eval()
        reference.base_model.save_pretrained(folder)
    tiny_tokenizer(pad=True, bos=False).save_pretrained(folder)
    return reference


@pytest.mark.parametrize("family", UNTIED)
def test_folder_without_a_head_is_refused(family, tmp_path):
    save_without_head(family, tmp_path)
    with pytest.raises(BackboneError, match=f"{tmp_path} has no language-model head, so no token can be predicted"):
        LMHead(load(tmp_path))


@pytest.mark.parametrize("family", TIED)
def test_tied_embeddings_need_no_separate_head(family, tmp_path):
    reference = save_without_head(family, tmp_path)
    backbone = load(tmp_path)
    torch.testing.assert_close(LMHead(backbone)(states_of(backbone)), logits_of(reference))


def test_family_without_a_language_model_class_is_refused(tmp_path):
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    AutoModel.from_config(AutoConfig.for_model("clip_text_model", vocab_size=len(tokenizer), **SIZES)).save_pretrained(
        tmp_path
    )
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(BackboneError, match=r"knows no language-model head for .*CLIPTextConfig") as caught:
        LMHead(load(tmp_path))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("chunk", [100, 5, 1], ids=["whole", "in chunks", "one by one"])
def test_chunk_size_changes_no_loss_gradient_or_prediction(chunk, monkeypatch):
    monkeypatch.setattr(lm_head, "_CHUNK", chunk)
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    head, target_ids = LMHead(model), torch.arange(12) * 30
    states = states_of(model).requires_grad_(True)
    with quiet_transformers():
        reference = AutoModelForCausalLM.from_pretrained(tiny_folder("tiny-llama"), dtype=torch.float32).eval()
    logits = reference.lm_head(states)
    expected = -logits.log_softmax(dim=1)[torch.arange(12), target_ids].sum()
    loss = head.cross_entropy(states, target_ids)
    torch.testing.assert_close(loss, expected)
    gradients = [torch.autograd.grad(value, states)[0] for value in (loss, expected)]
    torch.testing.assert_close(*gradients)
    assert head.predict(states.detach()).tolist() == logits.argmax(dim=1).tolist()
