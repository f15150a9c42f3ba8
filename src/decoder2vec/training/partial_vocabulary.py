"""Train with only the embeddings of the tokens that the data use (PEMA).

A token that the data lack has no gradient, so its embedding, gradient and optimiser states are dead weight. During
training the model holds the rows of the tokens in use; a hook translates token ids where they are looked up, so
everything else still sees the ids of the tokenizer: padding, pooling, masks. Afterwards the whole matrix is put back,
with the trained rows in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import InputError
from decoder2vec.text.tokens import Prompt


@dataclass(frozen=True)
class PartialVocabulary:
    """What is held of the embeddings during training."""

    rows: int
    rows_before: int
    width: int
    """Parameters of a row."""

    def to_json(self) -> dict[str, int]:
        """For the results of a training."""
        saved = (self.rows_before - self.rows) * self.width
        return {"tokens": self.rows, "of": self.rows_before, "parameters_saved": saved}


def used_token_ids(backbone: Backbone, prompts: Iterable[Prompt]) -> list[int]:
    """Return the sorted ids of all tokens of prompts, and of those that batches are filled or closed with."""
    special = {backbone.pad_token_id, backbone.closing_token_id, backbone.empty_text_token_id}
    return sorted(special.union(*(prompt.ids for prompt in prompts)))


@contextmanager
def partial_vocabulary(backbone: Backbone, ids: Iterable[int]) -> Iterator[PartialVocabulary]:
    """Context in which a model has the embeddings of some tokens only; afterwards all, with what was trained.

    Build the optimizer inside it: the parameter is another one outside.

    Args:
        backbone: The model; it is changed in place.
        ids: Ids of all tokens that the model will read, each once.

    Raises:
        InputError: A pass reads a token without an embedding, or the context is entered twice.
    """
    embeddings: Any = backbone.model.get_input_embeddings()  # type: ignore[operator]
    whole, padding_idx = embeddings.weight, embeddings.padding_idx
    if len(whole) != embeddings.num_embeddings:
        raise InputError("The vocabulary of this model is partial already; leave that context first.")
    kept = torch.tensor(list(ids), device=whole.device)
    row_of_id = torch.full((len(whole),), -1, device=whole.device)
    row_of_id[kept] = torch.arange(len(kept), device=whole.device)
    original = whole.detach().to("cpu", copy=whole.device.type != "cpu")
    embeddings.weight = nn.Parameter(whole.detach()[kept], requires_grad=whole.requires_grad)
    if padding_idx is not None:
        row = int(row_of_id[padding_idx])
        embeddings.padding_idx = row if row >= 0 else None
    del whole  # frees the memory of the device
    hook = embeddings.register_forward_pre_hook(lambda _, inputs: (_translate(inputs[0], row_of_id), *inputs[1:]))
    try:
        yield PartialVocabulary(len(kept), len(original), original.shape[1])
    finally:
        hook.remove()
        trained = embeddings.weight
        original[kept.cpu()] = trained.detach().to(original)
        embeddings.weight = nn.Parameter(original.to(trained.device), requires_grad=trained.requires_grad)
        embeddings.padding_idx = padding_idx


def _translate(ids: Tensor, row_of_id: Tensor) -> Tensor:
    rows = row_of_id[ids]
    if (rows < 0).any():  # an index below 0 would be an opaque error of the device
        unknown = int(ids[rows < 0][0])
        raise InputError(
            f"The model reads the token {unknown}, which the training data lack; leave out training.partial_vocabulary."
        )
    return rows
