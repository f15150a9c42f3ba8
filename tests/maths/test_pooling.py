"""Each pooling against a plain loop and against sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from decoder2vec.maths.pooling import POOLINGS, pool

SPANS = {
    "right padding": ([0, 0, 0, 0], [9, 4, 1, 6]),
    "left padding": ([0, 5, 8, 3], [9, 9, 9, 9]),
    "prefix and padding": ([2, 1, 7, 0], [8, 2, 9, 9]),
}


def by_hand(states, start, end, pooling):
    rows = []
    for row, first, last in zip(states.double().tolist(), start, end, strict=True):
        span = row[first:last]
        if pooling == "lasttoken":
            rows.append(span[-1])
        elif pooling == "cls":
            rows.append(span[0])
        elif pooling == "max":
            rows.append([max(column) for column in zip(*span, strict=True)])
        else:
            weights = [rank + 1 if pooling == "weightedmean" else 1 for rank in range(len(span))]
            whole = 1 if pooling == "sum" else sum(weights)
            columns = zip(*span, strict=True)
            rows.append([sum(w * x for w, x in zip(weights, column, strict=True)) / whole for column in columns])
    return np.array(rows)


@pytest.fixture(scope="module")
def states():
    return torch.randn(4, 9, 6, generator=torch.Generator().manual_seed(0))


def test_the_poolings_are_the_six_that_are_checked_here():
    assert set(POOLINGS) == {"lasttoken", "mean", "weightedmean", "max", "cls", "sum"}


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_equals_a_plain_loop(states, pooling, spans):
    start, end = SPANS[spans]
    found = pool(states, torch.tensor(start), torch.tensor(end), [pooling])
    assert found.shape == (4, 1, 6)
    np.testing.assert_allclose(found[:, 0], by_hand(states, start, end, pooling), rtol=1e-5, atol=1e-6)


def test_all_poolings_together_come_back_in_the_order_asked(states):
    start, end = SPANS["prefix and padding"]
    asked = ["sum", "cls", "mean", "max", "lasttoken", "weightedmean", "mean"]
    found = pool(states, torch.tensor(start), torch.tensor(end), asked)
    for column, name in enumerate(asked):
        np.testing.assert_allclose(found[:, column], by_hand(states, start, end, name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_what_lies_outside_the_span_does_not_count(states, pooling):
    start, end = SPANS["prefix and padding"]
    spoilt = states.clone()
    for row, (first, last) in enumerate(zip(start, end, strict=True)):
        spoilt[row, :first] = 1e30
        spoilt[row, last:] = -1e30
    bounds = torch.tensor(start), torch.tensor(end)
    torch.testing.assert_close(pool(spoilt, *bounds, [pooling]), pool(states, *bounds, [pooling]))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_one_token_is_its_own_vector_under_every_pooling(states, pooling):
    found = pool(states, torch.full((4,), 3), torch.full((4,), 4), [pooling])
    torch.testing.assert_close(found[:, 0], states[:, 3])


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_16_bit_states_are_made_in_float32(pooling, dtype):
    long = (1 + torch.rand(2, 3000, 4, generator=torch.Generator().manual_seed(1))).to(dtype)
    start, end = [0, 10], [3000, 2990]
    found = pool(long, torch.tensor(start), torch.tensor(end), [pooling])
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found[:, 0], by_hand(long, start, end, pooling), rtol=1e-5)


def test_a_sum_of_bfloat16_ones_does_not_stop_growing_at_256():
    ones = torch.ones(1, 4096, 1, dtype=torch.bfloat16)
    found = pool(ones, torch.tensor([0]), torch.tensor([4096]), ["sum"])
    assert found.item() == 4096.0


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("pooling", ["mean", "weightedmean", "max", "cls", "lasttoken"])
def test_pooling_equals_sentence_transformers(states, pooling, side):
    start, end = {"none": ([0] * 4, [9] * 4), "right": SPANS["right padding"], "left": SPANS["left padding"]}[side]
    mask = torch.zeros(4, 9, dtype=torch.int64)
    for row, (first, last) in enumerate(zip(start, end, strict=True)):
        mask[row, first:last] = 1
    theirs = Pooling(6, pooling)({"token_embeddings": states, "attention_mask": mask})["sentence_embedding"]
    ours = pool(states, torch.tensor(start), torch.tensor(end), [pooling])[:, 0]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
