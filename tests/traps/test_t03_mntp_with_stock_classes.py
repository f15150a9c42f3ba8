"""T3: masked next-token prediction is the stock shifted loss on a model whose config is not causal."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM

from decoder2vec.backbone.attention import set_attention
from decoder2vec.backbone.tiny import tiny_folder

STOCK = {"tiny-llama": LlamaForCausalLM, "tiny-gpt2": GPT2LMHeadModel}
MASKED, PLACE = 95, 4


@torch.inference_mode()
def masked_loss(model, last):
    """The model's own loss for the token at PLACE, which it is shown as the mask token; `last` follows later."""
    ids = torch.tensor([[30, 31, 32, 33, 34, 35, 36, last]])
    shown, labels = ids.clone(), torch.full_like(ids, -100)
    shown[0, PLACE], labels[0, PLACE] = MASKED, ids[0, PLACE]
    output = model(input_ids=shown, labels=labels)
    by_hand = cross_entropy(output.logits[0, PLACE - 1].unsqueeze(0), ids[0, PLACE].unsqueeze(0))
    torch.testing.assert_close(output.loss, by_hand)
    return output.loss.item()


@pytest.mark.parametrize("name", sorted(STOCK))
def test_masked_prediction_sees_later_tokens_only_without_the_causal_mask(name):
    """With is_causal=False the loss moves with a token behind the gap; causal, the faulty case, it cannot."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()
    assert type(model) is STOCK[name]
    assert masked_loss(model, last=40) == masked_loss(model, last=200)

    model.config.is_causal = False
    assert abs(masked_loss(model, last=40) - masked_loss(model, last=200)) > 1e-3


@pytest.mark.parametrize("name", sorted(STOCK))
def test_switching_the_body_switches_the_language_model(name):
    """Body and LM head share one config, so our proved switch serves training as well."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()
    set_attention(model.base_model, "bidirectional")
    assert abs(masked_loss(model, last=40) - masked_loss(model, last=200)) > 1e-3
    set_attention(model.base_model, "causal")
    assert masked_loss(model, last=40) == masked_loss(model, last=200)
