"""T1: absolute positions that ignore the mask make the vectors of a left-padded batch wrong."""

import pytest

from decoder2vec.activations import capture
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder

EXACT = 1e-5
LAYERS = [Reading(0, "lasttoken"), Reading(2, "lasttoken"), Reading(4, "lasttoken", normed=True)]


def last_tokens(single_states, model, prompts):
    return [[single_states(model, prompt.ids)[reading.layer, -1] for reading in LAYERS] for prompt in prompts]


@pytest.mark.parametrize("name", sorted(TINY))
def test_right_padded_batch_equals_each_text_alone(name, backbone, texts, tokenise, encode_batch, single_states, gap):
    """Right padding needs no positions and no mask in any causal family."""
    model = backbone(name)
    prompts = tokenise(model, texts)
    assert len({len(prompt.ids) for prompt in prompts}) > 1
    assert gap(encode_batch(model, prompts, LAYERS), last_tokens(single_states, model, prompts)) < EXACT


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-gpt_neo"])
def test_left_padding_needs_positions_from_the_mask(
    name, backbone, texts, tokenise, encode_batch, single_states, gap, monkeypatch
):
    """The same check fails by a wide margin if the model chooses the positions."""
    model = backbone(name)
    prompts = tokenise(model, texts)
    expected = last_tokens(single_states, model, prompts)
    assert gap(encode_batch(model, prompts, LAYERS, side="left"), expected) < EXACT

    monkeypatch.setattr(capture, "_accepts_position_ids", lambda _: False)
    assert gap(encode_batch(model, prompts, LAYERS, side="left"), expected) > 0.1
    assert gap(encode_batch(model, prompts, LAYERS, side="right"), expected) < EXACT


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-gpt_neo"])
def test_encoder_vector_does_not_depend_on_the_batch(name, backbone, texts, gap, monkeypatch):
    """The public API: the vector of a text in a batch is the vector of the text alone."""
    encoder = Encoder.from_pretrained(name, template="plain", pooling="mean", device="cpu")
    single = [encoder.encode(text) for text in texts]
    assert gap(encoder.encode(texts), single) < EXACT

    from decoder2vec.activations import extract

    collate = extract.collate
    monkeypatch.setattr(extract, "collate", lambda prompts, pad_token_id: collate(prompts, pad_token_id, side="left"))
    monkeypatch.setattr(capture, "_accepts_position_ids", lambda _: False)
    assert gap(encoder.encode(texts), single) > 0.1
