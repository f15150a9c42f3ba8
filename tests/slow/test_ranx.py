"""Ranking metrics against those of ranx, on random runs with graded judgements."""

from __future__ import annotations

import numpy as np
import pytest

from decoder2vec.maths.ranking import document_ranks, ranking_scores

pytestmark = pytest.mark.slow


def test_ranking_metrics_equal_ranx():
    ranx = pytest.importorskip("ranx", reason="ranx is not installed; pip install ranx")
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(40, 200))
    gains = rng.choice([0, 0, 0, 0, 0, 0, 1, 2, 3], (40, 200))
    qrels = {f"q{q}": {f"d{d}": int(g) for d, g in enumerate(row) if g} for q, row in enumerate(gains)}
    run = {f"q{q}": {f"d{d}": float(s) for d, s in enumerate(row)} for q, row in enumerate(scores)}
    metrics = ["ndcg@10", "map", "mrr", "recall@1", "recall@10", "recall@100"]
    expected = ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), metrics)
    rows = []
    for line, truth in zip(scores, gains, strict=True):
        relevant = np.flatnonzero(truth)
        rows.append(ranking_scores(document_ranks(line, relevant), truth[relevant].astype(float), truth.astype(float)))
    for name in metrics:
        assert np.mean([row[name] for row in rows]) == pytest.approx(expected[name], abs=1e-9), name
