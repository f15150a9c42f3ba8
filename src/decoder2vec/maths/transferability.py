"""How well features predict labels, without training: LogME, the evidence of a Bayesian linear model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.floating]

_MAX_ITERATIONS = 500
_TOLERANCE = 1e-6
_LARGEST_RATIO = 1e12
"""Of the precision of the weights to that of the noise: from there on the features explain nothing."""


def logme(features: _Floats, targets: _Floats, *, intercept: bool = False) -> float:
    """Return the log of the maximum evidence for each example, a mean over targets (You et al., 2021); more is better.

    The targets are modelled as a linear function of the features with Gaussian weights and Gaussian noise, whose
    precisions maximise the evidence.

    Args:
        features: [example, dim].
        targets: [example] scores, or [example, class] with 1 for the class of each example and 0 else.
        intercept: Leave the mean of features and targets out of it: the evidence is that of the examples - 1 directions
            that are left. Centring alone would let features without information look good where they outnumber the
            examples, since the direction that they cannot explain is also one that the targets do not use.
    """
    x = np.asarray(features, np.float64)
    y = np.asarray(targets, np.float64).reshape(len(x), -1)
    if intercept:
        x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    variances, projections = _spectrum(x, y)
    residual = np.maximum((y * y).sum(axis=0) - projections.sum(axis=0), 0.0)
    n, dim = len(x) - intercept, x.shape[1]
    return float(np.mean([_evidence(n, dim, variances, p, r) for p, r in zip(projections.T, residual, strict=True)]))


def _spectrum(x: _Floats, y: _Floats) -> tuple[_Floats, _Floats]:
    """[r] squared singular values of x, and [r, targets] squared projections of y onto the left singular vectors."""
    wide = x.shape[0] < x.shape[1]
    values, vectors = np.linalg.eigh(x @ x.T if wide else x.T @ x)
    used = values > 1e-10 * max(values[-1], 1e-300)
    values, vectors = values[used], vectors[:, used]
    projections = vectors.T @ y if wide else (vectors.T @ (x.T @ y)) / np.sqrt(values)[:, None]
    return values, projections**2


def _evidence(n: int, dim: int, variances: _Floats, projections: _Floats, residual: float) -> float:
    """Maximum log evidence of one target, divided by the number of examples, by MacKay's fixed point."""
    if not len(variances):  # constant features: all is noise
        return float(0.5 * (np.log(n / max(residual, 1e-300)) - np.log(2 * np.pi) - 1))
    ratio = 1.0  # of the precision of the weights (alpha) to that of the noise (beta)
    for _ in range(_MAX_ITERATIONS):
        shrunk = variances / (ratio + variances)
        gamma = shrunk.sum()
        weights = (variances * projections / (ratio + variances) ** 2).sum()
        errors = (projections * (1 - shrunk) ** 2).sum() + residual
        alpha, beta = gamma / max(weights, 1e-300), (n - gamma) / max(errors, 1e-300)
        previous, ratio = ratio, min(alpha / max(beta, 1e-300), _LARGEST_RATIO)
        if abs(ratio - previous) <= _TOLERANCE * previous:
            break
    log_determinant = np.log(alpha + beta * variances).sum() + (dim - len(variances)) * np.log(alpha)
    total = dim * np.log(alpha) + n * np.log(beta) - n * np.log(2 * np.pi) - log_determinant
    return float((total - beta * errors - alpha * weights) / (2 * n))
