"""Learning curves: samples, choices on dev, resuming, sentences, and the files they write."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.training import curve as curve_module
from decoder2vec.training.curve import CurvePoint, LearningCurve, learning_curve, parse_sizes, sample
from decoder2vec.training.recipes.recipe import Trainer
from toys.contract import scored_pairs
from toys.training import toy_data, toy_pairs

SCORED = toy_data(contrastive=None, train=scored_pairs(), test=(toy_pairs("test"),))
FAST = ("training.epochs=1", "training.batch=16", "freeze.hidden=12", "freeze.widths=[8]", "lora.rank=2")
RATES = {"training.rate": [1e-3, 1e-2]}


# --- samples --------------------------------------------------------------------------------------------------------


def test_samples_are_nested_and_differ_by_seed():
    rows = {size: sample(SCORED, size, 0).train for size in (10, 20, 48)}
    pairs = {size: set(zip(part.left, part.right, part.scores, strict=True)) for size, part in rows.items()}
    assert [len(part) for part in rows.values()] == [10, 20, 48]
    assert (
        pairs[10]
        < pairs[20]
        < pairs[48]
        == set(zip(SCORED.train.left, SCORED.train.right, SCORED.train.scores, strict=True))
    )
    assert sample(SCORED, 10, 1).train.left != rows[10].left
    assert sample(SCORED, 10, 0).dev == SCORED.dev and sample(SCORED, 10, 0).test == SCORED.test


def test_a_sample_of_examples_has_their_texts_only():
    data = toy_data()
    examples, chosen = data.contrastive, sample(data, 7, 3).contrastive
    rows = np.sort(np.random.default_rng(3).permutation(len(examples))[:7])
    assert chosen.pairs() == [examples.pairs()[row] for row in rows]
    assert set(chosen.texts) == set(chosen.texts_of_examples()) and len(chosen.texts) < len(examples.texts)
    for row, source in zip(range(7), rows, strict=True):
        own = {chosen.texts[index] for index in chosen.negatives[row] if index >= 0}
        assert own == {examples.texts[index] for index in examples.negatives[source] if index >= 0}
    known, all_known = chosen.known_positives(np.arange(7)), examples.known_positives(rows)
    assert (known == all_known).all()


def test_sizes_are_parsed():
    assert parse_sizes("50, 200,all") == [50, 200, "all"]
    for text in ("", "50,many", "-3"):
        with pytest.raises(InputError, match="--curve takes numbers of examples"):
            parse_sizes(text)


# --- curves ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("curve") / "curve"


@pytest.fixture(scope="module")
def curve(folder, backbone):
    return learning_curve(
        SCORED,
        backbone("tiny-llama"),
        folder,
        sizes=[16, "all", 1000],
        recipes=["freeze", "lora"],
        settings=FAST,
        grid=RATES,
        seeds=[0, 1],
        command="d2v train --curve 16,all",
    )


def test_curve_has_a_point_for_each_recipe_and_size(curve):
    assert [(point.recipe, point.size) for point in curve.points] == [
        (recipe, size) for recipe in ("freeze", "lora") for size in (16, 48)
    ]
    for point in curve.points:
        assert len(point.scores("dev")) == len(point.scores("test")) == 2
        assert [tried["settings"]["training.rate"] for tried in point.tried] == [1e-3, 1e-2]
        assert point.settings == max(point.tried, key=lambda tried: tried["dev"])["settings"]


def test_scores_are_those_of_a_plain_training(curve, backbone, folder):
    """A point of the curve again, by hand."""
    point = next(point for point in curve.points if (point.recipe, point.size) == ("lora", 16))
    recipe = curve_module.load_plan(
        "lora", ["objective.name=cosent", "training.epochs=1", "training.batch=16", "rank=2"]
    )
    plan = curve_module.choose_reading(recipe, backbone("tiny-llama"), lambda _: None)
    stage = curve_module.choose_schedule(plan.stages[0], sample(SCORED, 16, 1), lambda _: None)
    rate = point.settings["training.rate"]
    settings = replace(stage.recipe, training=replace(stage.recipe.training, rate=rate))
    result = Trainer(settings, sample(SCORED, 16, 1), backbone("tiny-llama")).run(1)
    assert point.runs[1]["dev"] == pytest.approx(result.dev["dev"]["spearman"], abs=0.01)
    assert point.runs[1]["test"] == pytest.approx(result.test["test"]["spearman"], abs=0.01)


def test_files_of_a_curve(curve, folder):
    document = json.loads((folder / "curve.json").read_text())
    assert document == json.loads(json.dumps(curve.document))
    assert document["sizes"] == [16, 48] and document["noun"] == "pairs" and document["shown"] == "test"
    assert document["command"] == "d2v train --curve 16,all"
    assert document["untrained"].keys() == {"dev", "test"}
    assert document["points"][0]["dev"]["mean"] == pytest.approx(np.mean(curve.points[0].scores("dev")), abs=0.01)
    assert document["points"][-1]["parameters"] > 0
    assert (folder / "curve.png").stat().st_size > 5000 and (folder / "curve.svg").is_file()
    assert len(list((folder / "runs").glob("*.json"))) == 2 * 2 * (2 + 2)
    assert not (folder / "unfinished").exists()


def test_runs_of_another_attention_are_not_taken_for_finished(backbone, tmp_path):
    """FREEZE reads the model with the attention that it has, so a run depends on it."""
    options = {"sizes": ["all"], "recipes": ["freeze"], "settings": FAST, "grid": {"training.rate": [1e-3]}}
    scores = {}
    for attention in ("causal", "bidirectional", "causal"):
        model = backbone("tiny-llama")
        model.set_attention(attention)
        curve = learning_curve(SCORED, model, tmp_path, seeds=[0], **options)
        model.set_attention("causal")
        dev = curve.points[0].runs[0]["dev"]
        assert scores.setdefault(attention, dev) == dev
    assert scores["causal"] != scores["bidirectional"]
    assert len(list((tmp_path / "runs").glob("*.json"))) == 2


def test_test_files_are_not_read_while_settings_are_chosen(curve, folder):
    runs = [json.loads(file.read_text()) for file in (folder / "runs").glob("*.json")]
    assert sum(run["test"] is None for run in runs) == sum(len(point.tried) for point in curve.points)


def test_an_interrupted_curve_resumes_run_by_run(curve, folder, backbone, tmp_path, monkeypatch):
    trained = []
    original = Trainer.run

    def run(self, seed, **options):
        trained.append(seed)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return original(self, seed, **options)

    monkeypatch.setattr(Trainer, "run", run)
    arguments = {"sizes": [16, "all"], "recipes": ["freeze", "lora"], "settings": FAST, "grid": RATES, "seeds": [0, 1]}
    with pytest.raises(KeyboardInterrupt):
        learning_curve(SCORED, backbone("tiny-llama"), tmp_path / "curve", **arguments)
    assert not (tmp_path / "curve" / "curve.json").exists()
    again = learning_curve(SCORED, backbone("tiny-llama"), tmp_path / "curve", **arguments)
    assert len(trained) == 1 + 16, "only the run that was interrupted is trained twice"
    for point, expected in zip(again.points, curve.points, strict=True):
        assert (point.scores("dev"), point.settings) == (expected.scores("dev"), expected.settings)
    learning_curve(SCORED, backbone("tiny-llama"), tmp_path / "curve", **arguments)
    assert len(trained) == 1 + 16, "nothing is left to do"


@pytest.mark.parametrize("damaged", ["", '{"seed": 0, "de', "[]"])
def test_a_damaged_result_of_a_run_is_trained_again(backbone, tmp_path, damaged):
    arguments = {"sizes": [16], "recipes": ["lora"], "settings": FAST, "grid": {"training.rate": [1e-2]}, "seeds": [0]}
    first = learning_curve(SCORED, backbone("tiny-llama"), tmp_path / "curve", **arguments)
    (file,) = (tmp_path / "curve" / "runs").iterdir()
    file.write_text(damaged)
    again = learning_curve(SCORED, backbone("tiny-llama"), tmp_path / "curve", **arguments)
    assert again.points[0].scores("dev") == first.points[0].scores("dev")
    assert json.loads(file.read_text())["size"] == 16


def test_a_run_that_diverges_is_no_score(backbone, tmp_path):
    grid = {"training.rate": [1e-3, 1e30]}
    settings = [*FAST, "training.clip=0"]
    curve = learning_curve(
        SCORED, backbone("tiny-llama"), tmp_path, sizes=[48], recipes=["lora"], settings=settings, grid=grid, seeds=[0]
    )
    (point,) = curve.points
    assert point.settings == {"training.rate": 1e-3}


def test_triplets_are_examples(backbone, tmp_path):
    curve = learning_curve(
        toy_data(), backbone("tiny-gpt2"), tmp_path, sizes=[8, "all"], recipes=["bottleneck", "conv"], seeds=[0],
        settings=("training.epochs=1", "width=4"), grid={"training.rate": [1e-2]},
    )  # fmt: skip
    assert curve.noun == "examples" and curve.shown == "dev" and curve.sizes == [8, 24]
    assert curve.document["config"]["conv"]["objective"]["name"] == "info_nce"
    assert all(point.tried == [] for point in curve.points), "with one choice there is nothing to choose"


def test_folder_of_scored_pairs_is_learned_from(backbone, tmp_path):
    """As the guide says: train.tsv and dev.tsv, and recipes that learn by contrast if they are left alone."""
    mine = tmp_path / "mine"
    mine.mkdir()
    for name, pairs in (("train", SCORED.train), ("dev", SCORED.dev[0])):
        rows = [
            f"{left}\t{right}\t{score}"
            for left, right, score in zip(pairs.left, pairs.right, pairs.scores, strict=True)
        ]
        (mine / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    curve = learning_curve(
        mine, backbone("tiny-gpt2"), tmp_path / "curve", sizes=[8], recipes=["lora"], seeds=[0],
        settings=("training.epochs=1", "rank=2"), grid={"training.rate": [1e-2]},
    )  # fmt: skip
    assert curve.document["config"]["lora"]["objective"]["name"] == "cosent" and curve.noun == "pairs"


# --- sentences ------------------------------------------------------------------------------------------------------


def made_curve(scores, noun="pairs"):
    """A curve from {recipe: {size: [score of each seed]}}."""
    points = [
        CurvePoint(
            recipe, size, {}, [], [{"seed": seed, "dev": score, "test": None} for seed, score in enumerate(runs)]
        )
        for recipe, by_size in scores.items()
        for size, runs in by_size.items()
    ]
    return LearningCurve(points, noun)


def test_sentence_names_the_recipe_for_each_size():
    freeze = {50: [70, 70.1], 200: [71, 71.1], 1000: [72, 72.1], 5000: [72.5, 72.6]}
    lora = {50: [60, 60.1], 200: [68, 68.1], 1000: [75, 75.1], 5000: [78, 78.1]}
    full = {50: [40, 40.1], 200: [50, 50.1], 1000: [74, 74.1], 5000: [80, 80.1]}
    curve = made_curve({"freeze": freeze, "lora": lora, "full": full})
    assert curve.sentence() == (
        "Below 450 pairs use freeze, from 450 to 2,200 lora, above full; the lead is larger than chance at every size."
    )
    assert made_curve({"freeze": freeze}).sentence() == "Use freeze at every size from 50 to 5,000 pairs."


def test_sentence_says_where_the_lead_may_be_chance():
    first = {50: [70.0, 74.0, 72.0], 200: [75.0, 75.2, 75.1]}
    second = {50: [71.0, 70.0, 74.0], 200: [70.0, 70.1, 70.3]}
    assert made_curve({"lora": first, "full": second}).sentence() == (
        "Use lora at every size from 50 to 200 pairs; at 50 the lead may be chance."
    )
    one_seed = {"lora": {50: [70.0]}, "full": {50: [71.0]}}
    assert made_curve(one_seed).sentence() == ("Use full at 50 pairs; with one seed that may be chance.")


def test_forecasts_are_sentences():
    law = {size: [80 - 200 * size**-0.4] * 2 for size in (50, 200, 1000, 5000)}
    jump = {50: [50.0] * 2, 200: [58.0] * 2, 1000: [60.0] * 2, 5000: [75.0] * 2}
    lines = made_curve({"lora": law, "conv": jump, "full": {50: [1.0], 200: [2.0]}}).forecast_lines()
    gain = 200 * (5000**-0.4 - 7000**-0.4)
    assert lines[0].startswith(f"lora: 2,000 more pairs: about +{gain:.1f} points (without the last size, the fit")
    assert lines[1].startswith("conv: no forecast: without the last size, the fit misses it by")
    assert lines[2] == "full: no forecast from fewer than 4 sizes"


# --- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"recipes": []}, "Give the recipes to compare"),
        ({"recipes": ["lora", "lora"]}, "each once"),
        ({"recipes": ["rerank"]}, "which rerank does not"),
        ({"recipes": ["general"]}, "which general does not"),
        ({"recipes": ["hypernetwork"]}, "Unknown recipe 'hypernetwork'"),
        ({"sizes": [1]}, "2 examples or more"),
        ({"sizes": []}, "2 examples or more"),
        ({"sizes": [1000]}, "There are 48 examples, fewer than the smallest size"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [1, 1]}, "seed 1 is repeated"),
        ({"grid": {"training.colour": [1]}}, "colour"),
    ],
)
def test_impossible_curves_are_refused_in_one_sentence(changes, sentence, backbone, tmp_path):
    arguments = {"recipes": ["lora"], "sizes": [16], "seeds": [0], **changes}
    with pytest.raises(InputError, match=sentence) as caught:
        learning_curve(SCORED, backbone("tiny-llama"), tmp_path / "curve", **arguments)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "curve").exists()


def test_a_folder_with_other_files_is_refused(backbone, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match=r"it holds thesis\.txt"):
        learning_curve(SCORED, backbone("tiny-llama"), tmp_path, recipes=["lora"], sizes=[16])
