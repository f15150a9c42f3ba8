"""The check that a model has an embedding for every token that its tokenizer gives."""

from __future__ import annotations

from collections.abc import Sequence

from decoder2vec.errors import BackboneError


def check_token_ids(ids: Sequence[int], vocabulary_size: int) -> Sequence[int]:
    """Return token ids unchanged.

    Raises:
        BackboneError: The model has no embedding for one of them.
    """
    if ids and (largest := max(ids)) >= vocabulary_size:
        raise BackboneError(
            f"The tokenizer gives the token {largest}, but the model has embeddings for {vocabulary_size} tokens only; "
            "use the tokenizer that the model was trained with, or add embeddings with transformers' "
            "resize_token_embeddings."
        )
    return ids
