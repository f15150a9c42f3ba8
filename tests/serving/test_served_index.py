"""A server whose index is moved to another encoder: it follows without a restart, and every answer is right."""

from __future__ import annotations

import logging
import threading
import time

import httpx
import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import StorageError
from decoder2vec.search.documents import Document
from decoder2vec.search.index import Index
from decoder2vec.search.migration import migrate
from decoder2vec.serving import served_index
from decoder2vec.serving.served_index import OpenedIndex, ServedIndex
from toys.documents import DOCUMENTS
from toys.encoder import WordEncoder

QUERY = {"query": "bread in the oven", "mode": "dense"}
PATIENCE = 300
"""Seconds in which even a stalled machine follows."""


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """The server looks often."""
    monkeypatch.setattr(served_index, "CHECK_SECONDS", 0.05)


@pytest.fixture
def folder(offline, tmp_path):
    index = Index.create(tmp_path / "index", offline)
    index.add(DOCUMENTS)
    index.close()
    return tmp_path / "index"


@pytest.fixture
def other(own_cache):
    """The encoder that the index is moved to: another layer, with other vectors."""
    return Encoder.from_pretrained("tiny-llama", layer=1, pooling="mean", device="cpu", dtype="float32")


def ranking(hits):
    return [(hit["id"], round(hit["score"], 4)) for hit in hits]


def expected_ranking(folder, encoder):
    index = Index.open(folder, encoder)
    hits = index.search(QUERY["query"], 10, "dense")
    index.close()
    return [(hit.id, round(hit.score, 4)) for hit in hits]


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_server_follows_and_every_answer_is_of_the_old_or_the_new_index(serving, folder, offline, other):
    before, seen, stop = expected_ranking(folder, offline), [], threading.Event()
    with serving(index=folder) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:

        def search():
            response = client.post("/search", json=QUERY)
            assert response.status_code == 200, response.text
            return ranking(response.json()["hits"])

        def ask():
            while not stop.is_set():
                seen.append(search())

        vectors = client.post("/v1/embeddings", json={"input": "A cat."}).json()["data"]
        asking = [threading.Thread(target=ask) for _ in range(3)]
        [thread.start() for thread in asking]
        wait_for(lambda: len(seen) > 3)
        assert migrate(folder, other).is_switched
        after = expected_ranking(folder, other)
        assert before != after
        wait_for(lambda: seen[-1] == after)
        stop.set()
        [thread.join() for thread in asking]
        assert {tuple(answer) for answer in seen} == {tuple(before), tuple(after)}

        moved = Index.open(folder, other)
        moved.add([Document("late", "bread in the oven")])
        moved.close()
        assert search()[0][0] == "late"
        # clients of the encoder get the vectors that they got, and see which model searches
        assert client.post("/v1/embeddings", json={"input": "A cat."}).json()["data"] == vectors
        models = client.get("/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["tiny", f"tiny-{other.fingerprint[:8]}"]
        migrate(folder, other)  # the server has let the old vectors go
        assert len(list(folder.glob("chunks*.lance"))) == 1

        assert migrate(folder, offline).is_switched  # and back, to the encoder that the server has already
        wait_for(lambda: len(client.get("/v1/models").json()["data"]) == 1)
        assert search() == expected_ranking(folder, offline)


def test_old_index_serves_on_where_the_new_encoder_is_unknown(serving, folder, offline, caplog):
    before = expected_ranking(folder, offline)
    with serving(index=folder) as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        with caplog.at_level(logging.WARNING, served_index.__name__):
            assert migrate(folder, WordEncoder()).is_switched  # no encoder folder can be written of this one
            wait_for(lambda: caplog.records)
            time.sleep(0.3)
        assert len(caplog.records) == 1 and "is not known on this machine" in caplog.text
        assert ranking(client.post("/search", json=QUERY).json()["hits"]) == before


def test_search_waits_for_the_new_index_where_the_old_vectors_are_gone(folder, offline, other, monkeypatch):
    monkeypatch.setattr(served_index, "CHECK_SECONDS", 3600)  # nobody looks before the search
    old, closed = OpenedIndex(Index.open(folder, offline), "old"), []
    served = ServedIndex(old, lambda: OpenedIndex(Index.open(folder, other), "new"), closed.append)
    old.index.close()
    migrate(folder, other)
    assert not (folder / "chunks.lance").exists()
    hits = served.search(QUERY["query"], 10, "dense")
    assert [(hit.id, round(hit.score, 4)) for hit in hits] == expected_ranking(folder, other)
    assert served.model == "new" and closed == [old]
    served.close()


def test_other_damage_is_an_error(folder, offline, monkeypatch):
    def fail(*_):
        raise StorageError("damaged")

    served = ServedIndex(OpenedIndex(Index.open(folder, offline), None), fail, fail)
    monkeypatch.setattr(Index, "search", fail)
    with pytest.raises(StorageError, match="damaged"):
        served.search("bread", 10)
    served.close()
