"""Linear layers in 8 bits, for encoding on a CPU: a quarter of the memory, faster than float32.

The weight of a layer has one scale per output, its input one scale per token, taken from the token itself: decoders
have a few dimensions with values 30 to 1,000 times as large as the others, and one scale for all tokens would round the
rest away. The product is exact in integers, so rounding is the only difference to float32.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.backbone.cpu_dtype import MIN_WIDTH, fastest_seconds
from decoder2vec.backbone.int8_product import LARGEST, Int8Product, QuantisedRows, TorchProduct, available_products
from decoder2vec.backbone.int8_rounding import CompiledRounding, Int8Rounding, TorchRounding, available_roundings
from decoder2vec.errors import UnsupportedError

Result = TypeVar("Result")

_PROBE_ROWS = 256
_MIN_SHARE = 1 / 20
"""Layers with a smaller share of the weights of a block stay in float32."""
_KEY_VALUE_LAYERS = ("k_proj", "v_proj")
"""But keys and values that several heads share, where rounding is compiled: their inputs have 16 bits, since rounding
the values alone to 8 bits causes about half of the loss of quality."""


class LastResult(Generic[Result]):
    """What was computed last, in each thread, from a tensor that several layers read."""

    def __init__(self) -> None:
        self._of_thread = threading.local()  # several threads may compute a batch each

    def __deepcopy__(self, memo: dict[int, object]) -> LastResult[Result]:
        return LastResult()

    def of(self, tensor: Tensor) -> Result | None:
        """Return the result of this very tensor; None if the last one was of another."""
        source, result = getattr(self._of_thread, "last", (None, None))
        return result if source is not None and source() is tensor else None

    def keep(self, tensor: Tensor, result: Result) -> Result:
        """Keep the result of a tensor as long as the tensor is used, and return it."""
        self._of_thread.last = ref(tensor), result
        return result


class SharedInput:
    """The quantised input of the last layer: query, key and value layers, or gate and up, read the same tensor.

    Args:
        rounding: What rounds it.
    """

    def __init__(self, rounding: Int8Rounding) -> None:
        self.rounding = rounding
        self._rows = LastResult[QuantisedRows]()
        self.masks = LastResult[Tensor]()
        """What attention adds to scores for the mask that all layers get."""

    def quantise(self, inputs: Tensor, bits: int = 8) -> QuantisedRows:
        """Return the tokens of all texts as rows of 8 or 16 bits."""
        rows = self._rows.of(inputs)
        if rows is None or rows.bits < bits:
            rows = self.rounding.quantise_rows(inputs.reshape(-1, inputs.shape[-1]), bits)
            self._rows.keep(inputs, rows)
        return rows if bits == rows.bits else rows.in_8_bits()


class Int8Linear(nn.Linear):
    """A linear layer whose weight is quantised; it has no gradients.

    Args:
        layer: The layer to replace.
        product: What computes the products.
        shared: The quantised input that the layers of a model share, and what rounds it.
        input_bits: 8 or 16 bits of each number of the input.
    """

    values: Tensor
    scales: Tensor

    def __init__(
        self,
        layer: nn.Linear,
        product: Int8Product | None = None,
        shared: SharedInput | None = None,
        input_bits: int = 8,
    ) -> None:
        nn.Module.__init__(self)
        self.input_bits = input_bits
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        self._product = product or TorchProduct()
        values, scales = self.quantise(layer.weight.detach().float())
        self.register_buffer("values", values)
        self.register_buffer("scales", scales)
        self.shared = shared or SharedInput(TorchRounding())

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight in float32, after rounding."""
        return self.values * self.scales

    def forward(self, input: Tensor) -> Tensor:
        """Return the product with the weight, in float32."""
        if torch.is_grad_enabled() and input.requires_grad:
            raise UnsupportedError(
                "Weights in int8 have no gradients; train in float32 or bfloat16, and encode in int8 afterwards."
            )
        rows = self.shared.quantise(input, self.input_bits)
        return self.output(rows).view(*input.shape[:-1], self.out_features)

    def products(self, rows: QuantisedRows) -> Tensor:
        """[row, output] products of the weight with integers, in int32; without scales and bias.

        Of inputs in 16 bits [2 * row, output]: the products with residuals follow those with values.
        """
        return self._product(rows.values, self.values)

    def output(self, rows: QuantisedRows) -> Tensor:
        """[row, output] products of the weight with quantised inputs, in float32."""
        output = self.shared.rounding.scale_products(self.products(rows), rows.scales, self.scales)
        return output if self.bias is None else output.add_(self.bias)

    def quantise(self, weight: Tensor) -> QuantisedRows:
        """Round a weight, [output, input], for this layer."""
        values, scales = TorchRounding().quantise_rows(weight)
        return QuantisedRows(self._product.arrange(values), scales)

    def exchange_weight(self, weight: QuantisedRows) -> Callable[[], None]:
        """Compute with another weight; return a function that restores this one."""
        before = self.values, self.scales
        self.values, self.scales = weight

        def undo() -> None:
            self.values, self.scales = before

        return undo


def quantise_layers(blocks: nn.ModuleList) -> str:
    """Replace the large linear layers inside the blocks of a model by layers in 8 bits.

    Returns:
        The measured gain, in words; empty for models too small to be measured.

    Raises:
        UnsupportedError: This processor computes such layers wrongly or more slowly than in float32, or there are none.
    """
    layers = [layer for block in blocks for layer in _layers_to_quantise(block)]
    if not layers:
        raise UnsupportedError("This model has no plain linear layers that could be quantised to int8; use float32.")
    largest = max((layer for _, _, layer, _ in layers), key=lambda layer: layer.weight.numel())
    product, rounding, reason = _choose_arithmetic(largest)
    shared = SharedInput(rounding)
    compiled = isinstance(rounding, CompiledRounding)
    for parent, name, layer, bits in layers:
        if bits == 8 or compiled:  # rounding to 16 bits in torch takes as long as the product in float32
            setattr(parent, name, Int8Linear(layer, product, shared, bits))
    return reason


def _layers_to_quantise(block: nn.Module) -> list[tuple[nn.Module, str, nn.Linear, int]]:
    """(parent, name, layer, bits of its input) of the layers that most of the time goes to, and keys and values."""
    layers = [
        (parent, name, child)
        for parent in block.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    least = _MIN_SHARE * sum(layer.weight.numel() for _, _, layer in layers)
    return [
        (parent, name, layer, 8 if layer.weight.numel() >= least else 16)
        for parent, name, layer in layers
        if layer.weight.numel() >= least or name in _KEY_VALUE_LAYERS
    ]


@torch.inference_mode()
def _choose_arithmetic(layer: nn.Linear) -> tuple[Int8Product, Int8Rounding, str]:
    """The fastest product of those that are exact, the fastest rounding, and their gain over float32 in words."""
    products = [product for product in available_products() if _is_exact(product, layer)]
    if not products:
        raise UnsupportedError("This processor computes products in int8 wrongly; use another dtype.")
    if min(layer.in_features, layer.out_features) < MIN_WIDTH:
        return products[0], available_roundings()[0], ""
    inputs = torch.randn(_PROBE_ROWS, layer.in_features)
    rounding = min(available_roundings(), key=lambda rounding: _rounding_seconds(rounding, inputs))
    plain = fastest_seconds(lambda: functional.linear(inputs, layer.weight), repeats=9)
    gains = [plain / _seconds(Int8Linear(layer, product, SharedInput(rounding)), inputs) for product in products]
    gain = max(gains)
    reason = f"a layer in int8 has {gain:.2g} times the speed of float32 on this processor"
    if gain < 1:
        advice = "" if len(available_products()) > 1 else ", or pip install 'decoder2vec[onnx]', which may be faster"
        raise UnsupportedError(f"{reason.capitalize()}; use another dtype{advice}.")
    return products[gains.index(gain)], rounding, reason


def _rounding_seconds(rounding: Int8Rounding, inputs: Tensor) -> float:
    """Of rounding and scaling alone, since products take longer than the difference."""
    products, scales = inputs.to(torch.int32), torch.ones(inputs.shape[1], 1)
    return fastest_seconds(
        lambda: rounding.scale_products(products, rounding.quantise_rows(inputs).scales, scales), repeats=9
    )


def _seconds(layer: Int8Linear, inputs: Tensor) -> float:
    # a new tensor each time: the same one would be quantised only once
    return fastest_seconds(lambda: layer(inputs.view_as(inputs)), repeats=9)


def _is_exact(product: Int8Product, layer: nn.Linear) -> bool:
    """Whether the largest sums are right: a processor without VNNI may add pairs in 16 bits, which overflow."""
    extreme = torch.full((_PROBE_ROWS, layer.in_features), LARGEST, dtype=torch.int8)
    extreme[1::2] = -LARGEST
    weight = product.arrange(extreme[:1].expand(layer.out_features, -1).contiguous())
    return torch.equal(product(extreme, weight).double(), extreme.double() @ weight.T.double())
