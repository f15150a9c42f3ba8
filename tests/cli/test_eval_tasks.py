"""`d2v eval` on a folder of tasks."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.evaluation.suite import Suite
from decoder2vec.evaluation.tasks.layout import find_tasks
from decoder2vec.text.data_check import TRAINING_PAIRS_FILE, hash_pairs
from toys.command import d2v
from toys.tasks import write_toy_tasks

CHOICES = ("--layer", 2, "--pooling", "mean", "--template", "plain")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_toy_tasks(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def own_vectors(tmp_path, monkeypatch, own_cache):
    """A vector cache for each test; tiny models are shared by all tests."""
    monkeypatch.setattr("decoder2vec.evaluation.vector_cache.vectors_root", lambda: tmp_path / "vectors")


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


def test_tasks_need_one_folder(folder):
    with pytest.raises(InputError, match="Tasks are read from one folder"):
        d2v("eval", "tiny-llama", "--tasks", "all", "--data", folder, "--data", folder)


def test_cache_lists_and_removes_vectors(tmp_path, monkeypatch):
    monkeypatch.setenv("D2V_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "vectors").mkdir(parents=True)
    (tmp_path / "cache" / "vectors" / "a.npy").write_bytes(b"0" * 2_000_000)
    assert re.search(r"vectors\s+2\.0\s+1 sets of vectors", d2v("cache", "ls").stdout)
    assert d2v("cache", "rm", "vectors").exit_code == 0
    assert not (tmp_path / "cache" / "vectors").exists()
