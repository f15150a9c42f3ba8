"""A client of OpenAI-compatible servers: against small servers that fail on purpose, and our own."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from decoder2vec.errors import EncoderError, InputError
from decoder2vec.evaluation import server_encoders
from decoder2vec.evaluation.baselines import load_encoder

TEXTS = [f"Order {number} was sent." for number in range(150)]


def vector(text):
    return [float(len(text)), float(sum(text.encode()) % 97), 1.0]


@contextmanager
def server(failures=()):
    """Answers each request with the next failure (status, headers, body), and then with vectors in reverse order."""
    queue, requests, lock = list(failures), [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                requests.append((self.path, dict(self.headers), body))
                status, headers, reply = queue.pop(0) if queue else (200, {}, None)
            if status == "hang up":
                self.connection.close()
                return
            data = [{"index": n, "embedding": vector(text)} for n, text in enumerate(body["input"])][::-1]
            content = json.dumps({"data": data} if reply is None else reply).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/v1#small", requests
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """Waiting times, which are recorded and not waited for; no key."""
    times = []
    monkeypatch.setattr(server_encoders.time, "sleep", times.append)
    for name in server_encoders.KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return times


def error(message):
    return {"error": {"message": message}}


def test_vectors_come_in_batches_and_in_order(waits):
    with server() as (url, requests):
        encoder = load_encoder(url)
        assert np.allclose(encoder.encode(TEXTS), [vector(text) for text in TEXTS])
        assert encoder.encode("One text").shape == (3,) and encoder.dim == 3 and encoder.encode([]).shape == (0, 3)
        assert load_encoder(url.replace("/v1#", "/v1/embeddings#")).encode("A").shape == (3,)
    assert {path for path, _, _ in requests} == {"/v1/embeddings"}
    assert sorted(len(body["input"]) for _, _, body in requests[:3]) == [22, 64, 64]
    assert all(body["model"] == "small" for _, _, body in requests) and not waits


def test_prompt_is_put_before_the_text():
    with server() as (url, requests):
        load_encoder(url).encode(["a", "b"], prompt="query: ")
    assert requests[0][2]["input"] == ["query: a", "query: b"]


def test_failures_that_may_pass_are_retried(waits):
    failures = [
        (429, {"Retry-After": "7"}, error("slow down")),
        (503, {}, error("busy")),
        ("hang up", {}, None),
        (500, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, error("broken")),
        (429, {"Retry-After": "9999"}, error("slow down")),
    ]
    with server(failures) as (url, requests):
        assert load_encoder(url).encode("text").tolist() == vector("text")
    assert len(requests) == 6
    assert waits[0] == 7 and 1 <= waits[1] <= 2 and 2 <= waits[2] <= 4, "2**attempt, less up to a half"
    assert waits[3] == 0 and waits[4] == 120


def test_server_that_keeps_failing_is_an_error(waits):
    message = "failed 7 times in a row, last with: 502 no upstream"
    with server([(502, {}, error("no upstream"))] * 7) as (url, requests), pytest.raises(EncoderError, match=message):
        load_encoder(url).encode("text")
    assert len(requests) == 7 and len(waits) == 6
    with pytest.raises(EncoderError, match=r"http://127.0.0.1:9/v1 failed 7 times in a row, last with: .*refused"):
        load_encoder("http://127.0.0.1:9/v1#m").encode("text")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((404, {}, error("no model small")), "refused the request: 404 no model small"),
        ((401, {}, error("no key")), "401 no key; set D2V_API_KEY or OPENAI_API_KEY"),
        ((200, {}, {"data": []}), "returned 0 vectors for 2 texts"),
        ((200, {}, {"embeddings": []}), "does not answer like OpenAI"),
        ((200, {}, {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1, 2]}]}), "does not answer"),
    ],
)
def test_other_failures_are_errors_at_once(reply, message, waits):
    with server([reply]) as (url, requests), pytest.raises(EncoderError, match=message):
        load_encoder(url).encode(["a", "b"])
    assert len(requests) == 1 and not waits


def test_key_comes_from_the_environment_and_is_never_shown(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-general")
    with server() as (url, requests):
        first = load_encoder(url)
        first.encode("a")
        monkeypatch.setenv("D2V_API_KEY", "sk-secret\n")
        first.encode("a")
    assert [headers["Authorization"] for _, headers, _ in requests] == ["Bearer sk-general", "Bearer sk-secret"]
    with server([(401, {}, error("wrong key sk-secret"))]) as (url, _), pytest.raises(EncoderError) as failure:
        load_encoder(url).encode("a")
    shown = f"{failure.value} {first!r} {vars(first)} {caplog.text}"
    assert "sk-secret" not in shown and "wrong key ..." in shown


def test_rate_limit_spreads_requests(monkeypatch, waits):
    clock = [100.0]
    monkeypatch.setattr(server_encoders.time, "monotonic", lambda: clock[0])
    with server() as (url, _):
        load_encoder(url, requests_per_minute=120).encode(TEXTS)
    assert sorted(waits) == pytest.approx([0.5, 1.0]), "three requests, the first at once"


@pytest.mark.parametrize("url", ["https://host/v1", "https://#model"])
def test_address_needs_host_and_model(url):
    with pytest.raises(InputError, match="https://host/v1#model"):
        load_encoder(url)


def test_unfit_options_are_refused():
    for url in ("https://me:sk-secret@host/v1#m", "https://me:sk-secret@host/v1"):
        with pytest.raises(InputError, match="contains a password") as caught:
            load_encoder(url)
        assert "sk-secret" not in str(caught.value)
    with pytest.raises(InputError, match="leave out pooling"):
        load_encoder("https://host/v1#m", pooling="mean")
    one, other = (load_encoder(f"https://host/v1#{model}").fingerprint for model in "ab")
    assert one != other == load_encoder("https://host/v1/#b").fingerprint
