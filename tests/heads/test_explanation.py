"""Explanations of a pair: the parts against the whole."""

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


def made(**choices):
    torch.manual_seed(0)
    net = CodeNet(CodeSpec(**{"dim": DIM, "widths": WIDTHS, **choices}))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
    return LayerwiseHead(net, Calibration((-1.0, 0.0, 1.0), (0.0, 0.2, 1.0)))


def latents(count=2):
    return np.random.default_rng(0).normal(size=(count, len(WIDTHS) * DIM)).astype(np.float32)


def explained(head):
    return explain_pair(head, READINGS, head(latents()))


@pytest.mark.parametrize("name", ["sum", "gated", "mlp", "each"])
def test_there_is_a_cosine_and_a_contribution_for_each_reading(name):
    head = made(head=name)
    found = explained(head)
    assert found.readings == READINGS
    left, right = torch.from_numpy(latents()).reshape(2, 3, 1, DIM)
    np.testing.assert_allclose(found.cosines, head.net.pair_cosines(left, right)[0], atol=1e-5)
    assert len(found.contributions) == len(READINGS)


@pytest.mark.parametrize("name", ["sum", "gated", "mlp", "each"])
def test_similarity_and_score_are_those_of_the_head(name):
    head = made(head=name)
    found = explained(head)
    one, other = torch.from_numpy(head(latents())).split(1)
    assert found.similarity == pytest.approx(head.similarity(one, other).item(), abs=1e-6)
    assert found.score == pytest.approx(np.interp(found.similarity, [-1, 0, 1], [0, 0.2, 1]), abs=2e-3)
    assert 0 <= found.score <= 1


def test_under_the_head_sum_the_contributions_add_up_to_the_similarity():
    found = explained(made(head="sum"))
    assert sum(found.contributions) == pytest.approx(found.similarity, abs=1e-6)


def test_under_the_gated_head_the_contributions_add_up_to_the_similarity_less_one():
    found = explained(made(head="gated"))
    assert sum(found.contributions) == pytest.approx(found.similarity - 1, abs=1e-5)


def test_under_the_head_each_the_contributions_are_scores_whose_mean_is_the_similarity():
    found = explained(made(head="each"))
    assert np.mean(found.contributions) == pytest.approx(found.similarity, abs=1e-6)


def test_under_the_mlp_a_contribution_is_what_is_lost_if_the_layer_repeats_the_others():
    head = made(head="mlp")
    found = explained(head)
    for block, contribution in enumerate(found.contributions):
        cosines = list(found.cosines)
        others = cosines[:block] + cosines[block + 1 :]
        cosines[block] = sum(others) / len(others)
        without = head.net.pair(torch.tensor([cosines])).item()
        assert contribution == pytest.approx(found.similarity - without, abs=1e-6)


@pytest.mark.parametrize("name", ["sum", "gated"])
def test_equal_texts_are_explained_by_ones(name):
    head = made(head=name)
    found = explain_pair(head, READINGS, head(latents()[[0, 0]]))
    assert found.cosines == (1.0, 1.0, 1.0)
    assert found.similarity == found.score == 1
    assert sum(found.contributions) == pytest.approx(1 if name == "sum" else 0)


def no_head():
    return None


def affine_head():
    return AffineHead.fit("standardise", latents(5))


def unified_head():
    return made(mixing="unified", mixed_width=4)


def attention_head():
    return made(widths=(4,) * 3, mixing="attention_codes", mixed_width=3)


def cut_head():
    head = made()
    return head.reduce_dim(head(latents(9)), 4)


@pytest.mark.parametrize("head", [no_head, affine_head, unified_head, attention_head, cut_head])
def test_heads_without_a_block_for_each_layer_are_refused(head):
    with pytest.raises(UnsupportedError, match="d2v train"):
        explain_pair(head(), READINGS, np.ones((2, 4), np.float32))
