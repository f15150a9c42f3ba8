"""Matrices in int8, and their exact products by the library that is fastest on a processor.

torch is fast on x86 with VNNI, and slower than in float32 on ARM, where ONNX Runtime is four times as fast as float32.

A matrix that needs 16 bits has two integers for each number: a scale times (a + b / 254), where b is what rounding to a
left over. All b are rows behind those of all a, so one product with a weight computes both.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

LARGEST = 127
RESIDUALS = 254
"""Residuals of rounding, at most a half, are rounded to this part of the scale."""
_MODEL = """<ir_version: 8, opset_import: ["": 17]>
product (int8[rows, inputs] rows, int8[inputs, outputs] weight) => (int32[rows, outputs] result) {
    result = MatMulInteger(rows, weight)
}"""


class QuantisedRows(NamedTuple):
    """A matrix whose rows are integers of -127 to 127 times a scale."""

    values: Tensor
    """[row, column], int8; in 16 bits [2 * row, column], the second half of which are residuals."""
    scales: Tensor
    """[row, 1]"""

    @classmethod
    def empty(cls, rows: int, columns: int, bits: int = 8) -> QuantisedRows:
        """Return rows without values yet."""
        return cls(torch.empty(rows * bits // 8, columns, dtype=torch.int8), torch.empty(rows, 1))

    @property
    def bits(self) -> int:
        """Bits of each number."""
        return 8 if len(self.values) == len(self.scales) else 16

    def in_8_bits(self) -> QuantisedRows:
        """The rows without residuals."""
        return QuantisedRows(self.values[: len(self.scales)], self.scales)


class TorchProduct:
    """Products by torch."""

    def arrange(self, weight: Tensor) -> Tensor:
        """Return an equal weight, [output, input], whose memory is in the order that is read fastest."""
        return weight

    def __call__(self, rows: Tensor, weight: Tensor) -> Tensor:
        """[row, output] products of rows, [row, input], with a weight, [output, input], in int32."""
        return torch._int_mm(rows, weight.T)


class OnnxRuntimeProduct:
    """Products by ONNX Runtime, with as many threads as torch has."""

    def arrange(self, weight: Tensor) -> Tensor:
        """Return an equal weight, [output, input], whose memory is in the order that is read fastest."""
        return weight.T.contiguous().T

    def __call__(self, rows: Tensor, weight: Tensor) -> Tensor:
        """[row, output] products of rows, [row, input], with a weight, [output, input], in int32."""
        inputs = {"rows": rows.numpy(), "weight": weight.T.numpy()}
        return torch.from_numpy(_session(torch.get_num_threads()).run(None, inputs)[0])


Int8Product = TorchProduct | OnnxRuntimeProduct


def available_products() -> list[Int8Product]:
    """Return the products that can be computed with what is installed."""
    has_onnx = all(find_spec(name) for name in ("onnx", "onnxruntime"))
    return [TorchProduct(), OnnxRuntimeProduct()] if has_onnx else [TorchProduct()]


@lru_cache(maxsize=8)
def _session(n_threads: int) -> Any:
    import onnxruntime
    from onnx import parser

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    # threads that wait must not take the cores from those of torch
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    model = parser.parse_model(_MODEL).SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
