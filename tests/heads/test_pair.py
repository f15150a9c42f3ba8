"""Tests of `decoder2vec.heads.pair` against plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from decoder2vec.heads.pair import PAIR_HEADS

BLOCKS = 5


def random_head(name, blocks=BLOCKS):
    """A head with random parameters."""
    torch.manual_seed(1)
    head = PAIR_HEADS[name](blocks)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_()
    return head.requires_grad_(False)


@pytest.fixture
def cosines():
    return torch.rand(12, BLOCKS, generator=torch.Generator().manual_seed(0)) * 2 - 1


def by_hand(head, row):
    """The score of one pair, from the head's state dict."""
    state = {name: value.double().tolist() for name, value in head.state_dict().items()}
    kind = next(name for name, kind in PAIR_HEADS.items() if type(head) is kind)
    if kind == "sum":
        weights = np.exp(state["logits"]) / np.exp(state["logits"]).sum()
        return sum(weight * cosine for weight, cosine in zip(weights, row, strict=True))
    if kind == "each":
        return [sigmoid(s * c + o) for s, c, o in zip(state["slope"], row, state["offset"], strict=True)]
    prefix = "gate" if kind == "gated" else "layers"
    hidden = [gelu(v) for v in affine(state[f"{prefix}.0.weight"], row, state[f"{prefix}.0.bias"])]
    out = affine(state[f"{prefix}.2.weight"], hidden, state[f"{prefix}.2.bias"])
    if kind == "mlp":
        return sigmoid(out[0])
    distances = [(1 - c) * math.log1p(math.exp(o + b)) for c, o, b in zip(row, out, state["bias"], strict=True)]
    return 1 - sum(distances) / len(distances)


def affine(weight, row, bias):
    return [sum(w * x for w, x in zip(line, row, strict=True)) + b for line, b in zip(weight, bias, strict=True)]


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def gelu(value):
    return value * (1 + math.erf(value / math.sqrt(2))) / 2


@pytest.mark.parametrize("name", PAIR_HEADS)
def test_scores_equal_the_formula(name, cosines):
    head = random_head(name)
    expected = [by_hand(head, row) for row in cosines.tolist()]
    np.testing.assert_allclose(head(cosines), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PAIR_HEADS)
def test_table_of_pairs_is_scored_pair_by_pair(name):
    """[n, m, block] with m equal to the number of blocks, so that a sum over the wrong axis is noticed."""
    head = random_head(name)
    table = torch.rand(4, BLOCKS, BLOCKS) * 2 - 1
    expected = torch.stack([torch.stack([head(pair[None])[0] for pair in row]) for row in table])
    torch.testing.assert_close(head(table), expected)


@pytest.mark.parametrize("name", ["sum", "gated"])
@pytest.mark.parametrize("blocks", [1, 3, 24, 30])
def test_cosines_of_one_score_exactly_one(name, blocks):
    assert (random_head(name, blocks)(torch.ones(3, blocks)) == 1).all()


@pytest.mark.parametrize("name", ["mlp", "each"])
def test_scores_of_sigmoid_heads_are_between_0_and_1(name, cosines):
    scores = random_head(name)(cosines)
    assert ((scores > 0) & (scores < 1)).all()


def test_gated_head_scores_at_most_one(cosines):
    assert (random_head("gated")(cosines) < 1).all()


@pytest.mark.parametrize("name", PAIR_HEADS)
def test_weights_are_positive_and_sum_to_one(name):
    weights = random_head(name).weights()
    assert weights.shape == (BLOCKS,)
    assert (weights > 0).all()
    assert weights.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("name", ["mlp", "gated", "each"])
def test_heads_without_weights_weight_blocks_equally(name):
    np.testing.assert_allclose(random_head(name).weights(), [1 / BLOCKS] * BLOCKS)


def test_contributions_of_sum_add_up_to_the_score(cosines):
    head = random_head("sum")
    torch.testing.assert_close(head.contributions(cosines).sum(dim=1), head(cosines))


def test_contributions_of_gated_add_up_to_score_minus_1(cosines):
    head = random_head("gated")
    contributions = head.contributions(cosines)
    assert (contributions <= 0).all()
    torch.testing.assert_close(1 + contributions.sum(dim=1), head(cosines))


def test_contribution_of_mlp_is_the_loss_without_the_block(cosines):
    head = random_head("mlp")
    contributions = head.contributions(cosines)
    for pair, row in enumerate(cosines.tolist()):
        for block in range(BLOCKS):
            others = row[:block] + row[block + 1 :]
            without = [*row[:block], sum(others) / len(others), *row[block + 1 :]]
            assert contributions[pair, block].item() == pytest.approx(
                by_hand(head, row) - by_hand(head, without), abs=1e-5
            )


def test_redundant_block_contributes_nothing_to_the_mlp():
    assert random_head("mlp").contributions(torch.full((2, BLOCKS), 0.3)).abs().max().item() < 1e-6


def test_contributions_of_each_are_the_scores_of_blocks(cosines):
    head = random_head("each")
    np.testing.assert_allclose(head.contributions(cosines), [by_hand(head, row) for row in cosines.tolist()], rtol=1e-5)


@pytest.mark.parametrize("name", ["sum", "each"])
def test_untrained_heads_increase_with_the_cosine(name):
    head = PAIR_HEADS[name](BLOCKS).requires_grad_(False)
    scores = head(torch.linspace(-1, 1, 9)[:, None].expand(-1, BLOCKS)).reshape(9, -1)
    assert (scores.diff(dim=0) > 0).all()
