"""What can be asked for by `model`: the encoder, and each adapter it has by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from decoder2vec.activations.extract import Extractor
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.serving.batcher import Vectors
from decoder2vec.serving.counting import TokenCounter
from decoder2vec.serving.problems import Problem
from decoder2vec.serving.vectors import Key
from decoder2vec.text.template import Template

LAYERS = "layers"


@dataclass(frozen=True, eq=False)
class Served:
    """One encoder under one name."""

    id: str
    encoder: Any
    count: TokenCounter

    @property
    def dim(self) -> int:
        """Width of a vector."""
        known = getattr(self.encoder, "dim", None)
        return int(known if known is not None else self.encoder.get_embedding_dimension())

    @property
    def layers(self) -> int:
        """How many layers can be looked at one by one, the embeddings among them; 0 where none can."""
        return self.encoder.backbone.n_layers + 1 if isinstance(self.encoder, Encoder) else 0

    @cached_property
    def description(self) -> dict[str, Any]:
        """Everything that decides what its vectors are."""
        said: dict[str, Any] = {"fingerprint": getattr(self.encoder, "fingerprint", None), "dim": self.dim}
        if isinstance(self.encoder, Encoder):
            spec = self.encoder.spec
            layers, poolings = ([getattr(r, name) for r in spec.readings] for name in ("layer", "pooling"))
            said |= {
                "layer": layers[0] if len(layers) == 1 else layers,
                "pooling": poolings[0] if len(set(poolings)) == 1 else poolings,
                "template": spec.template,
                "attention": spec.attention,
                "similarity": spec.similarity,
                "max_tokens": self.encoder.max_seq_length,
                "head": self.encoder.head.kind if self.encoder.head else None,
            }
        return {"id": self.id, "object": "model", "created": 0, "owned_by": "decoder2vec", **said}


class Models:
    """The encoders of a server by name; the first is taken where none is named."""

    def __init__(self, name: str, encoder: Any) -> None:
        served = [Served(name, encoder, TokenCounter(encoder))]
        adapters = encoder.backbone.adapters if isinstance(encoder, Encoder) else {}
        for adapter in adapters:
            if adapter == name:
                raise InputError(f"The encoder and one of its adapters are both called {name!r}; serve it with --name.")
            served.append(Served(adapter, encoder.through(adapter), served[0].count))
        self._served = {one.id: one for one in served}
        self._all_layers: dict[str, Extractor] = {}

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def __getitem__(self, name: str | None) -> Served:
        if name is None:
            return next(iter(self))
        if name not in self._served:
            raise Problem(404, str(unknown_name("model", name, self._served)), code="model_not_found", param="model")
        return self._served[name]

    def read(self, key: Key, texts: list[str]) -> Vectors:
        """[n, dim] vectors; under the role "layers" [n, layers * width]. Only ever one thread calls this."""
        encoder = self[key.model].encoder
        if key.role == LAYERS:
            return self._layers(key.model)(texts).reshape(len(texts), -1)
        encode = getattr(encoder, f"encode_{key.role}", None) if key.role else None
        return np.asarray((encode or encoder.encode)(texts), np.float32)

    def _layers(self, name: str) -> Extractor:
        """Reads every layer in one pass, pooled as the encoder pools its first."""
        if name not in self._all_layers:
            encoder: Encoder = self[name].encoder
            spec, first = encoder.spec, encoder.spec.readings[0]
            readings = [replace(first, layer=layer, template="") for layer in range(encoder.backbone.n_layers + 1)]
            template = Template(first.template or spec.template)
            self._all_layers[name] = Extractor(encoder.backbone, readings, template, spec.max_length, spec.on_overflow)
        return self._all_layers[name]
