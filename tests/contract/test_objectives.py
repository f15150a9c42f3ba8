"""What every registered objective promises, whatever it learns. Its toy is in tests/toys/contract.py."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import fingerprint, from_table, to_table
from decoder2vec.errors import InputError
from decoder2vec.training import checkpoint
from decoder2vec.training.context import InputSpec, Reads
from decoder2vec.training.data import DATA_KINDS, TrainingData
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives import OBJECTIVES, objective_config
from decoder2vec.training.objectives.objective import trained_module, training_task
from decoder2vec.training.recipes.recipe import SeedRun
from toys.contract import TOY_OBJECTIVES
from toys.regression import equal_states, state_of
from toys.training import gradients_of, toy_pairs

SCHEDULE = Schedule(steps=6, batch=6, rate=1e-2, patience=100, evaluate_every=2, clip=1.0)


class Killed(Exception):
    """Ends a run as a crash would."""


def test_every_registered_objective_has_a_toy():
    assert set(TOY_OBJECTIVES) == set(OBJECTIVES), "add a toy to tests/toys/contract.py"


@pytest.fixture(scope="module", params=OBJECTIVES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def toy(name):
    return TOY_OBJECTIVES[name]


def input_spec(toy, reads):
    """How a recipe with such reads presents texts to the objective."""
    return InputSpec(reads, max_length=48, attention=toy.recipe.attention or "causal")


def make(name, toy, data=None):
    """The objective on data, before any text is read."""
    return OBJECTIVES[name](toy.config, toy.data if data is None else data, input_spec(toy, toy.recipe.reads))


@pytest.fixture(scope="module")
def attach(own_cache, toy, name):
    """attach() -> a new objective and context on tiny-llama, and the module and task that the loop trains."""
    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    corpus = toy.recipe.prepare(toy.data, backbone)

    def attach():
        torch.manual_seed(0)
        context, objective = toy.recipe.attach(corpus), make(name, toy)
        module = trained_module(objective, context)
        task = training_task(objective, context, SCHEDULE, "spearman")
        return SimpleNamespace(objective=objective, context=context, module=module, task=task, backbone=backbone)

    return attach


# --- before a model is there ----------------------------------------------------------------------------------------


def test_an_objective_declares_data_reads_and_settings(name, toy):
    kind = OBJECTIVES[name]
    assert name in kind.names and kind.needs in DATA_KINDS and kind.stage
    assert kind.reads and set(kind.reads) <= set(Reads)
    assert toy.recipe.reads in kind.reads
    assert type(toy.config) is kind.config_class and toy.config.name == name
    assert from_table(kind.config_class, json.loads(json.dumps(to_table(toy.config)))) == toy.config
    assert objective_config({"name": name}) == kind.config_class(name=name)


def test_a_recipe_that_cannot_learn_it_raises(name, toy):
    kind = OBJECTIVES[name]
    for reads in Reads:
        if reads in kind.reads:
            kind(toy.config, toy.data, input_spec(toy, reads))
            continue
        with pytest.raises(InputError) as error:
            kind(toy.config, toy.data, input_spec(toy, reads))
        message = str(error.value)
        assert message.startswith(f"{name} {kind.unreadable}") and message.endswith(".") and "use" in message
        assert len(message.splitlines()) == 1


def test_missing_data_raise_one_sentence(name, toy):
    with pytest.raises(InputError) as error:
        make(name, toy, TrainingData(None, (toy_pairs(),)))
    message = str(error.value)
    assert "learn" in message and message.endswith(".") and len(message.splitlines()) == 1


def test_missing_dev_pairs_raise_where_states_are_selected_on_them(name, toy, attach):
    without = replace(toy.data, dev=())
    if OBJECTIVES[name].needs_dev:
        with pytest.raises(InputError, match=f"{name} needs scored pairs to select .*; give dev pairs"):
            make(name, toy, without)
        return
    objective = make(name, toy, without)
    context = attach().context
    trained_module(objective, context)
    with context.forward_context(), torch.no_grad():
        assert math.isfinite(objective.dev_metric(context)())


def test_texts_are_those_of_the_data(name, toy):
    texts = make(name, toy).texts
    assert texts and all(isinstance(text, str) for text in texts)
    assert make(name, toy).texts == texts


@pytest.mark.parametrize("size", [4, 7, 1000])
def test_batches_cover_all_examples(name, toy, size):
    objective = make(name, toy)
    order = np.random.default_rng(0).permutation(len(objective))
    batches = list(objective.batches(order, size))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(objective)))
    assert all(2 <= len(batch) <= size + 1 for batch in batches), "a single example may join a batch"


def test_the_resume_key_is_json_and_changes_with_the_data(name, toy):
    """Checkpoints are named by texts and key."""

    def key(data):
        objective = make(name, toy, data)
        return fingerprint(json.loads(json.dumps([objective.texts, objective.resume_key()])))

    keys = [key(toy.data), *map(key, toy.changed.values())]
    assert key(toy.data) == keys[0]
    assert toy.changed and len(set(keys)) == len(keys)


# --- on a model -----------------------------------------------------------------------------------------------------


def test_the_loss_has_gradients_to_the_declared_modules_only(attach):
    run = attach()
    trained = {id(parameter) for parameter in run.module.parameters()}
    assert trained >= {id(parameter) for parameter in run.context.module.parameters()}
    batch = next(run.objective.batches(np.random.default_rng(0).permutation(len(run.objective)), 8))
    loss, gradients = gradients_of(run.module, run.task, batch)
    assert math.isfinite(loss)
    computed = {name: gradient for name, gradient in gradients.items() if gradient is not None}
    assert all(gradient.isfinite().all() for gradient in computed.values())
    assert any(gradient.abs().max() > 0 for gradient in computed.values())
    others = [name for name, tensor in run.backbone.model.named_parameters() if id(tensor) not in trained]
    assert others
    assert all(run.backbone.model.get_parameter(name).grad is None for name in others)


def test_the_dev_metric_is_finite_and_deterministic(attach):
    run = attach()
    run.module.eval()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    score = run.task.dev_metric()
    assert math.isfinite(score)
    metric = run.objective.metric("spearman")
    assert score < 0 if metric.lower_is_better else -100 <= score <= 100, "minus a loss, or in points"
    assert metric.lower_is_better == (" on held-out texts" in metric.name)
    assert torch.equal(torch.get_rng_state(), before), "only one of several processes evaluates it"
    torch.manual_seed(2)
    assert run.task.dev_metric() == score
    assert attach().task.dev_metric() == score


def test_the_loss_falls(attach):
    run = attach()
    history, _ = SeedRun(0).fit(run.objective, run.context, replace(SCHEDULE, steps=20, batch=20), "spearman")
    assert history.losses[-1] < history.losses[0]


def test_a_report_can_be_written_as_json(attach):
    run = attach()
    run.module.eval()
    with torch.no_grad(), run.context.forward_context():
        report = run.objective.report(run.context)
    assert json.loads(json.dumps(report)) == report


def test_a_killed_run_resumes_with_the_same_numbers(attach, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)
    steps = []

    def kill(state):
        if state.step == 3:
            raise Killed

    def fit(seed_run, **options):
        run = attach()
        history, module = seed_run.fit(run.objective, run.context, SCHEDULE, "spearman", **options)
        return history, state_of(module)

    file = tmp_path / "run.safetensors"
    whole = fit(SeedRun(0))
    with pytest.raises(Killed):
        fit(SeedRun(0, on_progress=kill), checkpoint=file)
    resumed = fit(SeedRun(0, on_progress=lambda state: steps.append(state.step)), checkpoint=file)
    assert steps[0] == 4, "it resumes"
    assert resumed[0] == whole[0]
    assert equal_states(resumed[1], whole[1])
