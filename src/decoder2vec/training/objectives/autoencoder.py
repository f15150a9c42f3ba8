"""Autoencoders: each layer's code must rebuild the layer's latent. FREEZE pre-trains its code networks this way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.errors import InputError
from decoder2vec.heads.codes import CodeNet, CodeSpec, LayerwiseMLP
from decoder2vec.training.context import InputSpec, LatentContext, Reads
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.objective import Loss, Metric, Objective, ObjectiveConfig

_HOLD_OUT_EVERY = 20
_TEXTS_PER_PASS = 512


@dataclass(frozen=True)
class AutoencoderConfig(ObjectiveConfig):
    """Reconstruction of latents from codes."""

    name: str = "autoencoder"


class AutoencoderObjective(Objective[AutoencoderConfig, LatentContext]):
    """Plain texts, by the squared error of the rebuilt latents."""

    names = ("autoencoder",)
    config_class = AutoencoderConfig
    needs = "texts"
    stage = "autoencoders"
    reads = (Reads.LATENTS,)
    unreadable = "rebuilds cached latents; use the recipe freeze"
    needs_dev = False
    decoders: Decoders

    def __init__(self, config: AutoencoderConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        if not data.texts:
            raise InputError("Autoencoders learn from plain texts; give some, or set pretrain to none.")

    @property
    def texts(self) -> list[str]:
        """All plain texts."""
        return list(self.data.texts)

    def __len__(self) -> int:
        return len(self._train_indices())

    def extra_modules(self, context: LatentContext) -> nn.Module:
        """A decoder for each layer."""
        self.decoders = Decoders(context.net.spec).to(context.device)
        return self.decoders

    def loss(self, context: LatentContext) -> Loss:
        """The sum over layers of the mean squared error."""
        train = context.rows(self.data.texts)[self._train_indices()]

        def loss(rows: Rows) -> Tensor:
            residuals = self.decoders.residuals(context.net, context.table.batch(train[rows]))
            return torch.cat([group.pow(2).mean(dim=(1, 2)) for group in residuals]).sum()

        return loss

    def metric(self, correlation: str) -> Metric:
        """The error on held-out texts."""
        return Metric("error on held-out texts", lower_is_better=True)

    def dev_metric(self, context: LatentContext) -> Callable[[], float]:
        """Minus the error on held-out texts."""
        return lambda: -float(self._error(context).standardised.sum())

    def report(self, context: LatentContext) -> dict[str, Any]:
        """Per layer, on held-out texts: the error in the latents' own units, and as a share of their variance."""
        error = self._error(context)
        return {
            "error": [round(value, 6) for value in error.raw.tolist()],
            "unexplained": [round(value, 5) for value in error.unexplained.tolist()],
        }

    def resume_key(self) -> list[Any]:
        """The texts."""
        return [self.data.texts]

    def _train_indices(self) -> Rows:
        indices = np.arange(len(self.data.texts))
        return indices[indices % _HOLD_OUT_EVERY > 0] if len(indices) > _HOLD_OUT_EVERY else indices

    def _error(self, context: LatentContext) -> ReconstructionError:
        held_out = context.rows(self.data.texts)[::_HOLD_OUT_EVERY]
        return reconstruction_error(context.net, self.decoders, context.table, held_out)


class Decoders(nn.Module):
    """For each layer, a decoder that rebuilds the latent from the code (or from the unified vector)."""

    def __init__(self, spec: CodeSpec) -> None:
        super().__init__()
        hidden = [spec.hidden] * spec.depth if spec.hidden else []
        self.decoders = nn.ModuleList(
            LayerwiseMLP(len(group), (_code_width(spec, group), *hidden, spec.dim)) for group in spec.groups
        )

    def residuals(self, net: CodeNet, latents: Tensor) -> list[Tensor]:
        """Rebuilt minus original latents, [readings of a group, texts, dim], in units of the standardised latents."""
        originals = net.normalise(latents)
        codes = net.codes(latents)
        if net.spec.mixing == "unified":
            unified = net.mix(codes)[0]
            codes = [unified.expand(len(group), -1, -1) for group in net.spec.groups]
        groups = zip(self.decoders, codes, net.spec.groups, strict=True)
        return [decode(code) - originals[list(group)] for decode, code, group in groups]


@dataclass(frozen=True)
class ReconstructionError:
    """Errors of each reading, [readings]."""

    standardised: Tensor
    """Mean squared error in units of the standardised latents, which is what is trained."""
    raw: Tensor
    """The same in the latents' own units; of latents scaled to unit length, in those."""
    unexplained: Tensor
    """Share of the variance that is lost: 1 - R²."""


@torch.no_grad()
def reconstruction_error(net: CodeNet, decoders: Decoders, table: LatentTable, rows: Rows) -> ReconstructionError:
    """Errors over some rows, also relative to the variance of the same rows."""
    net.eval()
    decoders.eval()
    shape = (len(net.spec.widths), net.spec.dim)
    squares, total, total_squares = (torch.zeros(shape, device=table.device) for _ in range(3))
    for start in range(0, len(rows), _TEXTS_PER_PASS):
        latents = table.batch(rows[start : start + _TEXTS_PER_PASS])
        for residual, group in zip(decoders.residuals(net, latents), net.spec.groups, strict=True):
            squares[list(group)] += residual.pow(2).sum(dim=1)
        standardised = net.normalise(latents)
        total += standardised.sum(dim=1)
        total_squares += standardised.pow(2).sum(dim=1)
    count = max(1, len(rows))
    errors, variance = squares / count, (total_squares / count - (total / count).pow(2)).clamp_min(0)
    scale = torch.ones_like(errors) if net.spec.unit else net.scale[:, 0]
    unexplained = errors.sum(dim=1) / variance.sum(dim=1).clamp_min(1e-12)
    return ReconstructionError(errors.mean(dim=1), (errors / scale.pow(2)).mean(dim=1), unexplained)


def _code_width(spec: CodeSpec, group: tuple[int, ...]) -> int:
    return spec.mixed_width if spec.mixing == "unified" else spec.widths[group[0]]
