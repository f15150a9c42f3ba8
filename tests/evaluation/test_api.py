"""`evaluate`: the same documents as `d2v eval`, for names and objects, tasks and pairs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError, UnknownNameError
from decoder2vec.evaluation.api import evaluate
from decoder2vec.text.data_check import TRAINING_PAIRS_FILE, hash_pairs
from decoder2vec.text.files import ScoredPairs, read_pairs
from toys.command import d2v
from toys.docstrings import run_examples
from toys.tasks import RandomEncoder, TopicEncoder, write_toy_tasks

CHOICES = {"layer": 2, "pooling": "mean", "template": "plain"}
OPTIONS = [part for name, value in CHOICES.items() for part in (f"--{name}", value)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_toy_tasks(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def file(folder):
    return folder / "sts" / "mine-test.tsv"


@pytest.fixture(autouse=True)
def own_vectors(tmp_path, monkeypatch, own_cache):
    """A vector cache for each test; tiny models are shared by all tests."""
    monkeypatch.setattr("decoder2vec.evaluation.vector_cache.vectors_root", lambda: tmp_path / "vectors")


def without_time(document):
    """The document without values that depend on the machine's speed and on the command line."""
    timed = {"seconds", "tokens_per_second", "peak_megabytes", "command"}
    if isinstance(document, dict):
        return {key: without_time(value) for key, value in document.items() if key not in timed}
    return [without_time(value) for value in document] if isinstance(document, list) else document


def test_example_in_docstring_runs(own_cache):
    run_examples(evaluate)


def test_tasks_give_the_document_of_the_command(folder, tmp_path):
    d2v("eval", "tiny-llama", "--data", folder, "--tasks", "sts,few,mini", "--json", tmp_path / "cli.json", *OPTIONS)
    document = evaluate("tiny-llama", folder, tasks="sts,few,mini", json_file=tmp_path / "api.json", **CHOICES)
    written = json.loads((tmp_path / "cli.json").read_text())
    assert without_time(document) == without_time(written)
    assert json.loads((tmp_path / "api.json").read_text()) == document
    assert (tmp_path / "api.items.json").read_text() == (tmp_path / "cli.items.json").read_text()


def test_pairs_give_the_document_of_the_command(file, tmp_path):
    d2v("eval", "tiny-llama", "--data", file, "--data", file, "--limit", 20, "--json", tmp_path / "cli.json", *OPTIONS)
    document = evaluate("tiny-llama", [file, file], limit=20, json_file=tmp_path / "api.json", **CHOICES)
    written = json.loads((tmp_path / "cli.json").read_text())
    assert without_time(document) == without_time(written)
    assert json.loads((tmp_path / "api.json").read_text()) == document


def test_encoder_object_scores_like_its_name(folder, file):
    encoder = Encoder.from_pretrained("tiny-llama", **CHOICES)
    for data in (folder, file, read_pairs(file), [str(file)]):
        by_name = evaluate("tiny-llama", data, **CHOICES)
        by_object = evaluate(encoder, data, name="tiny-llama")
        for key in ("tasks", "summary", "results"):
            assert without_time(by_object.get(key)) == without_time(by_name.get(key))


def test_object_with_encode_alone_is_enough(folder, file):
    class EncodeOnly:
        def encode(self, texts):
            return RandomEncoder().encode(texts)

    assert evaluate(EncodeOnly(), folder, tasks=["sts"])["encoder"]["name"] == "EncodeOnly"
    document = evaluate(EncodeOnly(), file)
    assert (document["encoder"], document["fingerprint"]) == ("EncodeOnly", None)


def test_prompts_override_those_of_the_encoder(folder):
    encoder = TopicEncoder()
    evaluate(encoder, folder, tasks="mini", prompts={"query": "Q: "})
    assert {prompt for text, prompt in encoder.encoded if text.startswith("What of")} == {"Q: "}


@pytest.mark.parametrize("name", ["querry", "mine-querry", "retrieval-plane"])
def test_prompt_for_nothing_is_refused(folder, name):
    with pytest.raises(UnknownNameError, match=f"Unknown prompt '{name}'"):
        evaluate(TopicEncoder(), folder, prompts={name: "Q: "})


def test_prompts_for_what_is_not_run_may_be_given(folder):
    prompts = dict.fromkeys(("query", "passage", "sts", "retrieval-query", "mini", "mini-document"), "P: ")
    assert evaluate(TopicEncoder(), folder, tasks="mini", prompts=prompts)["tasks"]


def test_prompts_are_refused_for_files_of_pairs(file):
    with pytest.raises(InputError, match="folder of tasks"):
        evaluate(TopicEncoder(), file, prompts={"query": "Q: "})


def test_finished_tasks_are_not_run_again(folder, tmp_path):
    messages = []
    for _ in range(2):
        encoder = TopicEncoder()
        evaluate(encoder, folder, tasks="sts", json_file=tmp_path / "out.json", notify=messages.append)
    assert encoder.encoded == []
    assert messages[-1] == f"1 of 1 tasks are finished in {tmp_path / 'out.json'}"
    assert any(message.startswith("mine: spearman ") for message in messages)


def test_skipped_lines_and_training_pairs_are_reported(file, tmp_path):
    pairs = read_pairs(file)
    Encoder.from_pretrained("tiny-llama", layer=1).save(tmp_path / "encoder")
    np.save(tmp_path / "encoder" / TRAINING_PAIRS_FILE, hash_pairs(pairs.left[:3], pairs.right[:3]))
    (tmp_path / "bad.tsv").write_text(file.read_text() + "none\ta\tb\n")
    messages = []
    evaluate(tmp_path / "encoder", tmp_path / "bad.tsv", skip_bad=True, notify=messages.append)
    assert messages[0] == f"1 lines of {tmp_path / 'bad.tsv'} were left out"
    assert f"trained on 3 of the {len(pairs)} pairs of bad" in messages[1]


def test_progress_bar_is_shown_on_request(folder, file, capsys):
    for data in (folder, file):
        evaluate("random", data)
        assert "it/s" not in capsys.readouterr().err
    evaluate(RandomEncoder(), folder, show_progress_bar=True)
    assert "Texts: 100%" in capsys.readouterr().err


def test_invalid_arguments_are_refused(folder, file, tmp_path):
    with pytest.raises(InputError, match="read from one folder"):
        evaluate("random", [folder, folder])
    with pytest.raises(InputError, match="read from one folder"):
        evaluate("random", ScoredPairs("x", ["a"], ["b"], [1.0]), tasks="sts")
    with pytest.raises(DataFileError, match="is not a folder"):
        evaluate("random", file, tasks="all")
    with pytest.raises(InputError, match="given by name"):
        evaluate(RandomEncoder(), file, layer=2)
    with pytest.raises(InputError, match=r"must end in \.json"):
        evaluate("random", file, json_file=tmp_path / "out.txt")
