"""FREEZE: the model is frozen; small encoders learn to read its layers.

Every layer of the frozen model is read once per text. Each reading gets a small encoder of its own, two texts are
compared by cosine, reading by reading, and a head turns the cosines into one score. Training sees cached latents only
and takes seconds. McDonald, Marsano and McLaughlin, "FREEZE!: Pretrained Language Models as Frozen Feature
Extractors for Semantic Tasks", 2024; the defaults of `FreezeRecipe` are the paper's final model (step 5 of its ladder),
`EMBEDDING` is ours.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoder2vec.activations.extract import Reader
from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import DEFAULT_MAX_LENGTH, EncoderSpec, Reading, fingerprint, key_settings
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.heads.codes import MIXINGS, CodeNet, CodeSpec, spread_widths
from decoder2vec.heads.pair import PAIR_HEADS, SumHead
from decoder2vec.maths.losses import SCORE_LOSSES
from decoder2vec.maths.metrics import METRICS
from decoder2vec.progress import current_progress
from decoder2vec.storage import pretrained_root
from decoder2vec.text.augmentation import AUGMENTATIONS, augment_pairs
from decoder2vec.text.files import ScoredPairs
from decoder2vec.text.template import Template
from decoder2vec.training.context import InputSpec, Reads
from decoder2vec.training.data import TrainingData
from decoder2vec.training.distributed import is_main_process, one_process_first
from decoder2vec.training.loop import Rows, Schedule
from decoder2vec.training.objectives.autoencoder import AutoencoderConfig, AutoencoderObjective
from decoder2vec.training.objectives.contrastive import LatentTripletsConfig, LatentTripletsObjective
from decoder2vec.training.objectives.distill import DistillConfig, DistillObjective
from decoder2vec.training.objectives.inference import InferenceConfig, InferenceObjective
from decoder2vec.training.objectives.objective import Objective
from decoder2vec.training.objectives.scores import PairHeadConfig, PairHeadObjective
from decoder2vec.training.recipes.freeze_results import (
    FreezeContext,
    evaluate_freeze,
    freeze_record,
    load_pretrained,
    save_pretrained,
)
from decoder2vec.training.recipes.recipe import SCORING_UNTRAINED, Recipe, SeedRun, stage_note
from decoder2vec.training.results import Scores, SeedResult, correlations, sanity_texts
from decoder2vec.training.teachers import Teacher

PRETRAININGS = {
    "none": None,
    "autoencoder": AutoencoderObjective,
    "snli": InferenceObjective,
    "contrastive": LatentTripletsObjective,
    "distill": DistillObjective,
}
_TRAINS_HEAD = ("contrastive", "distill")
"""Pre-trainings after which the network is an encoder: they train its head, too."""
_FORMAT = 1
"""Increased when pre-training changes, so that networks of an older version are not reused."""
_FIRST_SETTINGS = (
    *("epochs", "steps", "batch", "rate", "weight_decay", "patience", "evaluate_every", "clip"),
    *("dim", "widths", "hidden", "depth", "shortcut", "mixing", "mixed_width", "head", "unit", "dropout", "noise"),
    *("name", "weight", "prompt", "query_prompt", "pooling", "requests_per_minute", "precision"),
)
"""Settings of schedule, network and teachers that enter the key of a pre-training at their defaults, too: its random
numbers follow from its key, and stay those of versions in which all settings entered. New ones do not belong here."""
_MAX_FITTED_TEXTS = 20_000
"""Number of texts that statistics and truncations are fitted on."""
_MAX_FRACTION = 8.0
_LATENTS = InputSpec(Reads.LATENTS)
_TRAINING_COST = 0.02
"""Work of a training example on cached latents, in texts that a model encodes."""


@dataclass(frozen=True)
class LatentSource:
    """Latents to read: under which prompt, how pooled, which layers."""

    template: str = "plain"
    pooling: str = "lasttoken"
    layers: str | tuple[int, ...] = "all"
    """all (after every block), layer numbers, or a range: "20:30" is eleven layers, "0.67:1.0" the upper third."""
    normed: bool = False

    def readings(self, depth: int) -> list[Reading]:
        """The readings on a model of that depth."""
        template = Template.of(self.template).string
        return [Reading(layer, self.pooling, self.normed, template) for layer in layer_numbers(self.layers, depth)]


@dataclass(frozen=True)
class LatentCorpus:
    """The latents of a training, read once for all seeds."""

    data: TrainingData
    backbone: Backbone
    readings: tuple[Reading, ...]
    table: LatentTable
    pairs: ScoredPairs | None
    """Training pairs, augmented."""
    fitted_texts: list[str]
    """Texts that statistics are fitted on."""
    teachers: list[str]
    """Fingerprints of the teachers."""
    untrained: dict[str, Scores] = field(default_factory=dict)
    """Scores of the readings without trained encoders, by dev and test: the same for every seed, so measured once."""

    @cached_property
    def fitted_rows(self) -> Rows:
        """Rows of the texts that statistics are fitted on."""
        return self.table.rows(self.fitted_texts)

    @cached_property
    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of each dimension."""
        return self.table.moments(self.fitted_rows)

    @cached_property
    def digests(self) -> dict[str, str]:
        """Hashes of the parts of the data, for checkpoints and pre-trained networks."""
        data = self.data
        return {
            "autoencoder": fingerprint(data.texts),
            "snli": fingerprint(data.nli),
            "contrastive": fingerprint(data.triplets),
            "distill": fingerprint(data.texts, self.teachers),
            "dev": fingerprint([vars(pairs) for pairs in data.dev]),
            "scale": fingerprint(data.scale),
            "statistics": fingerprint(self.fitted_texts),
        }


@dataclass(frozen=True)
class FreezeRecipe(Recipe[LatentCorpus, FreezeContext]):
    """Train small encoders on the cached latents of a frozen model."""

    name = "freeze"
    about = "Trained with the FREEZE recipe: the model is frozen, small encoders read its layers."
    attention = None

    latents: tuple[LatentSource, ...] = (LatentSource(),)
    standardise: bool = False
    """Centre and scale each dimension over the training texts; else one factor for each layer."""
    unit_latents: bool = False
    """Scale each latent to unit length."""
    widths: tuple[int | float, ...] = (256, 512)
    """Width of the codes, spread over the layers of each source from the bottom; fractions are parts of the model's
    width; 0 compares the latents themselves."""
    hidden: int | float = 0.5
    """Width of a hidden layer, absolute or a fraction; 0: linear encoders."""
    depth: int = 1
    """Number of hidden layers."""
    shortcut: bool = False
    """Add a linear path around the hidden layers, and start from it alone."""
    dropout: float = 0.0
    noise: float = 0.0
    """Noise on the latents in training, in standard deviations of each dimension."""
    mixing: str = "none"
    """none, attention_latents, attention_codes or unified: what happens across layers before texts are compared."""
    mixed_width: int = 0
    """Width of the unified vector, or the number of attention queries."""
    head: str = "mlp"
    """sum (an embedding), gated (a pair scorer with f(1) = 1), mlp (the paper's), each (every layer for itself)."""
    pretrain: str = "autoencoder"
    """none, autoencoder (on plain texts), snli (three-way inference), contrastive (on triplets), distill (teachers)."""
    teachers: tuple[Teacher, ...] = ()
    """For distill: the encoders whose vectors are matched on plain texts."""
    pretraining: Schedule = field(default_factory=lambda: Schedule(epochs=6, batch=256))
    temperature: float = 0.05
    """Of the contrastive loss."""
    loss: str = "log_variance"
    """mse, log_variance, pearson or cosent on scored pairs; none: stop after pre-training."""
    training: Schedule = field(default_factory=lambda: Schedule(rate=3e-4))
    choose_by: str = "pearson"
    """The dev correlation by which epochs and seeds are selected."""
    changes: tuple[str, ...] = ()
    """Augmentations of the training pairs: identical, punctuation (with and without the full stop), case, words."""
    max_length: int = DEFAULT_MAX_LENGTH
    """Maximum number of tokens of a prompt."""
    on_overflow: str = "truncate"
    """What happens to longer prompts: truncate, chunk (read in parts and average) or error."""
    keep: int = 0
    """Keep only this many readings, those with the largest weights, and train on; 0: all."""
    dim: int = 0
    """Truncate the embedding to this many dimensions; 0: all."""

    def __post_init__(self) -> None:
        for kind, name, known in (
            ("head", self.head, PAIR_HEADS),
            ("mixing", self.mixing, MIXINGS),
            ("pretraining", self.pretrain, PRETRAININGS),
            ("loss", self.loss, ("none", *SCORE_LOSSES)),
            ("metric", self.choose_by, METRICS),
            *(("change", change, AUGMENTATIONS) for change in self.changes),
        ):
            if name not in known:
                raise unknown_name(kind, name, known)
        for conflicts, reason in self._conflicts():
            if conflicts:
                raise InputError(reason)

    def _conflicts(self) -> list[tuple[bool, str]]:
        """Which settings do not go together, and why."""
        has_codes, mixed = any(self.widths), self.mixing != "none"
        pretrains_codes = self.pretrain in ("autoencoder", "snli")
        trains_nothing = (
            self.loss == "none" and self.pretrain not in _TRAINS_HEAD and (has_codes or self.pretrain != "none")
        )
        return [
            (
                self.training.partial_vocabulary or self.pretraining.partial_vocabulary,
                "freeze trains on cached states and no embedding; leave out partial_vocabulary.",
            ),
            (
                bool(self.pretraining.save_every),
                "Pre-training makes no encoder to be saved; set training.save_every, not pretraining.save_every.",
            ),
            (
                bool(self.training.save_every) and (self.loss == "none" or bool(self.keep) or self.head == "each"),
                "Encoders of steps are those of a training on scored pairs after which no reading is selected; "
                "leave out training.save_every.",
            ),
            (not self.widths, "widths is empty; give a width for the codes, or 0 for none."),
            (
                trains_nothing,
                "Without a loss on scored pairs only contrastive or distill pre-training makes an encoder.",
            ),
            (not 0 <= self.dropout < 1, "dropout must be 0 or more and below 1."),
            (not 0 < self.temperature < math.inf, "temperature must be a number above 0."),
            (self.depth < 1, "depth must be 1 or more."),
            (
                self.loss in ("log_variance", "pearson") and self.training.batch < 2,
                f"The loss {self.loss} needs batches of 2 pairs or more.",
            ),
            (
                self.loss == "none" and self.head in ("mlp", "gated"),
                f"The head {self.head!r} learns from scored pairs only; without a loss use sum or each.",
            ),
            (
                not 0 <= self.noise < math.inf or min(self.keep, self.dim) < 0,
                "noise, keep and dim must be numbers of 0 or more.",
            ),
            (not 0 <= self.hidden < math.inf, "hidden must be 0 or more: a width, or a fraction of one."),
            (
                pretrains_codes and not has_codes,
                "Without encoders (widths = [0]) there is nothing to pre-train; set pretrain to none.",
            ),
            (
                pretrains_codes and self.mixing.startswith("attention"),
                "Attention over layers is trained from the start; set pretrain to none or contrastive.",
            ),
            (
                bool(self.keep) and (self.head != "sum" or mixed),
                "Readings are selected by the weights of the head 'sum' without mixing.",
            ),
            (
                self.head == "each" and mixed,
                "The head 'each' chooses one layer, which mixed layers no longer are; set mixing to none.",
            ),
            (
                bool(self.dim) and self.head != "sum",
                "Only the vectors of the head 'sum' can be truncated: other heads read their blocks.",
            ),
        ]

    @property
    def reads(self) -> Reads:
        """Cached latents: the model does not run in training."""
        return Reads.LATENTS

    @property
    def objective_name(self) -> str:
        """The loss on scored pairs."""
        return self.loss

    def needs(self) -> Sequence[str]:
        """Scored pairs, and what pre-training learns from."""
        kinds = [] if self.loss == "none" else [PairHeadObjective.needs]
        pretraining = PRETRAININGS[self.pretrain]
        return kinds + ([pretraining.needs] if pretraining else [])

    def with_teachers(self, teachers: Sequence[Teacher]) -> FreezeRecipe:
        """The recipe with these teachers, if it distils any."""
        return replace(self, teachers=tuple(teachers)) if self.pretrain == "distill" else self

    def used_teachers(self) -> Sequence[Teacher]:
        """The teachers, if it distils any."""
        return self.teachers if self.pretrain == "distill" else ()

    def readings(self, backbone: Backbone) -> tuple[Reading, ...]:
        """Everything that is read from a model, in order."""
        readings = tuple(reading for source in self._readings_by_source(backbone.n_layers) for reading in source)
        if not readings:
            raise InputError("The recipe reads nothing; give at least one [[freeze.latents]] with layers.")
        return readings

    def code_spec(self, backbone: Backbone) -> CodeSpec:
        """The shape of the network for a model."""
        return self.code_spec_for([len(source) for source in self._readings_by_source(backbone.n_layers)], backbone.dim)

    def code_spec_for(self, counts: Sequence[int], dim: int) -> CodeSpec:
        """The shape of the network for latents of width `dim`, with `counts` layers in the sources."""
        widths = tuple(_absolute(width, dim) for width in self.widths)
        return CodeSpec(
            dim=dim,
            widths=tuple(width for count in counts for width in spread_widths(widths, count)),
            hidden=_absolute(self.hidden, dim),
            depth=self.depth,
            shortcut=self.shortcut,
            mixing=self.mixing,
            mixed_width=self.mixed_width,
            head=self.head,
            unit=self.unit_latents,
            dropout=self.dropout,
            noise=self.noise,
        )

    def _readings_by_source(self, depth: int) -> list[list[Reading]]:
        """The readings of each source, without those of an earlier one."""
        sources: list[list[Reading]] = []
        for source in self.latents:
            earlier = {reading for readings in sources for reading in readings}
            sources.append([reading for reading in dict.fromkeys(source.readings(depth)) if reading not in earlier])
        return sources

    def check(self, data: TrainingData, backbone: Backbone) -> None:
        """Raise if layers or dimensions do not exist on this model, or if data are missing."""
        self.readings(backbone)
        if self.dim >= (size := self.code_spec(backbone).size):
            raise InputError(f"dim = {self.dim} is no truncation: the vectors have {size} dimensions.")
        if not data.dev:
            raise InputError("freeze needs scored pairs to select and calibrate on; give dev pairs.")
        if self.pretrain != "none":
            self._pretraining_objective(data)
        if self.loss != "none":
            self._pairs_objective(data)

    def expect(self, data: TrainingData, stage: str, seeds: int) -> None:
        """Announce the encoding of all texts, vectors of teachers, and for each seed the trainings on latents."""
        progress = current_progress()
        texts = {*data.all_texts(), *sanity_texts(data.dev[0].texts() if data.dev else ())}
        progress.expect("encoding", len(texts), stage=stage)
        for teacher in self.used_teachers():
            progress.expect(teacher.phase, len(data.texts), stage=stage)
        n_dev_texts = sum(len(pairs.texts()) for pairs in data.dev)
        trained = [(self.pretraining, max(len(data.texts), len(data.triplets), len(data.nli)))]
        trained = trained if self.pretrain != "none" else []
        trained += [(self.training, len(data.train))] if self.loss != "none" and data.train else []
        for _ in range(seeds):
            for schedule, n_examples in trained:
                n_seen = schedule.steps * schedule.batch or schedule.epochs * n_examples
                progress.expect("training", _TRAINING_COST * n_seen, stage=stage)
                progress.expect("evaluating", _TRAINING_COST * (1 + schedule.epochs) * n_dev_texts, stage=stage)
            progress.expect("final checks", stage=stage)
        progress.expect(SCORING_UNTRAINED, stage=stage)

    def prepare(self, data: TrainingData, backbone: Backbone) -> LatentCorpus:
        """Read the latents of all texts, from the cache or from the model."""
        readings = self.readings(backbone)
        reader = Reader(backbone, readings, Template("{text}"), self.max_length, self.on_overflow)
        pairs = augment_pairs(data.train, self.changes, data.scale) if data.train else None
        texts = data.all_texts() + (pairs.texts() if pairs else []) + sanity_texts(data.dev[0].texts())
        fitted_texts = self._training_texts(data, pairs)[:_MAX_FITTED_TEXTS]
        with current_progress().phase("encoding", len(dict.fromkeys(texts))), one_process_first():
            table = LatentTable(reader, texts)
        teachers = self.teacher_fingerprints()
        corpus = LatentCorpus(data, backbone, readings, table, pairs, fitted_texts, teachers)
        _ = corpus.moments  # latents that are not finite are found before any training
        for evaluated in (*data.dev, *data.test):
            corpus.table.check_finite(corpus.table.rows(evaluated.texts()))
        return corpus

    def _training_texts(self, data: TrainingData, pairs: ScoredPairs | None) -> list[str]:
        """Texts to fit statistics on: not those of dev or test."""
        rows = [text for row in data.triplets for text in row] + [text for row in data.nli for text in row[1:]]
        texts = list(dict.fromkeys((pairs.texts() if pairs else []) + rows + list(data.texts)))
        if not texts and (self.standardise or self.dim):
            raise InputError(
                "Statistics need texts to be fitted on, and not those of dev: give pairs, triplets or texts."
            )
        return texts or data.dev[0].texts()  # nothing is trained, and a common factor changes no cosine

    def attach(self, corpus: LatentCorpus) -> FreezeContext:
        """A new code network on the latents."""
        net = CodeNet(self.code_spec(corpus.backbone)).to(corpus.backbone.device)
        mean, deviation = (moment.to(corpus.backbone.device) for moment in corpus.moments)
        net.set_statistics(mean, deviation, standardise=self.standardise)
        return FreezeContext(net, corpus.table, corpus.readings)

    def train(self, context: FreezeContext, corpus: LatentCorpus, run: SeedRun) -> SeedResult:
        """Pre-train, train on scored pairs, select readings and train those again."""
        notes: dict[str, Any] = {}
        if self.pretrain != "none":
            notes["pretraining"] = self._pretrain(context, corpus, run)
        if self.loss != "none":
            notes["training"] = self._train_on_pairs(context, corpus, run)
        if self.head == "each":
            notes["each layer"] = self._scores_by_layer(context, corpus.data)
        if self.keep or self.head == "each":
            context = self._select(context, corpus.data)
            notes["kept"] = [str(reading) for reading in context.readings]
            if self.keep:
                notes["training after selection"] = self._train_again(context, corpus, run)
        result = SeedResult(seed=run.seed, notes=notes, model=context, n_trained=context.net.count_parameters())
        if notes.get("pretraining", {}).get("reused"):
            result.seconds = notes["pretraining"]["seconds"]  # as if nothing had been cached
        return result

    def _pretrain(self, context: FreezeContext, corpus: LatentCorpus, run: SeedRun) -> dict[str, Any]:
        """Pre-train, or reuse the network of an earlier run with the same pre-training."""
        key = self._pretraining_key(context, corpus, run.seed)
        file = pretrained_root() / f"{key}.safetensors"
        if (note := load_pretrained(context.net, file)) is not None:
            return {**note, "reused": True}
        torch.manual_seed(int(key[:15], 16))  # so that the cached network depends on nothing outside its key
        objective = self._pretraining_objective(corpus.data)
        started = time.perf_counter()
        checkpoint = file.with_suffix(".checkpoint")
        history, _ = run.fit(objective, context, self.pretraining, self.choose_by, checkpoint=checkpoint)
        note = {**stage_note(objective, history, self.choose_by), "seconds": round(time.perf_counter() - started, 1)}
        note |= objective.report(context)
        if is_main_process():
            save_pretrained(context.net, file, note, with_head=self.pretrain in _TRAINS_HEAD)
            checkpoint.unlink(missing_ok=True)
        return note

    def _pretraining_objective(self, data: TrainingData) -> Objective[Any, Any]:
        if self.pretrain == "autoencoder":
            return AutoencoderObjective(AutoencoderConfig(), data, _LATENTS)
        if self.pretrain == "snli":
            return InferenceObjective(InferenceConfig(), data, _LATENTS)
        if self.pretrain == "distill":
            return DistillObjective(DistillConfig(teachers=self.teachers), data, _LATENTS)
        config = LatentTripletsConfig(temperature=self.temperature, choose_by=self.choose_by)
        return LatentTripletsObjective(config, data, _LATENTS)

    def _pretraining_key(self, context: FreezeContext, corpus: LatentCorpus, seed: int) -> str:
        """Everything that pre-training depends on; neither the pair head nor the loss on pairs is part of it."""
        kind, digests = self.pretrain, corpus.digests
        uses_head = kind in _TRAINS_HEAD
        extra = [digests["dev"], self.temperature, self.choose_by] if uses_head else []
        extra += [key_settings(teacher, _FIRST_SETTINGS) for teacher in self.teachers] if kind == "distill" else []
        spec = context.net.spec
        shape = {**key_settings(spec, _FIRST_SETTINGS), "head": spec.head if uses_head else ""}
        statistics = [self.standardise, digests["statistics"]]
        schedule = key_settings(self.pretraining, _FIRST_SETTINGS)
        return fingerprint(
            _FORMAT, context.table.fingerprint, shape, statistics, schedule, kind, digests[kind], extra, seed
        )

    def _train_on_pairs(self, context: FreezeContext, corpus: LatentCorpus, run: SeedRun) -> dict[str, Any]:
        assert corpus.pairs is not None
        objective = self._pairs_objective(replace(corpus.data, train=corpus.pairs))
        key = fingerprint(context.table.fingerprint, key_settings(self), vars(corpus.pairs), corpus.digests, run.seed)
        checkpoint = run.work / f"pairs-{key}.safetensors" if run.work else None
        history, _ = run.fit(objective, context, self.training, self.choose_by, checkpoint=checkpoint)
        return stage_note(objective, history, self.choose_by)

    def _pairs_objective(self, data: TrainingData) -> PairHeadObjective:
        return PairHeadObjective(PairHeadConfig(loss=self.loss, choose_by=self.choose_by), data, _LATENTS)

    def _train_again(self, context: FreezeContext, corpus: LatentCorpus, run: SeedRun) -> dict[str, Any]:
        """Repeat the last stage with the selected readings."""
        if self.loss != "none":
            return self._train_on_pairs(context, corpus, run)
        objective = self._pretraining_objective(corpus.data)
        history, _ = run.fit(objective, context, self.pretraining, self.choose_by)
        return stage_note(objective, history, self.choose_by)

    def _select(self, context: FreezeContext, data: TrainingData) -> FreezeContext:
        """The readings with the largest weights or, with the head "each", the one that is best on dev."""
        head = context.net.pair
        if isinstance(head, SumHead):
            kept = sorted(head.weights().argsort(descending=True)[: self.keep].tolist())
        else:
            kept = [int(np.argmax(self._scores_by_layer(context, data)[self.choose_by]))]
        readings = tuple(context.readings[index] for index in kept)
        return FreezeContext(context.net.select_readings(kept), context.table.select_readings(kept), readings)

    def _scores_by_layer(self, context: FreezeContext, data: TrainingData) -> dict[str, list[float]]:
        """With the head "each": the dev scores of every layer for itself."""
        dev = [context.pair_rows(pairs) for pairs in data.dev]
        return {metric: context.dev_scores(dev, metric).round(2).tolist() for metric in METRICS}

    def evaluate(self, result: SeedResult, corpus: LatentCorpus) -> None:
        """Truncate, calibrate on the first dev file, then score dev and test."""
        with current_progress().phase("final checks"):
            evaluate_freeze(
                result, corpus.data, dim=self.dim, has_exact_top=self.head != "mlp", rows=corpus.fitted_rows
            )

    def snapshot(self, context: FreezeContext, corpus: LatentCorpus) -> FreezeContext:
        """A copy, truncated and calibrated: its head freezes the network that it is made of."""
        copied = FreezeContext(copy.deepcopy(context.net), context.table, context.readings)
        result, data = SeedResult(seed=0, model=copied), replace(corpus.data, test=())
        evaluate_freeze(result, data, dim=self.dim, has_exact_top=self.head != "mlp", rows=corpus.fitted_rows)
        return copied

    def compare_untrained(self, result: SeedResult, corpus: LatentCorpus) -> None:
        """Score the same readings as the model gives them: their latents, standardised as in training, side by side."""
        if not corpus.untrained:
            readings_alone = FreezeRecipe(
                self.latents, self.standardise, widths=(0,), head="sum", pretrain="none", loss="none"
            )
            with current_progress().phase(SCORING_UNTRAINED):
                context = readings_alone.attach(corpus)
                for part, files in (("dev", corpus.data.dev), ("test", corpus.data.test)):
                    corpus.untrained[part] = correlations(files, context.similarity)
        result.untrained = corpus.untrained

    def export(self, result: SeedResult, corpus: LatentCorpus, work: Path) -> tuple[Encoder, bool]:
        """The encoder; where all readings share a prompt, it is the encoder's template."""
        readings: tuple[Reading, ...] = result.model.readings
        templates = {reading.template for reading in readings}
        template = "{text}"
        if len(templates) == 1:
            template = templates.pop()
            readings = tuple(replace(reading, template="") for reading in readings)
        backbone = corpus.backbone
        spec = EncoderSpec(backbone.name, readings, template, backbone.attention, self.max_length, self.on_overflow)
        return Encoder(backbone, spec, result.model.head), False

    def record(self, result: SeedResult, corpus: LatentCorpus) -> dict[str, Any]:
        """What every layer contributes, example pairs and errors."""
        return freeze_record(result, corpus.data)

    def card_rows(self) -> dict[str, str]:
        """The pair head."""
        return {"head": self.head}


_UPPER_THIRD = "0.67:1.0"

EMBEDDING = FreezeRecipe(
    latents=(LatentSource("prompteol_tight", "lasttoken", _UPPER_THIRD), LatentSource("echo", "mean", _UPPER_THIRD)),
    standardise=True,
    widths=(128,),
    shortcut=True,
    dropout=0.1,
    head="sum",
    pretrain="none",
    training=Schedule(epochs=8, rate=3e-4),
    choose_by="spearman",
)
"""What `d2v train` trains without a plan: one vector per text from scored pairs alone; selected on STS-B dev."""


def layer_numbers(layers: str | tuple[int, ...], depth: int) -> list[int]:
    """Layer numbers on a model of that depth; 0 is the embeddings."""
    if isinstance(layers, tuple):
        numbers = [layer + depth + 1 if layer < 0 else layer for layer in layers]
    elif layers == "all":
        numbers = list(range(1, depth + 1))
    else:
        numbers = _layer_range(layers, depth)
    if not numbers or min(numbers) < 0 or max(numbers) > depth:
        raise InputError(f"layers = {layers!r} is not within 0 to {depth}, the layers of this model.")
    return numbers


def _layer_range(layers: str, depth: int) -> list[int]:
    first, colon, last = layers.partition(":")
    try:
        bounds = [round(float(bound) * depth) if "." in bound else int(bound) for bound in (first, last)]
    except ValueError:
        bounds = []
    if not colon or not bounds:
        raise InputError(f'layers = {layers!r} is not understood; write "all", [1, 2], "20:30" or "0.67:1.0".')
    return list(range(bounds[0], bounds[1] + 1))


def _absolute(width: int | float, dim: int) -> int:
    """A width in dimensions, from an absolute width or a fraction of `dim`."""
    if width < 0 or (isinstance(width, float) and width > _MAX_FRACTION):
        raise InputError(f"A width is a whole number or a fraction of the model's width such as 0.5, not {width}.")
    return max(1, round(width * dim)) if isinstance(width, float) and width else int(width)
