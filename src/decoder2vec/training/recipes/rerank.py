"""A reranker: the model reads a document and a query together, and a linear score of the closing token is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from decoder2vec.activations.extract import check_texts
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import DEFAULT_MAX_LENGTH, Reading, fingerprint, key_settings
from decoder2vec.errors import BackboneError, InputError, UnsupportedError, unknown_name
from decoder2vec.maths.metrics import METRICS
from decoder2vec.progress import current_progress, in_phase
from decoder2vec.reranker import Reranker, RerankerSpec
from decoder2vec.text.files import ScoredPairs
from decoder2vec.text.pair_template import PairTemplate, PairTokeniser
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Prompt, Tokeniser
from decoder2vec.training.batch_encoder import choose_batch_encoder
from decoder2vec.training.context import InputSpec, PairContext, Reads
from decoder2vec.training.data import TrainingData
from decoder2vec.training.labelled_pairs import LabelledPairs
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives import OBJECTIVES
from decoder2vec.training.objectives.labels import LabelsConfig, LabelsObjective, measure_labels
from decoder2vec.training.objectives.objective import Objective
from decoder2vec.training.objectives.ranking import (
    RankingConfig,
    RankingObjective,
    measure_ranking,
    rankable_queries,
)
from decoder2vec.training.recipes.adapter import MIN_STEPS, write_trained_weights
from decoder2vec.training.recipes.full import FullRecipe
from decoder2vec.training.recipes.lora import LoraRecipe
from decoder2vec.training.recipes.recipe import SCORING_UNTRAINED, Recipe, SeedRun, stage_note
from decoder2vec.training.results import SeedResult, TextPairs, correlations

_FORMAT = 1
_TRAINED = ("lora", "full")
_TRAINING_COST = 3
"""Work of a pair in training, in pairs that are only scored."""
_MAX_FULL_RATE = 1e-4
"""Full fine-tuning at a higher learning rate mostly destroys the model."""


@dataclass(frozen=True)
class PairCorpus:
    """The tokenised pairs of a training."""

    data: TrainingData
    backbone: Backbone
    objective: RankingObjective | LabelsObjective
    prompts: list[Prompt]
    pairs: dict[tuple[str, str], int]
    """Position of each pair (query, document) in `prompts`."""
    n_truncated: int
    untrained: dict[str, dict[str, float]] = field(default_factory=dict)
    """nDCG and MRR of the untrained model by the likelihood of the query, by dev file: measured once."""


@dataclass(frozen=True)
class RerankRecipe(Recipe[PairCorpus, PairContext]):
    """Train a linear score of pairs, or one for each label, and with it LoRA or all weights of the model."""

    name = "rerank"
    about = "A reranker: it scores a document and a query that it reads together, or gives pairs of texts a label."
    mergeable = False

    weights: str = "lora"
    """What is trained besides the linear score: `lora`, or `full`, all weights."""
    rank: int = 16
    alpha: float = 32
    """The change by LoRA is scaled by alpha / rank."""
    dropout: float = 0.0
    """Of LoRA."""
    template: str = "doc_query"
    """The name of a template of pairs, or a string that contains {document} and {query}."""
    max_length: int = DEFAULT_MAX_LENGTH
    """Maximum number of tokens of a pair; of longer ones the document is cut."""
    objective: RankingConfig | LabelsConfig = field(default_factory=RankingConfig)
    """`ranking`, one score by which documents are sorted, or `labels`, a label for each ordered pair."""
    training: Schedule = field(
        default_factory=lambda: Schedule(epochs=2, batch=8, rate=2e-4, patience=1000, evaluate_every=0, clip=1.0)
    )
    choose_by: str = "spearman"
    """The dev correlation by which states and seeds are selected, where no dev query has documents to be ranked."""
    chunk: int = 0
    """Tokens whose activations are held in memory at once; a larger batch is computed twice. 0: what fits."""
    checkpoint_blocks: bool = False
    """Activation checkpointing of the model's blocks: less memory, a third more time."""
    compile_blocks: bool = False
    """Compile the model's blocks: a minute at the start, then faster steps on a GPU."""

    def __post_init__(self) -> None:
        if self.weights not in _TRAINED:
            raise unknown_name("weights", self.weights, _TRAINED)
        if self.choose_by not in METRICS:
            raise unknown_name("metric", self.choose_by, METRICS)
        if self.training.partial_vocabulary:
            raise InputError("rerank trains with the whole vocabulary; leave out training.partial_vocabulary.")
        PairTemplate.of(self.template)
        self._adapter_recipe()  # which checks its settings

    def _adapter_recipe(self) -> LoraRecipe | FullRecipe:
        """The recipe that attaches what is trained of the model."""
        if self.weights == "full":
            return FullRecipe(checkpoint_blocks=self.checkpoint_blocks, compile_blocks=self.compile_blocks)
        return LoraRecipe(
            rank=self.rank,
            alpha=self.alpha,
            dropout=self.dropout,
            chunk=self.chunk,
            checkpoint_blocks=self.checkpoint_blocks,
            compile_blocks=self.compile_blocks,
        )

    @property
    def reads(self) -> Reads:
        """Pairs of a query and a document."""
        return Reads.PAIRS

    @property
    def objective_name(self) -> str:
        """The name of the objective."""
        return self.objective.name

    def needs(self) -> Sequence[str]:
        """Queries with positives and negatives."""
        return [OBJECTIVES[self.objective.name].needs]

    def check(self, data: TrainingData, backbone: Backbone) -> None:
        """Raise if the data have no negatives, or the template does not fit the model."""
        if backbone.adapter is not None:
            raise UnsupportedError(
                f"This backbone has a {backbone.adapter.kind} already; give the folder of its encoder, or "
                "backbone.with_adapter(None)."
            )
        self._objective(data)
        Tokeniser(backbone, PairTemplate.of(self.template).with_query(""), self._max_length(backbone) - 1)

    def expect(self, data: TrainingData, stage: str, seeds: int) -> None:
        """Announce tokenising, and for each seed training, evaluations on dev and final checks."""
        progress, schedule = current_progress(), self.training
        progress.expect("tokenising", stage=stage)
        n_steps, n_dev, n_test = self._n_steps(data), _n_pairs(data, "dev"), _n_pairs(data, "test")
        group = 1 + (data.contrastive.negatives.shape[1] if data.contrastive else 0)
        n_evaluations = math.ceil(n_steps / schedule.evaluate_every) if schedule.evaluate_every else schedule.epochs
        for _ in range(seeds):
            progress.expect("training", _TRAINING_COST * n_steps * schedule.batch * group, stage=stage)
            progress.expect("evaluating", (1 + n_evaluations) * n_dev, stage=stage)
            progress.expect("final checks", n_dev + n_test, stage=stage, kind="evaluating")
        progress.expect(SCORING_UNTRAINED, n_dev, stage=stage, kind="evaluating")

    @in_phase("tokenising")
    def prepare(self, data: TrainingData, backbone: Backbone) -> PairCorpus:
        """Tokenise every pair of the examples and of the dev files."""
        objective = self._objective(data)
        rows = {pair: row for row, pair in enumerate(dict.fromkeys(objective.pairs()))}
        queries, documents = ([pair[side] for pair in rows] for side in (0, 1))
        check_texts(list(dict.fromkeys([*queries, *documents])))
        template, closing = PairTemplate.of(self.template), [backbone.closing_token_id]
        tokenise = PairTokeniser(backbone, template, self._max_length(backbone), closing, bool(objective.labels))
        prompts, cut = tokenise(queries, documents)
        return PairCorpus(data, backbone, objective, prompts, rows, len(cut))

    def attach(self, corpus: PairCorpus) -> PairContext:
        """The model with LoRA, or a copy of it, and a new linear score."""
        adapter = self._adapter_recipe()
        backbone, module = adapter.adapt(corpus.backbone, corpus.backbone.n_layers)
        n_scores = len(corpus.objective.labels) or 1
        head = nn.Linear(backbone.dim, n_scores, bias=False, device=backbone.device, dtype=torch.float32)
        reading = Reading(backbone.n_layers, "lasttoken", normed=True)
        return PairContext(
            backbone,
            nn.ModuleDict({"weights": module, "head": head}),
            choose_batch_encoder(backbone, corpus.prompts, reading, budget=self.chunk, dtype=corpus.backbone.dtype),
            corpus.prompts,
            {},
            Tokeniser(backbone, Template.of("plain"), self._max_length(backbone)),
            reading,
            compute_dtype=corpus.backbone.dtype,
            checkpoint_blocks=self.checkpoint_blocks,
            compile_blocks=self.compile_blocks,
            head=head.weight,
            pairs=corpus.pairs,
        )

    def train(self, context: PairContext, corpus: PairCorpus, run: SeedRun) -> SeedResult:
        """Train the score and the weights on the groups."""
        key = self._resume_key(corpus, run.seed)
        history, module = run.fit(corpus.objective, context, self.training, self.choose_by, **run.files(key))
        note = stage_note(corpus.objective, history, self.choose_by)
        result = SeedResult(seed=run.seed, notes={"training": note}, model=context)
        result.n_trained = sum(tensor.numel() for tensor in module.parameters() if tensor.requires_grad)
        result.dev_metric = history.best_score
        module.requires_grad_(False)
        if context.backbone.model is not corpus.backbone.model:
            context.backbone.fingerprint = key  # a trained copy is not the model it was copied from
        if corpus.n_truncated:
            result.notes["pairs cut" if corpus.objective.labels else "documents cut"] = corpus.n_truncated
        return result

    def evaluate(self, result: SeedResult, corpus: PairCorpus) -> None:
        """Score dev and test files with the reranker itself."""
        reranker = self._reranker(result.model.backbone, corpus, result.model.head)
        data = corpus.data
        if reranker.labels:
            with current_progress().phase("final checks", _n_pairs(data, "dev") + _n_pairs(data, "test")):
                result.notes["labels"] = {
                    name: measure_labels(pairs, reranker.labels, reranker.classify_pairs(pairs.first, pairs.second))
                    for name, pairs in (("dev", data.labelled_dev), ("test", data.labelled_test))
                    if pairs
                }
            return

        def scores(pairs: TextPairs) -> Any:
            return reranker.score_pairs([query for query, _ in pairs], [document for _, document in pairs])

        with current_progress().phase("final checks", sum(map(len, (*data.dev, *data.test)))):
            result.dev, result.test = (correlations(files, scores) for files in (data.dev, data.test))
            files = [pairs for pairs in (*data.dev, *data.test) if rankable_queries(pairs)]
            if files:
                ranking = {pairs.name: measure_ranking(pairs, _score(reranker, pairs)) for pairs in files}
                result.notes["ranking"] = {"trained": ranking}

    def compare_untrained(self, result: SeedResult, corpus: PairCorpus) -> None:
        """Rank the dev files by the likelihood of the query under the untrained model, which needs no training."""
        with current_progress().phase(SCORING_UNTRAINED, sum(map(len, corpus.data.dev))):
            files = [pairs for pairs in corpus.data.dev if rankable_queries(pairs)]
            try:
                if files and not corpus.untrained:
                    spec = RerankerSpec(corpus.backbone.name, "likelihood", max_length=self.max_length)
                    reranker = Reranker(corpus.backbone, spec)
                    for pairs in files:
                        corpus.untrained[pairs.name] = measure_ranking(pairs, _score(reranker, pairs))
            except (BackboneError, InputError):  # a model without a head, or a prompt that is too long for it
                return
        if files:
            result.notes["ranking"]["likelihood"] = corpus.untrained

    def export(self, result: SeedResult, corpus: PairCorpus, work: Path) -> tuple[Reranker, bool]:
        """The reranker; of a trained copy of the model, the weights are written to `work` and must be saved with it."""
        backbone, has_own_weights = write_trained_weights(result.model.backbone, corpus.backbone, work)
        return self._reranker(backbone, corpus, result.model.head), has_own_weights

    def card_rows(self) -> dict[str, str]:
        """What was trained."""
        score = "a linear score for each label" if isinstance(self.objective, LabelsConfig) else "a linear score"
        return {"trained": f"{score} and {'all weights' if self.weights == 'full' else 'LoRA'}"}

    def data_notes(self, data: TrainingData, prefix: str = "") -> list[str]:
        """Warn of few dev pairs or steps, and of a learning rate that is too high for all weights."""
        notes = super().data_notes(data, prefix)
        if 0 < (n_steps := self._n_steps(data)) < MIN_STEPS:
            notes.append(
                f"about {n_steps} training step(s), and fewer than {MIN_STEPS} change little: "
                f"give more examples, or --set {prefix}training.steps={MIN_STEPS}"
            )
        if self.weights == "full" and self.training.rate > _MAX_FULL_RATE:
            notes.append(
                f"a learning rate of {self.training.rate:g} is high for all weights; "
                f"--set {prefix}training.rate=2e-5 is usual"
            )
        return notes

    def _n_steps(self, data: TrainingData) -> int:
        n_examples = OBJECTIVES[self.objective.name].count_examples(data) or 0
        return self.training.steps or self.training.epochs * math.ceil(n_examples / self.training.batch)

    def _objective(self, data: TrainingData) -> Any:
        spec = InputSpec(self.reads, self.template, max_length=self.max_length)
        objective: Objective[Any, Any] = OBJECTIVES[self.objective.name](self.objective, data, spec)
        return objective

    def _max_length(self, backbone: Backbone) -> int:
        return min(self.max_length, backbone.context_length or self.max_length)

    def _reranker(self, backbone: Backbone, corpus: PairCorpus, head: Tensor) -> Reranker:
        labels = corpus.objective.labels
        spec = RerankerSpec(corpus.backbone.name, "linear", self.template, max_length=self.max_length, labels=labels)
        return Reranker(backbone, spec, head.detach() if labels else head[0].detach())

    def _resume_key(self, corpus: PairCorpus, seed: int) -> str:
        """Names everything that a run depends on: a checkpoint of another key is not resumed."""
        dev = [vars(pairs) for pairs in corpus.data.dev]
        data = [corpus.objective.texts, dev, *corpus.objective.resume_key()]
        backbone, recipe = corpus.backbone, [self.name, key_settings(self)]
        return fingerprint(
            _FORMAT, backbone.effective_fingerprint, str(backbone.dtype), backbone.attention, recipe, data, seed
        )


def _n_pairs(data: TrainingData, part: Literal["dev", "test"]) -> int:
    """Number of scored and labelled pairs of a part of the data."""
    labelled: LabelledPairs | None = getattr(data, f"labelled_{part}")
    return sum(map(len, getattr(data, part))) + (len(labelled) if labelled else 0)


def _score(reranker: Reranker, pairs: ScoredPairs) -> Any:
    return np.asarray(reranker.score_pairs(pairs.left, pairs.right))
