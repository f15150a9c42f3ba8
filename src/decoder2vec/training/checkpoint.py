"""The state of a training run, in memory and in one safetensors file: current, best, optimizer, random numbers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from decoder2vec.backbone.sharding import shard_like, whole_tensors
from decoder2vec.errors import StorageError
from decoder2vec.storage import parse_json
from decoder2vec.tensor_files import load_tensors, save_tensors
from decoder2vec.training.distributed import broadcast

_SAVE_EVERY = 10.0
"""Seconds between checkpoints, where writing one is fast; a kill loses at most this much work."""
_FAST_WRITE = _SAVE_EVERY / 20
"""Seconds. Checkpoints that take longer to write are written proportionally less often: at most 5 % of the time."""


class Checkpoint:
    """Saves and restores a run. Without a file, only the best state is kept, in memory."""

    def __init__(self, file: Path | None, *, writes: bool = True, gathers: bool = False) -> None:
        """Of several processes all read the file and one `writes` it.

        Args:
            file: The file; None: nothing is written.
            writes: Whether this process writes it.
            gathers: Whether parameters are sharded, so that all processes must take part when it is written.

        """
        self.file, self.writes, self.gathers = file, writes, gathers
        self.best: dict[str, Tensor] = {}
        self.last_written, self.write_seconds = time.monotonic(), 0.0

    def keep_best(self, module: nn.Module) -> None:
        """Keep a copy of the current state as the best."""
        self.best = {name: tensor.detach().clone() for name, tensor in _trained_state(module).items()}

    def restore_best(self, module: nn.Module) -> None:
        """Load the best state into the module."""
        module.load_state_dict(self.best, strict=False)

    def hint(self) -> str:
        """For error messages: where the last good state is."""
        return f"; the last good state is in {self.file}" if self.file and self.file.is_file() else ""

    def is_due(self) -> bool:
        """Whether it is time to write the file again."""
        if self.file is None or not (self.writes or self.gathers):
            return False
        interval = _SAVE_EVERY * max(1.0, self.write_seconds / _FAST_WRITE)
        is_due = time.monotonic() - self.last_written >= interval
        return broadcast(lambda: is_due) if self.gathers else is_due

    def write(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: dict[str, Any],
        random: dict[str, Tensor],
    ) -> None:
        """Write everything a run resumes from; the old file stays until the new one is complete."""
        if self.file is None or not (self.writes or self.gathers):
            return
        started = time.monotonic()
        tensors = {f"best.{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"now.{name}": tensor for name, tensor in _trained_state(module).items()}
        tensors |= {f"random.{name}": state for name, state in random.items()}
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{name}": value for name, value in state.items()}
        tensors = whole_tensors(tensors, keep=self.writes)
        if not self.writes:
            return
        try:
            save_tensors(tensors, self.file, {"progress": json.dumps(progress)})
        except OSError as error:
            raise StorageError(
                f"The checkpoint {self.file} cannot be written ({error}); free some disk space and run the same "
                "command again: training resumes from the previous checkpoint."
            ) from error
        self.last_written = time.monotonic()
        self.write_seconds = self.last_written - started

    def resume(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Restore module, optimizer and random numbers; returns the written `progress`, None without a valid file."""
        if self.file is None or not self.file.is_file():
            return None
        try:
            tensors, metadata = load_tensors(self.file)
            progress: dict[str, Any] = parse_json(metadata["progress"])
            current, state = _with_prefix(tensors, "now."), _trained_state(module)
            if _shapes(current) != _shapes(state):  # loading would fail halfway
                return None
            module.load_state_dict(_shards_like(current, state), strict=False)
        except (StorageError, RuntimeError, KeyError, TypeError, ValueError):
            return None
        device = next(module.parameters()).device
        best = {name: tensor.to(device) for name, tensor in _with_prefix(tensors, "best.").items()}
        self.best = _shards_like(best, state)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        states: dict[int, dict[str, Any]] = {}
        for name, tensor in _with_prefix(tensors, "adam.").items():
            index, key = name.split(".", 1)
            parameter = parameters[int(index)]
            is_moment = tensor.shape == parameter.shape  # and not the number of steps
            states.setdefault(int(index), {})[key] = shard_like(tensor, parameter) if is_moment else tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
        set_random_states(_with_prefix(tensors, "random."))
        return progress


def random_states() -> dict[str, Tensor]:
    """The states of torch's random number generators."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict[str, Tensor]) -> None:
    """Restore what `random_states` has returned."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _trained_state(module: nn.Module) -> dict[str, Tensor]:
    """Trained parameters, and buffers."""
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    return {name: tensor for name, tensor in module.state_dict().items() if name not in frozen}


def _shards_like(tensors: dict[str, Tensor], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parts of this process of whole tensors whose counterparts in the state are sharded."""
    return {name: shard_like(tensor, state[name]) for name, tensor in tensors.items()}


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
