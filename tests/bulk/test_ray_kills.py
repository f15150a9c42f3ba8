"""Processes of Ray and their driver are killed at random moments: no row is lost, doubled or changed.

`D2V_KILLS=200 pytest -m soak tests/bulk/test_ray_kills.py -k hash` kills a thousand times; by default it is some. With
an encoder, a killed worker takes seconds to load it again. A worker that hashes texts in place of the encoder starts
without torch; everything else (plan, engine, tokenising processes, parts, files) is the same.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import decoder2vec as d2v
from decoder2vec.bulk import dataset
from toys.hashing import HashEncoder

pytestmark = pytest.mark.soak
pytest.importorskip("ray", reason="needs ray: pip install 'decoder2vec[ray]'")

TESTS = Path(__file__).parents[1]
KILLS = int(os.environ.get("D2V_KILLS", "40"))
WORKERS = 8
N_ROWS, N_HASHED_ROWS, ROWS_PER_PART = 4000, 30_000, 20
STREAMS = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
SETTINGS = {"rows_per_part": ROWS_PER_PART, "device": "cpu", "dtype": "float32"}
START = f"""
import os, sys
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
ray.init(num_cpus={WORKERS}, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
"""
WITH_ENCODER = f"""{START}
import decoder2vec as d2v
d2v.embed_dataset("tiny-llama", sys.argv[1], sys.argv[2], engine="ray", workers={WORKERS}, **{SETTINGS})
"""
WITH_HASHES = f"""{START}
from decoder2vec.bulk import dataset, ray_engine
from toys.hashing import HashEncoder, HashWorker, NoTokens
dataset.Encoder, ray_engine._PartWorker, dataset.TokeniserSettings = HashEncoder, HashWorker, NoTokens
options = dict(engine="ray", workers={WORKERS - 1}, tokenisers=2, **{SETTINGS})
dataset.embed_dataset("hashes", sys.argv[1], sys.argv[2], **options)
"""


def write_rows(file, count):
    """Write rows with an id and a text."""
    rows = ({"id": f"r{n}", "text": f"sentence {n} of many " * (1 + n % 7)} for n in range(count))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def workers_of(driver):
    """Processes that compute or tokenise."""
    found = []
    for process in driver.children(recursive=True):
        try:
            if "MapWorker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue  # it has just ended
    return found


def kill_with_children(process):
    """Kill a driver as a crash of its machine does: with all that it started."""
    family = [process, *process.children(recursive=True)]
    for act in (psutil.Process.suspend, psutil.Process.kill):
        for member in family:
            with suppress(psutil.NoSuchProcess):  # it has just ended
                act(member)
    psutil.wait_procs(family[1:])  # who started the driver waits for it


def kill_at_random(script, file, out, expected, n_kills, share_of_drivers):
    """Run the script again and again, killing workers and drivers; compare the folder whenever a run has ended."""
    rng, kills, n_runs = random.Random(), {"worker": 0, "driver": 0}, 0
    while sum(kills.values()) < n_kills:
        command = [sys.executable, "-c", script, str(file), str(out)]
        environment = os.environ | {"PYTHONPATH": f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        with subprocess.Popen(command, env=environment, **STREAMS) as started:
            driver, n_parts = psutil.Process(started.pid), 0
            while started.poll() is None and sum(kills.values()) < n_kills:
                time.sleep(rng.uniform(0, 0.3))
                n_before, n_parts = n_parts, len(list(out.glob("part-*")))
                # while workers start, most of them are spared, or none would ever compute
                if (n_parts > n_before or rng.random() < 0.05) and (victims := workers_of(driver)):
                    with suppress(psutil.NoSuchProcess):
                        rng.choice(victims).kill()
                        kills["worker"] += 1
                    if rng.random() < share_of_drivers:
                        kill_with_children(driver)
                        kills["driver"] += 1
            assert started.wait() in (0, -signal.SIGKILL), started.stderr.read()
        if started.returncode == 0 and sum(kills.values()) < n_kills:
            assert contents(out) == expected
            shutil.rmtree(out)
            n_runs += 1
        print(kills, "whole runs:", n_runs, flush=True)


def test_kills_of_workers_and_drivers_lose_and_double_nothing(own_cache, tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", N_ROWS)
    d2v.embed_dataset("tiny-llama", str(file), tmp_path / "local", **SETTINGS)
    expected, out = contents(tmp_path / "local"), tmp_path / "out"
    kill_at_random(WITH_ENCODER, file, out, expected, KILLS, 0.1)
    d2v.embed_dataset("tiny-llama", str(file), out, **SETTINGS)  # what the last one has left
    assert contents(out) == expected


def test_many_kills_of_workers_that_hash_lose_and_double_nothing(tmp_path, monkeypatch):
    file = write_rows(tmp_path / "rows.jsonl", N_HASHED_ROWS)
    monkeypatch.setattr(dataset, "Encoder", HashEncoder)
    monkeypatch.setattr(dataset.PartEmbedder, "encode", lambda embedder, texts: embedder.encoder.encode(texts))
    dataset.embed_dataset("hashes", str(file), tmp_path / "local", **SETTINGS)
    expected, out = contents(tmp_path / "local"), tmp_path / "out"
    kill_at_random(WITH_HASHES, file, out, expected, 5 * KILLS, 0.02)
    dataset.embed_dataset("hashes", str(file), out, **SETTINGS)
    assert contents(out) == expected
