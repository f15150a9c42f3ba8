"""Defaults that depend on the model and the data: what a plan leaves open is chosen here, what it sets is kept."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.sources import Notify
from decoder2vec.config import EncoderSpec, with_settings
from decoder2vec.encoder_folder import saved_encoder_folder
from decoder2vec.saved_encoder import read_encoder_folder
from decoder2vec.text.template import TEMPLATES
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Schedule
from decoder2vec.training.plan import Plan, Stage
from decoder2vec.training.recipes.adapter import MIN_STEPS, AdapterRecipe

_BATCHES = (64, 32, 16, 8)
_FEW_EPOCHS = 4
"""Smaller batches are tried before more epochs than this."""
_MAX_EPOCHS = 10


def choose_reading(plan: Plan, backbone: Backbone | str | Path, notify: Notify) -> Plan:
    """The plan with the reading it leaves open: that of the encoder it starts from, else one that suits the attention.

    Args:
        plan: Of one stage; the stages of several leave nothing open.
        backbone: What training starts from.
        notify: Called with a sentence if a reading was chosen.

    """
    stage = plan.stages[0]
    if len(plan.stages) > 1 or not isinstance(stage.recipe, AdapterRecipe):
        return plan
    spec = None if isinstance(backbone, Backbone) else _trainable_spec(backbone)
    defaults = _encoder_reading(spec) if spec else _suitable_reading(stage.recipe, stage.unset)
    chosen = {name: value for name, value in defaults.items() if name in stage.unset}
    if not chosen:
        return plan
    recipe = with_settings(stage.recipe, chosen)
    read = recipe.read
    template = next((name for name, string in TEMPLATES.items() if string == read.template), read.template)
    reason = f"as {backbone} does" if spec else "by default"
    notify(f"reading {reason}: {read.pooling} of {template!r}, layer {read.layer}, {recipe.attention} attention")
    return replace(plan, stages=(replace(stage, recipe=recipe),))


def choose_schedule(stage: Stage, data: TrainingData, notify: Notify) -> Stage:
    """The stage with more epochs and smaller batches, as far as it leaves them open, if there are few examples."""
    if not isinstance(stage.recipe, AdapterRecipe) or stage.recipe.needs() == ["corpus"]:
        return stage
    n_examples, schedule = stage.recipe.n_examples(data), stage.recipe.training
    chosen = _schedule_for(n_examples, schedule, stage.unset) if n_examples else schedule
    if chosen == schedule:
        return stage
    notify(f"{n_examples:,} examples: training.epochs={chosen.epochs}, training.batch={chosen.batch}")
    return replace(stage, recipe=replace(stage.recipe, training=chosen))


def choose_metric(stage: Stage, data: TrainingData, notify: Notify) -> Stage:
    """The stage with Pearson as the dev metric, if it leaves that open and dev pairs have two scores, as triplets give.

    Spearman on two scores is at its maximum as soon as all pairs are in order, and then tells no states apart; Pearson
    also grows with the margin between both kinds of pairs.
    """
    two_scores = data.dev and all(len(set(pairs.scores)) == 2 for pairs in data.dev)
    if not two_scores or "choose_by" not in stage.unset or not isinstance(stage.recipe, AdapterRecipe):
        return stage
    notify("dev pairs have two scores only: states are chosen by Pearson, which also counts the margin between them")
    return replace(stage, recipe=replace(stage.recipe, choose_by="pearson"))


def _trainable_spec(name: str | Path) -> EncoderSpec | None:
    """The description of a saved encoder with one reading; several cannot be trained as one, nor can re-routing."""
    folder = saved_encoder_folder(name)
    if folder is None:
        return None
    spec = EncoderSpec.from_json(read_encoder_folder(folder)[0]["spec"])
    return spec if len(spec.readings) == 1 and "+" not in spec.attention else None


def _encoder_reading(spec: EncoderSpec) -> dict[str, Any]:
    (reading,) = spec.readings
    return {
        "attention": spec.attention,
        "read.template": reading.template or spec.template,
        "read.layer": reading.layer,
        "read.pooling": reading.pooling,
        "read.normed": reading.normed,
    }


def _suitable_reading(recipe: AdapterRecipe, unset: Collection[str]) -> dict[str, Any]:
    """Prompt and last token under causal attention, the mean of plain text else, where vectors of pairs are trained."""
    if recipe.needs() == ["corpus"]:
        return {}
    if recipe.attention != "causal":
        return {"read.template": "plain", "read.pooling": "mean"}
    # the prompt makes the last token stand for the text; other poolings read the text itself
    asks_last_token = "read.pooling" in unset or recipe.read.pooling == "lasttoken"
    return {"read.template": "prompteol"} if asks_last_token else {}


def _schedule_for(n_examples: int, schedule: Schedule, unset: Collection[str]) -> Schedule:
    """The largest batches with which few epochs make enough steps, else the smallest and more epochs."""

    def n_epochs(batch: int) -> int:
        return math.ceil(MIN_STEPS / math.ceil(n_examples / batch))

    if schedule.steps or n_epochs(schedule.batch) <= schedule.epochs or not schedule.epochs:
        return schedule
    limit = _MAX_EPOCHS if "training.epochs" in unset else schedule.epochs
    batches = [batch for batch in _BATCHES if batch <= schedule.batch] if "training.batch" in unset else []
    batches = batches or [schedule.batch]
    few = min(limit, _FEW_EPOCHS)
    batch = next((batch for batch in batches if n_epochs(batch) <= few), batches[-1])
    epochs = max(schedule.epochs, min(limit, n_epochs(batch)))
    if (epochs, batch) == (schedule.epochs, schedule.batch):
        return schedule
    evaluate_every = 0 if "training.evaluate_every" in unset else schedule.evaluate_every  # 0: after every epoch
    return replace(schedule, epochs=epochs, batch=batch, evaluate_every=evaluate_every)
