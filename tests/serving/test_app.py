"""`d2v serve` as a process: many clients at once, stable memory, orderly shutdown, and errors before it starts."""

from __future__ import annotations

import asyncio
import doctest
import os
import re
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from decoder2vec.errors import Decoder2VecError, InputError
from decoder2vec.serving import app
from toys.command import d2v
from toys.documents import DOCUMENTS

CLIENTS = 32
WORDS = DOCUMENTS[0].text.lower().split() + DOCUMENTS[1].text.lower().split()


@pytest.fixture
def serve_process(quick_python):
    """serve_process(*options) -> (URL, process) of `d2v serve tiny-llama` in a new process."""
    processes = []

    def start(*options):
        code = "import sys; from decoder2vec.cli import main; sys.argv[0] = 'd2v'; main()"
        args = ["serve", "tiny-llama", "--port", "0", "--device", "cpu", *options]
        processes.append(quick_python.start(code, *args, env={**os.environ, "OMP_NUM_THREADS": "1"}))
        return re.search(r"http://[\d.:]+", processes[-1].stderr.readline())[0], processes[-1]

    yield start
    for process in processes:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.communicate()


async def run_clients(url, seconds):
    """Send requests from all clients at once; return [(texts, vectors)]."""
    results, end = [], time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=CLIENTS)) as client:
        await asyncio.gather(*(send_requests(client, number, end, results) for number in range(CLIENTS)))
    return results


async def send_requests(client, number, end, results):
    rng, turn = np.random.default_rng(number), 0
    while time.monotonic() < end:
        texts = [" ".join([f"{number}.{turn}", *rng.choice(WORDS, rng.integers(1, 30))]) for _ in range(1 + turn % 3)]
        response = await client.post("/v1/embeddings", json={"model": "tiny-llama", "input": texts})
        assert response.status_code == 200, response.text
        results.append((texts, np.array([item["embedding"] for item in response.json()["data"]])))
        turn += 1


def check_vectors(results, offline):
    """Every vector is that of its own text."""
    texts = [text for request_texts, _ in results for text in request_texts]
    vectors = np.concatenate([vectors for _, vectors in results])
    expected = offline.encode(texts, normalize_embeddings=True)
    scale = np.abs(expected).max(axis=1, keepdims=True)
    assert vectors.shape == expected.shape and np.abs((vectors - expected) / scale).max() < 1e-5


def resident_megabytes(process):
    """Resident memory of a process."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def metric(url, name):
    """The value of one of the server's metrics."""
    return float(re.search(rf"^d2v_{name} (.*)$", httpx.get(f"{url}/metrics", timeout=30).text, re.M)[1])


def test_32_clients_for_3_seconds_and_orderly_shutdown(serve_process, offline):
    url, process = serve_process()
    check_vectors(asyncio.run(run_clients(url, 3)), offline)
    before = metric(url, "texts_total")
    assert before > 3 * metric(url, "batches_total")  # texts of several clients shared batches
    responses = []
    body = {"input": [f"{row} {' '.join(WORDS)}" for row in range(300)]}
    sender = threading.Thread(
        target=lambda: responses.append(httpx.post(f"{url}/v1/embeddings", json=body, timeout=60))
    )
    sender.start()
    while metric(url, "texts_total") == before:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    sender.join(60)
    assert responses[0].status_code == 200 and len(responses[0].json()["data"]) == 300
    process.communicate(30)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_is_stable_with_32_clients_for_60_seconds(serve_process, offline):
    url, process = serve_process("--cache-mb", "1")
    check_vectors(asyncio.run(run_clients(url, 15)), offline)
    before = resident_megabytes(process)
    results = asyncio.run(run_clients(url, 60))
    after = resident_megabytes(process)
    check_vectors(results, offline)
    assert after - before < 0.03 * before, f"{before:.0f} MB, then {after:.0f} MB"


def test_port_that_no_machine_has_is_refused():
    result = d2v("serve", "tiny-llama", "--port", 99999)  # the socket would take 99999 modulo 65536
    assert result.exit_code == 2 and "65535" in result.output


def test_port_in_use_is_an_error_of_one_sentence(url):
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
def test_wrong_option_is_an_error_before_the_server_starts(options, message):
    with pytest.raises(Decoder2VecError, match=message):
        d2v("serve", "tiny-llama", "--port", 0, "--device", "cpu", *options)


def test_api_keys_are_read_from_the_environment(monkeypatch):
    monkeypatch.setenv("D2V_API_KEY", "good schlüssel")
    with pytest.raises(Decoder2VecError, match="API key"):
        d2v("serve", "tiny-llama", "--port", 0, "--device", "cpu")


def test_port_in_use_is_reported_before_the_model_is_loaded(url):
    with pytest.raises(InputError, match="choose another with --port"):
        app.serve(lambda: pytest.fail("a model was loaded"), port=int(url.rsplit(":", 1)[1]))


def test_announced_address_accepts_connections(offline):
    class Announced(Exception):
        """Raised as soon as the address is announced, before the server has run at all."""

    def connect(sentence):
        host, port = re.search(r"http://([\d.]+):(\d+)", sentence).groups()
        socket.create_connection((host, int(port)), timeout=5).close()
        raise Announced

    with pytest.raises(Announced):
        app.serve(lambda: app.ServerConfig(offline, name="tiny"), port=0, notify=connect)


def test_unusable_api_key_is_reported_before_the_model_is_loaded():
    with pytest.raises(InputError, match="API key"):
        app.serve(lambda: pytest.fail("a model was loaded"), ["two words"], port=0)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("192.168.0.2", False), ("x", False)],
)
def test_loopback_addresses_are_recognised(host, expected):
    assert app.is_loopback(host) is expected


def test_example_of_create_app_runs():
    results = doctest.testmod(app)
    assert results.failed == 0 and results.attempted == 5
