"""HTTP statuses by cause: a server fault is never a 4xx, and a client error never a 5xx."""

from __future__ import annotations

import errno
import inspect
import logging

import numpy as np
import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from decoder2vec import errors
from decoder2vec.errors import (
    BackboneError,
    DataFileError,
    Decoder2VecError,
    DivergedError,
    EncoderError,
    InputError,
    MissingExtraError,
    OtherProcessError,
    StorageError,
    TextError,
    UnknownNameError,
    UnsupportedError,
)
from decoder2vec.search.index import Index
from decoder2vec.serving.api_errors import APIError, api_error_of
from decoder2vec.serving.app import ServerConfig, create_app
from toys.documents import DOCUMENTS
from toys.encoder import WordEncoder

SECRET = "/srv/private/model"

STATUSES = {
    InputError: 400,
    TextError: 400,
    UnknownNameError: 400,
    UnsupportedError: 400,
    MissingExtraError: 501,
    StorageError: 503,
    DataFileError: 500,
    BackboneError: 500,
    EncoderError: 500,
    DivergedError: 500,
    OtherProcessError: 500,
    Decoder2VecError: 500,
}
BUGS = {KeyError: 500, ValueError: 500, TypeError: 500, RuntimeError: 500, MemoryError: 500, OSError: 500}


def make(error_class):
    arguments = {MissingExtraError: (SECRET, "extra"), TextError: (0, "a text", SECRET)}
    return error_class(*arguments.get(error_class, (SECRET,)))


def disk_full():
    """A StorageError raised because the disk is full, as `storage.py` and the stores raise it."""
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", SECRET)
        except OSError:
            raise StorageError(f"Cannot write to {SECRET}") from None
    except StorageError as error:
        return error


# --- exceptions to responses ----------------------------------------------------------------------------------------


def test_every_error_class_has_a_status():
    classes = {c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Decoder2VecError)}
    assert classes == set(STATUSES)


@pytest.mark.parametrize(("error_class", "status"), {**STATUSES, **BUGS}.items(), ids=lambda value: str(value))
def test_status_and_type_follow_the_error_class(error_class, status):
    api_error = api_error_of(make(error_class))
    assert api_error.status == status
    assert api_error.type == ("invalid_request_error" if status < 500 else "server_error")


@pytest.mark.parametrize("error_class", [*STATUSES, *BUGS])
def test_only_client_errors_and_missing_extras_show_their_message(error_class):
    """The message of a server fault may contain paths of the server or texts of other requests."""
    is_shown = issubclass(error_class, InputError | UnsupportedError | MissingExtraError)
    assert (SECRET in str(api_error_of(make(error_class)))) == is_shown


@pytest.mark.parametrize("error", [disk_full(), OSError(errno.ENOSPC, SECRET), OSError(errno.EDQUOT, SECRET)])
def test_full_disk_is_a_507(error):
    api_error = api_error_of(error)
    assert (api_error.status, api_error.type, api_error.code) == (507, "server_error", "disk_full")
    assert SECRET not in str(api_error)


def test_subclasses_have_the_status_of_their_base():
    class TooLongError(InputError):
        pass

    class LockedError(StorageError):
        pass

    assert (api_error_of(TooLongError()).status, api_error_of(LockedError()).status) == (400, 503)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (507, "server_error"),
    ],
)
def test_error_type_follows_the_status(status, expected):
    assert api_error_of(HTTPException(status, "x")).type == api_error_of(APIError(status, "x")).type == expected


def test_validation_error_names_the_field_and_not_its_value():
    error = {"type": "int_type", "loc": ("body", "input", "list[int]", 0), "msg": "Input should be an integer"}
    api_error = api_error_of(RequestValidationError([{**error, "input": SECRET}]))
    assert (api_error.status, api_error.param) == (400, "input.0")
    assert str(api_error) == "input.0: Input should be an integer."
    assert str(api_error_of(RequestValidationError([]))) == "The body: cannot be used."


# --- faults behind every route --------------------------------------------------------------------------------------

POSTS = {
    "/v1/embeddings": {"input": ["A cat sleeps.", "The boat is fast."]},
    "/rerank": {"query": "bread", "documents": ["a dog", "fresh bread"]},
    "/search": {"query": "bread in the oven"},
    "/match": {"left": [{"id": "l", "text": "Bake bread."}], "right": [{"id": "r", "text": "I bake bread."}]},
    "/compare": {"a": "A cat sleeps.", "b": "The boat is fast."},
}
GETS = ["/v1/models", "/v1/models/words", "/health", "/metrics", "/sweep"]


class FaultyEncoder(WordEncoder):
    """An encoder with `score` that fails as the test sets it."""

    fault = None

    def encode(self, texts):
        vectors = super().encode(texts)
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.fault(vectors) if self.fault else vectors

    def score(self, texts1, texts2):
        return (self.encode(list(texts1)) * self.encode(list(texts2))).sum(axis=1)


def set_value(value):
    def change(vectors):
        vectors[-1, 3] = value
        return vectors

    return change


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(encoder, app, client) of a server with an index and a sweep, without a cache of vectors."""
    encoder, home = FaultyEncoder(), tmp_path_factory.mktemp("faults")
    Index.create(home / "index", encoder).add(DOCUMENTS)
    (home / "sweep.json").write_text("{}", encoding="utf-8")
    app = create_app(ServerConfig(encoder, "words", home / "index", home / "sweep.json", cache_megabytes=0))
    with TestClient(app, "http://localhost") as client:
        yield encoder, app, client


@pytest.fixture
def fault(served, monkeypatch):
    """fault(error or change of vectors) makes the encoder fail until the end of the test."""
    return lambda value: monkeypatch.setattr(served[0], "fault", value)


def check_error(response, status, code=None):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert error["code"] == code


@pytest.mark.parametrize("route", POSTS)
def test_routes_work_without_a_fault(route, served):
    assert served[2].post(route, json=POSTS[route]).status_code == 200


FAULTS = {
    "nan": (set_value(np.nan), 500, "encoder_error"),
    "infinity": (set_value(np.inf), 500, "encoder_error"),
    "too few vectors": (lambda vectors: vectors[:-1], 500, "encoder_error"),
    "too many vectors": (lambda vectors: np.concatenate([vectors, vectors]), 500, "encoder_error"),
    "one dimension": (lambda vectors: vectors[:, 0], 500, "encoder_error"),
    "BackboneError": (BackboneError(SECRET), 500, "backbone_error"),
    "EncoderError": (EncoderError(SECRET), 500, "encoder_error"),
    "DataFileError": (DataFileError(SECRET), 500, "data_file_error"),
    "DivergedError": (DivergedError(SECRET), 500, None),
    "StorageError": (StorageError(SECRET), 503, "storage_error"),
    "full disk": (disk_full(), 507, "disk_full"),
    "MissingExtraError": (MissingExtraError("torch", "serve"), 501, "missing_extra"),
    "KeyError": (KeyError(SECRET), 500, None),
    "ValueError": (ValueError(SECRET), 500, None),
    "MemoryError": (MemoryError(SECRET), 500, None),
}


@pytest.mark.parametrize("route", POSTS)
@pytest.mark.parametrize("name", FAULTS)
def test_fault_of_the_encoder_is_a_5xx(name, route, served, fault):
    value, status, code = FAULTS[name]
    fault(value)
    response = served[2].post(route, json=POSTS[route])
    check_error(response, status, code)
    assert SECRET not in response.text
    fault(None)
    assert served[2].post(route, json=POSTS[route]).status_code == 200, "the server goes on"


@pytest.mark.parametrize("route", POSTS)
@pytest.mark.parametrize("error", [InputError("too long"), UnsupportedError("cannot")], ids=["input", "unsupported"])
def test_rejection_by_the_encoder_is_a_400(error, route, served, fault):
    fault(error)
    response = served[2].post(route, json=POSTS[route])
    check_error(response, 400, "unsupported" if isinstance(error, UnsupportedError) else None)
    assert response.json()["error"]["message"] == str(error)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(StorageError(SECRET), 503, "storage_error"), (disk_full(), 507, "disk_full"), (KeyError(SECRET), 500, None)],
    ids=["damaged", "full disk", "bug"],
)
@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
def test_fault_of_the_index_is_a_5xx(mode, error, status, code, served, monkeypatch):
    def fail(*_, **__):
        raise error

    _, app, client = served
    monkeypatch.setattr(app.state.service.index._opened.index.store, "read_chunks", fail)
    response = client.post("/search", json={"query": "bread", "mode": mode})
    check_error(response, status, code)
    assert SECRET not in response.text


class BrokenService:
    """Raises an error whatever a route does with it."""

    def __init__(self, error):
        self._error = error

    def __getattr__(self, name):
        raise self._error


@pytest.mark.parametrize(("error_class", "status"), {**STATUSES, **BUGS}.items(), ids=lambda value: str(value))
def test_every_route_answers_every_error_with_its_status(error_class, status, served, monkeypatch):
    _, app, client = served
    monkeypatch.setitem(app.state._state, "service", BrokenService(make(error_class)))
    responses = [*(client.post(route, json=POSTS[route]) for route in POSTS), *(client.get(route) for route in GETS)]
    assert [response.status_code for response in responses] == [status] * len(responses)
    for response in responses:
        assert response.json()["error"]["type"] == ("server_error" if status >= 500 else "invalid_request_error")


def test_server_faults_are_logged_without_their_message(served, fault, caplog):
    with caplog.at_level(logging.ERROR, "decoder2vec"):
        fault(InputError(SECRET))
        served[2].post("/compare", json=POSTS["/compare"])
        assert caplog.records == []
        fault(EncoderError(SECRET))
        served[2].post("/compare", json=POSTS["/compare"])
    (record,) = caplog.records
    assert record.getMessage().startswith("EncoderError while answering a request:\n")
    assert "in encode" in record.getMessage() and SECRET not in record.getMessage()


# --- requests that are wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", POSTS)
@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"{}", b'"x"', b"\xff", b"[" * 100_000])
def test_malformed_body_is_a_400(body, route, served):
    response = served[2].post(route, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"


WRONG = {
    "/v1/embeddings": [{"input": 5}, {"input": []}, {"input": "x", "dimensions": 0}, {"input": "x", "dimensions": 33}],
    "/rerank": [{"query": "x", "documents": []}, {"query": "x", "documents": ["a"], "top_n": 0}, {"query": ["x"]}],
    "/search": [{"query": "x", "top": 0}, {"query": "x", "mode": "best"}, {"query": "x", "filter": {"a": "\0"}}],
    "/match": [
        {"left": [{"id": "l", "text": "a"}], "right": []},
        {"left": [{"id": "l", "text": " "}], "right": [{"id": "r", "text": "b"}]},
        {"left": [{"id": "l", "text": "a"}] * 2, "right": [{"id": "r", "text": "b"}]},
    ],
    "/compare": [{"a": "x"}, {"a": "x", "b": None}, {"a": 1, "b": 2}],
}


@pytest.mark.parametrize(("route", "body"), [(route, body) for route, bodies in WRONG.items() for body in bodies])
def test_request_with_wrong_values_is_a_400(route, body, served):
    check_error(served[2].post(route, json=body), 400)


SURROGATES = {
    "/v1/embeddings": [b'{"input": "\\ud800"}', b'{"input": ["a", "\\udfff"]}'],
    "/rerank": [b'{"query": "\\ud800", "documents": ["a"]}', b'{"query": "a", "documents": ["\\ud800"]}'],
    "/search": [b'{"query": "\\ud800"}', b'{"query": "a", "filter": {"b": "\\ud800"}}'],
    "/match": [b'{"left": [{"id": "l", "text": "\\ud800"}], "right": [{"id": "r", "text": "b"}]}'],
    "/compare": [b'{"a": "\\ud800", "b": "x"}', b'{"a": "x", "b": "\\ud800"}'],
}


@pytest.mark.parametrize(("route", "body"), [(route, body) for route, bodies in SURROGATES.items() for body in bodies])
def test_lone_surrogates_are_a_400_for_any_encoder(route, body, served, fault):
    """An encoder of another library would fail on them with an exception of its own."""
    fault(UnicodeError("cannot encode"))
    check_error(served[2].post(route, content=body, headers={"Content-Type": "application/json"}), 400)


@pytest.mark.parametrize("route", [route for route in POSTS if route != "/search"])
def test_unknown_model_is_a_404_on_every_route(route, served):
    response = served[2].post(route, json={**POSTS[route], "model": "gpt"})
    assert response.status_code == 404
    assert response.json()["error"] | {"message": ""} == {
        "message": "",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }


def test_requests_that_the_encoder_cannot_serve_are_a_400():
    """An encoder without `score` cannot rerank."""
    with TestClient(create_app(ServerConfig(WordEncoder(), "words")), "http://localhost") as client:
        response = client.post("/rerank", json=POSTS["/rerank"])
        assert response.status_code == 400 and "score" in response.json()["error"]["message"]
        assert client.post("/search", json=POSTS["/search"]).json()["error"]["code"] == "no_index"


def test_wrong_method_and_unknown_path_are_client_errors(served):
    client = served[2]
    for route in POSTS:
        response = client.get(route)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert response.json()["error"]["type"] == "invalid_request_error"
    for route in GETS:
        assert client.post(route, json={}).status_code == 405
    assert client.get("/v2/embeddings").json()["error"]["type"] == "not_found_error"
