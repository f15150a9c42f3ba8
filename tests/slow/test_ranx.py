"""Our measures of a ranking against those of ranx, on made-up runs with graded judgements."""

from __future__ import annotations

import numpy as np
import pytest

from decoder2vec.maths.ranking import document_ranks, ranking_scores

pytestmark = pytest.mark.slow


def test_every_measure_is_that_of_ranx():
    ranx = pytest.importorskip("ranx", reason="ranx is not installed; pip install ranx")
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(40, 200))
    gains = rng.choice([0, 0, 0, 0, 0, 0, 1, 2, 3], (40, 200))
    judged = {f"q{q}": {f"d{d}": int(g) for d, g in enumerate(row) if g} for q, row in enumerate(gains)}
    run = {f"q{q}": {f"d{d}": float(s) for d, s in enumerate(row)} for q, row in enumerate(scores)}
    measures = ["ndcg@10", "map", "mrr", "recall@1", "recall@10", "recall@100"]
    expected = ranx.evaluate(ranx.Qrels(judged), ranx.Run(run), measures)
    rows = []
    for line, truth in zip(scores, gains, strict=True):
        places = np.flatnonzero(truth)
        rows.append(ranking_scores(document_ranks(line, places), truth[places].astype(float), truth.astype(float)))
    for name in measures:
        assert np.mean([row[name] for row in rows]) == pytest.approx(expected[name], abs=1e-9), name
