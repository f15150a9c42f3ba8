"""Write encoders in the formats of sentence-transformers, peft and transformers.

`decoder2vec.export` is both this package and, for users, the function that exports an encoder: importing any module of
the package binds the name to the package. The package is therefore callable and forwards to `formats.export`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from decoder2vec.encoder import Encoder


class _CallablePackage(ModuleType):
    def __call__(
        self,
        encoder: Encoder | str | Path,
        format: str,
        out: str | Path,
        *,
        device: str | torch.device | None = None,
    ) -> str:
        """Write an encoder to a new folder; see `decoder2vec.export.formats.export`."""
        from decoder2vec.export.formats import export

        return export(encoder, format, out, device=device)


sys.modules[__name__].__class__ = _CallablePackage
