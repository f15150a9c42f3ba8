"""`d2v mteb`: mteb's own evaluation by name, and one sentence where it cannot be."""

from __future__ import annotations

import builtins
import json
import sys

import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import DataFileError, InputError, MissingExtraError, UnknownNameError
from toys.command import d2v


@pytest.fixture
def registered(mteb, monkeypatch):
    """Local tasks, found by name as if they were mteb's."""
    from toys.mteb_tasks import local_tasks

    known, real = {task.metadata.name: task for task in local_tasks().values()}, mteb.get_task
    monkeypatch.setattr(mteb, "get_task", lambda name: known[name] if name in known else real(name))


@pytest.mark.usefixtures("offline", "registered")
def test_scores_are_shown_written_and_not_computed_again(own_cache, tmp_path, monkeypatch):
    arguments = ("mteb", "tiny-llama", "--layer", 2, "--tasks", "LocalSTS,LocalPairClassification", "--device", "cpu")
    arguments += ("--results", tmp_path / "results", "--json", tmp_path / "out" / "scores.json")
    shown = d2v(*arguments).stdout
    assert "LocalSTS" in shown and "cosine_spearman" in shown and "mean" in shown
    said = json.loads((tmp_path / "out" / "scores.json").read_text())
    fingerprint = Encoder.from_pretrained("tiny-llama", layer=2, device="cpu").fingerprint
    assert (said["name"], said["fingerprint"]) == ("decoder2vec/tiny-llama", fingerprint)
    assert (said["kind"], "mteb" in said["versions"]) == ("decoder2vec", True)
    first, second = said["results"]
    assert [first["task"], second["task"]] == ["LocalSTS", "LocalPairClassification"]
    assert first["score"] == round(100 * first["scores"]["test"][0]["cosine_spearman"], 2)
    assert (tmp_path / "results" / "results" / "decoder2vec__tiny-llama" / fingerprint).is_dir()
    monkeypatch.setattr(Encoder, "encode", lambda *_, **__: pytest.fail("encoded again"))
    d2v(*arguments)
    again = json.loads((tmp_path / "out" / "scores.json").read_text())["results"]
    assert [one["score"] for one in again] == [first["score"], second["score"]]


@pytest.mark.usefixtures("offline", "registered")
def test_baselines_come_by_the_same_door(tmp_path):
    shown = d2v("mteb", "random:16", "--tasks", "LocalSTS", "--results", tmp_path, "--name", "me/chance").stdout
    assert "random (16 numbers)" in shown and (tmp_path / "results" / "me__chance").is_dir()


NO_NETWORK = r"could not be fetched .* needs a network .* `d2v eval`"


@pytest.mark.usefixtures("registered")
def test_without_a_network_it_says_so(mteb, tmp_path, monkeypatch):
    task = mteb.get_task("LocalSTS")

    def load_data(*_, **__):
        raise ConnectionError("the hub is out of reach")

    monkeypatch.setattr(task, "load_data", load_data)
    with pytest.raises(DataFileError, match=NO_NETWORK):
        d2v("mteb", "random", "--tasks", "LocalSTS", "--results", tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("offline", "mteb")
def test_without_a_network_a_real_task_says_so_too(tmp_path, monkeypatch):
    """Slow, since the client of the hub tries several times."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    with pytest.raises(DataFileError, match=NO_NETWORK):
        d2v("mteb", "random", "--tasks", "STSBenchmark", "--results", tmp_path)


@pytest.mark.usefixtures("offline", "mteb")
def test_an_unknown_task_is_named_with_the_nearest(tmp_path):
    with pytest.raises(UnknownNameError, match=r"no task 'STSBenchmrk'.*Did you mean.*STSBenchmark"):
        d2v("mteb", "random", "--tasks", "STS12,STSBenchmrk", "--results", tmp_path)
    with pytest.raises(InputError, match="Name a task"):
        d2v("mteb", "random", "--tasks", " , ")


@pytest.mark.parametrize(
    ("absent", "error", "words"),
    [("mteb", MissingExtraError, r"decoder2vec\[mteb\]"), ("pytrec_eval", InputError, r"pytrec_eval.*docs/mteb\.md")],
)
def test_what_is_not_installed_is_named(absent, error, words, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] in ("mteb", absent):
            raise ModuleNotFoundError(f"No module named {absent!r}", name=absent)
        return real(name, *args, **kwargs)

    for module in [name for name in sys.modules if name.split(".")[0] == "mteb"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(error, match=words):
        d2v("mteb", "random", "--tasks", "STSBenchmark")
