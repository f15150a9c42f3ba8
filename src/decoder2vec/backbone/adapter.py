"""Something small that makes a frozen model read differently: what every adapter offers."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from torch import nn

from decoder2vec.backbone.batch import TokenBatch


class Adapter(nn.Module, ABC):
    """Plugged into a backbone by `Backbone.with_adapter`; its parameters are all that training changes."""

    kind: ClassVar[str]

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """What the model reads instead of the batch."""
        return batch

    def switched_on(self) -> AbstractContextManager[Any]:
        """The model's own weights differ while this is open, where an adapter is of that sort."""
        return nullcontext()

    @property
    def extra_tokens(self) -> int:
        """Positions of the model's context that the adapter takes for itself."""
        return 0

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What is needed to build the adapter again, apart from its numbers."""

    def digest(self) -> str:
        """Names the adapter by its numbers and settings."""
        found = hashlib.sha256(repr(sorted(self.settings().items())).encode())
        for name, tensor in sorted(self.state_dict().items()):
            found.update(name.encode() + tensor.detach().float().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]
