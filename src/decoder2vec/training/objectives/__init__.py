"""What a model learns, one objective per file, and their registry by the name in a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from decoder2vec.config import from_table, to_table
from decoder2vec.errors import unknown_name
from decoder2vec.training.objectives.autoencoder import AutoencoderObjective
from decoder2vec.training.objectives.contrastive import ContrastiveObjective, LatentTripletsObjective
from decoder2vec.training.objectives.crop import CropObjective
from decoder2vec.training.objectives.distill import DistillObjective
from decoder2vec.training.objectives.guided import GuidedObjective
from decoder2vec.training.objectives.inference import InferenceObjective
from decoder2vec.training.objectives.labels import LabelsObjective
from decoder2vec.training.objectives.mntp import MNTPObjective
from decoder2vec.training.objectives.objective import Objective, ObjectiveConfig
from decoder2vec.training.objectives.punctuation import PunctuationObjective
from decoder2vec.training.objectives.punctuation_lm import PunctuationLMObjective
from decoder2vec.training.objectives.ranking import RankingObjective
from decoder2vec.training.objectives.scores import PairHeadObjective, ScoresObjective
from decoder2vec.training.objectives.simcse import SimCSEObjective
from decoder2vec.training.objectives.unshuffle import UnshuffleObjective

OBJECTIVES: dict[str, type[Objective[Any, Any]]] = {
    name: objective
    for objective in (
        ContrastiveObjective,
        GuidedObjective,
        ScoresObjective,
        RankingObjective,
        LabelsObjective,
        SimCSEObjective,
        CropObjective,
        DistillObjective,
        MNTPObjective,
        PunctuationObjective,
        PunctuationLMObjective,
        UnshuffleObjective,
        LatentTripletsObjective,
        PairHeadObjective,
        AutoencoderObjective,
        InferenceObjective,
    )
    for name in objective.names
}
"""Objectives by the name in a plan."""


def objective_config(table: Mapping[str, Any], where: str = "objective") -> ObjectiveConfig:
    """The settings of an objective from a table, whose `name` (by default info_nce) chooses the objective.

    Settings of other objectives are ignored at their default values: plans written by earlier versions list them all.
    """
    name = table.get("name", ContrastiveObjective.names[0])
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, OBJECTIVES)
    config_class = OBJECTIVES[name].config_class
    known = {field.name for field in fields(config_class)}
    defaults: dict[str, Any] = {}
    for objective in OBJECTIVES.values():
        defaults |= to_table(objective.config_class())  # type: ignore[call-arg]
    ignored = {key for key, value in table.items() if key not in known and key in defaults and value == defaults[key]}
    return from_table(config_class, {key: value for key, value in table.items() if key not in ignored}, where)
