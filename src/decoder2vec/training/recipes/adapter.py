"""What recipes that adapt a model share: soft prompts, prefixes, LoRA and full fine-tuning train vectors of texts."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from decoder2vec.activations.extract import check_texts
from decoder2vec.backbone.attention import parse_attention
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.sharding import is_sharded
from decoder2vec.config import DEFAULT_MAX_LENGTH, EncoderSpec, Reading, fingerprint, key_settings
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnsupportedError, unknown_name
from decoder2vec.export.transformers import write_model
from decoder2vec.maths.metrics import METRICS, pairwise_cos_sim
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.progress import current_progress, in_phase
from decoder2vec.storage import atomic_folder
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Prompt, Tokeniser
from decoder2vec.training.batch_encoder import choose_batch_encoder
from decoder2vec.training.context import InputSpec, Reads, TokenContext
from decoder2vec.training.data import TrainingData
from decoder2vec.training.distributed import barrier, broadcast, is_main_process, world_size
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives import OBJECTIVES
from decoder2vec.training.objectives.contrastive import ContrastiveConfig
from decoder2vec.training.objectives.distill import DistillConfig
from decoder2vec.training.objectives.guided import GuidedConfig
from decoder2vec.training.objectives.objective import Objective, ObjectiveConfig, training_task
from decoder2vec.training.partial_vocabulary import PartialVocabulary, partial_vocabulary, used_token_ids
from decoder2vec.training.recipes.recipe import SCORING_UNTRAINED, Recipe, SeedRun, stage_note
from decoder2vec.training.results import Scores, SeedResult, TextPairs, correlations, mean_score, sanity_checks
from decoder2vec.training.teachers import Teacher

_FORMAT = 1
_CHECKED_TEXTS = 1000
_MANY_REPETITIONS = 20
"""A text that is seen more often than this suggests settings made for a larger file."""
MIN_STEPS = 50
"""Fewer training steps change little."""
_TRAINING_COST = 6
"""Work of a training example, in texts that are only encoded: two texts, forward and backward."""

Cosines = Callable[[TextPairs], NDArray[np.floating[Any]]]
"""Cosines of pairs of texts."""


@dataclass(frozen=True)
class ReadSettings:
    """Which vector of a text is trained: the table `read` of a recipe."""

    template: str = "plain"
    layer: int = -1
    pooling: str = "lasttoken"
    normed: bool = True
    """After the model's final norm."""
    max_length: int = DEFAULT_MAX_LENGTH
    on_overflow: str = "truncate"

    def __post_init__(self) -> None:
        Template.of(self.template)
        if self.pooling not in POOLINGS:
            raise unknown_name("pooling", self.pooling, POOLINGS)

    def reading(self, backbone: Backbone) -> Reading:
        """The reading on a model."""
        return Reading(backbone.resolve_layer(self.layer), self.pooling, self.normed)


@dataclass(frozen=True)
class TokenCorpus:
    """The tokenised texts of a training."""

    data: TrainingData
    backbone: Backbone
    reading: Reading
    objective: Objective[Any, TokenContext]
    prompts: list[Prompt]
    index: dict[str, int]
    """Position of each text in `prompts`."""
    n_truncated: int
    untrained: dict[str, Scores] = field(default_factory=dict)
    """Scores of the model before training, by dev and test: the same for every seed, so measured once."""


def adapter_schedule(rate: float = 1e-3) -> Schedule:
    """The default schedule of recipes that adapt a model."""
    return Schedule(epochs=1, rate=rate, patience=1000, evaluate_every=125, clip=1.0)


@dataclass(frozen=True)
class AdapterRecipe(Recipe[TokenCorpus, TokenContext]):
    """Settings and methods that all of them share."""

    can_shard: ClassVar[bool] = False
    """Whether it trains with FSDP."""

    read: ReadSettings = field(default_factory=ReadSettings)
    objective: ObjectiveConfig = field(default_factory=ContrastiveConfig)
    training: Schedule = field(default_factory=adapter_schedule)
    attention: str = "causal"
    """causal, bidirectional, or bidirectional:12 (above layer 12 only); the model is proved to attend that way."""
    choose_by: str = "spearman"
    """The dev correlation by which states and seeds are selected."""
    chunk: int = 0
    """Tokens whose activations are held in memory at once; a larger batch is computed twice, in chunks, with the same
    result (GradCache). 0: what fits."""
    checkpoint_blocks: bool = False
    """Activation checkpointing of the model's blocks: less memory, a third more time."""
    compile_blocks: bool = False
    """Compile the model's blocks: a minute at the start, then faster steps on a GPU."""
    fsdp: bool = False
    """FSDP: the weights of the model are sharded over the processes, for models that do not fit one GPU."""
    keep: float = 1.0
    """Share of the change that is kept after training: 0.7 interpolates 70 % trained, 30 % start (LM-Cocktail)."""
    keep_better: bool = False
    """Export the untrained model where it is better on dev than the trained one."""

    def __post_init__(self) -> None:
        if self.choose_by not in METRICS:
            raise unknown_name("metric", self.choose_by, METRICS)
        parse_attention(self.attention)
        if self.chunk < 0:
            raise InputError("chunk must be 0 or more tokens.")
        if self.checkpoint_blocks and self.compile_blocks:
            raise InputError("Blocks are either compiled or checkpointed; set one of the two.")
        if self.fsdp and not self.can_shard:
            raise self._no_sharding()
        if self.fsdp and self.compile_blocks:
            raise InputError("Blocks that FSDP shards are not compiled; set one of fsdp and compile_blocks.")
        if self.fsdp and self.keep < 1:
            raise InputError("keep interpolates whole weights, which FSDP shards; set one of the two, and merge later.")
        if self.fsdp and self.training.save_every:
            raise InputError("FSDP shards the model of every step; set one of fsdp and training.save_every.")
        self._check_partial_vocabulary()
        if not 0 < self.keep <= 1:
            raise InputError(f"keep must be above 0 and at most 1, not {self.keep}: 0.7 keeps 70 % of the change.")

    def _check_partial_vocabulary(self) -> None:
        if not self.training.partial_vocabulary:
            return
        if self.fsdp:
            raise InputError("FSDP shards the whole embeddings; set one of fsdp and training.partial_vocabulary.")
        if self.training.save_every:
            raise InputError(
                "The encoder of a step needs the whole vocabulary; set one of training.save_every and "
                "training.partial_vocabulary."
            )
        objective = OBJECTIVES[self.objective.name]
        if objective.predicts_tokens:
            raise InputError(
                f"The objective {self.objective.name} predicts tokens of the whole vocabulary, so every embedding is "
                "needed; leave out training.partial_vocabulary."
            )
        if objective.draws_texts:
            raise InputError(
                f"The objective {self.objective.name} draws texts in every step, whose tokens are not known before; "
                "leave out training.partial_vocabulary."
            )

    @abstractmethod
    def adapt(self, backbone: Backbone, depth: int) -> tuple[Backbone, nn.Module]:
        """The backbone with something new to train in its first `depth` blocks, and the module that is trained."""

    @property
    def shards(self) -> bool:
        """Whether the model is sharded: with a single process it is not."""
        return self.fsdp and world_size() > 1

    def unshard(self, trained: Backbone, original: Backbone) -> Backbone:
        """A trained backbone that is not sharded, of one that is.

        Args:
            trained: With weights that are sharded over the processes.
            original: The model before training.

        Raises:
            InputError: The recipe does not shard models.
        """
        raise self._no_sharding()

    def _no_sharding(self) -> InputError:
        return InputError(f"FSDP shards models for lora and full, not for {self.name}; leave out fsdp.")

    def start_values(self, module: nn.Module) -> dict[str, Tensor]:
        """Parameters before training, by name, with which the trained ones are interpolated."""
        trained = {name: tensor for name, tensor in module.named_parameters() if tensor.requires_grad}
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in trained.items()}

    @property
    def reads(self) -> Reads:
        """Every token, unless a recipe can do with less."""
        return Reads.TOKENS

    @property
    def extra_tokens(self) -> int:
        """Positions of the context that the adapter takes."""
        return 0

    @property
    def cache_bytes(self) -> int:
        """How much of the keys and values of texts may be cached on disk, where a recipe reads them."""
        return 0

    @property
    def keeps_positions(self) -> bool:
        """Whether the states of a text stand at the positions of its tokens."""
        return True

    @property
    def objective_name(self) -> str:
        """The name of the objective."""
        return self.objective.name

    def needs(self) -> Sequence[str]:
        """What the objective learns from."""
        return [OBJECTIVES[self.objective.name].needs]

    def n_examples(self, data: TrainingData) -> int | None:
        """About how many examples the objective finds in the data; None if it cannot say before it prepares them."""
        return OBJECTIVES[self.objective.name].count_examples(data)

    def n_steps(self, data: TrainingData) -> int:
        """About how many steps it trains; texts that are packed into excerpts count one by one."""
        n_examples = self.n_examples(data) or len(data.texts)
        return self.training.steps or self.training.epochs * math.ceil(n_examples / self.training.batch)

    def with_teachers(self, teachers: Sequence[Teacher]) -> AdapterRecipe:
        """The recipe with these teachers, if its objective learns from any."""
        if not isinstance(self.objective, DistillConfig | GuidedConfig):
            return self
        return replace(self, objective=replace(self.objective, teachers=tuple(teachers)))

    def used_teachers(self) -> Sequence[Teacher]:
        """The objective's teachers."""
        return self.objective.teachers if isinstance(self.objective, DistillConfig | GuidedConfig) else ()

    def check(self, data: TrainingData, backbone: Backbone) -> None:
        """Raise if reading, attention or objective do not fit; the model is switched to the recipe's attention."""
        if backbone.adapter is not None:
            raise UnsupportedError(
                f"This backbone has a {backbone.adapter.kind} already; give the folder of its encoder, or "
                "backbone.with_adapter(None)."
            )
        self._reading(backbone)
        self._objective(data)

    def expect(self, data: TrainingData, stage: str, seeds: int) -> None:
        """Announce tokenising, vectors of teachers, and for each seed training, evaluations on dev and final checks."""
        progress, schedule = current_progress(), self.training
        progress.expect("tokenising", stage=stage)
        for teacher in self.used_teachers():
            n_texts = len(data.contrastive.texts if data.contrastive else data.texts)
            progress.expect(teacher.phase, n_texts, stage=stage)
        n_steps, n_dev_texts = self.n_steps(data), sum(len(pairs.texts()) for pairs in data.dev)
        n_evaluations = math.ceil(n_steps / schedule.evaluate_every) if schedule.evaluate_every else schedule.epochs
        for _ in range(seeds):
            progress.expect("training", _TRAINING_COST * n_steps * schedule.batch, stage=stage)
            # without dev pairs there is a metric on some held-out texts
            progress.expect("evaluating", (1 + n_evaluations) * (n_dev_texts or schedule.batch), stage=stage)
            progress.expect("final checks", self._n_final_texts(data), stage=stage, kind="evaluating")
        if data.dev:
            progress.expect(SCORING_UNTRAINED, _n_scored_texts(data), stage=stage, kind="evaluating")

    @in_phase("tokenising")
    def prepare(self, data: TrainingData, backbone: Backbone) -> TokenCorpus:
        """Tokenise all texts of the objective and of the dev pairs."""
        reading, objective = self._reading(backbone), self._objective(data)
        dev_texts = [text for pairs in data.dev for text in pairs.texts()]
        texts = list(dict.fromkeys([*objective.texts, *dev_texts]))
        index = {text: row for row, text in enumerate(check_texts(texts))}
        tokenised = self._tokeniser(backbone)(texts)
        n_truncated = len(tokenised.overlong)
        return TokenCorpus(data, backbone, reading, objective, tokenised.prompts, index, n_truncated)

    def attach(self, corpus: TokenCorpus) -> TokenContext:
        """The adapted model with the texts it is trained on."""
        backbone, module = self.adapt(corpus.backbone, corpus.reading.layer)
        encoder = choose_batch_encoder(
            backbone,
            corpus.prompts,
            corpus.reading,
            extra_tokens=self.extra_tokens,
            suffix_only=self.reads is Reads.PREFIX_KV,
            cache_bytes=self.cache_bytes,
            budget=self.chunk,
            dtype=corpus.backbone.dtype,
            compiled=self.compile_blocks,
        )
        context = TokenContext(
            backbone,
            module,
            encoder,
            corpus.prompts,
            corpus.index,
            self._tokeniser(backbone),
            corpus.reading,
            compute_dtype=corpus.backbone.dtype,
            extra_tokens=self.extra_tokens,
            checkpoint_blocks=self.checkpoint_blocks,
            compile_blocks=self.compile_blocks,
        )
        if context.is_sharded and corpus.data.dev:  # the model is untrained yet, and the original does not fit a GPU
            self._untrained_scores(corpus, self._sharded_cosines(context))
        return context

    def train(self, context: TokenContext, corpus: TokenCorpus, run: SeedRun) -> SeedResult:
        """Train the adapter on the objective."""
        key = self._resume_key(corpus, run.seed)
        with self._vocabulary(context) as partial:
            start = self.start_values(context.module) if self.keep < 1 else {}
            history, module = run.fit(corpus.objective, context, self.training, self.choose_by, **run.files(key))
            note = stage_note(corpus.objective, history, self.choose_by)
            result = SeedResult(seed=run.seed, notes={"training": note}, model=context)
            # maps to the vectors of teachers and the like are trained besides, and are no part of the encoder
            result.n_trained = sum(tensor.numel() for tensor in context.module.parameters() if tensor.requires_grad)
            module.requires_grad_(False)
            dev_score = history.best_score
            if start:
                _interpolate(context.module, start, self.keep)
                task = training_task(corpus.objective, context, self.training, self.choose_by)
                dev_score = broadcast(task.dev_metric)
                result.notes["keep"] = {"share": self.keep, "dev_trained": history.best_score, "dev_kept": dev_score}
        if partial:
            result.notes["partial vocabulary"] = partial.to_json()
        if context.backbone.model is not corpus.backbone.model:
            context.backbone.fingerprint = key  # a trained copy is not the model it was copied from
        with torch.no_grad(), context.forward_context():
            result.notes |= corpus.objective.report(context)
        if not corpus.data.dev:
            result.dev_metric = dev_score
        if corpus.n_truncated:
            result.notes["texts cut"] = corpus.n_truncated
        return result

    def _vocabulary(self, context: TokenContext) -> AbstractContextManager[PartialVocabulary | None]:
        """During training, the model may have only the embeddings of the tokens in the data."""
        if not self.training.partial_vocabulary:
            return nullcontext()
        return partial_vocabulary(context.backbone, used_token_ids(context.backbone, context.prompts))

    def evaluate(self, result: SeedResult, corpus: TokenCorpus) -> None:
        """Score dev and test files with the encoder itself."""
        data, context = corpus.data, result.model
        cosines = self._sharded_cosines(context) if context.is_sharded else self._cosines(context.backbone, corpus)
        with current_progress().phase("final checks", self._n_final_texts(data)):
            result.dev, result.test = (correlations(files, cosines) for files in (data.dev, data.test))
            result.checks = self._checks(cosines, corpus)

    def _n_final_texts(self, data: TrainingData) -> int:
        """About how many texts the final checks encode."""
        checked = data.dev[0].texts() if data.dev else data.texts
        return _n_scored_texts(data) + min(len(checked), _CHECKED_TEXTS)

    def compare_untrained(self, result: SeedResult, corpus: TokenCorpus) -> None:
        """Score the untrained model under the same reading, and keep it where it is better and that is wanted."""
        if not corpus.data.dev:
            return
        result.untrained = self._untrained_scores(corpus, self._cosines(corpus.backbone, corpus))
        trained = mean_score(result.dev, self.choose_by)
        untrained = mean_score(result.untrained["dev"], self.choose_by)
        if self.keep_better and trained < untrained:
            result.notes["untrained kept"] = {"dev_trained": trained, "dev_untrained": untrained}
            result.model.backbone, result.n_trained = corpus.backbone, 0
            result.dev, result.test = result.untrained["dev"], result.untrained["test"]
            result.checks = self._checks(self._cosines(corpus.backbone, corpus), corpus)

    def _checks(self, cosines: Cosines, corpus: TokenCorpus) -> dict[str, float]:
        """Sanity checks on the texts of the first dev file, or else on texts of the objective."""
        dev = corpus.data.dev
        return sanity_checks(dev[0].texts() if dev else corpus.objective.texts[:_CHECKED_TEXTS], cosines)

    def _cosines(self, backbone: Backbone, corpus: TokenCorpus) -> Cosines:
        """Cosines of pairs of texts as the encoder of a backbone gives them."""
        encoder = Encoder(backbone, self._encoder_spec(corpus))
        return _pair_cosines(partial(encoder.encode, show_progress_bar=False))

    def _sharded_cosines(self, context: TokenContext) -> Cosines:
        """Cosines of pairs of texts by a sharded model, which all processes run in the same batches."""

        def encode(texts: Sequence[str]) -> NDArray[np.float32]:
            with torch.no_grad(), context.forward_context():
                return context.encode_texts(texts).float().cpu().numpy()

        return _pair_cosines(encode)

    def _untrained_scores(self, corpus: TokenCorpus, cosines: Cosines) -> dict[str, Scores]:
        """Scores of the model without the adapter on dev and test files, computed once."""
        if not corpus.untrained:
            with current_progress().phase(SCORING_UNTRAINED, _n_scored_texts(corpus.data)):
                for part, files in (("dev", corpus.data.dev), ("test", corpus.data.test)):
                    corpus.untrained[part] = correlations(files, cosines)
        return corpus.untrained

    def export(self, result: SeedResult, corpus: TokenCorpus, work: Path) -> tuple[Encoder, bool]:
        """The encoder; of a trained copy of the model, the weights are written to `work` and must be saved with it."""
        trained = result.model.backbone
        if is_sharded(trained.model):
            trained = self.unshard(trained, corpus.backbone)
        backbone, has_own_weights = write_trained_weights(trained, corpus.backbone, work)
        return Encoder(backbone, self._encoder_spec(corpus)), has_own_weights

    def card_rows(self) -> dict[str, str]:
        """How much of the change was kept, if not all of it."""
        return {} if self.keep == 1 else {"kept of the change": f"{100 * self.keep:g} % (the rest is the start)"}

    def data_notes(self, data: TrainingData, prefix: str = "") -> list[str]:
        """Warn of few dev pairs or steps, masked token prediction with causal attention, and texts seen very often."""
        notes = super().data_notes(data, prefix)
        n_examples = self.n_examples(data) or 0
        n_steps = self.n_steps(data) if self.training.steps or n_examples else 0
        if 0 < n_steps < MIN_STEPS:
            notes.append(
                f"about {n_steps} training step(s), and fewer than {MIN_STEPS} change little: "
                f"give more examples, or --set {prefix}training.steps={MIN_STEPS}"
            )
        if self.needs() != ["corpus"]:
            return notes
        if self.objective.name == "mntp" and self.attention == "causal":
            notes.append(
                "mntp under causal attention predicts masked tokens from the tokens before them only; "
                f"--set {prefix}attention=bidirectional shows both sides"
            )
        return [*notes, *self._repetition_notes(n_examples, prefix)]

    def _repetition_notes(self, n_examples: int, prefix: str) -> list[str]:
        """Warn of few examples that are seen very often, with steps and batches that suit them."""
        steps, n_seen = self.training.steps, min(self.training.batch, n_examples)  # a batch holds an example once
        if steps * n_seen <= _MANY_REPETITIONS * n_examples:
            return []
        settings, most_seen = [], _MANY_REPETITIONS * n_examples
        batch = min(n_seen, max(2, most_seen // MIN_STEPS))
        if batch < n_seen:  # smaller batches, since few steps change little
            settings.append(f"--set {prefix}training.batch={batch}")
        settings.insert(0, f"--set {prefix}training.steps={most_seen // batch}")
        return [
            f"{steps} steps of {n_seen} see each of {n_examples:,} examples {steps * n_seen / n_examples:.0f} times; "
            f"{' '.join(settings)} would see it {_MANY_REPETITIONS} times"
        ]

    def _reading(self, backbone: Backbone) -> Reading:
        """The reading on a model, which is switched to the recipe's attention."""
        if self.attention != backbone.attention:
            backbone.set_attention(self.attention)
        reading = self.read.reading(backbone)
        if reading.layer == 0:
            raise InputError("Layer 0 is the embeddings, which nothing here trains; read a layer above it.")
        if reading.layer <= parse_attention(self.attention)[1]:
            raise InputError(f"Layer {reading.layer} is causal with {self.attention}; read a layer above that.")
        return reading

    def _objective(self, data: TrainingData) -> Objective[Any, TokenContext]:
        spec = InputSpec(
            self.reads,
            self.read.template,
            self.read.layer,
            self.read.max_length,
            self.attention,
            keeps_positions=self.keeps_positions,
        )
        return OBJECTIVES[self.objective.name](self.objective, data, spec)

    def _tokeniser(self, backbone: Backbone) -> Tokeniser:
        """Makes the prompts of texts, which leave room for the adapter's own positions."""
        context = backbone.context_length
        if self.read.on_overflow == "chunk":
            raise InputError("A text is trained on as a whole; set on_overflow to truncate or error.")
        if context is not None and self.extra_tokens >= context:
            raise InputError(
                f"{self.extra_tokens} trained tokens leave no room for a text: the model takes {context} in all."
            )
        max_length = self.read.max_length if context is None else min(self.read.max_length, context - self.extra_tokens)
        return Tokeniser(backbone, Template.of(self.read.template), max_length, self.read.on_overflow)

    def _encoder_spec(self, corpus: TokenCorpus) -> EncoderSpec:
        return EncoderSpec(
            corpus.backbone.name,
            (corpus.reading,),
            Template.of(self.read.template).string,
            self.attention,
            self.read.max_length,
            self.read.on_overflow,
        )

    def _resume_key(self, corpus: TokenCorpus, seed: int) -> str:
        """Names everything that a run depends on: a checkpoint of another key is not resumed."""
        dev = [vars(pairs) for pairs in corpus.data.dev]
        data = [list(corpus.index), dev, *corpus.objective.resume_key()]
        recipe = [self.name, key_settings(self)]
        backbone = corpus.backbone
        return fingerprint(_FORMAT, backbone.effective_fingerprint, str(backbone.dtype), recipe, data, seed)


def write_trained_weights(trained: Backbone, original: Backbone, work: Path) -> tuple[Backbone, bool]:
    """Write the weights of a trained copy to `work` and load it from there; an unchanged model is returned as it is.

    Returns:
        The backbone, and whether it has weights that differ from those of the original.
    """
    if trained.model is original.model:
        return trained, False
    folder = work / "model"
    if is_main_process():
        with atomic_folder(folder, replace=True) as temporary:
            write_model(trained, temporary, original.dtype)
    barrier()
    device, dtype = str(original.device), original.dtype
    saved = Backbone.load(folder, attention=trained.attention, device=device, dtype=dtype)
    saved.sentence_tokens = trained.sentence_tokens
    return saved, True


@torch.no_grad()
def _interpolate(module: nn.Module, start: dict[str, Tensor], keep: float) -> None:
    """Keep this share of the change of each parameter that has a start value."""
    parameters = dict(module.named_parameters())
    for name, value in start.items():
        parameters[name].lerp_(value.to(parameters[name].device), 1 - keep)


def _pair_cosines(encode: Callable[[list[str]], NDArray[np.floating[Any]]]) -> Cosines:
    """Cosines of pairs of texts, each of which is encoded once."""

    def cosines(pairs: TextPairs) -> NDArray[np.floating[Any]]:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        vectors = dict(zip(texts, encode(texts), strict=True))
        left, right = (np.stack([vectors[pair[side]] for pair in pairs]) for side in (0, 1))
        return pairwise_cos_sim(left, right)

    return cosines


def _n_scored_texts(data: TrainingData) -> int:
    """Texts of the dev and test files."""
    return sum(len(pairs.texts()) for pairs in (*data.dev, *data.test))
