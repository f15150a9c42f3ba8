"""Scores equal those of scikit-learn over all pairs, with NONE left out."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, precision_recall_fscore_support

from decoder2vec.relations.metrics import accuracy, score_labels

PAIRS = [(i, j) for i in range(15) for j in range(15) if i != j]


def related(labels):
    return {pair: label for pair, label in zip(PAIRS, labels, strict=True) if label != "NONE"}


@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    names, shares = ["NONE", "causes", "before", "rare"], [0.8, 0.1, 0.09, 0.01]
    gold, random = (rng.choice(names, len(PAIRS), p=shares) for _ in range(2))
    predicted = np.where(rng.random(len(PAIRS)) < 0.5, gold, random)
    overall, by_label = score_labels(related(gold), related(predicted))
    expected = precision_recall_fscore_support(gold, predicted, labels=names[1:], average="micro", zero_division=0)
    assert overall[:3] == pytest.approx(expected[:3]) and overall.support == (gold != "NONE").sum()
    single = precision_recall_fscore_support(gold, predicted, labels=list(by_label), average=None, zero_division=0)
    assert list(by_label.values()) == [pytest.approx(row) for row in zip(*single, strict=True)]
    assert accuracy(related(gold), related(predicted), len(PAIRS)) == pytest.approx(accuracy_score(gold, predicted))


def test_nothing_predicted_and_nothing_known():
    assert score_labels({(0, 1): "x"}, {})[0] == (0, 0, 0, 1)
    assert score_labels({}, {(0, 1): "x"})[0] == (0, 0, 0, 0)
    assert score_labels({}, {}) == ((0, 0, 0, 0), {})
