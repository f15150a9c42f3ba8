"""Each pooling against a plain loop and against sentence-transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from decoder2vec.maths.pooling import POOLINGS, ChunkPooler, pool

SPANS = {
    "right padding": ([0, 0, 0, 0], [9, 4, 1, 6]),
    "left padding": ([0, 5, 8, 3], [9, 9, 9, 9]),
    "prefix and padding": ([2, 1, 7, 0], [8, 2, 9, 9]),
}


def pool_by_loop(states, start, end, pooling):
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
            total = 1 if pooling == "sum" else sum(weights)
            columns = zip(*span, strict=True)
            rows.append([sum(w * x for w, x in zip(weights, column, strict=True)) / total for column in columns])
    return np.array(rows)


@pytest.fixture(scope="module")
def states():
    return torch.randn(4, 9, 6, generator=torch.Generator().manual_seed(0))


def test_all_poolings_are_tested_here():
    assert set(POOLINGS) == {"lasttoken", "mean", "weightedmean", "max", "cls", "sum"}


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_equals_a_plain_loop(states, pooling, spans):
    start, end = SPANS[spans]
    pooled = pool(states, torch.tensor(start), torch.tensor(end), [pooling])
    assert pooled.shape == (4, 1, 6)
    np.testing.assert_allclose(pooled[:, 0], pool_by_loop(states, start, end, pooling), rtol=1e-5, atol=1e-6)


def test_several_poolings_come_back_in_the_requested_order(states):
    start, end = SPANS["prefix and padding"]
    requested = ["sum", "cls", "mean", "max", "lasttoken", "weightedmean", "mean"]
    pooled = pool(states, torch.tensor(start), torch.tensor(end), requested)
    for column, name in enumerate(requested):
        np.testing.assert_allclose(pooled[:, column], pool_by_loop(states, start, end, name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_positions_outside_the_span_do_not_count(states, pooling):
    start, end = SPANS["prefix and padding"]
    corrupted = states.clone()
    for row, (first, last) in enumerate(zip(start, end, strict=True)):
        corrupted[row, :first] = 1e30
        corrupted[row, last:] = -1e30
    bounds = torch.tensor(start), torch.tensor(end)
    torch.testing.assert_close(pool(corrupted, *bounds, [pooling]), pool(states, *bounds, [pooling]))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_one_token_returns_its_state(states, pooling):
    pooled = pool(states, torch.full((4,), 3), torch.full((4,), 4), [pooling])
    torch.testing.assert_close(pooled[:, 0], states[:, 3])


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_states_are_pooled_in_float32(pooling, dtype):
    long_texts = (1 + torch.rand(2, 3000, 4, generator=torch.Generator().manual_seed(1))).to(dtype)
    start, end = [0, 10], [3000, 2990]
    pooled = pool(long_texts, torch.tensor(start), torch.tensor(end), [pooling])
    assert pooled.dtype == torch.float32
    np.testing.assert_allclose(pooled[:, 0], pool_by_loop(long_texts, start, end, pooling), rtol=1e-5)


def test_sum_of_bfloat16_ones_does_not_saturate_at_256():
    ones = torch.ones(1, 4096, 1, dtype=torch.bfloat16)
    pooled = pool(ones, torch.tensor([0]), torch.tensor([4096]), ["sum"])
    assert pooled.item() == 4096.0


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


def test_chunks_are_pooled_like_spans_of_single_rows():
    states = torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(0))
    rows, start, end = torch.tensor([2, 0, 2, 1]), torch.tensor([0, 3, 2, 6]), torch.tensor([7, 5, 3, 7])
    spans = list(zip(rows.tolist(), start.tolist(), end.tolist(), strict=True))
    row_of, position = torch.tensor([(row, place) for row, begin, after in spans for place in range(begin, after)]).T
    boundaries = torch.tensor([0, *(end - start).tolist()]).cumsum(0)
    expected = pool(states[rows], start, end, POOLINGS)
    torch.testing.assert_close(ChunkPooler(row_of, position, boundaries, POOLINGS)(states), expected)
