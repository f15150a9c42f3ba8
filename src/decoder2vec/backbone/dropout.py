"""Dropout in the attention of models that were trained without it, switched on for a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from decoder2vec.backbone.load import Backbone

_NAMES = ("attention_dropout", "attn_dropout", "dropout")
_OTHER = "hidden_dropout"
"""What some attention layers drop from the states they add up to."""


@contextmanager
def attention_dropout(backbone: Backbone, share: float) -> Iterator[None]:
    """While this is open, attention layers drop this share of their weights; nothing else drops anything.

    Families keep the share as a number or as a module, under one of three names.
    """
    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    try:
        for module in backbone.blocks.modules():
            name = next((name for name in _NAMES if hasattr(module, name)), None)
            if name is None or "Attention" not in type(module).__name__:
                continue
            held = getattr(module, name)
            if isinstance(held, nn.Dropout):
                put(held, "p", share)
                put(held, "training", True)
            elif isinstance(held, int | float):
                put(module, name, share)
            put(module, "training", True)  # only of this module: what stands in it stays quiet
            if hasattr(module, _OTHER):
                put(module, _OTHER, 0.0)
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)
