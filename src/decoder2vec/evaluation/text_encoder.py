"""Methods that encoders share, for those that are no `Encoder`: baselines, ONNX models, servers, files of vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.extract import check_texts, to_text_list
from decoder2vec.config import DOCUMENT_PROMPTS
from decoder2vec.encoder import resolve_prompt
from decoder2vec.errors import InputError
from decoder2vec.maths.similarity import normalise, pairwise_similarity, similarity_matrix

FloatArray = NDArray[np.float32]

_OPTIONS = {"prompt", "prompt_name", "batch_size", "show_progress_bar", "convert_to_numpy", "device"}
"""Further options of `Encoder.encode`. Only the prompts can change a vector."""


class TextEncoder(ABC):
    """Base class of encoders that compute vectors in a way of their own."""

    kind: str
    """One word for tables."""
    dim: int
    fingerprint: str
    parameters = 0
    """Number of trained parameters, as far as it is known."""
    similarity_fn_name = "cosine"
    max_seq_length: int | None = None
    """Longest text in tokens; None: texts are not truncated here."""
    prompts: Mapping[str, str] = {}
    """Prompts by name; `encode_query` and `encode_document` use `query` and `document`."""
    default_prompt_name: str | None = None
    """The prompt used when a caller names none."""
    ignores_prompts = False

    @abstractmethod
    def embed(self, texts: list[str]) -> FloatArray:
        """[texts, dim] vectors of one or more texts."""

    def encode(
        self,
        inputs: str | Sequence[str],
        *,
        normalize_embeddings: bool = False,
        convert_to_tensor: bool = False,
        **options: Any,
    ) -> Any:
        """Encode texts.

        Args:
            inputs: One text, which gives a vector [dim], or a list of n texts, which gives [n, dim].
            normalize_embeddings: Scale every vector to length 1.
            convert_to_tensor: Return a torch tensor instead of a numpy array.
            options: `prompt` and `prompt_name`, and options of `Encoder.encode` that change nothing here; an unknown
                one is refused.
        """
        if unknown := options.keys() - _OPTIONS:
            raise InputError(f"encode() of {self.kind} has no argument {', '.join(map(repr, sorted(unknown)))}.")
        texts = list(check_texts([inputs] if isinstance(inputs, str) else to_text_list(inputs)))
        if not self.ignores_prompts:
            name = options.get("prompt_name") or self.default_prompt_name
            prompt = resolve_prompt(self.prompts, name, options.get("prompt"))
            texts = [prompt + text for text in texts]
        vectors = self.embed(texts) if texts else np.empty((0, self.dim), np.float32)
        vectors = normalise(vectors, normalize_embeddings)
        result = vectors[0] if isinstance(inputs, str) else vectors
        if convert_to_tensor or options.get("convert_to_numpy") is False:
            return torch.from_numpy(np.ascontiguousarray(result))
        return result

    def encode_query(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the prompt named "query", if there is one and the caller chose none."""
        return self.encode(inputs, **{**self._prompt_for("query"), **options})

    def encode_document(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """`encode` with the first of the prompts "document", "passage" and "corpus", if the caller chose none."""
        return self.encode(inputs, **{**self._prompt_for(*DOCUMENT_PROMPTS), **options})

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n, m] cosine similarities."""
        return similarity_matrix(self.similarity_fn_name, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n] cosine similarities of corresponding rows."""
        return pairwise_similarity(self.similarity_fn_name, embeddings1, embeddings2)

    def get_embedding_dimension(self) -> int:
        """Number of dimensions of a vector."""
        return self.dim

    def __repr__(self) -> str:
        return f"{self.kind} ({self.dim} dimensions)"

    def _prompt_for(self, *names: str) -> dict[str, str]:
        return next(({"prompt_name": name} for name in names if name in self.prompts), {})
