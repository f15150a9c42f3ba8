"""Plans: recipes and their settings, TOML files with stages, variants and bases, and mistakes in all of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from decoder2vec.config import from_table
from decoder2vec.errors import InputError, UnknownNameError
from decoder2vec.training.data import DataFiles
from decoder2vec.training.objectives import OBJECTIVES, objective_config
from decoder2vec.training.objectives.contrastive import ContrastiveConfig
from decoder2vec.training.objectives.mntp import MNTPConfig
from decoder2vec.training.objectives.scores import ScoresConfig
from decoder2vec.training.plan import Plan, Stage, load_plan, read_variants
from decoder2vec.training.recipes import recipe_class, recipes
from decoder2vec.training.recipes.freeze import EMBEDDING, FreezeRecipe, LatentSource
from decoder2vec.training.recipes.lora import LoraRecipe
from toys.texts import plain_data
from toys.training import small_recipe

ROOT = Path(__file__).parents[2]
PLANS = {
    study: {
        name: file for file in sorted((ROOT / "experiments" / study).glob("*.toml")) for name in read_variants(file)
    }
    for study in ("freeze", "spt", "llm2vec", "masking")
}
"""By study: the file of each plan, by the name of its variant."""
SPT_PLANS = {name: file for name, file in PLANS["spt"].items() if not name.startswith("bi_")}
STAGED_PLANS = {name: file for name, file in PLANS["spt"].items() if name.startswith("bi_")} | PLANS["llm2vec"]
RESULT_FILES = sorted(
    file for study in ("freeze", "spt", "llm2vec", "masking") for file in (ROOT / "results" / study).rglob("*.json")
)

FREEZE = """
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

STAGES = """
name = "both"
about = "Two stages."

[data]
texts = "all.txt"
dev = ["dev.tsv"]

[[stages]]
name = "mntp"
recipe = "lora"
lora = {rank = 4, attention = "bidirectional", objective = {name = "mntp"}, training = {steps = 3}}

[[stages]]
name = "simcse"
recipe = "lora"
lora = {rank = 4, attention = "bidirectional", objective = {name = "simcse"}, training = {steps = 3}}
"""


@pytest.fixture
def write(tmp_path):
    """write(name, text) -> the file, in folders that are made where needed."""

    def write(name, text):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write


@pytest.fixture
def file(write):
    return write("mine.toml", FREEZE)


@pytest.fixture
def staged_file(write):
    return write("plan.toml", STAGES)


def load_stage(source=None, settings=(), **options):
    """The stage of a plan that has only one."""
    (stage,) = load_plan(source, settings, **options).stages
    return stage


# --- plans of one stage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [None, "freeze"])
def test_the_default_plan_is_freeze_as_an_embedding(source):
    assert load_plan(source) == Plan("embedding", (Stage("embedding", EMBEDDING, DataFiles()),))


@pytest.mark.parametrize("name", [name for name in recipes() if name != "freeze"])
def test_a_recipe_name_is_a_plan_with_its_defaults(name):
    assert load_plan(name) == Plan.of(recipe_class(name)())


def test_settings_change_a_recipe_that_is_named():
    stage = load_stage("soft_prompt", ["tokens=3", "training.epochs=7", 'objective.name="cosent"'])
    assert (stage.recipe.name, stage.recipe.tokens, stage.recipe.training.epochs) == ("soft_prompt", 3, 7)
    assert stage.recipe.training.rate == 1e-2, "the rest of the schedule is the recipe's default"
    assert stage.recipe.needs() == ["pairs"] and load_stage("lora").recipe.needs() == ["contrastive"]


def test_a_recipe_object_is_a_plan_of_one_stage():
    recipe = small_recipe("lora", rank=3)
    assert load_plan(recipe) == Plan("lora", (Stage("lora", recipe),))
    changed = load_stage(recipe, ["rank=5", "data.train=x.tsv"])
    assert changed == Stage("lora", replace(recipe, rank=5), DataFiles(train="x.tsv"))


def test_a_plan_object_is_returned_unless_settings_change_it():
    plan = Plan.of(small_recipe("lora"), "mine", DataFiles(triplets="t.tsv"))
    assert load_plan(plan) is plan
    changed = load_plan(plan, ["rank=5"])
    assert changed == Plan.of(small_recipe("lora", rank=5), "mine", DataFiles(triplets="t.tsv"))


def test_a_recipe_that_is_not_registered_can_be_trained():
    class OwnRecipe(LoraRecipe):
        name = "my_recipe"

    assert load_stage(OwnRecipe(rank=3)).recipe == OwnRecipe(rank=3)


def test_settings_of_a_file_replace_the_defaults(file):
    plan = load_plan(file)
    assert (plan.name, plan.about) == ("mine", "A plan.")
    stage = plan.stages[0]
    assert stage.recipe.widths == (8, 0.5) and stage.recipe.head == "sum"
    assert stage.recipe.latents == (
        LatentSource("prompteol", "lasttoken", (1, -1)),
        LatentSource("plain", "mean", "0.5:1.0"),
    )
    assert (stage.recipe.training.epochs, stage.recipe.training.batch) == (3, FreezeRecipe().training.batch)
    assert stage.recipe.loss == FreezeRecipe().loss
    assert stage.data.dev == ("a.tsv", "b.tsv")
    assert stage.search == {"hidden": [4, 64]}
    assert load_plan(str(file)) == plan


@pytest.mark.parametrize(
    ("setting", "get", "expected"),
    [
        ("loss=mse", lambda stage: stage.recipe.loss, "mse"),
        ("freeze.loss=mse", lambda stage: stage.recipe.loss, "mse"),
        ("training.epochs=7", lambda stage: stage.recipe.training.epochs, 7),
        ("training.rate=1e-2", lambda stage: stage.recipe.training.rate, 0.01),
        ("freeze.pretraining.batch=9", lambda stage: stage.recipe.pretraining.batch, 9),
        ("widths=[4]", lambda stage: stage.recipe.widths, (4,)),
        ('changes=["case"]', lambda stage: stage.recipe.changes, ("case",)),
        ("standardise=true", lambda stage: stage.recipe.standardise, True),
        ("noise=1", lambda stage: stage.recipe.noise, 1.0),
        ("data.train=x.tsv", lambda stage: stage.data.train, "x.tsv"),
        ("data.scale=[0, 4]", lambda stage: stage.data.scale, (0.0, 4.0)),
    ],
)
def test_settings_take_precedence_over_the_file(setting, get, expected, file):
    assert get(load_stage(file, [setting])) == expected
    assert load_stage(file, [setting]).recipe.latents == load_stage(file).recipe.latents


def test_the_last_of_two_equal_settings_counts(file):
    stage = load_stage(file, ["loss=mse", "loss=pearson", "data.train=x.tsv"])
    assert (stage.recipe.loss, stage.data.train, stage.data.dev) == ("pearson", "x.tsv", ("a.tsv", "b.tsv"))


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
        ("name = 3", "name must be a text, not 3"),
        ("about = 3", "about must be a text, not 3"),
        ("recipe = 3", "Unknown recipe 3"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(text, message, write):
    with pytest.raises(InputError, match=message):
        load_plan(write("plan.toml", text))


@pytest.mark.parametrize("setting", ["loss", "loss=mes", "los=mse", "training.epochs=x", "training.epochs.x=3"])
def test_a_mistake_in_a_setting_raises(setting, file):
    with pytest.raises(InputError):
        load_plan(file, [setting])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"Cannot read the plan .*none\.toml"):
        load_plan(tmp_path / "none.toml")


def test_an_unknown_recipe_is_named():
    with pytest.raises(UnknownNameError, match=r"Unknown recipe 'bidirectonal'\. Did you mean bidirectional"):
        load_plan("bidirectonal")


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        (["pretrain=none"], ["pairs"]),
        (["pretrain=autoencoder"], ["pairs", "texts"]),
        (["pretrain=snli"], ["pairs", "nli"]),
        (["pretrain=contrastive"], ["pairs", "triplets"]),
        (["pretrain=contrastive", "loss=none", "head=sum"], ["triplets"]),
        (["pretrain=none", "loss=none", "widths=[0]", "head=each"], []),
    ],
)
def test_settings_determine_which_data_are_needed(settings, needs):
    assert load_stage(None, settings).recipe.needs() == needs


def test_a_stage_as_json_is_complete_and_can_be_read(file, write):
    stage = load_stage(file)
    document = json.loads(json.dumps(stage.to_json()))
    assert document.keys() - {"search"} == {"name", "about", "recipe", "freeze", "data"}
    assert document.get("search", {}) == stage.search
    assert from_table(FreezeRecipe, document["freeze"]) == stage.recipe
    assert from_table(DataFiles, document["data"]) == stage.data


# --- objectives -----------------------------------------------------------------------------------------------------

ALL_SETTINGS = {
    "temperature": 0.05,
    "symmetric": False,
    "dims": [],
    "dropout": 0.3,
    "masking": {"rate": 0.2, "style": "mask", "fill": "none", "token": ""},
}
"""The objective table of version 0.1: settings of all objectives, at their defaults."""


def test_the_name_of_an_objective_chooses_its_settings(write):
    table = '[lora.objective]\nname = "mntp"\nmasking = {rate = 0.4}'
    stage = load_stage(write("plan.toml", f'recipe = "lora"\n{table}'))
    assert isinstance(stage.recipe.objective, MNTPConfig) and stage.recipe.objective.masking.rate == 0.4
    assert isinstance(load_stage("lora").recipe.objective, ContrastiveConfig)
    assert load_stage("lora", ["objective.name=angle"]).recipe.objective == ScoresConfig("angle")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_defaults_of_other_objectives_are_ignored(name):
    """Result files of earlier versions list all of them."""
    assert objective_config({"name": name, **ALL_SETTINGS}) == objective_config({"name": name})


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        ("info_nce", {"dropout": 0.2}, r"Unknown setting in \[objective\] 'dropout'"),
        ("info_nce", {"masking": {"rate": 0.3}}, r"Unknown setting in \[objective\] 'masking'"),
        ("cosent", {"temperature": 0.1}, r"Unknown setting in \[objective\] 'temperature'"),
        ("mntp", {"symmetric": True}, r"Unknown setting in \[objective\] 'symmetric'"),
        ("simcse", {"loss": "mse"}, r"Unknown setting in \[objective\] 'loss'"),
        ("simcse", {"temprature": 0.05}, r"'temprature'\. Did you mean temperature"),
    ],
)
def test_other_settings_of_other_objectives_raise(name, setting, message):
    with pytest.raises(InputError, match=message):
        objective_config({"name": name, **ALL_SETTINGS, **setting})


def test_an_unknown_objective_is_named():
    with pytest.raises(UnknownNameError, match=r"Unknown objective 'simsce'\. Did you mean simcse"):
        load_plan("lora", ["objective.name=simsce"])


def test_the_settings_of_all_stored_results_can_be_read():
    """Every results file can be trained again, whichever version wrote it."""
    n_read = 0
    for file in RESULT_FILES:
        config = json.loads(file.read_text()).get("config", {})
        if isinstance(config, dict) and "data" in config:
            recipe = config.get("recipe", "freeze")
            from_table(recipe_class(recipe), config[recipe], recipe)
            from_table(DataFiles, config["data"], "data")
            n_read += 1
    assert n_read > 100


@pytest.mark.parametrize("name", ["mntp", "simcse", "punctuation", "punctuation_lm", "info_nce"])
def test_many_repetitions_of_a_small_corpus_are_noted(name):
    """Where a text is an example: punctuation packs several into one, and info_nce learns from no plain texts."""
    settings = [f"objective.name={name}", "attention=bidirectional", "training.steps=1000", "training.batch=8"]
    notes = load_stage("lora", settings).recipe.data_notes(plain_data(tuple(map(str, range(100)))))
    expected = "1000 steps of 8 see each of 100 examples 80 times; --set training.steps=250 would see it 20 times"
    assert notes == ([expected] if name in ("mntp", "simcse") else [])


# --- plans of several stages ----------------------------------------------------------------------------------------


def test_bidirectional_has_two_stages_on_plain_texts():
    plan = load_plan("bidirectional")
    assert plan.name == "bidirectional" and [stage.name for stage in plan.stages] == ["mntp", "simcse"]
    for stage in plan.stages:
        assert stage.recipe.needs() == ["corpus"] and stage.recipe.attention == "bidirectional"


def test_data_beside_the_stages_hold_for_stages_without_their_own(write):
    file = write("plan.toml", STAGES + 'data = {texts = "own.txt"}\n')
    plan = load_plan(file, ["mntp.data.concepts=words.txt"])
    assert (plan.name, plan.about) == ("both", "Two stages.")
    first, second = (stage.data for stage in plan.stages)
    assert (first.texts, first.concepts) == ("all.txt", "words.txt")
    assert (second.texts, second.concepts) == ("own.txt", "")
    assert first.dev == second.dev == ("dev.tsv",)
    assert load_plan(file).stages[0].data.concepts == "", "settings change the file's tables for one call only"


def test_settings_change_the_stage_they_name(staged_file):
    settings = ["mntp.training.steps=7", "simcse.lora.rank=2", "mntp.objective.masking.rate=0.3"]
    first, second = (stage.recipe for stage in load_plan(staged_file, settings).stages)
    assert (first.training.steps, second.training.steps) == (7, 3)
    assert (first.rank, second.rank) == (4, 2)
    assert (first.objective.masking.rate, second.objective.name) == (0.3, "simcse")
    assert load_plan(load_plan(staged_file), settings) == load_plan(staged_file, settings)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.steps=3", "--set training.steps=3 must begin with the name of a stage: mntp, simcse"),
        ("mntp=3", "--set mntp=3 names a stage but no setting of it: mntp.training.steps=3"),
        ("mntp.nonsense=3", r"Unknown setting in \[lora\] 'nonsense'"),
    ],
)
def test_a_setting_without_stage_or_name_raises(setting, message, staged_file):
    with pytest.raises(InputError, match=message):
        load_plan(staged_file, [setting], stages=["simcse"])


def test_stages_are_selected_by_name_and_keep_their_order(staged_file):
    def names(*stages):
        return [stage.name for stage in load_plan(staged_file, stages=stages).stages]

    assert names() == names("simcse", "mntp") == ["mntp", "simcse"]
    assert names("simcse") == ["simcse"]
    with pytest.raises(UnknownNameError, match=r"Unknown stage 'simsce'.* Did you mean simcse"):
        names("simsce")
    with pytest.raises(InputError, match="--stages 'mntp' chooses among the stages of a plan, and this one has none"):
        load_plan("lora", stages=["mntp"])


BAD_STAGES = {
    "no name": ('[[stages]]\nrecipe = "lora"', r"stages is a list of tables, \[\[stages\]\], each with a name"),
    "empty name": ('[[stages]]\nname = ""', "each with a name of its own"),
    "repeated name": ('[[stages]]\nname = "a"\n[[stages]]\nname = "a"', "each with a name of its own"),
    "number as name": ("[[stages]]\nname = 3", "each with a name of its own"),
    "list as name": ('[[stages]]\nname = ["a"]', "each with a name of its own"),
    "path as name": ('[[stages]]\nname = "../a"', "made of letters, digits, - and _"),
    "name with a dot": ('[[stages]]\nname = "a.b"', "made of letters, digits, - and _"),
    "a table": ('[stages]\nname = "a"', "stages is a list of tables"),
    "a text": ('stages = "mntp"', "stages is a list of tables"),
    "a list of texts": ('stages = ["mntp"]', "stages is a list of tables"),
    "an empty list": ("stages = []", "The plan has no stage to train"),
    "data not a table": ('data = 3\n[[stages]]\nname = "a"', "data must be a table, not 3"),
    "data of a stage not a table": ('[[stages]]\nname = "a"\ndata = "x.txt"', "data must be a table, not 'x.txt'"),
    "setting of no stage": ('recipe = "lora"\n[[stages]]\nname = "a"', "Unknown setting beside the stages"),
}


@pytest.mark.parametrize(("text", "message"), BAD_STAGES.values(), ids=BAD_STAGES)
def test_a_mistake_in_the_stages_is_one_sentence(text, message, write):
    with pytest.raises(InputError, match=message):
        load_plan(write("plan.toml", text))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "The plan has no stage to train"),
        (["a", "a"], "Stages need different names of letters, digits, - and _, not a, a"),
        (["a", "../b"], r"Stages need different names .*, not a, \.\./b"),
    ],
)
def test_a_plan_object_needs_stages_with_different_names(names, message):
    with pytest.raises(InputError, match=message):
        Plan("mine", tuple(Stage(name, EMBEDDING) for name in names))


# --- files that extend others ---------------------------------------------------------------------------------------


def test_a_file_extends_another_by_its_relative_path(write):
    write("bases/base.toml", FREEZE)
    text = 'extends = "../bases/base.toml"\n[freeze]\nhead = "mlp"\ntraining = {batch = 9}\n[data]\ntrain = "x.tsv"\n'
    plan = load_plan(write("plans/mine.toml", text))
    base = load_stage(write("base.toml", FREEZE))
    recipe = base.recipe
    assert plan.name == "mine" and plan.about == "A plan."
    assert plan.stages[0].recipe == replace(recipe, head="mlp", training=replace(recipe.training, batch=9))
    assert plan.stages[0].data == replace(base.data, train="x.tsv")
    assert plan.stages[0].search == base.search


def test_extends_may_be_chained(write):
    write("first.toml", FREEZE)
    write("second.toml", 'extends = "first.toml"\nfreeze = {head = "mlp", hidden = 9}')
    stage = load_stage(write("third.toml", 'extends = "second.toml"\nfreeze = {hidden = 10}'))
    assert (stage.recipe.widths, stage.recipe.head, stage.recipe.hidden) == ((8, 0.5), "mlp", 10)


def test_lists_of_the_base_are_replaced(write):
    write("base.toml", FREEZE)
    stage = load_stage(write("mine.toml", 'extends = "base.toml"\ndata = {dev = ["c.tsv"]}'))
    assert stage.data.dev == ("c.tsv",)


def test_a_file_changes_stages_of_its_base_by_name(write):
    write("base.toml", STAGES)
    text = (
        'extends = "base.toml"\n[stages.simcse]\nlora = {rank = 2, training = {batch = 5}}\ndata = {texts = "own.txt"}'
    )
    first, second = load_plan(write("mine.toml", text)).stages
    assert [stage.recipe.rank for stage in (first, second)] == [4, 2]
    assert (second.recipe.training.steps, second.recipe.training.batch) == (3, 5)
    assert [stage.data.texts for stage in (first, second)] == ["all.txt", "own.txt"]


def test_a_file_may_replace_all_stages_of_its_base(write):
    write("base.toml", STAGES)
    text = 'extends = "base.toml"\n[[stages]]\nname = "only"\nrecipe = "full"'
    plan = load_plan(write("mine.toml", text))
    assert [(stage.name, stage.recipe.name, stage.data.texts) for stage in plan.stages] == [("only", "full", "all.txt")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('extends = "none.toml"', r"Cannot read the plan .*none\.toml"),
        ("extends = 3", r"extends in .*mine\.toml must be the name of a file, not 3"),
        ('extends = "mine.toml"', r"mine\.toml extends mine\.toml, and so on without end"),
        ('extends = "other.toml"', r"extends .*, and so on without end; remove one of the `extends`"),
        ('extends = "base.toml"\n[stages.simsce]\nrecipe = "full"', "Unknown stage 'simsce'. Did you mean simcse"),
    ],
    ids=["missing file", "not a text", "itself", "a circle", "unknown stage"],
)
def test_a_base_that_cannot_be_used_is_one_sentence(text, message, write):
    write("base.toml", STAGES)
    write("other.toml", 'extends = "mine.toml"')
    with pytest.raises(InputError, match=message) as error:
        load_plan(write("mine.toml", text))
    assert len(str(error.value).splitlines()) == 1


# --- files with several variants ------------------------------------------------------------------------------------

MATRIX = (
    FREEZE
    + """
[matrix.head]
sum = {freeze = {head = "sum"}}
mlp = {freeze = {head = "mlp"}, about = "With an MLP."}

[matrix.size]
small = {freeze = {widths = [4], training = {rate = 0.5}}}
"" = {}
"""
)


def test_variants_are_named_after_their_values(write):
    file = write("many.toml", MATRIX)
    assert list(read_variants(file)) == ["sum_small", "sum", "mlp_small", "mlp"]
    stages = {name: load_stage(file, variant=name) for name in read_variants(file)}
    assert [stage.name for stage in stages.values()] == list(stages)
    assert [stage.recipe.head for stage in stages.values()] == ["sum", "sum", "mlp", "mlp"]
    assert [stage.recipe.widths for stage in stages.values()] == [(4,), (8, 0.5)] * 2
    assert [stage.about for stage in stages.values()] == ["A plan."] * 2 + ["With an MLP."] * 2
    training = stages["mlp_small"].recipe.training
    assert (training.epochs, training.rate) == (3, 0.5), "tables are merged, not replaced"


def test_settings_take_precedence_over_the_variant(write):
    file = write("many.toml", MATRIX)
    stage = load_stage(file, ["head=gated", "training.epochs=9"], variant="mlp_small")
    assert (stage.recipe.head, stage.recipe.training.epochs, stage.recipe.widths) == ("gated", 9, (4,))


def test_variants_change_stages_by_name(write):
    matrix = "[matrix.length]\nshort = {}\nlong = {stages = {mntp = {lora = {training = {steps = 500}}}}}\n"
    file = write("many.toml", STAGES + matrix)
    steps = {
        variant: [stage.recipe.training.steps for stage in load_plan(file, variant=variant).stages]
        for variant in read_variants(file)
    }
    assert steps == {"short": [3, 3], "long": [500, 3]}
    assert load_plan(file, ["simcse.lora.rank=2"], variant="long", stages=["simcse"]).stages[0].recipe.rank == 2


def test_variants_of_a_base_are_inherited(write):
    write("base.toml", MATRIX)
    file = write(
        "mine.toml", 'extends = "base.toml"\nfreeze = {loss = "mse"}\n[matrix.size.wide.freeze]\nwidths = [64]'
    )
    assert list(read_variants(file)) == ["sum_small", "sum", "sum_wide", "mlp_small", "mlp", "mlp_wide"]
    stage = load_stage(file, variant="mlp_wide")
    assert (stage.recipe.head, stage.recipe.widths, stage.recipe.loss) == ("mlp", (64,), "mse")


def test_a_file_with_one_variant_needs_no_choice(write):
    file = write("one.toml", FREEZE + '[matrix.head]\nmlp = {freeze = {head = "mlp"}}')
    assert load_plan(file) == load_plan(file, variant="mlp")
    assert (load_plan(file).name, load_stage(file).recipe.head) == ("mlp", "mlp")


def test_a_file_without_a_matrix_is_its_only_variant(file):
    assert list(read_variants(file)) == ["mine"]
    assert load_plan(file, variant="mine") == load_plan(file)


def test_a_file_with_several_variants_needs_a_choice(write):
    file = write("many.toml", MATRIX)
    with pytest.raises(
        InputError, match="describes 4 plans; choose one with --variant: sum_small, sum, mlp_small, mlp"
    ):
        load_plan(file)
    with pytest.raises(UnknownNameError, match=r"Unknown variant 'mlp_smal'\. Did you mean mlp_small"):
        load_plan(file, variant="mlp_smal")


@pytest.mark.parametrize(
    "source", [None, "lora", small_recipe("lora"), Plan.of(EMBEDDING)], ids=lambda x: type(x).__name__
)
def test_a_variant_without_a_file_raises(source):
    with pytest.raises(InputError, match="--variant x chooses among the plans of a file; give the file"):
        load_plan(source, variant="x")


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ("matrix = 3", r"\[matrix\] of .* needs tables of named values"),
        ("matrix = {}", r"\[matrix\] of .* needs tables of named values"),
        ("[matrix]\nrank = [1, 2]", r"\[matrix\] of .* needs tables of named values"),
        ("[matrix.rank]", r"\[matrix\] of .* needs tables of named values"),
        ("[matrix.rank]\nlow = 8", r"'low' in \[matrix\] of .* must be a table of settings, not 8"),
        ('[matrix.a]\nx = {}\n"" = {}\n[matrix.b]\nx = {}\n"" = {}', "have the name 'x'"),
        ("[matrix.rank.low.stages.mtnp]\nrecipe = 'full'", "Unknown stage 'mtnp'. Did you mean mntp"),
    ],
)
def test_a_mistake_in_a_matrix_is_one_sentence(matrix, message, write):
    text = f"{matrix}\n{STAGES}" if matrix.startswith("matrix =") else STAGES + matrix
    with pytest.raises(InputError, match=message) as error:
        load_plan(write("plan.toml", text), variant="x")
    assert len(str(error.value).splitlines()) == 1


# --- the plans of our experiments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS["freeze"])
def test_every_freeze_plan_is_sound(name, backbone):
    stage = load_stage(PLANS["freeze"][name], variant=name)
    assert stage.name == name and stage.about.endswith(".") and len(stage.about) > 20
    assert stage.data.dev and stage.data.test
    assert set(stage.data.dev).isdisjoint(stage.data.test)
    model = backbone("tiny-llama")
    assert len(stage.recipe.code_spec(model).widths) == len(stage.recipe.readings(model))
    files = {"texts": stage.data.texts, "nli": stage.data.nli, "triplets": stage.data.triplets}
    assert {kind for kind, file in files.items() if file} == set(stage.recipe.needs()) - {"pairs"}, (
        "the files that are named are those that are used"
    )


@pytest.mark.parametrize("name", SPT_PLANS)
def test_every_plan_of_the_prompt_study_is_sound(name, backbone):
    stage = load_stage(SPT_PLANS[name], variant=name)
    assert stage.name == name and stage.about.endswith(".") and len(stage.about) > 20
    assert stage.data.dev and set(stage.data.dev).isdisjoint(stage.data.test)
    assert bool(stage.data.triplets) == (stage.recipe.needs() == ["contrastive"])
    model = backbone("tiny-llama", stage.recipe.attention)
    _, module = stage.recipe.adapt(model, model.n_layers)
    assert any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize("name", STAGED_PLANS)
def test_every_plan_with_stages_is_sound(name):
    plan = load_plan(STAGED_PLANS[name], variant=name)
    assert plan.stages
    for stage in plan.stages:
        assert stage.data.dev and set(stage.data.dev).isdisjoint(stage.data.test)
        assert set(stage.recipe.needs()) <= {"corpus", "contrastive"}
        assert stage.recipe.attention == "causal" or name.startswith("bi_")
    assert ("mntp" in [stage.name for stage in plan.stages]) == ("mntp" in name)


@pytest.mark.parametrize("name", PLANS["masking"])
def test_every_plan_of_the_masking_study_is_sound(name):
    stage = load_stage(PLANS["masking"][name], variant=name)
    assert stage.recipe.needs() == ["corpus"] and stage.recipe.attention == "bidirectional"
    assert bool(stage.data.concepts) == name.startswith("concepts")
    assert (stage.recipe.objective.name == "punctuation") == (name == "punctuation")


def test_every_plan_of_the_experiments_can_be_read():
    for file in (ROOT / "experiments").rglob("*.toml"):
        for variant in read_variants(file):
            assert load_plan(file, variant=variant).stages


def test_the_plans_of_both_papers_are_there():
    assert {f"soft_prompt_{k}" for k in (1, 2, 5, 10, 16, 20)} <= SPT_PLANS.keys()
    assert {f"step{n}" for n in range(6)} <= PLANS["freeze"].keys()
