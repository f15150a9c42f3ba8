"""T32: a state-space model carries padding on its left along into the text."""

import numpy as np
import pytest
import torch

from decoder2vec.activations import extract as shared_prefix
from decoder2vec.activations.capture import Capture
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.text.batches import collate

FAMILIES = ["tiny-mamba", "tiny-mamba2"]


@pytest.fixture(scope="module")
def texts():
    """Shorter than elsewhere: these models run token by token here."""
    return ["A slow rise in the fridge", "Short one.", "Bread"]


@pytest.mark.parametrize("family", FAMILIES)
def test_right_padding_is_exact_without_a_mask(family, backbone, texts, prompts_of, read, alone, by_loop, gap):
    """What follows a token cannot reach it, so no mask is handed over and none is needed."""
    model = backbone(family)
    prompts = prompts_of(model, texts)
    capture, batch = Capture(model, [Reading(-1)]), collate(prompts, model.pad_token_id)
    assert batch.padding == "right" and set(capture.model_inputs(batch)) == {"input_ids"}
    states = [alone(model, prompt.ids)[-1] for prompt in prompts]
    found = read(model, prompts, [Reading(-1, name, True) for name in POOLINGS])
    for column, name in enumerate(POOLINGS):
        assert gap(found[:, column], [by_loop(name, each) for each in states]) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padding_without_a_mask_is_wrong(
    family, backbone, texts, prompts_of, read, alone, by_loop, gap, monkeypatch
):
    """The faulty way: pads on the left and nothing that says so; with the mask it is right."""
    model = backbone(family)
    prompts = prompts_of(model, texts)
    expected = np.stack([by_loop("lasttoken", alone(model, prompt.ids)[-1])[None] for prompt in prompts])
    wanted = [Reading(-1, "lasttoken", True)]
    assert gap(read(model, prompts, wanted, "left"), expected) < 1e-5

    monkeypatch.setattr(Capture, "model_inputs", lambda _, batch: {"input_ids": batch.ids})
    assert gap(read(model, prompts, wanted, "left"), expected) > 1e-2
    assert gap(read(model, prompts, wanted, "right"), expected) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_gives_the_same_vector_alone_and_in_a_batch(family, texts, gap, monkeypatch):
    """What users call, at every batch size; left-padded batches without a mask, the faulty way, are seen at once."""
    encoder = Encoder.from_pretrained(family, template="plain", pooling="mean", device="cpu")
    single = np.stack([encoder.encode(text) for text in texts])
    for size in (1, 2, 64):
        assert gap(encoder.encode(texts, batch_size=size), single) < 1e-5

    monkeypatch.setattr(
        shared_prefix, "collate", lambda prompts, pad_token_id: collate(prompts, pad_token_id, side="left")
    )
    monkeypatch.setattr(Capture, "model_inputs", lambda _, batch: {"input_ids": batch.ids})
    assert gap(encoder.encode(texts), single) > 1e-2


@torch.inference_mode()
def test_the_pad_token_chosen_does_not_matter(backbone, texts, prompts_of, gap):
    """If padding reached the text, another pad token would give another vector."""
    model = backbone("tiny-mamba")
    prompts = prompts_of(model, texts)
    for side, mask, same in (("right", False, True), ("left", False, False), ("left", True, True)):
        found = []
        for pad in (0, 77):
            batch = collate(prompts, pad, side=side)
            given = {"attention_mask": batch.mask} if mask else {}
            states = model.model(input_ids=batch.ids, use_cache=False, **given).last_hidden_state
            found.append(states[torch.arange(len(prompts)), batch.end - 1])
        assert (gap(*found) < 1e-5) == same
