"""The end of a FREEZE training: truncate, calibrate, evaluate, and record what every layer contributes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.config import Reading
from decoder2vec.errors import StorageError
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.codes import CodeNet
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.maths.metrics import METRICS, pairwise_cos_sim
from decoder2vec.storage import parse_json
from decoder2vec.tensor_files import load_tensors, save_tensors
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.context import LatentContext, PairRows, correlation
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.results import PAPER_EXAMPLES, SeedResult, TextPairs, correlations, sanity_checks

_WORST_PAIRS = 12
_TEXTS_PER_PASS = 512


class FreezeContext(LatentContext):
    """A code network on cached latents, and the encoder head made of it."""

    def __init__(self, net: CodeNet, table: LatentTable, readings: tuple[Reading, ...]) -> None:
        super().__init__(net, table)
        self.readings = readings

    @cached_property
    def head(self) -> LayerwiseHead:
        """The encoder head, made when training is over: it freezes the network."""
        return LayerwiseHead(self.net)

    def vectors(self, rows: Rows) -> NDArray[np.float32]:
        """[texts, dim] vectors as the encoder gives them."""
        batches = (
            self.table.batch(rows[start : start + _TEXTS_PER_PASS]) for start in range(0, len(rows), _TEXTS_PER_PASS)
        )
        return np.concatenate([self.head.encode_latents(batch).cpu().numpy() for batch in batches])

    def similarity(self, pairs: TextPairs) -> NDArray[np.float64]:
        """[pairs] similarities as the encoder gives them, before calibration."""
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        index = {text: row for row, text in enumerate(texts)}
        vectors = self.vectors(self.rows(texts))
        left, right = (vectors[[index[pair[side]] for pair in pairs]] for side in (0, 1))
        if not self.head.has_pair_similarity:
            return np.asarray(pairwise_cos_sim(left, right).astype(np.float32), np.float64)
        return self.head.similarity_pairwise(torch.from_numpy(left), torch.from_numpy(right)).double().numpy()

    def calibrated(self, pairs: TextPairs) -> NDArray[np.float64]:
        """[pairs] scores between 0 and 1."""
        return self.head.calibration(torch.from_numpy(self.similarity(pairs))).double().numpy()


def evaluate_freeze(result: SeedResult, data: TrainingData, *, dim: int, has_exact_top: bool, rows: Rows) -> None:
    """Truncate on training rows, calibrate on the first dev file, then score dev and test.

    Args:
        result: A trained seed; its scores are filled in.
        data: Dev and test files.
        dim: Dimensions to truncate to; 0: all. The scores without truncation are noted as well.
        has_exact_top: Whether equal texts have a raw score of exactly 1.
        rows: Rows of the training texts that the truncation is fitted on.

    """
    context: FreezeContext = result.model
    first = data.dev[0]
    if dim:
        result.notes["before the cut"] = {
            "dev": correlations(data.dev, context.similarity),
            "test": correlations(data.test, context.similarity),
            "dim": context.head.dim,
        }
        context.head = context.head.reduce_dim(context.vectors(rows), dim)
    low, high = data.scale_of(first)
    target = np.clip((np.asarray(first.scores) - low) / (high - low), 0, 1)
    raw = context.similarity(list(zip(first.left, first.right, strict=True)))
    context.head.calibration = Calibration.fit(raw, target, top=1.0 if has_exact_top else None)
    result.dev = correlations(data.dev, context.similarity)
    result.test = correlations(data.test, context.similarity)
    result.checks = sanity_checks(first.texts(), context.calibrated, equal=True)


def freeze_record(result: SeedResult, data: TrainingData) -> dict[str, Any]:
    """Everything that the training report draws of the best seed."""
    context: FreezeContext = result.model
    scores = context.calibrated([(left, right) for left, right, *_ in PAPER_EXAMPLES])
    return {
        "readings": [{"reading": str(reading), "layer": reading.layer} for reading in context.readings],
        "layers": layer_curves(context, data.dev[0]),
        "examples": [
            {"left": left, "right": right, "truth": truth, "paper": paper, "score": round(float(score), 3)}
            for (left, right, truth, paper), score in zip(PAPER_EXAMPLES, scores, strict=True)
        ],
        "errors": score_errors(context, data.test[0] if data.test else data.dev[0], data),
    }


def layer_curves(context: FreezeContext, dev: ScoredPairs) -> dict[str, Any]:
    """For each reading, on dev: correlation of the raw and of the code's cosine, its weight, the score without it."""
    pairs = context.pair_rows(dev)
    raw = context.map_pairs(pairs, lambda a, b: functional.cosine_similarity(a, b, dim=-1).T)
    curves: dict[str, Any] = {"data": dev.name, "raw": _correlation_by_reading(raw, pairs)}
    net = context.net
    if net.spec.mixing == "none":
        cosines = context.map_pairs(pairs, net.pair_cosines)
        curves["codes"] = _correlation_by_reading(cosines, pairs)
        curves["weights"] = [round(float(weight), 5) for weight in net.pair.weights().detach().cpu()]
        curves["without"] = _scores_without_each(context, cosines, pairs)
        curves["all"] = round(correlation("pearson", context.predict(pairs), pairs.scores), 2)
    return curves


def _correlation_by_reading(cosines: NDArray[np.float64], pairs: PairRows) -> dict[str, list[float]]:
    """Of [pairs, readings] cosines, the correlation of each reading."""
    return {metric: [round(correlation(metric, column, pairs.scores), 2) for column in cosines.T] for metric in METRICS}


@torch.no_grad()
def _scores_without_each(context: FreezeContext, cosines: NDArray[np.float64], pairs: PairRows) -> list[float]:
    """The score without the information of one reading; the head is not trained again."""
    values = torch.from_numpy(cosines).float().to(context.device)
    columns = context.net.pair.scores_without_block(values).cpu().double().numpy().T
    return [round(correlation("pearson", column, pairs.scores), 2) for column in columns]


def score_errors(context: FreezeContext, pairs: ScoredPairs, data: TrainingData) -> dict[str, Any]:
    """Errors of the calibrated score, and the pairs with the largest."""
    predicted = context.calibrated(list(zip(pairs.left, pairs.right, strict=True)))
    low, high = data.scale_of(pairs)
    truth = (np.asarray(pairs.scores) - low) / (high - low)
    errors = predicted - truth
    worst: Sequence[int] = np.argsort(-np.abs(errors))[:_WORST_PAIRS].tolist()
    return {
        "data": pairs.name,
        "mean": round(float(errors.mean()), 4),
        "deviation": round(float(errors.std()), 4),
        "all": [round(float(error), 4) for error in errors],
        "worst": [
            {
                "left": pairs.left[row],
                "right": pairs.right[row],
                "truth": round(float(truth[row]), 3),
                "score": round(float(predicted[row]), 3),
            }
            for row in worst
        ],
    }


def save_pretrained(net: CodeNet, file: Path, note: dict[str, Any], *, with_head: bool) -> None:
    """Cache a pre-trained network with a note about it; the pair head only if pre-training trained it."""
    tensors = {name: tensor for name, tensor in net.state_dict().items() if with_head or not name.startswith("pair.")}
    save_tensors(tensors, file, {"note": json.dumps(note)})


def load_pretrained(net: CodeNet, file: Path) -> dict[str, Any] | None:
    """Load a cached network and return its note; None if there is no valid one."""
    if not file.is_file():
        return None
    try:
        tensors, metadata = load_tensors(file)
        note: dict[str, Any] = parse_json(metadata["note"])
        net.load_state_dict({**net.state_dict(), **tensors})
    except (StorageError, ValueError, KeyError, TypeError, RuntimeError):
        return None
    return note
