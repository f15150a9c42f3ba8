"""The states of a training run: now, best, the optimiser's and the random numbers', in memory and in one file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from decoder2vec.errors import StorageError
from decoder2vec.storage import atomic_file

_SAVE_EVERY = 10.0
"""Seconds between checkpoints: what a kill can cost, where they are quickly written."""
_QUICKLY = _SAVE_EVERY / 20
"""Seconds. One that takes longer to write comes that much less often: writing is a twentieth of the time at most."""


class Checkpoint:
    """What a run can be taken up from; without a file, only the best state is kept, in memory."""

    def __init__(self, file: Path | None, *, writes: bool = True) -> None:
        self.file, self.writes = file, writes  # of several processes all read, and one writes
        self.best: dict[str, Tensor] = {}
        self.saved, self.took = time.monotonic(), 0.0

    def keep_best(self, module: nn.Module) -> None:
        """Remember the present state as the best."""
        self.best = {name: tensor.detach().clone() for name, tensor in _trained_state(module).items()}

    def restore_best(self, module: nn.Module) -> None:
        """Put the best state back."""
        module.load_state_dict(self.best, strict=False)

    def where(self) -> str:
        """For messages: where the last good state lies."""
        return f"; the state before it is kept in {self.file}" if self.file and self.file.is_file() else ""

    def is_due(self) -> bool:
        """Is there something to write to, and the last checkpoint no longer young?"""
        wait = _SAVE_EVERY * max(1.0, self.took / _QUICKLY)
        return self.file is not None and self.writes and time.monotonic() - self.saved >= wait

    def write(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: dict[str, Any],
        random: dict[str, Tensor],
    ) -> None:
        """Write everything that is needed to go on; the old file stays until the new one is whole."""
        if self.file is None or not self.writes:
            return
        began = time.monotonic()
        tensors = {f"best.{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"now.{name}": tensor for name, tensor in _trained_state(module).items()}
        tensors |= {f"random.{name}": state for name, state in random.items()}
        for number, state in optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": value for name, value in state.items()}
        whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        try:
            with atomic_file(self.file) as temporary:
                save_file(whole, temporary, metadata={"progress": json.dumps(progress)})
        except (OSError, SafetensorError) as error:
            raise StorageError(
                f"The checkpoint {self.file} cannot be written ({error}); make room and start again: the run goes on "
                "from the checkpoint before."
            ) from error
        self.saved = time.monotonic()
        self.took = self.saved - began

    def resume(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
        """Take up a checkpoint if there is a sound one: what `write` was told."""
        if self.file is None or not self.file.is_file():
            return None
        try:
            with safe_open(self.file, framework="pt") as handle:
                progress: dict[str, Any] = json.loads(handle.metadata()["progress"])
                tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
            now = _part(tensors, "now.")
            if now.keys() != _trained_state(module).keys():
                return None
            module.load_state_dict(now, strict=False)
        except (SafetensorError, OSError, RuntimeError, KeyError, TypeError, ValueError):
            return None
        device = next(module.parameters()).device
        self.best = {name: tensor.to(device) for name, tensor in _part(tensors, "best.").items()}
        states: dict[int, dict[str, Any]] = {}
        for name, tensor in _part(tensors, "adam.").items():
            number, key = name.split(".", 1)
            states.setdefault(int(number), {})[key] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": states})
        _set_random_states(_part(tensors, "random."))
        return progress


def _trained_state(module: nn.Module) -> dict[str, Tensor]:
    """Parameters that are trained, and buffers."""
    frozen = {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    return {name: tensor for name, tensor in module.state_dict().items() if name not in frozen}


def random_states() -> dict[str, Tensor]:
    """Where torch's random numbers stand."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_states(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
