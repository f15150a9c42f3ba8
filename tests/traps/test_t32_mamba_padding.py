"""T32: a state-space model carries padding on the left into the text."""

import numpy as np
import pytest
import torch

from decoder2vec.activations import extract
from decoder2vec.activations.capture import Capture
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.text.batches import collate

FAMILIES = ["tiny-mamba", "tiny-mamba2"]


@pytest.fixture(scope="module")
def texts():
    """Shorter texts than in the other traps: these models run token by token."""
    return ["A slow rise in the fridge", "Short one.", "Bread"]


@pytest.mark.parametrize("family", FAMILIES)
def test_right_padding_is_exact_without_a_mask(
    family, backbone, texts, tokenise, encode_batch, single_states, pool_by_loop, gap
):
    """Later tokens do not affect earlier ones, so no mask is passed and none is needed."""
    model = backbone(family)
    prompts = tokenise(model, texts)
    capture, batch = Capture(model, [Reading(-1)]), collate(prompts, model.pad_token_id)
    assert batch.padding == "right" and set(capture.model_inputs(batch)) == {"input_ids"}
    states = [single_states(model, prompt.ids)[-1] for prompt in prompts]
    vectors = encode_batch(model, prompts, [Reading(-1, name, True) for name in POOLINGS])
    for column, name in enumerate(POOLINGS):
        assert gap(vectors[:, column], [pool_by_loop(name, tokens) for tokens in states]) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padding_without_a_mask_is_wrong(
    family, backbone, texts, tokenise, encode_batch, single_states, pool_by_loop, gap, monkeypatch
):
    """The faulty variant: padding on the left and no mask; with the mask it is correct."""
    model = backbone(family)
    prompts = tokenise(model, texts)
    expected = np.stack([pool_by_loop("lasttoken", single_states(model, prompt.ids)[-1])[None] for prompt in prompts])
    readings = [Reading(-1, "lasttoken", True)]
    assert gap(encode_batch(model, prompts, readings, "left"), expected) < 1e-5

    monkeypatch.setattr(Capture, "model_inputs", lambda _, batch: {"input_ids": batch.ids})
    assert gap(encode_batch(model, prompts, readings, "left"), expected) > 1e-2
    assert gap(encode_batch(model, prompts, readings, "right"), expected) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_vector_does_not_depend_on_the_batch(family, texts, gap, monkeypatch):
    """The public API, at every batch size; left padding without a mask, the faulty variant, is detected."""
    encoder = Encoder.from_pretrained(family, template="plain", pooling="mean", device="cpu")
    single = np.stack([encoder.encode(text) for text in texts])
    for size in (1, 2, 64):
        assert gap(encoder.encode(texts, batch_size=size), single) < 1e-5

    monkeypatch.setattr(extract, "collate", lambda prompts, pad_token_id: collate(prompts, pad_token_id, side="left"))
    monkeypatch.setattr(Capture, "model_inputs", lambda _, batch: {"input_ids": batch.ids})
    assert gap(encoder.encode(texts), single) > 1e-2


@torch.inference_mode()
def test_pad_token_does_not_change_a_vector(backbone, texts, tokenise, gap):
    """If padding affected the text, another pad token would give another vector."""
    model = backbone("tiny-mamba")
    prompts = tokenise(model, texts)
    for side, mask, same in (("right", False, True), ("left", False, False), ("left", True, True)):
        vectors = []
        for pad in (0, 77):
            batch = collate(prompts, pad, side=side)
            inputs = {"attention_mask": batch.mask} if mask else {}
            states = model.model(input_ids=batch.ids, use_cache=False, **inputs).last_hidden_state
            vectors.append(states[torch.arange(len(prompts)), batch.end - 1])
        assert (gap(*vectors) < 1e-5) == same
