"""Maps between embedding spaces, learned from texts that were embedded in both: Procrustes, low-rank affine, MLP.

A map is judged by the neighbours that it keeps: which share of the ten nearest texts by true vectors are among the ten
nearest by mapped vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.similarity import normalise, similarity_matrix

Vectors = NDArray[np.float32]

NEIGHBOURS = 10
_RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Strengths of the ridge that are tried, relative to the mean variance of a dimension."""
_RANK_SHARES = (0.125, 0.25, 0.5, 1.0)
"""Ranks that are tried, as shares of the smaller number of dimensions."""
_HIDDEN = 1024
_BATCH, _MAX_EPOCHS, _PATIENCE, _LEARNING_RATE = 256, 60, 6, 1e-3
_SIMILARITY_WEIGHT = 4.0
"""Weight of the loss of similarities within a batch, beside that of the vectors themselves."""


@dataclass(frozen=True)
class Paired:
    """Vectors of the same texts in the old and the new space, and how each space compares vectors."""

    old: Vectors
    new: Vectors
    old_similarity: str = "cosine"
    new_similarity: str = "cosine"

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Paired:
        return replace(self, old=self.old[rows], new=self.new[rows])

    def __len__(self) -> int:
        return len(self.old)


@dataclass(frozen=True)
class SpaceMap:
    """A map from one embedding space to another; call it with [n, old dim] vectors."""

    kind: str
    detail: str
    """What was chosen for it, such as its rank."""
    unit_input: bool
    """Whether vectors are scaled to length 1 before: their length means nothing in a space of cosines."""
    unit_output: bool
    weights: dict[str, Vectors] = field(repr=False)
    """mean and scale [old dim], matrix [old dim, new dim], offset [new dim]; of an MLP also hidden, bias and output."""

    def __call__(self, vectors: Vectors) -> Vectors:
        """[n, new dim] vectors in the new space."""
        weights = self.weights
        inputs = (normalise(vectors, self.unit_input) - weights["mean"]) / weights["scale"]
        outputs = inputs @ weights["matrix"] + weights["offset"]
        if "hidden" in weights:
            outputs = outputs + np.maximum(inputs @ weights["hidden"] + weights["bias"], 0) @ weights["output"]
        return normalise(np.asarray(outputs, np.float32), self.unit_output)


def fit_map(kind: str, fit: Paired, validation: Paired) -> SpaceMap:
    """Learn a map.

    Args:
        kind: "procrustes" (a rotation, scaled), "affine" (ridge regression of low rank), "mlp" (the affine map and a
            hidden layer), or "auto": the one of these that keeps the most neighbours of the validation texts.
        fit: The texts that it is learned from.
        validation: Other texts, by which ridge, rank, number of epochs and, for "auto", the kind are chosen.

    Raises:
        InputError: There are too few texts.
    """
    if kind != "auto" and kind not in _FITS:
        raise unknown_name("map", kind, ("auto", *_FITS))
    if len(fit) < 2 or len(validation) <= NEIGHBOURS:
        raise InputError("There are too few texts to learn a map from; embed them again instead.")
    maps = [_FITS[name](fit, validation) for name in (_FITS if kind == "auto" else (kind,))]
    return max(maps, key=lambda map: kept_neighbours(map, validation).mean())


def kept_neighbours(map: Callable[[Vectors], Vectors], texts: Paired) -> Vectors:
    """[texts] share of the nearest other texts by true vectors that are among the nearest by mapped vectors.

    Each text is a query with its true vector, as the queries of a mapped index are.
    """
    own = np.arange(len(texts))
    return neighbour_recall(
        nearest(texts.new, texts.new, texts.new_similarity, own),
        nearest(texts.new, map(texts.old), texts.new_similarity, own),
    )


def nearest(
    queries: Vectors, rows: Vectors, similarity: str, left_out: NDArray[np.intp] | None = None
) -> NDArray[np.intp]:
    """[queries, 10] indices of the nearest rows, best first; fewer where there are fewer rows.

    Args:
        queries: Vectors of the queries.
        rows: The vectors that are searched.
        similarity: How vectors are compared.
        left_out: [queries] index of a row that is left out for each query, such as its own; -1 for none.
    """
    count = min(NEIGHBOURS, len(rows) - (left_out is not None))
    best = np.empty((len(queries), count), np.intp)
    for start in range(0, len(queries), _BATCH):
        scores = np.array(similarity_matrix(similarity, queries[start : start + _BATCH], rows))
        if left_out is not None:
            own = left_out[start : start + _BATCH]
            scores[own >= 0, own[own >= 0]] = -np.inf
        best[start : start + _BATCH] = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return best


def neighbour_recall(reference: NDArray[np.intp], candidate: NDArray[np.intp]) -> Vectors:
    """[queries] share of the reference's neighbours that are among the candidate's."""
    shared = (reference[:, :, None] == candidate[:, None, :]).any(axis=2)
    return np.asarray(shared.mean(axis=1), np.float32)


def _fit_procrustes(fit: Paired, validation: Paired) -> SpaceMap:
    """The rotation (or projection onto fewer dimensions) and scale that bring the centred vectors closest."""
    inputs, targets, start = _prepared(fit, standardise=False)
    left, singular, right = np.linalg.svd(inputs.T @ targets, full_matrices=False)
    scale = singular.sum() / max(float((inputs**2).sum()), 1e-12)
    return _with(start, "procrustes", "", matrix=scale * (left @ right))


def _fit_affine(fit: Paired, validation: Paired) -> SpaceMap:
    """Ridge regression of low rank: the ridge first, then the rank, by the neighbours that are kept."""
    inputs, targets, start = _prepared(fit, standardise=True)
    covariance, products = inputs.T @ inputs, inputs.T @ targets
    variances, axes = np.linalg.eigh(covariance)
    rotated, mean_variance = axes.T @ products, max(float(variances.mean()), 1e-12)

    def choose(candidates: list[SpaceMap]) -> SpaceMap:
        return max(candidates, key=lambda map: kept_neighbours(map, validation).mean())

    full = {
        f"ridge {ridge:g}": axes @ (rotated / (np.maximum(variances, 0) + ridge * mean_variance)[:, None])
        for ridge in _RIDGES
    }
    best = choose([_with(start, "affine", detail, matrix=matrix) for detail, matrix in full.items()])
    matrix = full[best.detail]
    directions = np.linalg.eigh(matrix.T @ covariance @ matrix)[1][:, ::-1]  # of the predictions, by their variance
    low_rank = []
    for rank in sorted({max(1, round(share * min(matrix.shape))) for share in _RANK_SHARES}):
        kept = directions[:, :rank]
        low_rank.append(_with(start, "affine", f"rank {rank}, {best.detail}", matrix=matrix @ kept @ kept.T))
    return choose(low_rank)


def _fit_mlp(fit: Paired, validation: Paired) -> SpaceMap:
    """The affine map and a hidden layer that learns what is left, stopped when it keeps no more neighbours."""
    import torch
    from torch.nn.functional import mse_loss, normalize

    affine = _fit_affine(fit, validation)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.as_tensor((normalise(fit.old, affine.unit_input) - affine.weights["mean"]) / affine.weights["scale"])
    targets = torch.as_tensor(normalise(fit.new, affine.unit_output))
    scale = float(targets.std()) or 1.0
    old_dim, new_dim = inputs.shape[1], targets.shape[1]
    parameters: dict[str, Any] = {
        "matrix": torch.tensor(affine.weights["matrix"]),
        "offset": torch.tensor(affine.weights["offset"]),
        "hidden": torch.randn(old_dim, _HIDDEN, generator=generator) / old_dim**0.5,
        "bias": torch.zeros(_HIDDEN),
        "output": torch.zeros(_HIDDEN, new_dim),
    }
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    slow = {"params": [parameters["matrix"], parameters["offset"]], "lr": _LEARNING_RATE * scale}
    rest = {"params": [parameters["hidden"], parameters["bias"]], "lr": _LEARNING_RATE}
    optimiser = torch.optim.Adam([slow, rest, {"params": [parameters["output"]], "lr": _LEARNING_RATE * scale}])
    best, best_score, best_epoch = replace(affine, kind="mlp", detail="0 epochs"), -1.0, 0
    for epoch in range(_MAX_EPOCHS):
        if epoch:
            for rows in torch.randperm(len(inputs), generator=generator).split(_BATCH):  # type: ignore[no-untyped-call]
                x, y = inputs[rows], targets[rows]
                hidden = torch.relu(x @ parameters["hidden"] + parameters["bias"])
                outputs = x @ parameters["matrix"] + parameters["offset"] + hidden @ parameters["output"]
                loss = mse_loss(outputs, y) / scale**2
                if affine.unit_output:
                    outputs = normalize(outputs, dim=1)
                    loss = loss + _SIMILARITY_WEIGHT * mse_loss(outputs @ y.T, y @ y.T) / float((y @ y.T).var())
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        learned = {name: np.array(parameter.detach(), np.float32) for name, parameter in parameters.items()}
        candidate = _with(affine, "mlp", f"{_HIDDEN} hidden units, {epoch} epochs", **learned)
        score = float(kept_neighbours(candidate, validation).mean())
        if score > best_score:
            best, best_score, best_epoch = candidate, score, epoch
        elif epoch - best_epoch >= _PATIENCE:
            break
    return best


_FITS: dict[str, Callable[[Paired, Paired], SpaceMap]] = {
    "procrustes": _fit_procrustes,
    "affine": _fit_affine,
    "mlp": _fit_mlp,
}
MAPS = tuple(_FITS)
"""Kinds of maps, from the simplest."""


def _prepared(fit: Paired, standardise: bool) -> tuple[NDArray[np.float64], NDArray[np.float64], SpaceMap]:
    """Centred inputs and targets in float64, and a map that has everything but its matrix."""
    unit_input, unit_output = fit.old_similarity == "cosine", fit.new_similarity == "cosine"
    inputs = np.asarray(normalise(fit.old, unit_input), np.float64)
    targets = np.asarray(normalise(fit.new, unit_output), np.float64)
    mean, offset = inputs.mean(axis=0), targets.mean(axis=0)
    deviation = inputs.std(axis=0)
    scale = np.where(deviation > 1e-12, deviation, 1.0) if standardise else np.ones_like(mean)
    start = _with(SpaceMap("", "", unit_input, unit_output, {}), "", "", mean=mean, scale=scale, offset=offset)
    return (inputs - mean) / scale, targets - offset, start


def _with(map: SpaceMap, kind: str, detail: str, **weights: NDArray[Any]) -> SpaceMap:
    single = {name: np.asarray(values, np.float32) for name, values in weights.items()}
    return replace(map, kind=kind, detail=detail, weights={**map.weights, **single})
