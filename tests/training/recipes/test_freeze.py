"""FREEZE: its settings and the networks they describe, training on cached latents, selection of readings."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from decoder2vec.activations.store import Store, text_key
from decoder2vec.config import Reading, from_table
from decoder2vec.errors import EncoderError, InputError
from decoder2vec.text.template import Template
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.freeze import FreezeRecipe, LatentSource, layer_numbers
from toys.codes import equal_states, net_state

MODEL = SimpleNamespace(n_layers=6, dim=40)

# --- layers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "depth", "expected"),
    [
        ("all", 4, [1, 2, 3, 4]),
        ((0, 3), 4, [0, 3]),
        ((-1, -4, -5), 4, [4, 1, 0]),
        ("20:30", 30, list(range(20, 31))),
        ("0:2", 4, [0, 1, 2]),
        ("3:3", 4, [3]),
        ("0.67:1.0", 30, list(range(20, 31))),
        ("0.67:1.0", 24, list(range(16, 25))),
        ("0.5:1.0", 4, [2, 3, 4]),
        ("0.0:1.0", 3, [0, 1, 2, 3]),
        ("0.5:28", 30, list(range(15, 29))),
        (" 1 : 2 ", 4, [1, 2]),
    ],
)
def test_layers_are_numbers_or_fractions_of_the_depth(layers, depth, expected):
    assert layer_numbers(layers, depth) == expected


@pytest.mark.parametrize("layers", [(5,), (-6,), (), "5:6", "3:2", "0.5:1.5", "-3:-1"])
def test_layers_outside_the_model_fail(layers):
    with pytest.raises(InputError, match="not within 0 to 4"):
        layer_numbers(layers, 4)


@pytest.mark.parametrize("layers", ["upper", "5", "1:2:3", ":", "1:", "a:b", ""])
def test_malformed_layers_fail_with_examples(layers):
    with pytest.raises(InputError, match=r'"20:30" or "0\.67:1\.0"'):
        layer_numbers(layers, 30)


def test_source_reads_its_layers_with_its_own_template():
    readings = LatentSource("prompteol", "mean", (1, -1), normed=True).readings(6)
    template = Template.of("prompteol").string
    assert readings == [Reading(1, "mean", True, template), Reading(6, "mean", True, template)]


def test_default_reads_the_last_token_after_every_block():
    readings = FreezeRecipe().readings(MODEL)
    assert [reading.layer for reading in readings] == [1, 2, 3, 4, 5, 6]
    assert {(reading.pooling, reading.normed) for reading in readings} == {("lasttoken", False)}


@pytest.mark.parametrize(
    "sources",
    [
        (LatentSource(layers=(2, 2, 3)),),
        (LatentSource(layers=(6, -1)),),
        (LatentSource(layers="1:4"), LatentSource(layers="3:6")),
        (LatentSource(), LatentSource()),
    ],
)
def test_repeated_readings_are_read_once(sources):
    recipe = FreezeRecipe(latents=sources)
    readings = recipe.readings(MODEL)
    assert len(set(readings)) == len(readings) == len(recipe.code_spec(MODEL).widths)


def test_recipe_without_readings_fails():
    with pytest.raises(InputError, match="reads nothing"):
        FreezeRecipe(latents=()).readings(MODEL)


# --- shape of the network -------------------------------------------------------------------------------------------


def test_widths_are_spread_over_each_source():
    sources = (LatentSource(layers="1:5"), LatentSource(pooling="mean", layers="5:6"))
    recipe = FreezeRecipe(latents=sources, widths=(8, 16))
    assert [reading.layer for reading in recipe.readings(MODEL)] == [1, 2, 3, 4, 5, 5, 6]
    assert recipe.code_spec(MODEL).widths == (8, 8, 8, 16, 16, 8, 16)


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ((0.25, 0.5), (10, 10, 10, 20, 20, 20)),
        ((12,), (12,) * 6),
        ((0.01,), (1,) * 6),
        ((1.0,), (40,) * 6),
        ((1,), (1,) * 6),
        ((7, 0.5, 0), (7, 7, 20, 20, 0, 0)),
        ((0.0,), (0,) * 6),
    ],
)
def test_widths_are_absolute_or_fractions_of_the_model_width(widths, expected):
    assert FreezeRecipe(widths=widths, pretrain="none").code_spec(MODEL).widths == expected


@pytest.mark.parametrize(("hidden", "expected"), [(0.5, 20), (64, 64), (0, 0), (0.0, 0), (1.0, 40), (0.001, 1)])
def test_hidden_width_is_absolute_or_a_fraction(hidden, expected):
    assert FreezeRecipe(hidden=hidden).code_spec(MODEL).hidden == expected


def test_defaults_on_gpt2_medium_are_those_of_the_paper():
    spec = FreezeRecipe().code_spec_for([24], 1024)
    assert spec.widths == (256,) * 12 + (512,) * 12
    assert (spec.hidden, spec.head, spec.mixing) == (512, "mlp", "none")


def test_code_spec_has_all_settings_of_the_network():
    recipe = FreezeRecipe(
        widths=(9,),
        depth=3,
        shortcut=True,
        mixing="unified",
        mixed_width=11,
        head="gated",
        unit_latents=True,
        dropout=0.2,
        noise=0.3,
    )
    spec = recipe.code_spec(MODEL)
    assert (spec.dim, spec.depth, spec.shortcut, spec.mixing, spec.mixed_width) == (40, 3, True, "unified", 11)
    assert (spec.head, spec.unit, spec.dropout, spec.noise) == ("gated", True, 0.2, 0.3)


# --- settings that do not work --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "none"}, "only contrastive or distill pre-training"),
        ({"loss": "none", "pretrain": "none"}, "only contrastive or distill pre-training"),
        ({"loss": "none", "pretrain": "autoencoder", "widths": (0,)}, "only contrastive or distill pre-training"),
        ({"mixing": "attention_codes", "pretrain": "autoencoder"}, "trained from the start"),
        ({"mixing": "attention_latents", "pretrain": "snli"}, "trained from the start"),
        ({"keep": 3}, "head 'sum' without mixing"),
        ({"keep": 3, "head": "sum", "mixing": "unified", "mixed_width": 4}, "head 'sum' without mixing"),
        ({"dim": 64}, "Only the vectors of the head 'sum'"),
        ({"dim": 64, "head": "gated"}, "Only the vectors of the head 'sum'"),
        ({"head": "each", "mixing": "unified", "mixed_width": 4}, "chooses one layer"),
        ({"widths": ()}, "widths is empty"),
    ],
)
def test_conflicting_settings_fail(settings, message):
    with pytest.raises(InputError, match=message):
        FreezeRecipe(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "none", "pretrain": "contrastive", "head": "sum"},
        {"loss": "none", "pretrain": "none", "widths": (0,), "head": "each"},
        {"mixing": "attention_codes", "mixed_width": 4, "pretrain": "none", "widths": (8,)},
        {"mixing": "unified", "mixed_width": 4, "head": "sum", "dim": 2},
        {"keep": 3, "head": "sum", "dim": 64},
    ],
)
def test_compatible_settings_are_accepted(settings):
    assert FreezeRecipe(**settings).code_spec(MODEL).dim == 40


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"pretrain": "autoencoders"}, "Did you mean autoencoder"),
        ({"loss": "pearsons"}, "Did you mean pearson"),
        ({"choose_by": "spearmen"}, "Did you mean spearman"),
        ({"changes": ("case", "word")}, "Did you mean words"),
    ],
)
def test_unknown_name_fails_with_the_nearest_name(settings, hint):
    with pytest.raises(InputError, match=hint):
        FreezeRecipe(**settings)


@pytest.mark.parametrize(
    ("settings", "hint"),
    [({"mixing": "unify"}, "unified"), ({"head": "some"}, "sum"), ({"mixing": "unified"}, "mixed_width")],
)
def test_impossible_network_fails(settings, hint):
    with pytest.raises(InputError, match=hint):
        FreezeRecipe(**settings).code_spec(MODEL)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropout": 1.0}, "dropout"),
        ({"keep": -1, "head": "sum"}, "0 or more"),
        ({"widths": (0,), "pretrain": "snli"}, "nothing to pre-train"),
        ({"head": "best"}, "head"),
        ({"mixing": "stir"}, "mixing"),
    ],
)
def test_invalid_values_fail_at_once(settings, message):
    with pytest.raises(InputError, match=message):
        FreezeRecipe(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"batch": 0}, "or more"), ({"patience": 0}, "or more"), ({"rate": -1.0}, "above 0"), ({"epochs": -1}, "or more")],
)
def test_invalid_schedule_fails(settings, message):
    with pytest.raises(InputError, match=message):
        Schedule(**settings)


def test_setting_outside_its_table_fails_with_the_full_name():
    with pytest.raises(InputError, match=r"Did you mean .*training\.epochs"):
        from_table(FreezeRecipe, {"epochs": 2})


# --- training -------------------------------------------------------------------------------------------------------


def test_backbone_is_bit_identical_after_training(backbone, training):
    model = backbone("tiny-llama").model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    training(pretrain="autoencoder").run(0)
    assert equal_states(before, model.state_dict())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in model.parameters())


def test_run_is_reproducible_from_its_seed(training):
    first = training(dropout=0.1, noise=0.05).run(3)
    torch.manual_seed(99)
    second = training(dropout=0.1, noise=0.05).run(3)
    assert equal_states(net_state(first), net_state(second))
    assert (first.dev, first.test, first.checks) == (second.dev, second.test, second.checks)
    assert first.notes == second.notes
    assert not equal_states(net_state(first), net_state(training(dropout=0.1, noise=0.05).run(4)))


def test_seeds_run_one_after_another_are_independent(training):
    trainer = training()
    trainer.run(0)
    assert equal_states(net_state(trainer.run(1)), net_state(training().run(1)))


def test_toy_task_is_learned(training, data):
    """Evaluated on the training pairs: the loss falls and the score rises."""
    data = replace(data, dev=(replace(data.train, name="dev"),))
    schedule = Schedule(epochs=25, batch=16, rate=3e-3, patience=25)
    history = training(data=data, training=schedule).run(0).notes["training"]
    assert history["losses"][-1] < 0.3 * history["losses"][0]
    assert history["scores"][-1] > history["start"] + 20


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head": "gated"},
        {"head": "mlp"},
        {"head": "each"},
        {"shortcut": True},
        {"hidden": 0},
        {"depth": 3},
        {"widths": (0,), "head": "mlp"},
        {"mixing": "unified", "mixed_width": 10, "hidden": 0},
        {"mixing": "attention_codes", "mixed_width": 3, "widths": (8,)},
        {"mixing": "attention_latents", "mixed_width": 3, "widths": (8,)},
    ],
    ids=str,
)
def test_every_trained_parameter_gets_a_gradient(changes, training, monkeypatch):
    has_gradient, real_step = {}, torch.optim.AdamW.step

    def step(optimizer, *args, **kwargs):
        for index, parameter in enumerate(optimizer.param_groups[0]["params"]):
            assert parameter.grad is not None
            has_gradient[index] = has_gradient.get(index, False) or bool(parameter.grad.abs().sum() > 0)
        return real_step(optimizer, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    result = training(loss="log_variance", **changes).run(0)
    assert len(has_gradient) > 0
    single_block = changes.get("mixing") == "unified"  # the weight of a single block is always 1
    assert list(has_gradient.values()).count(False) == (1 if single_block else 0)
    assert np.isfinite(result.dev["dev"]["pearson"])


@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_latents_that_are_not_finite_fail(part, training, data, monkeypatch):
    pairs = data.train if part == "train" else getattr(data, part)[0]
    text, read_into = pairs.left[4], Store.read_into
    locations = {}

    def read_nan_for_text(store, out, positions, columns):
        read_into(store, out, positions, columns)
        locations.setdefault(id(store), tuple(store.positions([text_key(text)])[0]))
        out[:, (positions == locations[id(store)]).all(axis=1)] = np.nan

    monkeypatch.setattr(Store, "read_into", read_nan_for_text)
    with pytest.raises(EncoderError, match=f"latents of '{text}' are not finite; run `d2v doctor`"):
        training()


# --- selection of readings ------------------------------------------------------------------------------------------


def test_head_each_keeps_the_layer_best_on_dev(training):
    result = training(head="each").run(0)
    context, history = result.model, result.notes["training"]
    assert len(context.readings) == len(result.notes["kept"]) == 1
    assert (context.net.spec.head, context.table.shape[0]) == ("sum", 1)
    assert context.head.dim == context.net.spec.widths[0]
    assert max(history["scores"] + [history["start"]]) > 0 and result.dev["dev"]["pearson"] > 0


def test_best_layer_by_raw_cosines_equals_a_loop(training, data):
    """Nothing is trained."""
    dev = data.dev[0]
    trainer = training(
        data=TrainingData(None, data.dev, data.test), widths=(0,), head="each", loss="none", choose_by="spearman"
    )
    result, table = trainer.run(0), trainer.corpus.table
    left, right = (table.batch(table.rows(texts)).numpy() for texts in (dev.left, dev.right))
    cosines = (left * right).sum(-1) / np.linalg.norm(left, axis=-1) / np.linalg.norm(right, axis=-1)
    by_layer = [stats.spearmanr(row, dev.scores).statistic for row in cosines]
    assert result.model.readings[0].layer == 1 + int(np.argmax(by_layer))
    assert result.dev["dev"]["spearman"] == pytest.approx(100 * max(by_layer), abs=0.3)


def test_readings_with_largest_weights_are_kept_in_order(training):
    whole = training().run(0)
    selected = training(keep=2).run(0)
    weights = whole.model.net.pair.weights().numpy()
    best = sorted(np.argsort(-weights)[:2].tolist())
    readings, widths = whole.model.readings, whole.model.net.spec.widths
    assert selected.model.readings == tuple(readings[index] for index in best)
    assert selected.notes["kept"] == [str(readings[index]) for index in best]
    assert selected.model.net.spec.widths == tuple(widths[index] for index in best)
    assert selected.notes["training after selection"]["scores"]
