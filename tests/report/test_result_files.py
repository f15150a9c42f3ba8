"""Results are found by content, joined and given unique names; damaged files are reported."""

from __future__ import annotations

import json
import math

import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.report.result_files import find_results
from toys.evaluations import KINDS, make_dimensions, make_evaluation, make_sweep, write_evaluation
from toys.runs import make_results


def write(file, document):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def test_files_are_recognised_by_content(tmp_path):
    write_evaluation(tmp_path, *make_evaluation(), stem="zebra")
    write(tmp_path / "deep" / "er" / "x.json", make_sweep())
    write(tmp_path / "y.json", make_dimensions())
    write(tmp_path / "z.json", make_results())
    write(tmp_path / "other.json", {"rows": []})
    write(tmp_path / "a" / "b" / "c" / "too-deep.json", make_sweep())
    write(tmp_path / ".hidden" / "x.json", make_sweep())
    inputs = find_results([tmp_path])
    assert [evaluation.path.name for evaluation in inputs.evaluations] == ["zebra.json"]
    assert [sweep.path.name for sweep in inputs.sweeps] == ["x.json"]
    assert [curve.path.name for curve in inputs.dimensions] == ["y.json"]
    assert [file.name for file in inputs.training_results] == ["z.json"]
    assert inputs.skipped == [] and inputs.has_comparison


def test_every_value_of_an_evaluation_is_read(tmp_path):
    document, items = make_evaluation("mine", flags=["seen"])
    document["tasks"]["scifact"] |= {"score": None, "interval": None}
    (evaluation,) = find_results([write_evaluation(tmp_path, document, items)]).evaluations
    identity = (evaluation.name, evaluation.kind, evaluation.dim, evaluation.fingerprint)
    assert identity == ("mine", "decoder", 576, "mine-0")
    task = evaluation.tasks["stsb-test"]
    expected = document["tasks"]["stsb-test"]
    assert (task.family, task.metric, task.score, [task.low, task.high]) == (
        "sts",
        "spearman",
        expected["score"],
        expected["interval"],
    )
    assert task.flags == ("seen",)
    assert task.items.values.tolist() == items["stsb-test"]["predicted"]
    assert task.items.gold.tolist() == items["stsb-test"]["gold"]
    assert math.isnan(evaluation.tasks["scifact"].score) and math.isnan(evaluation.tasks["scifact"].low)
    assert evaluation.cost == {"parameters": 134e6, "tokens_per_second": 3000.0, "peak_megabytes": 700.0}


def test_scores_on_pairs_alone_are_an_evaluation(tmp_path):
    document = {
        "encoder": "out/encoder",
        "fingerprint": "abc",
        "spec": {},
        "results": [{"task": "stsb-test", "spearman": 74.1, "pearson": 75.0, "spearman_95": [71.0, 77.0]}],
        "mean_spearman": 74.1,
        "tokens_per_second": 300.5,
    }
    (evaluation,) = find_results([write(tmp_path / "scores.json", document)]).evaluations
    assert (evaluation.name, evaluation.cost) == ("out/encoder", {"tokens_per_second": 300.5})
    assert (evaluation.tasks["stsb-test"].score, evaluation.tasks["stsb-test"].high) == (74.1, 77.0)


def test_files_of_one_encoder_with_different_tasks_are_joined(tmp_path):
    for stem, kind, speed in (("a", "sts", 100.0), ("b", "retrieval", 300.0)):
        document, items = make_evaluation(tasks={name: own for name, own in KINDS.items() if own == kind})
        document["cost"]["tokens_per_second"] = speed
        write_evaluation(tmp_path, document, items, stem)
    (evaluation,) = find_results([tmp_path]).evaluations
    assert set(evaluation.tasks) == {"stsb-test", "sickr-test", "scifact"}
    assert evaluation.cost["tokens_per_second"] == 100.0


def test_equal_encoder_names_get_their_file_names(tmp_path):
    for stem in ("a", "b", "c/a"):
        file = tmp_path / stem
        write_evaluation(file.parent, *make_evaluation("same"), file.name)
    names = [evaluation.name for evaluation in find_results([tmp_path]).evaluations]
    assert names[1] == "same (b)" and len(set(names)) == 3 and all(name.startswith("same (a)") for name in names[::2])


def test_file_given_twice_is_read_once(tmp_path):
    file = write_evaluation(tmp_path, *make_evaluation())
    assert len(find_results([tmp_path, file, tmp_path / "." / file.name]).evaluations) == 1


def test_damaged_files_are_skipped_in_folders_and_refused_by_name(tmp_path):
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    document, items = make_evaluation()
    write_evaluation(tmp_path, {**document, "tasks": {"x": {"kind": "sts"}}}, items, "odd")
    inputs = find_results([tmp_path])
    assert not inputs.has_comparison
    assert any("bad.json holds no JSON" in line for line in inputs.skipped)
    assert any("odd.json has an unexpected structure (KeyError: 'score')" in line for line in inputs.skipped)
    for name in ("bad", "odd"):
        with pytest.raises(DataFileError, match=name):
            find_results([tmp_path / f"{name}.json"])


def huge(document, *path):
    """The document with an integer that no float holds at a path."""
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = 10**400
    return document


@pytest.mark.parametrize(
    "document",
    [
        huge(make_evaluation()[0], "tasks", "scifact", "score"),
        huge(make_evaluation()[0], "cost", "parameters"),
        huge(make_sweep(), "rows", 0, "spearman"),
        huge(make_dimensions(), "layers", 0, "twonn"),
    ],
    ids=["score", "cost", "sweep", "dimension"],
)
def test_integer_of_400_digits_is_an_unexpected_structure(document, tmp_path):
    with pytest.raises(DataFileError, match=r"odd\.json has an unexpected structure"):
        find_results([write(tmp_path / "odd.json", document)])


def test_wrong_or_missing_path_is_refused_with_what_to_give(tmp_path):
    with pytest.raises(
        DataFileError, match="not a result that can be reported; give a file written by `d2v eval --json`"
    ):
        find_results([write(tmp_path / "other.json", [1, 2])])
    with pytest.raises(DataFileError, match="made by `d2v train`, or a result written by `d2v eval --json`"):
        find_results([tmp_path / "absent"])


def test_folder_without_results_is_reported(tmp_path):
    (tmp_path / "empty").mkdir()
    inputs = find_results([write_evaluation(tmp_path, *make_evaluation()), tmp_path / "empty"])
    assert any("empty: no results found" in line for line in inputs.skipped)


def test_dimension_curve_ends_after_the_final_norm(tmp_path):
    first = make_dimensions("base", layers=2)
    first["texts"], first["area"] = {"count": 70, "fingerprint": "x"}, {"paper": 1.0, "unit": 2.0}
    first["layers"].append({"layer": 2, "normed": True, "twonn": 5.5, "twonn_95": None, "mle": None})
    write(tmp_path / "several.json", {"encoders": [first, make_dimensions("other")], "differences": []})
    base, other = find_results([tmp_path]).dimensions
    assert [layer.layer for layer in base.layers] == [0, 1, 2] and base.layers[-1].twonn == 5.5
    assert math.isnan(base.layers[-1].low) and math.isnan(base.layers[-1].mle)
    assert (base.texts, base.area, other.texts, other.area) == (70, 2.0, 500, 0.123)
    assert (other.peak.layer, other.peak.twonn) == (3, pytest.approx(8 + 6 - 2.7))


def test_sweep_rows_are_sorted_best_first(tmp_path):
    rows = make_sweep()["rows"][::-1]
    rows[3]["spearman"] = None  # not a number: last
    (sweep,) = find_results([write(tmp_path / "sweep.json", {**make_sweep(), "rows": rows})]).sweeps
    *scores, last = [row.spearman for row in sweep.rows]
    assert scores == sorted(scores, reverse=True) and math.isnan(last) and sweep.data == "stsb-dev"
    with pytest.raises(DataFileError, match="no rows"):
        find_results([write(tmp_path / "none.json", {**make_sweep(), "rows": []})])
