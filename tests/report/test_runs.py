"""Runs are found, ordered, told apart and read; what is damaged is named."""

from __future__ import annotations

import json

import pytest

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.report.runs import Place, find_runs, runs_of_files
from toys.runs import make_record, make_results


def test_one_encoder_is_one_run_with_every_number(a_run):
    (run,) = find_runs(a_run("step5"))
    record, results = make_record(), make_results()
    assert (run.name, run.backbone, run.best_seed, run.recorded) == ("step5", "tiny-llama", 0, True)
    assert [place.layer for place in run.readings] == [1, 2, 3, 4]
    assert run.layers.raw["pearson"] == tuple(record["layers"]["raw"]["pearson"])
    assert (run.layers.everything, run.layers.without) == (82.5, (80.0, 79.0, 78.0, 77.0))
    assert run.errors.values == tuple(record["errors"]["all"])
    assert (run.examples[0].paper, run.errors.worst[0].paper) == (0.5, None)
    assert (run.trained, run.frozen) == (1_200_000, 134_000_000)
    assert [seed.number for seed in run.seeds] == [0, 1]
    assert run.seeds[1].dev == results["seeds"][1]["dev"]
    assert run.seeds[0].error == (1.0, 10.0, 100.0, 1000.0)
    assert [(one.name, one.stage, one.best) for one in run.seeds[0].histories] == [
        ("pretraining", "autoencoders", 1),
        ("training", "pairs", 1),
    ]
    assert run.pretrained == run.readings


def test_the_ladder_comes_first_then_the_others_by_name(a_run, tmp_path):
    for place, name in (
        ("x/unified", "unified"),
        ("x/a", "step5_mse"),
        ("step5", "step5"),
        ("deep/step0", "step0"),
        ("step12", "step12"),
        ("x/b", "step2"),
    ):
        a_run(place, name)
    names = [run.name for run in find_runs(tmp_path)]
    assert names == ["step0", "step2", "step5", "step12", "step5_mse", "unified"]


def test_encoders_three_levels_down_and_hidden_ones_are_left_alone(a_run, tmp_path):
    a_run("a/b/c")
    a_run(".hidden")
    with pytest.raises(InputError, match="holds no run"):
        find_runs(tmp_path)


def test_runs_of_one_name_are_told_apart_by_model_then_by_place(write_run, tmp_path):
    for place, model in (("a", "gemma"), ("b", "llama"), ("c", "llama")):
        write_run(place, make_record(), {**make_results(), "backbone": {"name": model}})
    names = [run.name for run in find_runs(tmp_path)]
    assert names == ["step5, gemma", "step5, llama, b", "step5, llama, c"]


def test_runs_of_several_places_are_told_apart_by_where_they_lie(a_run, tmp_path):
    a_run("one/enc"), a_run("two/enc")
    (tmp_path / "alone.json").write_text(json.dumps(make_results("alone")), encoding="utf-8")
    names = [run.name for run in find_runs(tmp_path / "one", tmp_path / "two", tmp_path / "alone.json")]
    places = [f"step5, tiny-llama, {tmp_path / place / 'enc'}" for place in ("one", "two")]
    assert names == [*places, "alone"]


def test_files_of_results_belong_to_the_encoders_they_lie_in(a_run, tmp_path):
    folder = a_run("mine")
    (tmp_path / "loose.json").write_text(json.dumps(make_results("loose")), encoding="utf-8")
    files = [folder / "results.json", tmp_path / "loose.json"]
    assert [(run.name, run.recorded) for run in runs_of_files(files, [tmp_path])] == [("step5", True)]
    assert [run.name for run in runs_of_files(files[1:], [tmp_path])] == ["loose"]


def test_files_of_results_are_runs_without_a_record(tmp_path):
    for name in ("step1", "step0"):
        (tmp_path / f"{name}.json").write_text(json.dumps(make_results(name)), encoding="utf-8")
    (tmp_path / "other.json").write_text('{"rows": []}', encoding="utf-8")
    runs = find_runs(tmp_path)
    assert [(run.name, run.recorded, run.layers) for run in runs] == [("step0", False, None), ("step1", False, None)]
    assert [place.label for place in runs[0].pretrained][:2] == [
        "layer 1, lasttoken of 'plain'",
        "layer 2, lasttoken of 'plain'",
    ]


def test_an_encoder_with_a_part_missing_is_still_a_run(write_run, tmp_path):
    write_run("no-results", make_record("a"), None)
    write_run("no-record", None, make_results("b"))
    first, second = find_runs(tmp_path)
    assert (first.name, first.seeds, first.recorded) == ("a", (), True)
    assert (second.name, len(second.seeds), second.recorded) == ("b", 2, False)


def test_autoencoders_of_readings_that_were_not_kept_have_layers_by_the_plan(write_run):
    record = make_record(depth=1)
    (run,) = find_runs(write_run("one-kept", record, make_results(count=6)))
    assert len(run.readings) == 1
    assert [place.layer for place in run.pretrained] == [1, 2, 3, 4, 5, 6]
    planned = make_results(count=6)
    planned["config"]["freeze"]["latents"][0]["layers"] = "0.5:1.0"
    (run,) = find_runs(write_run("by-number", record, planned))
    assert {place.group for place in run.pretrained} == {"reading by its number"}


@pytest.mark.parametrize(
    ("label", "group"),
    [
        ("layer 3, mean", "mean"),
        ("layer 12 normed, mean of 'layer 1, {text}'", "mean of 'layer 1, {text}', normed"),
        ("layer 0, max of 'a\n{text}'", "max of 'a\n{text}'"),
    ],
)
def test_a_group_is_everything_but_the_layer(label, group):
    assert Place(label, 3).group == group


@pytest.mark.parametrize("what", ["absent", "file", "empty", "bare encoder"])
def test_a_folder_without_a_run_says_what_to_give(what, tmp_path, write_run):
    place = tmp_path / "it"
    if what == "file":
        place.write_text("x", encoding="utf-8")
    elif what == "empty":
        place.mkdir()
    elif what == "bare encoder":
        write_run("it", None, None)
    with pytest.raises(InputError, match="made by `d2v train`"):
        find_runs(place)


@pytest.mark.parametrize("name", ["run.json", "results.json"])
@pytest.mark.parametrize(
    "content", [b'{"layers": ', b"\xff\xfe", b"[]", b'{"config": 3, "seeds": 1, "readings": 4}', b"[" * 100_000]
)
def test_damaged_json_is_named(name, content, a_run):
    folder = a_run("it")
    (folder / name).write_bytes(content)
    with pytest.raises(DataFileError, match=name):
        find_runs(folder)


def test_curves_that_do_not_fit_their_readings_are_refused(write_run):
    record = make_record()
    record["layers"]["raw"]["pearson"] = [1.0, 2.0]
    with pytest.raises(DataFileError, match=r"run\.json.*2 values for 4 readings"):
        find_runs(write_run("it", record, make_results()))


def test_a_damaged_file_of_results_is_named(tmp_path):
    (tmp_path / "step1.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataFileError, match=r"step1\.json holds no JSON"):
        find_runs(tmp_path)
