"""The loss of every depth, against transformers' own states, pooling by hand and sentence-transformers' loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from decoder2vec.analysis.pruning import CurvePlan, LossCurve, batch_losses, loss_curve
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import InputError
from decoder2vec.report.analysis_figures import draw_curve
from decoder2vec.text.files import Triplets
from toys.texts import built
from toys.training import toy_examples

NORMS = {"tiny-llama": "norm", "tiny-qwen3": "norm", "tiny-gpt2": "ln_f", "tiny-gpt_neox": "final_layer_norm"}
TRIPLES = Triplets("toy", [(one.anchor, one.positive, one.negatives[0]) for one in toy_examples()])
PLAN = CurvePlan(samples=24, batch=8, seed=3)


def theirs(columns, scale):
    """MultipleNegativesRankingLoss of one batch of vectors."""
    tensors = [torch.from_numpy(np.ascontiguousarray(column)).float() for column in columns]
    return float(MultipleNegativesRankingLoss(None, scale=scale).compute_loss_from_embeddings(tensors, None))


@torch.inference_mode()
def vectors_by_hand(backbone, texts, prefix=""):
    """[layer, text, dim]: each text alone through transformers, all layers normed, weighted mean by a loop."""
    norm = getattr(backbone.model, NORMS[backbone.name])
    found = []
    for text in texts:
        ids = backbone.tokenizer(prefix + text)["input_ids"]
        before = len(backbone.tokenizer(prefix)["input_ids"]) if prefix else 0
        states = backbone.model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
        normed = [norm(layer[0]) for layer in states[1:-1]] + [states[-1][0]]  # transformers norms the last itself
        layers = []
        for layer in normed:
            total, weights = np.zeros(backbone.dim), 0
            for position, state in enumerate(layer[before:], 1):
                total, weights = total + position * state.double().numpy(), weights + position
            layers.append(total / weights)
        found.append(layers)
    return np.array(found).transpose(1, 0, 2)


@pytest.mark.parametrize("scale", [20.0, 50.0])
def test_the_loss_of_vectors_is_that_of_sentence_transformers(scale):
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=(22, 12)).astype(np.float32) for _ in range(3)]
    found = batch_losses(columns, 8, scale)
    expected = [theirs([column[begin : begin + 8] for column in columns], scale) for begin in (0, 8)]
    assert len(found) == 2, "what is left over makes no batch of its own"
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", NORMS)
def test_the_whole_curve_is_the_loss_of_norms_and_means_made_by_hand(name, backbone):
    model = backbone(name)
    drawn = TRIPLES.drawn(PLAN.samples, PLAN.seed)
    place = {text: number for number, text in enumerate(drawn.texts())}
    by_layer = vectors_by_hand(model, drawn.texts())
    curve = loss_curve(model, TRIPLES, PLAN)
    assert curve.by_batch.shape == (3, 4)
    for layer, vectors in enumerate(by_layer):
        columns = [vectors[[place[row[role]] for row in drawn.rows]] for role in range(3)]
        expected = [theirs([column[begin : begin + 8] for column in columns], 50.0) for begin in (0, 8, 16)]
        np.testing.assert_allclose(curve.by_batch[:, layer], expected, rtol=2e-3, atol=2e-3)  # the store keeps 16 bits
        assert curve.losses[layer] == pytest.approx(np.mean(expected), rel=2e-3, abs=2e-3)


def test_what_stands_before_a_text_is_read_but_not_pooled(backbone):
    model = backbone("tiny-gpt2")
    plan = replace(PLAN, template="Represent this: {text}", samples=8)
    drawn = TRIPLES.drawn(8, plan.seed)
    columns = [[f" {text}" for text in column] for column in zip(*drawn.rows, strict=True)]
    expected = theirs([vectors_by_hand(model, column, "Represent this:")[2] for column in columns], 50.0)
    assert loss_curve(model, TRIPLES, plan).losses[2] == pytest.approx(expected, rel=3e-3)
    plain = loss_curve(model, TRIPLES, replace(plan, template="plain"))
    assert plain.losses[2] != pytest.approx(expected, abs=0.05)


def test_the_draw_follows_the_seed_and_more_in_a_batch_cost_more(backbone):
    model = backbone("tiny-llama")
    one, again, other = (loss_curve(model, TRIPLES, replace(PLAN, samples=8, seed=seed)) for seed in (0, 0, 1))
    assert one.losses == again.losses != other.losses
    whole = loss_curve(model, TRIPLES, replace(PLAN, batch=24))
    assert all(np.array(whole.losses) > np.array(loss_curve(model, TRIPLES, PLAN).losses))


def test_a_file_that_is_smaller_than_a_batch_is_one_batch(backbone):
    curve = loss_curve(backbone("tiny-llama"), TRIPLES)
    assert curve.batch == 24 and curve.by_batch.shape == (1, 4)
    assert curve.errors == [0.0] * 4


def test_the_record_says_what_was_measured(backbone):
    found = loss_curve(backbone("tiny-llama"), TRIPLES, PLAN).to_json()
    assert (found["batch"], found["batches"], len(found["losses"])) == (8, 3, 4)
    assert found["plan"]["scale"] == 50.0 and found["plan"]["pooling"] == "weightedmean"
    assert {found["small"], found["large"]} <= {1, 2, 3, 4} and set(found["interior"]) == {"small", "large"}
    assert found["parameters"] == sorted(found["parameters"])


def test_one_triple_is_refused(backbone):
    with pytest.raises(InputError, match="one triple"):
        loss_curve(backbone("tiny-llama"), Triplets("toy", TRIPLES.rows[:1]))


def test_a_model_of_one_layer_is_refused(tmp_path):
    built("llama", tmp_path, num_hidden_layers=1)
    with pytest.raises(InputError, match="one layer"):
        loss_curve(Backbone.load(tmp_path, device="cpu"), TRIPLES)


def test_a_layer_whose_states_are_not_numbers_is_named(tmp_path):
    model = built("llama", tmp_path / "broken", num_hidden_layers=4)
    model.model.layers[2].mlp.down_proj.weight.data[0, 0] = torch.nan
    model.save_pretrained(tmp_path / "broken")
    curve = loss_curve(Backbone.load(tmp_path / "broken", device="cpu"), TRIPLES, PLAN)
    with pytest.raises(InputError, match="The loss of layer 3 is nan"):
        _ = curve.minima


@pytest.mark.parametrize(
    "wrong", [{"samples": 1}, {"batch": 1}, {"scale": 0}, {"scale": float("nan")}, {"pooling": "meen"}]
)
def test_a_plan_that_cannot_be_measured_is_refused(wrong):
    with pytest.raises(InputError):
        CurvePlan(**wrong)


@pytest.mark.parametrize("losses", [[5, 3, 4, 6, 5, 2, 3, 4], [8, 7, 6, 5, 4, 3, 2, 1], [2, 1]])
def test_any_curve_is_drawn(losses, tmp_path):
    from PIL import Image

    by_batch = np.array([losses, [loss + 0.5 for loss in losses]], np.float64)
    sizes = tuple(range(100, 100 + len(losses)))
    draw_curve(LossCurve("m", "w", "causal", "toy", PLAN, 8, by_batch, sizes), tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as image:
        assert image.width > 600 and len(image.convert("RGB").getcolors(10_000)) > 3
