"""What a finished run leaves behind for people: the numbers behind every figure of `d2v report`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from decoder2vec.backbone.blocks import trained_share
from decoder2vec.maths.metrics import METRICS
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.data import TrainingData
from decoder2vec.training.examples import EXAMPLES
from decoder2vec.training.frozen.scoring import SeedResult, calibrated
from decoder2vec.training.frozen.tasks import Measured, ScoredRows, correlation, over_pairs, predict
from decoder2vec.training.frozen.training import FreezeTraining

_WORST = 12


def record_run(training: FreezeTraining, best: SeedResult) -> dict[str, Any]:
    """Everything the report draws, from the best seed."""
    data = training.data
    shown = data.test[0] if data.test else data.dev[0]
    return {
        "readings": [{"reading": str(reading), "layer": reading.layer} for reading in best.readings],
        "layers": layer_curves(best, data.dev[0]),
        "parameters": trained_share(best.net.count_parameters(), training.backbone.model),
        "examples": [
            {"left": a, "right": b, "truth": truth, "paper": paper, "score": round(float(score), 3)}
            for (a, b, truth, paper), score in zip(
                EXAMPLES, calibrated(best, [(a, b) for a, b, *_ in EXAMPLES]), strict=True
            )
        ],
        "errors": residuals(best, shown, data),
    }


def layer_curves(best: SeedResult, dev: ScoredPairs) -> dict[str, Any]:
    """For each reading, on dev: the raw cosine, the code's cosine, its weight, and the score without it."""
    rows = ScoredRows.of(best.table, dev)
    raw = over_pairs(best.table, rows, lambda a, b: functional.cosine_similarity(a, b, dim=-1).T)
    curves: dict[str, Any] = {
        "data": dev.name,
        "raw": _each_correlation(raw, rows),
    }
    net = best.net
    if net.spec.mixing == "none":
        codes = over_pairs(best.table, rows, net.pair_cosines)
        curves["codes"] = _each_correlation(codes, rows)
        curves["weights"] = [round(float(weight), 5) for weight in net.pair.weights().detach().cpu()]
        curves["without"] = _without_each(best, codes, rows)
        curves["all"] = round(correlation("pearson", predict(net, best.table, rows), rows.scores), 2)
    return curves


def _each_correlation(cosines: Measured, rows: ScoredRows) -> dict[str, list[float]]:
    """Of [pair, reading] cosines, every reading's own."""
    return {metric: [round(correlation(metric, column, rows.scores), 2) for column in cosines.T] for metric in METRICS}


@torch.no_grad()
def _without_each(best: SeedResult, cosines: Measured, rows: ScoredRows) -> list[float]:
    """The score without what one reading knows; the head is not trained again."""
    values = torch.from_numpy(cosines).float().to(best.table.device)
    columns = best.net.pair.scores_without_block(values).cpu().double().numpy().T
    return [round(correlation("pearson", column, rows.scores), 2) for column in columns]


def residuals(best: SeedResult, pairs: ScoredPairs, data: TrainingData) -> dict[str, Any]:
    """Errors of the calibrated score, and the pairs with the largest ones."""
    predicted = calibrated(best, list(zip(pairs.left, pairs.right, strict=True)))
    low, high = data.scale_of(pairs)
    truth = (np.asarray(pairs.scores) - low) / (high - low)
    errors = predicted - truth
    order: Sequence[int] = np.argsort(-np.abs(errors))[:_WORST].tolist()
    return {
        "data": pairs.name,
        "mean": round(float(errors.mean()), 4),
        "deviation": round(float(errors.std()), 4),
        "all": [round(float(error), 4) for error in errors],
        "worst": [
            {
                "left": pairs.left[n],
                "right": pairs.right[n],
                "truth": round(float(truth[n]), 3),
                "score": round(float(predicted[n]), 3),
            }
            for n in order
        ],
    }
