"""Intrinsic dimension of every layer: estimates, intervals, flags, and the comparison of curves."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.analysis.intrinsic_dimension import (
    DimensionPlan,
    area_differences,
    dimension_curve,
    estimate_dimension,
    measure_dimension,
    read_curves,
)
from decoder2vec.analysis.layer_embeddings import LayerEmbeddings
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import keep_first_blocks
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.maths import intrinsic_dimension as dimension
from decoder2vec.maths.intrinsic_dimension import nearest_neighbours
from decoder2vec.progress import Progress
from toys.docstrings import run_examples
from toys.progress import Recorder

TEXTS = [
    f"The {who} {does} {what}."
    for who in ("dog", "cat", "old king", "child")
    for does in ("sees", "eats", "likes", "finds", "sells")
    for what in ("fish", "bread", "the sea")
]
QUICK = DimensionPlan(neighbours=5, halves=30, quarters=3, samples=30)


@pytest.fixture(scope="module")
def encoder(own_cache):
    return Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32", template="plain", pooling="mean")


@pytest.fixture(scope="module")
def layers(encoder):
    return LayerEmbeddings(encoder, TEXTS)


@pytest.fixture(scope="module")
def document(layers):
    return dimension_curve(layers, QUICK)


def random_points(rows=400, columns=5, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns))


# estimates


def test_every_layer_has_the_estimates_of_its_vectors(layers, document):
    assert [row["layer"] for row in document["layers"]] == [0, 1, 2, 3, 4, 4]
    for index, row in enumerate(document["layers"]):
        distances = nearest_neighbours(layers.layer(index), 5).distances
        expected = dimension.two_nn(dimension.log_distance_ratios(distances))
        assert row["twonn"] == pytest.approx(expected, rel=1e-5)
        assert row["mle"] == pytest.approx(dimension.local_dimensions(distances).mean(), rel=1e-5)
        assert row["twonn_95"][0] < row["twonn"] < row["twonn_95"][1]
        assert row["mle_95"][0] < row["mle"] < row["mle_95"][1]
        assert [subsample["points"] for subsample in row["subsamples"]] == [30, 15]
        assert row["flags"] == ["few points"] and row["points"] == 60
    assert document["embedding"]["dim"] == 32
    json.dumps(document, allow_nan=False)


def test_both_areas_equal_a_trapezoid_sum(document):
    curve = [row["twonn"] for row in document["layers"][1:4]] + [document["layers"][5]["twonn"]]
    trapezoids = sum((a + b) / 2 for a, b in pairwise(curve))
    area = document["area"]
    assert (area["paper"], area["unit"]) == (pytest.approx(trapezoids / 4), pytest.approx(trapezoids / 3))
    for by in ("paper", "unit"):
        assert area[f"{by}_95"][0] < area[by] < area[f"{by}_95"][1]
    assert np.ptp(area["unit_95"]) == pytest.approx(np.ptp(area["paper_95"]) * 4 / 3, rel=1e-3)


def test_subsamples_are_estimates_of_random_halves():
    points = random_points(600)
    plan = DimensionPlan(halves=10, quarters=4)
    halves = []
    for half in dimension.random_subsets(600, 0.5, 10, plan.seed):
        halves.append(dimension.two_nn(dimension.log_distance_ratios(nearest_neighbours(points[half], 2).distances)))
    result = estimate_dimension(points, plan)
    assert result.subsamples[0]["mean"] == pytest.approx(np.mean(halves), rel=1e-9)
    assert result.subsamples[0]["std"] == pytest.approx(np.std(halves), rel=1e-9)
    np.testing.assert_allclose(result.samples, halves, rtol=1e-9)
    assert result.subsamples[1]["points"] == 150 and result.subsamples[1]["draws"] == 4


def test_five_dimensional_points_are_estimated_as_such():
    result = estimate_dimension(random_points(2000) @ np.random.default_rng(1).standard_normal((5, 40)))
    assert result.twonn == pytest.approx(5, rel=0.1) and result.mle == pytest.approx(5, rel=0.15)
    assert 4 < result.effective_rank < 5.1
    assert result.flags == [] and result.duplicates == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_not_finite_have_no_dimension(bad):
    points = random_points()
    points[7, 2] = bad
    result = estimate_dimension(points)
    assert result.flags == ["not finite"] and result.twonn is result.mle is result.anisotropy is None


def test_constant_vectors_have_no_dimension():
    result = estimate_dimension(np.full((50, 4), 0.3)).to_json()
    assert result["flags"] == ["constant"] and result["duplicates"] == 49
    assert result["twonn"] is result["mle"] is result["effective_rank"] is None
    assert result["anisotropy"] == 1


def test_fewer_than_ten_points_have_no_dimension():
    result = estimate_dimension(np.repeat(random_points(9), 5, axis=0))
    assert result.flags == ["too few points"] and (result.points, result.duplicates) == (9, 36) and result.twonn is None


def test_duplicates_are_dropped_and_counted():
    points = random_points()
    repeated = np.concatenate([points, points[:30], points[:30]])
    result = estimate_dimension(repeated, QUICK)
    assert result.duplicates == 60
    assert result.twonn == pytest.approx(estimate_dimension(points, QUICK).twonn, rel=1e-12)


def test_too_few_points_leave_maximum_likelihood_out():
    result = estimate_dimension(random_points(40))
    assert result.mle is None and result.twonn is not None
    assert result.flags == ["few points", "too few points for 50 neighbours"]


def test_twelve_points_have_no_interval():
    result = estimate_dimension(random_points(12), QUICK)
    assert result.twonn is not None and result.twonn_95 is None and result.subsamples == []


def test_lattice_is_flagged_and_has_no_estimate():
    points = np.stack(np.meshgrid(*[np.arange(20.0)] * 2), -1).reshape(-1, 2)
    result = estimate_dimension(points, QUICK).to_json()
    assert "ties" in result["flags"] and result["twonn"] is None and result["twonn_95"] is None
    json.dumps(result, allow_nan=False)


def test_layer_without_estimate_leaves_no_area(own_cache):
    """Layer 0 is constant because of the template's suffix, but it is not part of the area."""
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")
    result = dimension_curve(LayerEmbeddings(encoder, TEXTS), QUICK)
    assert result["layers"][0]["flags"] == ["constant"] and result["area"]["paper"] is not None
    first_token = dimension_curve(LayerEmbeddings(encoder, TEXTS, "cls"), QUICK)
    assert first_token["layers"][1]["flags"] == ["constant"]  # the first token does not see the text
    assert first_token["area"]["paper"] is None and first_token["area_samples"] == []


def test_fewer_than_ten_texts_are_refused(encoder):
    with pytest.raises(InputError, match="10 or more"):
        dimension_curve(LayerEmbeddings(encoder, TEXTS[:9]), QUICK)


@pytest.mark.parametrize(
    "change", [{"cdf": "i"}, {"average": "median"}, {"discard": 0.95}, {"neighbours": 1}, {"halves": 0}]
)
def test_invalid_plan_is_refused(change):
    with pytest.raises(InputError):
        DimensionPlan(**change).check()


def test_16_bit_storage_changes_less_than_one_percent(encoder, layers):
    from decoder2vec.activations.extract import Extractor
    from decoder2vec.text.template import Template

    exact = Extractor(encoder.backbone, layers.readings, Template.of("plain"))(TEXTS)
    for index in range(1, len(layers)):
        stored, direct = (estimate_dimension(x, QUICK).twonn for x in (layers.layer(index), exact[:, index]))
        assert stored == pytest.approx(direct, rel=0.01)


# comparisons


def named(document, name):
    return {"encoder": name, **document}


def test_encoder_does_not_differ_from_itself(document):
    (result,) = area_differences([named(document, "a"), named(document, "b")])
    assert result == {"encoder": "b", "less": "a", "area_unit": 0.0, "area_unit_95": [0.0, 0.0], "comparable": True}


def variants(encoder):
    """The same model with an adapter, with bidirectional attention, and cut."""
    adapter = Lora.initialise(encoder.backbone, rank=4, alpha=8)
    torch.manual_seed(1)
    for parameter in adapter.requires_grad_(False).parameters():
        parameter += 0.3 * torch.randn_like(parameter)
    yield Encoder(encoder.backbone.with_adapter(adapter), encoder.spec)
    choices = {"device": "cpu", "dtype": "float32", "template": "plain", "pooling": "mean"}
    yield Encoder.from_pretrained("tiny-llama", attention="bidirectional", **choices)
    cut = Encoder.from_pretrained("tiny-llama", **choices).backbone
    keep_first_blocks(cut.model, 2)
    short = Backbone(cut.name, cut.model, cut.tokenizer, cut.attention, "of the cut model")
    yield Encoder(short, replace(encoder.spec, readings=(Reading(2),)))


def test_variants_of_a_model_are_compared_on_equal_texts(encoder, document):
    curves = [document, *(dimension_curve(LayerEmbeddings(variant, TEXTS), QUICK) for variant in variants(encoder))]
    assert [curve["depth"] for curve in curves] == [4, 4, 4, 2]
    differences = area_differences([named(curve, "x") for curve in curves])
    for curve, result in zip(curves[1:], differences, strict=True):
        value = curve["area"]["unit"] - document["area"]["unit"]
        assert result["area_unit"] == pytest.approx(value, abs=1e-3) and result["comparable"]
        assert result["area_unit_95"][0] < value < result["area_unit_95"][1]
        assert value != 0


def test_other_texts_or_settings_are_not_comparable(layers, document, encoder):
    other_plan = dimension_curve(layers, DimensionPlan(neighbours=5, halves=30, quarters=3, samples=30, discard=0.2))
    fewer = dimension_curve(LayerEmbeddings(encoder, TEXTS[:50]), QUICK)
    changed = dimension_curve(LayerEmbeddings(encoder, [*TEXTS[1:], "Something else."]), QUICK)
    differences = area_differences([named(curve, "x") for curve in (document, other_plan, fewer, changed)])
    assert [difference["comparable"] for difference in differences] == [False, False, True]
    assert [difference["area_unit_95"] for difference in differences] == [None, None, None]
    assert not any(math.isnan(difference["area_unit"]) for difference in differences)


def test_saved_curve_is_labelled_by_its_file(tmp_path, document):
    single, several, bad = (tmp_path / name for name in ("base.json", "two.json", "bad.json"))
    single.write_text(json.dumps(named(document, "some/folder")))
    several.write_text(json.dumps({"encoders": [named(document, "a"), named(document, "b")]}))
    assert [curve["label"] for curve in read_curves(single)] == ["base"]
    assert [curve["encoder"] for curve in read_curves(several)] == ["a", "b"]
    for content, match in (("{}", "has no"), ("[]", "cannot be read"), ("{", "cannot be read"), ("3", "cannot")):
        bad.write_text(content)
        with pytest.raises(DataFileError, match=match):
            read_curves(bad)
    with pytest.raises(DataFileError, match="There is no file"):
        read_curves(tmp_path / "absent.json")


# the whole measurement


def test_example_in_docstring_runs():
    run_examples(measure_dimension)


def test_measurement_equals_the_curves_and_their_difference(encoder, document, tmp_path):
    other = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32", template="plain", pooling="max")
    recorder = Recorder()
    with Progress(recorder):
        measured = measure_dimension([encoder, other], TEXTS, out=tmp_path / "both.json", plan=QUICK)
    assert json.loads((tmp_path / "both.json").read_text()) == measured
    curves = measured["encoders"]
    assert {key: curves[0][key] for key in ("layers", "area", "plan")} == {
        key: json.loads(json.dumps(document[key])) for key in ("layers", "area", "plan")
    }
    assert [curve["encoder"] for curve in curves] == [repr(encoder), repr(other)]
    assert measured["differences"] == area_differences(curves)
    names = (repr(encoder), repr(other))
    assert recorder.labels == [f"{name}: {phase}" for name in names for phase in ("encoding", "measuring layers")]
    assert recorder.totals[0] == 2 * 1.1 * len(TEXTS)  # all is announced before the first text is encoded
    again = measure_dimension([tmp_path / "both.json"])  # saved curves need neither texts nor a model
    assert again == measured
