"""Scored pairs for sweeps, and correlations by scipy to compare them with."""

from __future__ import annotations

import csv
from importlib import resources

import numpy as np
from scipy import stats

from decoder2vec.analysis.sweep import SweepPlan
from decoder2vec.text.files import ScoredPairs

SMALL = SweepPlan(templates=("plain", "prompteol"), poolings=("lasttoken", "mean"))


def demo_pairs(start, end, name):
    text = (resources.files("decoder2vec") / "demo" / "pairs.tsv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))[start:end]
    sides = ([row[key] for row in rows] for key in ("sentence1", "sentence2"))
    return ScoredPairs(name, *sides, [float(row["score"]) for row in rows])


PAIRS = demo_pairs(0, 40, "dev")
TEST = demo_pairs(40, 60, "test")
MANY = demo_pairs(0, 100, "many")
"""Enough that two pairs which swap ranks, because the store keeps 16 bits, hardly change a rank correlation."""


def scipy_correlations(vectors, pairs):
    """Spearman and Pearson x 100 from {text: vector}, one pair at a time."""
    cosines = []
    for a, b in zip(pairs.left, pairs.right, strict=True):
        x, y = vectors[a].astype(np.float64), vectors[b].astype(np.float64)
        cosines.append(x @ y / np.sqrt((x @ x) * (y @ y)))
    scores = pairs.scores
    return 100 * stats.spearmanr(cosines, scores).statistic, 100 * stats.pearsonr(cosines, scores).statistic


def unique_texts(pairs):
    return sorted({*pairs.left, *pairs.right})
