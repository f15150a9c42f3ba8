"""Requests that are malformed, too large, too many or not allowed get an error in OpenAI's format and harm nobody."""

from __future__ import annotations

import json
import logging
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import httpx
import openai
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

from decoder2vec.errors import InputError
from decoder2vec.serving.limits import Limits
from decoder2vec.serving.middleware import APIKeys
from toys.encoder import WordEncoder

SECRET = "Zweitausendschoen"


def error_of(response, status):
    """The error of a response with this status, in OpenAI's format."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
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
def test_malformed_embeddings_request_is_a_400(client, body):
    response = client.post("/v1/embeddings", content=body, headers={"Content-Type": "application/json"})
    assert error_of(response, 400)["type"] == "invalid_request_error"


@pytest.mark.parametrize("route", ["/search", "/match", "/rerank", "/compare"])
@pytest.mark.parametrize("body", ["", "{}", "[1]", '{"query": 5}', '{"a": "\\ud800", "b": "x"}', '{"left": [{}]}'])
def test_malformed_search_requests_are_a_400(client, route, body):
    error_of(client.post(route, content=body, headers={"Content-Type": "application/json"}), 400)


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
def test_lone_surrogates_are_a_client_error(client, route, body):
    content = json.dumps(body).encode()
    response = client.post(route, content=content, headers={"Content-Type": "application/json"})
    assert 400 <= response.status_code < 500 and response.json()["error"]


def test_unusual_texts_are_encoded(client):
    texts = ["\x00", "\u202e", "a" * 20_000, "\n\t ", "𝕏" * 500, "<script>"]
    data = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
    assert len(data) == len(texts)


def test_body_of_ten_megabytes_gets_a_413(client):
    content = json.dumps({"input": "x" * 10_000_000}).encode()
    error = error_of(client.post("/v1/embeddings", content=content), 413)
    assert error["code"] == "body_too_large"
    chunks = (b"x" * 100_000 for _ in range(100))  # sent without a Content-Length
    assert error_of(client.post("/v1/embeddings", content=chunks), 413)["code"] == "body_too_large"


def test_too_many_texts_or_tokens_get_a_413(serving):
    with serving(limits=Limits(max_texts=3, max_request_tokens=100)) as url, httpx.Client(base_url=url) as client:
        assert error_of(client.post("/v1/embeddings", json={"input": ["x"] * 4}), 413)["code"] == "too_many_texts"
        assert error_of(client.post("/v1/embeddings", json={"input": "x " * 99}), 413)["code"] == "too_many_tokens"
        assert client.post("/v1/embeddings", json={"input": ["x"] * 3}).status_code == 200


def test_tokens_are_counted_after_truncation(serving, offline):
    long = "word " * 3000
    limit = 2 * offline.max_seq_length
    with serving(limits=Limits(max_request_tokens=limit)) as url, httpx.Client(base_url=url, timeout=30) as client:
        for texts in ([long], [long, long]):
            response = client.post("/v1/embeddings", json={"input": texts})
            assert response.json()["usage"]["total_tokens"] == len(texts) * offline.max_seq_length
        message = error_of(client.post("/v1/embeddings", json={"input": [long] * 3}), 413)["message"]
        assert f"{3 * offline.max_seq_length} tokens" in message
        rerank = client.post("/rerank", json={"query": "x", "documents": [long]})
        compare = client.post("/compare", json={"a": long, "b": "x"})
        assert rerank.status_code == compare.status_code == 200


def test_matching_counts_long_documents_whole(serving, offline):
    """Matching splits documents into sentences, so the model reads all of a long one."""
    documents = [{"id": "a", "text": "Bake bread at night. " * 600}]
    limits = Limits(max_request_tokens=2 * offline.max_seq_length)
    with serving(limits=limits) as url, httpx.Client(base_url=url) as client:
        error = error_of(client.post("/match", json={"left": documents, "right": documents}), 413)
    assert error["code"] == "too_many_tokens"


@pytest.mark.parametrize("route", ["/v1/embeddings", "/search", "/match", "/documents", "/rerank", "/compare"])
@pytest.mark.parametrize("media_type", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_body_of_another_type_is_answered_in_words(client, route, media_type):
    """`curl -d` sends JSON as a form; a page of another site may send these types without asking the browser."""
    headers = {"Content-Type": media_type} if media_type else {}
    error = error_of(client.post(route, content=b'{"input": "x", "query": "x"}', headers=headers), 415)
    assert "`Content-Type: application/json`" in error["message"] and error["code"] == "unsupported_media_type"


def test_json_with_a_charset_is_understood(client):
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert client.post("/v1/embeddings", content=b'{"input": "x"}', headers=headers).status_code == 200


def test_missing_or_wrong_key_gets_a_401(serving):
    with serving(api_keys=["first", "second"]) as url, httpx.Client(base_url=url) as client:
        for headers in (
            {},
            {"Authorization": "Bearer third"},
            {"Authorization": "first"},
            {"Authorization": "Basic first"},
        ):
            for method, path in (("GET", "/v1/models"), ("POST", "/search"), ("GET", "/metrics"), ("GET", "/nothing")):
                response = client.request(method, path, headers=headers)
                assert error_of(response, 401)["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
        assert client.get("/health").status_code == client.get("/").status_code == 200
        for key in ("first", "second"):
            assert client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="third", max_retries=0).models.list()
        assert openai.OpenAI(base_url=f"{url}/v1", api_key="second").models.list().data


def test_any_of_the_keys_is_accepted_and_nothing_else():
    keys = APIKeys(["first-key", "second-key"])
    assert keys.client_id("Bearer first-key") != keys.client_id("bearer second-key") is not None
    for wrong in (
        "",
        "Bearer",
        "Bearer ",
        "Bearer first",
        "Bearer first-key2",
        "Basic first-key",
        "first-key",
        "Bearer é",
    ):
        assert keys.client_id(wrong) is None
    assert APIKeys().client_id("") == "anonymous"
    for bad in ("", "two words", "schlüssel"):
        with pytest.raises(InputError, match="API key"):
            APIKeys([bad])


def test_every_key_is_compared_in_full(monkeypatch):
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: bool(compared.append((a, b))) or a == b)
    keys = APIKeys(["one", "two", "three"])
    keys.client_id("Bearer one")
    assert len(compared) == 3 and all(len(a) == len(b) == 32 for a, b in compared)


def test_foreign_host_header_gets_a_403(url):
    port = url.rsplit(":", 1)[1]
    for host, status in (("evil.example", 403), (f"evil.example:{port}", 403), (f"localhost:{port}", 200)):
        assert httpx.get(f"{url}/health", headers={"Host": host}).status_code == status


def test_too_many_requests_a_minute_get_a_429(serving):
    with (
        serving(limits=Limits(requests_per_minute=2, tokens_per_minute=1000)) as url,
        httpx.Client(base_url=url) as client,
    ):
        assert [client.get("/v1/models").status_code for _ in range(3)] == [200, 200, 429]
        response = client.get("/v1/models")
        assert error_of(response, 429)["type"] == "rate_limit_error"
        assert 1 <= int(response.headers["retry-after"]) <= 31


def test_full_queue_gets_a_429_that_openai_clients_retry(serving):
    slow, limits = WordEncoder(slow=0.3), Limits(max_waiting_tokens=40, max_batch_tokens=30)
    text = "w" * 76  # twenty tokens, by estimate
    with (
        serving(encoder=slow, name="w", limits=limits, cache_megabytes=0) as url,
        httpx.Client(base_url=url) as client,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=8) as retrying,
        ThreadPoolExecutor(12) as pool,
    ):
        responses = list(pool.map(lambda _: client.post("/v1/embeddings", json={"input": text}), range(12)))
        rejected = [response for response in responses if response.status_code != 200]
        assert 0 < len(rejected) < 12
        assert all(error_of(response, 429)["code"] == "overloaded" for response in rejected)
        assert all(int(response.headers["retry-after"]) >= 1 for response in rejected)
        retried = list(pool.map(lambda _: retrying.embeddings.create(model="w", input=text), range(6)))
        assert len(retried) == 6


def test_texts_of_disconnected_clients_are_dropped(serving):
    slow, limits = WordEncoder(slow=0.4), Limits(max_batch_tokens=4)
    with serving(encoder=slow, name="w", limits=limits) as url, httpx.Client(base_url=url) as client:
        host, port = url.removeprefix("http://").split(":")
        for number in range(4):
            body = json.dumps({"input": [f"text {number} {part}" for part in range(5)]}).encode()
            with socket.create_connection((host, int(port))) as connection:
                head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n"
                connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
                time.sleep(0.05)
        assert client.post("/v1/embeddings", json={"input": "stays"}, timeout=20).status_code == 200
        assert len(slow.encoded_texts) < 10  # of 21 texts
        dropped = re.search(r"^d2v_dropped_texts_total (.*)$", client.get("/metrics").text, re.M)
        assert float(dropped[1]) > 10


@contextmanager
def slow_clients(url):
    """Twenty connections that stop in the middle of a head or of a body."""
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{".encode()
    connections = [socket.create_connection((host, int(port))) for _ in range(20)]
    try:
        for number, connection in enumerate(connections):
            connection.sendall(head if number % 2 else head[:20])
        yield connections
    finally:
        [connection.close() for connection in connections]


def test_slow_clients_delay_nobody(serving):
    with serving(limits=Limits(body_timeout=600)) as url, slow_clients(url):
        assert httpx.post(f"{url}/v1/embeddings", json={"input": "quick"}, timeout=60).status_code == 200


def test_slow_clients_get_a_408(serving):
    with serving(limits=Limits(body_timeout=0.5)) as url, slow_clients(url) as connections:
        connections[1].settimeout(60)
        assert connections[1].recv(100).startswith(b"HTTP/1.1 408")


class BrokenEncoder(WordEncoder):
    def encode(self, texts):
        raise RuntimeError(f"cannot read {texts}")


def test_no_text_is_logged_even_when_the_encoder_fails(serving, caplog, capfd):
    with (
        caplog.at_level(logging.DEBUG),
        serving(encoder=BrokenEncoder(), name="w") as url,
        httpx.Client(base_url=url) as client,
    ):
        error = error_of(client.post("/v1/embeddings", json={"input": SECRET}), 500)
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


def fuzz(url, mode, examples):
    """Send valid or invalid requests to every route; each response must conform to the OpenAPI schema."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    fuzz_settings = settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    routes = [operation.ok() for operation in schema.get_all_operations()]
    for route in routes:
        with suppress(Unsatisfiable):  # a route without parameters has no invalid requests

            @fuzz_settings
            @given(case=route.as_strategy(generation_mode=mode))
            def send(case):
                case.call_and_validate(checks=CHECKS)

            send()
    return len(routes)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_fuzzed_requests_get_responses_of_the_schema(url, mode):
    assert fuzz(url, mode, 10) == 14


@pytest.mark.soak
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_hundreds_of_fuzzed_requests_follow_the_schema(url, mode):
    fuzz(url, mode, 300)
