"""Rounding to int8 and scaling of products, in torch or by loops that Numba compiles, with the same results.

The loops read and write each matrix once, where torch takes eight passes; they need the extra `int8`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from decoder2vec.backbone.int8_product import LARGEST, RESIDUALS, QuantisedRows


class TorchRounding:
    """Rounding by operations of torch."""

    def quantise_rows(self, matrix: Tensor, bits: int = 8) -> QuantisedRows:
        """Round each row of a matrix, by its own largest value, to 8 or 16 bits."""
        largest = torch.maximum(matrix.amax(-1, keepdim=True), matrix.amin(-1, keepdim=True).neg_())
        scales = largest.clamp_(min=1e-30).div_(LARGEST)
        scaled = matrix / scales
        rounded = scaled.round()
        if bits == 8:
            return QuantisedRows(rounded.to(torch.int8), scales)
        residuals = scaled.sub_(rounded).mul_(RESIDUALS).round_()
        return QuantisedRows(torch.cat([rounded, residuals]).to(torch.int8), scales)

    def scale_products(self, products: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return products in int32 times the scales of their rows and columns, [row, 1] and [column, 1]."""
        scaled = products[: len(rows)].to(torch.float32)
        if len(products) > len(rows):
            scaled.add_(products[len(rows) :], alpha=1 / RESIDUALS)
        return scaled.mul_(rows).mul_(columns.T)


class CompiledRounding:
    """Rounding by compiled loops."""

    def quantise_rows(self, matrix: Tensor, bits: int = 8) -> QuantisedRows:
        """Round each row of a matrix, by its own largest value, to 8 or 16 bits."""
        from decoder2vec.backbone import int8_kernels

        rows = QuantisedRows.empty(matrix.shape[0], matrix.shape[1], bits)
        quantise = int8_kernels.quantise_rows if bits == 8 else int8_kernels.quantise_rows_in_16_bits
        quantise(as_array(matrix), as_array(rows.values), as_array(rows.scales))
        return rows

    def scale_products(self, products: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return products in int32 times the scales of their rows and columns, [row, 1] and [column, 1]."""
        from decoder2vec.backbone import int8_kernels

        scaled = torch.empty(len(rows), products.shape[1])
        in_8_bits = len(products) == len(rows)
        scale = int8_kernels.scale_products if in_8_bits else int8_kernels.scale_products_in_16_bits
        scale(as_array(products), as_array(rows), as_array(columns), as_array(scaled))
        return scaled


Int8Rounding = TorchRounding | CompiledRounding


def available_roundings() -> list[Int8Rounding]:
    """Return the ways to round that are installed."""
    return [TorchRounding(), CompiledRounding()] if find_spec("numba") else [TorchRounding()]


def as_array(tensor: Tensor) -> NDArray[Any]:
    """A tensor as a contiguous array, without a copy where possible."""
    return tensor.detach().contiguous().numpy()
