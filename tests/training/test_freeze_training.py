"""FREEZE from cached latents to a scored encoder: what is trained, what is not, and what comes out again."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from decoder2vec.training.frozen.scoring import calibrated, score_pairs
from scipy import stats

from decoder2vec.activations.store import Store, text_key
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.training.api import as_encoder
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Schedule
from decoder2vec.training.recipes.freeze import Source


def numbers(result):
    return {name: tensor.clone() for name, tensor in result.net.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_backbone_is_bit_identical_after_training(backbone, training):
    model = backbone("tiny-llama").model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    training(pretrain="autoencoder").run(0)
    assert same(before, model.state_dict())
    assert not any(parameter.requires_grad or parameter.grad is not None for parameter in model.parameters())


def test_a_run_is_reproducible_from_its_seed(training):
    first = training(dropout=0.1, noise=0.05).run(3)
    torch.manual_seed(99)
    second = training(dropout=0.1, noise=0.05).run(3)
    assert same(numbers(first), numbers(second))
    assert (first.dev, first.test, first.checks) == (second.dev, second.test, second.checks)
    assert first.notes == second.notes
    assert not same(numbers(first), numbers(training(dropout=0.1, noise=0.05).run(4)))


def test_seeds_do_not_depend_on_which_ran_before(training):
    one = training()
    one.run(0)
    assert same(numbers(one.run(1)), numbers(training().run(1)))


def test_a_toy_task_is_learned(training, data):
    """Judged on the very pairs it learns from: the loss falls and the score rises."""
    own = replace(data, dev=(replace(data.train, name="dev"),))
    found = training(data=own, training=Schedule(epochs=25, batch=16, rate=3e-3, patience=25)).run(0).notes["training"]
    assert found["losses"][-1] < 0.3 * found["losses"][0]
    assert found["scores"][-1] > found["start"] + 20


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
def test_every_declared_parameter_gets_a_gradient_and_moves(changes, training, monkeypatch):
    before, perturbed, real = {}, {}, torch.optim.AdamW.step

    def step(self, *args, **kwargs):
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            before.setdefault(number, parameter.detach().clone())
            assert parameter.grad is not None
            perturbed[number] = perturbed.get(number, False) or bool(parameter.grad.abs().sum() > 0)
        result = real(self, *args, **kwargs)
        return result

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    result = training(loss="log_variance", **changes).run(0)
    assert len(before) == len(perturbed) > 0
    still = [number for number, gradient in perturbed.items() if not gradient]
    one_block = changes.get("mixing") == "unified"  # the weight of a single block is 1 whatever happens
    assert len(still) == (1 if one_block else 0)
    assert np.isfinite(result.dev["dev"]["pearson"])


# --- selection and cut ----------------------------------------------------------------------------------------------


def test_the_head_each_keeps_the_layer_that_is_best_on_dev(training):
    result = training(head="each").run(0)
    assert len(result.readings) == len(result.notes["kept"]) == 1
    assert (result.net.spec.head, result.table.shape[0]) == ("sum", 1)
    trained = max(result.notes["training"]["scores"] + [result.notes["training"]["start"]])
    sharp = result.dev["dev"]["pearson"]
    assert result.head.dim == result.net.spec.widths[0]
    assert trained > 0 and sharp > 0


def test_raw_cosines_need_no_training_and_the_best_layer_is_found(training, data):
    """Against a plain loop over the layers."""
    made = training(
        data=TrainingData(None, data.dev, data.test), widths=(0,), head="each", loss="none", choose_by="spearman"
    )
    result = made.run(0)
    dev = data.dev[0]
    left, right = (made.table.batch(made.table.rows(texts)).numpy() for texts in (dev.left, dev.right))
    cosines = (left * right).sum(-1) / np.linalg.norm(left, axis=-1) / np.linalg.norm(right, axis=-1)
    by_layer = [stats.spearmanr(row, dev.scores).statistic for row in cosines]
    assert result.readings[0].layer == 1 + int(np.argmax(by_layer))
    assert result.dev["dev"]["spearman"] == pytest.approx(100 * max(by_layer), abs=0.3)


def test_readings_with_the_largest_weights_are_kept_in_their_order(training):
    whole = training().run(0)
    kept = training(keep=2).run(0)
    weights = whole.net.pair.weights().numpy()
    best = sorted(np.argsort(-weights)[:2].tolist())
    assert kept.readings == tuple(whole.readings[number] for number in best)
    assert kept.notes["kept"] == [str(whole.readings[number]) for number in best]
    assert kept.net.spec.widths == tuple(whole.net.spec.widths[number] for number in best)
    assert kept.notes["training after selection"]["scores"]


def test_a_cut_is_reported_with_what_it_costs(training):
    result = training(dim=6).run(0)
    assert result.head.dim == 6
    whole = training().run(0)
    before = result.notes["before the cut"]
    assert before == {"dev": whole.dev, "test": whole.test, "dim": 48}
    assert result.dev != whole.dev
    assert training(dim=47).run(0).dev["dev"]["pearson"] == pytest.approx(whole.dev["dev"]["pearson"], abs=3)


# --- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["sum", "gated"])
def test_identical_texts_score_exactly_1(head, training, data):
    result = training(head=head).run(0)
    pairs = [(text, text) for text in data.all_texts()[:30]]
    assert (score_pairs(result, pairs) == 1).all()
    assert (calibrated(result, pairs) == 1).all()
    assert result.checks["equal texts"] == 1


@pytest.mark.parametrize("head", ["sum", "gated", "mlp"])
def test_scores_are_symmetric_and_between_0_and_1(head, training, data):
    result = training(head=head).run(0)
    pairs = list(zip(data.test[0].left, data.test[0].right, strict=True))
    there, back = calibrated(result, pairs), calibrated(result, [(b, a) for a, b in pairs])
    assert (there == back).all()
    assert (there >= 0).all() and (there <= 1).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"head": "gated"},
        {"head": "mlp"},
        {"dim": 6},
        {"head": "each"},
        {"latents": (Source(), Source("prompteol", "lasttoken", (2, 4)), Source(pooling="mean", layers=(0, 3)))},
    ],
    ids=str,
)
def test_the_saved_encoder_scores_as_training_measured(changes, training, data, backbone, tmp_path):
    made = training(**changes)
    result = made.run(0)
    as_encoder(result, backbone("tiny-llama"), made.recipe).save(tmp_path / "encoder")

    loaded = Encoder.load(tmp_path / "encoder", device="cpu", dtype="float32")
    test = data.test[0]
    pairs = list(zip(test.left, test.right, strict=True))
    found = loaded.similarity_pairwise(loaded.encode(test.left), loaded.encode(test.right)).numpy()
    np.testing.assert_allclose(found, score_pairs(result, pairs), atol=2e-3)
    np.testing.assert_allclose(loaded.score(test.left, test.right), calibrated(result, pairs), atol=2e-2)


def test_results_are_those_of_scipy_on_the_scores(training, data):
    result = training().run(0)
    for part, files in (("dev", data.dev), ("test", data.test)):
        for pairs in files:
            scores = score_pairs(result, list(zip(pairs.left, pairs.right, strict=True)))
            expected = 100 * stats.pearsonr(scores, pairs.scores).statistic
            assert getattr(result, part)[pairs.name]["pearson"] == pytest.approx(expected, abs=0.006)


def test_test_pairs_have_no_say_in_anything(training, data):
    shuffled = replace(data.test[0], scores=data.test[0].scores[::-1])
    one, other = training(keep=2).run(0), training(data=replace(data, test=(shuffled,)), keep=2).run(0)
    assert same(numbers(one), numbers(other))
    assert asdict(one.head.calibration) == asdict(other.head.calibration)
    assert one.test != other.test


@pytest.mark.parametrize("where", ["train", "dev", "test"])
def test_latents_that_are_not_finite_are_refused(where, training, data, monkeypatch):
    pairs = data.train if where == "train" else getattr(data, where)[0]
    bad, real = pairs.left[4], Store.read_into
    names = {}

    def poisoned(self, out, places, columns):
        real(self, out, places, columns)
        names.setdefault(id(self), tuple(self.places([text_key(bad)])[0]))
        out[:, (places == names[id(self)]).all(axis=1)] = np.nan

    monkeypatch.setattr(Store, "read_into", poisoned)
    with pytest.raises(InputError, match=f"latents of '{bad}' are not finite; run `d2v doctor`"):
        training()
