"""A soft prompt: a few trained vectors that the model reads after (or before) the tokens of a text.

Zhao, Wu, Miao and Tsuruoka, "Prompt Tuning Can Simply Adapt Large Language Models to Text Encoders", 2025. Appended,
the vectors follow the last real token of each row, so padding never stands between a text and its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter, TokenBatch
from decoder2vec.errors import unknown_name

PLACES = ("append", "prepend")
OUTPUTS = ("prompt", "text")


class SoftPrompt(Adapter):
    """[token, width] vectors in the space of the model's token embeddings."""

    kind: ClassVar[str] = "soft_prompt"

    def __init__(self, vectors: Tensor, place: str = "append", output: str = "prompt") -> None:
        super().__init__()
        for what, name, known in (("place", place, PLACES), ("output", output, OUTPUTS)):
            if name not in known:
                raise unknown_name(what, name, known)
        self.place, self.output = place, output
        self.vectors = nn.Parameter(vectors.detach().float().clone())

    @classmethod
    def initialise(cls, backbone: Backbone, tokens: int, text: str = "", **settings: Any) -> SoftPrompt:
        """A prompt to train: the embeddings of a text's tokens, repeated as often as needed, or else random vectors.

        Random vectors have the mean and the spread of the model's own token embeddings.
        """
        backbone.check_token_count("A soft prompt", tokens)
        embed = backbone.model.get_input_embeddings()  # type: ignore[operator]
        ids: Sequence[int] = range(embed.weight.shape[0])
        if text:
            ids = backbone.tokenizer(text, add_special_tokens=False)["input_ids"] or [backbone.pad_token_id]
        with torch.no_grad():  # some families scale what they look up
            read = embed(torch.tensor(ids, device=embed.weight.device)).float()
        if text:
            return cls(read[torch.arange(tokens) % len(ids)], **settings)
        noise = torch.randn(tokens, read.shape[1]).to(read.device)
        return cls(read.mean(dim=0) + read.std(dim=0) * noise, **settings)

    @property
    def extra_tokens(self) -> int:
        """One position for each vector."""
        return len(self.vectors)

    def settings(self) -> dict[str, Any]:
        """Where it stands and what is pooled."""
        return {"place": self.place, "output": self.output}

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """The batch's embeddings with the prompt put in; its own positions are what is pooled."""
        embeds = model.get_input_embeddings()(batch.ids)  # type: ignore[operator]
        first, after = _bounds(batch.mask)
        count, rows = len(self.vectors), torch.arange(len(embeds), device=embeds.device)[:, None]
        room = embeds.new_zeros(len(embeds), count, embeds.shape[2])
        appended = self.place == "append"
        begin = after if appended else first
        where = begin[:, None] + torch.arange(count, device=embeds.device)
        longer = torch.cat([embeds, room] if appended else [room, embeds], dim=1)
        longer = longer.index_put((rows, where), self.vectors.to(embeds.dtype).expand(len(embeds), -1, -1))
        filled = batch.mask.new_zeros(len(embeds), count)
        mask = torch.cat([batch.mask, filled] if appended else [filled, batch.mask], dim=1)
        mask = mask.index_put((rows, where), mask.new_ones(()))
        start, end = (begin, begin + count) if self.output == "prompt" else (batch.start, batch.end)
        if self.output == "text" and not appended:
            start, end = start + count, end + count
        return replace(batch, mask=mask, start=start, end=end, embeds=longer)


def _bounds(mask: Tensor) -> tuple[Tensor, Tensor]:
    """[batch] the first real token of each row, and the place after the last."""
    first = mask.argmax(dim=1)
    return first, first + mask.sum(dim=1)
