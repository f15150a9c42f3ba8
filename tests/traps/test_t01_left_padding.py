"""T1: absolute positions that ignore the mask make a left-padded batch wrong."""

import pytest

from decoder2vec.activations import capture
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder

EXACT = 1e-5
LAYERS = [Reading(0, "lasttoken"), Reading(2, "lasttoken"), Reading(4, "lasttoken", normed=True)]


def last_tokens(alone, model, prompts):
    return [[alone(model, prompt.ids)[reading.layer, -1] for reading in LAYERS] for prompt in prompts]


@pytest.mark.parametrize("name", sorted(TINY))
def test_right_padded_batch_equals_each_text_alone(name, backbone, texts, prompts_of, read, alone, gap):
    """Right padding needs no positions and no mask in any causal family."""
    model = backbone(name)
    prompts = prompts_of(model, texts)
    assert len({len(prompt.ids) for prompt in prompts}) > 1
    assert gap(read(model, prompts, LAYERS), last_tokens(alone, model, prompts)) < EXACT


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-gpt_neo"])
def test_left_padding_is_right_only_with_positions_from_the_mask(
    name, backbone, texts, prompts_of, read, alone, gap, monkeypatch
):
    """The same check fails by a wide margin once the positions are left to the model."""
    model = backbone(name)
    prompts = prompts_of(model, texts)
    expected = last_tokens(alone, model, prompts)
    assert gap(read(model, prompts, LAYERS, side="left"), expected) < EXACT

    monkeypatch.setattr(capture, "_accepts_position_ids", lambda _: False)
    assert gap(read(model, prompts, LAYERS, side="left"), expected) > 0.1
    assert gap(read(model, prompts, LAYERS, side="right"), expected) < EXACT


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-gpt_neo"])
def test_encoder_pads_so_that_batch_mates_do_not_matter(name, backbone, texts, gap, monkeypatch):
    """What users call: the vector of a text in a batch is the vector of the text alone."""
    encoder = Encoder.from_pretrained(name, template="plain", pooling="mean", device="cpu")
    single = [encoder.encode(text) for text in texts]
    assert gap(encoder.encode(texts), single) < EXACT

    from decoder2vec.activations import extract as shared_prefix

    right = shared_prefix.collate
    monkeypatch.setattr(
        shared_prefix, "collate", lambda prompts, pad_token_id: right(prompts, pad_token_id, side="left")
    )
    monkeypatch.setattr(capture, "_accepts_position_ids", lambda _: False)
    assert gap(encoder.encode(texts), single) > 0.1
