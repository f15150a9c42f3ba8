"""The loss curve against transformers and sentence-transformers, its minima, the depth to keep, and `prune`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from decoder2vec.analysis.pruning import (
    LossCurve,
    LossCurvePlan,
    batch_losses,
    check_keep,
    find_minima,
    layers_to_keep,
    loss_curve,
    prune,
    share_of_layers,
)
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import DataFileError, EncoderError, InputError, UnsupportedError
from decoder2vec.progress import Progress
from decoder2vec.report.analysis_figures import draw_loss_curve
from decoder2vec.text.files import Triplets
from toys.command import d2v
from toys.docstrings import run_examples
from toys.progress import Recorder
from toys.texts import built
from toys.training import toy_examples

NORMS = {"tiny-llama": "norm", "tiny-qwen3": "norm", "tiny-gpt2": "ln_f", "tiny-gpt_neox": "final_layer_norm"}
TRIPLETS = Triplets("toy", [(example.anchor, example.positive, example.negatives[0]) for example in toy_examples()])
PLAN = LossCurvePlan(samples=24, batch=8, seed=3)


def reference_loss(columns, scale):
    """The MultipleNegativesRankingLoss of sentence-transformers for one batch of vectors."""
    tensors = [torch.from_numpy(np.ascontiguousarray(column)).float() for column in columns]
    return float(MultipleNegativesRankingLoss(None, scale=scale).compute_loss_from_embeddings(tensors, None))


@torch.inference_mode()
def reference_vectors(backbone, texts, prefix=""):
    """[layer, text, dim]: each text on its own by transformers, all layers normed, weighted mean by a loop."""
    norm = getattr(backbone.model, NORMS[backbone.name])
    vectors = []
    for text in texts:
        ids = backbone.tokenizer(prefix + text)["input_ids"]
        prefix_length = len(backbone.tokenizer(prefix)["input_ids"]) if prefix else 0
        states = backbone.model(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
        normed = [norm(layer[0]) for layer in states[1:-1]] + [states[-1][0]]  # transformers norms the last one itself
        layers = []
        for layer in normed:
            total, weights = np.zeros(backbone.dim), 0
            for position, state in enumerate(layer[prefix_length:], 1):
                total, weights = total + position * state.double().numpy(), weights + position
            layers.append(total / weights)
        vectors.append(layers)
    return np.array(vectors).transpose(1, 0, 2)


@pytest.mark.parametrize("scale", [20.0, 50.0])
def test_loss_equals_sentence_transformers(scale):
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=(22, 12)).astype(np.float32) for _ in range(3)]
    losses = batch_losses(columns, 8, scale)
    expected = [reference_loss([column[begin : begin + 8] for column in columns], scale) for begin in (0, 8)]
    assert len(losses) == 2, "the remaining rows are no batch"
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.parametrize("name", NORMS)
def test_curve_equals_losses_of_reference_vectors(name, backbone):
    model = backbone(name)
    sample = TRIPLETS.sample(PLAN.samples, PLAN.seed)
    row_of = {text: row for row, text in enumerate(sample.texts())}
    by_layer = reference_vectors(model, sample.texts())
    curve = loss_curve(model, TRIPLETS, PLAN)
    assert curve.by_batch.shape == (3, 4)
    for layer, vectors in enumerate(by_layer):
        columns = [vectors[[row_of[triplet[column]] for triplet in sample.rows]] for column in range(3)]
        expected = [reference_loss([column[begin : begin + 8] for column in columns], 50.0) for begin in (0, 8, 16)]
        np.testing.assert_allclose(curve.by_batch[:, layer], expected, rtol=2e-3, atol=2e-3)  # the store keeps 16 bits
        assert curve.losses[layer] == pytest.approx(np.mean(expected), rel=2e-3, abs=2e-3)


def test_template_prefix_is_read_but_not_pooled(backbone):
    model = backbone("tiny-gpt2")
    plan = replace(PLAN, template="Represent this: {text}", samples=8)
    sample = TRIPLETS.sample(8, plan.seed)
    columns = [[f" {text}" for text in column] for column in zip(*sample.rows, strict=True)]
    expected = reference_loss([reference_vectors(model, column, "Represent this:")[2] for column in columns], 50.0)
    assert loss_curve(model, TRIPLETS, plan).losses[2] == pytest.approx(expected, rel=3e-3)
    plain = loss_curve(model, TRIPLETS, replace(plan, template="plain"))
    assert plain.losses[2] != pytest.approx(expected, abs=0.05)


def test_sample_depends_on_seed_and_loss_on_batch_size(backbone):
    model = backbone("tiny-llama")
    first, same, other = (loss_curve(model, TRIPLETS, replace(PLAN, samples=8, seed=seed)) for seed in (0, 0, 1))
    assert first.losses == same.losses != other.losses
    large_batch = loss_curve(model, TRIPLETS, replace(PLAN, batch=24))
    assert all(np.array(large_batch.losses) > np.array(loss_curve(model, TRIPLETS, PLAN).losses))


def test_fewer_triplets_than_a_batch_are_one_batch(backbone):
    curve = loss_curve(backbone("tiny-llama"), TRIPLETS)
    assert curve.batch == 24 and curve.by_batch.shape == (1, 4)
    assert curve.errors == [0.0] * 4


def test_json_has_plan_losses_and_minima(backbone):
    document = loss_curve(backbone("tiny-llama"), TRIPLETS, PLAN).to_json()
    assert (document["batch"], document["batches"], len(document["losses"])) == (8, 3, 4)
    assert document["plan"]["scale"] == 50.0 and document["plan"]["pooling"] == "weightedmean"
    assert {document["small"], document["large"]} <= {1, 2, 3, 4} and set(document["interior"]) == {"small", "large"}
    assert document["parameters"] == sorted(document["parameters"])


def test_one_triplet_is_refused(backbone):
    with pytest.raises(DataFileError, match="one triplet"):
        loss_curve(backbone("tiny-llama"), Triplets("toy", TRIPLETS.rows[:1]))


def test_model_of_one_layer_is_refused(tmp_path):
    built("llama", tmp_path, num_hidden_layers=1)
    with pytest.raises(UnsupportedError, match="one layer"):
        loss_curve(Backbone.load(tmp_path, device="cpu"), TRIPLETS)


def test_layer_with_states_not_finite_is_named(tmp_path):
    model = built("llama", tmp_path / "broken", num_hidden_layers=4)
    model.model.layers[2].mlp.down_proj.weight.data[0, 0] = torch.nan
    model.save_pretrained(tmp_path / "broken")
    curve = loss_curve(Backbone.load(tmp_path / "broken", device="cpu"), TRIPLETS, PLAN)
    with pytest.raises(EncoderError, match="The loss of layer 3 is nan"):
        _ = curve.minima


@pytest.mark.parametrize(
    "settings", [{"samples": 1}, {"batch": 1}, {"scale": 0}, {"scale": float("nan")}, {"pooling": "meen"}]
)
def test_invalid_plan_is_refused(settings):
    with pytest.raises(InputError):
        LossCurvePlan(**settings)


@pytest.mark.parametrize("losses", [[5, 3, 4, 6, 5, 2, 3, 4], [8, 7, 6, 5, 4, 3, 2, 1], [2, 1]])
def test_every_shape_of_curve_is_drawn(losses, tmp_path):
    from PIL import Image

    by_batch = np.array([losses, [loss + 0.5 for loss in losses]], np.float64)
    parameters = tuple(range(100, 100 + len(losses)))
    draw_loss_curve(LossCurve("m", "w", "causal", "toy", PLAN, 8, by_batch, parameters), tmp_path / "curve.png")
    with Image.open(tmp_path / "curve.png") as image:
        assert image.width > 600 and len(image.convert("RGB").getcolors(10_000)) > 3


# minima and depths

CURVES = {
    "falling": ([8, 7, 6, 5, 4, 3, 2, 1], (4, 8), (False, False)),
    "rising": ([1, 2, 3, 4, 5, 6, 7, 8], (1, 5), (False, False)),
    "one minimum in the middle": ([5, 4, 3, 2, 2.5, 3, 4, 5], (4, 5), (False, False)),
    "one maximum in the middle": ([1, 2, 3, 4, 4, 3, 2, 1], (1, 8), (False, False)),
    "drop, rise, drop, rise": ([5, 3, 4, 6, 5, 2, 3, 4], (2, 6), (True, True)),
    "drop, rise, drop to the end": ([5, 3, 4, 6, 5, 4, 3, 2], (2, 8), (True, False)),
    "local minimum in the upper half only": ([9, 8, 7, 6, 5, 2, 3, 4], (4, 6), (False, True)),
    "local minimum above the lowest end": ([5, 2, 4, 1, 5, 3, 4, 6], (4, 6), (False, True)),
    "ties": ([5, 3, 3, 6, 5, 2, 2, 4], (2, 6), (True, True)),
    "constant": ([3] * 8, (1, 5), (False, False)),
    "flat to the end of each half": ([5, 3, 3, 3, 5, 2, 2, 2], (2, 6), (False, False)),
    "odd number of layers: the middle one is in the upper half": ([5, 1, 5, 0.5, 4, 3, 5], (2, 4), (True, False)),
    "three layers": ([3, 1, 2], (1, 2), (False, False)),
    "two layers": ([2, 1], (1, 2), (False, False)),
}


@pytest.mark.parametrize(("losses", "depths", "is_local"), CURVES.values(), ids=CURVES)
def test_minima_of_both_halves_are_found(losses, depths, is_local):
    minima = find_minima(losses)
    assert (minima.small, minima.large) == depths
    assert (minima.small_is_local, minima.large_is_local) == is_local
    assert minima.drop_rise_drop == all(is_local)
    remarks = " ".join(minima.remarks())
    assert ("drop-rise-drop shape is absent" in remarks) == (not all(is_local))
    assert ("should not be cut" in remarks) == (depths[1] == len(losses))
    assert minima.to_json()["interior"] == dict(zip(("small", "large"), is_local, strict=True))


def test_minima_equal_a_plain_search():
    for number in range(200):
        depth = 2 + number % 17
        losses = [((number + 3) * (layer + 7) ** 2) % 11 / 10 for layer in range(depth)]
        half = depth // 2
        minima = find_minima(losses)
        best = {"small": 1, "large": half + 1}
        for layer in range(1, depth + 1):
            name = "small" if layer <= half else "large"
            if losses[layer - 1] < losses[best[name] - 1]:
                best[name] = layer
        assert (minima.small, minima.large) == (best["small"], best["large"])


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_loss_that_is_not_finite_is_refused(loss):
    with pytest.raises(EncoderError, match=r"The loss of layer 3 is (nan|inf)"):
        find_minima([4, 3, loss, 2])


@pytest.mark.parametrize("losses", [[], [1.0]])
def test_one_layer_has_no_minima(losses):
    with pytest.raises(UnsupportedError, match="one layer"):
        find_minima(losses)


def test_shares_are_rounded_down_for_every_depth():
    for n_layers in range(1, 65):
        for twentieth in range(21):
            share = Fraction(twentieth, 20)
            expected = math.floor(n_layers * share)
            assert share_of_layers(n_layers, float(share)) == expected
            assert share_of_layers(n_layers, 1 - float(1 - share)) == expected, "also from the share removed"
    assert int(30 * (1 - 0.8)) == 5, "the trap: removing 80 % of 30 layers"
    assert share_of_layers(30, 1 - 0.8) == 6


@pytest.mark.parametrize(("keep", "depth"), [("70%", 21), ("20 %", 6), ("33.4%", 10), (7, 7), ("small", 9)])
def test_keep_is_a_share_a_number_or_a_minimum(keep, depth):
    losses = [abs(layer - 9) / 10 for layer in range(1, 31)]
    assert layers_to_keep(keep, 30, find_minima(losses)) == depth


@pytest.mark.parametrize(
    ("keep", "n_layers", "message"),
    [
        ("0%", 30, "above 0% and below 100%"),
        ("100%", 30, "above 0% and below 100%"),
        ("140%", 30, "above 0% and below 100%"),
        ("10%", 4, "10% means to keep 0; choose 1 to 3"),
        (0, 4, "choose 1 to 3"),
        (4, 4, "The model has 4 layers, and 4 means to keep 4"),
        (-2, 4, "choose 1 to 3"),
        ("medium", 30, "Unknown choice 'medium'; keep a share such as 70%, small or large"),
        ("12", 30, "--layers N"),
        ("-5%", 30, "Unknown choice"),
        ("small", 30, "give triplets"),
        (1, 1, "one layer"),
    ],
)
def test_invalid_keep_is_refused(keep, n_layers, message):
    with pytest.raises(UnsupportedError if n_layers == 1 else InputError, match=message):
        layers_to_keep(keep, n_layers)


def test_curve_with_minimum_at_the_top_is_not_cut():
    with pytest.raises(InputError, match="lowest after the last of 8 layers, so large means not to cut"):
        layers_to_keep("large", 8, find_minima([8, 7, 6, 5, 4, 3, 2, 1]))


def test_keep_is_checked_without_a_model():
    check_keep("large", has_curve=True)
    check_keep("45%", has_curve=False)
    with pytest.raises(InputError, match="loss curve"):
        check_keep("large", has_curve=False)
    with pytest.raises(InputError, match=r"Unknown choice 0\.5; keep a share such as 70%"):
        check_keep(0.5, has_curve=False)


# prune


@pytest.fixture
def triplets_file(tmp_path):
    file = tmp_path / "toy.tsv"
    rows = ["\t".join(row) for row in TRIPLETS.rows]
    file.write_text("\n".join(["anchor\tpositive\tnegative", *rows]) + "\n", encoding="utf-8")
    return file


def read_note(folder):
    note = json.loads((folder / "pruning.json").read_text())
    if "curve" in note:
        del note["curve"]["seconds"]
    return note


def test_example_in_docstring_runs():
    run_examples(prune)


@pytest.mark.parametrize("keep", [None, "small"])
def test_prune_gives_the_files_of_the_command(keep, triplets_file, tmp_path):
    options = ["--keep", keep] if keep else []
    curve_options = ("--samples", 24, "--batch", 8, "--seed", 3)
    d2v("prune", "tiny-llama", "--triplets", triplets_file, *curve_options, *options, "--out", tmp_path / "cli")
    settings = {"samples": 24, "batch": 8, "seed": 3}
    result = prune("tiny-llama", tmp_path / "api", keep=keep, triplets=triplets_file, **settings)
    from_object = prune("tiny-llama", tmp_path / "object", keep=keep, triplets=TRIPLETS, **settings)
    note = read_note(tmp_path / "cli")
    assert read_note(tmp_path / "api") == read_note(tmp_path / "object") == note
    assert result.curve.losses == from_object.curve.losses
    assert [round(loss, 6) for loss in result.curve.losses] == note["curve"]["losses"]
    if keep:
        assert asdict(result.cut) == note["cut"] and result.depth == note["cut"]["layers"] == note["curve"]["small"]
        assert Backbone.load(tmp_path / "api").n_layers == result.depth
    else:
        assert (result.depth, result.cut) == (None, None)


def test_prune_reports_progress_and_messages(triplets_file, tmp_path):
    recorder, messages = Recorder(), []
    with Progress(recorder) as progress:
        prune("tiny-llama", tmp_path / "curve", triplets=triplets_file, notify=messages.append)
    assert recorder.labels == ["loading the model", "encoding", "saving"]
    assert max(recorder.totals) == len(TRIPLETS.texts()) and progress.ended
    assert messages == ["there are only 24 triplets; losses are lower than in batches of 64"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "Choose what to keep"),
        ({"keep": "50%", "layers": 2}, "not both"),
        ({"keep": "small"}, "give triplets"),
        ({"layers": 4}, "choose 1 to 3"),
    ],
)
def test_invalid_request_is_refused_and_writes_nothing(settings, message, tmp_path):
    with pytest.raises(InputError, match=message):
        prune("tiny-llama", tmp_path / "cut", **settings)
    assert not (tmp_path / "cut").exists()
