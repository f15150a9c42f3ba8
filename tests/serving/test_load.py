"""Many clients at once on `d2v serve` as people run it: nothing lost, nothing swapped, memory flat, an orderly end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from decoder2vec.errors import Decoder2VecError
from toys.command import d2v
from toys.documents import DOCUMENTS

CLIENTS = 32
WORDS = DOCUMENTS[0].text.lower().split() + DOCUMENTS[1].text.lower().split()


@contextmanager
def command(*options):
    """`d2v serve tiny-llama` in a process of its own: (address, process)."""
    code = "import sys; from decoder2vec.cli import main; sys.argv[0] = 'd2v'; main()"
    args = ["serve", "tiny-llama", "--port", "0", "--device", "cpu", *options]
    source = str(Path(__file__).parents[2] / "src")
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", code, *args], stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            line = process.stderr.readline()
            yield re.search(r"http://[\d.:]+", line)[0], process
        finally:
            process.kill()


async def load(url, seconds):
    """What every client asked and got: [(texts, vectors)]."""
    answers, end = [], time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=CLIENTS)) as client:
        await asyncio.gather(*(ask(client, number, end, answers) for number in range(CLIENTS)))
    return answers


async def ask(client, number, end, answers):
    rng, turn = np.random.default_rng(number), 0
    while time.monotonic() < end:
        texts = [" ".join([f"{number}.{turn}", *rng.choice(WORDS, rng.integers(1, 30))]) for _ in range(1 + turn % 3)]
        answer = await client.post("/v1/embeddings", json={"model": "tiny-llama", "input": texts})
        assert answer.status_code == 200, answer.text
        answers.append((texts, np.array([one["embedding"] for one in answer.json()["data"]])))
        turn += 1


def check(answers, offline):
    """Every vector is that of its own text."""
    texts = [text for asked, _ in answers for text in asked]
    found = np.concatenate([vectors for _, vectors in answers])
    expected = offline.encode(texts)
    scale = np.abs(expected).max(axis=1, keepdims=True)
    assert found.shape == expected.shape and np.abs((found - expected) / scale).max() < 1e-5


def resident(process):
    """Megabytes of memory of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def number(url, name):
    """One of the server's metrics."""
    return float(re.search(rf"^d2v_{name} (.*)$", httpx.get(f"{url}/metrics", timeout=30).text, re.M)[1])


def test_32_clients_for_5_seconds_and_an_orderly_end(offline):
    with command() as (url, process):
        check(asyncio.run(load(url, 5)), offline)
        before = number(url, "texts_total")
        assert before > 3 * number(url, "batches_total")  # they were read together
        last = []
        many = {"input": [f"{row} {' '.join(WORDS)}" for row in range(300)]}
        asking = threading.Thread(target=lambda: last.append(httpx.post(f"{url}/v1/embeddings", json=many, timeout=60)))
        asking.start()
        while number(url, "texts_total") == before:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        asking.join(60)
        assert last[0].status_code == 200 and len(last[0].json()["data"]) == 300
        process.wait(30)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_32_clients_for_60_seconds_in_flat_memory(offline):
    with command("--cache-mb", "1") as (url, process):
        check(asyncio.run(load(url, 15)), offline)
        before = resident(process)
        answers = asyncio.run(load(url, 60))
        after = resident(process)
        check(answers, offline)
        assert after - before < 0.03 * before, f"{before:.0f} MB, then {after:.0f} MB"


def test_a_port_that_is_taken_is_one_sentence(url):
    with pytest.raises(Decoder2VecError, match="choose another with --port"):
        d2v("serve", "tiny-llama", "--port", url.rsplit(":", 1)[1])
    with pytest.raises(Decoder2VecError, match="choose another with --host"):
        d2v("serve", "tiny-llama", "--host", "no.such.host.invalid", "--port", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--adapter", "law"), "NAME=FOLDER"),
        (("--sweep", "no-such-sweep.json"), "cannot be read"),
        (("--index", "no-such-index"), "no index"),
        (("--max-batch-tokens", "0"), "above 0"),
        (("--api-key", "two words"), "API key"),
    ],
)
def test_a_wrong_choice_is_one_sentence_before_anything_is_served(options, message):
    with pytest.raises(Decoder2VecError, match=message):
        d2v("serve", "tiny-llama", "--port", 0, "--device", "cpu", *options)


def test_keys_come_from_the_environment_too(monkeypatch):
    monkeypatch.setenv("D2V_API_KEY", "good schlüssel")
    with pytest.raises(Decoder2VecError, match="API key"):
        d2v("serve", "tiny-llama", "--port", 0, "--device", "cpu")
