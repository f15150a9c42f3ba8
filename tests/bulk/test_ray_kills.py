"""Workers of Ray and their driver are killed at random moments: no row is lost, doubled or changed.

`D2V_KILLS=1000 pytest -m soak tests/bulk/test_ray_kills.py` kills a thousand times; by default it is some.
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

import psutil
import pytest

import decoder2vec as d2v

pytestmark = pytest.mark.soak
pytest.importorskip("ray", reason="needs ray: pip install 'decoder2vec[ray]'")

KILLS = int(os.environ.get("D2V_KILLS", "40"))
WORKERS = 8
N_ROWS, ROWS_PER_PART = 4000, 20
SETTINGS = {"rows_per_part": ROWS_PER_PART, "device": "cpu", "dtype": "float32"}
DRIVER = f"""
import os, sys
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
ray.init(num_cpus={WORKERS}, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
import decoder2vec as d2v
d2v.embed_dataset("tiny-llama", sys.argv[1], sys.argv[2], engine="ray", workers={WORKERS}, **{SETTINGS})
"""


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def workers_of(driver):
    """Processes with an encoder."""
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
    for member in family:
        member.suspend()
    for member in family:
        member.kill()
    psutil.wait_procs(family[1:])  # who started the driver waits for it


def test_kills_of_workers_and_drivers_lose_and_double_nothing(own_cache, tmp_path):
    rng, kills = random.Random(), {"worker": 0, "driver": 0}
    file = tmp_path / "rows.jsonl"
    rows = ({"id": f"r{n}", "text": f"sentence {n} of many " * (1 + n % 7)} for n in range(N_ROWS))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    d2v.embed_dataset("tiny-llama", str(file), tmp_path / "local", **SETTINGS)
    expected, out = contents(tmp_path / "local"), tmp_path / "out"
    while sum(kills.values()) < KILLS:
        command = [sys.executable, "-c", DRIVER, str(file), str(out)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as started:
            driver, n_parts = psutil.Process(started.pid), 0
            while started.poll() is None and sum(kills.values()) < KILLS:
                time.sleep(rng.uniform(0, 0.6))
                n_before, n_parts = n_parts, len(list(out.glob("part-*")))
                # while workers load the encoder, most of them are spared, or none would ever compute
                if (n_parts > n_before or rng.random() < 0.05) and (victims := workers_of(driver)):
                    os.kill(rng.choice(victims).pid, signal.SIGKILL)
                    kills["worker"] += 1
                    if rng.random() < 0.1:
                        kill_with_children(driver)
                        kills["driver"] += 1
            assert started.wait() in (0, -signal.SIGKILL), started.stderr.read()
        if started.returncode == 0:
            assert contents(out) == expected
            shutil.rmtree(out)
            print(kills, flush=True)
    d2v.embed_dataset("tiny-llama", str(file), out, **SETTINGS)  # what the last one has left
    assert contents(out) == expected
