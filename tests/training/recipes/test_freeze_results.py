"""The end of a FREEZE training: truncation, calibration, scores, and a saved encoder that gives the same scores."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy import stats

from decoder2vec.encoder import Encoder
from decoder2vec.training.recipes.freeze import LatentSource
from toys.codes import equal_states, net_state


def text_pairs(pairs):
    return list(zip(pairs.left, pairs.right, strict=True))


def test_scores_before_truncation_are_noted(training):
    result = training(dim=6).run(0)
    assert result.model.head.dim == 6
    whole = training().run(0)
    assert result.notes["before the cut"] == {"dev": whole.dev, "test": whole.test, "dim": 48}
    assert result.dev != whole.dev
    assert training(dim=47).run(0).dev["dev"]["pearson"] == pytest.approx(whole.dev["dev"]["pearson"], abs=3)


@pytest.mark.parametrize("head", ["sum", "gated"])
def test_equal_texts_score_exactly_1(head, training, data):
    result = training(head=head).run(0)
    pairs = [(text, text) for text in data.all_texts()[:30]]
    assert (result.model.similarity(pairs) == 1).all()
    assert (result.model.calibrated(pairs) == 1).all()
    assert result.checks["equal texts"] == 1


@pytest.mark.parametrize("head", ["sum", "gated", "mlp"])
def test_scores_are_symmetric_and_between_0_and_1(head, training, data):
    context = training(head=head).run(0).model
    pairs = text_pairs(data.test[0])
    scores, swapped = context.calibrated(pairs), context.calibrated([(b, a) for a, b in pairs])
    assert (scores == swapped).all()
    assert (scores >= 0).all() and (scores <= 1).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head": "gated"},
        {"head": "mlp"},
        {"dim": 6},
        {"head": "each"},
        {
            "latents": (
                LatentSource(),
                LatentSource("prompteol", "lasttoken", (2, 4)),
                LatentSource(pooling="mean", layers=(0, 3)),
            )
        },
    ],
    ids=str,
)
def test_saved_encoder_gives_the_scores_of_training(changes, training, data, tmp_path):
    trainer = training(**changes)
    result = trainer.run(0)
    encoder, has_own_weights = trainer.export(result, tmp_path)
    assert not has_own_weights
    encoder.save(tmp_path / "encoder")

    loaded = Encoder.load(tmp_path / "encoder", device="cpu", dtype="float32")
    test = data.test[0]
    similarities = loaded.similarity_pairwise(loaded.encode(test.left), loaded.encode(test.right)).numpy()
    context, pairs = result.model, text_pairs(test)
    np.testing.assert_allclose(similarities, context.similarity(pairs), atol=2e-3)
    np.testing.assert_allclose(loaded.score(test.left, test.right), context.calibrated(pairs), atol=2e-2)


def test_reported_correlations_equal_scipy(training, data):
    result = training().run(0)
    for scores, files in ((result.dev, data.dev), (result.test, data.test)):
        for pairs in files:
            expected = 100 * stats.pearsonr(result.model.similarity(text_pairs(pairs)), pairs.scores).statistic
            assert scores[pairs.name]["pearson"] == pytest.approx(expected, abs=0.006)


def test_test_scores_influence_nothing(training, data):
    reversed_scores = replace(data.test[0], scores=data.test[0].scores[::-1])
    result = training(keep=2).run(0)
    other = training(data=replace(data, test=(reversed_scores,)), keep=2).run(0)
    assert equal_states(net_state(result), net_state(other))
    assert asdict(result.model.head.calibration) == asdict(other.model.head.calibration)
    assert result.test != other.test
