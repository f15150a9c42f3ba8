"""The recipe's choices: which layers, how wide, and what does not go together."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from decoder2vec.config import Reading, from_table
from decoder2vec.errors import InputError
from decoder2vec.text.template import Template
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.freeze import FreezeRecipe, Source, layer_numbers


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
def test_layers_are_numbers_or_parts_of_the_depth(layers, depth, expected):
    assert layer_numbers(layers, depth) == expected


@pytest.mark.parametrize("layers", [(5,), (-6,), (), "5:6", "3:2", "0.5:1.5", "-3:-1"])
def test_layers_a_model_does_not_have_are_refused(layers):
    with pytest.raises(InputError, match="not within 0 to 4"):
        layer_numbers(layers, 4)


@pytest.mark.parametrize("layers", ["upper", "5", "1:2:3", ":", "1:", "a:b", ""])
def test_an_expression_that_is_none_is_refused_with_examples(layers):
    with pytest.raises(InputError, match=r'"20:30" or "0\.67:1\.0"'):
        layer_numbers(layers, 30)


def test_a_source_reads_its_layers_under_its_own_prompt():
    found = Source("prompteol", "mean", (1, -1), normed=True).readings(6)
    prompt = Template.of("prompteol").string
    assert found == [Reading(1, "mean", True, prompt), Reading(6, "mean", True, prompt)]


MODEL = SimpleNamespace(n_layers=6, dim=40)


def test_by_default_the_last_token_is_read_after_every_block():
    readings = FreezeRecipe().readings(MODEL)
    assert [reading.layer for reading in readings] == [1, 2, 3, 4, 5, 6]
    assert {(reading.pooling, reading.normed) for reading in readings} == {("lasttoken", False)}


def test_widths_are_spread_over_each_source_by_itself():
    recipe = FreezeRecipe(latents=(Source(layers="1:5"), Source(pooling="mean", layers="5:6")), widths=(8, 16))
    assert [reading.layer for reading in recipe.readings(MODEL)] == [1, 2, 3, 4, 5, 5, 6]
    assert recipe.codes(MODEL).widths == (8, 8, 8, 16, 16, 8, 16)


@pytest.mark.parametrize(
    "latents",
    [
        (Source(layers=(2, 2, 3)),),
        (Source(layers=(6, -1)),),
        (Source(layers="1:4"), Source(layers="3:6")),
        (Source(), Source()),
    ],
)
def test_what_is_named_twice_is_read_once_and_has_one_code(latents):
    recipe = FreezeRecipe(latents=latents)
    readings = recipe.readings(MODEL)
    assert len(set(readings)) == len(readings) == len(recipe.codes(MODEL).widths)


def test_a_recipe_that_reads_nothing_is_refused():
    with pytest.raises(InputError, match="reads nothing"):
        FreezeRecipe(latents=()).readings(MODEL)


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
def test_widths_are_absolute_or_fractions_of_the_models(widths, expected):
    assert FreezeRecipe(widths=widths, pretrain="none").codes(MODEL).widths == expected


@pytest.mark.parametrize(("hidden", "expected"), [(0.5, 20), (64, 64), (0, 0), (0.0, 0), (1.0, 40), (0.001, 1)])
def test_the_hidden_layer_is_absolute_or_a_fraction_and_none_at_zero(hidden, expected):
    assert FreezeRecipe(hidden=hidden).codes(MODEL).hidden == expected


def test_the_papers_widths_on_gpt2_medium():
    spec = FreezeRecipe().codes_of([24], 1024)
    assert spec.widths == (256,) * 12 + (512,) * 12
    assert (spec.hidden, spec.head, spec.mixing) == (512, "mlp", "none")


def test_every_choice_about_the_network_reaches_it():
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
    spec = recipe.codes(MODEL)
    assert (spec.dim, spec.depth, spec.shortcut, spec.mixing, spec.mixed_width) == (40, 3, True, "unified", 11)
    assert (spec.head, spec.unit, spec.dropout, spec.noise) == ("gated", True, 0.2, 0.3)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"loss": "none"}, "only contrastive pre-training"),
        ({"loss": "none", "pretrain": "none"}, "only contrastive pre-training"),
        ({"loss": "none", "pretrain": "autoencoder", "widths": (0,)}, "only contrastive pre-training"),
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
def test_choices_that_do_not_go_together_are_refused(choices, message):
    with pytest.raises(InputError, match=message):
        FreezeRecipe(**choices)


@pytest.mark.parametrize(
    "choices",
    [
        {"loss": "none", "pretrain": "contrastive", "head": "sum"},
        {"loss": "none", "pretrain": "none", "widths": (0,), "head": "each"},
        {"mixing": "attention_codes", "mixed_width": 4, "pretrain": "none", "widths": (8,)},
        {"mixing": "unified", "mixed_width": 4, "head": "sum", "dim": 2},
        {"keep": 3, "head": "sum", "dim": 64},
    ],
)
def test_choices_that_do_go_together_are_taken(choices):
    assert FreezeRecipe(**choices).codes(MODEL).dim == 40


@pytest.mark.parametrize(
    ("choices", "hint"),
    [
        ({"pretrain": "autoencoders"}, "Did you mean autoencoder"),
        ({"loss": "pearsons"}, "Did you mean pearson"),
        ({"choose_by": "spearmen"}, "Did you mean spearman"),
        ({"changes": ("case", "word")}, "Did you mean words"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(choices, hint):
    with pytest.raises(InputError, match=hint):
        FreezeRecipe(**choices)


@pytest.mark.parametrize(
    ("choices", "hint"),
    [({"mixing": "unify"}, "unified"), ({"head": "some"}, "sum"), ({"mixing": "unified"}, "mixed_width")],
)
def test_a_network_that_cannot_be_is_refused_when_it_is_asked_for(choices, hint):
    with pytest.raises(InputError, match=hint):
        FreezeRecipe(**choices).codes(MODEL)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"dropout": 1.0}, "dropout"),
        ({"keep": -1, "head": "sum"}, "0 or more"),
        ({"widths": (0,), "pretrain": "snli"}, "nothing to pre-train"),
        ({"head": "best"}, "head"),
        ({"mixing": "stir"}, "mixing"),
    ],
)
def test_values_that_cannot_work_are_refused_at_once(choices, words):
    with pytest.raises(InputError, match=words):
        FreezeRecipe(**choices)


@pytest.mark.parametrize("choices", [{"batch": 0}, {"patience": 0}, {"rate": -1.0}, {"epochs": -1}])
def test_a_schedule_that_cannot_run_is_refused(choices):
    with pytest.raises(InputError, match="or more"):
        Schedule(**choices)


def test_a_setting_given_without_its_part_is_found():
    with pytest.raises(InputError, match=r"Did you mean .*training\.epochs"):
        from_table(FreezeRecipe, {"epochs": 2})
