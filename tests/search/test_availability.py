"""Indexes while others write to them, after a restart of the database, and without passwords in messages."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, StorageError
from decoder2vec.search.index import Index
from decoder2vec.search.ranking import LexicalSearch
from decoder2vec.search.store import without_password

TEXTS = ["Cats sleep on the sofa.", "Ships sail to the islands.", "Bread is baked at night."]


@pytest.fixture(scope="module")
def encoder():
    return Encoder.from_pretrained("tiny-llama", device="cpu")


@pytest.mark.parametrize(
    ("location", "printed"),
    [
        ("postgresql://me:secret@host:5432/db#library", "postgresql://me:***@host:5432/db#library"),
        ("postgresql://me@host/db#library", "postgresql://me@host/db#library"),
        ("postgresql://host/db?user=me&password=secret#library", "postgresql://host/db?user=me&password=***#library"),
        ("postgresql://host/db?password=secret", "postgresql://host/db?password=***"),
        ("postgresql://:secret@/db", "postgresql://:***@/db"),
        ("a:b@c/index", "a:b@c/index"),
    ],
)
def test_locations_are_printed_without_passwords(location, printed):
    assert without_password(location) == printed


def test_messages_have_no_password(postgres_url, encoder):
    location = f"{postgres_url}{'&' if '?' in postgres_url else '?'}password=secret#nothing_here"
    with pytest.raises(InputError, match=r"There is no index at .*password=\*\*\*#nothing_here"):
        Index.open(location, encoder)
    index = Index.create(location, encoder)
    assert "secret" not in index.location
    index.close()


def test_search_goes_on_after_the_connection_was_lost(postgres_url, encoder):
    index = Index.create(f"{postgres_url}#lost_connection", encoder)
    index.add(TEXTS)
    expected = [hit.id for hit in index.search("cats")]
    lose_connection(index, postgres_url)
    assert [hit.id for hit in index.search("cats")] == expected
    lose_connection(index, postgres_url)
    index.add(["Snow fell in May."])
    assert index.count()[0] == 4
    index.close()


def test_writing_stops_when_the_lock_is_lost(postgres_url, encoder):
    index = Index.create(f"{postgres_url}#lost_lock", encoder)
    with index.store.write_lock():
        lose_connection(index, postgres_url)
        with pytest.raises(StorageError):
            index.store.delete_documents(["1"])
        with pytest.raises(StorageError, match="run the same command again"):
            index.store.delete_documents(["1"])
    index.add(TEXTS)  # without the lock, it connects again
    index.close()


def lose_connection(index, postgres_url):
    """End the connection of an index as a restart of the database does."""
    import psycopg

    pid = index.store._connection.info.backend_pid
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_search_answers_while_documents_change(location, encoder):
    index = Index.create(location, encoder)
    index.add([{"id": str(number), "text": text} for number, text in enumerate(TEXTS)])
    found, stop = [], threading.Event()

    def search():
        reader = Index.open(location, encoder)
        while not stop.wait(0.01):
            try:
                found.append(len(reader.search("cats on ships")))
            except Exception as error:
                found.append(error)
        reader.close()

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(5):
        index.add([{"id": "new", "text": f"Cats number {number}."}])
        index.delete(["new"])
    stop.set()
    for thread in threads:
        thread.join()
    assert found and set(found) <= {3, 4}
    index.close()


def test_lexical_index_is_saved_by_many_at_once(tmp_path):
    search = LexicalSearch.build(["a", "b"], TEXTS[:2])

    def save_and_load(_):
        search.save(tmp_path / "lexical", "1")
        loaded = LexicalSearch.load(tmp_path / "lexical", "1")
        return loaded is not None and loaded.search(["cats"], 1)[0][0][0] == "a"

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(save_and_load, range(60)))
