"""What the baselines share: they take texts as an encoder does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import check_texts
from decoder2vec.choices import as_list
from decoder2vec.errors import InputError

Vectors = NDArray[np.float32]

_NO_MATTER = {"prompt", "prompt_name", "batch_size", "show_progress_bar", "convert_to_numpy", "device"}
"""Arguments of an encoder that change nothing here: a prompt is for a model that can follow one."""


class Baseline(ABC):
    """Texts in, vectors out, in the encoder's manner; nothing is trained, and prompts are not read."""

    kind: str
    """One word for tables."""
    dim: int
    fingerprint: str
    parameters = 0
    """Numbers that were trained."""
    similarity_fn_name = "cosine"
    max_seq_length: int | None = None
    """Every word is read, however many there are."""

    @abstractmethod
    def vectors(self, texts: list[str]) -> Vectors:
        """[text, dim] vectors of one text or more."""

    def encode(
        self,
        inputs: str | Sequence[str],
        *,
        normalize_embeddings: bool = False,
        convert_to_tensor: bool = False,
        **options: Any,
    ) -> Any:
        """Vectors of texts: a string gives one vector, a list gives [n, dim], an empty list [0, dim]."""
        if unknown := options.keys() - _NO_MATTER:
            raise InputError(f"encode() of {self.kind} has no argument {', '.join(map(repr, sorted(unknown)))}.")
        texts = list(check_texts([inputs] if isinstance(inputs, str) else as_list(inputs)))
        vectors = self.vectors(texts) if texts else np.empty((0, self.dim), np.float32)
        if normalize_embeddings:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        result = vectors[0] if isinstance(inputs, str) else vectors
        if convert_to_tensor or options.get("convert_to_numpy") is False:
            import torch

            return torch.from_numpy(np.ascontiguousarray(result))
        return result

    encode_query = encode
    encode_document = encode

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n, m] cosines."""
        from decoder2vec.maths.similarity import all_pairs

        return all_pairs(self.similarity_fn_name, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n] cosines, row by row."""
        from decoder2vec.maths.similarity import row_by_row

        return row_by_row(self.similarity_fn_name, embeddings1, embeddings2)

    def get_embedding_dimension(self) -> int:
        """Width of a vector."""
        return self.dim

    def __repr__(self) -> str:
        return f"{self.kind} ({self.dim} numbers)"
