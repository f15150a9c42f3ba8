"""One toy for every registered recipe and objective: small settings, data they learn from, and what they declare.

Whoever registers a recipe or an objective adds a toy here; without one, tests/contract fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.text.concepts import ConceptSet
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.data import TrainingData
from decoder2vec.training.labelled_pairs import LabelledPairs
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives.autoencoder import AutoencoderConfig
from decoder2vec.training.objectives.contrastive import ContrastiveConfig, LatentTripletsConfig
from decoder2vec.training.objectives.crop import CropConfig
from decoder2vec.training.objectives.distill import DistillConfig
from decoder2vec.training.objectives.guided import GuidedConfig
from decoder2vec.training.objectives.inference import InferenceConfig
from decoder2vec.training.objectives.labels import LabelsConfig
from decoder2vec.training.objectives.mntp import MNTPConfig
from decoder2vec.training.objectives.objective import ObjectiveConfig
from decoder2vec.training.objectives.punctuation import PunctuationConfig
from decoder2vec.training.objectives.punctuation_lm import PunctuationLMConfig
from decoder2vec.training.objectives.ranking import RankingConfig
from decoder2vec.training.objectives.scores import PairHeadConfig, ScoresConfig
from decoder2vec.training.objectives.simcse import SimCSEConfig
from decoder2vec.training.objectives.unshuffle import UnshuffleConfig
from decoder2vec.training.recipes.adapter import ReadSettings
from decoder2vec.training.recipes.freeze import FreezeRecipe, LatentSource
from decoder2vec.training.recipes.recipe import Recipe
from decoder2vec.training.teachers import Teacher
from toys.texts import plain_data, sentences
from toys.training import TOPICS, WHEN, small_recipe, toy_data, toy_examples

Shapes = dict[str, tuple[int, ...]]


def scored_pairs(name: str = "train") -> ScoredPairs:
    """48 pairs: the anchor of each toy example with its positive scores 1, with its negative 0."""
    examples = toy_examples()
    anchors = [example.anchor for example in examples]
    others = [example.positive for example in examples] + [example.negatives[0] for example in examples]
    return ScoredPairs(name, anchors * 2, others, [1.0] * len(anchors) + [0.0] * len(anchors))


# --- recipes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToyRecipe:
    """A recipe that takes six steps on its data, evaluated after every second, and what it should train."""

    recipe: Recipe[Any, Any]
    declared: Callable[[Backbone], Shapes]
    """Name and shape of every trained parameter, by the formulas of the papers, for a tiny model."""
    n_trained: Callable[[Backbone], int]
    """Number of trained parameters, by the same formulas."""
    impossible: dict[str, Recipe[Any, Any]]
    """Recipes that do not fit a tiny model, by what is wrong with them."""
    data: TrainingData = field(default_factory=toy_data)
    extra_tokens: int = 0
    """Positions of the context that are taken from the text."""
    unsupported: tuple[str, ...] = ()
    """Tiny models that it cannot train."""
    makes_encoder: bool = True
    """False: it makes a reranker."""

    def one_step(self, **changes: object) -> Recipe[Any, Any]:
        """The recipe with a single step."""
        schedule = replace(self.recipe.training, epochs=1, batch=1000, evaluate_every=0)
        return replace(self.recipe, training=schedule, **changes)


def linear_shapes(backbone: Backbone) -> list[tuple[str, int, int]]:
    """(name, inputs, outputs) of every matrix inside the blocks, without those that state-space kernels bypass."""
    shapes = []
    for key, tensor in backbone.model.state_dict().items():
        name = key.removesuffix(".weight")
        bypassed = "mamba" in backbone.family and name.endswith(("dt_proj", "out_proj"))
        if name == key or tensor.ndim != 2 or not name.startswith(("layers.", "h.")) or bypassed:
            continue
        rows, columns = tensor.shape
        shapes.append((name, rows, columns) if backbone.family == "gpt2" else (name, columns, rows))
    return shapes


def _lora_shapes(backbone: Backbone) -> Shapes:
    kinds = Counter(
        (f"{name.split('.', 2)[2].replace('.', '-')}-{ins}x{outs}", ins, outs)
        for name, ins, outs in linear_shapes(backbone)
    )
    lower = {f"lower.{name}": (count, 4, ins) for (name, ins, _), count in kinds.items()}
    upper = {f"upper.{name}": (count, outs, 4) for (name, _, outs), count in kinds.items()}
    return lower | upper


def _network_shapes(backbone: Backbone, network: Shapes) -> Shapes:
    """The parameters of a network after every branch of 4 blocks."""
    branches = ("attn",) if "mamba" in backbone.family else ("attn", "mlp")
    return {
        f"inserted.{block}-{branch}.{name}": shape
        for block in range(4)
        for branch in branches
        for name, shape in network.items()
    }


def _n_networks(backbone: Backbone) -> int:
    return 4 if "mamba" in backbone.family else 8


BOTTLENECK: Shapes = {"down.weight": (4, 32), "down.bias": (4,), "up.weight": (32, 4), "up.bias": (32,)}
CONVOLUTION: Shapes = {
    "first.weight": (4, 32, 3),
    "first.bias": (4,),
    "second.weight": (32, 4, 3),
    "second.bias": (32,),
}


def _kv_heads(backbone: Backbone) -> int:
    return 2 if backbone.family == "llama" else 4


FREEZE = FreezeRecipe(
    latents=(LatentSource(layers=(2, 4)),),
    widths=(8,),
    hidden=12,
    head="sum",
    pretrain="none",
    loss="mse",
    choose_by="spearman",
    training=Schedule(epochs=2, batch=16, rate=1e-2, patience=100, evaluate_every=2),
)
FREEZE_SHAPES: Shapes = {
    "encoders.0.hidden.0.weight": (2, 32, 12),
    "encoders.0.hidden.0.bias": (2, 1, 12),
    "encoders.0.norms.0.weight": (2, 1, 12),
    "encoders.0.norms.0.bias": (2, 1, 12),
    "encoders.0.last.weight": (2, 12, 8),
    "encoders.0.last.bias": (2, 1, 8),
    "pair.logits": (2,),
}


def _adapter(name: str, declared: Callable[[Backbone], Shapes], n_trained: Callable[[Backbone], int], **facts: Any):
    def impossible(**changes: object) -> Recipe[Any, Any]:
        return small_recipe(name, **changes)

    return ToyRecipe(
        small_recipe(name, epochs=2, every=2),
        declared,
        n_trained,
        {
            "layer that does not exist": impossible(read=ReadSettings(layer=99)),
            "embeddings": impossible(read=ReadSettings(layer=0)),
            "no bidirectional layer": impossible(attention="bidirectional:99"),
        },
        **facts,
    )


TOY_RECIPES = {
    "freeze": ToyRecipe(
        FREEZE,
        lambda _: FREEZE_SHAPES,
        lambda _: 2 * (32 * 12 + 12 + 2 * 12 + 12 * 8 + 8) + 2,
        {
            "layer that does not exist": replace(FREEZE, latents=(LatentSource(layers=(99,)),)),
            "more dimensions than there are": replace(FREEZE, dim=1000),
        },
        toy_data(contrastive=None, train=scored_pairs()),
    ),
    "soft_prompt": _adapter("soft_prompt", lambda _: {"vectors": (4, 32)}, lambda _: 4 * 32, extra_tokens=4),
    "kv_prefix": _adapter(
        "kv_prefix",
        lambda backbone: {f"layers.{layer}": (2, _kv_heads(backbone), 4, 8) for layer in range(4)},
        lambda backbone: 4 * 2 * _kv_heads(backbone) * 4 * 8,
        extra_tokens=4,
        unsupported=("tiny-mamba",),
    ),
    "lora": _adapter(
        "lora", _lora_shapes, lambda backbone: sum(4 * (ins + outs) for _, ins, outs in linear_shapes(backbone))
    ),
    "bottleneck": _adapter(
        "bottleneck",
        lambda backbone: _network_shapes(backbone, BOTTLENECK),
        lambda backbone: _n_networks(backbone) * (2 * 32 * 4 + 4 + 32),
    ),
    "conv": _adapter(
        "conv",
        lambda backbone: _network_shapes(backbone, CONVOLUTION),
        lambda backbone: _n_networks(backbone) * (2 * 3 * 32 * 4 + 4 + 32),
    ),
    "full": _adapter(
        "full",
        lambda backbone: {name: tuple(tensor.shape) for name, tensor in backbone.model.named_parameters()},
        lambda backbone: sum(tensor.numel() for tensor in backbone.model.parameters()),
    ),
    "rerank": ToyRecipe(
        small_recipe("rerank", epochs=2, every=2),
        lambda backbone: {
            **{f"weights.{name}": shape for name, shape in _lora_shapes(backbone).items()},
            "head.weight": (1, 32),
        },
        lambda backbone: 32 + sum(4 * (ins + outs) for _, ins, outs in linear_shapes(backbone)),
        {"no room for a document": small_recipe("rerank", max_length=5)},
        makes_encoder=False,
    ),
}


# --- objectives -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToyObjective:
    """An objective with data it learns from, and a recipe that can learn it."""

    config: ObjectiveConfig
    data: TrainingData
    changed: dict[str, TrainingData]
    """Other data, by what has changed; a checkpoint must not be resumed on them."""
    recipe: Recipe[Any, Any]


def _bidirectional_lora(config: ObjectiveConfig, **changes: object) -> Recipe[Any, Any]:
    read = ReadSettings(pooling="mean", max_length=48)
    return small_recipe("lora", batch=5, every=1, attention="bidirectional", objective=config, read=read, **changes)


def _token_toy(config: ObjectiveConfig, data: TrainingData, **changed: TrainingData) -> ToyObjective:
    return ToyObjective(config, data, changed, _bidirectional_lora(config))


def _latent_toy(config: ObjectiveConfig, data: TrainingData, **changed: TrainingData) -> ToyObjective:
    return ToyObjective(config, data, changed, FREEZE)


def _scores_toy(name: str) -> ToyObjective:
    return _token_toy(
        ScoresConfig(name), SCORED, scores=RESCORED, scale=replace(SCORED, scale=(0.0, 2.0)), texts=SWAPPED
    )


def _with_pairs(pairs: ScoredPairs) -> TrainingData:
    return toy_data(contrastive=None, train=pairs)


def _other_negatives() -> TrainingData:
    """The toy examples with other negatives, without any other text."""
    examples = toy_examples()
    shifted = [example._replace(negatives=examples[index - 9].negatives) for index, example in enumerate(examples)]
    return toy_data(contrastive=ContrastiveExamples.of(shifted))


def _other_sources() -> TrainingData:
    """The toy examples from two sources."""
    examples = [example._replace(source="ab"[index % 2]) for index, example in enumerate(toy_examples())]
    return toy_data(contrastive=ContrastiveExamples.of(examples))


def _other_texts() -> TrainingData:
    """The toy examples with one other text, so that all indices are the same."""
    first, *others = toy_examples()
    return toy_data(contrastive=ContrastiveExamples.of([first._replace(anchor="a new anchor"), *others]))


def _with_teacher_scores() -> TrainingData:
    """The toy examples with scores of a teacher."""
    examples = [example._replace(scores=(2.0, float(index % 3))) for index, example in enumerate(toy_examples())]
    return toy_data(contrastive=ContrastiveExamples.of(examples))


def labelled_data(**changes: object) -> TrainingData:
    """Ordered pairs of texts of one topic, before and after each other, and of two topics; every fifth is dev, too."""
    rows = [
        row
        for index, topic in enumerate(TOPICS)
        for here, there in pairwise(WHEN)
        for row in (
            (f"{topic} {here}", f"{topic} {there}", "before"),
            (f"{topic} {there}", f"{topic} {here}", "after"),
            (f"{topic} {here}", f"{TOPICS[index - 3]} {there}", "NONE"),
        )
    ]
    train, dev = (LabelledPairs(*zip(*part, strict=True)) for part in (rows, rows[::5]))
    return replace(TrainingData(None, (), labelled=train, labelled_dev=dev), **changes)


def _relabelled() -> TrainingData:
    pairs = labelled_data().labelled
    return labelled_data(labelled=replace(pairs, labels=pairs.labels[::-1]))


def _turned() -> TrainingData:
    pairs = labelled_data().labelled
    return labelled_data(labelled=replace(pairs, first=pairs.second, second=pairs.first))


SCORED = _with_pairs(scored_pairs())
RESCORED = _with_pairs(replace(scored_pairs(), scores=scored_pairs().scores[::-1]))
SWAPPED = _with_pairs(replace(scored_pairs(), left=scored_pairs().right, right=scored_pairs().left))
PLAIN = plain_data(sentences(24))
REVERSED = plain_data(sentences(24)[::-1])
NAMES, VERBS = ("Anna", "Ben", "Ida", "Otto", "Eva"), ("runs", "sings", "waits", "sees")
PUNCTUATED = tuple(f"{name} {verb}, and {name} knows. Who is {name}?" for name in NAMES for verb in VERBS)
STORIES = tuple(f"{name} {verb}. The day is long. {name} goes home." for name in NAMES for verb in VERBS)
TRIPLETS = tuple((example.anchor, example.positive, example.negatives[0]) for example in toy_examples())
NLI = tuple(
    (label, sentence, f"{sentence} {end}")
    for sentence in sentences(8)
    for label, end in (("entailment", "again"), ("neutral", "there"), ("contradiction", "never"))
)


def _frozen_data(**parts: object) -> TrainingData:
    return toy_data(contrastive=None, **parts)


TOY_OBJECTIVES = {
    "info_nce": _token_toy(
        ContrastiveConfig(), toy_data(), negatives=_other_negatives(), texts=_other_texts(), sources=_other_sources()
    ),
    "guided_info_nce": _token_toy(
        GuidedConfig(teachers=(Teacher("random:16"),), mined=2),
        toy_data(),
        negatives=_other_negatives(),
        texts=_other_texts(),
        sources=_other_sources(),
    ),
    "ranking": ToyObjective(
        RankingConfig(),
        toy_data(),
        {"negatives": _other_negatives(), "texts": _other_texts(), "scores": _with_teacher_scores()},
        small_recipe("rerank", batch=5, every=1),
    ),
    "labels": ToyObjective(
        LabelsConfig(),
        labelled_data(),
        {"labels": _relabelled(), "order": _turned(), "dev": labelled_data(labelled_dev=labelled_data().labelled)},
        small_recipe("rerank", batch=5, every=1, objective=LabelsConfig()),
    ),
    **{name: _scores_toy(name) for name in ("cosent", "angle", "cosine_mse")},
    "simcse": _token_toy(SimCSEConfig(temperature=0.3, dropout=0.5), PLAIN, order=REVERSED),
    "crop": _token_toy(CropConfig(temperature=0.3, min_words=2), PLAIN, order=REVERSED),
    "distill": _token_toy(DistillConfig(teachers=(Teacher("random:16"),)), PLAIN, order=REVERSED),
    "mntp": _token_toy(
        MNTPConfig(), PLAIN, order=REVERSED, concepts=replace(PLAIN, concepts=ConceptSet(frozenset({"dog"})))
    ),
    "punctuation": _token_toy(PunctuationConfig(), plain_data(PUNCTUATED), order=plain_data(PUNCTUATED[::-1])),
    "punctuation_lm": _token_toy(PunctuationLMConfig(), plain_data(PUNCTUATED), order=plain_data(PUNCTUATED[::-1])),
    "unshuffle": _token_toy(UnshuffleConfig(), plain_data(STORIES), order=plain_data(STORIES[::-1])),
    "latent_triplets": _latent_toy(
        LatentTripletsConfig(), _frozen_data(triplets=TRIPLETS), order=_frozen_data(triplets=TRIPLETS[::-1])
    ),
    "pair_head": _latent_toy(
        PairHeadConfig(loss="mse"), SCORED, scores=RESCORED, scale=replace(SCORED, scale=(0.0, 2.0)), texts=SWAPPED
    ),
    "autoencoder": _latent_toy(
        AutoencoderConfig(), _frozen_data(texts=sentences(24)), order=_frozen_data(texts=sentences(24)[::-1])
    ),
    "inference": _latent_toy(InferenceConfig(), _frozen_data(nli=NLI), order=_frozen_data(nli=NLI[::-1])),
}

TOY_LABELS = replace(
    TOY_RECIPES["rerank"],
    recipe=small_recipe("rerank", epochs=2, batch=16, every=2, objective=LabelsConfig()),
    declared=lambda backbone: {**TOY_RECIPES["rerank"].declared(backbone), "head.weight": (3, 32)},
    n_trained=lambda backbone: 64 + TOY_RECIPES["rerank"].n_trained(backbone),
    impossible={},
    data=labelled_data(),
)
"""The recipe rerank with labels instead of one score."""
