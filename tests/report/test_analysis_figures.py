"""The figure that explains the similarity of two texts."""

from __future__ import annotations

import pytest
from PIL import Image

from decoder2vec.config import Reading
from decoder2vec.heads.layerwise import Explanation
from decoder2vec.report.analysis_figures import draw_explanation

ONE_GROUP = tuple(Reading(layer, "lasttoken") for layer in range(1, 7))
TWO_GROUPS = tuple(
    Reading(layer, pooling, template="$1 {text} $2") for pooling in ("mean", "max") for layer in (2, 4, 6)
)


def make_explanation(readings):
    count = len(readings)
    cosines = tuple(0.5 + 0.05 * n for n in range(count))
    return Explanation(0.81, 0.63, readings, cosines, tuple(0.1 - 0.05 * n for n in range(count)))


@pytest.mark.parametrize("readings", [ONE_GROUP, TWO_GROUPS, ONE_GROUP[:1]], ids=["layers", "groups", "single"])
def test_explanation_shows_every_cosine_and_contribution(readings, tmp_path, saved_figures):
    file = tmp_path / "new" / "why.png"
    explanation = make_explanation(readings)
    draw_explanation(explanation, file)
    with Image.open(file) as image:
        assert image.format == "PNG"
    cosines, contributions = saved_figures[0].axes
    curves = [line.get_ydata() for line in cosines.lines if line.get_marker() != "None"]
    assert sorted(value for curve in curves for value in curve) == sorted(explanation.cosines)
    stems = [line.get_ydata() for line in contributions.lines if line.get_marker() != "None"]
    assert sorted(value for curve in stems for value in curve) == sorted(explanation.contributions)


def test_explanation_names_score_texts_and_groups(tmp_path, saved_figures):
    draw_explanation(make_explanation(TWO_GROUPS), tmp_path / "why.png", ("A cat costs $5.", "x" * 200))
    title = " ".join(saved_figures[0].get_suptitle().split())
    assert title.startswith("A cat costs $5. / xxx") and "score 0.81 (similarity 0.63 before calibration)" in title
    names = [text.get_text() for text in saved_figures[0].legends[0].get_texts()]
    assert names == ["mean of '$1 {text} $2'", "max of '$1 {text} $2'"]


def test_single_group_has_no_legend(tmp_path, saved_figures):
    draw_explanation(make_explanation(ONE_GROUP), tmp_path / "why.png")
    assert saved_figures[0].legends == []
