"""A real server in a thread with a tiny model behind it, for real clients."""

from __future__ import annotations

from contextlib import contextmanager

import httpx
import pytest

pytest.importorskip("fastapi", reason="no server: pip install 'decoder2vec[serve]'")

from decoder2vec.encoder import Encoder
from decoder2vec.search.index import Index
from decoder2vec.serving.app import ServerConfig, create_app
from toys.documents import DOCUMENTS
from toys.server import running


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """All models are tiny: one torch thread is fastest."""


@pytest.fixture(scope="session")
def encoder(own_cache):
    """The encoder that is served; nothing else may run it at the same time."""
    return Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def offline(own_cache):
    """The same encoder loaded a second time, for the expected results."""
    return Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def index_folder(offline, tmp_path_factory):
    """An index of three documents."""
    folder = tmp_path_factory.mktemp("served") / "index"
    Index.create(folder, offline).add(DOCUMENTS)
    return folder


@pytest.fixture
def serving(encoder):
    """serving(api_keys=(), **config) -> a block with the URL of a server."""

    @contextmanager
    def serve(api_keys=(), **config):
        with running(create_app(ServerConfig(**{"encoder": encoder, "name": "tiny", **config}), api_keys)) as url:
            yield url

    return serve


@pytest.fixture(scope="session")
def url(encoder, index_folder, tmp_path_factory):
    """The URL of a server with an index and a sweep."""
    sweep = tmp_path_factory.mktemp("sweep") / "sweep.json"
    sweep.write_text('{"rows": [1, 2]}', encoding="utf-8")
    with running(create_app(ServerConfig(encoder, "tiny", index_folder, sweep)), must_end=False) as address:
        yield address


@pytest.fixture(scope="session")
def client(url):
    """An HTTP client of that server."""
    with httpx.Client(base_url=url, timeout=30) as opened:
        yield opened
