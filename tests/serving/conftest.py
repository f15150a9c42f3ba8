"""A real server in a thread, with a tiny model behind it, for real clients to ask."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import httpx
import pytest

pytest.importorskip("fastapi", reason="no server: pip install 'decoder2vec[serve]'")

from decoder2vec.encoder import Encoder
from decoder2vec.search.index import Index
from decoder2vec.serving.app import bind, create_app, server_of
from decoder2vec.serving.service import ServerConfig
from toys.documents import DOCUMENTS


@pytest.fixture(scope="module", autouse=True)
def small_models(one_thread):
    """Everything here is tiny."""


@pytest.fixture(scope="session")
def encoder(own_cache):
    """The encoder that is served, to be asked offline too; nothing else may run it while a server does."""
    return Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def offline(own_cache):
    """The same encoder with weights of its own: what the server must answer."""
    return Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def index_folder(offline, tmp_path_factory):
    """An index of three documents."""
    folder = tmp_path_factory.mktemp("served") / "index"
    Index.create(folder, offline).add(DOCUMENTS)
    return folder


@contextmanager
def running(app):
    """The address of a server that runs while the block does, and then stops in order."""
    with bind("127.0.0.1", 0) as address:
        server = server_of(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [address]})
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{address.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            assert not thread.is_alive()


@pytest.fixture
def serving(encoder):
    """serving(keys=(), **offer) -> a block with the address of a server."""

    @contextmanager
    def serve(keys=(), **offer):
        with running(create_app(ServerConfig(**{"encoder": encoder, "name": "tiny", **offer}), keys)) as url:
            yield url

    return serve


@pytest.fixture(scope="session")
def url(encoder, index_folder, tmp_path_factory):
    """A server with everything on it."""
    sweep = tmp_path_factory.mktemp("sweep") / "sweep.json"
    sweep.write_text('{"rows": [1, 2]}', encoding="utf-8")
    with running(create_app(ServerConfig(encoder, "tiny", index_folder, sweep))) as address:
        yield address


@pytest.fixture(scope="session")
def client(url):
    """Asks it."""
    with httpx.Client(base_url=url, timeout=30) as opened:
        yield opened
