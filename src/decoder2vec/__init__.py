"""decoder2vec: turn any decoder-only language model into a text encoder.

The public names are imported on first use, so that `import decoder2vec` is quick and does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from decoder2vec.version import __version__

if TYPE_CHECKING:
    from decoder2vec.activations.extract import Extractor
    from decoder2vec.activations.store import Store
    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.config import Reading
    from decoder2vec.encoder import Encoder
    from decoder2vec.errors import Decoder2VecError
    from decoder2vec.text.template import Template
    from decoder2vec.training.api import train

_HOMES = {
    "Backbone": "decoder2vec.backbone.backbone",
    "Decoder2VecError": "decoder2vec.errors",
    "Encoder": "decoder2vec.encoder",
    "Extractor": "decoder2vec.activations.extract",
    "Reading": "decoder2vec.config",
    "Store": "decoder2vec.activations.store",
    "Template": "decoder2vec.text.template",
    "train": "decoder2vec.training.api",
}

__all__ = [
    "Backbone",
    "Decoder2VecError",
    "Encoder",
    "Extractor",
    "Reading",
    "Store",
    "Template",
    "__version__",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
