"""T3: masked next-token prediction (MNTP) is the stock shifted loss on a model whose config is not causal."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, GPT2LMHeadModel, LlamaForCausalLM

from decoder2vec.backbone.attention import set_attention
from decoder2vec.backbone.tiny import tiny_folder

STOCK = {"tiny-llama": LlamaForCausalLM, "tiny-gpt2": GPT2LMHeadModel}
MASK_TOKEN, POSITION = 95, 4


@torch.inference_mode()
def masked_loss(model, last):
    """The model's own loss for the masked token at POSITION; `last` is the last token of the text."""
    ids = torch.tensor([[30, 31, 32, 33, 34, 35, 36, last]])
    masked_ids, labels = ids.clone(), torch.full_like(ids, -100)
    masked_ids[0, POSITION], labels[0, POSITION] = MASK_TOKEN, ids[0, POSITION]
    output = model(input_ids=masked_ids, labels=labels)
    by_hand = cross_entropy(output.logits[0, POSITION - 1].unsqueeze(0), ids[0, POSITION].unsqueeze(0))
    torch.testing.assert_close(output.loss, by_hand)
    return output.loss.item()


@pytest.mark.parametrize("name", sorted(STOCK))
def test_mntp_sees_later_tokens_only_if_bidirectional(name):
    """With is_causal=False the loss depends on a token after the mask; in a causal model, the faulty variant, not."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()
    assert type(model) is STOCK[name]
    assert masked_loss(model, last=40) == masked_loss(model, last=200)

    model.config.is_causal = False
    assert abs(masked_loss(model, last=40) - masked_loss(model, last=200)) > 1e-3


@pytest.mark.parametrize("name", sorted(STOCK))
def test_switching_the_base_model_switches_the_lm(name):
    """Base model and LM head share one config, so our switch serves training as well."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()
    set_attention(model.base_model, "bidirectional")
    assert abs(masked_loss(model, last=40) - masked_loss(model, last=200)) > 1e-3
    set_attention(model.base_model, "causal")
    assert masked_loss(model, last=40) == masked_loss(model, last=200)
