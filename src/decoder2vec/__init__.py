"""decoder2vec: turn any decoder-only language model into a text encoder.

Everything public is imported from here: `import decoder2vec as d2v`. Names are resolved on first use, so that the
import itself is quick and does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from decoder2vec.package import __version__, limit_spinning

limit_spinning()

if TYPE_CHECKING:
    from decoder2vec.activations.chunks import SentenceVectors
    from decoder2vec.activations.extract import Extractor
    from decoder2vec.activations.spans import TextSpan
    from decoder2vec.activations.store import Store, text_key
    from decoder2vec.analysis.doctor import doctor
    from decoder2vec.analysis.engines import compare_engines
    from decoder2vec.analysis.geometry import measure_geometry
    from decoder2vec.analysis.intrinsic_dimension import DimensionPlan, estimate_dimension, measure_dimension
    from decoder2vec.analysis.pruning import prune
    from decoder2vec.analysis.vocabulary import VocabularyPruning, measure_vocabulary, prune_vocabulary
    from decoder2vec.backbone.backbone import Backbone
    from decoder2vec.bridge.bridge import Bridge
    from decoder2vec.bridge.control import BlindControl, blind_control
    from decoder2vec.bridge.projector import Projector
    from decoder2vec.bridge.vectors import CaptionedVectors, read_captioned_vectors
    from decoder2vec.bulk.dataset import DatasetResult, embed_dataset
    from decoder2vec.bulk.plan import VectorFormat
    from decoder2vec.bulk.ray_encoder import RayEncoder
    from decoder2vec.bulk.verify import Verification, verify_dataset
    from decoder2vec.calibration import CalibrationResult, calibrate
    from decoder2vec.choosing.probe import ProbeConfig
    from decoder2vec.choosing.search import Choice
    from decoder2vec.choosing.tasks import Example, TargetTask, read_task
    from decoder2vec.config import EncoderSpec, Reading
    from decoder2vec.encoder import Encoder
    from decoder2vec.errors import (
        BackboneError,
        DataFileError,
        Decoder2VecError,
        DivergedError,
        EncoderError,
        InputError,
        MissingExtraError,
        StorageError,
        UnknownNameError,
        UnsupportedError,
    )
    from decoder2vec.evaluation.api import evaluate
    from decoder2vec.evaluation.baselines import load_encoder
    from decoder2vec.evaluation.mteb import MTEBCrossEncoder, as_mteb_model, evaluate_mteb
    from decoder2vec.export.formats import export
    from decoder2vec.matching.match import MatchConfig, Matching, match
    from decoder2vec.matching.sides import Side, SideDocument
    from decoder2vec.merging import merge
    from decoder2vec.progress import Progress
    from decoder2vec.relations.files import read_mentions, read_relations
    from decoder2vec.relations.matcher import PairMatcher, PredictedRelation, RelationResult
    from decoder2vec.relations.mentions import Mention, Relation
    from decoder2vec.relations.metrics import RelationScores
    from decoder2vec.report.api import match_report, migration_report, relation_report, report
    from decoder2vec.report.choose import choose
    from decoder2vec.report.sweep import sweep
    from decoder2vec.report.trajectory import TrajectoryResult
    from decoder2vec.reranker import Reranker, RerankerSpec
    from decoder2vec.search.chunks import Chunking
    from decoder2vec.search.documents import Document
    from decoder2vec.search.hybrid import Fusion
    from decoder2vec.search.index import Hit, Index
    from decoder2vec.search.migration import Migration, migrate
    from decoder2vec.search.rerank import PairReranker
    from decoder2vec.serving.app import ServerConfig, create_app
    from decoder2vec.serving.limits import Limits
    from decoder2vec.text.files import ScoredPairs, Triplets, read_pairs, read_triplets
    from decoder2vec.text.template import Template
    from decoder2vec.training.api import TrainingResult, train
    from decoder2vec.training.bridge import BridgeConfig, BridgeResult, train_bridge
    from decoder2vec.training.contrastive_examples import ContrastiveExamples, read_contrastive_examples
    from decoder2vec.training.curve import CurvePoint, LearningCurve, learning_curve
    from decoder2vec.training.data import TrainingData
    from decoder2vec.training.loop import Schedule
    from decoder2vec.training.mining import mine_hard_negatives
    from decoder2vec.training.plan import Plan, load_plan, read_variants
    from decoder2vec.training.recipes.bottleneck import BottleneckRecipe, ConvolutionRecipe
    from decoder2vec.training.recipes.freeze import FreezeRecipe, LatentSource
    from decoder2vec.training.recipes.full import FullRecipe
    from decoder2vec.training.recipes.kv_prefix import KeyValuePrefixRecipe
    from decoder2vec.training.recipes.lora import LoraRecipe
    from decoder2vec.training.recipes.rerank import RerankRecipe
    from decoder2vec.training.recipes.soft_prompt import SoftPromptRecipe
    from decoder2vec.training.relation_classifier import RerankerTraining
    from decoder2vec.training.trajectory import Trajectory

_MODULES = {
    "activations.chunks": ("SentenceVectors",),
    "activations.extract": ("Extractor",),
    "activations.spans": ("TextSpan",),
    "activations.store": ("Store", "text_key"),
    "analysis.doctor": ("doctor",),
    "analysis.engines": ("compare_engines",),
    "analysis.geometry": ("measure_geometry",),
    "analysis.intrinsic_dimension": ("DimensionPlan", "estimate_dimension", "measure_dimension"),
    "analysis.pruning": ("prune",),
    "analysis.vocabulary": ("VocabularyPruning", "measure_vocabulary", "prune_vocabulary"),
    "backbone.backbone": ("Backbone",),
    "bridge.bridge": ("Bridge",),
    "bridge.control": ("BlindControl", "blind_control"),
    "bridge.projector": ("Projector",),
    "bridge.vectors": ("CaptionedVectors", "read_captioned_vectors"),
    "bulk.dataset": ("DatasetResult", "embed_dataset"),
    "bulk.plan": ("VectorFormat",),
    "bulk.ray_encoder": ("RayEncoder",),
    "bulk.verify": ("Verification", "verify_dataset"),
    "calibration": ("CalibrationResult", "calibrate"),
    "choosing.probe": ("ProbeConfig",),
    "choosing.search": ("Choice",),
    "choosing.tasks": ("Example", "TargetTask", "read_task"),
    "config": ("EncoderSpec", "Reading"),
    "encoder": ("Encoder",),
    "errors": (
        "BackboneError",
        "DataFileError",
        "Decoder2VecError",
        "DivergedError",
        "EncoderError",
        "InputError",
        "MissingExtraError",
        "StorageError",
        "UnknownNameError",
        "UnsupportedError",
    ),
    "evaluation.api": ("evaluate",),
    "evaluation.baselines": ("load_encoder",),
    "evaluation.mteb": ("MTEBCrossEncoder", "as_mteb_model", "evaluate_mteb"),
    "export.formats": ("export",),
    "matching.match": ("MatchConfig", "Matching", "match"),
    "matching.sides": ("Side", "SideDocument"),
    "merging": ("merge",),
    "progress": ("Progress",),
    "relations.files": ("read_mentions", "read_relations"),
    "relations.matcher": ("PairMatcher", "PredictedRelation", "RelationResult"),
    "relations.mentions": ("Mention", "Relation"),
    "relations.metrics": ("RelationScores",),
    "report.api": ("match_report", "migration_report", "relation_report", "report"),
    "report.choose": ("choose",),
    "report.sweep": ("sweep",),
    "report.trajectory": ("TrajectoryResult",),
    "reranker": ("Reranker", "RerankerSpec"),
    "search.chunks": ("Chunking",),
    "search.documents": ("Document",),
    "search.hybrid": ("Fusion",),
    "search.index": ("Hit", "Index"),
    "search.migration": ("Migration", "migrate"),
    "search.rerank": ("PairReranker",),
    "serving.app": ("ServerConfig", "create_app"),
    "serving.limits": ("Limits",),
    "text.files": ("ScoredPairs", "Triplets", "read_pairs", "read_triplets"),
    "text.template": ("Template",),
    "training.api": ("TrainingResult", "train"),
    "training.bridge": ("BridgeConfig", "BridgeResult", "train_bridge"),
    "training.contrastive_examples": ("ContrastiveExamples", "read_contrastive_examples"),
    "training.curve": ("CurvePoint", "LearningCurve", "learning_curve"),
    "training.data": ("TrainingData",),
    "training.loop": ("Schedule",),
    "training.mining": ("mine_hard_negatives",),
    "training.plan": ("Plan", "load_plan", "read_variants"),
    "training.recipes.bottleneck": ("BottleneckRecipe", "ConvolutionRecipe"),
    "training.recipes.freeze": ("FreezeRecipe", "LatentSource"),
    "training.recipes.full": ("FullRecipe",),
    "training.recipes.kv_prefix": ("KeyValuePrefixRecipe",),
    "training.recipes.lora": ("LoraRecipe",),
    "training.recipes.rerank": ("RerankRecipe",),
    "training.recipes.soft_prompt": ("SoftPromptRecipe",),
    "training.relation_classifier": ("RerankerTraining",),
    "training.trajectory": ("Trajectory",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [
    "Backbone",
    "BackboneError",
    "BlindControl",
    "BottleneckRecipe",
    "Bridge",
    "BridgeConfig",
    "BridgeResult",
    "CalibrationResult",
    "CaptionedVectors",
    "Choice",
    "Chunking",
    "ContrastiveExamples",
    "ConvolutionRecipe",
    "CurvePoint",
    "DataFileError",
    "DatasetResult",
    "Decoder2VecError",
    "DimensionPlan",
    "DivergedError",
    "Document",
    "Encoder",
    "EncoderError",
    "EncoderSpec",
    "Example",
    "Extractor",
    "FreezeRecipe",
    "FullRecipe",
    "Fusion",
    "Hit",
    "Index",
    "InputError",
    "KeyValuePrefixRecipe",
    "LatentSource",
    "LearningCurve",
    "Limits",
    "LoraRecipe",
    "MTEBCrossEncoder",
    "MatchConfig",
    "Matching",
    "Mention",
    "Migration",
    "MissingExtraError",
    "PairMatcher",
    "PairReranker",
    "Plan",
    "PredictedRelation",
    "ProbeConfig",
    "Progress",
    "Projector",
    "RayEncoder",
    "Reading",
    "Relation",
    "RelationResult",
    "RelationScores",
    "RerankRecipe",
    "Reranker",
    "RerankerSpec",
    "RerankerTraining",
    "Schedule",
    "ScoredPairs",
    "SentenceVectors",
    "ServerConfig",
    "Side",
    "SideDocument",
    "SoftPromptRecipe",
    "StorageError",
    "Store",
    "TargetTask",
    "Template",
    "TextSpan",
    "TrainingData",
    "TrainingResult",
    "Trajectory",
    "TrajectoryResult",
    "Triplets",
    "UnknownNameError",
    "UnsupportedError",
    "VectorFormat",
    "Verification",
    "VocabularyPruning",
    "__version__",
    "as_mteb_model",
    "blind_control",
    "calibrate",
    "choose",
    "compare_engines",
    "create_app",
    "doctor",
    "embed_dataset",
    "estimate_dimension",
    "evaluate",
    "evaluate_mteb",
    "export",
    "learning_curve",
    "load_encoder",
    "load_plan",
    "match",
    "match_report",
    "measure_dimension",
    "measure_geometry",
    "measure_vocabulary",
    "merge",
    "migrate",
    "migration_report",
    "mine_hard_negatives",
    "prune",
    "prune_vocabulary",
    "read_captioned_vectors",
    "read_contrastive_examples",
    "read_mentions",
    "read_pairs",
    "read_relations",
    "read_task",
    "read_triplets",
    "read_variants",
    "relation_report",
    "report",
    "sweep",
    "text_key",
    "train",
    "train_bridge",
    "verify_dataset",
]


def home_of(name: str) -> str:
    """Return the module that defines a public name."""
    return _HOMES[name]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
