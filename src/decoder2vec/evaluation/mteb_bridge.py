"""An encoder behind the protocol of mteb 2: pass `MTEBEncoder(encoder)` to `mteb.evaluate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from decoder2vec.errors import MissingExtraError


class _Encoder(Protocol):
    fingerprint: Any
    spec: Any
    dim: Any
    max_seq_length: Any

    def encode(self, inputs: Any) -> Any: ...

    def encode_query(self, inputs: Any) -> Any: ...

    def encode_document(self, inputs: Any) -> Any: ...

    def similarity(self, a: Any, b: Any) -> Any: ...

    def similarity_pairwise(self, a: Any, b: Any) -> Any: ...


class MTEBEncoder:
    """Speaks mteb's encoder protocol; the revision is the encoder's fingerprint, so results never mix."""

    def __init__(self, encoder: _Encoder, name: str = "decoder2vec/encoder") -> None:
        self.encoder = encoder
        self.name = name

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **_: Any,
    ) -> Any:
        """Vectors of the texts in a loader of batches; queries and documents get their own prompts."""
        texts = [text for batch in inputs for text in batch["text"]]
        role = getattr(prompt_type, "value", prompt_type)
        roles = {"query": self.encoder.encode_query, "document": self.encoder.encode_document}
        return np.asarray(roles.get(role, self.encoder.encode)(texts))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n, m] similarities."""
        return self.encoder.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n] similarities, row by row."""
        return self.encoder.similarity_pairwise(embeddings1, embeddings2)

    @cached_property
    def mteb_model_meta(self) -> Any:
        """Name, revision and the choices made, so that two encoders are two models to mteb."""
        try:
            from mteb.models import ModelMeta
        except ImportError:
            raise MissingExtraError("mteb", "mteb") from None
        return ModelMeta.create_empty(
            overwrites={
                "name": self.name,
                "revision": self.encoder.fingerprint,
                "embed_dim": self.encoder.dim,
                "max_tokens": self.encoder.max_seq_length,
                "similarity_fn_name": self.encoder.spec.similarity,
                "adapted_from": self.encoder.spec.backbone,
            }
        )
