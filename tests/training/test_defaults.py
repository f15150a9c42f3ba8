"""Settings that a plan leaves open are chosen by model and data; those it names are kept."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.text.files import ScoredPairs
from decoder2vec.training.api import train
from decoder2vec.training.context import correlation
from decoder2vec.training.contrastive_examples import ContrastiveExamples, Example
from decoder2vec.training.data import TrainingData
from decoder2vec.training.defaults import choose_metric, choose_reading, choose_schedule
from decoder2vec.training.loop import Schedule
from decoder2vec.training.plan import load_plan
from decoder2vec.training.recipes.freeze import FreezeRecipe, LatentSource
from decoder2vec.training.results import Improvement, headline
from toys.command import cosine
from toys.training import TOPICS, small_recipe, toy_data, toy_pairs

ADAPTERS = ["lora", "soft_prompt", "kv_prefix", "full"]


def chosen_reading(source, *settings, backbone="tiny-llama"):
    """(template, pooling, attention) that training chooses."""
    recipe = choose_reading(load_plan(source, settings), backbone, lambda _: None).stages[0].recipe
    return recipe.read.template, recipe.read.pooling, recipe.attention


def chosen_schedule(n_examples, *settings):
    """The schedule that training chooses for so many pairs."""
    examples = ContrastiveExamples.of([Example(f"a {n}", f"b {n}", (), n) for n in range(n_examples)])
    data = TrainingData(None, (), contrastive=examples)
    return choose_schedule(load_plan("lora", settings).stages[0], data, lambda _: None).recipe.training


def n_steps(n_examples, schedule):
    return schedule.epochs * math.ceil(n_examples / schedule.batch)


@pytest.mark.parametrize("recipe", ADAPTERS)
def test_causal_models_read_the_last_token_of_a_prompt(recipe):
    assert chosen_reading(recipe) == ("prompteol", "lasttoken", "causal")
    assert chosen_reading(recipe, "objective.name=cosent")[0] == "prompteol"


@pytest.mark.parametrize("recipe", ADAPTERS)
def test_bidirectional_models_read_the_mean_of_plain_text(recipe):
    assert chosen_reading(recipe, "attention=bidirectional") == ("plain", "mean", "bidirectional")


def test_named_settings_win():
    assert chosen_reading("lora", "read.template=plain") == ("plain", "lasttoken", "causal")
    assert chosen_reading("lora", "read.pooling=mean") == ("plain", "mean", "causal")
    assert chosen_reading("lora", "read.template=echo", "read.pooling=mean") == ("echo", "mean", "causal")
    both = ("attention=bidirectional", "read.pooling=lasttoken")
    assert chosen_reading("lora", *both) == ("plain", "lasttoken", "bidirectional")


def test_plan_file_has_the_same_defaults_and_wins(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text('recipe = "lora"\n')
    assert chosen_reading(file) == ("prompteol", "lasttoken", "causal")
    file.write_text('recipe = "lora"\nlora.read.template = "plain"\n')
    assert chosen_reading(file) == ("plain", "lasttoken", "causal")


def test_settings_stay_open_in_a_plan_that_is_changed():
    plan = load_plan(load_plan("lora", ["read.layer=2"]), ["rank=3"])
    assert chosen_reading(plan)[0] == "prompteol" and "read.layer" not in plan.stages[0].unset


@pytest.mark.parametrize("source", [small_recipe("lora"), "bidirectional", "distill", "general", None])
def test_recipes_in_python_and_stages_are_kept(source):
    plan = load_plan(source)
    assert choose_reading(plan, "tiny-llama", lambda _: None) == plan


def test_objectives_on_plain_texts_read_them_as_before():
    assert chosen_reading("lora", "objective.name=mntp") == ("plain", "lasttoken", "causal")


@pytest.fixture
def saved(tmp_path):
    """Save an encoder of tiny-llama with these choices and return its folder."""

    def save(**choices):
        encoder = Encoder.from_pretrained("tiny-llama", device="cpu", **choices)
        encoder.save(tmp_path / "start")
        return tmp_path / "start"

    return save


def test_a_saved_encoder_is_trained_as_it_reads(saved, tmp_path):
    start = saved(template="echo", layer=2, pooling="mean", attention="bidirectional")
    settings = ["rank=2", "training.steps=2", "training.batch=8"]
    trained = train("lora", toy_data(), start, tmp_path / "out", settings=settings).encoder.spec
    before = Encoder.load(start).spec
    assert (trained.template, trained.attention, trained.readings) == (
        before.template,
        before.attention,
        before.readings,
    )


def test_a_named_setting_wins_over_a_saved_encoder(saved):
    start = saved(template="echo", layer=2, pooling="mean")
    recipe = choose_reading(load_plan("lora", ["read.pooling=max"]), start, lambda _: None).stages[0].recipe
    assert (recipe.read.pooling, recipe.read.layer) == ("max", 2)


def test_several_readings_cannot_be_taken_over(tmp_path):
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu")
    spec = replace(encoder.spec, readings=(Reading(1), Reading(2)))
    Encoder(encoder.backbone, spec).save(tmp_path / "start")
    assert chosen_reading("lora", backbone=tmp_path / "start") == ("prompteol", "lasttoken", "causal")


@pytest.mark.parametrize("n_examples", [58, 100, 300, 1000, 2000])
def test_few_examples_make_at_least_fifty_steps(n_examples):
    schedule = chosen_schedule(n_examples)
    assert 50 <= n_steps(n_examples, schedule) < 120 and schedule.epochs <= 10 and 8 <= schedule.batch <= 64
    assert schedule.evaluate_every == 0, "a state of every epoch can be kept"


def test_many_examples_are_trained_on_as_before():
    assert chosen_schedule(5000) == load_plan("lora").stages[0].recipe.training


def test_named_steps_epochs_and_batches_win():
    assert chosen_schedule(64, "training.steps=3").steps == 3 and chosen_schedule(64, "training.steps=3").batch == 64
    assert chosen_schedule(64, "training.epochs=2").epochs == 2
    assert chosen_schedule(64, "training.batch=32").batch == 32 and chosen_schedule(64, "training.batch=32").epochs > 1
    both = chosen_schedule(64, "training.epochs=1", "training.batch=64")
    assert (both.epochs, both.batch, both.evaluate_every) == (1, 64, 125)
    assert chosen_schedule(64, "training.epochs=0").epochs == 0


@pytest.mark.parametrize(("settings", "warns"), [(["training.steps=4"], True), (["training.steps=60"], False)])
def test_few_steps_are_warned_of(settings, warns):
    notes = load_plan("lora", settings).stages[0].recipe.data_notes(toy_data())
    assert any("about 4 training step(s)" in note for note in notes) == warns


@pytest.mark.parametrize("objective", ["distill", "simcse", "crop", "mntp"])
def test_few_steps_on_plain_texts_are_warned_of(objective):
    texts = tuple(f"A text about the number {number}." for number in range(200))
    recipe = load_plan("lora", [f"objective.name={objective}", "training.batch=64"]).stages[0].recipe
    assert any("about 4 training step(s)" in note for note in recipe.data_notes(TrainingData(None, (), texts=texts)))
    many = TrainingData(None, (), texts=20 * texts)
    assert not any("training step(s)" in note for note in recipe.data_notes(many))


def test_an_untrained_plan_is_not_warned_of():
    notes = load_plan("lora", ["training.epochs=0"]).stages[0].recipe.data_notes(toy_data())
    assert not any("training step(s)" in note for note in notes)


# --- dev pairs -------------------------------------------------------------------------------------------------------


def binary_pairs(count):
    """Pairs that score 1 or 0, as those set aside from triplets do."""
    texts = [f"text {number}" for number in range(count)]
    return ScoredPairs("dev", texts, texts[::-1], [float(number % 2) for number in range(count)])


@pytest.mark.parametrize("source", ["lora", "general"])
def test_two_dev_scores_are_chosen_by_pearson(source):
    messages = []
    for stage in load_plan(source).stages:
        for dev, metric in ((binary_pairs(60), "pearson"), (toy_pairs(), "spearman")):
            chosen = choose_metric(stage, TrainingData(None, (dev,)), messages.append)
            assert chosen.recipe.choose_by == metric
    assert set(messages) == {messages[0]} and "two scores only" in messages[0]


def test_named_dev_metric_wins():
    stage = load_plan("lora", ["choose_by=spearman"]).stages[0]
    assert choose_metric(stage, TrainingData(None, (binary_pairs(60),)), lambda _: None).recipe.choose_by == "spearman"


def test_held_out_triplets_tell_states_apart_that_are_in_order():
    """Spearman is at its maximum, 86.6, for both; by Pearson the one with the wider margin is better."""
    labels = np.repeat([1.0, 0.0], 6)
    narrow, wide = (labels * margin + np.linspace(0.0, 0.04, 12) for margin in (0.05, 0.5))
    assert correlation("spearman", narrow, labels) == correlation("spearman", wide, labels) < 87
    assert correlation("pearson", narrow, labels) < correlation("pearson", wide, labels) - 5


def test_triplets_without_dev_pairs_keep_a_later_state(tmp_path):
    """64 triplets, of which 7 are set aside: a state is kept for its margin, though the first orders all of them."""
    rows = [f"the {topic} {n}\t{topic} {n} now\tno {TOPICS[n % 8 - 3]} {n}" for n in range(8) for topic in TOPICS]
    file = tmp_path / "triplets.tsv"
    file.write_text("\n".join(["anchor\tpositive\tnegative", *rows]), encoding="utf-8")
    messages, settings = [], ["rank=4", "training.rate=3e-3", "training.epochs=4", "training.batch=16"]
    result = train("lora", file, "tiny-llama", tmp_path / "out", settings=settings, notify=messages.append)
    assert result.results["config"]["lora"]["choose_by"] == "pearson"
    history = result.results["seeds"][0]["notes"]["training"]
    assert len(set(history["scores"])) == len(history["scores"]), "no two states tie"
    assert history["best"] == np.argmax(history["scores"])
    warning = "14 dev pairs are too few to choose by"
    assert sum(warning in message for message in messages) == 1
    assert any(warning in note for note in result.results["notes"])


@pytest.mark.parametrize("source", ["freeze", "lora"])
@pytest.mark.parametrize(("count", "warns"), [(6, True), (50, False)])
def test_few_dev_pairs_are_warned_of(source, count, warns):
    dev = replace(binary_pairs(count), scores=[float(number) for number in range(count)])
    notes = load_plan(source).stages[0].recipe.data_notes(TrainingData(None, (dev,)))
    assert [note for note in notes if "dev pairs are too few" in note] == (
        ["6 dev pairs are too few to choose by, so that what is chosen is largely chance; give 50 or more with --dev"]
        if warns
        else []
    )


# --- the untrained model ---------------------------------------------------------------------------------------------


def untrained_cosines(pairs):
    """Cosines of pairs by the untrained tiny-llama: the last token of prompteol, after the final norm."""
    encoder = Encoder.from_pretrained(
        "tiny-llama", device="cpu", template="prompteol", layer=-1, pooling="lasttoken", normed=True
    )
    return [cosine(*encoder.encode([a, b])) for a, b in zip(pairs.left, pairs.right, strict=True)]


@pytest.mark.parametrize("recipe", ["lora", "soft_prompt"])
def test_results_have_the_score_of_the_untrained_model(recipe, tmp_path):
    result = train(recipe, toy_data(), "tiny-llama", tmp_path / "out", settings=["training.steps=2"])
    improvement, pairs = Improvement.of(result.results), toy_pairs()
    expected = 100 * spearmanr(untrained_cosines(pairs), pairs.scores).statistic
    assert improvement.start == pytest.approx(expected, abs=0.02)
    assert f"untrained {improvement.start:.1f}" in (tmp_path / "out" / "README.md").read_text()


def test_freeze_is_compared_with_its_readings_alone(tmp_path):
    pairs = toy_pairs()
    source = LatentSource("prompteol", "lasttoken", (4,), normed=True)
    recipe = FreezeRecipe((source,), widths=(8,), head="sum", pretrain="none", training=Schedule(epochs=2))
    result = train(recipe, toy_data(train=pairs, contrastive=None), "tiny-llama", tmp_path / "out", seeds=[0, 1])
    expected = 100 * pearsonr(untrained_cosines(pairs), pairs.scores).statistic
    for seed in result.results["seeds"]:
        assert seed["untrained"]["dev"]["dev"]["pearson"] == pytest.approx(expected, abs=0.02)
    assert f"untrained {expected:.1f}" in str(Improvement.of(result.results))


@pytest.mark.parametrize("recipe", ["lora", "soft_prompt"])
def test_every_file_is_compared_with_the_untrained_model(recipe, tmp_path):
    pairs = toy_pairs()
    halves = [
        replace(pairs, name=name, left=pairs.left[part], right=pairs.right[part], scores=pairs.scores[part])
        for name, part in (("first", slice(0, None, 2)), ("second", slice(1, None, 2)))
    ]
    data = toy_data(dev=tuple(halves), test=(pairs,))
    results = train(recipe, data, "tiny-llama", tmp_path / "out", settings=["training.steps=3"], seeds=[0, 1]).results
    expected = {file.name: 100 * spearmanr(untrained_cosines(file), file.scores).statistic for file in (*halves, pairs)}
    for seed in results["seeds"]:
        scores = {**seed["untrained"]["dev"], **seed["untrained"]["test"]}
        assert {name: metrics["spearman"] for name, metrics in scores.items()} == pytest.approx(expected, abs=0.1)
    best = next(seed for seed in results["seeds"] if seed["seed"] == results["best_seed"])
    trained = {**best["dev"], **best["test"]}
    better = sum(trained[name]["spearman"] - expected[name] > 0.05 for name in expected)
    mean = (trained["first"]["spearman"] + trained["second"]["spearman"]) / 2
    assert results["headline"].startswith(f"{mean:.1f} on dev, ")
    assert results["headline"].endswith(f"; better on {better} of 3 files")


@pytest.mark.parametrize("recipe", ["lora", "full"])
def test_a_run_encodes_dev_untrained_once(recipe, tmp_path, monkeypatch):
    """Once for two seeds and a grid, although every combination is scored on dev."""
    fingerprint = Backbone.load("tiny-llama").effective_fingerprint
    untrained, encode = [], Encoder.encode

    def counted(self, texts, **options):
        untrained.append(self.backbone.effective_fingerprint == fingerprint)
        return encode(self, texts, **options)

    monkeypatch.setattr(Encoder, "encode", counted)
    options = {"settings": ["training.steps=1"], "seeds": [0, 1]}
    train(recipe, toy_data(), "tiny-llama", tmp_path / "out", grid={"training.rate": [1e-3, 1e-2]}, **options)
    assert sum(untrained) == 1 and len(untrained) > 4


def test_the_better_one_is_kept_on_request(tmp_path):
    """The dev scores are the untrained model's own cosines, which a random prompt can only make worse."""
    pairs = toy_pairs()
    data = toy_data(dev=(replace(pairs, scores=untrained_cosines(pairs)),))
    settings = ["training.steps=1", "tokens=8"]
    runs = {
        keep: train("soft_prompt", data, "tiny-llama", tmp_path / str(keep), settings=settings, keep_better=keep)
        for keep in (False, True)
    }
    worse, kept = (Improvement.of(runs[keep].results) for keep in (False, True))
    assert worse.is_worse and "training made it worse" in str(worse)
    assert kept.dev == pytest.approx(kept.start, abs=0.02) and not kept.is_worse
    assert runs[True].encoder.backbone.adapter is None and runs[False].encoder.backbone.adapter is not None
    assert any("the untrained model was kept" in note for note in runs[True].results["notes"])
    assert runs[True].results["headline"].endswith("on dev: the untrained model was better and was kept")
    cards = {keep: (tmp_path / str(keep) / "README.md").read_text() for keep in runs}
    kept = "The model that training started from: training made it worse on dev, so the change was not kept."
    assert kept in cards[True] and "| recipe | soft_prompt (its change was not kept) |" in cards[True]
    assert "| trained parameters | 0 (0.0 %" in cards[True] and runs[True].record["parameters"]["trained"] == 0
    assert kept not in cards[False] and "| recipe | soft_prompt |" in cards[False]
    plain = Encoder.load(tmp_path / "True").encode("A cat sleeps.")
    assert plain == pytest.approx(runs[True].encoder.encode("A cat sleeps."), abs=1e-5)


@pytest.mark.parametrize(
    ("dev", "untrained", "text"),
    [
        (86.6, 82.5, "dev 86.6, untrained 82.5: +4.1"),
        (70.9, 89.3, "dev 70.9, untrained 89.3: training made it worse by 18.4"),
        (82.48, 82.5, "dev 82.5, untrained 82.5: +0.0"),
    ],
)
def test_improvement_compares_dev_with_the_untrained_model(dev, untrained, text):
    assert str(Improvement(dev, untrained)) == text


def test_results_of_an_earlier_version_have_no_improvement():
    """Their `untrained` is a number."""
    seed = {"seed": 0, "dev": {"a": {"spearman": 80.0}}, "test": {}, "untrained": 70.0, "notes": {}}
    results = {"best_seed": 0, "seeds": [seed], "config": {"recipe": "lora", "lora": {"choose_by": "spearman"}}}
    assert Improvement.of(results) is None and headline(results) == "80.0 on dev"


@pytest.mark.parametrize(
    ("improvement", "text"),
    [
        (Improvement(86.6, 82.5, (4.0, 4.2, -0.3)), "86.6 on dev, +4.1 over untrained; better on 2 of 3 files"),
        (Improvement(86.6, 82.5, (4.1,)), "86.6 on dev, +4.1 over untrained"),
        (Improvement(70.9, 89.3, (-18.4, 0.04)), "70.9 on dev, 18.4 below untrained; better on 0 of 2 files"),
    ],
)
def test_headline_says_what_training_changed(improvement, text):
    assert improvement.headline == text
