"""Natural language inference: does one sentence follow from another? FREEZE can pre-train its code networks on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.errors import InputError
from decoder2vec.heads.codes import CodeNet, CodeSpec, LayerwiseLinear
from decoder2vec.training.context import InputSpec, LatentContext, Reads
from decoder2vec.training.data import NLI_LABELS, TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.objectives.objective import Loss, Metric, Objective, ObjectiveConfig

_HOLD_OUT_EVERY = 20
_PAIRS_PER_PASS = 512


@dataclass(frozen=True)
class InferenceConfig(ObjectiveConfig):
    """Three-way classification of entailment, neutral and contradiction."""

    name: str = "inference"


class InferenceObjective(Objective[InferenceConfig, LatentContext]):
    """Labelled premises and hypotheses, by the cross-entropy of the label."""

    names = ("inference",)
    config_class = InferenceConfig
    needs = "nli"
    stage = "inference"
    reads = (Reads.LATENTS,)
    unreadable = "classifies the codes of cached latents; use the recipe freeze"
    needs_dev = False
    classifiers: LayerwiseClassifiers

    def __init__(self, config: InferenceConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        if len(data.nli) < 2:  # the first is held out
            raise InputError("Inference learns from labelled premises and hypotheses; give 2 or more.")

    @property
    def texts(self) -> list[str]:
        """Premises and hypotheses."""
        return list(dict.fromkeys(text for row in self.data.nli for text in row[1:]))

    def __len__(self) -> int:
        return len(self._train_indices())

    def extra_modules(self, context: LatentContext) -> nn.Module:
        """A classifier for each layer."""
        self.classifiers = LayerwiseClassifiers(context.net.spec).to(context.device)
        return self.classifiers

    def loss(self, context: LatentContext) -> Loss:
        """Cross-entropy of the mean logits over layers."""
        labels, text_rows, train = self._labels(context), self._text_rows(context), self._train_indices()

        def loss(rows: Rows) -> Tensor:
            chosen = train[rows]
            targets = labels[torch.from_numpy(chosen).to(context.device)]
            return functional.cross_entropy(self._logits(context, text_rows[:, chosen]), targets)

        return loss

    def metric(self, correlation: str) -> Metric:
        """The accuracy on held-out rows."""
        return Metric("accuracy on held-out rows in %")

    def dev_metric(self, context: LatentContext) -> Callable[[], float]:
        """Accuracy on held-out rows, in percent."""
        labels, text_rows = self._labels(context), self._text_rows(context)
        held_out = np.arange(len(self.data.nli))[::_HOLD_OUT_EVERY]

        def score() -> float:
            context.net.eval()
            self.classifiers.eval()
            correct = 0
            for start in range(0, len(held_out), _PAIRS_PER_PASS):
                chosen = held_out[start : start + _PAIRS_PER_PASS]
                predicted = self._logits(context, text_rows[:, chosen]).argmax(dim=1)
                correct += int((predicted == labels[torch.from_numpy(chosen).to(context.device)]).sum())
            return 100 * correct / max(1, len(held_out))

        return score

    def resume_key(self) -> list[Any]:
        """The labelled rows."""
        return [self.data.nli]

    def _logits(self, context: LatentContext, text_rows: Rows) -> Tensor:
        logits: Tensor = self.classifiers(context.net, context.table.batch(text_rows.ravel()))
        return logits

    def _labels(self, context: LatentContext) -> Tensor:
        return torch.tensor([NLI_LABELS.index(row[0]) for row in self.data.nli], device=context.device)

    def _text_rows(self, context: LatentContext) -> Rows:
        """[2, rows] rows of premises and hypotheses."""
        return np.stack([context.rows([row[side] for row in self.data.nli]) for side in (1, 2)])

    def _train_indices(self) -> Rows:
        return np.flatnonzero(np.arange(len(self.data.nli)) % _HOLD_OUT_EVERY)


class LayerwiseClassifiers(nn.Module):
    """For each layer a three-way classifier on (u, v, |u - v|) of the two codes u and v."""

    def __init__(self, spec: CodeSpec) -> None:
        super().__init__()
        self.classifiers = nn.ModuleList(
            LayerwiseLinear(count, 3 * width, len(NLI_LABELS)) for count, width in spec.block_groups
        )

    def forward(self, net: CodeNet, latents: Tensor) -> Tensor:
        """[pairs, labels] logits, the mean over layers; the first half of the texts are premises."""
        logits = []
        for classify, block in zip(self.classifiers, net.blocks(latents), strict=True):
            u, v = block.chunk(2, dim=1)
            logits.append(classify(torch.cat([u, v, (u - v).abs()], dim=-1)))
        return torch.cat(logits).mean(dim=0)
