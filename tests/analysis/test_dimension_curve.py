"""The dimension of every layer of an encoder: the right vectors, honest numbers, nothing silent."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.analysis.intrinsic_dimension import DimensionPlan, differences, dimension_curve, measure, read_curves
from decoder2vec.analysis.layer_embeddings import LayerEmbeddings, in_curve, spread
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import keep_first_blocks
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.maths import intrinsic_dimension as dimension
from decoder2vec.maths.intrinsic_dimension import nearest_neighbours

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
def clouds(encoder):
    return LayerEmbeddings(encoder, TEXTS)


@pytest.fixture(scope="module")
def document(clouds):
    return dimension_curve(clouds, QUICK)


def cloud(rows=400, columns=5, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, columns))


# which vectors


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_layer_l_is_what_block_l_returns_under_either_padding(encoder, pooling, padding):
    found = LayerEmbeddings(encoder, TEXTS, pooling)
    model, tokenizer = encoder.backbone.model, encoder.backbone.tokenizer
    kept = {}
    hooks = [
        block.register_forward_hook(lambda _, __, out, n=n: kept.update({n: out[0] if isinstance(out, tuple) else out}))
        for n, block in enumerate(encoder.backbone.blocks, 1)
    ]
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    width = max(map(len, ids))
    blank = [[0] * (width - len(each)) for each in ids]
    rows = [[*b, *i] if padding == "left" else [*i, *b] for i, b in zip(ids, blank, strict=True)]
    masks = [[*b, *[1] * len(i)] if padding == "left" else [*[1] * len(i), *b] for i, b in zip(ids, blank, strict=True)]
    mask = torch.tensor(masks)
    with torch.no_grad():
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        model(input_ids=torch.tensor(rows), attention_mask=mask, position_ids=positions, use_cache=False)
    for hook in hooks:
        hook.remove()
    for number, reading in enumerate(found.readings[1:-1], 1):
        states = kept[reading.layer]
        if pooling == "mean":
            expected = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        else:
            last = (mask * torch.arange(width)).argmax(1)
            expected = states[torch.arange(len(TEXTS)), last]
        np.testing.assert_allclose(found.layer(number), expected.numpy(), rtol=2e-3, atol=2e-3)


def test_the_curve_is_layers_one_to_last_with_the_last_normed(clouds):
    chosen = [(clouds.readings[n].layer, clouds.readings[n].normed) for n in in_curve(clouds.readings)]
    assert chosen == [(1, False), (2, False), (3, False), (4, True)]
    assert [(r.layer, r.normed) for r in clouds.readings] == [*((n, False) for n in range(5)), (4, True)]


def test_embeddings_are_those_of_encode(encoder, clouds, gap):
    assert gap(clouds.embeddings(), encoder.encode(TEXTS)) < 1e-3  # the store keeps 11 bits
    headed = encoder.with_head("standardise", TEXTS)
    assert gap(LayerEmbeddings(headed, TEXTS).embeddings(), headed.encode(TEXTS)) < 2e-2
    two = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32", layer=[1, 3], normalize=True)
    assert gap(LayerEmbeddings(two, TEXTS).embeddings(), two.encode(TEXTS)) < 1e-3


def test_a_text_that_stands_there_twice_is_one_point(encoder):
    assert len(LayerEmbeddings(encoder, [*TEXTS, *TEXTS[:7]]).texts) == len(TEXTS)


def test_texts_are_spread_evenly_without_blanks_and_repetitions():
    assert spread(["b", " ", "a", "b", "", "c"]) == ["b", "a", "c"]
    assert spread([str(n) for n in range(101)], 3) == ["0", "50", "100"]
    assert spread(["a", "b"], 1) == ["a"]


# which numbers


def test_every_layer_has_the_numbers_of_its_vectors(clouds, document):
    assert [row["layer"] for row in document["layers"]] == [0, 1, 2, 3, 4, 4]
    for number, row in enumerate(document["layers"]):
        distances = nearest_neighbours(clouds.layer(number), 5).distances
        expected = dimension.two_nn(dimension.log_distance_ratios(distances))
        assert row["twonn"] == pytest.approx(expected, rel=1e-5)
        assert row["mle"] == pytest.approx(dimension.local_dimensions(distances).mean(), rel=1e-5)
        assert row["twonn_95"][0] < row["twonn"] < row["twonn_95"][1]
        assert row["mle_95"][0] < row["mle"] < row["mle_95"][1]
        assert [part["points"] for part in row["subsamples"]] == [30, 15]
        assert row["flags"] == ["few points"] and row["points"] == 60
    assert document["embedding"]["dim"] == 32
    json.dumps(document, allow_nan=False)


def test_both_areas_are_those_of_the_curve(document):
    curve = [row["twonn"] for row in document["layers"][1:4]] + [document["layers"][5]["twonn"]]
    trapezoids = sum((a + b) / 2 for a, b in pairwise(curve))
    area = document["area"]
    assert (area["paper"], area["unit"]) == (pytest.approx(trapezoids / 4), pytest.approx(trapezoids / 3))
    for by in ("paper", "unit"):
        assert area[f"{by}_95"][0] < area[by] < area[f"{by}_95"][1]
    assert np.ptp(area["unit_95"]) == pytest.approx(np.ptp(area["paper_95"]) * 4 / 3, rel=1e-3)


def test_parts_are_estimates_of_random_parts():
    points = cloud(600)
    plan = DimensionPlan(halves=10, quarters=4)
    halves = []
    for inside in dimension.random_subsets(600, 0.5, 10, plan.seed):
        halves.append(dimension.two_nn(dimension.log_distance_ratios(nearest_neighbours(points[inside], 2).distances)))
    found = measure(points, plan)
    assert found.subsamples[0]["mean"] == pytest.approx(np.mean(halves), rel=1e-9)
    assert found.subsamples[0]["std"] == pytest.approx(np.std(halves), rel=1e-9)
    np.testing.assert_allclose(found.samples, halves, rtol=1e-9)
    assert found.subsamples[1]["points"] == 150 and found.subsamples[1]["draws"] == 4


def test_a_cloud_of_five_dimensions_is_seen_as_such_with_nothing_flagged():
    found = measure(cloud(2000) @ np.random.default_rng(1).standard_normal((5, 40)))
    assert found.twonn == pytest.approx(5, rel=0.1) and found.mle == pytest.approx(5, rel=0.15)
    assert 4 < found.effective_rank < 5.1
    assert found.flags == [] and found.duplicates == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_vectors_that_are_not_finite_have_no_dimension(bad):
    points = cloud()
    points[7, 2] = bad
    found = measure(points)
    assert found.flags == ["not finite"] and found.twonn is found.mle is found.anisotropy is None


def test_a_constant_layer_has_no_dimension():
    found = measure(np.full((50, 4), 0.3)).to_json()
    assert found["flags"] == ["constant"] and found["duplicates"] == 49
    assert found["twonn"] is found["mle"] is found["effective_rank"] is None
    assert found["anisotropy"] == 1


def test_fewer_than_ten_different_points_have_no_dimension():
    found = measure(np.repeat(cloud(9), 5, axis=0))
    assert found.flags == ["too few points"] and (found.points, found.duplicates) == (9, 36) and found.twonn is None


def test_duplicates_are_left_out_and_counted():
    points = cloud()
    twice = np.concatenate([points, points[:30], points[:30]])
    found = measure(twice, QUICK)
    assert found.duplicates == 60
    assert found.twonn == pytest.approx(measure(points, QUICK).twonn, rel=1e-12)


def test_too_few_points_for_the_neighbours_leave_maximum_likelihood_out():
    found = measure(cloud(40))
    assert found.mle is None and found.twonn is not None
    assert found.flags == ["few points", "too few points for 50 neighbours"]


def test_twelve_points_have_an_estimate_without_an_interval():
    found = measure(cloud(12), QUICK)
    assert found.twonn is not None and found.twonn_95 is None and found.subsamples == []


def test_a_lattice_is_flagged_and_has_no_number():
    points = np.stack(np.meshgrid(*[np.arange(20.0)] * 2), -1).reshape(-1, 2)
    found = measure(points, QUICK).to_json()
    assert "ties" in found["flags"] and found["twonn"] is None and found["twonn_95"] is None
    json.dumps(found, allow_nan=False)


def test_a_layer_without_dimension_leaves_no_area(own_cache):
    """One word under a causal model and a suffix: layer 0 is constant, and that one is not in the area."""
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")
    found = dimension_curve(LayerEmbeddings(encoder, TEXTS), QUICK)
    assert found["layers"][0]["flags"] == ["constant"] and found["area"]["paper"] is not None
    first = dimension_curve(LayerEmbeddings(encoder, TEXTS, "cls"), QUICK)
    assert first["layers"][1]["flags"] == ["constant"]  # the first token sees no text
    assert first["area"]["paper"] is None and first["area_samples"] == []


def test_fewer_than_ten_texts_are_refused(encoder):
    with pytest.raises(InputError, match="10 or more"):
        dimension_curve(LayerEmbeddings(encoder, TEXTS[:9]), QUICK)


@pytest.mark.parametrize(
    "change", [{"cdf": "i"}, {"average": "median"}, {"discard": 0.95}, {"neighbours": 1}, {"halves": 0}]
)
def test_a_plan_that_makes_no_sense_is_refused(change):
    with pytest.raises(InputError):
        DimensionPlan(**change).check()


def test_what_16_bits_on_disk_cost_is_less_than_one_percent(encoder, clouds):
    from decoder2vec.activations.extract import Extractor
    from decoder2vec.text.template import Template

    exact = Extractor(encoder.backbone, clouds.readings, Template.of("plain"))(TEXTS)
    for number in range(1, len(clouds)):
        stored, direct = (measure(x, QUICK).twonn for x in (clouds.layer(number), exact[:, number]))
        assert stored == pytest.approx(direct, rel=0.01)


# comparisons


def named(document, name):
    return {"encoder": name, **document}


def test_an_encoder_does_not_differ_from_itself(document):
    (found,) = differences([named(document, "a"), named(document, "b")])
    assert found == {"encoder": "b", "less": "a", "area_unit": 0.0, "area_unit_95": [0.0, 0.0], "comparable": True}


def variants(encoder):
    """The same model with an adapter, looking both ways, and cut."""
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


def test_base_lora_bidirectional_and_cut_models_are_compared_on_the_same_texts(encoder, document):
    curves = [document, *(dimension_curve(LayerEmbeddings(each, TEXTS), QUICK) for each in variants(encoder))]
    assert [curve["depth"] for curve in curves] == [4, 4, 4, 2]
    for curve, found in zip(curves[1:], differences([named(each, "x") for each in curves]), strict=True):
        value = curve["area"]["unit"] - document["area"]["unit"]
        assert found["area_unit"] == pytest.approx(value, abs=1e-3) and found["comparable"]
        assert found["area_unit_95"][0] < value < found["area_unit_95"][1]
        assert value != 0


def test_other_texts_or_settings_are_not_compared_in_silence(clouds, document, encoder):
    other_plan = dimension_curve(clouds, DimensionPlan(neighbours=5, halves=30, quarters=3, samples=30, discard=0.2))
    fewer = dimension_curve(LayerEmbeddings(encoder, TEXTS[:50]), QUICK)
    changed = dimension_curve(LayerEmbeddings(encoder, [*TEXTS[1:], "Something else."]), QUICK)
    found = differences([named(each, "x") for each in (document, other_plan, fewer, changed)])
    assert [each["comparable"] for each in found] == [False, False, True]
    assert [each["area_unit_95"] for each in found] == [None, None, None]
    assert not any(math.isnan(each["area_unit"]) for each in found)


def test_results_are_read_again_and_named_after_their_file(tmp_path, document):
    alone, several, bad = (tmp_path / name for name in ("base.json", "two.json", "bad.json"))
    alone.write_text(json.dumps(named(document, "some/folder")))
    several.write_text(json.dumps({"encoders": [named(document, "a"), named(document, "b")]}))
    assert [curve["label"] for curve in read_curves(alone)] == ["base"]
    assert [curve["encoder"] for curve in read_curves(several)] == ["a", "b"]
    for content, match in (("{}", "has no"), ("[]", "cannot be read"), ("{", "cannot be read"), ("3", "cannot")):
        bad.write_text(content)
        with pytest.raises(DataFileError, match=match):
            read_curves(bad)
    with pytest.raises(DataFileError, match="There is no file"):
        read_curves(tmp_path / "absent.json")
