"""Soft prompt: trained vectors that a model reads after (or before) the token embeddings of a text.

Zhao, Wu, Miao and Tsuruoka, "Prompt Tuning Can Simply Adapt Large Language Models to Text Encoders", 2025. An appended
prompt follows the last real token of each row, so padding never comes between a text and its prompt.
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

POSITIONS = ("append", "prepend")
"""Whether the prompt comes after or before the text."""
OUTPUTS = ("prompt", "text")
"""Whether the positions of the prompt or those of the text are pooled."""


class SoftPrompt(Adapter):
    """Trained input embeddings.

    Args:
        vectors: [token, width] embeddings of the prompt.
        position: One of POSITIONS; called `place` in recipes and files.
        output: One of OUTPUTS.

    """

    kind: ClassVar[str] = "soft_prompt"

    def __init__(self, vectors: Tensor, position: str = "append", output: str = "prompt") -> None:
        super().__init__()
        for option, name, known in (("place", position, POSITIONS), ("output", output, OUTPUTS)):
            if name not in known:
                raise unknown_name(option, name, known)
        self.position, self.output = position, output
        self.vectors = nn.Parameter(vectors.detach().float().clone())

    @classmethod
    def initialise(
        cls, backbone: Backbone, tokens: int, text: str = "", position: str = "append", output: str = "prompt"
    ) -> SoftPrompt:
        """A new prompt to train.

        Args:
            backbone: The model that it is for.
            tokens: Number of vectors.
            text: Start from the embeddings of its tokens, repeated as often as needed; without a text, start from
                random vectors with the mean and the standard deviation of the model's token embeddings.
            position: One of POSITIONS.
            output: One of OUTPUTS.

        """
        backbone.check_token_count("A soft prompt", tokens)
        embed = backbone.model.get_input_embeddings()  # type: ignore[operator]
        ids: Sequence[int] = range(embed.weight.shape[0])
        if text:
            ids = backbone.token_ids(text)
        with torch.no_grad():  # by a call, since some families scale their embeddings
            embeddings = embed(torch.tensor(ids, device=embed.weight.device)).float()
        if text:
            vectors = embeddings[torch.arange(tokens) % len(ids)]
        else:
            noise = torch.randn(tokens, embeddings.shape[1]).to(embeddings.device)
            vectors = embeddings.mean(dim=0) + embeddings.std(dim=0) * noise
        return cls(vectors, position, output)

    @property
    def extra_tokens(self) -> int:
        """One position for each vector."""
        return len(self.vectors)

    @property
    def pools_text(self) -> bool:
        """False if the prompt is pooled instead, which reads a text as a whole."""
        return self.output == "text"

    def settings(self) -> dict[str, Any]:
        """Position of the prompt (`place`) and pooled positions (`output`)."""
        return {"place": self.position, "output": self.output}

    def adapt(self, batch: TokenBatch, model: nn.Module) -> TokenBatch:
        """Return a batch of input embeddings with the prompt inserted; its span is that of `output`."""
        embeds = model.get_input_embeddings()(batch.ids)  # type: ignore[operator]
        text_start, text_end = _text_bounds(batch.mask)
        count, rows = len(self.vectors), torch.arange(len(embeds), device=embeds.device)[:, None]
        appended = self.position == "append"
        prompt_start = text_end if appended else text_start
        positions = prompt_start[:, None] + torch.arange(count, device=embeds.device)
        free = embeds.new_zeros(len(embeds), count, embeds.shape[2])
        longer = torch.cat([embeds, free] if appended else [free, embeds], dim=1)
        longer = longer.index_put((rows, positions), self.vectors.to(embeds.dtype).expand(len(embeds), -1, -1))
        free_mask = batch.mask.new_zeros(len(embeds), count)
        mask = torch.cat([batch.mask, free_mask] if appended else [free_mask, batch.mask], dim=1)
        mask = mask.index_put((rows, positions), mask.new_ones(()))
        start, end = (prompt_start, prompt_start + count) if self.output == "prompt" else (batch.start, batch.end)
        if self.output == "text" and not appended:
            start, end = start + count, end + count
        return replace(batch, mask=mask, start=start, end=end, embeds=longer)


def _text_bounds(mask: Tensor) -> tuple[Tensor, Tensor]:
    """[batch] position of the first real token of each row, and the position after the last one."""
    start = mask.argmax(dim=1)
    return start, start + mask.sum(dim=1)
