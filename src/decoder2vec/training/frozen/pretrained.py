"""Pre-trained encoders on disk, so that autoencoders are trained once and serve every run that wants the same ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from decoder2vec.heads.codes import CodeNet
from decoder2vec.storage import atomic_file


def save_state(net: CodeNet, file: Path, note: dict[str, Any], *, with_head: bool) -> None:
    """Keep a network's state and a note about it; the pair head only if pre-training touched it."""
    tensors = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in net.state_dict().items()
        if with_head or not name.startswith("pair.")
    }
    with atomic_file(file) as temporary:
        save_file(tensors, temporary, metadata={"note": json.dumps(note)})


def load_state(net: CodeNet, file: Path) -> dict[str, Any] | None:
    """Put a kept state into the network and return its note; None if there is no sound one."""
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as handle:
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
            note: dict[str, Any] = json.loads(handle.metadata()["note"])
        net.load_state_dict({**net.state_dict(), **tensors})
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RuntimeError):
        return None
    return note
