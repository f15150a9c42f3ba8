"""T2: a request for bidirectional attention that is silently ignored."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.attention import set_attention
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError

CAUSAL_ONLY = {"tiny-gpt_neo": "buffer", "tiny-mamba": "left to right", "tiny-mamba2": "left to right"}
BIDIRECTIONAL = sorted(set(TINY) - set(CAUSAL_ONLY))


@torch.inference_mode()
def first_token_sees_last(model, padded):
    """An independent check: change the last real token and compare the first one; row 0 may end in padding."""
    length = 6
    ids = torch.tensor([[11, 12, 13, 14, 15, 16, 9, 9], [21, 22, 23, 24, 25, 26, 27, 28]])[:, : 8 if padded else length]
    mask = torch.ones_like(ids)
    mask[0, length:] = 0
    changed_ids = ids.clone()
    changed_ids[:, length - 1] = 40
    states = [model(input_ids=x, attention_mask=mask).last_hidden_state[:, 0] for x in (ids, changed_ids)]
    changed = (states[0] - states[1]).abs().amax(dim=1) > 1e-4
    assert len(set(changed.tolist())) == 1
    return bool(changed[0])


def load_model(name):
    """A new model from transformers, which a test may change."""
    return AutoModel.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_config_argument_is_ignored_but_our_switch_works(name, padded, backbone):
    """A model loaded with is_causal=False in its config, the faulty variant, stays causal."""
    config = AutoConfig.from_pretrained(tiny_folder(name), is_causal=False)
    trusted = AutoModel.from_pretrained(tiny_folder(name), config=config, dtype=torch.float32).eval()
    assert not first_token_sees_last(trusted, padded)

    assert first_token_sees_last(backbone(name, "bidirectional").model, padded)
    assert not first_token_sees_last(backbone(name, "causal").model, padded)


@pytest.mark.parametrize("name", BIDIRECTIONAL)
def test_bidirectional_batch_equals_each_text_alone(
    name, backbone, texts, tokenise, encode_batch, single_states, gap, monkeypatch
):
    """Bidirectional attention reaches the padding, so the mask is required; without it the vectors are wrong."""
    model = backbone(name, "bidirectional")
    assert first_token_sees_last(model.model, False)
    assert first_token_sees_last(model.model, True)
    prompts = tokenise(model, texts)
    readings = [Reading(2, "cls"), Reading(4, "lasttoken", normed=True)]
    expected = [[single_states(model, prompt.ids)[2, 0], single_states(model, prompt.ids)[4, -1]] for prompt in prompts]
    assert gap(encode_batch(model, prompts, readings), expected) < 1e-5

    monkeypatch.setattr(Capture, "model_inputs", lambda _, batch: {"input_ids": batch.ids})
    assert gap(encode_batch(model, prompts, readings), expected) > 1e-2


@pytest.mark.parametrize("name", sorted(CAUSAL_ONLY))
def test_causal_only_family_is_refused_with_the_reason(name):
    """Setting the flag on these families has no effect and raises no error."""
    flagged = load_model(name)
    flagged.config.is_causal = False
    assert not first_token_sees_last(flagged, False)
    assert not first_token_sees_last(flagged, True)

    with pytest.raises(UnsupportedError, match=f"bidirectional.*{CAUSAL_ONLY[name]}"):
        Backbone.load(name, attention="bidirectional", device="cpu")
    Backbone.load(name, attention="causal", device="cpu")


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_model_that_ignores_the_flag_is_refused(name):
    """A forward argument that overrides the config makes a model that ignores the switch."""
    model = load_model(name)
    model.register_forward_pre_hook(lambda _, args, kwargs: (args, {**kwargs, "is_causal": True}), with_kwargs=True)
    with pytest.raises(UnsupportedError, match="although the flag is set"):
        set_attention(model, "bidirectional")
    assert model.config.is_causal is True

    model = load_model(name)
    model.register_forward_pre_hook(lambda _, args, kwargs: (args, {**kwargs, "is_causal": False}), with_kwargs=True)
    with pytest.raises(UnsupportedError, match="causal attention"):
        set_attention(model, "causal")


def causal_if(padded):
    """A forward hook that makes the model causal for padded or unpadded batches only, as shortcuts for masks did."""

    def hook(_, args, kwargs):
        has_padding = bool((kwargs["attention_mask"] == 0).any())
        return args, {**kwargs, **({"is_causal": True} if has_padding == padded else {})}

    return hook


@pytest.mark.parametrize("padded", [False, True])
def test_model_that_ignores_the_flag_if_padded_is_refused(padded):
    """A check of one kind of batch would pass; both are checked."""
    model = load_model("tiny-llama")
    model.register_forward_pre_hook(causal_if(padded), with_kwargs=True)
    model.config.is_causal = False
    assert first_token_sees_last(model, not padded)
    assert not first_token_sees_last(model, padded)
    with pytest.raises(UnsupportedError, match="one direction when a batch is padded"):
        set_attention(model, "bidirectional")


@pytest.mark.parametrize("index", range(4))
def test_single_block_that_ignores_the_flag_is_found(index):
    """At the last layer a later token still changes an earlier one, so each block is checked separately."""
    model = load_model("tiny-llama")
    model.layers[index].self_attn.register_forward_pre_hook(causal_attention, with_kwargs=True)
    model.config.is_causal = False
    assert first_token_sees_last(model, False) and first_token_sees_last(model, True)
    with pytest.raises(UnsupportedError, match=f"does not change an earlier one in layer {index + 1} although"):
        set_attention(model, "bidirectional")


@pytest.mark.parametrize("index", range(3))
def test_single_block_that_sees_ahead_is_found(index):
    """Its change may be small beside the few huge dimensions of a large model."""
    model = load_model("tiny-llama")
    model.layers[index].self_attn.register_forward_pre_hook(full_attention, with_kwargs=True)
    with pytest.raises(UnsupportedError, match=f"still changes an earlier one in layer {index + 1}"):
        set_attention(model, "bidirectional:3")


def causal_attention(_, args, kwargs):
    tokens = kwargs["hidden_states"].shape[1]
    return args, {**kwargs, "attention_mask": torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril()}


def full_attention(_, args, kwargs):
    mask = kwargs["attention_mask"]
    if mask is not None:
        mask = torch.ones_like(mask) if mask.dtype == torch.bool else torch.zeros_like(mask)
    return args, {**kwargs, "attention_mask": mask}


def test_blocks_that_reject_a_pair_mask_are_refused():
    def reject_causal_mask(_, __, kwargs):
        mask = kwargs["attention_mask"]
        if mask is not None and mask[-1, 0, 0, 1] != mask[-1, 0, 0, 0]:
            raise RuntimeError("The size of tensor a (32) must match the size of tensor b (4)")

    model = load_model("tiny-llama")
    model.config.is_causal = False
    model.layers[0].self_attn.register_forward_pre_hook(reject_causal_mask, with_kwargs=True)
    set_attention(model, "bidirectional")
    with pytest.raises(UnsupportedError, match="its blocks take no mask over pairs of tokens"):
        set_attention(model, "bidirectional:2")


def test_refused_switch_leaves_the_config_unchanged():
    """A refused model must not keep a flag that holds for half of its batches."""
    model = load_model("tiny-llama")
    model.register_forward_pre_hook(causal_if(True), with_kwargs=True)
    with pytest.raises(UnsupportedError):
        set_attention(model, "bidirectional")
    assert getattr(model.config, "is_causal", True) is True


def test_dropout_is_not_mistaken_for_attention():
    model = load_model("tiny-gpt2").train()
    model.drop.p = 0.5
    model.h[1].eval()
    for attention in ("bidirectional", "bidirectional:2", "causal"):
        set_attention(model, attention)
    assert model.training and model.h[0].training and not model.h[1].training


def test_saved_attention_is_loaded_again(tmp_path):
    """A folder whose config.json has is_causal=false loads with bidirectional attention by default."""
    loaded = Backbone.load("tiny-llama", attention="bidirectional", device="cpu")
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    reloaded = Backbone.load(tmp_path, device="cpu")
    assert reloaded.attention == "bidirectional"
    assert first_token_sees_last(reloaded.model, True)
    ids = torch.arange(20, 30).unsqueeze(0)
    with torch.inference_mode():
        states = [backbone.model(ids).last_hidden_state.numpy() for backbone in (loaded, reloaded)]
    np.testing.assert_array_equal(*states)
