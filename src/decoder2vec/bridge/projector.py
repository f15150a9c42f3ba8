"""The projector: vectors of any origin to soft tokens, and the inputs of a model that contain them.

A soft prompt is a free parameter of [tokens, width]; here it is computed from a vector. With the weight of its last
layer at zero, the projector gives every vector the same soft prompt, its bias.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import TokenBatch
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.text.template import SLOT, Template

KINDS = ("linear", "mlp")
_SAMPLED_TOKENS = 8192
"""Tokens of the vocabulary by which norm and spread of embeddings are measured."""
_SAMPLED_VECTORS = 4096
"""Vectors by which the projector is scaled at the start."""
_SHARE_OF_VECTOR = 0.5
"""Share of the variance of a soft token that is due to the vector, at the start."""


class Projector(nn.Module):
    """Maps [n, dim] vectors to [n, tokens, width] soft tokens.

    Vectors are standardised first, dimension by dimension, by mean and deviation of the vectors it was made for.

    Args:
        dim: Dimension of the vectors.
        width: Width of the model's embeddings.
        tokens: Soft tokens for each vector.
        kind: "linear", or "mlp" with one hidden layer.
        hidden: Width of the hidden layer; by default that of the model.

    Example:
        >>> import numpy as np
        >>> import decoder2vec as d2v
        >>> backbone = d2v.Backbone.load("tiny-llama")
        >>> vectors = np.random.default_rng(0).normal(size=(100, 12))
        >>> projector = d2v.Projector.initialise(backbone, vectors, tokens=4)
        >>> projector(vectors).shape
        torch.Size([100, 4, 32])
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, dim: int, width: int, tokens: int = 8, kind: str = "mlp", hidden: int = 0) -> None:
        super().__init__()
        if kind not in KINDS:
            raise unknown_name("projector", kind, KINDS)
        if min(dim, width, tokens) < 1 or hidden < 0:
            raise InputError(f"A projector needs 1 or more dimensions and tokens, not {dim} and {tokens}.")
        self.dim, self.width, self.tokens, self.kind = dim, width, tokens, kind
        self.hidden = (hidden or width) if kind == "mlp" else 0
        self.inner = nn.Linear(dim, self.hidden) if self.hidden else None
        self.output = nn.Linear(self.hidden or dim, tokens * width)
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    @classmethod
    def initialise(
        cls, backbone: Backbone, vectors: Any, tokens: int = 8, kind: str = "mlp", hidden: int = 0
    ) -> Projector:
        """A new projector to train, whose soft tokens look like token embeddings of the model.

        They have the mean of the embeddings, about their spread, half of which is due to the vector, and on average
        exactly their norm.

        Args:
            backbone: The model that reads the soft tokens.
            vectors: [n, dim] vectors that it will be trained on.
            tokens: Soft tokens for each vector.
            kind: One of KINDS.
            hidden: Width of the hidden layer of "mlp"; by default that of the model.

        """
        backbone.check_token_count("A projector", tokens)
        data = torch.as_tensor(vectors).double()
        embeddings = _sample_embeddings(backbone)
        projector = cls(data.shape[1], embeddings.shape[1], tokens, kind, hidden)
        deviation = data.std(dim=0, correction=0)
        is_varied = deviation > 1e-9 * deviation.max()  # one that varies only by rounding is not scaled
        projector.mean.copy_(data.mean(dim=0))
        projector.scale.copy_(torch.where(is_varied, deviation, 1.0))
        sample = data[:: max(1, len(data) // _SAMPLED_VECTORS)].float()
        with torch.no_grad():
            _match_embeddings(projector, sample, embeddings)
        return projector.to(backbone.device)

    def forward(self, vectors: Any) -> Tensor:
        """[n, tokens, width] soft tokens of [n, dim] vectors, in float32."""
        states = (torch.as_tensor(vectors).to(self.mean.device, torch.float32) - self.mean) / self.scale
        if self.inner is not None:
            states = functional.gelu(self.inner(states))
        projected: Tensor = self.output(states)
        return projected.view(-1, self.tokens, self.width)

    def settings(self) -> dict[str, Any]:
        """What is needed, besides the parameters, to rebuild it."""
        return {"dim": self.dim, "width": self.width, "tokens": self.tokens, "kind": self.kind, "hidden": self.hidden}

    def digest(self) -> str:
        """Hash of settings and parameters."""
        sha256 = hashlib.sha256(repr(self.settings()).encode())
        for name, tensor in sorted(self.state_dict().items()):
            sha256.update(name.encode() + tensor.detach().float().cpu().contiguous().numpy().tobytes())
        return sha256.hexdigest()[:16]


def _sample_embeddings(backbone: Backbone) -> Tensor:
    """[tokens, width] embeddings of tokens, evenly spaced in the vocabulary."""
    embed = backbone.model.get_input_embeddings()  # type: ignore[operator]
    ids = torch.arange(0, backbone.vocabulary_size, max(1, backbone.vocabulary_size // _SAMPLED_TOKENS))
    with torch.no_grad():  # by a call, since some families scale their embeddings
        return embed(ids.to(embed.weight.device)).float().cpu()  # type: ignore[no-any-return]


def _match_embeddings(projector: Projector, vectors: Tensor, embeddings: Tensor) -> None:
    """Scale the last layer so that soft tokens have mean, spread and norm of embeddings."""
    output, shape = projector.output, (projector.tokens, projector.width)
    mean, deviation = embeddings.mean(dim=0), embeddings.std(dim=0)
    output.bias.zero_()
    projected = projector(vectors)
    by_vector = _SHARE_OF_VECTOR**0.5 * deviation / projected.std(dim=0, correction=0).clamp_min(1e-12)
    output.weight.mul_(by_vector.reshape(-1, 1))
    noise = (1 - _SHARE_OF_VECTOR) ** 0.5 * deviation * torch.randn(shape)
    output.bias.copy_((mean + noise - by_vector * projected.mean(dim=0)).flatten())
    norms = projector(vectors).norm(dim=2).mean(dim=0)
    factors = (embeddings.norm(dim=1).mean() / norms).repeat_interleave(projector.width)
    output.weight.mul_(factors[:, None])
    output.bias.mul_(factors)


# --- the inputs of a model -------------------------------------------------------------------------------------------


def template_pieces(
    backbone: Backbone, template: Template, prompt: str = "", *, closed: bool = True
) -> list[list[int]]:
    """Token ids before, between and after the soft tokens, which fill the {text} slots of a template.

    The special tokens that the tokenizer puts around a text stand around the whole.

    Args:
        backbone: The model.
        template: The template of a text.
        prompt: A text that follows the soft tokens in every slot.
        closed: Whether special tokens that end a text are there.

    """
    backend = backbone.tokenizer.backend_tokenizer
    before, *after = template.string.split(SLOT)
    whole = backend.encode("a")
    texts = [at for at, special in enumerate(whole.special_tokens_mask) if not special]
    first = whole.ids[: texts[0]] if texts else []
    last = whole.ids[texts[-1] + 1 :] if texts and closed else []
    bos = [] if backbone.missing_bos_token_id is None else [backbone.missing_bos_token_id]
    pieces = [before, *(prompt + piece for piece in after)]
    ids = [list(backend.encode(piece, add_special_tokens=False).ids) if piece else [] for piece in pieces]
    return [[*bos, *first, *ids[0]], *ids[1:-1], [*ids[-1], *last]]


def soft_token_batch(backbone: Backbone, pieces: Sequence[Sequence[int]], soft: Tensor) -> TokenBatch:
    """A batch of equally long rows: the pieces with soft tokens between them, pooled from the last soft tokens on."""
    embed = backbone.model.get_input_embeddings()  # type: ignore[operator]
    device, n_rows = backbone.device, len(soft)
    parts: list[Tensor] = []
    start = length = 0
    for index, ids in enumerate(pieces):
        if index:
            start, length = length, length + soft.shape[1]
            parts.append(soft.to(device, embed.weight.dtype))
        if ids:
            parts.append(embed(torch.tensor([list(ids)], device=device)).expand(n_rows, -1, -1))
            length += len(ids)
    embeds = torch.cat(parts, dim=1)
    mask = torch.ones(n_rows, length, dtype=torch.long, device=device)
    begin = torch.full((n_rows,), start, device=device)
    return TokenBatch(torch.zeros_like(mask), mask, begin, torch.full_like(begin, length), embeds=embeds)
