"""The shape of every layer, against the measures of its vectors; pairs that belong together; the pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from decoder2vec.analysis.geometry import RelatedPairs, layer_geometry, read_related_pairs
from decoder2vec.analysis.intrinsic_dimension import DimensionPlan, dimension_curve
from decoder2vec.analysis.layer_embeddings import LayerEmbeddings
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError
from decoder2vec.report import figures as drawing
from decoder2vec.report.analysis_figures import draw_geometry, draw_intrinsic_dimension

TEXTS = [
    f"The {who} {does} {what}."
    for who in ("dog", "cat", "king")
    for does in ("sees", "eats", "likes")
    for what in ("fish", "bread", "the sea")
]
PAIRS = RelatedPairs("pairs", ["A dog.", "The sea."], ["One dog.", "Some sea."])


@pytest.fixture(scope="module")
def encoder(own_cache):
    return Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def clouds(encoder):
    return LayerEmbeddings(encoder, TEXTS)


@pytest.fixture(scope="module")
def shape(clouds):
    return {"encoder": "tiny", **layer_geometry(clouds, PAIRS)}


@pytest.fixture(scope="module")
def curve(clouds):
    plan = DimensionPlan(neighbours=5, halves=10, quarters=2, samples=10)
    return {"encoder": "tiny", **dimension_curve(clouds, plan)}


def cosines(vectors):
    rows = vectors.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def test_every_layer_has_the_shape_of_its_vectors(clouds, shape, encoder):
    pairs = LayerEmbeddings(encoder, PAIRS.texts())
    above = np.triu_indices(len(TEXTS), 1)
    for number, row in enumerate(shape["layers"][1:], 1):
        found = cosines(clouds.layer(number))[above]
        assert row["anisotropy"] == pytest.approx(found.mean(), rel=1e-4)
        assert row["uniformity"] == pytest.approx(np.log(np.exp(-2 * (2 - 2 * found)).mean()), rel=1e-4)
        left, right = (pairs.layer(number)[pairs.rows(side)] for side in (PAIRS.left, PAIRS.right))
        distances = [2 - 2 * cosines(np.stack(both))[0, 1] for both in zip(left, right, strict=True)]
        assert row["alignment"] == pytest.approx(np.mean(distances), rel=1e-4)
        assert 1 <= row["effective_rank"] <= 32
    assert shape["pairs"] == {"file": "pairs", "count": 2, "left_out": 0}


def test_layers_are_compared_with_each_other(clouds, shape):
    found = shape["cka"]
    assert len(found) == 6 and found[2][2] == 1 and found[1][3] == found[3][1]
    x, y = (clouds.layer(n).astype(np.float64) - clouds.layer(n).mean(axis=0, dtype=np.float64) for n in (1, 3))
    expected = np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))
    assert found[1][3] == pytest.approx(expected, abs=2e-4)


def test_a_constant_layer_is_flagged_and_has_no_likeness(shape):
    """Layer 0 at the last token of the prompt."""
    assert shape["layers"][0]["flags"] == ["constant"] and shape["layers"][0]["effective_rank"] is None
    assert shape["cka"][0] == [None] * 6
    json.dumps(shape, allow_nan=False)


def test_vectors_that_are_not_finite_are_flagged(clouds, monkeypatch):
    def broken(number, rows=None):
        vectors = LayerEmbeddings.layer(clouds, number, rows).copy()
        vectors[0, 0] = np.nan if number == 2 else vectors[0, 0]
        return vectors

    monkeypatch.setattr(clouds, "layer", broken)
    found = layer_geometry(clouds)
    assert found["layers"][2]["flags"] == ["not finite"] and found["layers"][2]["anisotropy"] is None
    assert found["cka"][2][3] is None and found["cka"][3][4] is not None
    assert found["layers"][3]["alignment"] is None and found["pairs"] is None


def test_one_text_has_no_shape(encoder):
    with pytest.raises(InputError, match="two different texts"):
        layer_geometry(LayerEmbeddings(encoder, ["One."]))


# which pairs belong together


def test_scored_pairs_belong_together_above_four_fifths_of_the_scale(tmp_path):
    file = tmp_path / "scored.tsv"
    rows = [("a", "b", 0), ("c", "d", 4), ("e", "f", 4.2), ("g", "g", 5), ("h", "i", 5)]
    file.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in rows))
    found = read_related_pairs(file)
    assert (found.left, found.right, found.left_out) == (["e", "h"], ["f", "i"], 3)


def test_anchors_belong_to_their_positives_and_not_to_negatives(tmp_path):
    file = tmp_path / "triplets.csv"
    file.write_text("anchor,positive,negative\na,b,c\nd,e,f\n")
    found = read_related_pairs(file)
    assert (found.left, found.right) == (["a", "d"], ["b", "e"]) and found.texts() == ["a", "d", "b", "e"]


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
def test_files_without_such_pairs_are_refused(tmp_path, name, content, match):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataFileError, match=match):
        read_related_pairs(tmp_path / name)


# pictures


@pytest.fixture
def figures(monkeypatch):
    found = []
    save = drawing.save_png
    monkeypatch.setattr(drawing, "save_png", lambda figure, file: (found.append(figure), save(figure, file)))
    return found


def test_one_curve_is_drawn_with_its_parts_and_gaps_where_it_is_undefined(curve, tmp_path, figures):
    draw_intrinsic_dimension([curve], tmp_path / "id.png")
    with Image.open(tmp_path / "id.png") as image:
        assert image.format == "PNG"
    two_nn, likelihood, parts = figures[0].axes
    rows = [*curve["layers"][:4], curve["layers"][5]]
    for axes, name in ((two_nn, "twonn"), (likelihood, "mle")):
        drawn = axes.lines[0].get_ydata()
        assert np.isnan(drawn[0]) and list(drawn[1:]) == [row[name] for row in rows[1:]]
    assert [text.get_text() for text in parts.get_legend().get_texts()] == ["all points", "half of them"]


def test_several_curves_share_one_figure_with_their_areas(curve, tmp_path, figures):
    draw_intrinsic_dimension([curve, {**curve, "encoder": "_other"}, {**curve, "label": "third"}], tmp_path / "id.png")
    names = [text.get_text().strip() for text in figures[0].legends[0].get_texts()]
    assert names == ["tiny", "_other", "third"]
    assert [tick.get_text() for tick in figures[0].axes[2].get_yticklabels()] == names
    assert "3 encoders on 27 texts" in figures[0].get_suptitle()


def test_a_curve_without_an_area_is_drawn_too(curve, tmp_path):
    bare = {**curve, "area": dict.fromkeys(curve["area"])}
    draw_intrinsic_dimension([bare, bare], tmp_path / "id.png")
    assert (tmp_path / "id.png").stat().st_size > 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_geometry_of_encoders_is_drawn_with_a_map_for_each(shape, tmp_path, figures, count):
    draw_geometry([shape] * count, tmp_path / "geometry.png")
    maps = [axes for axes in figures[0].axes if axes.images]
    assert len(maps) == count and maps[0].images[0].get_array().shape == (5, 5)
    shown = [axes for axes in figures[0].axes if axes.get_title() == "alignment"]
    assert [line.get_ydata()[1] for line in shown[0].lines] == [shape["layers"][1]["alignment"]] * count


def test_without_pairs_there_is_no_panel_of_alignment(clouds, tmp_path, figures):
    draw_geometry([{"encoder": "tiny", **layer_geometry(clouds)}], tmp_path / "geometry.png")
    assert "alignment" not in [axes.get_title() for axes in figures[0].axes]
