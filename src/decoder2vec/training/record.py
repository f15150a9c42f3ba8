"""What a finished run leaves behind for people: the numbers behind every figure of `d2v report`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from decoder2vec.backbone.load import Backbone
from decoder2vec.maths.metrics import pearson, spearman
from decoder2vec.text.files import Pairs
from decoder2vec.training.data import TrainingData
from decoder2vec.training.examples import EXAMPLES
from decoder2vec.training.freeze import FreezeTraining
from decoder2vec.training.scoring import SeedResult, calibrated
from decoder2vec.training.stages import ScoredRows, correlation, over_pairs, predict

_WORST = 12


def record_run(training: FreezeTraining, best: SeedResult) -> dict[str, Any]:
    """Everything the report draws, from the best seed."""
    data = training.data
    shown = data.test[0] if data.test else data.dev[0]
    return {
        "readings": [{"reading": str(reading), "layer": reading.layer} for reading in best.readings],
        "layers": layer_curves(best, data.dev[0]),
        "parameters": parameter_share(best, training.backbone),
        "examples": [
            {"left": a, "right": b, "truth": truth, "paper": paper, "score": round(float(score), 3)}
            for (a, b, truth, paper), score in zip(
                EXAMPLES, calibrated(best, [(a, b) for a, b, *_ in EXAMPLES]), strict=True
            )
        ],
        "errors": residuals(best, shown, data),
    }


def layer_curves(best: SeedResult, dev: Pairs) -> dict[str, Any]:
    """For each reading, on dev: the raw cosine, the code's cosine, its weight, and the score without it."""
    rows = ScoredRows.of(best.table, dev)
    raw = over_pairs(best.table, rows, lambda a, b: functional.cosine_similarity(a, b, dim=-1).T).T
    curves: dict[str, Any] = {
        "data": dev.name,
        "raw": {
            "pearson": [round(100 * pearson(column, rows.scores), 2) for column in raw],
            "spearman": [round(100 * spearman(column, rows.scores), 2) for column in raw],
        },
    }
    net = best.net
    if net.spec.mixing == "none":
        codes = over_pairs(best.table, rows, net.pair_cosines)
        curves["codes"] = {
            "pearson": [round(100 * pearson(column, rows.scores), 2) for column in codes.T],
            "spearman": [round(100 * spearman(column, rows.scores), 2) for column in codes.T],
        }
        curves["weights"] = [round(float(weight), 5) for weight in net.pair.weights().detach().cpu()]
        curves["without"] = _without_each(best, codes, rows)
        curves["all"] = round(correlation("pearson", predict(net, best.table, rows), rows.scores), 2)
    return curves


@torch.no_grad()
def _without_each(best: SeedResult, cosines: NDArray[np.float64], rows: ScoredRows) -> list[float]:
    """The score if one reading's cosine is replaced by the mean of the others'; the head is not trained again."""
    values = torch.from_numpy(cosines).float().to(best.table.device)
    others = (values.sum(dim=1, keepdim=True) - values) / max(1, values.shape[1] - 1)
    found = []
    for block in range(values.shape[1]):
        without = values.clone()
        without[:, block] = others[:, block]
        scores = best.net.pair(without).cpu().double().numpy()
        found.append(round(correlation("pearson", scores, rows.scores), 2))
    return found


def parameter_share(best: SeedResult, backbone: Backbone) -> dict[str, Any]:
    """How many numbers are trained, and how many the frozen model has."""
    trained = best.net.parameter_count()
    frozen = sum(parameter.numel() for parameter in backbone.model.parameters())
    return {"trained": trained, "backbone": frozen, "percent": round(100 * trained / frozen, 2)}


def residuals(best: SeedResult, pairs: Pairs, data: TrainingData) -> dict[str, Any]:
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
