"""Whoever asks in a wrong way gets an answer of OpenAI's shape, and nobody else notices."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import openai
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from decoder2vec.serving.limits import Limits
from toys.encoder import WordEncoder

SECRET = "Zweitausendschoen"


def problem(answer, status):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"input": "\\ud800"}',
        b'{"input": ["\\udfff", "x"]}',
        b'{"input": "x", "dimensions": 1e999}',
        b'{"input": "x", "dimensions": NaN}',
        b'{"input": "x", "dimensions": "5"}',
        b'{"input": "x", "dimensions": 0}',
        b'{"input": "x", "dimensions": ' + b"9" * 5000 + b"}",
        b'{"input": "x", "encoding_format": "hex"}',
        b'{"input": "x", "model": 5}',
        b'{"input": []}',
        b'{"input": [[]]}',
        b'{"input": {"a": 1}}',
        b'{"input": [true]}',
        b'{"input": ["x", 1]}',
        b'{"input": null}',
        b"[" * 100_000,
        b'{"input": ' + b"[" * 100_000,
    ],
    ids=range(23),
)
def test_a_malformed_request_is_refused(client, body):
    answer = client.post("/v1/embeddings", content=body, headers={"Content-Type": "application/json"})
    assert problem(answer, 400)["type"] == "invalid_request_error"


@pytest.mark.parametrize("route", ["/search", "/match", "/rerank", "/compare"])
@pytest.mark.parametrize("body", ["", "{}", "[1]", '{"query": 5}', '{"a": "\\ud800", "b": "x"}', '{"left": [{}]}'])
def test_a_malformed_lookup_is_refused(client, route, body):
    problem(client.post(route, content=body, headers={"Content-Type": "application/json"}), 400)


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/search", {"query": "\ud800"}),
        ("/search", {"query": "x", "filter": {"\ud800": "a"}}),
        ("/match", {"left": [{"id": "\ud800", "text": "x"}], "right": [{"id": "b", "text": "\udfff"}], "top": 1}),
        ("/rerank", {"query": "x", "documents": ["\ud800"]}),
        ("/v1/embeddings", {"input": "x", "model": "\ud800"}),
    ],
)
def test_half_a_surrogate_pair_breaks_nothing(client, route, body):
    content = json.dumps(body).encode()
    answer = client.post(route, content=content, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500 and answer.json()["error"]


def test_odd_texts_are_read(client, offline):
    texts = ["\x00", "\u202e", "a" * 20_000, "\n\t ", "𝕏" * 500, "<script>"]
    found = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
    assert len(found) == len(texts)


def test_a_body_of_ten_megabytes_is_refused_and_the_client_hears_it(client):
    content = json.dumps({"input": "x" * 10_000_000}).encode()
    error = problem(client.post("/v1/embeddings", content=content), 413)
    assert error["code"] == "body_too_large"
    parts = (b"x" * 100_000 for _ in range(100))  # sent in chunks, without saying how many
    assert problem(client.post("/v1/embeddings", content=parts), 413)["code"] == "body_too_large"


def test_too_many_texts_or_tokens_are_refused(serving):
    with serving(limits=Limits(texts=3, request_tokens=100)) as url, httpx.Client(base_url=url) as client:
        assert problem(client.post("/v1/embeddings", json={"input": ["x"] * 4}), 413)["code"] == "too_many_texts"
        assert problem(client.post("/v1/embeddings", json={"input": "x " * 99}), 413)["code"] == "too_many_tokens"
        assert client.post("/v1/embeddings", json={"input": ["x"] * 3}).status_code == 200


def test_a_missing_or_wrong_key_is_refused_and_a_right_one_is_not(serving):
    with serving(keys=["first", "second"]) as url, httpx.Client(base_url=url) as client:
        for headers in (
            {},
            {"Authorization": "Bearer third"},
            {"Authorization": "first"},
            {"Authorization": "Basic first"},
        ):
            for method, path in (("GET", "/v1/models"), ("POST", "/search"), ("GET", "/metrics"), ("GET", "/nothing")):
                answer = client.request(method, path, headers=headers)
                assert problem(answer, 401)["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get("/health").status_code == client.get("/").status_code == 200
        for key in ("first", "second"):
            assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="third", max_retries=0).models.list()
        assert openai.OpenAI(base_url=f"{url}/v1", api_key="second").models.list().data


def test_a_foreign_page_that_leads_its_name_to_this_machine_is_refused(url):
    port = url.rsplit(":", 1)[1]
    for host, status in (("evil.example", 403), (f"evil.example:{port}", 403), (f"localhost:{port}", 200)):
        assert httpx.get(f"{url}/health", headers={"Host": host}).status_code == status


def test_more_requests_a_minute_than_allowed_are_told_when_to_come_back(serving):
    with (
        serving(limits=Limits(requests_per_minute=2, tokens_per_minute=1000)) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert [client.get("/v1/models").status_code for _ in range(3)] == [200, 200, 429]
        answer = client.get("/v1/models")
        assert problem(answer, 429)["type"] == "rate_limit_error" and 1 <= int(answer.headers["retry-after"]) <= 31


def test_a_full_queue_answers_429_and_the_openai_client_comes_back_by_itself(serving):
    slow, limits = WordEncoder(slow=0.3), Limits(waiting_tokens=40, batch_tokens=30)
    text = "w" * 76  # twenty tokens, by estimate
    with (
        serving(encoder=slow, name="w", limits=limits, cache_megabytes=0) as url,
        httpx.Client(base_url=url) as client,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=8) as patient,
        ThreadPoolExecutor(12) as pool,
    ):
        answers = list(pool.map(lambda _: client.post("/v1/embeddings", json={"input": text}), range(12)))
        refused = [answer for answer in answers if answer.status_code != 200]
        assert 0 < len(refused) < 12
        assert all(problem(answer, 429)["code"] == "overloaded" for answer in refused)
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        again = list(pool.map(lambda _: patient.embeddings.create(model="w", input=text), range(6)))
        assert len(again) == 6


def test_clients_that_hang_up_are_forgotten(serving):
    slow = WordEncoder(slow=0.4)
    with serving(encoder=slow, name="w", limits=Limits(batch_tokens=4)) as url, httpx.Client(base_url=url) as client:
        host, port = url.removeprefix("http://").split(":")
        for number in range(4):
            body = json.dumps({"input": [f"text {number} {part}" for part in range(5)]}).encode()
            with socket.create_connection((host, int(port))) as left:
                head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
                left.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
                time.sleep(0.05)
        assert client.post("/v1/embeddings", json={"input": "stays"}, timeout=20).status_code == 200
        assert len(slow.encoded_texts) < 10  # of twenty-one
        dropped = re.search(r"^d2v_dropped_texts_total (.*)$", client.get("/metrics").text, re.M)
        assert float(dropped[1]) > 10


def test_slow_clients_hold_up_nobody_and_are_told_to_go(serving):
    with serving(limits=Limits(body_seconds=0.5)) as url, httpx.Client(base_url=url) as client:
        host, port = url.removeprefix("http://").split(":")
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{".encode()
        slow = [socket.create_connection((host, int(port))) for _ in range(20)]
        try:
            for number, one in enumerate(slow):
                one.sendall(head if number % 2 else head[:20])
            started = time.perf_counter()
            assert client.post("/v1/embeddings", json={"input": "quick"}).status_code == 200
            assert time.perf_counter() - started < 0.5
            slow[1].settimeout(10)
            assert slow[1].recv(100).startswith(b"HTTP/1.1 408")
        finally:
            [one.close() for one in slow]


class Broken(WordEncoder):
    def encode(self, texts):
        raise RuntimeError(f"cannot read {texts}")


def test_no_text_is_logged_even_when_the_server_breaks(serving, caplog, capfd):
    with (
        caplog.at_level(logging.DEBUG),
        serving(encoder=Broken(), name="w") as url,
        httpx.Client(base_url=url) as client,
    ):
        error = problem(client.post("/v1/embeddings", json={"input": SECRET}), 500)
        client.post(f"/{SECRET}", content=SECRET.encode())
        client.get("/v1/models", params={"q": SECRET})
        client.post("/compare", json={"a": SECRET, "b": 5})
    ours = [record for record in caplog.records if record.name.split(".")[0] in ("decoder2vec", "uvicorn", "fastapi")]
    assert any("RuntimeError" in record.getMessage() for record in ours)
    out, err = capfd.readouterr()
    assert SECRET not in "".join(record.getMessage() for record in ours) + out + err + error["message"]


CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
]


def probe(url, mode, examples):
    """Ask every route for what the schema allows, or forbids; each answer must be one that the schema names."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    calm = settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    routes = [operation.ok() for operation in schema.get_all_operations()]
    for route in routes:
        with suppress(Unsatisfiable):  # what takes nothing can be asked for nothing forbidden

            @calm
            @given(case=route.as_strategy(generation_mode=mode))
            def ask(case):
                case.call_and_validate(checks=CHECKS)

            ask()
    return len(routes)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_whatever_is_asked_is_answered_as_the_schema_says(url, mode):
    assert probe(url, mode, 10) == 10


@pytest.mark.soak
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_hundreds_of_requests_to_each_route_are_answered_as_the_schema_says(url, mode):
    probe(url, mode, 300)
