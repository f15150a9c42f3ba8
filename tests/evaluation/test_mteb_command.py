"""`d2v mteb` and `evaluate_mteb`: tasks by name, stored results, and errors."""

from __future__ import annotations

import builtins
import json
import socket
import sys

import numpy as np
import pytest

from decoder2vec.cli import output
from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError, MissingExtraError, UnknownNameError
from decoder2vec.evaluation import mteb as mteb_module
from decoder2vec.evaluation.mteb import evaluate_mteb
from toys.command import d2v
from toys.mteb_tasks import CANDIDATES, DOCUMENTS, QUERIES, RELEVANT
from toys.progress import ShownProgress


@pytest.fixture
def registered(mteb, monkeypatch):
    """Local tasks that mteb finds by name."""
    from toys.mteb_tasks import local_tasks

    local, get_task = {task.metadata.name: task for task in local_tasks().values()}, mteb.get_task
    monkeypatch.setattr(mteb, "get_task", lambda name: local[name] if name in local else get_task(name))


@pytest.mark.usefixtures("offline", "registered")
def test_scores_are_printed_written_and_stored(own_cache, tmp_path, monkeypatch):
    arguments = ("mteb", "tiny-llama", "--layer", 2, "--tasks", "LocalSTS,LocalPairClassification", "--device", "cpu")
    arguments += ("--results", tmp_path / "results", "--json", tmp_path / "out" / "scores.json")
    printed = d2v(*arguments).stdout
    assert "LocalSTS" in printed and "cosine_spearman" in printed and "mean" in printed
    document = json.loads((tmp_path / "out" / "scores.json").read_text())
    fingerprint = Encoder.from_pretrained("tiny-llama", layer=2, device="cpu").fingerprint
    assert (document["name"], document["fingerprint"]) == ("decoder2vec/tiny-llama", fingerprint)
    assert document["kind"] == "decoder2vec" and {"mteb", "pytrec_eval"} <= document["versions"].keys()
    first, second = document["results"]
    assert [first["task"], second["task"]] == ["LocalSTS", "LocalPairClassification"]
    assert first["score"] == round(100 * first["scores"]["test"][0]["cosine_spearman"], 2)
    assert (tmp_path / "results" / "results" / "decoder2vec__tiny-llama" / fingerprint).is_dir()
    monkeypatch.setattr(Encoder, "encode", lambda *_, **__: pytest.fail("encoded again"))
    d2v(*arguments)
    stored = json.loads((tmp_path / "out" / "scores.json").read_text())["results"]
    assert [result["score"] for result in stored] == [first["score"], second["score"]]


@pytest.mark.usefixtures("offline", "registered")
def test_retrieval_reranking_and_sts_are_scored(own_cache, tmp_path):
    """Against a plain loop over the ranking of each query."""
    tasks = ("LocalSTS", "LocalRetrieval", "LocalReranking")
    d2v("mteb", "tiny-llama", "--layer", 2, "--tasks", ",".join(tasks), "--device", "cpu", "--results", tmp_path,
        "--json", tmp_path / "scores.json")  # fmt: skip
    results = {result["task"]: result for result in json.loads((tmp_path / "scores.json").read_text())["results"]}
    encoder = Encoder.from_pretrained("tiny-llama", layer=2, device="cpu", dtype="float32")
    documents = encoder.encode([" ".join(document) for document in DOCUMENTS.values()])
    similarities = encoder.similarity(encoder.encode(list(QUERIES.values())), documents).numpy()
    names, gains, precisions = list(DOCUMENTS), [], []
    for query, row in zip(QUERIES, similarities, strict=True):
        ranking = sorted(names, key=lambda name, row=row: -row[names.index(name)])
        relevant = RELEVANT[query]
        ideal = sum(1 / np.log2(rank + 1) for rank in range(1, min(10, len(relevant)) + 1))
        top = enumerate(ranking[:10], 1)
        gains.append(sum(1 / np.log2(rank + 1) for rank, name in top if name in relevant) / ideal)
        candidates = [name for name in ranking if name in CANDIDATES[query]]
        found = [rank for rank, name in enumerate(candidates, 1) if name in relevant]
        precisions.append(sum(n / rank for n, rank in enumerate(found, 1)) / len(relevant))
    assert results["LocalRetrieval"]["score"] == pytest.approx(100 * np.mean(gains), abs=0.01)
    assert results["LocalReranking"]["score"] == pytest.approx(100 * np.mean(precisions), abs=0.01)
    assert -100 <= results["LocalSTS"]["score"] <= 100


@pytest.mark.usefixtures("offline", "registered")
def test_evaluate_mteb_returns_the_document_of_the_command(own_cache, tmp_path):
    d2v(
        "mteb",
        "tiny-llama",
        "--layer",
        2,
        "--tasks",
        "LocalSTS",
        "--results",
        tmp_path / "a",
        "--json",
        tmp_path / "a.json",
    )
    written = json.loads((tmp_path / "a.json").read_text())
    returned = evaluate_mteb("tiny-llama", ["LocalSTS"], results_folder=tmp_path / "b", layer=2)
    encoder = Encoder.from_pretrained("tiny-llama", layer=2)
    of_object = evaluate_mteb(encoder, ["LocalSTS"], results_folder=tmp_path / "c", name="decoder2vec/tiny-llama")
    for document in (written, returned, of_object):
        del document["results"][0]["seconds"]
    assert json.loads(json.dumps(returned)) == written
    assert of_object == {**returned, "encoder": "Encoder"}


@pytest.mark.usefixtures("offline", "registered")
def test_baseline_is_scored_under_the_given_name(tmp_path):
    printed = d2v("mteb", "random:16", "--tasks", "LocalSTS", "--results", tmp_path, "--name", "me/chance").stdout
    assert "random:16 (random) as me/chance" in printed and (tmp_path / "results" / "me__chance").is_dir()


NO_NETWORK = r"could not be downloaded .* needs a network .* `d2v eval`"


@pytest.mark.usefixtures("registered")
def test_missing_network_is_one_sentence(mteb, tmp_path, monkeypatch):
    task = mteb.get_task("LocalSTS")

    def load_data(*_, **__):
        raise ConnectionError("the hub cannot be reached")

    monkeypatch.setattr(task, "load_data", load_data)
    with pytest.raises(DataFileError, match=NO_NETWORK):
        d2v("mteb", "random", "--tasks", "LocalSTS", "--results", tmp_path)


@pytest.fixture
def impatient(monkeypatch):
    """Fail the test if something waits to try again."""
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"waited {seconds} s"))


@pytest.mark.usefixtures("offline", "mteb", "impatient")
def test_missing_network_is_one_sentence_at_once_for_real_tasks(tmp_path, monkeypatch):
    """Without the first question, the client of the hub tries again for minutes."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path))
    with pytest.raises(DataFileError, match=NO_NETWORK):
        d2v("mteb", "random", "--tasks", "STSBenchmark", "--results", tmp_path)


@pytest.mark.usefixtures("mteb")
def test_hub_that_never_answers_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(mteb_module, "_HUB_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and says nothing
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        assert not mteb_module._hub_answers()


@pytest.mark.usefixtures("offline", "registered", "impatient")
def test_data_that_are_there_are_scored_without_a_network(mteb, tmp_path, monkeypatch):
    """The clients of the hub are told to use their caches, for as long as data are loaded."""
    import datasets.config
    from huggingface_hub import constants

    task, seen = mteb.get_task("LocalSTS"), []
    load_data = task.load_data

    def load_cached(*args, **kwargs):
        seen.append((constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE, datasets.are_progress_bars_disabled()))
        return load_data(*args, **kwargs)

    monkeypatch.setattr(task, "load_data", load_cached)
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE, datasets.are_progress_bars_disabled()
    assert "LocalSTS" in d2v("mteb", "random", "--tasks", "LocalSTS", "--results", tmp_path).stdout
    assert seen == [(True, True, True)]
    after = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE, datasets.are_progress_bars_disabled()
    assert after == before


@pytest.mark.usefixtures("offline", "registered")
def test_progress_is_shown_as_by_other_commands(own_cache, tmp_path, monkeypatch):
    shown = ShownProgress()
    monkeypatch.setattr(output, "_ProgressLines", lambda: shown)
    result = d2v("mteb", "tiny-llama", "--layer", 2, "--tasks", "LocalSTS,LocalRetrieval", "--results", tmp_path)
    of_tasks = [
        f"{task}: {phase}" for task in ("LocalSTS", "LocalRetrieval") for phase in ("loading the data", "encoding")
    ]
    assert list(dict.fromkeys(shown.labels)) == ["loading the model", *of_tasks]
    assert "done in " in result.stderr and "\r" not in result.stderr and "it/s" not in result.stderr


@pytest.mark.usefixtures("offline", "mteb")
def test_unknown_task_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(UnknownNameError, match=r"no task 'STSBenchmrk'.*Did you mean.*STSBenchmark"):
        d2v("mteb", "no/model", "--tasks", "STS12,STSBenchmrk", "--results", tmp_path)  # before a model is loaded
    with pytest.raises(InputError, match="Name a task"):
        d2v("mteb", "random", "--tasks", " , ")


def test_missing_package_is_named(monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "mteb":
            raise ModuleNotFoundError("No module named 'mteb'", name="mteb")
        return real_import(name, *args, **kwargs)

    for module in [name for name in sys.modules if name.split(".")[0] == "mteb"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"decoder2vec\[mteb\]"):
        d2v("mteb", "random", "--tasks", "STSBenchmark")
