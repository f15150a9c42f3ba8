"""Loops around products in int8, compiled by Numba: each reads and writes its matrices once.

The same in torch takes one pass over memory for every operation, together as long as the products themselves. Loops are
plain Python until `compiled` translates them; what they call must be compiled, too. They run in the thread that calls
them, without holding Python's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.polynomial import Chebyshev, Polynomial
from numpy.typing import NDArray

from decoder2vec.backbone.int8_product import LARGEST, RESIDUALS

Floats = NDArray[np.float32]
Integers = NDArray[np.int8]
Products = NDArray[np.int32]

_ONE, _LARGEST, _RESIDUALS = np.float32(1), np.float32(LARGEST), np.float32(RESIDUALS)
_RESIDUAL = _ONE / _RESIDUALS
_SMALLEST_BITS = np.int32(np.float32(1e-30).view(np.int32))
_MAGNITUDE = np.int32(0x7FFFFFFF)
"""All bits of a float32 but its sign; as integers, the bits of magnitudes have the order of the magnitudes."""
_ROUNDER = np.float32(1.5 * 2**23)
"""A number of this size has no fraction: what is added to it is rounded, half to even, and is in its last bits."""
_FRACTION_BITS = np.int32(23)
_LOG2_E = np.float32(np.log2(np.e))
_MAX_EXPONENT = np.float32(126)
_NO_WEIGHT = np.float32(-100)
"""Power of 2 of the smallest weight in attention: what is still smaller would slow down products."""
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


@intrinsic  # type: ignore[untyped-decorator]
def _bits_of(typing: Any, number: Any) -> Any:
    """The bits of a float32 as an int32."""
    return types.int32(types.float32), lambda context, builder, _, args: builder.bitcast(
        args[0], context.get_value_type(types.int32)
    )


@intrinsic  # type: ignore[untyped-decorator]
def _from_bits(typing: Any, bits: Any) -> Any:
    """The float32 that an int32 has the bits of."""
    return types.float32(types.int32), lambda context, builder, _, args: builder.bitcast(
        args[0], context.get_value_type(types.float32)
    )


def _exp2(power: np.float32) -> np.float32:
    """2 to a power of at most 126 either way."""
    with_whole = power + _ROUNDER
    f = power - (with_whole - _ROUNDER)
    fraction = _C0 + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    return _from_bits(_bits_of(fraction) + (_bits_of(with_whole) << _FRACTION_BITS))  # type: ignore[no-any-return]


_exp2 = compiled(_exp2, "contract")


# --- rounding and scaling --------------------------------------------------------------------------------------------


def _scale_of(bits: Products) -> np.float32:
    """The scale of a row, from the bits of its numbers; NaN if one of them is."""
    largest = _SMALLEST_BITS
    for column in range(len(bits)):
        largest = max(largest, bits[column] & _MAGNITUDE)
    return _from_bits(largest) / _LARGEST  # type: ignore[no-any-return]


_scale_of = compiled(_scale_of)


def _quantise_row(row: Floats, bits: Products, scale: Floats, values: Integers) -> None:
    divisor = _scale_of(bits)
    scale[0] = divisor
    for column in range(len(row)):
        values[column] = np.int32((row[column] / divisor + _ROUNDER) - _ROUNDER)


_quantise_row = compiled(_quantise_row)


def _quantise_row_in_16_bits(row: Floats, bits: Products, scale: Floats, values: Integers, residuals: Integers) -> None:
    divisor = _scale_of(bits)
    scale[0] = divisor
    for column in range(len(row)):
        scaled = row[column] / divisor
        rounded = (scaled + _ROUNDER) - _ROUNDER
        values[column] = np.int32(rounded)
        residuals[column] = np.int32(((scaled - rounded) * _RESIDUALS + _ROUNDER) - _ROUNDER)


_quantise_row_in_16_bits = compiled(_quantise_row_in_16_bits)


def _quantise_rows(matrix: Floats, values: Integers, scales: Floats) -> None:
    bits = matrix.view(np.int32)
    for row in range(len(matrix)):
        _quantise_row(matrix[row], bits[row], scales[row], values[row])


def _quantise_rows_in_16_bits(matrix: Floats, values: Integers, scales: Floats) -> None:
    bits, count = matrix.view(np.int32), len(matrix)
    for row in range(count):
        _quantise_row_in_16_bits(matrix[row], bits[row], scales[row], values[row], values[count + row])


def _scale_products(products: Products, rows: Floats, columns: Floats, out: Floats) -> None:
    for row in range(len(products)):
        for column in range(products.shape[1]):
            out[row, column] = np.float32(products[row, column]) * rows[row, 0] * columns[column, 0]


def _scale_products_in_16_bits(products: Products, rows: Floats, columns: Floats, out: Floats) -> None:
    count = len(rows)
    for row in range(count):
        for column in range(products.shape[1]):
            both = np.float32(products[row, column]) + _RESIDUAL * np.float32(products[count + row, column])
            out[row, column] = both * rows[row, 0] * columns[column, 0]


quantise_rows = compiled(_quantise_rows)
"""Round each row of a matrix by its own largest value, to `values` and `scales`, [row, 1]."""
quantise_rows_in_16_bits = compiled(_quantise_rows_in_16_bits)
"""The same to values and, behind all of them, residuals: [2 * row, column]."""
scale_products = compiled(_scale_products)
"""Products times the scales of their rows and columns, [row, 1] and [column, 1], to `out`."""
scale_products_in_16_bits = compiled(_scale_products_in_16_bits)
"""The same of products with values and residuals."""


# --- norms and gated MLPs --------------------------------------------------------------------------------------------


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
    gate: Products,
    gate_scales: Floats,
    up: Products,
    up_scales: Floats,
    rows: Floats,
    linear: np.float32,
    cubic: np.float32,
    values: Integers,
    scales: Floats,
) -> None:
    width = gate.shape[1]
    gated = np.empty(width, np.float32)
    bits = gated.view(np.int32)
    for row in range(len(gate)):
        scale = rows[row, 0]
        for column in range(width):
            x = np.float32(gate[row, column]) * scale * gate_scales[column, 0]
            power = -_LOG2_E * x * (linear + cubic * x * x)
            activation = x / (_ONE + _exp2(min(max(power, -_MAX_EXPONENT), _MAX_EXPONENT)))
            gated[column] = activation * (np.float32(up[row, column]) * scale * up_scales[column, 0])
        _quantise_row(gated, bits, scales[row], values[row])


rms_norm = compiled(_rms_norm, "contract")
"""States over the root of their mean square plus `eps`, times a weight, to `out`."""
gate_rows = compiled(_gate_rows, "contract")
"""Products of an up layer times x * sigmoid(linear * x + cubic * x**3) of those of a gate layer, as quantised rows."""


# --- attention -------------------------------------------------------------------------------------------------------


class HeadLoops(NamedTuple):
    """Loops over heads of one width, for which they are compiled: many short loops whose length is known."""

    spread: Callable[..., None]
    """(products, rows, columns, bias, norm, eps, factor, cos, sin, out): scaled products plus a bias, normed if `norm`
    is not empty, times a factor, rotated if `cos` is not empty, as heads [text, head, token, width]."""
    gather: Callable[..., None]
    """(heads, sums, values, scales): heads over `sums`, [text, head, token], as quantised rows."""


@cache
def head_loops(width: int) -> HeadLoops:
    """Return the loops over heads of some width, which are compiled when they are first called."""
    return HeadLoops(_spreading(width), _gathering(width))


def _scale_row(products: Products, row: int, rows: Floats, columns: Floats, bias: Floats, out: Floats) -> None:
    for column in range(len(out)):
        out[column] = np.float32(products[row, column])
    if len(products) > len(rows):
        for column in range(len(out)):
            out[column] += _RESIDUAL * np.float32(products[len(rows) + row, column])
    for column in range(len(out)):
        out[column] *= rows[row, 0] * columns[column, 0]
    if len(bias):
        for column in range(len(out)):
            out[column] += bias[column]


_scale_row = compiled(_scale_row)


def _spreading(width: int) -> Callable[..., None]:
    half = width // 2

    def spread(
        products: Products,
        rows: Floats,
        columns: Floats,
        bias: Floats,
        norm: Floats,
        eps: np.float32,
        factor: np.float32,
        cos: Floats,
        sin: Floats,
        out: Floats,
    ) -> None:
        heads, tokens = out.shape[1], out.shape[2]
        x = np.empty(heads * width, np.float32)
        for row in range(len(rows)):
            _scale_row(products, row, rows, columns, bias, x)
            text, t = row // tokens, row % tokens
            turn = text if len(cos) > 1 else 0
            for head in range(heads):
                h, scale = head * width, factor
                if len(norm):
                    scale /= np.sqrt(_sum_of_squares(x[h : h + width]) / np.float32(width) + eps)
                    for d in range(width):
                        x[h + d] *= norm[d]
                if len(cos) == 0:
                    for d in range(width):
                        out[text, head, t, d] = x[h + d] * scale
                    continue
                for d in range(half):
                    a, b = x[h + d] * scale, x[h + half + d] * scale
                    out[text, head, t, d] = a * cos[turn, t, d] - b * sin[turn, t, d]
                    out[text, head, t, half + d] = b * cos[turn, t, half + d] + a * sin[turn, t, half + d]

    return compiled(spread, "contract")


def _gathering(width: int) -> Callable[..., None]:
    def gather(states: Floats, sums: Floats, values: Integers, scales: Floats) -> None:
        texts, heads, tokens = sums.shape
        x = np.empty(heads * width, np.float32)
        bits = x.view(np.int32)
        for text in range(texts):
            for token in range(tokens):
                for head in range(heads):
                    scale = _ONE / sums[text, head, token]
                    for d in range(width):
                        x[head * width + d] = states[text, head, token, d] * scale
                row = text * tokens + token
                _quantise_row(x, bits, scales[row], values[row])

    return compiled(gather)


def _largest_of_columns(row: Floats, mask: Floats, masked: bool, largest: Floats) -> None:
    if masked:
        for column in range(len(row)):
            row[column] += mask[column]
    for column in range(len(row)):
        largest[column] = row[column] if row[column] > largest[column] else largest[column]


_largest_of_columns = compiled(_largest_of_columns)


def _exp_and_add(row: Floats, largest: Floats, sums: Floats) -> None:
    for column in range(len(row)):
        weight = _exp2(max(_LOG2_E * (row[column] - largest[column]), _NO_WEIGHT))
        row[column] = weight
        sums[column] += weight


_exp_and_add = compiled(_exp_and_add, "contract")


def _softmax(scores: Floats, mask: Floats, sums: Floats) -> None:
    count, n_keys, n_queries = scores.shape
    masked = len(mask) > 0
    largest = np.empty(n_queries, np.float32)
    for n in range(count):
        largest[:] = -np.inf
        sums[n] = 0
        text = n * len(mask) // count
        for key in range(n_keys):
            _largest_of_columns(scores[n, key], mask[text, key] if masked else largest, masked, largest)
        for key in range(n_keys):
            _exp_and_add(scores[n, key], largest, sums[n])


softmax = compiled(_softmax)
"""Scores [text * head, key, query] plus a mask [text, key, query], which may be empty, as weights of the keys before
they are divided by their sums, which are written to `sums` [text * head, query]."""
