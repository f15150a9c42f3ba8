"""The engine ray: the files of the engine local, bit by bit, also when workers are killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

import decoder2vec as d2v
from decoder2vec.bulk import dataset, ray_encoder, ray_engine
from decoder2vec.bulk.dataset import make_plan
from decoder2vec.bulk.ray_engine import RayEngine
from decoder2vec.bulk.tokens import TokeniserSettings
from decoder2vec.cli import app
from decoder2vec.errors import InputError, StorageError
from toys import hashing
from toys.hashing import HashEncoder, HashWorker, NoTokens

pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'decoder2vec[parquet]'")
ray = pytest.importorskip("ray", reason="needs ray: pip install 'decoder2vec[ray]'")

N_ROWS = 120


@pytest.fixture(scope="module")
def cluster(own_cache):
    """Two workers on this machine."""
    # workers are as important as the tests of other files that run at the same time
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_worker_niceness="0")
    try:
        ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    except Exception as error:  # no shared memory, no ports ...
        pytest.skip(f"Ray cannot start here: {error}")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A file of rows, and the folder that the engine local makes of it."""
    folder = tmp_path_factory.mktemp("data")
    rows = ({"id": f"r{number}", "text": f"sentence {number} of many"} for number in range(N_ROWS))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    embed(folder / "rows.jsonl", folder / "local")
    return folder


def embed(file, out, **options):
    return d2v.embed_dataset("tiny-llama", str(file), out, rows_per_part=5, device="cpu", dtype="float32", **options)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def workers():
    """Processes of Ray that have loaded an encoder."""
    return [
        process for process in psutil.Process().children(recursive=True) if "MapWorker" in " ".join(_command(process))
    ]


def _command(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_files_are_those_of_one_process(cluster, data, tmp_path, recwarn):
    result = embed(data / "rows.jsonl", tmp_path / "out", engine="ray", workers=2)
    assert (result.n_rows, result.n_parts, result.n_computed) == (N_ROWS, 24, 24)
    assert contents(tmp_path / "out") == contents(data / "local")
    assert embed(data / "rows.jsonl", tmp_path / "out", engine="ray").n_computed == 0
    of_ray = [one for one in recwarn if one.category.__module__.partition(".")[0] == "ray"]
    assert not of_ray, "what users cannot change"


@pytest.fixture(scope="module")
def mixed(data):
    """Rows with long, equal, empty and missing texts, and the folder that the engine local makes of them."""
    texts = [f"sentence {n} of many " * (1 + 400 * (n % 9 == 0)) for n in range(38)] + ["same", "", None, "same"]
    rows = "".join(json.dumps({"id": f"r{n}", "text": text, "even": n % 2 == 0}) + "\n" for n, text in enumerate(texts))
    (data / "mixed.jsonl").write_text(rows, "utf-8")
    embed(data / "mixed.jsonl", data / "mixed-local", on_error="skip")
    return data / "mixed.jsonl"


def test_killed_worker_loses_and_doubles_nothing(cluster, data, mixed, tmp_path, monkeypatch):
    """A worker that is fed with tokens is killed when it has written its first part; Ray starts another one."""
    killed = tmp_path / "killed"

    class DyingWorker(ray_engine._PartWorker):
        def __call__(self, batch):
            outcome = super().__call__(batch)
            if not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return outcome

    monkeypatch.setattr(ray_engine, "_PartWorker", DyingWorker)
    result = embed(mixed, tmp_path / "out", engine="ray", workers=1, tokenisers=1, on_error="skip")
    assert killed.exists()
    assert (result.n_rows, result.n_skipped) == (42, 1)
    assert contents(tmp_path / "out") == contents(data / "mixed-local")


@pytest.fixture
def hashing_workers(monkeypatch):
    """Workers that hash texts, where vectors are not the point: they start without torch."""
    monkeypatch.setattr(dataset, "Encoder", HashEncoder)
    monkeypatch.setattr(dataset, "TokeniserSettings", NoTokens)
    monkeypatch.setattr(ray_engine, "_PartWorker", HashWorker)
    ray.cloudpickle.register_pickle_by_value(hashing)  # workers cannot import the files of tests
    yield
    ray.cloudpickle.unregister_pickle_by_value(hashing)


@pytest.mark.parametrize(("victim", "tokenisers"), [("TokenisingWorker", 1), ("HashWorker", 1), ("HashWorker", 0)])
def test_killed_process_of_either_kind_loses_and_doubles_nothing(
    cluster, hashing_workers, data, tmp_path, monkeypatch, victim, tokenisers
):
    """A thread kills the first process of that kind that it sees, whatever it is doing."""
    monkeypatch.setattr(dataset.PartEmbedder, "encode", lambda embedder, texts: embedder.encoder.encode(texts))
    embed(data / "rows.jsonl", tmp_path / "local")
    killed = []

    def kill_one():
        end = time.monotonic() + 240
        while time.monotonic() < end and not killed:
            for process in [each for each in workers() if victim in " ".join(_command(each))][:1]:
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)
            time.sleep(0.01)  # the cores are for the workers

    killer = threading.Thread(target=kill_one)
    killer.start()
    embed(data / "rows.jsonl", tmp_path / "out", engine="ray", workers=1, tokenisers=tokenisers)
    killer.join()
    assert killed
    assert contents(tmp_path / "out") == contents(tmp_path / "local")


@pytest.mark.parametrize("tokenisers", [0, 1])
def test_bad_row_is_the_same_sentence(cluster, hashing_workers, monkeypatch, tmp_path, tokenisers):
    settings = TokeniserSettings.of(d2v.Encoder.from_pretrained("tiny-llama", device="cpu"), "")
    monkeypatch.setattr(dataset, "TokeniserSettings", SimpleNamespace(of=lambda *_: settings))  # tokens are real
    (tmp_path / "rows.jsonl").write_text('{"text": "fine"}\n{not json\n', "utf-8")
    with pytest.raises(d2v.DataFileError, match=r"row 2: line 2"):
        embed(tmp_path / "rows.jsonl", tmp_path / "out", engine="ray", workers=1, tokenisers=tokenisers)


def test_other_encoder_on_a_node_is_one_sentence(cluster, hashing_workers, data, tmp_path):
    plan = replace(make_plan(HashEncoder(), str(data / "rows.jsonl")), encoder="of another encoder")
    with pytest.raises(StorageError, match=r"workers of Ray failed: .*another encoder on this node[^\n]*$"):
        list(RayEngine(plan, "hashes", str(tmp_path), workers=1, device="cpu")(plan.parts()))


@pytest.fixture
def with_deadly_rows(hashing_workers, monkeypatch, tmp_path):
    """with_deadly_rows(**options) embeds 12 rows by hashing workers, which rows 3 and 7 kill."""
    rows = [{"id": f"r{n}", "text": "deadly" if n in (3, 7) else f"sentence {n}"} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    class DyingWorker(HashWorker):
        def __init__(self, *args):
            super().__init__(*args)
            encode = self._embed.encode
            self._embed.encode = lambda texts: os.kill(os.getpid(), 9) if "deadly" in texts else encode(texts)

    monkeypatch.setattr(ray_engine, "_PartWorker", DyingWorker)
    monkeypatch.setattr(ray_engine, "RETRIES", 0)  # other tests kill workers of parts that succeed when repeated
    return lambda rows_per_part=4, **options: dataset.embed_dataset(
        "hashes", str(tmp_path / "rows.jsonl"), tmp_path / "out", rows_per_part=rows_per_part, engine="ray", **options
    )


def test_row_that_kills_its_worker_is_skipped(cluster, with_deadly_rows, tmp_path):
    result = with_deadly_rows(on_error="skip", workers=2)
    assert (result.n_rows, result.n_skipped, result.n_parts, result.n_computed) == (12, 2, 3, 3)
    skipped = [json.loads(file.read_text("utf-8")) for file in sorted((tmp_path / "out").glob("skipped-*.jsonl"))]
    assert [(row["id"], row["row"]) for row in skipped] == [("r3", 3), ("r7", 7)]
    assert all("crashed 2 times" in row["reason"] for row in skipped)
    tables = [pq.read_table(file) for file in sorted((tmp_path / "out").glob("part-*"))]
    rows = {row["id"]: row["embedding"] for table in tables for row in table.to_pylist()}
    kept = [n for n in range(12) if n not in (3, 7)]
    assert list(rows) == [f"r{n}" for n in kept]
    assert np.array_equal(list(rows.values()), HashEncoder().encode([f"sentence {n}" for n in kept]))
    assert with_deadly_rows(on_error="skip").n_computed == 0


def test_row_that_kills_its_worker_is_named(cluster, with_deadly_rows):
    with pytest.raises(d2v.DataFileError, match=r"rows.jsonl, row 4: .*crashed 2 times .* --on-error skip\.$"):
        with_deadly_rows(workers=1)


def test_workers_that_always_die_are_one_sentence(cluster, with_deadly_rows, monkeypatch):
    """No row is to blame for them."""

    class BrokenWorker(HashWorker):
        def __init__(self, *args):
            super().__init__(*args)
            self._embed.encode = lambda texts: os.kill(os.getpid(), 9)

    monkeypatch.setattr(ray_engine, "_PartWorker", BrokenWorker)
    with pytest.raises(StorageError, match=r"^The workers of Ray failed: their processes crashed"):
        with_deadly_rows(on_error="skip", workers=1, rows_per_part=12)


def test_text_that_kills_the_worker_of_an_encoder_is_one_sentence(cluster, monkeypatch):
    expected = d2v.Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32").fingerprint

    class DyingWorker:
        """Dies before it needs the encoder, and loads none, since it is started again and again."""

        def __init__(self, *_):
            pass

        def fingerprint(self):
            return expected

        def compute(self, *_):
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(ray_encoder, "_Worker", DyingWorker)
    shared = d2v.RayEncoder.from_name("tiny-llama", workers=1, device="cpu", dtype="float32")
    with pytest.raises(StorageError, match=r"^The workers of Ray failed: their processes crashed"):
        shared.encode([f"sentence {number}" for number in range(200)])


@pytest.mark.parametrize(("workers", "n_gpus", "wanted", "started"), [(2, 0, 3, 2), (2, 0, None, 0), (2, 2, None, 2)])
def test_number_of_tokenising_processes_is_bounded_and_said(workers, n_gpus, wanted, started, monkeypatch, caplog):
    monkeypatch.setattr(ray_engine, "start_ray", lambda: None)
    monkeypatch.setattr(ray_engine, "count_workers", lambda *_: (workers, n_gpus))
    engine = RayEngine(SimpleNamespace(compute="float32"), "tiny-llama", "out", tokenisers=wanted)
    assert engine.tokenisers == started
    assert ("2 processes tokenise, one for each worker, not 3." in caplog.text) == (wanted == 3)


@pytest.mark.parametrize(
    ("resources", "device", "wanted", "expected"),
    [
        ({"CPU": 2.0}, None, 8, (2, 0)),
        ({"CPU": 2.0}, None, None, (2, 0)),
        ({"CPU": 8.0, "GPU": 1.0}, None, 2, (1, 1)),
        ({"CPU": 8.0, "GPU": 1.0}, "cpu", 2, (2, 0)),
    ],
)
def test_workers_that_are_waited_for_have_room(resources, device, wanted, expected, caplog):
    """Ray starts no more than it has cores or GPUs, and would wait for the others without end."""
    cluster = SimpleNamespace(cluster_resources=lambda: resources)
    assert ray_engine.count_workers(cluster, wanted, device, at_once=True) == expected
    assert ("workers are started, not" in caplog.text) == (wanted is not None and wanted > expected[0])
    assert ray_engine.count_workers(cluster, 8, device)[0] == 8, "Ray Data starts them as there is room"


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_ray_that_cannot_start_is_one_sentence(address, monkeypatch):
    def init(**_):
        raise ConnectionError("no answer\nand more lines.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(
        StorageError, match=r"^Cannot use (the cluster .* 10.0.0.1:6379,|Ray on this machine): no answer\.$"
    ):
        ray_engine.start_ray()


def test_loaded_encoder_is_refused():
    with pytest.raises(InputError, match="give its name"):
        d2v.embed_dataset(d2v.Encoder.from_pretrained("tiny-llama", device="cpu"), "x", "y", engine="ray")


def test_sweep_in_workers_scores_the_same(cluster, tmp_path, monkeypatch):
    pairs = d2v.ScoredPairs(
        "mine",
        [f"a cat {n}" for n in range(90)],
        [f"a dog {n % 7}" for n in range(90)],
        [float(n % 5) for n in range(90)],
    )
    options = {
        "templates": ["plain"],
        "poolings": ["mean"],
        "attentions": ["causal", "bidirectional"],
        "heads": ["none"],
    }
    results = []
    for engine in ("ray", "local"):
        monkeypatch.setenv("D2V_CACHE", str(tmp_path / engine))  # latents of the other engine are not found
        sweep = d2v.sweep(
            "tiny-llama", pairs, engine=engine, workers=2, reroute=["kv:2-2"], device="cpu", dtype="float32", **options
        )
        results.append({(row.attention, row.layer, row.normed): row.spearman for row in sweep.rows})
        assert sweep.stats.texts == len(pairs.texts()) * 3
    assert len(results[0]) == 18, "3 ways of attention, 5 layers, and the last one normed"
    assert results[0] == pytest.approx(results[1], abs=0.05)


def test_unknown_engine_is_refused_before_any_work(tmp_path):
    pairs = d2v.ScoredPairs("mine", ["a", "b", "c"], ["d", "e", "f"], [1.0, 2.0, 3.0])
    for call in (d2v.sweep, d2v.evaluate):
        with pytest.raises(d2v.UnknownNameError, match="engine"):
            call("tiny-llama", pairs, engine="spark")


CHOICES = {"layer": 2, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def encoders(cluster):
    """An encoder in this process, and one in two workers."""
    return d2v.Encoder.from_pretrained("tiny-llama", **CHOICES), d2v.RayEncoder.from_name(
        "tiny-llama", workers=2, **CHOICES
    )


def test_encoder_in_workers_gives_the_same_vectors(encoders):
    local, shared = encoders
    texts = [f"sentence {number} " * (1 + number % 9) for number in range(300)]
    for prompt, dim in ((None, None), ("Find: ", 8)):
        whole, cut = (np.linalg.norm(local.encode(texts, prompt=prompt, truncate_dim=d), axis=1) for d in (None, dim))
        growth = (whole / cut).max()  # of rounding, where what is left of a vector is scaled to a length of 1
        options = {"prompt": prompt, "truncate_dim": dim, "normalize_embeddings": True}
        computed, expected = (each.encode(texts, **options) for each in (shared, local))
        np.testing.assert_allclose(computed, expected, atol=1e-6 * growth)
    assert shared.stats.texts == 600
    assert shared.fingerprint == local.fingerprint


class RayOfOneProcess:
    """Stands for Ray: its workers are objects of this process."""

    exceptions = ray.exceptions

    @staticmethod
    def cluster_resources():
        return {"CPU": 2}

    @staticmethod
    def remote(**options):
        def call(function):
            return SimpleNamespace(remote=function)

        def start(cls):
            def worker(*arguments):
                started = cls(*arguments)
                return SimpleNamespace(fingerprint=call(started.fingerprint), compute=call(started.compute))

            return call(worker)

        return start

    @staticmethod
    def get(results):
        return results


def test_workers_of_an_encoder_round_as_it_does(monkeypatch):
    """They were started with the dtype of the states, and refused as another encoder."""
    monkeypatch.setattr(ray_encoder, "start_ray", RayOfOneProcess)
    options = {"device": "cpu", "dtype": "int8"}
    encoder = d2v.RayEncoder.from_name("tiny-llama", workers=1, **options)
    assert encoder.fingerprint == d2v.Encoder.from_pretrained("tiny-llama", **options).fingerprint
    plain = d2v.Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")
    assert encoder.fingerprint != plain.fingerprint


def test_killed_worker_of_an_encoder_is_started_again(encoders):
    local, shared = encoders
    ray.kill(shared._workers[0], no_restart=False)
    texts = [f"sentence {number}" for number in range(200)]
    computed, expected = (each.encode(texts, normalize_embeddings=True) for each in (shared, local))
    np.testing.assert_allclose(computed, expected, atol=1e-6)


def test_evaluation_takes_an_encoder_in_workers(encoders, tmp_path):
    pairs = "".join(f"a cat {n}\ta dog {n % 7}\t{n % 5}\n" for n in range(80))
    (tmp_path / "pairs.tsv").write_text(f"sentence1\tsentence2\tscore\n{pairs}", "utf-8")
    local, shared = (d2v.evaluate(encoder, tmp_path / "pairs.tsv")["results"][0] for encoder in encoders)
    assert shared["spearman"] == pytest.approx(local["spearman"], abs=0.1)


def test_commands_use_the_engine(encoders, tmp_path, monkeypatch):
    """They get workers that run already, if they ask for the same ones."""

    def running(name, **options):
        assert name == "tiny-llama"
        assert {key: value for key, value in options.items() if value is not None} == {"workers": 2, **CHOICES}
        requests.append(name)
        return encoders[1]

    requests = []
    monkeypatch.setattr(d2v.RayEncoder, "from_name", running)
    pairs = "".join(f"a cat {n}\ta dog {n % 7}\t{n % 5}\n" for n in range(80))
    (tmp_path / "pairs.tsv").write_text(f"sentence1\tsentence2\tscore\n{pairs}", "utf-8")
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "sentence {n}"}}\n' for n in range(200)), "utf-8")
    on_ray = ["--engine", "ray", "--workers", "2", "--layer", "2", "--device", "cpu", "--dtype", "float32"]
    data = str(tmp_path / "pairs.tsv")

    def command(*arguments):
        result = CliRunner().invoke(app, [str(each) for each in [*arguments, *on_ray]])
        assert result.exit_code == 0, result.output

    command("eval", "tiny-llama", "--data", data, "--json", tmp_path / "eval.json")
    local = d2v.evaluate("tiny-llama", data, **CHOICES)
    assert json.loads((tmp_path / "eval.json").read_text())["mean_spearman"] == pytest.approx(
        local["mean_spearman"], abs=0.1
    )
    command("index", tmp_path / "texts.jsonl", "--out", tmp_path / "idx", "--encoder", "tiny-llama")
    index = d2v.Index.open(tmp_path / "idx")
    (hit,) = index.search("sentence 17", 1, "dense")
    assert hit.text == "sentence 17" and hit.score == pytest.approx(1, abs=1e-5)
    index.verify()
    assert len(requests) == 2
