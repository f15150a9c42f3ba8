"""`d2v eval` on files of scored pairs and on a folder of tasks."""

from __future__ import annotations

import json
import re
from importlib.metadata import version

import numpy as np
import pytest
from scipy import stats

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnknownNameError
from decoder2vec.evaluation.suite import Suite
from decoder2vec.evaluation.tasks.layout import find_tasks
from decoder2vec.text.data_check import TRAINING_PAIRS_FILE, hash_pairs
from toys.command import SCORED_ROWS, as_options, cosine, d2v, tiny_encoder, write_rows
from toys.tasks import write_toy_tasks

CHOICES = ("--layer", 2, "--pooling", "mean", "--template", "plain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_toy_tasks(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def own_vectors(tmp_path, monkeypatch, own_cache):
    """A vector cache for each test; tiny models are shared by all tests."""
    monkeypatch.setattr("decoder2vec.evaluation.vector_cache.vectors_root", lambda: tmp_path / "vectors")


# files of scored pairs


def test_files_are_scored_and_written_as_json(pairs, tmp_path):
    second = write_rows(tmp_path / "second.tsv", SCORED_ROWS[:5])
    json_file = tmp_path / "new" / "scores.json"
    choices = {"layer": 1, "pooling": "mean", "template": "plain"}
    files = ("--data", pairs, "--data", second, "--json", json_file)
    result = d2v("eval", "tiny-llama", *files, *as_options(choices))
    assert result.exit_code == 0
    document = json.loads(json_file.read_text(encoding="utf-8"))
    encoder = tiny_encoder(**choices)
    for rows, scores in zip((SCORED_ROWS, SCORED_ROWS[:5]), document["results"], strict=True):
        cosines = [cosine(encoder.encode(a), encoder.encode(b)) for a, b, _ in rows]
        truth = [score for *_, score in rows]
        assert scores["spearman"] == pytest.approx(100 * stats.spearmanr(cosines, truth).statistic, abs=0.01)
        assert scores["pearson"] == pytest.approx(100 * stats.pearsonr(cosines, truth).statistic, abs=0.02)
        assert re.search(rf"{scores['task']}\s+{len(rows)}\s+{scores['spearman']:.2f}", result.stdout)
    mean = sum(scores["spearman"] for scores in document["results"]) / 2
    assert document["mean_spearman"] == pytest.approx(mean, abs=0.006)
    assert document["fingerprint"] == encoder.fingerprint
    assert document["spec"]["readings"] == [{"layer": 1, "pooling": "mean", "normed": False}]
    assert document["versions"]["torch"] == version("torch")


def test_columns_and_limit_are_used(tmp_path):
    data = tmp_path / "mine.jsonl"
    data.write_text("".join(json.dumps({"x": a, "y": b, "z": score}) + "\n" for a, b, score in SCORED_ROWS))
    result = d2v("eval", "tiny-llama", "--data", data, "--columns", "x,y,z", "--limit", 3)
    assert result.exit_code == 0
    assert re.search(r"mine\s+3\s", result.stdout)


def test_number_of_skipped_lines_is_reported(tmp_path):
    data = write_rows(tmp_path / "p.tsv", [*SCORED_ROWS, ("a", "b", "bad"), ("c", "d", "nan")])
    result = d2v("eval", "tiny-llama", "--data", data, "--skip-bad")
    assert result.exit_code == 0
    assert re.search(r"p\s+8\s", result.stdout)
    assert f"2 lines of {data} were left out" in result.stderr


# folders of tasks


def test_tasks_are_estimated_scored_printed_and_written(folder, tmp_path):
    out = tmp_path / "out.json"
    result = d2v("eval", "tiny-llama", "--tasks", "all", "--data", folder, "--json", out, *CHOICES)
    assert result.exit_code == 0
    assert re.search(r"7 tasks, \d+ unique texts; about \d+ seconds of encoding of about [\d,]+ tokens", result.stderr)
    document = json.loads(out.read_text(encoding="utf-8"))
    encoder = Encoder.from_pretrained("tiny-llama", layer=2, pooling="mean", template="plain")
    expected = Suite(encoder, find_tasks(folder)).run()
    assert {name: task["scores"] for name, task in document["tasks"].items()} == {
        name: task["scores"] for name, task in expected["tasks"].items()
    }
    for name, task in document["tasks"].items():
        assert re.search(
            rf"{name}\s+{task['kind'].replace('_', ' ')}\s+{task['metric']}\s+{task['score']:.2f}", result.stdout
        )
    assert f"{document['summary']['average']:.2f}" in result.stdout
    assert document["encoder"]["name"] == "tiny-llama"
    assert (tmp_path / "out.items.json").is_file()


def test_folder_without_tasks_option_runs_all_tasks(folder):
    result = d2v("eval", "tiny-llama", "--data", folder, "--limit", 4, *CHOICES)
    assert result.exit_code == 0
    assert "mine: only 4 of 120 pairs" in result.stderr
    assert "mini-reranking" in result.stdout


def test_finished_tasks_are_reported_and_not_run_again(folder, tmp_path):
    args = ("eval", "tiny-llama", "--data", folder, "--json", tmp_path / "out.json", *CHOICES, "--tasks")
    assert d2v(*args, "sts,same").exit_code == 0
    second = d2v(*args, "sts,same")
    assert f"2 of 2 tasks are finished in {tmp_path / 'out.json'}" in second.stderr
    assert "unique texts" not in second.stderr
    third = d2v(*args, "sts,few")
    assert "1 of 2 tasks are finished" in third.stderr
    tasks = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["tasks"]
    assert set(tasks) == {"mine", "same", "few"}


def test_prompt_is_used_and_one_without_name_refused(folder, tmp_path):
    args = ("eval", "tiny-llama", "--data", folder, "--tasks", "mine", *CHOICES)
    documents = []
    for number, prompt in enumerate(([], ["--prompt", "sts=Think of this: "])):
        d2v(*args, "--json", tmp_path / f"{number}.json", *prompt)
        documents.append(json.loads((tmp_path / f"{number}.json").read_text(encoding="utf-8")))
    assert documents[0]["tasks"]["mine"]["score"] != documents[1]["tasks"]["mine"]["score"]
    assert documents[1]["cost"]["tokens"] > documents[0]["cost"]["tokens"]
    with pytest.raises(InputError, match="--prompt takes NAME=TEXT"):
        d2v(*args, "--prompt", "nothing")


def test_overlap_with_training_pairs_is_reported(folder, tmp_path):
    (task,) = find_tasks(folder, ["mine"])
    encoder = tmp_path / "enc"
    Encoder.from_pretrained("tiny-llama", layer=1).save(encoder)
    np.save(encoder / TRAINING_PAIRS_FILE, hash_pairs(task.left[:7], task.right[:7]))
    result = d2v("eval", encoder, "--data", folder, "--tasks", "mine")
    assert f"mine: the encoder was trained on 7 of its {len(task.left)} pairs" in result.stderr


def test_unknown_task_is_refused_before_a_model_is_loaded(folder):
    with pytest.raises(UnknownNameError, match="task 'mnie'"):
        d2v("eval", "no/model", "--data", folder, "--tasks", "mine,mnie")


def test_tasks_need_one_folder(folder):
    with pytest.raises(InputError, match="Tasks are read from one folder"):
        d2v("eval", "tiny-llama", "--tasks", "all", "--data", folder, "--data", folder)
