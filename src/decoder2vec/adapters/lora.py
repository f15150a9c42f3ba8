"""LoRA: low-rank changes of the model's linear layers.

A change B A is added to a layer's weight for the time that the adapter is switched on: once for a whole training step,
and for frozen adapters only the first time. So a pass costs what a pass of the bare model costs, and the model is left
as it was found. Where weights are too many to be held twice, or quantised, or inputs are dropped out, the change is
computed beside the layer, as peft does it; and so it is while it learns on a CPU, where that is less work. Files are
peft's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter
from decoder2vec.errors import InputError, UnsupportedError

_MOST_MERGED = 2_000_000_000
"""Weights that may be held twice, once as they are and once with the change added."""
_BYPASSED = {"out_proj", "dt_proj"}
"""Layers of state-space models whose kernels take the bare weights, so that a change beside them would do nothing."""


@dataclass(frozen=True)
class LoraConfig:
    """What is changed, and how much room the change has."""

    rank: int = 16
    alpha: float = 32
    """The change is scaled by alpha / rank."""
    dropout: float = 0.0
    targets: tuple[str, ...] = ()
    """The last parts of the names of the layers that are changed; empty: every linear layer inside the blocks."""
    depth: int = 0
    """Only the first so many blocks are changed; 0: all."""


class Lora(Adapter):
    """Matrices A [layer, rank, in] and B [layer, out, rank] for each group of layers that are alike."""

    kind: ClassVar[str] = "lora"

    def __init__(self, backbone: Backbone, shape: LoraConfig) -> None:
        super().__init__()
        if shape.rank < 1 or not 0 <= shape.dropout < 1:
            raise InputError("The rank of LoRA is 1 or more, its dropout 0 or more and below 1.")
        self.shape = shape
        self.groups = _groups(backbone, shape)
        self._modules_of = {name: [module for _, module in members] for name, members in self.groups.items()}
        self.lower = nn.ParameterDict()
        self.upper = nn.ParameterDict()
        for name, members in self.groups.items():
            inside, outside = _widths(members[0][1])
            lower = torch.empty(len(members), shape.rank, inside)
            nn.init.kaiming_uniform_(lower.flatten(0, 1), a=5**0.5)  # as peft starts them
            self.lower[name] = nn.Parameter(lower)
            self.upper[name] = nn.Parameter(torch.zeros(len(members), outside, shape.rank))
        self.compiled = False
        """Do the blocks run compiled? What was compiled without hooks does not see those that have come since."""
        self._never_merged = shape.dropout > 0 or not _can_be_merged(self._modules_of)
        self._always_called = not _has_state_space(backbone)
        passed_over = set() if self._always_called else _BYPASSED & set(self.settings()["targets"])
        if self._never_merged and passed_over:
            raise UnsupportedError(
                f"{backbone.family} takes the bare weights of {', '.join(sorted(passed_over))}, so a change beside "
                "them would do nothing; leave them out, or take no dropout."
            )
        self._open = 0
        self._kept: tuple[list[int], dict[str, list[Tensor]]] | None = None
        self.eval()  # dropout is for training only

    @classmethod
    def initialise(cls, backbone: Backbone, rank: int, alpha: float, dropout: float = 0.0, depth: int = 0) -> Lora:
        """LoRA on every linear layer inside the first `depth` blocks (0: all); it changes nothing yet."""
        return cls(backbone, LoraConfig(rank, alpha, dropout, depth=depth))

    @property
    def scale(self) -> float:
        """What the product of the matrices is multiplied by."""
        return self.shape.alpha / self.shape.rank

    def settings(self) -> dict[str, Any]:
        """Its shape."""
        return {
            "rank": self.shape.rank,
            "alpha": self.shape.alpha,
            "dropout": self.shape.dropout,
            "targets": sorted({path.rpartition(".")[2] for paths in self.groups.values() for path, _ in paths}),
            "depth": self.shape.depth,
        }

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Every layer is changed; opened again inside, it does nothing more."""
        self._open += 1
        undo = (self._hook() if self._is_beside() else self._swap()) if self._open == 1 else []
        try:
            yield
        finally:
            self._open -= 1
            for job in undo:
                job()

    def _is_beside(self) -> bool:
        """Is the change to be computed beside the layers, not added to their weights?

        It is where it must be, and while it learns on a CPU: a changed weight needs a gradient as large as itself, half
        as much work again for a layer. On a GPU it is added, which leaves fewer products to launch.
        """
        learning = torch.is_grad_enabled() and any(number.requires_grad for number in self.parameters())
        on_cpu = next(self.parameters()).device.type == "cpu"
        return self._never_merged or (learning and on_cpu and self._always_called and not self.compiled)

    def merged(self) -> dict[str, list[Tensor]]:
        """The changed weights of each group; those of frozen matrices are kept for the next time."""
        numbers = [*self.lower.values(), *self.upper.values()]
        learning = any(number.requires_grad for number in numbers)  # a fused optimiser does not count versions
        versions = [number._version for number in numbers] + [numbers[0].data_ptr()]
        if not learning and self._kept and self._kept[0] == versions:
            return self._kept[1]
        found = {name: self._merge(name) for name in self.groups}
        self._kept = None if learning else (versions, found)
        return found

    def merged_weights_by_path(self) -> dict[str, Tensor]:
        """The changed weight of each layer, by its path from the model."""
        found = self.merged()
        return {
            path: weight
            for name, members in self.groups.items()
            for (path, _), weight in zip(members, found[name], strict=True)
        }

    def _merge(self, name: str) -> list[Tensor]:
        with torch.autocast(self.lower[name].device.type, enabled=False):
            changes = torch.bmm(self.upper[name], self.lower[name]) * self.scale
        members = self._modules_of[name]
        if _is_transposed(members[0]):
            changes = changes.transpose(1, 2)
        own = [module.get_parameter("weight") for module in members]
        return [weight + part for weight, part in zip(own, changes.to(own[0].dtype).unbind(), strict=True)]

    def _swap(self) -> list[Any]:
        """Put the changed weights in the place of the model's own; returns what undoes it."""
        undo = []
        for name, weights in self.merged().items():
            for module, weight in zip(self._modules_of[name], weights, strict=True):
                undo.append(_replace_weight(module, weight))
        return undo

    def _hook(self) -> list[Any]:
        """Add the change to the output of each layer; returns what undoes it."""
        undo = []
        for name, members in self._modules_of.items():
            # unbound once: indexed in each layer, they would get a gradient for all layers from each
            for module, lower, upper in zip(members, self.lower[name].unbind(), self.upper[name].unbind(), strict=True):
                undo.append(module.register_forward_hook(self._adding(lower, upper)).remove)
        return undo

    def _adding(self, lower: Tensor, upper: Tensor) -> Callable[[nn.Module, Any, Tensor], Tensor]:
        def add(_: nn.Module, given: Any, output: Tensor) -> Tensor:
            states = functional.dropout(given[0].float(), self.shape.dropout, self.training)
            change = functional.linear(functional.linear(states, lower) * self.scale, upper)
            return output + change.to(output.dtype)

        return add

    def peft_state_dict(self) -> dict[str, Tensor]:
        """The matrices of each layer under the names that peft gives them in a file."""
        found = {}
        for name, members in self.groups.items():
            for number, (path, _) in enumerate(members):
                found[f"base_model.model.{path}.lora_A.weight"] = self.lower[name][number]
                found[f"base_model.model.{path}.lora_B.weight"] = self.upper[name][number]
        return found

    @torch.no_grad()
    def load_peft_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `peft_state_dict`."""
        for name, own in self.peft_state_dict().items():
            if tensors[name].shape != own.shape:  # a copy would stretch it
                raise InputError(f"{name} is {list(tensors[name].shape)} and should be {list(own.shape)}.")
            own.copy_(tensors[name])

    def peft_config(self, backbone: Backbone) -> dict[str, Any]:
        """What peft's `adapter_config.json` says."""
        members = [member for group in self.groups.values() for member in group]
        whole = self.shape.depth in (0, backbone.n_layers)
        return {
            "peft_type": "LORA",
            "task_type": "FEATURE_EXTRACTION",
            "base_model_name_or_path": backbone.name,
            "r": self.shape.rank,
            "lora_alpha": self.shape.alpha,
            "lora_dropout": self.shape.dropout,
            "target_modules": self.settings()["targets"] if whole else sorted(path for path, _ in members),
            "fan_in_fan_out": _is_transposed(members[0][1]),
            "bias": "none",
            "inference_mode": True,
        }


def linear_layer_names(backbone: Backbone) -> set[str]:
    """The last parts of the names of all linear layers inside the blocks, found by structure."""
    found = {name.rpartition(".")[2] for name, module in backbone.blocks.named_modules() if _is_linear(module)}
    return found - _BYPASSED if _has_state_space(backbone) else found


def _groups(backbone: Backbone, shape: LoraConfig) -> dict[str, list[tuple[str, nn.Module]]]:
    """Layers of the same name and size in all blocks that are changed, by path from the model."""
    targets = set(shape.targets) or linear_layer_names(backbone)
    prefix = next(name for name, module in backbone.model.named_modules() if module is backbone.blocks)
    groups: dict[str, list[tuple[str, nn.Module]]] = {}
    for number, block in enumerate(backbone.blocks[: shape.depth or None]):  # type: ignore[arg-type]
        for path, module in block.named_modules():
            if _is_linear(module) and path.rpartition(".")[2] in targets:
                name = f"{path.replace('.', '-')}-{'x'.join(map(str, _widths(module)))}"
                groups.setdefault(name, []).append((f"{prefix}.{number}.{path}", module))
    if not groups:
        raise UnsupportedError(f"{backbone.family} has no linear layer called {', '.join(sorted(targets))}.")
    return groups


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _is_transposed(module: nn.Module) -> bool:
    """GPT-2 keeps its weights [in, out]."""
    return type(module).__name__ == "Conv1D"


def _widths(module: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a layer."""
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    inside, outside = module.get_parameter("weight").shape
    return inside, outside


def _can_be_merged(modules: dict[str, list[nn.Module]]) -> bool:
    weights = [module.get_parameter("weight") for members in modules.values() for module in members]
    held_twice = sum(weight.numel() for weight in weights)
    return all(weight.is_floating_point() for weight in weights) and held_twice <= _MOST_MERGED


def _has_state_space(backbone: Backbone) -> bool:
    """Are there blocks whose kernels may take the bare weights of layers without calling them?"""
    return any(hasattr(module, "A_log") for module in backbone.blocks.modules())


def _replace_weight(module: nn.Module, weight: Tensor) -> Any:
    """Let the layer compute with another tensor; returns what puts its own parameter back."""
    own = module._parameters
    module.__dict__["_parameters"] = {name: parameter for name, parameter in own.items() if name != "weight"}
    module.__dict__["weight"] = weight

    def undo() -> None:
        del module.__dict__["weight"]
        module.__dict__["_parameters"] = own

    return undo
