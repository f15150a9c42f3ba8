"""Train the FREEZE recipe: read the latents once, then pre-train, train, select, calibrate and score for each seed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from decoder2vec.activations.extract import Progress
from decoder2vec.activations.reader import Reader
from decoder2vec.activations.table import LatentTable
from decoder2vec.backbone.load import Backbone
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.codes import CodeNet
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.heads.pair import SumHead
from decoder2vec.maths.metrics import cosine_pairs, pearson, spearman
from decoder2vec.places import cache_root
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.spec import Reading, fingerprint
from decoder2vec.tables import to_table
from decoder2vec.text.template import Template
from decoder2vec.training.changes import changed_pairs
from decoder2vec.training.data import TrainingData, guess_scale
from decoder2vec.training.examples import extra_texts, full_stop_pairs, random_pairs
from decoder2vec.training.loop import Watch, fit
from decoder2vec.training.pretrained import load_state, save_state
from decoder2vec.training.stages import (
    Autoencoder,
    InferenceNet,
    ScoredRows,
    correlation,
    inference,
    layer_errors,
    predict,
    reconstruction,
    siamese,
    triplets,
)

_FITTED_ON = 20_000
"""How many texts statistics and cuts are fitted on at most."""


@dataclass
class SeedResult:
    """What one seed came to."""

    seed: int
    net: CodeNet
    table: LatentTable
    readings: tuple[Reading, ...]
    head: LayerwiseHead
    dev: dict[str, dict[str, float]] = field(default_factory=dict)
    test: dict[str, dict[str, float]] = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    """Mean score of equal texts, of texts with and without their full stop, and of random pairs."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Histories of the stages, errors of the autoencoders, the cost of a cut."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For the results file."""
        fields = ("seed", "dev", "test", "checks", "notes")
        return {name: getattr(self, name) for name in fields} | {"seconds": round(self.seconds, 2)}


class FreezeTraining:
    """One recipe on one model and one set of data; latents are read when it is made, seeds run one by one."""

    def __init__(
        self, recipe: Freeze, data: TrainingData, backbone: Backbone, progress: Progress = lambda _: None
    ) -> None:
        self.recipe, self.data, self.backbone = recipe, data, backbone
        self.readings = recipe.readings(backbone)
        self.reader = Reader(backbone, self.readings, Template("{text}"))
        self.pairs = changed_pairs(data.train, recipe.changes, data.scale) if data.train else None
        dev_texts = data.dev[0].texts()
        texts = data.all_texts() + (self.pairs.texts() if self.pairs else []) + extra_texts(dev_texts)
        self.table = LatentTable(self.reader, texts, progress)
        self.fitted_on = self.table.rows(self._training_texts()[:_FITTED_ON])
        self.moments = self.table.moments(self.fitted_on)
        for pairs in (*data.dev, *data.test):
            self.table.check(self.table.rows(pairs.texts()))

    def run(self, seed: int, *, work: Path | None = None, watch: Watch = lambda _: None) -> SeedResult:
        """Train one seed; `work` is the folder for checkpoints."""
        started = time.perf_counter()
        torch.manual_seed(seed)
        net = CodeNet(self.recipe.codes(self.backbone)).to(self.backbone.device)
        mean, deviation = (moment.to(self.backbone.device) for moment in self.moments)
        net.set_statistics(mean, deviation, standardise=self.recipe.standardise)
        notes: dict[str, Any] = {}
        if self.recipe.pretrain != "none":
            notes["pretraining"] = self._pretrain(net, seed, watch)
        table, readings = self.table, self.readings
        if self.recipe.loss != "none":
            notes["training"] = self._train(net, table, seed, work, watch)
        if self.recipe.keep or self.recipe.head == "each":
            net, table, kept = self._select(net)
            readings = tuple(readings[number] for number in kept)
            notes["kept"] = [str(reading) for reading in readings]
            if self.recipe.keep:
                notes["training after selection"] = self._train_again(net, table, seed, watch)
        result = SeedResult(seed, net, table, readings, LayerwiseHead(net), notes=notes)
        self._finish(result)
        result.seconds = time.perf_counter() - started
        return result

    def _training_texts(self) -> list[str]:
        """Texts to fit statistics on: not those of dev or test."""
        own = self.pairs.texts() if self.pairs else []
        others = [text for row in self.data.triplets for text in row] + [t for row in self.data.nli for t in row[1:]]
        found = list(dict.fromkeys(own + others + list(self.data.texts)))
        return found or self.data.dev[0].texts()  # nothing is trained: the statistics only set a scale

    def _pretrain(self, net: CodeNet, seed: int, watch: Watch) -> dict[str, Any]:
        """Pre-train, or take over what the same pre-training gave before."""
        key = self._pretraining_key(net, seed)
        file = cache_root() / "pretrained" / f"{key}.safetensors"
        if (note := load_state(net, file)) is not None:
            return {**note, "reused": True}
        torch.manual_seed(int(key[:15], 16))  # what is kept depends on nothing that is not in its key
        module, task = self._pretraining_task(net)
        module.to(self.backbone.device)
        started = time.perf_counter()
        history = fit(module, task, seed, checkpoint=file.with_suffix(".checkpoint"), watch=watch)
        note = {"stage": task.stage, "seconds": round(time.perf_counter() - started, 1), **asdict(history)}
        if isinstance(module, Autoencoder):
            note |= self._reconstruction_errors(module)
        save_state(net, file, note, with_head=self.recipe.pretrain == "contrastive")
        file.with_suffix(".checkpoint").unlink(missing_ok=True)
        return note

    def _pretraining_task(self, net: CodeNet) -> tuple[nn.Module, Any]:
        if self.recipe.pretrain == "autoencoder":
            autoencoder = Autoencoder(net)
            return autoencoder, reconstruction(autoencoder.to(net.shift.device), self.table, self.data, self.recipe)
        if self.recipe.pretrain == "snli":
            judge = InferenceNet(net)
            return judge, inference(judge.to(net.shift.device), self.table, self.data, self.recipe)
        return net, triplets(net, self.table, self.data, self.recipe)

    def _pretraining_key(self, net: CodeNet, seed: int) -> str:
        """Everything that pre-training depends on; the head and the loss of the pairs are not among it."""
        data = {"autoencoder": self.data.texts, "snli": self.data.nli, "contrastive": self.data.triplets}
        kind = self.recipe.pretrain
        dev = [asdict(pairs) for pairs in self.data.dev] if kind == "contrastive" else []
        extra = [self.recipe.temperature, self.recipe.choose_by] if kind == "contrastive" else []
        shape = {**asdict(net.spec), "head": net.spec.head if kind == "contrastive" else ""}
        statistics = [self.recipe.standardise, fingerprint(self._training_texts()[:_FITTED_ON])]
        schedule = to_table(self.recipe.pretraining)
        return fingerprint(self.table.fingerprint, shape, statistics, schedule, kind, data[kind], dev, extra, seed)

    def _reconstruction_errors(self, module: Autoencoder) -> dict[str, Any]:
        """Per layer: the error in the latents' own units, and as a share of their variance."""
        rows = self.table.rows(self.data.texts)[::20]
        errors = layer_errors(module, self.table, rows).cpu()
        scale, deviation = module.net.scale.cpu(), self.moments[1]
        variance = (scale * deviation).pow(2).mean(dim=(1, 2))
        raw = errors / scale.pow(2).mean(dim=(1, 2))
        return {
            "error": [round(value, 6) for value in raw.tolist()],
            "unexplained": [round(value, 5) for value in (errors / variance.clamp_min(1e-12)).tolist()],
        }

    def _train(self, net: CodeNet, table: LatentTable, seed: int, work: Path | None, watch: Watch) -> dict[str, Any]:
        assert self.pairs is not None
        task = siamese(net, table, self.data, self.pairs, self.recipe)
        data = asdict(replace(self.data, test=(), notes=()))
        key = fingerprint(table.fingerprint, to_table(self.recipe), asdict(self.pairs), data, seed)
        checkpoint = work / f"pairs-{key}.safetensors" if work else None
        return asdict(fit(net, task, seed, checkpoint=checkpoint, watch=watch))

    def _train_again(self, net: CodeNet, table: LatentTable, seed: int, watch: Watch) -> dict[str, Any]:
        """The last stage once more, for the readings that were kept."""
        if self.recipe.loss != "none":
            return self._train(net, table, seed, None, watch)
        return asdict(fit(net, triplets(net, table, self.data, self.recipe), seed, watch=watch))

    def _select(self, net: CodeNet) -> tuple[CodeNet, LatentTable, list[int]]:
        """The readings with the largest weights, or under the head "each" the one that is best on dev."""
        if isinstance(net.pair, SumHead):
            kept = sorted(net.pair.weights().argsort(descending=True)[: self.recipe.keep].tolist())
        else:
            dev = ScoredRows.of(self.table, self.data.dev[0])
            columns = predict(net, self.table, dev).T
            kept = [int(np.argmax([correlation(self.recipe.choose_by, column, dev.scores) for column in columns]))]
        return net.only(kept), self.table.only(kept), kept

    def _finish(self, result: SeedResult) -> None:
        """Cut and calibrate on training texts and dev pairs; then score dev, and test for the first and only time."""
        first = self.data.dev[0]
        if self.recipe.dim:
            result.notes["before the cut"] = {
                "dev": self._scores(result, self.data.dev),
                "test": self._scores(result, self.data.test),
                "dim": result.head.dim,
            }
            vectors = embed_rows(result.head, result.table, self.fitted_on)
            result.head = result.head.shortened(vectors, self.recipe.dim)
        low, high = self.data.scale if self.data.train else guess_scale(min(first.scores), max(first.scores))
        target = np.clip((np.asarray(first.scores) - low) / (high - low), 0, 1)
        top = 1.0 if self.recipe.head in ("sum", "gated", "each") else None
        raw = score_pairs(result, list(zip(first.left, first.right, strict=True)))
        result.head.calibration = Calibration.fit(raw, target, top=top)
        result.dev = self._scores(result, self.data.dev)
        result.test = self._scores(result, self.data.test)
        texts = first.texts()
        for name, pairs in (
            ("equal texts", [(text, text) for text in texts[:200]]),
            ("full stop", full_stop_pairs(texts)),
            ("random pairs", random_pairs(texts)),
        ):
            if pairs:
                result.checks[name] = round(float(calibrated(result, pairs).mean()), 4)

    def _scores(self, result: SeedResult, files: Sequence[Any]) -> dict[str, dict[str, float]]:
        found = {}
        for pairs in files:
            raw, truth = score_pairs(result, list(zip(pairs.left, pairs.right, strict=True))), np.asarray(pairs.scores)
            found[pairs.name] = {
                "spearman": round(100 * spearman(raw, truth), 2),
                "pearson": round(100 * pearson(raw, truth), 2),
            }
        return found


def embed_rows(head: LayerwiseHead, table: LatentTable, rows: NDArray[np.intp]) -> NDArray[np.float32]:
    """[row, dim] vectors of some rows of a table."""
    parts = []
    for begin in range(0, len(rows), 512):
        latents = table.batch(rows[begin : begin + 512])
        parts.append(head(latents.transpose(0, 1).flatten(1).cpu().numpy()))
    return np.concatenate(parts)


def score_pairs(result: SeedResult, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Raw scores, as the encoder's own `similarity` gives them."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    place = {text: number for number, text in enumerate(texts)}
    vectors = embed_rows(result.head, result.table, result.table.rows(texts))
    left, right = (vectors[[place[pair[side]] for pair in pairs]] for side in (0, 1))
    if not result.head.pairwise:
        return np.asarray(cosine_pairs(left, right).astype(np.float32), np.float64)
    return result.head.similarity_pairwise(torch.from_numpy(left), torch.from_numpy(right)).double().numpy()


def calibrated(result: SeedResult, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
    """Scores between 0 and 1."""
    return result.head.calibration(torch.from_numpy(score_pairs(result, pairs))).double().numpy()
