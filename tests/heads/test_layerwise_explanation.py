"""Tests of `explain_pair`: contributions of readings against the score of the head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.layerwise import LayerwiseHead, explain_pair
from decoder2vec.heads.standardise import AffineHead

DIM, WIDTHS = 6, (4, 3, 4)
READINGS = tuple(Reading(layer) for layer in (2, 5, 9))


def random_head(**choices):
    torch.manual_seed(0)
    net = CodeNet(CodeSpec(**{"dim": DIM, "widths": WIDTHS, **choices}))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
    return LayerwiseHead(net, Calibration((-1.0, 0.0, 1.0), (0.0, 0.2, 1.0)))


def latents(count=2):
    return np.random.default_rng(0).normal(size=(count, len(WIDTHS) * DIM)).astype(np.float32)


def explain(head):
    return explain_pair(head, READINGS, head(latents()))


@pytest.mark.parametrize("name", ["sum", "gated", "mlp", "each"])
def test_each_reading_has_a_cosine_and_a_contribution(name):
    head = random_head(head=name)
    explanation = explain(head)
    assert explanation.readings == READINGS
    left, right = torch.from_numpy(latents()).reshape(2, 3, 1, DIM)
    np.testing.assert_allclose(explanation.cosines, head.net.pair_cosines(left, right)[0], atol=1e-5)
    assert len(explanation.contributions) == len(READINGS)


@pytest.mark.parametrize("name", ["sum", "gated", "mlp", "each"])
def test_similarity_and_score_equal_those_of_the_head(name):
    head = random_head(head=name)
    explanation = explain(head)
    left, right = torch.from_numpy(head(latents())).split(1)
    assert explanation.similarity == pytest.approx(head.similarity(left, right).item(), abs=1e-6)
    assert explanation.score == pytest.approx(np.interp(explanation.similarity, [-1, 0, 1], [0, 0.2, 1]), abs=2e-3)
    assert 0 <= explanation.score <= 1


def test_contributions_of_sum_add_up_to_the_similarity():
    explanation = explain(random_head(head="sum"))
    assert sum(explanation.contributions) == pytest.approx(explanation.similarity, abs=1e-6)


def test_contributions_of_gated_add_up_to_similarity_minus_1():
    explanation = explain(random_head(head="gated"))
    assert sum(explanation.contributions) == pytest.approx(explanation.similarity - 1, abs=1e-5)


def test_mean_contribution_of_each_is_the_similarity():
    explanation = explain(random_head(head="each"))
    assert np.mean(explanation.contributions) == pytest.approx(explanation.similarity, abs=1e-6)


def test_contribution_of_mlp_is_the_loss_without_the_layer():
    head = random_head(head="mlp")
    explanation = explain(head)
    for block, contribution in enumerate(explanation.contributions):
        cosines = list(explanation.cosines)
        others = cosines[:block] + cosines[block + 1 :]
        cosines[block] = sum(others) / len(others)
        without = head.net.pair(torch.tensor([cosines])).item()
        assert contribution == pytest.approx(explanation.similarity - without, abs=1e-6)


@pytest.mark.parametrize("name", ["sum", "gated"])
def test_equal_texts_have_cosines_of_one(name):
    head = random_head(head=name)
    explanation = explain_pair(head, READINGS, head(latents()[[0, 0]]))
    assert explanation.cosines == (1.0, 1.0, 1.0)
    assert explanation.similarity == explanation.score == 1
    assert sum(explanation.contributions) == pytest.approx(1 if name == "sum" else 0)


def no_head():
    return None


def affine_head():
    return AffineHead.fit("standardise", latents(5))


def unified_head():
    return random_head(mixing="unified", mixed_width=4)


def attention_head():
    return random_head(widths=(4,) * 3, mixing="attention_codes", mixed_width=3)


def reduced_head():
    head = random_head()
    return head.reduce_dim(head(latents(9)), 4)


@pytest.mark.parametrize("head", [no_head, affine_head, unified_head, attention_head, reduced_head])
def test_heads_without_a_block_per_layer_are_refused(head):
    with pytest.raises(UnsupportedError, match="d2v train"):
        explain_pair(head(), READINGS, np.ones((2, 4), np.float32))
