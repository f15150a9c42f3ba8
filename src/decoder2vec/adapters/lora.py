"""LoRA: trained low-rank updates of the model's linear layers, saved in peft's format.

While the adapter is enabled, an update B A is merged into the weight of its layer: once per training step, and for a
frozen adapter only the first time. So a pass costs as much as one of the plain model, and the model is restored
afterwards. In some cases the update is instead added to the output of the layer by a hook, as peft does it: if the
weights are too large to be held twice, quantised or sharded, or if dropout is applied to the inputs; and in training on
a CPU, where it is less work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter, TokenBatch
from decoder2vec.backbone.int8_linear import Int8Linear
from decoder2vec.backbone.int8_product import QuantisedRows
from decoder2vec.backbone.sharding import is_sharded
from decoder2vec.errors import EncoderError, InputError, UnsupportedError

_MAX_MERGED = 2_000_000_000
"""Number of weights that may be held twice, plain and merged."""
_NEVER_CALLED = {"out_proj", "dt_proj"}
"""Layers of state-space models whose kernels use the weight without calling the layer, so that hooks do nothing."""


@dataclass(frozen=True)
class LoraConfig:
    """Which layers get an update, and its size."""

    rank: int = 16
    alpha: float = 32
    """The update is scaled by alpha / rank."""
    dropout: float = 0.0
    targets: tuple[str, ...] = ()
    """Last components of the names of the layers; empty: every linear layer inside the blocks."""
    depth: int = 0
    """Number of lower blocks that get updates; 0: all."""


class Lora(Adapter):
    """Low-rank updates, stacked over layers of the same name and size.

    The parameters of each group are `lower` [layer, rank, in] (peft's lora_A) and `upper` [layer, out, rank] (lora_B).
    These names are part of the digest, so they must not change.
    """

    kind: ClassVar[str] = "lora"
    packs: ClassVar[bool] = True
    changes_weights_only: ClassVar[bool] = True

    def __init__(self, backbone: Backbone, config: LoraConfig) -> None:
        super().__init__()
        if config.rank < 1 or not 0 <= config.dropout < 1:
            raise InputError("The rank of LoRA is 1 or more, its dropout 0 or more and below 1.")
        self.config = config
        self.groups = _group_layers(backbone, config)
        """(path from the model, module) of each layer of each group."""
        self._modules_of = {name: [module for _, module in layers] for name, layers in self.groups.items()}
        self.lower = nn.ParameterDict()
        self.upper = nn.ParameterDict()
        for name, layers in self.groups.items():
            in_features, out_features = _features(layers[0][1])
            lower = torch.empty(len(layers), config.rank, in_features)
            nn.init.kaiming_uniform_(lower.flatten(0, 1), a=5**0.5)  # as in peft
            self.lower[name] = nn.Parameter(lower)
            self.upper[name] = nn.Parameter(torch.zeros(len(layers), out_features, config.rank))
        self.compiled = False
        """Whether the blocks run compiled; code that was compiled without hooks does not call hooks added later."""
        self._never_merged = config.dropout > 0 or not _can_be_merged(self._modules_of)
        self._layers_are_called = not _has_state_space(backbone)
        unreachable = set() if self._layers_are_called else _NEVER_CALLED & set(self.settings()["targets"])
        if self._never_merged and unreachable:
            raise UnsupportedError(
                f"{backbone.family} uses the weights of {', '.join(sorted(unreachable))} without calling these layers, "
                "so LoRA with dropout or on quantised weights has no effect there; leave them out or use no dropout."
            )
        self._nesting = 0
        self._merged_cache: tuple[list[int], dict[str, list[Tensor | QuantisedRows]]] | None = None
        self.eval()  # dropout is for training only

    @classmethod
    def initialise(cls, backbone: Backbone, rank: int, alpha: float, dropout: float = 0.0, depth: int = 0) -> Lora:
        """New LoRA on every linear layer inside the first `depth` blocks (0: all); its updates are zero at first."""
        return cls(backbone, LoraConfig(rank, alpha, dropout, depth=depth))

    @property
    def scaling(self) -> float:
        """Factor of the product of the matrices."""
        return self.config.alpha / self.config.rank

    def settings(self) -> dict[str, Any]:
        """The config, with the names of all target layers."""
        return {
            "rank": self.config.rank,
            "alpha": self.config.alpha,
            "dropout": self.config.dropout,
            "targets": sorted({path.rpartition(".")[2] for layers in self.groups.values() for path, _ in layers}),
            "depth": self.config.depth,
        }

    @contextmanager
    def enabled(self, batch: TokenBatch | None = None) -> Iterator[None]:
        """Context in which the layers compute with their updates; nested contexts have no further effect."""
        self._nesting += 1
        undo = (self._add_hooks() if self._uses_hooks() else self._swap_weights()) if self._nesting == 1 else []
        try:
            yield
        finally:
            self._nesting -= 1
            for restore in undo:
                restore()

    def _uses_hooks(self) -> bool:
        """Whether updates are added to the outputs of layers instead of merged into their weights.

        They are where they must be, and in training on a CPU: a merged weight needs a gradient of its own size, which
        makes a layer half as expensive again. On a GPU merging leaves fewer products to launch.
        """
        training = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in self.parameters())
        on_cpu = next(self.parameters()).device.type == "cpu"
        return self._never_merged or (training and on_cpu and self._layers_are_called and not self.compiled)

    def merged_weights(self) -> dict[str, list[Tensor | QuantisedRows]]:
        """Weights with their updates for each group, quantised if the layers are; cached if nothing is trained."""
        matrices = [*self.lower.values(), *self.upper.values()]
        trainable = any(matrix.requires_grad for matrix in matrices)  # fused optimisers do not increase the version
        versions = [matrix._version for matrix in matrices] + [matrices[0].data_ptr()]
        if not trainable and self._merged_cache and self._merged_cache[0] == versions:
            return self._merged_cache[1]
        # what is cached in inference mode could not be used where gradients pass through the model
        with nullcontext() if trainable else torch.inference_mode(False):
            merged = {name: self._merge(name) for name in self.groups}
        self._merged_cache = None if trainable else (versions, merged)
        return merged

    def merged_weights_by_path(self) -> dict[str, Tensor]:
        """Weight with its update for each layer, by the layer's path from the model."""
        weights = {}
        for name, layers in self.groups.items():
            for (path, _), weight in zip(layers, self.merged_weights()[name], strict=True):
                if not isinstance(weight, Tensor):
                    raise UnsupportedError("Weights in int8 are rounded; load the encoder with dtype='float32' first.")
                weights[path] = weight
        return weights

    def _merge(self, name: str) -> list[Tensor | QuantisedRows]:
        with torch.autocast(self.lower[name].device.type, enabled=False):
            updates = torch.bmm(self.upper[name], self.lower[name]).mul_(self.scaling)
        modules = self._modules_of[name]
        if _is_transposed(modules[0]):
            updates = updates.transpose(1, 2)
        if quantised := [module for module in modules if isinstance(module, Int8Linear)]:
            # one weight at a time is in float32
            return [layer.quantise(layer.weight + update) for layer, update in zip(quantised, updates, strict=True)]
        weights = [module.get_parameter("weight") for module in modules]
        return [weight + update for weight, update in zip(weights, updates.to(weights[0].dtype).unbind(), strict=True)]

    def _swap_weights(self) -> list[Callable[[], None]]:
        """Replace the weights of the layers by the merged ones; return functions that restore them."""
        undo = []
        for name, weights in self.merged_weights().items():
            for module, weight in zip(self._modules_of[name], weights, strict=True):
                undo.append(_replace_weight(module, weight))
        return undo

    def _add_hooks(self) -> list[Callable[[], None]]:
        """Add each update to the output of its layer; return functions that remove the hooks."""
        undo = []
        for name, modules in self._modules_of.items():
            # unbound once: an index in every layer would compute a gradient for all layers each time
            for module, lower, upper in zip(modules, self.lower[name].unbind(), self.upper[name].unbind(), strict=True):
                undo.append(module.register_forward_hook(self._update_hook(lower, upper)).remove)
        return undo

    def _update_hook(self, lower: Tensor, upper: Tensor) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def add_update(_: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            states = functional.dropout(inputs[0].float(), self.config.dropout, self.training)
            update = functional.linear(functional.linear(states, lower) * self.scaling, upper)
            return output + update.to(output.dtype)

        return add_update

    def peft_state_dict(self) -> dict[str, Tensor]:
        """The matrices of each layer under peft's names."""
        state = {}
        for name, layers in self.groups.items():
            for index, (path, _) in enumerate(layers):
                state[f"base_model.model.{path}.lora_A.weight"] = self.lower[name][index]
                state[f"base_model.model.{path}.lora_B.weight"] = self.upper[name][index]
        return state

    @torch.no_grad()
    def load_peft_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Load matrices under peft's names; raises EncoderError if a shape differs."""
        for name, matrix in self.peft_state_dict().items():
            if tensors[name].shape != matrix.shape:  # copy_ would broadcast it
                raise EncoderError(f"{name} is {list(tensors[name].shape)} and should be {list(matrix.shape)}.")
            matrix.copy_(tensors[name])

    def peft_config(self, backbone: Backbone) -> dict[str, Any]:
        """The content of peft's `adapter_config.json`."""
        layers = [layer for group in self.groups.values() for layer in group]
        all_blocks = self.config.depth in (0, backbone.n_layers)
        return {
            "peft_type": "LORA",
            "task_type": "FEATURE_EXTRACTION",
            "base_model_name_or_path": backbone.name,
            "r": self.config.rank,
            "lora_alpha": self.config.alpha,
            "lora_dropout": self.config.dropout,
            "target_modules": self.settings()["targets"] if all_blocks else sorted(path for path, _ in layers),
            "fan_in_fan_out": _is_transposed(layers[0][1]),
            "bias": "none",
            "inference_mode": True,
        }


def linear_layer_names(backbone: Backbone) -> set[str]:
    """Last components of the names of all linear layers inside the blocks, found by structure."""
    names = {name.rpartition(".")[2] for name, module in backbone.blocks.named_modules() if _is_linear(module)}
    return names - _NEVER_CALLED if _has_state_space(backbone) else names


def _group_layers(backbone: Backbone, config: LoraConfig) -> dict[str, list[tuple[str, nn.Module]]]:
    """(path from the model, module) of the target layers; those of equal name and size in different blocks together."""
    targets = set(config.targets) or linear_layer_names(backbone)
    prefix = next(name for name, module in backbone.model.named_modules() if module is backbone.blocks)
    groups: dict[str, list[tuple[str, nn.Module]]] = {}
    for index, block in enumerate(backbone.blocks[: config.depth or None]):  # type: ignore[arg-type]
        for path, module in block.named_modules():
            if _is_linear(module) and path.rpartition(".")[2] in targets:
                name = f"{path.replace('.', '-')}-{'x'.join(map(str, _features(module)))}"
                groups.setdefault(name, []).append((f"{prefix}.{index}.{path}", module))
    if not groups:
        raise UnsupportedError(f"{backbone.family} has no linear layer called {', '.join(sorted(targets))}.")
    return groups


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _is_transposed(module: nn.Module) -> bool:
    """Whether the weight is [in, out], as in GPT-2."""
    return type(module).__name__ == "Conv1D"


def _features(module: nn.Module) -> tuple[int, int]:
    """Input and output width of a layer."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    in_features, out_features = module.get_parameter("weight").shape
    return in_features, out_features


def _can_be_merged(modules: dict[str, list[nn.Module]]) -> bool:
    layers = [module for members in modules.values() for module in members]
    count = sum(math.prod(_features(layer)) for layer in layers)
    is_known = (isinstance(layer, Int8Linear) or layer.get_parameter("weight").is_floating_point() for layer in layers)
    shards = any(is_sharded(layer) for layer in layers)
    return all(is_known) and count <= _MAX_MERGED and not shards


def _has_state_space(backbone: Backbone) -> bool:
    """Whether blocks contain state-space layers, whose kernels may use weights without calling their layers."""
    return any(hasattr(module, "A_log") for module in backbone.blocks.modules())


def _replace_weight(module: nn.Module, weight: Tensor | QuantisedRows) -> Callable[[], None]:
    """Let the layer compute with another weight; return a function that restores its own."""
    if isinstance(module, Int8Linear) and isinstance(weight, QuantisedRows):
        return module.exchange_weight(weight)
    parameters = module._parameters
    module.__dict__["_parameters"] = {name: value for name, value in parameters.items() if name != "weight"}
    module.__dict__["weight"] = weight

    def undo() -> None:
        del module.__dict__["weight"]
        module.__dict__["_parameters"] = parameters

    return undo
