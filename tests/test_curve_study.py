"""The study of learning curves collects the runs that have ended, of whatever recipes and sizes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from decoder2vec.errors import InputError

SCRIPT = Path(__file__).parents[1] / "experiments" / "curve" / "study.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("curve_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_run(folder, recipe, size, seed, dev, test, rate=1e-3):
    run = {"seed": seed, "parameters": 7, "dev": dev, "test": test, "settings": {"training.rate": rate}}
    run |= {"untrained": {"dev": 40.0, "test": None if test is None else 30.0}, "size": size}
    (folder / f"{recipe}-{size}-{len(list(folder.iterdir()))}.json").write_text(json.dumps(run), "utf-8")


def test_runs_of_each_recipe_and_size_become_points(study, tmp_path):
    for rate, dev in ((1e-3, 60.0), (3e-3, 50.0)):
        write_run(tmp_path, "soft_prompt", 50, 0, dev, None, rate)  # the choice of the rate has no test score
    for seed, test in ((1, 58.0), (0, 54.0)):
        write_run(tmp_path, "soft_prompt", 50, seed, 60.0 + seed, test)
        write_run(tmp_path, "lora", 1000, seed, 70.0, test + 10)
    write_run(tmp_path, "lora", 50, 0, 65.0, 61.0)  # one seed is no point
    document = study.collect(tmp_path, "the command").document
    assert document["recipes"] == ["soft_prompt", "lora"] and document["command"] == "the command"
    assert [(point["recipe"], point["size"]) for point in document["points"]] == [("soft_prompt", 50), ("lora", 1000)]
    first = document["points"][0]
    assert first["test"]["seeds"] == [54.0, 58.0] and first["test"]["mean"] == 56.0
    assert [tried["dev"] for tried in first["tried"]] == [60.0, 50.0] and first["settings"] == {"training.rate": 1e-3}
    assert document["untrained"]["test"] == 30.0


def test_shapes_compare_the_recipes_at_each_size(study, tmp_path):
    scores = {("full", 50): 60, ("full", 1000): 80, ("bottleneck", 50): 50, ("bottleneck", 1000): 79}
    scores |= {("conv", 50): 49, ("conv", 1000): 78}
    for (recipe, size), score in scores.items():
        for seed in (0, 1):
            write_run(tmp_path, recipe, size, seed, 60.0, score + 0.5 * seed)
    found = study.shapes(study.collect(tmp_path, ""))
    assert [row["difference"] for row in found["full minus bottleneck"]] == [10.0, 1.0]
    assert found["the gap closes with data"] and not found["convolutions lead at the smallest size"]


def test_shapes_leave_out_what_has_not_ended(study, tmp_path):
    for recipe, size, seeds in (("full", 50, (0, 1, 2)), ("bottleneck", 50, (1, 2)), ("bottleneck", 200, (0, 1))):
        for seed in seeds:
            write_run(tmp_path, recipe, size, seed, 60.0, {"full": 60.0 + 5 * seed, "bottleneck": 62.0}[recipe])
    curve = study.collect(tmp_path, "")
    found = study.shapes(curve)
    assert [(row["size"], row["difference"]) for row in found["full minus bottleneck"]] == [(50, 5.5)]
    assert "conv minus bottleneck" not in found


def test_no_ended_runs_are_one_sentence(study, tmp_path):
    with pytest.raises(InputError, match="no recipe and size with two or more seeds"):
        study.collect(tmp_path, "")


def test_committed_results_are_those_of_the_page(study):
    """The table of docs/studies/curve.md has the means and intervals of results/curve/stsb.json."""
    root = SCRIPT.parents[2]
    points = json.loads((root / "results" / "curve" / "stsb.json").read_text("utf-8"))["points"]
    page = (root / "docs" / "studies" / "curve.md").read_text("utf-8")
    for point in points:
        assert f"{point['test']['mean']:.1f} ± {point['test']['half_interval']:.1f}" in page, point["recipe"]
