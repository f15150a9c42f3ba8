"""T2: a request for bidirectional attention that is dropped without a word."""

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

ONE_WAY = {"tiny-gpt_neo": "buffer", "tiny-mamba": "left to right", "tiny-mamba2": "left to right"}
TWO_WAY = sorted(set(TINY) - set(ONE_WAY))


@torch.inference_mode()
def first_token_sees_last(model, padded):
    """Written anew: change the last real token and look at the first one; row 0 may be followed by padding."""
    length = 6
    ids = torch.tensor([[11, 12, 13, 14, 15, 16, 9, 9], [21, 22, 23, 24, 25, 26, 27, 28]])[:, : 8 if padded else length]
    mask = torch.ones_like(ids)
    mask[0, length:] = 0
    other = ids.clone()
    other[:, length - 1] = 40
    states = [model(input_ids=each, attention_mask=mask).last_hidden_state[:, 0] for each in (ids, other)]
    moved = (states[0] - states[1]).abs().amax(dim=1) > 1e-4
    assert len(set(moved.tolist())) == 1
    return bool(moved[0])


def fresh(name):
    """A model of one's own, straight from transformers, to be changed at will."""
    return AutoModel.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_config_argument_is_dropped_silently_but_our_switch_takes(name, padded, backbone):
    """Loading a config with is_causal=False and trusting it leaves the model causal."""
    config = AutoConfig.from_pretrained(tiny_folder(name), is_causal=False)
    trusted = AutoModel.from_pretrained(tiny_folder(name), config=config, dtype=torch.float32).eval()
    assert not first_token_sees_last(trusted, padded)

    assert first_token_sees_last(backbone(name, "bidirectional").model, padded)
    assert not first_token_sees_last(backbone(name, "causal").model, padded)


@pytest.mark.parametrize("name", TWO_WAY)
def test_bidirectional_batch_equals_each_text_alone(name, backbone, texts, prompts_of, read, alone, gap, monkeypatch):
    """Both directions of attention reach the padding, so the mask must be given; without it vectors are wrong."""
    model = backbone(name, "bidirectional")
    assert first_token_sees_last(model.model, False)
    assert first_token_sees_last(model.model, True)
    prompts = prompts_of(model, texts)
    wanted = [Reading(2, "cls"), Reading(4, "lasttoken", normed=True)]
    expected = [[alone(model, prompt.ids)[2, 0], alone(model, prompt.ids)[4, -1]] for prompt in prompts]
    assert gap(read(model, prompts, wanted), expected) < 1e-5

    monkeypatch.setattr(Capture, "model_inputs", lambda _, batch: {"input_ids": batch.ids})
    assert gap(read(model, prompts, wanted), expected) > 1e-2


@pytest.mark.parametrize("name", sorted(ONE_WAY))
def test_family_that_stays_causal_is_refused_with_the_reason(name):
    """Setting the flag on these has no effect and no message; it must not be believed."""
    flagged = fresh(name)
    flagged.config.is_causal = False
    assert not first_token_sees_last(flagged, False)
    assert not first_token_sees_last(flagged, True)

    with pytest.raises(UnsupportedError, match=f"bidirectional.*{ONE_WAY[name]}"):
        Backbone.load(name, attention="bidirectional", device="cpu")
    Backbone.load(name, attention="causal", device="cpu")


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_model_that_ignores_the_flag_is_refused_and_left_as_it_was(name):
    """The forward argument overrides the config, which makes a model that ignores the switch."""
    model = fresh(name)
    model.register_forward_pre_hook(lambda _, args, kwargs: (args, {**kwargs, "is_causal": True}), with_kwargs=True)
    with pytest.raises(UnsupportedError, match="although the flag is set"):
        set_attention(model, "bidirectional")
    assert model.config.is_causal is True

    model = fresh(name)
    model.register_forward_pre_hook(lambda _, args, kwargs: (args, {**kwargs, "is_causal": False}), with_kwargs=True)
    with pytest.raises(UnsupportedError, match="causal attention"):
        set_attention(model, "causal")


def only_when(padded):
    """A forward hook that makes the model causal for batches of one kind, as mask short cuts have done."""

    def hook(_, args, kwargs):
        has_padding = bool((kwargs["attention_mask"] == 0).any())
        return args, {**kwargs, **({"is_causal": True} if has_padding == padded else {})}

    return hook


@pytest.mark.parametrize("padded", [False, True])
def test_model_that_ignores_the_flag_in_one_mask_path_only_is_refused(padded):
    """A probe of one kind of batch would be content; both are asked."""
    model = fresh("tiny-llama")
    model.register_forward_pre_hook(only_when(padded), with_kwargs=True)
    model.config.is_causal = False
    assert first_token_sees_last(model, not padded)
    assert not first_token_sees_last(model, padded)
    with pytest.raises(UnsupportedError, match="one direction when a batch is padded"):
        set_attention(model, "bidirectional")


@pytest.mark.parametrize("number", range(4))
def test_one_block_that_ignores_the_flag_among_others_that_do_not_is_found(number):
    """At the top a later token moves an earlier one all the same; each block is asked by itself."""
    model = fresh("tiny-llama")
    model.layers[number].self_attn.register_forward_pre_hook(only_the_past, with_kwargs=True)
    model.config.is_causal = False
    assert first_token_sees_last(model, False) and first_token_sees_last(model, True)
    with pytest.raises(UnsupportedError, match=f"does not move an earlier one in layer {number + 1} although"):
        set_attention(model, "bidirectional")


@pytest.mark.parametrize("number", range(3))
def test_one_block_that_sees_ahead_below_the_layer_is_found(number):
    """Its own share may be small beside what stands in a few dimensions of a large model."""
    model = fresh("tiny-llama")
    model.layers[number].self_attn.register_forward_pre_hook(all_is_seen, with_kwargs=True)
    with pytest.raises(UnsupportedError, match=f"moves an earlier one in layer {number + 1} all the same"):
        set_attention(model, "bidirectional:3")


def only_the_past(_, args, kwargs):
    tokens = kwargs["hidden_states"].shape[1]
    return args, {**kwargs, "attention_mask": torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril()}


def all_is_seen(_, args, kwargs):
    mask = kwargs["attention_mask"]
    if mask is not None:
        mask = torch.ones_like(mask) if mask.dtype == torch.bool else torch.zeros_like(mask)
    return args, {**kwargs, "attention_mask": mask}


def test_blocks_that_cannot_take_a_mask_over_pairs_of_tokens_are_refused_in_words():
    def multiply(_, __, kwargs):
        mask = kwargs["attention_mask"]
        if mask is not None and mask[-1, 0, 0, 1] != mask[-1, 0, 0, 0]:
            raise RuntimeError("The size of tensor a (32) must match the size of tensor b (4)")

    model = fresh("tiny-llama")
    model.config.is_causal = False
    model.layers[0].self_attn.register_forward_pre_hook(multiply, with_kwargs=True)
    set_attention(model, "bidirectional")
    with pytest.raises(UnsupportedError, match="its blocks take no mask over pairs of tokens"):
        set_attention(model, "bidirectional:2")


def test_refusal_over_mask_paths_leaves_the_config_as_it_was():
    """A model that was refused must not go on with a flag that holds for half of its batches."""
    model = fresh("tiny-llama")
    model.register_forward_pre_hook(only_when(True), with_kwargs=True)
    with pytest.raises(UnsupportedError):
        set_attention(model, "bidirectional")
    assert getattr(model.config, "is_causal", True) is True


def test_dropout_does_not_look_like_sight():
    model = fresh("tiny-gpt2").train()
    model.drop.p = 0.5
    model.h[1].eval()
    for attention in ("bidirectional", "bidirectional:2", "causal"):
        set_attention(model, attention)
    assert model.training and model.h[0].training and not model.h[1].training


def test_saved_direction_is_taken_up_again(tmp_path):
    """A folder whose config.json says is_causal=false is read in both directions without being asked."""
    loaded = Backbone.load("tiny-llama", attention="bidirectional", device="cpu")
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    again = Backbone.load(tmp_path, device="cpu")
    assert again.attention == "bidirectional"
    assert first_token_sees_last(again.model, True)
    ids = torch.arange(20, 30).unsqueeze(0)
    with torch.inference_mode():
        states = [each.model(ids).last_hidden_state.numpy() for each in (loaded, again)]
    np.testing.assert_array_equal(*states)
