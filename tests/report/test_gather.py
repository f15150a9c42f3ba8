"""What a report can show is found by content, joined, told apart; what is damaged is named."""

from __future__ import annotations

import json
import math

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.report.result_files import gather
from toys.evaluations import KINDS, make_dimensions, make_evaluation, make_sweep, write_evaluation
from toys.runs import make_results


def write(file, document):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


def test_files_are_known_by_what_they_hold(tmp_path):
    write_evaluation(tmp_path, *make_evaluation(), stem="zebra")
    write(tmp_path / "deep" / "er" / "x.json", make_sweep())
    write(tmp_path / "y.json", make_dimensions())
    write(tmp_path / "z.json", make_results())
    write(tmp_path / "other.json", {"rows": []})
    write(tmp_path / "a" / "b" / "c" / "too-deep.json", make_sweep())
    write(tmp_path / ".hidden" / "x.json", make_sweep())
    found = gather([tmp_path])
    assert [one.path.name for one in found.evaluations] == ["zebra.json"]
    assert [one.path.name for one in found.sweeps] == ["x.json"]
    assert [one.path.name for one in found.dimensions] == ["y.json"]
    assert [file.name for file in found.training] == ["z.json"]
    assert found.left_out == [] and found.compares


def test_every_number_of_an_evaluation_is_read(tmp_path):
    document, items = make_evaluation("mine", flags=["seen"])
    document["tasks"]["scifact"] |= {"score": None, "interval": None}
    (one,) = gather([write_evaluation(tmp_path, document, items)]).evaluations
    assert (one.name, one.kind, one.dim, one.fingerprint) == ("mine", "decoder", 576, "mine-0")
    task = one.tasks["stsb-test"]
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
    assert math.isnan(one.tasks["scifact"].score) and math.isnan(one.tasks["scifact"].low)
    assert one.cost == {"parameters": 134e6, "tokens_per_second": 3000.0, "peak_megabytes": 700.0}


def test_scores_on_pairs_alone_are_an_evaluation_too(tmp_path):
    document = {
        "encoder": "out/encoder",
        "fingerprint": "abc",
        "spec": {},
        "results": [{"task": "stsb-test", "spearman": 74.1, "pearson": 75.0, "spearman_95": [71.0, 77.0]}],
        "mean_spearman": 74.1,
        "tokens_per_second": 300.5,
    }
    (one,) = gather([write(tmp_path / "scores.json", document)]).evaluations
    assert (one.name, one.cost) == ("out/encoder", {"tokens_per_second": 300.5})
    assert (one.tasks["stsb-test"].score, one.tasks["stsb-test"].high) == (74.1, 77.0)


def test_files_of_one_encoder_with_different_tasks_are_one_line(tmp_path):
    for stem, kind, speed in (("a", "sts", 100.0), ("b", "retrieval", 300.0)):
        document, items = make_evaluation(tasks={name: own for name, own in KINDS.items() if own == kind})
        document["cost"]["tokens_per_second"] = speed
        write_evaluation(tmp_path, document, items, stem)
    (one,) = gather([tmp_path]).evaluations
    assert set(one.tasks) == {"stsb-test", "sickr-test", "scifact"} and one.cost["tokens_per_second"] == 100.0


def test_encoders_of_one_name_are_told_apart_by_their_files(tmp_path):
    for stem in ("a", "b", "c/a"):
        file = tmp_path / stem
        write_evaluation(file.parent, *make_evaluation("same"), file.name)
    names = [one.name for one in gather([tmp_path]).evaluations]
    assert names[1] == "same (b)" and len(set(names)) == 3 and all(name.startswith("same (a)") for name in names[::2])


def test_a_file_given_twice_is_read_once(tmp_path):
    file = write_evaluation(tmp_path, *make_evaluation())
    assert len(gather([tmp_path, file, tmp_path / "." / file.name]).evaluations) == 1


def test_damaged_files_in_a_folder_are_told_and_named_ones_refused(tmp_path):
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    document, items = make_evaluation()
    write_evaluation(tmp_path, {**document, "tasks": {"x": {"kind": "sts"}}}, items, "odd")
    found = gather([tmp_path])
    assert not found.compares
    assert any("bad.json holds no JSON" in line for line in found.left_out)
    assert any("odd.json is not as it was written (KeyError: 'score')" in line for line in found.left_out)
    for name in ("bad", "odd"):
        with pytest.raises(DataFileError, match=name):
            gather([tmp_path / f"{name}.json"])


def test_a_file_of_something_else_and_a_place_that_is_not_there_say_what_to_give(tmp_path):
    with pytest.raises(InputError, match="holds nothing to report; give what `d2v eval --json`"):
        gather([write(tmp_path / "other.json", [1, 2])])
    with pytest.raises(InputError, match="made by `d2v train`, or what `d2v eval --json` wrote"):
        gather([tmp_path / "absent"])


def test_a_folder_that_adds_nothing_is_told(tmp_path):
    (tmp_path / "empty").mkdir()
    found = gather([write_evaluation(tmp_path, *make_evaluation()), tmp_path / "empty"])
    assert any("empty holds nothing to report" in line for line in found.left_out)


def test_the_curve_of_a_model_ends_behind_its_final_norm(tmp_path):
    first = make_dimensions("base", layers=2)
    first["texts"], first["area"] = {"count": 70, "fingerprint": "x"}, {"paper": 1.0, "unit": 2.0}
    first["layers"].append({"layer": 2, "normed": True, "twonn": 5.5, "twonn_95": None, "mle": None})
    write(tmp_path / "several.json", {"encoders": [first, make_dimensions("other")], "differences": []})
    base, other = gather([tmp_path]).dimensions
    assert [one.layer for one in base.layers] == [0, 1, 2] and base.layers[-1].twonn == 5.5
    assert math.isnan(base.layers[-1].low) and math.isnan(base.layers[-1].mle)
    assert (base.texts, base.area, other.texts, other.area) == (70, 2.0, 500, 0.123)
    assert (other.peak.layer, other.peak.twonn) == (3, pytest.approx(8 + 6 - 2.7))


def test_the_rows_of_a_sweep_come_best_first(tmp_path):
    rows = make_sweep()["rows"][::-1]
    rows[3]["spearman"] = None  # what is no number comes last
    (sweep,) = gather([write(tmp_path / "sweep.json", {**make_sweep(), "rows": rows})]).sweeps
    *scores, last = [row.spearman for row in sweep.rows]
    assert scores == sorted(scores, reverse=True) and math.isnan(last) and sweep.data == "stsb-dev"
    with pytest.raises(DataFileError, match="no rows"):
        gather([write(tmp_path / "none.json", {**make_sweep(), "rows": []})])
