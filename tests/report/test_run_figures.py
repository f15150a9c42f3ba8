"""Every figure is drawn from what there is, says what it shows, and is left out with a reason where nothing is."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from PIL import Image

from decoder2vec.report import figures as drawing
from decoder2vec.report.runs import find_runs
from decoder2vec.report.training_figures import (
    draw_autoencoders,
    draw_correlations,
    draw_errors,
    draw_examples,
    draw_ladder,
    draw_overview,
    draw_run,
    draw_training,
    draw_worth,
    file_stems,
    seed_scores,
)
from toys.runs import make_record, make_results


def without_the_record(record, results):
    for part in ("layers", "errors", "parameters", "examples"):
        record.pop(part)
    for seed in results["seeds"]:
        seed.update(test={}, notes={})


def nothing_to_tell_apart(record, results):
    record["layers"] = {part: record["layers"][part] for part in ("data", "raw")}
    record["errors"]["all"] = [0.1] * 9
    record["parameters"]["trained"] = 0
    for seed in results["seeds"]:
        seed["dev"] = {}
        seed["notes"]["training"]["losses"] = []


def no_numbers(record, results):
    record["errors"]["all"] = [math.nan, 0.1, 0.2]
    record["layers"]["raw"]["pearson"] = [math.nan] * 4
    for seed in results["seeds"]:
        seed["dev"]["stsb-dev"]["spearman"] = math.nan
        seed["notes"]["pretraining"].update(error=[0.0] * 4, unexplained=[math.nan] * 4, start=-math.inf)


def no_seeds(record, results):
    results["seeds"] = []
    record["errors"]["all"] = [0.1]
    record["layers"] = record["examples"] = []


DAMAGES = {
    without_the_record: {"ladder"},
    nothing_to_tell_apart: {
        "ladder",
        "examples",
        "parameters",
        "it-layers",
        "it-autoencoders",
        "it-training",
        "it-errors",
    },
    no_numbers: {
        *("ladder", "examples", "parameters"),
        *("it-layers", "it-autoencoders", "it-worth", "it-training", "it-errors"),
    },
    no_seeds: {"parameters"},
}
"""What is wrong with a run, and which figures are still drawn."""


@pytest.fixture
def texts(monkeypatch):
    """Everything written in the figures drawn so far."""
    found = []
    save = drawing._save

    def remember(figure, file):
        save(figure, file)
        found.extend(text.get_text() for text in figure.findobj(match=lambda artist: hasattr(artist, "get_text")))

    monkeypatch.setattr(drawing, "_save", remember)
    return found


def is_png(file):
    with Image.open(file) as image:
        image.verify()
        return image.format == "PNG" and image.width > 300


def the_run(write_run, record=None, results=None):
    (run,) = find_runs(write_run("it", record or make_record(), results or make_results()))
    return run


def test_a_complete_run_has_every_figure(a_run, tmp_path):
    runs = find_runs(a_run("step5"))
    pictures = draw_overview(runs, tmp_path) + draw_run(runs[0], tmp_path, "step5")
    assert [picture.file.name for picture in pictures] == [
        "ladder.png",
        "examples.png",
        "parameters.png",
        "step5-layers.png",
        "step5-autoencoders.png",
        "step5-worth.png",
        "step5-training.png",
        "step5-errors.png",
    ]
    assert all(is_png(picture.file) for picture in pictures)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_missing_is_left_out_with_a_reason(damage, write_run, tmp_path):
    record, results = make_record(), make_results()
    damage(record, results)
    run = the_run(write_run, record, results)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures = draw_overview([run], tmp_path) + draw_run(run, tmp_path, "it")
    drawn = [picture for picture in pictures if picture.file]
    assert {picture.file.stem for picture in drawn} == DAMAGES[damage]
    assert all(is_png(picture.file) for picture in drawn)
    assert all(picture.about.endswith(".") for picture in pictures)
    if damage is nothing_to_tell_apart:
        assert "mixes its layers" in pictures[5].about


def test_a_run_that_reads_one_layer_says_its_scores_instead_of_drawing_a_dot(write_run, tmp_path):
    run = the_run(write_run, make_record(depth=1), make_results(count=1))
    layers, _, worth, *_ = draw_run(run, tmp_path, "it")
    assert layers.file is None and worth.file is None
    assert "one place only: layer 1" in layers.about
    assert "raw cosine: Pearson 50.0, Spearman 50.0; trained codes: Pearson 55.0, Spearman 56.0" in layers.about


def test_the_ladder_names_runs_and_metrics_and_the_best_on_dev(a_run, write_run, tmp_path, texts):
    a_run("step5")
    better = make_results("step0")
    for seed in better["seeds"]:
        seed["dev"]["stsb-dev"]["spearman"] += 5
    write_run("step0", make_record("step0"), better)
    draw_ladder(find_runs(tmp_path), tmp_path / "ladder.png")
    assert {"step0", "step5", "Spearman", "Pearson", "dev: stsb-dev", "test: stsb-test"} <= set(texts)
    assert "Scores of 2 runs. Highest Spearman on dev: step0 (85.5; on test 70.5)" in " ".join(texts).replace("\n", " ")
    assert "85.5 ± 0.7" in texts and "correlation x 100" in texts


def test_several_files_count_by_their_mean(write_run):
    results = make_results(seeds=(3,))
    results["seeds"][0]["test"] = {"a": {"spearman": 10.0, "pearson": 1.0}, "b": {"spearman": 30.0}}
    run = the_run(write_run, None, results)
    assert (seed_scores(run, "test", "spearman"), seed_scores(run, "test", "pearson")) == ([20.0], [1.0])


def test_runs_are_compared_on_the_files_they_share(write_run, tmp_path, texts):
    one, two = make_results("one", seeds=(0,)), make_results("two", seeds=(0,))
    one["seeds"][0]["test"] = {"a": {"spearman": 10.0, "pearson": 1.0}, "b": {"spearman": 30.0, "pearson": 3.0}}
    two["seeds"][0]["test"] = {"a": {"spearman": 20.0, "pearson": 2.0}}
    write_run("one", None, one)
    write_run("two", None, two)
    draw_ladder(find_runs(tmp_path), tmp_path / "ladder.png")
    assert "test: a" in texts and "10.0" in texts and "20.0" in texts, "not the mean of a and b, which only one has"


def test_readings_of_several_sources_are_curves_of_their_own(write_run, tmp_path, texts):
    """Dollar signs in a prompt are not formulas."""
    run = the_run(write_run, make_record(sources="two"), make_results(count=8, head="sum"))
    for draw in (draw_correlations, draw_autoencoders, draw_worth):
        texts.clear()
        draw(run, tmp_path / "it.png")
        assert {"lasttoken of 'Cost: $5 or $6? {text}'", "mean of '{text}'"} <= set(texts)
        assert "layer (0 = embeddings)" in texts
        assert not any("mathdefault" in text for text in texts)


def test_weights_are_drawn_for_the_sum_head_only(write_run, tmp_path, texts):
    draw_worth(the_run(write_run), tmp_path / "mlp.png")
    assert "points of Pearson" in texts and "weight in the sum" not in texts
    (run,) = find_runs(write_run("sum", make_record(), make_results(head="sum")))
    draw_worth(run, tmp_path / "sum.png")
    assert "weight in the sum" in texts


def test_axes_say_their_units(write_run, tmp_path, texts):
    run = the_run(write_run)
    draw_autoencoders(run, tmp_path / "a.png")
    draw_training(run, tmp_path / "t.png")
    draw_errors(run, tmp_path / "e.png")
    expected = {
        "mean squared error (log axis)",
        "share of variance (1 - R²)",
        "error on held-out texts",
        "Pearson on dev x 100",
        "epoch",
        "seed 1",
        "score - human score (both from 0 to 1)",
        "normal quantile (standard deviations)",
    }
    assert expected <= set(texts)


def test_thin_lines_keep_their_colours(tmp_path):
    """Median cut by area turned a blue line green: nobody could have read the legend."""

    def wrong(image):
        shown = np.asarray(image.convert("RGB")).reshape(-1, 3).astype(int)
        wanted = [[int(colour[n : n + 2], 16) for n in (1, 3, 5)] for colour in drawing.COLOURS]
        return sum(np.abs(shown - colour).max(axis=1).min() > 10 for colour in wanted)

    with drawing.panels(tmp_path / "it.png", "Lines", 1, 1, (7, 3)) as (_, grid):
        for number, colour in enumerate(drawing.COLOURS):
            grid[0][0].plot([0, 1], [number, number + 0.5], color=colour, linewidth=1)
        grid[0][0].barh([9, 10], [1, 1], color="#70aed1")
    with Image.open(tmp_path / "it.png") as image:
        assert wrong(image) == 0
        assert wrong(image.convert("RGB").quantize(16, dither=Image.Dither.NONE)) > 0


def test_few_encoders_are_named_in_the_examples_and_many_are_alike(a_run, tmp_path, texts):
    a_run("one", "_first")
    draw_examples(find_runs(tmp_path), tmp_path / "few.png")
    assert " _first" in texts and "an encoder" not in texts  # matplotlib would hide a name with an underscore
    texts.clear()
    for number in range(8):
        a_run(f"n{number}", f"n{number}")
    draw_examples(find_runs(tmp_path), tmp_path / "many.png")
    assert "an encoder" in texts and "n3" not in texts


def test_file_names_are_safe_and_different():
    names = ["step5, gemma/3", "Step5 gemma 3", "../../etc", "😀", "", "step5, gemma/3!"]
    stems = file_stems(names)
    assert stems == ["step5-gemma-3", "step5-gemma-3--2", "etc", "run", "run--2", "step5-gemma-3--3"]
