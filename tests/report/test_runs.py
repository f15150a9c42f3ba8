"""Training runs are found, sorted, given unique names and read; damaged files are reported."""

from __future__ import annotations

import json

import pytest

from decoder2vec.errors import DataFileError
from decoder2vec.report.figures import UNNAMED_READINGS, ReadingLabel
from decoder2vec.report.runs import find_runs, runs_of_results
from toys.runs import make_record, make_results


def test_every_value_of_a_run_is_read(complete_run):
    (run,) = find_runs(complete_run("step5"))
    record, results = make_record(), make_results()
    assert (run.name, run.backbone, run.best_seed, run.has_record) == ("step5", "tiny-llama", 0, True)
    assert [reading.layer for reading in run.readings] == [1, 2, 3, 4]
    assert run.layers.raw["pearson"] == tuple(record["layers"]["raw"]["pearson"])
    assert (run.layers.all_readings, run.layers.without) == (82.5, (80.0, 79.0, 78.0, 77.0))
    assert run.errors.values == tuple(record["errors"]["all"])
    assert (run.examples[0].paper, run.errors.worst[0].paper) == (0.5, None)
    assert (run.trained_parameters, run.trained_share) == (1_206_000, 0.9)
    assert [seed.seed for seed in run.seeds] == [0, 1]
    assert run.seeds[1].dev == results["seeds"][1]["dev"]
    assert run.seeds[0].reconstruction_error == (1.0, 10.0, 100.0, 1000.0)
    assert [(curve.name, curve.stage, curve.best) for curve in run.seeds[0].curves] == [
        ("pretraining", "autoencoders", 1),
        ("training", "pairs", 1),
    ]
    assert run.autoencoder_readings == run.readings


def test_freeze_steps_come_first_then_others_by_name(complete_run, tmp_path):
    for path, name in (
        ("x/unified", "unified"),
        ("x/a", "step5_mse"),
        ("step5", "step5"),
        ("deep/step0", "step0"),
        ("step12", "step12"),
        ("x/b", "step2"),
    ):
        complete_run(path, name)
    names = [run.name for run in find_runs(tmp_path)]
    assert names == ["step0", "step2", "step5", "step12", "step5_mse", "unified"]


def test_deep_and_hidden_folders_are_not_searched(complete_run, tmp_path):
    complete_run("a/b/c")
    complete_run(".hidden")
    with pytest.raises(DataFileError, match="holds no training run"):
        find_runs(tmp_path)


def test_equal_names_get_the_model_then_the_path(write_run, tmp_path):
    for path, model in (("a", "gemma"), ("b", "llama"), ("c", "llama")):
        write_run(path, make_record(), {**make_results(), "backbone": {"name": model}})
    names = [run.name for run in find_runs(tmp_path)]
    assert names == ["step5, gemma", "step5, llama, b", "step5, llama, c"]


def test_equal_names_of_several_paths_get_the_whole_path(complete_run, tmp_path):
    complete_run("one/enc"), complete_run("two/enc")
    (tmp_path / "alone.json").write_text(json.dumps(make_results("alone")), encoding="utf-8")
    names = [run.name for run in find_runs(tmp_path / "one", tmp_path / "two", tmp_path / "alone.json")]
    expected = [f"step5, tiny-llama, {tmp_path / path / 'enc'}" for path in ("one", "two")]
    assert names == [*expected, "alone"]


def test_result_files_belong_to_the_encoder_of_their_folder(complete_run, tmp_path):
    folder = complete_run("mine")
    (tmp_path / "loose.json").write_text(json.dumps(make_results("loose")), encoding="utf-8")
    files = [folder / "results.json", tmp_path / "loose.json"]
    assert [(run.name, run.has_record) for run in runs_of_results(files, [tmp_path])] == [("step5", True)]
    assert [run.name for run in runs_of_results(files[1:], [tmp_path])] == ["loose"]


def test_result_files_alone_are_runs_without_a_record(tmp_path):
    for name in ("step1", "step0"):
        (tmp_path / f"{name}.json").write_text(json.dumps(make_results(name)), encoding="utf-8")
    (tmp_path / "other.json").write_text('{"rows": []}', encoding="utf-8")
    runs = find_runs(tmp_path)
    assert [(run.name, run.has_record, run.layers) for run in runs] == [("step0", False, None), ("step1", False, None)]
    assert [reading.text for reading in runs[0].autoencoder_readings][:2] == [
        "layer 1, lasttoken of 'plain'",
        "layer 2, lasttoken of 'plain'",
    ]


def test_encoder_with_a_missing_file_is_still_one_run(write_run, tmp_path):
    write_run("no-results", make_record("a"), None)
    write_run("no-record", None, make_results("b"))
    first, second = find_runs(tmp_path)
    assert (first.name, first.seeds, first.has_record) == ("a", (), True)
    assert (second.name, len(second.seeds), second.has_record) == ("b", 2, False)


def test_autoencoder_readings_come_from_the_plan(write_run):
    record = make_record(depth=1)
    (run,) = find_runs(write_run("one-kept", record, make_results(count=6)))
    assert len(run.readings) == 1
    assert [reading.layer for reading in run.autoencoder_readings] == [1, 2, 3, 4, 5, 6]
    planned = make_results(count=6)
    planned["config"]["freeze"]["latents"][0]["layers"] = "0.5:1.0"
    (run,) = find_runs(write_run("by-number", record, planned))
    assert {reading.group for reading in run.autoencoder_readings} == {UNNAMED_READINGS}


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("layer 3, mean", "mean"),
        ("layer 12 normed, mean of 'layer 1, {text}'", "mean of 'layer 1, {text}', normed"),
        ("layer 0, max of 'a\n{text}'", "max of 'a\n{text}'"),
    ],
)
def test_group_is_the_reading_without_its_layer(text, group):
    assert ReadingLabel(text, 3).group == group


@pytest.mark.parametrize("what", ["absent", "file", "empty", "bare encoder"])
def test_path_without_a_run_is_refused_with_what_to_give(what, tmp_path, write_run):
    path = tmp_path / "it"
    if what == "file":
        path.write_text("x", encoding="utf-8")
    elif what == "empty":
        path.mkdir()
    elif what == "bare encoder":
        write_run("it", None, None)
    with pytest.raises(DataFileError, match="made by `d2v train`"):
        find_runs(path)


@pytest.mark.parametrize("name", ["run.json", "results.json"])
@pytest.mark.parametrize(
    "content", [b'{"layers": ', b"\xff\xfe", b"[]", b'{"config": 3, "seeds": 1, "readings": 4}', b"[" * 100_000]
)
def test_damaged_file_is_named_in_the_error(name, content, complete_run):
    folder = complete_run("it")
    (folder / name).write_bytes(content)
    with pytest.raises(DataFileError, match=name):
        find_runs(folder)


def test_curve_with_a_wrong_length_is_refused(write_run):
    record = make_record()
    record["layers"]["raw"]["pearson"] = [1.0, 2.0]
    with pytest.raises(DataFileError, match=r"run\.json.*2 values for 4 readings"):
        find_runs(write_run("it", record, make_results()))


def test_integer_of_400_digits_is_refused(write_run):
    results = make_results()
    results["seeds"][0]["checks"]["random pairs"] = 10**400
    with pytest.raises(DataFileError, match=r"results\.json"):
        find_runs(write_run("it", make_record(), results))


def test_damaged_result_file_is_named_in_the_error(tmp_path):
    (tmp_path / "step1.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataFileError, match=r"step1\.json holds no JSON"):
        find_runs(tmp_path)
