"""T4: a text without tokens, whose vector must not be computed from padding."""

import numpy as np
import pytest
import torch

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.text.template import TEMPLATES

LONG = "A long, slow rise in the fridge gives sourdough its tangy flavour."
BOS = 1


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-qwen3", "tiny-mamba"])
def test_empty_text_is_one_token_in_any_batch(name, backbone, single_states, gap):
    """Whether or not the tokenizer adds BOS, the vector is the state of a single BOS token."""
    spec = EncoderSpec(name, tuple(Reading(-1, pooling, True) for pooling in POOLINGS), template="{text}")
    encoder = Encoder(backbone(name), spec)
    expected = np.tile(single_states(backbone(name), [BOS])[-1, 0], len(POOLINGS))
    assert gap(encoder.encode(""), expected) < 1e-5
    for batch in (["", "Short one."], [LONG, ""], ["", LONG, ""]):
        assert gap(encoder.encode(batch)[batch.index("")], expected) < 1e-5
    np.testing.assert_array_equal(encoder.encode(""), encoder.encode(""))


@pytest.mark.parametrize("template", sorted(TEMPLATES))
@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-gemma3_text"])
def test_blank_text_in_a_template_ignores_the_batch(name, template, backbone, gap):
    """If the text has no token to pool, the last token of the prompt is pooled."""
    readings = tuple(Reading(-1, pooling) for pooling in POOLINGS)
    encoder = Encoder(backbone(name), EncoderSpec(name, readings, template=TEMPLATES[template]))
    for text in ("", " ", "\n"):
        single = encoder.encode(text)
        assert np.isfinite(single).all() and np.abs(single).max() > 0
        assert gap(encoder.encode([LONG, text])[1], single) < 1e-5


def test_slicing_by_length_zero_pools_the_padding(backbone):
    """The faulty variant: states[-length:] with length 0 is the whole row, so it depends on the longest text."""
    model = backbone("tiny-gpt2")

    @torch.inference_mode()
    def faulty(batch):
        rows = [model.tokenizer.encode(text) for text in batch]
        width = max(map(len, rows))
        ids = torch.tensor([[model.pad_token_id] * (width - len(row)) + row for row in rows])
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state
        return np.stack([states[i, -len(row) :].mean(dim=0).numpy() for i, row in enumerate(rows)])

    short, long = faulty(["", "Short one."])[0], faulty(["", LONG])[0]
    assert np.abs(short - long).max() > 0.1


@torch.inference_mode()
def test_mean_over_no_tokens_is_nan(backbone):
    """Another faulty variant: a masked mean over no tokens."""
    model = backbone("tiny-gpt2")
    batch = model.tokenizer(["", LONG], padding=False)["input_ids"]
    width = max(map(len, batch))
    ids = torch.tensor([row + [model.pad_token_id] * (width - len(row)) for row in batch])
    mask = torch.tensor([[1.0] * len(row) + [0.0] * (width - len(row)) for row in batch])
    states = model.model(input_ids=ids, use_cache=False).last_hidden_state
    faulty = (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
    assert faulty[0].isnan().all() and faulty[1].isfinite().all()
    assert np.isfinite(
        Encoder.from_pretrained("tiny-gpt2", template="plain", pooling="mean", device="cpu").encode(["", LONG])
    ).all()
