"""Rounding to int8 and scaling of products, in torch or by loops that Numba compiles, with the same results.

The loops read and write each matrix once, where torch takes eight passes; they need the extra `int8`.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

LARGEST = 127


class QuantisedRows(NamedTuple):
    """A matrix whose rows are integers of -127 to 127 times a scale."""

    values: Tensor
    """[row, column], int8."""
    scales: Tensor
    """[row, 1]"""

    @classmethod
    def empty(cls, rows: int, columns: int) -> QuantisedRows:
        """Return rows without values yet."""
        return cls(torch.empty(rows, columns, dtype=torch.int8), torch.empty(rows, 1))


class TorchRounding:
    """Rounding by operations of torch."""

    def quantise_rows(self, matrix: Tensor) -> QuantisedRows:
        """Round each row of a matrix, by its own largest value."""
        largest = torch.maximum(matrix.amax(-1, keepdim=True), matrix.amin(-1, keepdim=True).neg_())
        scales = largest.clamp_(min=1e-30).div_(LARGEST)
        return QuantisedRows((matrix / scales).round_().to(torch.int8), scales)

    def scale_products(self, products: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return products in int32 times the scales of their rows and columns, [row, 1] and [column, 1]."""
        return products.to(torch.float32).mul_(rows).mul_(columns.T)


class CompiledRounding:
    """Rounding by compiled loops."""

    def quantise_rows(self, matrix: Tensor) -> QuantisedRows:
        """Round each row of a matrix, by its own largest value."""
        from decoder2vec.backbone import int8_kernels

        rows = QuantisedRows.empty(*matrix.shape)
        int8_kernels.quantise_rows(as_array(matrix), as_array(rows.values), as_array(rows.scales))
        return rows

    def scale_products(self, products: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """Return products in int32 times the scales of their rows and columns, [row, 1] and [column, 1]."""
        from decoder2vec.backbone import int8_kernels

        scaled = torch.empty(products.shape)
        int8_kernels.scale_products(as_array(products), as_array(rows), as_array(columns), as_array(scaled))
        return scaled


Int8Rounding = TorchRounding | CompiledRounding


def available_roundings() -> list[Int8Rounding]:
    """Return the ways to round that are installed."""
    return [TorchRounding(), CompiledRounding()] if find_spec("numba") else [TorchRounding()]


def as_array(tensor: Tensor) -> NDArray[Any]:
    """A tensor as a contiguous array, without a copy where possible."""
    return tensor.detach().contiguous().numpy()
