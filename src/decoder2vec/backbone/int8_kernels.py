"""Loops around products in int8, compiled by Numba: each reads and writes its matrices once.

The same in torch takes one pass over memory for every operation, together as long as the products themselves. Loops are
plain Python until `compiled` translates them; what they call must be compiled, too. They run in the thread that calls
them, without holding Python's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_ONE, _LARGEST = np.float32(1), np.float32(127)
_SMALLEST_BITS = np.int32(np.float32(1e-30).view(np.int32))
_MAGNITUDE = np.int32(0x7FFFFFFF)
"""All bits of a float32 but its sign; as integers, the bits of magnitudes have the order of the magnitudes."""
_ROUNDER = np.float32(1.5 * 2**23)
"""A number of this size has no fraction: what is added to it is rounded, half to even."""
_LOG2_E = np.float32(np.log2(np.e))
_MAX_EXPONENT = np.float32(126)
_EXP2 = Chebyshev.interpolate(np.exp2, 6, [-0.5, 0.5]).convert(kind=Polynomial).coef.astype(np.float32)
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = _EXP2


def compiled(function: Callable[..., Any], *freedoms: str) -> Callable[..., Any]:
    """Return a function as machine code, which is kept on disk where that is possible.

    Args:
        function: The function.
        freedoms: How results may differ from those of plain Python: "contract" rounds a product and a sum at once,
            "reassoc" adds in another order, several numbers at a time.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": set(freedoms) or False}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder can be written
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


def _quantise_row(row: Floats, bits: NDArray[np.int32], scale: Floats, values: NDArray[np.int8]) -> None:
    largest = _SMALLEST_BITS
    for column in range(len(row)):
        largest = max(largest, bits[column] & _MAGNITUDE)
    scale.view(np.int32)[0] = largest  # stays NaN
    scale[0] /= _LARGEST
    for column in range(len(row)):
        values[column] = np.int32((row[column] / scale[0] + _ROUNDER) - _ROUNDER)


_quantise_row = compiled(_quantise_row)


def _quantise_rows(matrix: Floats, values: NDArray[np.int8], scales: Floats) -> None:
    bits = matrix.view(np.int32)
    for row in range(len(matrix)):
        _quantise_row(matrix[row], bits[row], scales[row], values[row])


def _scale_products(products: NDArray[np.int32], rows: Floats, columns: Floats, out: Floats) -> None:
    for row in range(len(products)):
        for column in range(products.shape[1]):
            out[row, column] = np.float32(products[row, column]) * rows[row, 0] * columns[column, 0]


def _sum_of_squares(row: Floats) -> np.float32:
    total = np.float32(0)
    for column in range(len(row)):
        total += row[column] * row[column]
    return total


_sum_of_squares = compiled(_sum_of_squares, "contract", "reassoc")


def _rms_norm(states: Floats, weight: Floats, eps: np.float32, out: Floats) -> None:
    for row in range(len(states)):
        scale = _ONE / np.sqrt(_sum_of_squares(states[row]) / np.float32(states.shape[1]) + eps)
        for column in range(states.shape[1]):
            out[row, column] = states[row, column] * scale * weight[column]


def _gate_rows(
    gate: NDArray[np.int32],
    gate_scales: Floats,
    up: NDArray[np.int32],
    up_scales: Floats,
    rows: Floats,
    linear: np.float32,
    cubic: np.float32,
    values: NDArray[np.int8],
    scales: Floats,
) -> None:
    width = gate.shape[1]
    gates, fractions = np.empty(width, np.float32), np.empty(width, np.float32)
    powers, gated = np.empty(width, np.float32), np.empty(width, np.float32)
    exponents = powers.view(np.int32)
    for row in range(len(gate)):
        for column in range(width):
            x = np.float32(gate[row, column]) * rows[row, 0] * gate_scales[column, 0]
            gates[column] = x
            power = -_LOG2_E * x * (linear + cubic * x * x)
            power = min(max(power, -_MAX_EXPONENT), _MAX_EXPONENT)
            whole = (power + _ROUNDER) - _ROUNDER
            f = power - whole
            fractions[column] = _C0 + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
            exponents[column] = (np.int32(whole) + np.int32(127)) << np.int32(23)  # the bits of 2**whole
        for column in range(width):
            activation = gates[column] / (_ONE + fractions[column] * powers[column])
            gated[column] = activation * (np.float32(up[row, column]) * rows[row, 0] * up_scales[column, 0])
        _quantise_row(gated, gated.view(np.int32), scales[row], values[row])


quantise_rows = compiled(_quantise_rows)
"""Round each row of a matrix by its own largest value, to `values` and `scales`, [row, 1]."""
scale_products = compiled(_scale_products)
"""Products times the scales of their rows and columns, [row, 1] and [column, 1], to `out`."""
rms_norm = compiled(_rms_norm, "contract")
"""States over the root of their mean square plus `eps`, times a weight, to `out`."""
gate_rows = compiled(_gate_rows, "contract")
"""Products of an up layer times x * sigmoid(linear * x + cubic * x**3) of those of a gate layer, as quantised rows."""
