"""One autoencoder for each layer, trained together: their encoders are where the siamese encoders start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.heads.codes import CodeNet, CodeSpec, LayerwiseMLP
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows, Task

_HELD_OUT = 20
"""Of the texts, one in this many only measures the reconstruction."""
_TEXTS_AT_ONCE = 512


class Autoencoder(nn.Module):
    """A code network and, for each layer, a decoder that rebuilds the latent from the code (or the unified vector)."""

    def __init__(self, net: CodeNet) -> None:
        super().__init__()
        self.net = net
        spec = net.spec
        hidden = [spec.hidden] * spec.depth if spec.hidden else []
        self.decoders = nn.ModuleList(
            LayerwiseMLP(len(group), (_code_width(spec, group), *hidden, spec.dim)) for group in spec.groups
        )

    def residuals(self, latents: Tensor) -> list[Tensor]:
        """What is rebuilt less what was wanted, [group's readings, text, dim], in units of the clean latents."""
        wanted = self.net.normalise(latents)
        codes = self.net.codes(latents)
        if self.net.spec.mixing == "unified":
            whole = self.net.mix(codes)[0]
            codes = [whole.expand(len(group), -1, -1) for group in self.net.spec.groups]
        groups = zip(self.decoders, codes, self.net.spec.groups, strict=True)
        return [decode(code) - wanted[list(group)] for decode, code, group in groups]


@dataclass(frozen=True)
class Reconstruction:
    """How well each layer is rebuilt, [reading] each."""

    clean: Tensor
    """Mean squared error in units of the clean latents, which is what is trained."""
    raw: Tensor
    """The same in the latents' own units; of latents scaled to unit length, in those."""
    unexplained: Tensor
    """Share of the variance that is lost: 1 - R2."""


def reconstruction(module: Autoencoder, table: LatentTable, data: TrainingData, recipe: Freeze) -> Task:
    """Learn to rebuild each layer's latent from its code; the score is minus the error on held-out texts."""
    rows = table.rows(data.texts)
    train = rows[np.arange(len(rows)) % _HELD_OUT > 0] if len(rows) > _HELD_OUT else rows

    def loss(batch: Rows) -> Tensor:
        return torch.cat([part.pow(2).mean(dim=(1, 2)) for part in module.residuals(table.batch(train[batch]))]).sum()

    def score() -> float:
        return -float(measure(module, table, held_out(rows)).clean.sum())

    return Task("autoencoders", len(train), loss, score, recipe.pretraining)


def held_out(rows: Rows) -> Rows:
    """The rows that are not trained on."""
    return rows[::_HELD_OUT]


@torch.no_grad()
def measure(module: Autoencoder, table: LatentTable, rows: Rows) -> Reconstruction:
    """Errors over some rows, and the variance of the same rows."""
    module.eval()
    net = module.net
    shape = (len(net.spec.widths), net.spec.dim)
    squares, total, spread = (torch.zeros(shape, device=table.device) for _ in range(3))
    for begin in range(0, len(rows), _TEXTS_AT_ONCE):
        latents = table.batch(rows[begin : begin + _TEXTS_AT_ONCE])
        for part, group in zip(module.residuals(latents), net.spec.groups, strict=True):
            squares[list(group)] += part.pow(2).sum(dim=1)
        clean = net.normalise(latents)
        total += clean.sum(dim=1)
        spread += clean.pow(2).sum(dim=1)
    count = max(1, len(rows))
    errors, variance = squares / count, (spread / count - (total / count).pow(2)).clamp_min(0)
    units = torch.ones_like(errors) if net.spec.unit else net.scale[:, 0]
    unexplained = errors.sum(dim=1) / variance.sum(dim=1).clamp_min(1e-12)
    return Reconstruction(errors.mean(dim=1), (errors / units.pow(2)).mean(dim=1), unexplained)


def _code_width(spec: CodeSpec, group: tuple[int, ...]) -> int:
    return spec.mixed_width if spec.mixing == "unified" else spec.widths[group[0]]
