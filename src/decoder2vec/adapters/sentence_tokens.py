"""Sentence tokens: embeddings that a model does not have, for tokens that stand for a sentence, end it or mask a span.

The ids of these tokens follow those of the model: first the sentence tokens, then the token that ends a sentence, then
the sentinels, each of which stands in the place of a masked span.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter, TokenBatch


class SentenceTokens(Adapter):
    """Input embeddings of new tokens.

    Args:
        vectors: [token, width] embeddings: of the sentence tokens, of the end of a sentence, and of the sentinels.
        first_id: Id of the first of them, which is the number of tokens of the model.
        count: Number of sentence tokens.

    """

    kind: ClassVar[str] = "sentence_tokens"

    def __init__(self, vectors: Tensor, first_id: int, count: int) -> None:
        super().__init__()
        self.first_id, self.count = first_id, count
        self.vectors = nn.Parameter(vectors.detach().float().clone())

    @classmethod
    def initialise(cls, backbone: Backbone, count: int, sentinels: int) -> SentenceTokens:
        """New tokens, all with the mean embedding of the model's tokens."""
        embed = backbone.model.get_input_embeddings()  # type: ignore[operator]
        with torch.no_grad():  # by a call, since some families scale their embeddings
            mean = embed(torch.arange(backbone.vocabulary_size, device=backbone.device)).float().mean(dim=0)
        return cls(mean.expand(count + 1 + sentinels, -1), backbone.vocabulary_size, count).to(backbone.device)

    def moved_to(self, backbone: Backbone) -> SentenceTokens:
        """The same tokens for a model with another vocabulary, which they follow."""
        return SentenceTokens(self.vectors, backbone.vocabulary_size, self.count).requires_grad_(False)

    @property
    def end_id(self) -> int:
        """Id of the token that ends a sentence."""
        return self.first_id + self.count

    @property
    def n_sentinels(self) -> int:
        """Number of sentinels, whose ids follow `end_id`."""
        return len(self.vectors) - self.count - 1

    def are_sentence_tokens(self, ids: Tensor, *, ends: bool = False) -> Tensor:
        """Booleans of the shape of the ids: True for sentence tokens, and with `ends` for the ends of sentences."""
        return (ids >= self.first_id) & (ids < self.end_id + ends)

    def settings(self) -> dict[str, Any]:
        """The first id, and the number of sentence tokens."""
        return {"first_id": self.first_id, "count": self.count}

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """Return the batch as input embeddings, those of the new tokens among them."""
        is_new = batch.ids >= self.first_id
        embeds = model.get_input_embeddings()(batch.ids.masked_fill(is_new, 0))  # type: ignore[operator]
        # by a look-up, whose gradient is fast although most positions look up the same row
        new = functional.embedding((batch.ids - self.first_id).clamp(min=0), self.vectors.to(embeds.dtype))
        return replace(batch, embeds=torch.where(is_new[..., None], new, embeds))
