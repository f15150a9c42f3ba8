"""Geometry of every layer against plain formulas, positive pairs, and the figures of geometry and dimension."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from decoder2vec.analysis.geometry import PositivePairs, layer_geometry, measure_geometry, read_positive_pairs
from decoder2vec.analysis.intrinsic_dimension import DimensionPlan, dimension_curve
from decoder2vec.analysis.layer_embeddings import LayerEmbeddings
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.report import figures as figures_module
from decoder2vec.report.analysis_figures import draw_geometry, draw_intrinsic_dimension
from toys.docstrings import run_examples

TEXTS = [
    f"The {who} {does} {what}."
    for who in ("dog", "cat", "king")
    for does in ("sees", "eats", "likes")
    for what in ("fish", "bread", "the sea")
]
PAIRS = PositivePairs("pairs", ["A dog.", "The sea."], ["One dog.", "Some sea."])


@pytest.fixture(scope="module")
def encoder(own_cache):
    return Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def layers(encoder):
    return LayerEmbeddings(encoder, TEXTS)


@pytest.fixture(scope="module")
def geometry(layers):
    return {"encoder": "tiny", **layer_geometry(layers, PAIRS)}


@pytest.fixture(scope="module")
def curve(layers):
    plan = DimensionPlan(neighbours=5, halves=10, quarters=2, samples=10)
    return {"encoder": "tiny", **dimension_curve(layers, plan)}


def cosines(vectors):
    rows = vectors.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def test_measures_equal_plain_formulas(layers, geometry, encoder):
    pairs = LayerEmbeddings(encoder, PAIRS.texts())
    above_diagonal = np.triu_indices(len(TEXTS), 1)
    for index, row in enumerate(geometry["layers"][1:], 1):
        expected = cosines(layers.layer(index))[above_diagonal]
        assert row["anisotropy"] == pytest.approx(expected.mean(), rel=1e-4)
        assert row["uniformity"] == pytest.approx(np.log(np.exp(-2 * (2 - 2 * expected)).mean()), rel=1e-4)
        left, right = (pairs.layer(index)[pairs.row_indices(side)] for side in (PAIRS.left, PAIRS.right))
        distances = [2 - 2 * cosines(np.stack(pair))[0, 1] for pair in zip(left, right, strict=True)]
        assert row["alignment"] == pytest.approx(np.mean(distances), rel=1e-4)
        assert 1 <= row["effective_rank"] <= 32
    assert geometry["pairs"] == {"file": "pairs", "count": 2, "left_out": 0}


def test_cka_equals_a_plain_formula(layers, geometry):
    cka = geometry["cka"]
    assert len(cka) == 6 and cka[2][2] == 1 and cka[1][3] == cka[3][1]
    x, y = (layers.layer(n).astype(np.float64) - layers.layer(n).mean(axis=0, dtype=np.float64) for n in (1, 3))
    expected = np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    assert cka[1][3] == pytest.approx(expected, abs=2e-4)


def test_constant_layer_is_flagged_and_has_no_cka(geometry):
    """Layer 0 at the last token, which is that of the template."""
    assert geometry["layers"][0]["flags"] == ["constant"] and geometry["layers"][0]["effective_rank"] is None
    assert geometry["cka"][0] == [None] * 6
    json.dumps(geometry, allow_nan=False)


def test_vectors_that_are_not_finite_are_flagged(layers, monkeypatch):
    def broken_layer(index, rows=None):
        vectors = LayerEmbeddings.layer(layers, index, rows).copy()
        vectors[0, 0] = np.nan if index == 2 else vectors[0, 0]
        return vectors

    monkeypatch.setattr(layers, "layer", broken_layer)
    result = layer_geometry(layers)
    assert result["layers"][2]["flags"] == ["not finite"] and result["layers"][2]["anisotropy"] is None
    assert result["cka"][2][3] is None and result["cka"][3][4] is not None
    assert result["layers"][3]["alignment"] is None and result["pairs"] is None


def test_one_text_is_refused(encoder):
    with pytest.raises(InputError, match="two different texts"):
        layer_geometry(LayerEmbeddings(encoder, ["One."]))


# the whole measurement


def test_example_in_docstring_runs():
    run_examples(measure_geometry)


def test_measurement_equals_the_geometry_of_each_encoder(encoder, geometry, tmp_path):
    other = Encoder.from_pretrained("tiny-gpt2", device="cpu", dtype="float32")
    measured = measure_geometry([encoder, other], TEXTS, out=tmp_path / "both.json", pairs=PAIRS)
    assert json.loads((tmp_path / "both.json").read_text()) == measured
    first, second = measured["encoders"]
    for key in ("layers", "embedding", "cka", "pairs"):
        assert first[key] == geometry[key]
    assert [first["encoder"], second["encoder"]] == [repr(encoder), repr(other)]
    assert second["backbone"] == "tiny-gpt2" and first["texts"]["count"] == len(TEXTS)


# positive pairs


def test_scored_pairs_in_the_top_fifth_are_positive(tmp_path):
    file = tmp_path / "scored.tsv"
    rows = [("a", "b", 0), ("c", "d", 4), ("e", "f", 4.2), ("g", "g", 5), ("h", "i", 5)]
    file.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in rows))
    pairs = read_positive_pairs(file)
    assert (pairs.left, pairs.right, pairs.skipped) == (["e", "h"], ["f", "i"], 3)


def test_anchors_are_paired_with_positives_only(tmp_path):
    file = tmp_path / "triplets.csv"
    file.write_text("anchor,positive,negative\na,b,c\nd,e,f\n")
    pairs = read_positive_pairs(file)
    assert (pairs.left, pairs.right) == (["a", "d"], ["b", "e"]) and pairs.texts() == ["a", "d", "b", "e"]


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("texts.txt", "a\nb\n", "plain texts"),
        ("labels.tsv", "text\tlabel\na\t1\n", "labelled texts"),
        ("same.tsv", "anchor\tpositive\na\ta\n", "no pair"),
        ("level.tsv", "sentence1\tsentence2\tscore\na\tb\t3\n", "no pair"),
        ("bad.tsv", "sentence1\tsentence2\tscore\na\tb\thigh\n", "line 2: the score 'high'"),
        ("nan.tsv", "sentence1\tsentence2\tscore\na\tb\tnan\n", "not a finite number"),
    ],
)
def test_files_without_positive_pairs_are_refused(tmp_path, name, content, match):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataFileError, match=match):
        read_positive_pairs(tmp_path / name)


# figures


@pytest.fixture
def figures(monkeypatch):
    """The figures that a test has drawn."""
    drawn = []
    save = figures_module.save_png
    monkeypatch.setattr(figures_module, "save_png", lambda figure, file: (drawn.append(figure), save(figure, file)))
    return drawn


def test_curve_is_drawn_with_subsamples_and_gaps(curve, tmp_path, figures):
    draw_intrinsic_dimension([curve], tmp_path / "id.png")
    with Image.open(tmp_path / "id.png") as image:
        assert image.format == "PNG"
    two_nn, likelihood, subsamples = figures[0].axes
    rows = [*curve["layers"][:4], curve["layers"][5]]
    for axes, name in ((two_nn, "twonn"), (likelihood, "mle")):
        drawn = axes.lines[0].get_ydata()
        assert np.isnan(drawn[0]) and list(drawn[1:]) == [row[name] for row in rows[1:]]
    assert [text.get_text() for text in subsamples.get_legend().get_texts()] == ["all points", "half of them"]


def test_several_curves_are_drawn_with_their_areas(curve, tmp_path, figures):
    draw_intrinsic_dimension([curve, {**curve, "encoder": "_other"}, {**curve, "label": "third"}], tmp_path / "id.png")
    names = [text.get_text().strip() for text in figures[0].legends[0].get_texts()]
    assert names == ["tiny", "_other", "third"]
    assert [tick.get_text() for tick in figures[0].axes[2].get_yticklabels()] == names
    assert "3 encoders on 27 texts" in figures[0].get_suptitle()


def test_curve_without_area_is_drawn(curve, tmp_path):
    without_area = {**curve, "area": dict.fromkeys(curve["area"])}
    draw_intrinsic_dimension([without_area, without_area], tmp_path / "id.png")
    assert (tmp_path / "id.png").stat().st_size > 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_geometry_is_drawn_with_a_cka_map_for_each_encoder(geometry, tmp_path, figures, count):
    draw_geometry([geometry] * count, tmp_path / "geometry.png")
    maps = [axes for axes in figures[0].axes if axes.images]
    assert len(maps) == count and maps[0].images[0].get_array().shape == (5, 5)
    panels = [axes for axes in figures[0].axes if axes.get_title() == "alignment"]
    assert [line.get_ydata()[1] for line in panels[0].lines] == [geometry["layers"][1]["alignment"]] * count


def test_alignment_panel_needs_pairs(layers, tmp_path, figures):
    draw_geometry([{"encoder": "tiny", **layer_geometry(layers)}], tmp_path / "geometry.png")
    assert "alignment" not in [axes.get_title() for axes in figures[0].axes]
