"""What the recipe rerank promises, on three families: what test_recipes.py tests of encoders, for a reranker."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.reranker import Reranker
from decoder2vec.training.api import train
from decoder2vec.training.objectives.ranking import measure_ranking
from decoder2vec.training.recipes.recipe import Trainer
from toys.contract import TOY_LABELS, TOY_RECIPES, scored_pairs
from toys.regression import equal_states, state_of
from toys.training import (
    assert_same_gradients,
    gradients_of,
    module_and_task,
    small_recipe,
    toy_data,
    toy_pairs,
)

FAMILIES = ("tiny-llama", "tiny-gpt2", "tiny-mamba", "tiny-mamba2")
QUERY = "the cats sleep today"
DOCUMENTS = ("cats sleep", "the dogs run over the long road in the rain and sing of boats that sail", "a", "")
TOY = TOY_RECIPES["rerank"]


class Killed(Exception):
    """Ends a run as a crash would."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def run(family, trained_run):
    return trained_run("rerank", family)


def test_exactly_what_is_declared_is_trained(family, run):
    if family != "tiny-mamba2":  # its matrices have other names
        assert {name: tuple(tensor.shape) for name, tensor in run.start.items()} == TOY.declared(run.backbone)
        assert run.result.record["parameters"]["trained"] == TOY.n_trained(run.backbone)
    names = {name.split("-")[-2] for name in run.start if name.startswith("weights.")}
    expected = {"tiny-mamba": {"in_proj", "x_proj"}, "tiny-mamba2": {"in_proj"}}
    assert names == expected.get(family, names)
    assert run.start["head.weight"].shape == (1, 32)


def test_only_what_is_declared_gets_gradients_and_all_changes(run):
    assert run.others_with_gradient == set()
    for name, start in run.start.items():
        gradient = run.gradients[-1][name]
        assert gradient is not None and gradient.abs().max() > 0, name
        assert not torch.equal(run.after_three[name], start), name


def test_the_model_is_bit_identical_after_training_and_the_loss_falls(run):
    assert equal_states(state_of(run.backbone.model), run.weights)
    assert not any(parameter.requires_grad for parameter in run.backbone.model.parameters())
    assert run.history["losses"][-1] < run.history["losses"][0]


def test_a_saved_reranker_gives_identical_scores(run):
    loaded = Reranker.load(run.folder, device="cpu", dtype="float32")
    assert loaded.fingerprint == run.result.reranker.fingerprint
    assert (loaded.score(QUERY, DOCUMENTS) == run.result.reranker.score(QUERY, DOCUMENTS)).all()
    with pytest.raises(InputError, match="use `reranker`"):
        run.result.encoder  # noqa: B018


def test_reported_scores_are_those_of_the_saved_reranker(run):
    """The path of training (BatchEncoder) and that of use (Extractor) give the same ranking."""
    pairs, loaded = toy_pairs(), Reranker.load(run.folder, device="cpu", dtype="float32")
    scores = loaded.score_pairs(pairs.left, pairs.right)
    seed = run.result.results["seeds"][0]
    assert seed["notes"]["ranking"]["trained"]["dev"] == measure_ranking(pairs, scores)
    assert seed["dev"]["dev"]["pearson"] == pytest.approx(100 * np.corrcoef(scores, pairs.scores)[0, 1], abs=0.02)
    assert measure_ranking(pairs, scores)["ndcg@10"] == max(run.history["start"], *run.history["scores"])
    assert 0 < seed["notes"]["ranking"]["likelihood"]["dev"]["mrr@10"] <= 100
    assert "nDCG@10" in run.result.results["headline"]


def test_order_batch_and_padding_do_not_change_a_score(run, gap, monkeypatch):
    reranker = run.result.reranker
    alone = [reranker.score(QUERY, [document])[0] for document in DOCUMENTS]
    assert gap(reranker.score(QUERY, DOCUMENTS[::-1])[::-1], alone) < 1e-5
    monkeypatch.setattr(Backbone, "batch_overhead", 10**6)
    assert gap(reranker.score(QUERY, DOCUMENTS), alone) < 1e-5


def test_odd_texts_have_finite_scores(run):
    odd = ["", " ", "\n", "\0", "🐈‍⬛ étoile", "x" * 40, "<eos>", "{text}{document}{query}"]
    assert np.isfinite(run.result.reranker.score("{query}", odd)).all()
    assert np.isfinite(run.result.reranker.score("", odd)).all()


def test_the_folder_has_card_results_and_log(run):
    files = {file.name for file in run.folder.iterdir()}
    assert {"reranker.json", "README.md", "results.json", "run.json", "gold.json", "log-0.jsonl", "adapter"} <= files
    card = (run.folder / "README.md").read_text("utf-8")
    assert "Reranker.load" in card and "nDCG@10" in card
    assert json.loads((run.folder / "results.json").read_text("utf-8"))["config"]["recipe"] == "rerank"


def test_a_killed_run_resumes_with_the_same_numbers(family, run, new_run):
    again, steps = new_run(family), []

    def kill(state):
        if state.step == 3:
            raise Killed

    with pytest.raises(Killed):
        again.train("rerank", kill)
    assert not again.folder.exists()
    assert equal_states(state_of(again.backbone.model), run.weights)
    again.train("rerank", lambda state: steps.append(state.step))
    assert steps[0] == 4, "it resumes"
    assert again.history == run.history
    assert again.result.reranker.fingerprint == run.result.reranker.fingerprint


def test_a_trained_reranker_is_up_to_date_and_not_replaced(run):
    with pytest.raises(InputError, match="holds a reranker already"):
        train(TOY.recipe, TOY.data, run.backbone, run.folder)
    again = train(TOY.recipe, TOY.data, run.backbone, run.folder, overwrite=True)
    assert not again.trained and again.reranker.fingerprint == run.result.reranker.fingerprint


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-mamba"])
def test_all_weights_are_trained_on_a_copy(family, new_run):
    run = new_run(family)
    result = train(small_recipe("rerank", weights="full"), toy_data(), run.backbone, run.folder)
    assert equal_states(state_of(run.backbone.model), run.weights)
    n_weights = sum(tensor.numel() for tensor in run.backbone.model.parameters())
    assert result.record["parameters"]["trained"] == n_weights + 32
    loaded = Reranker.load(run.folder, device="cpu", dtype="float32")
    assert (loaded.score(QUERY, DOCUMENTS) == result.reranker.score(QUERY, DOCUMENTS)).all()
    assert not equal_states(state_of(loaded.backbone.model), run.weights)
    assert (run.folder / "backbone").is_dir()


def test_no_later_stage_can_train_on(backbone):
    assert not TOY.recipe.mergeable
    with pytest.raises(UnsupportedError):
        train(small_recipe("rerank"), toy_data(), backbone("tiny-gpt2").with_adapter(_lora(backbone)), "never")


def _lora(backbone):
    from decoder2vec.adapters.lora import Lora

    return Lora.initialise(backbone("tiny-gpt2"), 2, 4)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-mamba"])
def test_enough_steps_rank_every_positive_above_its_negative(family, backbone, tmp_path):
    trainer = Trainer(small_recipe("rerank", epochs=30), toy_data(dev=(scored_pairs("dev"),)), backbone(family))
    result = trainer.run(0)
    reranker, _ = trainer.export(result, tmp_path)
    pairs = scored_pairs("dev")
    scores = reranker.score_pairs(pairs.left, pairs.right)
    positives, negatives = np.split(scores, 2)
    assert (positives > negatives).all()


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-mamba"])
@pytest.mark.parametrize("toy", [TOY, TOY_LABELS], ids=["ranking", "labels"])
def test_block_checkpointing_gives_the_same_gradients(toy, family, backbone):
    recipes = [replace(toy.recipe, checkpoint_blocks=checkpointed) for checkpointed in (False, True)]
    plain, checkpointed = (
        gradients_of(*module_and_task(recipe, toy.data, backbone(family)), np.arange(6)) for recipe in recipes
    )
    assert_same_gradients(checkpointed, plain)


@pytest.mark.parametrize("toy", [TOY, TOY_LABELS], ids=["ranking", "labels"])
def test_a_model_in_bfloat16_is_trained_and_saved(toy, tmp_path):
    model = Backbone.load("tiny-llama", device="cpu", dtype="bfloat16")
    recipe = replace(toy.recipe, training=replace(toy.recipe.training, epochs=1))
    trained = train(recipe, toy.data, model, tmp_path / "rr").reranker
    loaded = Reranker.load(tmp_path / "rr", device="cpu", dtype="bfloat16")
    assert loaded.backbone.dtype == torch.bfloat16 and loaded.fingerprint == trained.fingerprint
    scores = [
        reranker.classify_pairs(DOCUMENTS, DOCUMENTS) if reranker.labels else reranker.score(QUERY, DOCUMENTS)
        for reranker in (trained, loaded)
    ]
    assert np.isfinite(scores[0]).all() and (scores[0] == scores[1]).all()
