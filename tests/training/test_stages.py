"""Stages of one file: each on what the one before it made, none done twice, none lost when a run is killed."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, StorageError, UnknownNameError, UnsupportedError
from decoder2vec.export.base_model import load_base_model
from decoder2vec.text.concepts import ConceptSet
from decoder2vec.training import checkpoint, pipeline
from decoder2vec.training.api import Stage, chosen_stages, read_stages, run_stages, stage_plan
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.plan import plan_of
from toys.texts import plain_data, sentences
from toys.training import toy_examples, toy_pairs

TEXTS = ["The dog runs", "A long road goes over the green hills", ""]
SHORT = "epochs = 9\nsteps = {steps}\nbatch = 4\nrate = 1e-2\nevaluate_every = 1\npatience = 9"
STAGE = """
[[stages]]
name = "{name}"
recipe = "lora"
[stages.lora]
attention = "bidirectional"
rank = 4
[stages.lora.read]
pooling = "mean"
[stages.lora.objective]
name = "{name}"
[stages.lora.training]
"""
FILE = "".join(STAGE.format(name=name) + SHORT.format(steps=3) for name in ("mntp", "simcse"))


class Killed(Exception):
    pass


@pytest.fixture(autouse=True)
def own_notes(tmp_path, monkeypatch):
    """No test hears of the stages that another has done; whatever is done can be taken up at once."""
    monkeypatch.setattr(pipeline, "cache_root", lambda: tmp_path / "notes")
    monkeypatch.setattr(checkpoint, "_SAVE_EVERY", 0.0)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    file = tmp_path_factory.mktemp("plan") / "mine.toml"
    file.write_text(FILE)
    return read_stages(file, None)


@pytest.fixture(scope="module")
def stages(tables):
    """stages(*settings, data=..., **data of a stage by its name)"""

    def make(*settings, data=None, **others):
        plain = plain_data(sentences(24)) if data is None else data
        return [
            Stage(name, stage_plan(name, table, settings, {}), others.get(name, plain))
            for name, table in tables.items()
        ]

    return make


def run(stages, out, backbone="tiny-llama", **options):
    return run_stages(stages, backbone, out, device="cpu", **options)


@pytest.fixture(scope="module")
def once(stages, tmp_path_factory):
    """(the folder in which two stages were run, what they came to)."""
    home = tmp_path_factory.mktemp("once")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "cache_root", lambda: home / "notes")
        return home, run(stages(), home / "enc")


@pytest.fixture
def trained(monkeypatch):
    """Names of the stages that are trained while a test runs."""
    found, plain = [], pipeline.train

    def counted(plan, *rest, **more):
        found.append(plan.name)
        return plain(plan, *rest, **more)

    monkeypatch.setattr(pipeline, "train", counted)
    return found


@pytest.fixture
def again(once, tmp_path, trained):
    """again(stages, **options): run them in a copy of that folder."""
    for name in ("enc", "enc-stages"):
        shutil.copytree(once[0] / name, tmp_path / name)
    return lambda stages, **options: run(stages, tmp_path / "enc", **{"overwrite": True, **options})


@pytest.fixture
def first_trained(again, monkeypatch):
    """first_trained(stages, **options) -> the first stage that is not found; it is not trained, nor is what follows."""

    def stop(plan, *_, **__):
        raise Killed(plan.name)

    def make(stages, **options):
        with monkeypatch.context() as patch, pytest.raises(Killed) as killed:
            patch.setattr(pipeline, "train", stop)
            again(stages, **options)
        return killed.value.args[0]

    return make


def same_encoder(one, other):
    return one.fingerprint == other.fingerprint and (one.encode(TEXTS) == other.encode(TEXTS)).all()


# --- what is made ---------------------------------------------------------------------------------------------------


def test_every_stage_is_an_encoder_and_the_next_starts_from_it(once, gap):
    home, outcome = once
    assert sorted(path.name for path in home.iterdir()) == ["enc", "enc-stages", "notes"]
    assert [path.name for path in (home / "enc-stages").iterdir()] == ["1-mntp"]
    first, second = (Encoder.load(home / place, device="cpu") for place in ("enc-stages/1-mntp", "enc"))
    assert same_encoder(second, outcome.encoder)
    assert first.spec.attention == second.spec.attention == "bidirectional"
    assert first.backbone.adapter.kind == second.backbone.adapter.kind == "lora"
    merged, _ = load_base_model(home / "enc-stages/1-mntp", device="cpu")
    assert second.backbone.fingerprint == merged.fingerprint != first.backbone.fingerprint
    untrained = Encoder(second.backbone.with_adapter(None), second.spec)
    assert gap(untrained.encode(TEXTS), first.encode(TEXTS)) < 1e-5, "before its first step it is what the first made"
    assert gap(second.encode(TEXTS), first.encode(TEXTS)) > 1e-3, "and then it learns"


def test_results_say_which_stage_it_is_and_which_model_all_of_it_is_made_of(once, own_cache):
    home, outcome = once
    found = outcome.results
    assert {key: found["stage"][key] for key in ("name", "number")} == {"name": "simcse", "number": 2}
    assert found["backbone"] == {"name": "tiny-llama", "fingerprint": outcome.encoder.backbone.fingerprint}
    assert found["config"]["lora"]["objective"]["name"] == found["config"]["name"] == "simcse"
    for place, name in (("enc-stages/1-mntp", "mntp"), ("enc", "simcse")):
        card = (home / place / "README.md").read_text()
        assert f"# {name}: an encoder made of tiny-llama\n" in card
        assert own_cache not in card and str(home) not in card


def test_results_and_card_say_what_the_stages_before_did(once):
    home, outcome = once
    places = {1: home / "enc-stages" / "1-mntp", 2: home / "enc"}
    found = {number: json.loads((place / "results.json").read_text()) for number, place in places.items()}
    told = copy.deepcopy(outcome.results["stages"])
    assert [one.pop("key") for one in told] == [found[1]["stage"]["key"], found[2]["stage"]["key"]]
    expected = {"recipe": "lora", "steps": 3, "epochs": 9, "batch": 4, "rate": 0.01}
    assert told == [{"name": name, "objective": name, **expected} for name in ("mntp", "simcse")]
    assert found[1]["stages"] == found[2]["stages"][:1]
    card = places[2].joinpath("README.md").read_text()
    assert f"| 1 mntp | lora | mntp | 3 steps of 4 | 0.01 | {found[1]['stage']['key']} |\n| 2 simcse | lora |" in card
    assert "## Stages" not in places[1].joinpath("README.md").read_text(), "the first has none before it"


def test_a_stage_that_was_found_is_told_like_one_that_was_trained(once, again, stages):
    told = again(stages("simcse.training.steps=1", "simcse.training.epochs=2")).results["stages"]
    assert [(one["name"], one["steps"]) for one in told] == [("mntp", 3), ("simcse", 1)]


def test_with_dev_and_test_pairs_there_are_scores_of_every_stage(stages, tmp_path):
    data = plain_data(dev=(toy_pairs(),), test=(toy_pairs("test"),))
    outcome = run(stages("mntp.training.steps=1", "simcse.training.steps=1", data=data), tmp_path / "enc")
    dev, test = (outcome.results["mean"][part][part] for part in ("dev", "test"))
    assert dev == test and dev.keys() == {"spearman", "pearson"}
    for place in ("enc", "enc-stages/1-mntp"):
        assert "| test: test | " in (tmp_path / place / "README.md").read_text()


def test_a_single_stage_has_nothing_beside_it(stages, tmp_path):
    outcome = run(stages("simcse.training.steps=1")[1:], tmp_path / "enc", seeds=(0, 1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["enc", "notes"]
    assert outcome.results["stage"]["number"] == 1 and len(outcome.results["seeds"]) == 2
    assert outcome.encoder.spec.attention == "bidirectional"


def test_no_stage_at_all_is_refused(tmp_path):
    with pytest.raises(InputError, match="There is no stage to train"):
        run([], tmp_path / "enc")


# --- what is refused before the first step --------------------------------------------------------------------------


BAD_STAGES = {
    "above all layers": ("simcse.attention=bidirectional:99", "'bidirectional:99' leaves nothing to look both ways"),
    "no such layer": ("simcse.read.layer=99", "there is no layer 99"),
    "the embeddings": ("simcse.read.layer=0", "Layer 0 is the embeddings"),
    "read elsewhere": ("mntp.read.layer=2", "mntp is told from the top layer"),
}


@pytest.mark.parametrize(("setting", "said"), BAD_STAGES.values(), ids=BAD_STAGES)
def test_a_stage_that_the_model_cannot_have_is_refused_before_any_is_trained(setting, said, stages, trained, tmp_path):
    with pytest.raises(InputError, match=said):
        run(stages(setting), tmp_path / "enc")
    assert trained == [] and not any(tmp_path.iterdir())


def test_so_is_an_attention_that_the_family_refuses(stages, trained, tmp_path):
    with pytest.raises(UnsupportedError, match="mamba cannot be read with bidirectional attention"):
        run(stages("mntp.attention=causal"), tmp_path / "enc", backbone="tiny-mamba")
    assert trained == []


def test_so_are_data_from_which_a_later_stage_cannot_learn(stages, trained, tmp_path):
    with pytest.raises(InputError, match="simcse learns from plain texts, 4 or more; there are 2"):
        run(stages(simcse=plain_data(sentences(2))), tmp_path / "enc")
    assert trained == []


def test_a_prompt_cannot_be_merged_so_nothing_comes_after_it(stages, trained, tmp_path):
    first = replace(stages()[0], name="prompt", plan=plan_of({"recipe": "soft_prompt"}))
    first = replace(first, data=plain_data(contrastive=with_negatives(5)))
    with pytest.raises(UnsupportedError, match=r"prompt trains a soft_prompt, .* only the last stage may do that"):
        run([first, *stages()], tmp_path / "enc")
    assert trained == []


@pytest.mark.parametrize(
    "place", ["enc", "enc-stages", "enc-stages/1-mntp", "enc-stages/1-mntp/mine.txt", "enc/mine.txt"]
)
def test_so_is_a_place_where_something_else_stands(place, stages, trained, tmp_path):
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text("all my work")
    with pytest.raises(
        (InputError, StorageError),
        match=r"is a file; choose|is not empty and not an encoder; choose|Cannot write to .*Not a",
    ):
        run(stages(), tmp_path / "enc")
    assert trained == [] and (tmp_path / place).read_text() == "all my work"


@pytest.mark.parametrize("gone", [(), ("enc",)], ids=["all there", "only the first there"])
def test_a_stage_that_was_trained_otherwise_is_not_replaced_unasked(gone, again, trained, stages, tmp_path):
    for name in gone:
        shutil.rmtree(tmp_path / name)
    place = tmp_path / "enc-stages" / "1-mntp"
    before = Encoder.load(place, device="cpu").fingerprint
    said = f"{place} holds .*; choose another --out, or add --overwrite to replace it"
    with pytest.raises(InputError, match=said):
        again(stages("mntp.training.rate=0.02"), overwrite=False)
    assert trained == [] and Encoder.load(place, device="cpu").fingerprint == before


def test_nor_is_one_that_would_come_after_a_stage_that_is_trained_anew(again, trained, stages, tmp_path):
    shutil.rmtree(tmp_path / "enc-stages")
    with pytest.raises(InputError, match=f"{tmp_path / 'enc'} holds an encoder"):
        again(stages("mntp.training.rate=0.02"), overwrite=False)
    assert trained == []


def test_a_stage_that_is_found_elsewhere_replaces_nothing(once, again, trained, stages, tmp_path):
    changed = stages("mntp.training.steps=1", "simcse.training.steps=1")
    run(changed[:1], tmp_path / "other")
    shutil.rmtree(tmp_path / "enc")
    again(changed, overwrite=False)
    assert trained == ["mntp", "simcse"]
    first = Encoder.load(tmp_path / "enc-stages" / "1-mntp", device="cpu").fingerprint
    assert first == Encoder.load(once[0] / "enc-stages" / "1-mntp", device="cpu").fingerprint


# --- what is done again ---------------------------------------------------------------------------------------------


def test_stages_that_were_done_are_found_and_nothing_is_trained(once, again, trained, stages, tmp_path, monkeypatch):
    from decoder2vec.backbone import backbone as load

    plain, asked, said = load.pick_device, [], []
    monkeypatch.setattr(load, "pick_device", lambda name=None: plain(asked.append(name) or name))
    outcome = again(stages(), notify=said.append)
    assert trained == [] and same_encoder(outcome.encoder, once[1].encoder)
    assert outcome.results == once[1].results and outcome.record == once[1].record
    assert (once[1].trained, outcome.trained) == (True, False)
    assert said == [f"mntp: found in {tmp_path / 'enc-stages' / '1-mntp'}", f"simcse: found in {tmp_path / 'enc'}"]
    assert set(asked) == {"cpu"}, "also what was found is put on the device that was asked for"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("simcse.objective.temperature=0.1", ["simcse"]), ("mntp.training.rate=0.02", ["mntp", "simcse"])],
)
def test_what_comes_after_a_change_is_done_again_and_nothing_before_it(setting, expected, once, again, trained, stages):
    outcome = again(stages(setting))
    assert trained == expected and outcome.encoder.fingerprint != once[1].encoder.fingerprint
    del trained[:]
    again(stages(setting))
    assert trained == []


AUGMENTATIONS = {
    "the texts": (lambda make: make(data=plain_data(sentences(25))), {}, "mntp"),
    "the order of the texts": (lambda make: make(data=plain_data(sentences(24)[::-1])), {}, "mntp"),
    "the second's texts": (lambda make: make(simcse=plain_data(sentences(25))), {}, "simcse"),
    "dev pairs": (lambda make: make(data=plain_data(sentences(24), dev=(toy_pairs(),))), {}, "mntp"),
    "concepts": (
        lambda make: make(mntp=plain_data(sentences(24), concepts=ConceptSet(frozenset({"dog"})))),
        {},
        "mntp",
    ),
    "the seed": (lambda make: make(), {"seeds": (1,)}, "mntp"),
    "the model": (lambda make: make(), {"backbone": "tiny-qwen3"}, "mntp"),
    "the number format": (lambda make: make(), {"dtype": "bfloat16"}, "mntp"),
    "rounded weights": (lambda make: make(), {"dtype": "4bit"}, "mntp"),
}


@pytest.mark.parametrize(("make", "options", "expected"), AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_a_change_of_anything_that_a_stage_depends_on_is_seen(make, options, expected, first_trained, stages):
    assert first_trained(make(stages), **options) == expected


def with_negatives(step):
    """The toy examples with other negatives, every one of which is the positive of another example."""
    plain = toy_examples()
    others = [one._replace(negatives=(plain[number - step].positive,)) for number, one in enumerate(plain)]
    return ContrastiveExamples.of(others)


ROWS = (("a", "b", "c"), ("d", "e", "f"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"concepts": ConceptSet(frozenset({"dog"}))}, {"concepts": ConceptSet(frozenset({"cat"}))}),
        ({"contrast": with_negatives(5)}, {"contrast": with_negatives(6)}),
        ({"triplets": (*ROWS, ("a", "e", "c"))}, {"triplets": (*ROWS, ("a", "e", "f"))}),
        ({"nli": (("neutral", "a", "b"),)}, {"nli": (("entailment", "a", "b"),)}),
        ({"dev": (toy_pairs(),), "test": (toy_pairs("b"),)}, {"dev": (toy_pairs(), toy_pairs("b"))}),
        ({"dev": (toy_pairs(),)}, {"dev": (replace(toy_pairs(), scores=toy_pairs().scores[::-1]),)}),
    ],
    ids=["concepts", "negatives", "triplets", "labels", "roles", "scores"],
)
def test_data_with_the_same_texts_are_told_apart_by_all_else(one, other):
    assert plain_data(**one).all_texts() == plain_data(**other).all_texts()
    assert pipeline._identity(plain_data(**one)) != pipeline._identity(plain_data(**other))
    assert pipeline._identity(plain_data(**one)) == pipeline._identity(plain_data(**one))


def test_a_stage_that_was_done_for_another_encoder_is_taken_from_there(stages, trained, tmp_path):
    both = stages("mntp.training.steps=1", "simcse.training.steps=1")
    run(both[:1], tmp_path / "first")
    said = []
    run(both, tmp_path / "other" / "enc", notify=said.append)
    assert trained == ["mntp", "simcse"] and said[0] == f"mntp: found in {tmp_path / 'first'}"
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["enc"]
    (tmp_path / "first").rename(tmp_path / "moved")
    run(both, tmp_path / "third" / "enc")
    assert trained[2:] == ["mntp", "simcse"], "what is there no more is done anew"


@pytest.mark.parametrize("file", ["results.json", "run.json"])
@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff"], ids=["cut", "a list", "no text"])
def test_a_stage_whose_record_is_broken_was_not_done_and_may_be_replaced(file, text, again, trained, stages, tmp_path):
    shutil.rmtree(tmp_path / "enc")
    (tmp_path / "enc-stages" / "1-mntp" / file).write_bytes(text)
    again(stages("simcse.training.steps=1"), overwrite=False)
    assert trained == ["mntp", "simcse"]


def test_a_record_of_another_shape_is_that_of_another_encoder(again, trained, stages, tmp_path):
    (tmp_path / "enc" / "results.json").write_text('{"stage": 3}')
    with pytest.raises(InputError, match="enc holds an encoder"):
        again(stages(), overwrite=False)
    again(stages())
    assert trained == ["simcse"]


# --- a run that is killed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["masked texts", "texts"])
def test_a_killed_run_is_taken_up_and_ends_as_if_it_had_not_been(stage, once, stages, tmp_path):
    def kill(note):
        if note.stage == stage and note.step == 2:
            raise Killed

    out = tmp_path / "enc"
    with pytest.raises(Killed):
        run(stages(), out, on_progress=kill)
    assert not out.exists() and (tmp_path / "enc-stages" / "1-mntp").is_dir() == (stage == "texts")
    steps, said = [], []
    torch.manual_seed(99)
    outcome = run(stages(), out, on_progress=lambda note: steps.append((note.stage, note.step)), notify=said.append)
    expected = [("masked texts", 3), ("masked texts", 3), ("texts", 1), ("texts", 2), ("texts", 3), ("texts", 3)]
    assert steps == (expected if stage == "masked texts" else expected[-2:])
    assert any(line.startswith("mntp: found in") for line in said) == (stage == "texts")
    assert same_encoder(outcome.encoder, once[1].encoder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["enc", "enc-stages", "notes"]
    assert [path.name for path in (tmp_path / "enc-stages").iterdir()] == ["1-mntp"]


# --- what a file may say --------------------------------------------------------------------------------------------


def test_the_pipeline_that_comes_along_has_two_stages_of_plain_texts():
    tables = read_stages(None, "bidirectional")
    plans = {name: stage_plan(name, table, [], {}) for name, table in tables.items()}
    assert list(plans) == ["mntp", "simcse"]
    assert all(plan.wants() == ["corpus"] and plan.recipe.attention == "bidirectional" for plan in plans.values())
    assert read_stages(None, "lora") is None and read_stages(None, None) is None


def test_data_beside_the_stages_hold_for_all_unless_a_stage_has_its_own(tmp_path):
    (tmp_path / "plan.toml").write_text(
        'name = "both"\nabout = "Two."\n[data]\ntexts = "all.txt"\ndev = ["dev.tsv"]\n'
        + FILE
        + '\n[stages.data]\ntexts = "own.txt"\n'
    )
    tables = read_stages(tmp_path / "plan.toml", None)
    first, second = (stage_plan(name, table, ["mntp.data.concepts=words.txt"], {}) for name, table in tables.items())
    assert (first.data.texts, first.data.concepts) == ("all.txt", "words.txt")
    assert (second.data.texts, second.data.concepts) == ("own.txt", "")
    assert first.data.dev == second.data.dev == ("dev.tsv",)
    given = stage_plan("simcse", tables["simcse"], [], {"texts": "given.txt"})
    assert given.data.texts == "given.txt" and tables["simcse"]["data"]["texts"] == "own.txt"


def test_settings_go_to_the_stage_that_they_name(tables):
    settings = ["mntp.training.steps=7", "simcse.lora.rank=2", "mntp.objective.masking.rate=0.3"]
    first, second = (stage_plan(name, table, settings, {}) for name, table in tables.items())
    assert (first.recipe.training.steps, second.recipe.training.steps) == (7, 3)
    assert (first.recipe.rank, second.recipe.rank) == (4, 2)
    assert (first.recipe.objective.masking.rate, second.recipe.objective.masking.rate) == (0.3, 0.2)


def test_stages_are_chosen_by_name_and_keep_their_order(tables):
    assert list(chosen_stages(tables, [])) == list(chosen_stages(tables, ["simcse", "mntp"])) == ["mntp", "simcse"]
    assert list(chosen_stages(tables, ["simcse"])) == ["simcse"]
    with pytest.raises(UnknownNameError, match=r"Unknown stage 'simsce'.* Did you mean simcse"):
        chosen_stages(tables, ["simsce"])


WRONG = {
    "no name": ('[[stages]]\nrecipe = "lora"', r"stages is a list of tables, \[\[stages\]\], each with a name"),
    "an empty name": ('[[stages]]\nname = ""', "each with a name of its own"),
    "the same name": ('[[stages]]\nname = "a"\n[[stages]]\nname = "a"', "each with a name of its own"),
    "a name that is a number": ("[[stages]]\nname = 3", "each with a name of its own"),
    "a name that is a list": ('[[stages]]\nname = ["a"]', "each with a name of its own"),
    "a name that leads elsewhere": ('[[stages]]\nname = "../a"', "made of letters, digits, - and _"),
    "a name with a dot": ('[[stages]]\nname = "a.b"', "made of letters, digits, - and _"),
    "a table": ('[stages]\nname = "a"', "stages is a list of tables"),
    "a text": ('stages = "mntp"', "stages is a list of tables"),
    "a list of texts": ('stages = ["mntp"]', "stages is a list of tables"),
    "data that are no table": ('data = 3\n[[stages]]\nname = "a"', "data must be a table, not 3"),
    "a stage's data that are no table": ('[[stages]]\nname = "a"\ndata = "x.txt"', "data must be a table, not 'x.txt'"),
    "a setting that belongs to no stage": (
        'recipe = "lora"\n[[stages]]\nname = "a"',
        "Unknown setting beside the stages",
    ),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_a_mistake_in_a_file_is_one_sentence(text, said, tmp_path):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        read_stages(tmp_path / "plan.toml", None)


def test_the_plans_that_are_shared_can_be_read():
    found = [
        file for file in (Path(__file__).parents[2] / "experiments").rglob("*.toml") if "[[stages]]" in file.read_text()
    ]
    for file in found:
        for name, table in read_stages(file, None).items():
            stage_plan(name, table, [], {})
