"""Figures of training runs: drawn from the data there is, labelled, and left out with a reason if there is none."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from PIL import Image

from decoder2vec.report import figures
from decoder2vec.report.runs import find_runs
from decoder2vec.report.training_figures import (
    draw_autoencoders,
    draw_correlations,
    draw_errors,
    draw_examples,
    draw_importance,
    draw_overview,
    draw_run,
    draw_scores,
    draw_training,
    seed_scores,
)
from toys.runs import make_record, make_results


def without_record(record, results):
    for key in ("layers", "errors", "parameters", "examples"):
        record.pop(key)
    for seed in results["seeds"]:
        seed.update(test={}, notes={})


def without_variation(record, results):
    record["layers"] = {key: record["layers"][key] for key in ("data", "raw")}
    record["errors"]["all"] = [0.1] * 9
    record["parameters"]["trained"] = 0
    for seed in results["seeds"]:
        seed["dev"] = {}
        seed["notes"]["training"]["losses"] = []


def with_nan(record, results):
    record["errors"]["all"] = [math.nan, 0.1, 0.2]
    record["layers"]["raw"]["pearson"] = [math.nan] * 4
    for seed in results["seeds"]:
        seed["dev"]["stsb-dev"]["spearman"] = math.nan
        seed["notes"]["pretraining"].update(error=[0.0] * 4, unexplained=[math.nan] * 4, start=-math.inf)


def without_seeds(record, results):
    results["seeds"] = []
    record["errors"]["all"] = [0.1]
    record["layers"] = record["examples"] = []


DAMAGES = {
    without_record: {"ladder"},
    without_variation: {
        "ladder",
        "examples",
        "it-layers",
        "it-autoencoders",
        "it-training",
        "it-errors",
    },
    with_nan: {
        *("ladder", "examples"),
        *("it-layers", "it-autoencoders", "it-worth", "it-training", "it-errors"),
    },
    without_seeds: set(),
}
"""What a run lacks, and which figures are still drawn."""


@pytest.fixture
def texts(monkeypatch):
    """All texts in the figures drawn so far."""
    texts = []
    save_png = figures.save_png

    def record_texts(figure, file):
        save_png(figure, file)
        texts.extend(text.get_text() for text in figure.findobj(match=lambda artist: hasattr(artist, "get_text")))

    monkeypatch.setattr(figures, "save_png", record_texts)
    return texts


def is_png(file):
    with Image.open(file) as image:
        image.verify()
        return image.format == "PNG" and image.width > 300


def read_run(write_run, record=None, results=None):
    (run,) = find_runs(write_run("it", record or make_record(), results or make_results()))
    return run


def test_complete_run_has_every_figure(complete_run, tmp_path):
    runs = find_runs(complete_run("step5"))
    drawn = draw_overview(runs, tmp_path) + draw_run(runs[0], tmp_path, "step5")
    assert [figure.file.name for figure in drawn] == [
        "ladder.png",
        "examples.png",
        "step5-layers.png",
        "step5-autoencoders.png",
        "step5-worth.png",
        "step5-training.png",
        "step5-errors.png",
    ]
    assert all(is_png(figure.file) and figure.file.with_suffix(".svg").is_file() for figure in drawn)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_missing_data_leaves_figures_out_with_a_reason(damage, write_run, tmp_path):
    record, results = make_record(), make_results()
    damage(record, results)
    run = read_run(write_run, record, results)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        all_figures = draw_overview([run], tmp_path) + draw_run(run, tmp_path, "it")
    drawn = [figure for figure in all_figures if figure.file]
    assert {figure.file.stem for figure in drawn} == DAMAGES[damage]
    assert all(is_png(figure.file) for figure in drawn)
    assert all(figure.caption.endswith(".") for figure in all_figures)
    if damage is without_variation:
        importance = next(figure for figure in all_figures if figure.title == "Importance of each layer")
        assert "mixes its layers" in importance.caption


def test_scores_of_a_single_reading_are_a_sentence(write_run, tmp_path):
    run = read_run(write_run, make_record(depth=1), make_results(count=1))
    layers, _, importance, *_ = draw_run(run, tmp_path, "it")
    assert layers.file is None and importance.file is None
    assert "only one reading: layer 1" in layers.caption
    assert "raw cosine: Pearson 50.0, Spearman 50.0; trained codes: Pearson 55.0, Spearman 56.0" in layers.caption


def test_one_layer_of_each_template_makes_no_curve(write_run, tmp_path):
    run = read_run(write_run, make_record(sources="two", depth=1), make_results(count=2))
    layers, autoencoders, importance, *_ = draw_run(run, tmp_path, "it")
    assert [figure.file for figure in (layers, autoencoders, importance)] == [None] * 3
    assert "only one layer of each template and pooling: layer 1, lasttoken of 'Cost" in layers.caption
    assert "layer 1, mean of '{text}'; raw cosine: Pearson 53.5, Spearman 50.0;" in layers.caption
    assert autoencoders.caption.endswith("layer 1, mean of '{text}': 10 (mean squared error).")


def adapter_results(recipe="lora", dev=True, evaluate_every=0, **history):
    """The results of a recipe that adapts the model, with one training curve."""
    results = make_results("it", seeds=(0,), pretrain=False)
    settings = {"choose_by": "spearman", "training": {"evaluate_every": evaluate_every}}
    results["config"] = {"name": "it", "recipe": recipe, recipe: settings}
    results["seeds"][0]["notes"]["training"].update({"stage": "triplets", **history})
    if not dev:
        results["seeds"][0]["dev"] = {}
    return results


def drawn_labels(saved_figures):
    """{title: (x label, y label, y values)} of all panels."""
    return {
        axes.get_title(): (axes.get_xlabel(), axes.get_ylabel(), [list(line.get_ydata()) for line in axes.lines])
        for axes in saved_figures[-1].axes
    }


@pytest.mark.parametrize("recipe", ["lora", "soft_prompt", "kv_prefix", "full"])
def test_training_is_labelled_with_its_own_metric(recipe, write_run, tmp_path, saved_figures):
    draw_training(read_run(write_run, results=adapter_results(recipe, evaluate_every=125)), tmp_path / "t.png")
    panel = drawn_labels(saved_figures)["training, triplets: score"]
    assert panel[:2] == ("evaluation (every 125 steps)", "Spearman on dev x 100")
    assert panel[2][0] == [40.0, 60.0, 70.0, 69.0]


def test_the_results_name_the_metric_and_its_direction(write_run, tmp_path, saved_figures):
    metric = {"name": "loss on held-out texts", "lower_is_better": True}
    history = {"stage": "new texts", "metric": metric, "scores": [-3.0, -2.0, -2.5], "start": -4.0}
    draw_training(read_run(write_run, results=adapter_results(**history)), tmp_path / "t.png")
    panel = drawn_labels(saved_figures)["training, new texts: held-out loss"]
    assert panel[:2] == ("epoch", "loss on held-out texts") and panel[2][0] == [4.0, 3.0, 2.0, 2.5]


def test_one_evaluation_is_written_and_not_drawn_as_a_dot(write_run, tmp_path, saved_figures, texts):
    history = {"losses": [0.53], "scores": [60.0], "best": 0}
    draw_training(read_run(write_run, results=adapter_results(**history)), tmp_path / "t.png")
    loss, score = saved_figures[-1].axes
    assert not loss.lines and "one evaluation\nmean loss 0.53" in texts
    assert list(score.lines[0].get_ydata()) == [40.0, 60.0]


def test_training_without_any_curve_is_a_sentence(write_run, tmp_path):
    (run,) = find_runs(write_run("no", None, adapter_results(losses=[0.53], scores=[60.0], start=-math.inf)))
    training = next(figure for figure in draw_run(run, tmp_path, "it") if figure.title == "Training")
    assert training.file is None and training.caption == "one evaluation; mean loss of seed 0: 0.53."


def test_scores_name_runs_metrics_and_the_best_on_dev(complete_run, write_run, tmp_path, texts):
    complete_run("step5")
    better = make_results("step0")
    for seed in better["seeds"]:
        seed["dev"]["stsb-dev"]["spearman"] += 5
    write_run("step0", make_record("step0"), better)
    headline = draw_scores(find_runs(tmp_path), tmp_path / "ladder.png")
    assert {"step0", "step5", "Spearman", "Pearson", "dev: stsb-dev", "test: stsb-test"} <= set(texts)
    assert headline == "Scores of 2 runs. Highest Spearman on dev: step0 (85.5; on test 70.5)"
    assert headline in " ".join(texts).replace("\n", " ")
    assert "85.5 ± 0.7" in texts and "correlation x 100" in texts


def test_score_over_several_files_is_their_mean(write_run):
    results = make_results(seeds=(3,))
    results["seeds"][0]["test"] = {"a": {"spearman": 10.0, "pearson": 1.0}, "b": {"spearman": 30.0}}
    run = read_run(write_run, None, results)
    assert (seed_scores(run, "test", "spearman"), seed_scores(run, "test", "pearson")) == ([20.0], [1.0])


def test_runs_are_compared_on_shared_files(write_run, tmp_path, texts):
    one, two = make_results("one", seeds=(0,)), make_results("two", seeds=(0,))
    one["seeds"][0]["test"] = {"a": {"spearman": 10.0, "pearson": 1.0}, "b": {"spearman": 30.0, "pearson": 3.0}}
    two["seeds"][0]["test"] = {"a": {"spearman": 20.0, "pearson": 2.0}}
    write_run("one", None, one)
    write_run("two", None, two)
    draw_scores(find_runs(tmp_path), tmp_path / "ladder.png")
    assert "test: a" in texts and "10.0" in texts and "20.0" in texts, "not the mean of a and b, which only one run has"


def test_each_pooling_and_template_is_a_curve(write_run, tmp_path, texts):
    """And dollar signs in a prompt are not math."""
    run = read_run(write_run, make_record(sources="two"), make_results(count=8, head="sum"))
    for draw in (draw_correlations, draw_autoencoders, draw_importance):
        texts.clear()
        draw(run, tmp_path / "it.png")
        assert {"lasttoken of 'Cost: $5 or $6? {text}'", "mean of '{text}'"} <= set(texts)
        assert "layer (0 = embeddings)" in texts
        assert not any("mathdefault" in text for text in texts)


def test_weights_are_drawn_only_for_the_sum_head(write_run, tmp_path, texts):
    draw_importance(read_run(write_run), tmp_path / "mlp.png")
    assert "points of Pearson" in texts and "weight in the sum" not in texts
    (run,) = find_runs(write_run("sum", make_record(), make_results(head="sum")))
    draw_importance(run, tmp_path / "sum.png")
    assert "weight in the sum" in texts


def test_axes_have_units(write_run, tmp_path, texts):
    run = read_run(write_run)
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
    """Median cut by area turned a blue line green, so that the legend was wrong."""

    def count_missing_colours(image):
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3).astype(int)
        expected = [[int(colour[n : n + 2], 16) for n in (1, 3, 5)] for colour in figures.COLOURS]
        return sum(np.abs(pixels - colour).max(axis=1).min() > 10 for colour in expected)

    with figures.panels(tmp_path / "it.png", "Lines", 1, 1, (7, 3)) as (_, grid):
        for number, colour in enumerate(figures.COLOURS):
            grid[0][0].plot([0, 1], [number, number + 0.5], color=colour, linewidth=1)
        grid[0][0].barh([9, 10], [1, 1], color="#70aed1")
    with Image.open(tmp_path / "it.png") as image:
        assert count_missing_colours(image) == 0
        assert count_missing_colours(image.convert("RGB").quantize(16, dither=Image.Dither.NONE)) > 0


def test_examples_name_few_encoders_but_not_many(complete_run, tmp_path, texts):
    complete_run("one", "_first")
    draw_examples(find_runs(tmp_path), tmp_path / "few.png")
    assert " _first" in texts and "an encoder" not in texts  # matplotlib hides names with an underscore
    texts.clear()
    for number in range(8):
        complete_run(f"n{number}", f"n{number}")
    draw_examples(find_runs(tmp_path), tmp_path / "many.png")
    assert "an encoder" in texts and "n3" not in texts


def test_file_stems_are_safe_and_unique():
    names = ["step5, gemma/3", "Step5 gemma 3", "../../etc", "😀", "", "step5, gemma/3!"]
    stems = figures.file_stems(names)
    assert stems == ["step5-gemma-3", "step5-gemma-3--2", "etc", "run", "run--2", "step5-gemma-3--3"]
