"""T6 and T7: pooling weights counted from the start of the row, and a first token that is padding."""

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from decoder2vec.config import Reading
from decoder2vec.maths import pooling
from decoder2vec.maths.pooling import POOLINGS, pool

FAMILIES = ["tiny-gpt2", "tiny-llama"]


def expected_vectors(single_states, pool_by_loop, model, prompts, name):
    return np.stack([pool_by_loop(name, single_states(model, prompt.ids)[-1])[None] for prompt in prompts])


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_side_does_not_change_a_pooled_vector(
    family, name, backbone, texts, tokenise, encode_batch, single_states, pool_by_loop, gap
):
    """Every pooling, padded on either side, equals that of the unpadded text."""
    model = backbone(family)
    prompts = tokenise(model, texts)
    expected = expected_vectors(single_states, pool_by_loop, model, prompts, name)
    for side in ("right", "left"):
        assert gap(encode_batch(model, prompts, [Reading(-1, name, True)], side), expected) < 1e-5


@pytest.mark.parametrize("name", ["weightedmean", "mean", "max", "cls", "lasttoken"])
def test_pooling_equals_sentence_transformers(name, gap):
    """On the same states and mask, padded on the left or on the right."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3, 7, 5, generator=generator)
    pooling_module = Pooling(embedding_dimension=5, pooling_mode=name)
    for shifts in ((0, 0, 0), (0, 3, 5)):
        ends = torch.tensor([7, 7, 7]) if any(shifts) else torch.tensor([7, 4, 2])
        starts, position = torch.tensor(shifts), torch.arange(7)
        mask = ((position >= starts[:, None]) & (position < ends[:, None])).long()
        expected = pooling_module({"token_embeddings": states, "attention_mask": mask})["sentence_embedding"]
        assert gap(pool(states, starts, ends, [name])[:, 0], expected) < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_by_absolute_position_are_detected(
    family, backbone, texts, tokenise, encode_batch, single_states, pool_by_loop, gap, monkeypatch
):
    """T6, the faulty variant: the first real token after three pads has weight 4 instead of 1."""

    def faulty(name, width, start, end):
        weights = pooling._inside_span(width, start, end).float() * torch.arange(1, width + 1)
        return weights / weights.sum(dim=1, keepdim=True)

    model = backbone(family)
    prompts = tokenise(model, texts)
    expected = expected_vectors(single_states, pool_by_loop, model, prompts, "weightedmean")
    monkeypatch.setattr(pooling, "_weights", faulty)
    readings = [Reading(-1, "weightedmean", True)]
    assert gap(encode_batch(model, prompts, readings, "right"), expected) < 1e-5  # invisible with right padding
    assert gap(encode_batch(model, prompts, readings, "left"), expected) > 1e-2


def test_cls_of_a_left_padded_row_is_not_padding(backbone, texts, tokenise, encode_batch, single_states, gap):
    """T7, the faulty variant: position 0 of the row is padding."""
    model = backbone("tiny-llama")
    prompts = tokenise(model, texts)
    expected = np.stack([single_states(model, prompt.ids)[-1, 0] for prompt in prompts])
    width = max(len(prompt.ids) for prompt in prompts)
    rows = [[model.pad_token_id] * (width - len(prompt.ids)) + prompt.ids for prompt in prompts]
    mask = [[0] * (width - len(prompt.ids)) + [1] * len(prompt.ids) for prompt in prompts]
    with torch.inference_mode():
        states = model.model(input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask)).last_hidden_state
    assert gap(states[:, 0], expected) > 0.1
    assert gap(encode_batch(model, prompts, [Reading(-1, "cls", True)], "left")[:, 0], expected) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["mean", "weightedmean", "sum"])
def test_16_bit_states_are_summed_in_float32(name, dtype, pool_by_loop, gap):
    """T6, second part: a sum of 2000 tokens in the dtype of the states loses most digits."""
    states = (torch.randn(1, 2000, 4, generator=torch.Generator().manual_seed(0)) + 3).to(dtype)
    expected = pool_by_loop(name, states[0].double())
    ours = pool(states, torch.tensor([0]), torch.tensor([2000]), [name])
    assert ours.dtype == torch.float32
    assert gap(ours[0, 0], expected) < 1e-5

    weights = torch.arange(1, 2001) if name == "weightedmean" else torch.ones(2000)
    total = torch.zeros(4, dtype=dtype)
    for weight, state in zip(weights.to(dtype), states[0], strict=True):
        total = total + weight * state
    faulty = total if name == "sum" else total / weights.sum().to(dtype)
    assert gap(faulty.float(), expected) > 1e-3
