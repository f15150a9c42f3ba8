"""Plans: TOML files, settings over them, and what goes wrong in both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decoder2vec.config import from_table
from decoder2vec.errors import InputError
from decoder2vec.training.api import read_stages, stage_plan
from decoder2vec.training.data import DataFiles
from decoder2vec.training.plan import Plan, read_plan
from decoder2vec.training.recipes.freeze import EMBEDDING, FreezeRecipe, Source
from toys.texts import plain_data

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PLANS = sorted((EXPERIMENTS / "freeze").glob("*.toml"))
SPT_PLANS = sorted(file for file in (EXPERIMENTS / "spt").glob("*.toml") if not file.stem.startswith("bi_"))
STAGED = sorted([*(EXPERIMENTS / "spt").glob("bi_*.toml"), *(EXPERIMENTS / "llm2vec").glob("*.toml")])
MASKING = sorted((EXPERIMENTS / "masking").glob("*.toml"))

TEXT = """
recipe = "freeze"
about = "A plan."

[freeze]
widths = [8, 0.5]
head = "sum"

[[freeze.latents]]
template = "prompteol"
layers = [1, -1]

[[freeze.latents]]
pooling = "mean"
layers = "0.5:1.0"

[freeze.training]
epochs = 3

[data]
dev = ["a.tsv", "b.tsv"]

[search]
hidden = [4, 64]
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.toml").write_text(TEXT)
    return tmp_path / "mine.toml"


def test_without_a_file_a_plan_is_the_recipes_defaults():
    assert read_plan(None) == Plan("embedding", "", EMBEDDING, DataFiles())


def test_a_file_is_read_over_the_defaults(file):
    plan = read_plan(file)
    assert (plan.name, plan.about) == ("mine", "A plan.")
    assert plan.recipe.widths == (8, 0.5) and plan.recipe.head == "sum"
    assert plan.recipe.latents == (Source("prompteol", "lasttoken", (1, -1)), Source("plain", "mean", "0.5:1.0"))
    assert (plan.recipe.training.epochs, plan.recipe.training.batch) == (3, FreezeRecipe().training.batch)
    assert plan.recipe.loss == FreezeRecipe().loss
    assert plan.data.dev == ("a.tsv", "b.tsv")
    assert plan.search == {"hidden": [4, 64]}


@pytest.mark.parametrize(
    ("setting", "look", "expected"),
    [
        ("loss=mse", lambda p: p.recipe.loss, "mse"),
        ("freeze.loss=mse", lambda p: p.recipe.loss, "mse"),
        ("training.epochs=7", lambda p: p.recipe.training.epochs, 7),
        ("training.rate=1e-2", lambda p: p.recipe.training.rate, 0.01),
        ("freeze.pretraining.batch=9", lambda p: p.recipe.pretraining.batch, 9),
        ("widths=[4]", lambda p: p.recipe.widths, (4,)),
        ('changes=["case"]', lambda p: p.recipe.changes, ("case",)),
        ("standardise=true", lambda p: p.recipe.standardise, True),
        ("noise=1", lambda p: p.recipe.noise, 1.0),
        ("data.train=x.tsv", lambda p: p.data.train, "x.tsv"),
        ("data.scale=[0, 4]", lambda p: p.data.scale, (0.0, 4.0)),
    ],
)
def test_settings_are_put_over_the_file(setting, look, expected, file):
    assert look(read_plan(file, [setting])) == expected
    assert read_plan(file, [setting]).recipe.latents == read_plan(file).recipe.latents


def test_the_last_of_two_settings_counts_and_files_given_count_most(file):
    plan = read_plan(file, ["loss=mse", "loss=pearson", "data.train=x.tsv"], {"train": "y.tsv"})
    assert (plan.recipe.loss, plan.data.train, plan.data.dev) == ("pearson", "y.tsv", ("a.tsv", "b.tsv"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("= 3", "Cannot read the plan"),
        ('recipe = "frieze"', r"Unknown recipe 'frieze'\. Did you mean freeze\?"),
        ("[freeze]\nlos = 'mse'", r"Unknown setting in \[freeze\] 'los'\. Did you mean loss"),
        ("[freeze]\nloss = 'mes'", r"Unknown loss 'mes'\. Did you mean mse\?"),
        ("[freeze]\nepochs = 3", r"Unknown setting in \[freeze\] 'epochs'"),
        ("[freeze]\nhead = 3", r"freeze\.head must be a text, not 3"),
        ("[freeze.training]\nepochs = 'many'", r"freeze\.training\.epochs must be a whole number"),
        ("[freeze]\ndropout = true", r"freeze\.dropout must be a number, not True"),
        ("[freeze]\ntraining = 3", r"freeze\.training must be a table"),
        ("data = 3", "data must be a table, not 3"),
        ("[dataa]\ntrain = 'x'", r"Unknown setting 'dataa'\. Did you mean data"),
        ("[data]\ntrian = 'x'", r"Unknown setting in \[data\] 'trian'\. Did you mean train"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(text, message, tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_plan(file)


@pytest.mark.parametrize("setting", ["loss", "loss=mes", "los=mse", "training.epochs=x", "training.epochs.x=3"])
def test_a_mistake_in_a_setting_is_refused(setting, file):
    with pytest.raises(InputError):
        read_plan(file, [setting])


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read the plan .*none\.toml"):
        read_plan(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("settings", "wants"),
    [
        (["pretrain=none"], ["pairs"]),
        (["pretrain=autoencoder"], ["pairs", "texts"]),
        (["pretrain=snli"], ["pairs", "nli"]),
        (["pretrain=contrastive"], ["pairs", "triplets"]),
        (["pretrain=contrastive", "loss=none", "head=sum"], ["triplets"]),
        (["pretrain=none", "loss=none", "widths=[0]", "head=each"], []),
    ],
)
def test_a_plan_says_which_data_it_wants(settings, wants):
    assert read_plan(None, settings).wants() == wants


def test_a_plan_as_json_says_everything_and_can_be_read_again(file):
    plan = read_plan(file)
    document = json.loads(json.dumps(plan.to_json()))
    assert document.keys() - {"search"} == {"name", "about", "recipe", "freeze", "data"}
    assert document.get("search", {}) == plan.search
    assert from_table(FreezeRecipe, document["freeze"]) == plan.recipe
    assert from_table(DataFiles, document["data"]) == plan.data


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_every_plan_of_the_paper_is_sound(plan, backbone):
    found = read_plan(plan)
    assert found.name == plan.stem and found.about.endswith(".") and len(found.about) > 20
    assert found.data.dev and found.data.test
    assert set(found.data.dev).isdisjoint(found.data.test)
    model = backbone("tiny-llama")
    spec = found.recipe.codes(model)
    assert len(spec.widths) == len(found.recipe.readings(model))
    files = {"texts": found.data.texts, "nli": found.data.nli, "triplets": found.data.triplets}
    assert {kind for kind, name in files.items() if name} == set(found.wants()) - {"pairs"}, (
        "files named are those used"
    )


@pytest.mark.parametrize("plan", SPT_PLANS, ids=lambda plan: plan.stem)
def test_every_plan_of_the_prompt_study_is_sound(plan, backbone):
    found = read_plan(plan)
    assert found.name == plan.stem and found.about.endswith(".") and len(found.about) > 20
    assert found.data.dev and set(found.data.dev).isdisjoint(found.data.test)
    assert bool(found.data.triplets) == (found.wants() == ["contrast"])
    model = backbone("tiny-llama", found.recipe.attention)
    _, trained = found.recipe.attach(model, model.n_layers)
    assert any(parameter.requires_grad for parameter in trained.parameters())


@pytest.mark.parametrize("plan", STAGED, ids=lambda plan: plan.stem)
def test_every_plan_with_stages_is_sound(plan):
    stages = read_stages(plan, None)
    assert stages
    for name, table in stages.items():
        found = stage_plan(name, table, [], {})
        assert found.data.dev and set(found.data.dev).isdisjoint(found.data.test)
        assert set(found.wants()) <= {"corpus", "contrast"}
        assert found.recipe.attention == "causal" or plan.stem.startswith("bi_")
    assert ("mntp" in stages) == ("mntp" in plan.stem)


@pytest.mark.parametrize("plan", MASKING, ids=lambda plan: plan.stem)
def test_every_plan_of_the_masking_study_is_sound(plan):
    found = read_plan(plan)
    assert found.wants() == ["corpus"] and found.recipe.attention == "bidirectional"
    assert bool(found.data.concepts) == plan.stem.startswith("concepts")
    assert (found.recipe.objective.name == "punctuation") == (plan.stem == "punctuation")


def test_the_plans_are_there():
    assert {f"soft_prompt_{k}" for k in (1, 2, 5, 10, 16, 20)} <= {plan.stem for plan in SPT_PLANS}
    assert {f"step{n}" for n in range(6)} <= {plan.stem for plan in PLANS}


@pytest.mark.parametrize("name", ["mntp", "simcse", "punctuation", "punctuation_lm", "info_nce"])
def test_how_often_texts_are_read_is_told_where_a_text_is_an_example(name):
    """Punctuation packs several into one, and pairs are no plain texts."""
    settings = [f"objective.name={name}", "attention=bidirectional", "training.steps=1000", "training.batch=8"]
    told = read_plan(None, settings, recipe="lora").notes(plain_data(tuple(map(str, range(100)))))
    expected = "1000 steps of 8 read each of 100 texts 80 times; training.steps=250 would read it 20 times"
    assert told == ([expected] if name in ("mntp", "simcse") else [])
