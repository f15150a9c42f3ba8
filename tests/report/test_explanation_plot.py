"""The explanation of a pair as a picture."""

from __future__ import annotations

import pytest
from PIL import Image

from decoder2vec.config import Reading
from decoder2vec.heads.layerwise import Explanation
from decoder2vec.report import figures as drawing
from decoder2vec.report.analysis_figures import draw_explanation

ONE = tuple(Reading(layer, "lasttoken") for layer in range(1, 7))
TWO = tuple(Reading(layer, pooling, template="$1 {text} $2") for pooling in ("mean", "max") for layer in (2, 4, 6))


@pytest.fixture
def figures(monkeypatch):
    found = []
    save = drawing._save
    monkeypatch.setattr(drawing, "_save", lambda figure, file: (found.append(figure), save(figure, file)))
    return found


def explanation(readings):
    count = len(readings)
    cosines = tuple(0.5 + 0.05 * n for n in range(count))
    return Explanation(0.81, 0.63, readings, cosines, tuple(0.1 - 0.05 * n for n in range(count)))


@pytest.mark.parametrize("readings", [ONE, TWO, ONE[:1]], ids=["layers", "sources", "single"])
def test_it_shows_every_cosine_and_contribution(readings, tmp_path, figures):
    file = tmp_path / "new" / "why.png"
    shown = explanation(readings)
    draw_explanation(shown, file)
    with Image.open(file) as image:
        assert image.format == "PNG"
    cosines, contributions = figures[0].axes
    curves = [line.get_ydata() for line in cosines.lines if line.get_marker() != "None"]
    assert sorted(value for curve in curves for value in curve) == sorted(shown.cosines)
    dots = [line.get_ydata() for line in contributions.lines if line.get_marker() != "None"]
    assert sorted(value for curve in dots for value in curve) == sorted(shown.contributions)


def test_it_says_score_texts_and_ways_of_reading(tmp_path, figures):
    draw_explanation(explanation(TWO), tmp_path / "why.png", ("A cat costs $5.", "x" * 200))
    title = " ".join(figures[0].get_suptitle().split())
    assert title.startswith("A cat costs $5. / xxx") and "score 0.81 (similarity 0.63 before calibration)" in title
    names = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert names == ["mean of '$1 {text} $2'", "max of '$1 {text} $2'"]


def test_one_way_of_reading_needs_no_legend(tmp_path, figures):
    draw_explanation(explanation(ONE), tmp_path / "why.png")
    assert figures[0].legends == []
