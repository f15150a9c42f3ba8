"""What a result was made with: every result file carries this."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from decoder2vec.version import __version__


def versions() -> dict[str, Any]:
    """Versions of all that can change a number, and the machine."""
    packages = ("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")
    return {
        "decoder2vec": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
        "machine": _machine(),
    }


def _machine() -> str:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {torch.get_num_threads()} threads"
