"""Train the FREEZE recipe: read the latents once, then pre-train, train, select, calibrate and score for each seed."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from decoder2vec.activations.extract import Progress, Reader
from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import fingerprint, to_table
from decoder2vec.errors import InputError
from decoder2vec.heads.codes import CodeNet
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.heads.pair import SumHead
from decoder2vec.maths.metrics import METRICS
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.storage import pretrained_root
from decoder2vec.text.augmentation import augment_pairs
from decoder2vec.text.template import Template
from decoder2vec.training.data import TrainingData
from decoder2vec.training.examples import extra_texts
from decoder2vec.training.frozen.autoencoders import Autoencoder, held_out, measure, reconstruction
from decoder2vec.training.frozen.pretrained import load_state, save_state
from decoder2vec.training.frozen.scoring import SeedResult, finish
from decoder2vec.training.frozen.tasks import (
    InferenceNet,
    ScoredRows,
    dev_scores,
    inference,
    siamese,
    triplets,
)
from decoder2vec.training.loop import OnProgress, Task, fit

_FORMAT = 1
"""Raised when a stage changes, so that encoders pre-trained by an older one are not taken for the same."""
_FITTED_ON = 20_000
"""How many texts statistics and cuts are fitted on at most."""


class FreezeTraining:
    """One recipe on one model and one set of data; latents are read when it is made, seeds run one by one."""

    def __init__(
        self, recipe: Freeze, data: TrainingData, backbone: Backbone, progress: Progress = lambda _: None
    ) -> None:
        self.recipe, self.data, self.backbone = recipe, data, backbone
        self.readings = recipe.readings(backbone)
        if recipe.dim >= (size := recipe.codes(backbone).size):
            raise InputError(f"dim = {recipe.dim} is no cut: the vectors have {size} dimensions.")
        self.reader = Reader(backbone, self.readings, Template("{text}"), recipe.max_length, recipe.on_overflow)
        self.pairs = augment_pairs(data.train, recipe.changes, data.scale) if data.train else None
        dev_texts = data.dev[0].texts()
        texts = data.all_texts() + (self.pairs.texts() if self.pairs else []) + extra_texts(dev_texts)
        self.table = LatentTable(self.reader, texts, progress)
        self.fitted_on = self.table.rows(self._training_texts()[:_FITTED_ON])
        self.moments = self.table.moments(self.fitted_on)
        for pairs in (*data.dev, *data.test):
            self.table.check_finite(self.table.rows(pairs.texts()))

    def run(self, seed: int, *, work: Path | None = None, on_progress: OnProgress = lambda _: None) -> SeedResult:
        """Train one seed; `work` is the folder for checkpoints."""
        started = time.perf_counter()
        torch.manual_seed(seed)
        net = CodeNet(self.recipe.codes(self.backbone)).to(self.backbone.device)
        mean, deviation = (moment.to(self.backbone.device) for moment in self.moments)
        net.set_statistics(mean, deviation, standardise=self.recipe.standardise)
        notes: dict[str, Any] = {}
        if self.recipe.pretrain != "none":
            notes["pretraining"] = self._pretrain(net, seed, on_progress)
        table, readings = self.table, self.readings
        if self.recipe.loss != "none":
            notes["training"] = self._train(net, table, seed, work, on_progress)
        if self.recipe.head == "each":
            notes["each layer"] = self._single_layers(net)
        if self.recipe.keep or self.recipe.head == "each":
            net, table, kept = self._select(net)
            readings = tuple(readings[number] for number in kept)
            notes["kept"] = [str(reading) for reading in readings]
            if self.recipe.keep:
                notes["training after selection"] = self._train_again(net, table, seed, work, on_progress)
        result = SeedResult(seed=seed, net=net, table=table, readings=readings, head=LayerwiseHead(net), notes=notes)
        finish(result, self.recipe, self.data, self.fitted_on)
        reused = notes.get("pretraining", {}) if notes.get("pretraining", {}).get("reused") else {}
        result.seconds = time.perf_counter() - started + reused.get("seconds", 0.0)  # as if nothing had been kept
        return result

    def _training_texts(self) -> list[str]:
        """Texts to fit statistics on: not those of dev or test."""
        own = self.pairs.texts() if self.pairs else []
        others = [text for row in self.data.triplets for text in row] + [t for row in self.data.nli for t in row[1:]]
        found = list(dict.fromkeys(own + others + list(self.data.texts)))
        if not found and (self.recipe.standardise or self.recipe.dim):
            raise InputError(
                "Statistics need texts to be fitted on, and not those of dev: give pairs, triplets or texts."
            )
        return found or self.data.dev[0].texts()  # nothing is trained, and a common factor changes no cosine

    def _pretrain(self, net: CodeNet, seed: int, on_progress: OnProgress) -> dict[str, Any]:
        """Pre-train, or take over what the same pre-training gave before."""
        key = self._pretraining_key(net, seed)
        file = pretrained_root() / f"{key}.safetensors"
        if (note := load_state(net, file)) is not None:
            return {**note, "reused": True}
        torch.manual_seed(int(key[:15], 16))  # what is kept depends on nothing that is not in its key
        module, task = self._pretraining_task(net)
        module.to(self.backbone.device)
        started = time.perf_counter()
        history = fit(module, task, seed, checkpoint=file.with_suffix(".checkpoint"), on_progress=on_progress)
        note = {"stage": task.stage, "seconds": round(time.perf_counter() - started, 1), **asdict(history)}
        if isinstance(module, Autoencoder):
            note |= self._reconstruction_errors(module)
        save_state(net, file, note, with_head=self.recipe.pretrain == "contrastive")
        file.with_suffix(".checkpoint").unlink(missing_ok=True)
        return note

    def _pretraining_task(self, net: CodeNet) -> tuple[nn.Module, Task]:
        if self.recipe.pretrain == "autoencoder":
            autoencoder = Autoencoder(net)
            return autoencoder, reconstruction(autoencoder.to(net.shift.device), self.table, self.data, self.recipe)
        if self.recipe.pretrain == "snli":
            judge = InferenceNet(net)
            return judge, inference(judge.to(net.shift.device), self.table, self.data, self.recipe)
        return net, triplets(net, self.table, self.data, self.recipe)

    @cached_property
    def _digests(self) -> dict[str, str]:
        """Hashes of the parts of the data."""
        data = self.data
        return {
            "autoencoder": fingerprint(data.texts),
            "snli": fingerprint(data.nli),
            "contrastive": fingerprint(data.triplets),
            "dev": fingerprint([vars(pairs) for pairs in data.dev]),
            "scale": fingerprint(data.scale),
            "statistics": fingerprint(self._training_texts()[:_FITTED_ON]),
        }

    def _pretraining_key(self, net: CodeNet, seed: int) -> str:
        """Everything that pre-training depends on; the head and the loss of the pairs are not among it."""
        kind, digests = self.recipe.pretrain, self._digests
        judged = kind == "contrastive"
        extra = [digests["dev"], self.recipe.temperature, self.recipe.choose_by] if judged else []
        shape = {**asdict(net.spec), "head": net.spec.head if judged else ""}
        statistics = [self.recipe.standardise, digests["statistics"]]
        schedule = to_table(self.recipe.pretraining)
        return fingerprint(
            _FORMAT, self.table.fingerprint, shape, statistics, schedule, kind, digests[kind], extra, seed
        )

    def _reconstruction_errors(self, module: Autoencoder) -> dict[str, Any]:
        """Per layer, on held-out texts: the error in the latents' own units, and as a share of their variance."""
        found = measure(module, self.table, held_out(self.table.rows(self.data.texts)))
        return {
            "error": [round(value, 6) for value in found.raw.tolist()],
            "unexplained": [round(value, 5) for value in found.unexplained.tolist()],
        }

    def _train(
        self, net: CodeNet, table: LatentTable, seed: int, work: Path | None, on_progress: OnProgress
    ) -> dict[str, Any]:
        assert self.pairs is not None
        task = siamese(net, table, self.data, self.pairs, self.recipe)
        key = fingerprint(table.fingerprint, to_table(self.recipe), vars(self.pairs), self._digests, seed)
        checkpoint = work / f"pairs-{key}.safetensors" if work else None
        return asdict(fit(net, task, seed, checkpoint=checkpoint, on_progress=on_progress))

    def _train_again(
        self, net: CodeNet, table: LatentTable, seed: int, work: Path | None, on_progress: OnProgress
    ) -> dict[str, Any]:
        """The last stage once more, for the readings that were kept."""
        if self.recipe.loss != "none":
            return self._train(net, table, seed, work, on_progress)
        return asdict(fit(net, triplets(net, table, self.data, self.recipe), seed, on_progress=on_progress))

    def _select(self, net: CodeNet) -> tuple[CodeNet, LatentTable, list[int]]:
        """The readings with the largest weights, or under the head "each" the one that is best on dev."""
        if isinstance(net.pair, SumHead):
            kept = sorted(net.pair.weights().argsort(descending=True)[: self.recipe.keep].tolist())
        else:
            kept = [int(np.argmax(self._single_layers(net)[self.recipe.choose_by]))]
        return net.select_readings(kept), self.table.select_readings(kept), kept

    def _single_layers(self, net: CodeNet) -> dict[str, list[float]]:
        """Under the head "each": the dev scores of every layer for itself."""
        dev = [ScoredRows.of(self.table, pairs) for pairs in self.data.dev]
        return {metric: dev_scores(net, self.table, dev, metric).round(2).tolist() for metric in METRICS}
