"""Approximate indexes find what numpy finds by brute force, also with filters, after changes and while others write."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.errors import InputError, StorageError
from decoder2vec.search import indexing, lance_store, postgres_store, ranking
from decoder2vec.search.documents import Document
from decoder2vec.search.index import Index
from decoder2vec.search.lance_store import LanceStore

COUNT, DIM, TOP = 3000, 64, 10
KINDS = ("ivf_rq", "ivf_pq", "ivf_sq", "hnsw")
QUERIES = [f"vector {-number}" for number in range(1, 41)]


class ClusteredEncoder:
    """Encodes "vector 17" as the 17th vector of a mixture of Gaussians, each with 12 directions of its own."""

    def __init__(self, dim=DIM, similarity="cosine"):
        rng = np.random.default_rng(0)
        self.dim, self.fingerprint, self.similarity_fn_name = dim, f"clusters-{dim}", similarity
        self._centres, self._directions = rng.standard_normal((30, dim)), rng.standard_normal((30, 12, dim))

    def encode(self, texts):
        vectors = []
        for text in texts:
            rng = np.random.default_rng(seed_of(text))
            cluster = int(rng.integers(30))
            vectors.append(self._centres[cluster] + 0.3 * rng.standard_normal(12) @ self._directions[cluster])
        return np.array(vectors, np.float32)


def seed_of(text):
    number = int(text.split()[1]) if text.startswith("vector ") else 0
    return number if number >= 0 else 10**9 - number


def documents(start, end):
    return [Document(str(number), f"vector {number}", {"kind": number % 20}) for number in range(start, end)]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """The folder of an index with vectors 0 to 2999, without an approximate index."""
    folder = tmp_path_factory.mktemp("filled") / "index"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "_MIN_BATCH_CHUNKS", 1000)
        Index.create(folder, ClusteredEncoder()).add(documents(0, COUNT))
    return folder


@pytest.fixture
def index(filled, tmp_path):
    return Index.open(shutil.copytree(filled, tmp_path / "copy"), ClusteredEncoder())


@pytest.fixture
def stored(location, filled, closing, monkeypatch):
    """The same index in a folder or in a database."""
    monkeypatch.setattr(indexing, "_MIN_BATCH_CHUNKS", 1000)
    if "://" not in location:
        return Index.open(shutil.copytree(filled, location), ClusteredEncoder())
    created = closing(Index.create(location, ClusteredEncoder()))
    created.add(documents(0, COUNT))
    return created


def nearest(ids):
    """[queries] lists of the ids of the TOP nearest of the documents, by brute force in float64."""
    vectors, queries = (
        ClusteredEncoder().encode(texts).astype(np.float64) for texts in ([f"vector {id}" for id in ids], QUERIES)
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return [[ids[row] for row in np.argsort(-(vectors @ query))[:TOP]] for query in queries]


def recall(index, ids, **options):
    rankings = index.rank(QUERIES, TOP, "dense", **options)
    expected = nearest(ids)
    assert all(len(ranked) == TOP for ranked in rankings)
    hits = [len({hit.id for hit in ranked} & set(best)) for ranked, best in zip(rankings, expected, strict=True)]
    return sum(hits) / (TOP * len(QUERIES))


def names(start, end):
    return [str(number) for number in range(start, end)]


@pytest.mark.parametrize("kind", KINDS)
def test_recall_is_that_of_brute_force(index, kind):
    index.build_ann(kind)
    assert index.stats().ann == kind and index.stats().unindexed == 0
    assert recall(index, names(0, COUNT)) >= 0.95
    assert recall(index, names(0, COUNT), exact=True) == 1
    index.verify()


def test_chunks_of_a_database_are_counted_once_after_a_change(postgres_url, closing, monkeypatch):
    index = closing(Index.create(f"{postgres_url}#counted", ClusteredEncoder()))
    other = closing(Index.open(f"{postgres_url}#counted", ClusteredEncoder()))
    statements, run = [], postgres_store.PostgresStore._run
    monkeypatch.setattr(postgres_store.PostgresStore, "_run", lambda *args: (statements.append(args[1]), run(*args))[1])
    index.add(documents(0, 50))
    index.build_ann("hnsw")
    for count, change in (
        (50, lambda: None),
        (60, lambda: other.add(documents(50, 60))),
        (57, lambda: other.delete(names(0, 3))),
    ):
        change()
        statements.clear()
        for query in QUERIES[:3]:
            index.rank([query], TOP, "dense")
        assert sum("count(*)" in statement for statement in statements) <= 1
        assert index.count() == (count, count)


class ScatteredEncoder:
    """Encodes every text as a random vector, whose nearest neighbours are hardly nearer than others."""

    dim, fingerprint, similarity_fn_name = 256, "scattered", "cosine"

    def encode(self, texts):
        vectors = [np.random.default_rng(seed_of(text)).standard_normal(self.dim) for text in texts]
        return np.array(vectors, np.float32)


def scattered_recall(index):
    found, exact = (
        [{hit.id for hit in ranked} for ranked in index.rank(QUERIES, TOP, "dense", exact=exact)]
        for exact in (False, True)
    )
    return sum(len(a & b) for a, b in zip(found, exact, strict=True)) / (TOP * len(QUERIES))


def test_graph_of_a_database_has_the_recall_of_a_large_one(postgres_url, closing, monkeypatch):
    """These vectors are as hard to find as those among a million: 100 candidates have a recall of 0.93."""
    monkeypatch.setattr(indexing, "_MIN_BATCH_CHUNKS", 1000)
    index = closing(Index.create(f"{postgres_url}#scattered", ScatteredEncoder()))
    index.add(documents(0, COUNT))
    index.build_ann("hnsw")
    assert scattered_recall(index) >= 0.95
    monkeypatch.setattr(postgres_store, "_MIN_EF", 50)
    assert scattered_recall(index) < 0.95


def test_product_codes_propose_more_candidates(tmp_path, monkeypatch):
    monkeypatch.setattr(indexing, "_MIN_BATCH_CHUNKS", 1000)
    index = Index.create(tmp_path / "index", ScatteredEncoder())
    index.add(documents(0, COUNT // 2))  # recall of 0.99 and 0.85: codes are random, and differ from build to build
    index.build_ann("ivf_pq")
    assert scattered_recall(index) >= 0.95
    monkeypatch.setattr(lance_store, "_REFINE_PRODUCT_CODES", lance_store._REFINE)
    assert scattered_recall(index) < 0.95


@pytest.mark.parametrize(("most", "n_notices"), [(postgres_store._MAX_BUILD_MEGABYTES, 0), (1, 1)])
def test_graph_is_built_in_memory_where_the_server_allows_too_little(
    postgres_url, closing, monkeypatch, most, n_notices
):
    monkeypatch.setattr(indexing, "_MIN_BATCH_CHUNKS", 1000)
    monkeypatch.setattr(postgres_store, "_MAX_BUILD_MEGABYTES", most)
    address = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-c%20maintenance_work_mem%3D1MB"
    index = closing(Index.create(f"{address}#little_memory_{most}", ClusteredEncoder()))
    index.add(documents(0, COUNT))
    notices = []
    index.store._connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    index.build_ann("hnsw")
    assert len([notice for notice in notices if "no longer fits" in notice]) == n_notices
    assert recall(index, names(0, COUNT)) >= 0.95


def test_filters_changes_and_exact_search_keep_recall(stored):
    kind = stored.store.ann_kinds(DIM)[0]
    stored.build_ann(kind)
    fives = [str(number) for number in range(COUNT) if number % 20 == 5]
    assert recall(stored, fives, filter={"kind": "5"}) >= 0.95
    gone = sorted({id for best in nearest(names(0, COUNT)) for id in best[:5]} | set(names(0, 200)))
    assert stored.delete(gone) == gone
    stored.add([Document(str(number), f"vector {number + COUNT}") for number in range(200, 300)])  # other vectors
    with stored.store.write_lock():  # not followed by an update of the approximate index
        indexing.add_documents(
            stored.store, stored.encoder, stored.header.chunking, documents(6000, 6300), None, lambda _: None
        )
    updated = {str(number): str(number + COUNT) for number in range(200, 300)}
    vector_of = {id: id for id in [*names(0, COUNT), *names(6000, 6300)] if id not in gone} | updated
    for exact, least in ((False, 0.95), (True, 1)):
        rankings = stored.rank(QUERIES, TOP, "dense", exact=exact)
        found = [[vector_of[hit.id] for hit in ranked] for ranked in rankings]  # a deleted document is a KeyError
        expected = nearest(list(vector_of.values()))
        hits = [len(set(a) & set(b)) for a, b in zip(found, expected, strict=True)]
        assert sum(hits) / (TOP * len(QUERIES)) >= least
    stored.verify()


def test_exact_search_of_a_large_index_equals_numpy(stored, monkeypatch):
    monkeypatch.setattr(ranking, "MAX_EXACT_BYTES", 0)
    stored.build_ann()
    assert stored.stats().ann == stored.store.ann_kinds(DIM)[0]
    assert recall(stored, names(0, COUNT), exact=True) == 1
    stored.build_ann("none")
    assert stored.stats().ann == "none" and recall(stored, names(0, COUNT)) == 1


def test_small_index_has_none_and_is_searched_exactly(index):
    index.add(documents(COUNT, COUNT + 1))
    assert index.header.ann == "auto" and index.stats().ann == "none"
    assert recall(index, names(0, COUNT + 1)) == 1


def test_choice_is_kept_and_can_be_undone(index):
    index.build_ann("ivf_sq")
    reopened = Index.open(index.location, ClusteredEncoder())
    assert reopened.header.ann == "ivf_sq"
    reopened.set_fusion(reopened.header.fusion)
    reopened.add(documents(COUNT, COUNT + 100))
    assert Index.open(index.location, ClusteredEncoder()).stats().ann == "ivf_sq"
    index.build_ann("auto")
    assert index.stats().ann == "none" and index.header.ann == "auto"


def test_unknown_and_unsuitable_kinds_are_refused(index, location, closing, tmp_path):
    with pytest.raises(InputError, match="Did you mean ivf_pq"):
        index.build_ann("ivf-pq")
    odd = closing(Index.create(location, ClusteredEncoder(dim=30)))
    with pytest.raises(InputError, match="ivf_rq"):
        odd.build_ann("ivf_rq")  # not a multiple of 8 dimensions, or a database
    manhattan = Index.create(tmp_path / "manhattan", ClusteredEncoder(similarity="manhattan"))
    with pytest.raises(InputError, match="hnsw"):
        manhattan.build_ann("hnsw")
    manhattan.build_ann("none")


def test_stats_count_rows(stored):
    stored.build_ann(stored.store.ann_kinds(DIM)[0])
    before = stored.stats()
    assert (before.documents, before.chunks, before.dim) == (COUNT, COUNT, DIM)
    assert (before.fingerprint, before.similarity) == (f"clusters-{DIM}", "cosine")
    assert before.size > COUNT * DIM * 4 and before.unindexed == before.deleted == 0
    stored.delete(names(0, 7))
    after = stored.stats()
    assert after.documents == COUNT - 7
    if isinstance(stored.store, LanceStore):  # a database counts its dead rows now and then
        assert after.deleted == 7
        with stored.store.write_lock():
            chunk = stored.store.read_chunks(["9#0"])["9#0"]
            stored.store.write_chunks([chunk], ClusteredEncoder().encode(["vector 9"]), replace=True)
        assert stored.stats().unindexed == 1


def test_changed_bytes_of_the_approximate_index_are_found(index):
    index.build_ann("ivf_rq")
    files = [path for path in (index.store.local_folder / "chunks.lance" / "_indices").rglob("*") if path.is_file()]
    assert files
    for file in files:
        whole = file.read_bytes()
        content = bytearray(whole)
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
        with pytest.raises(StorageError, match="is damaged"):
            Index.open(index.location, ClusteredEncoder()).verify()
        file.write_bytes(whole)
    index.verify()


def test_readers_find_all_while_another_adds_and_builds(stored):
    """Documents that stay are found by every search, whatever is being written."""
    kinds = stored.store.ann_kinds(DIM)
    stored.build_ann(kinds[0])
    expected, missed, stop = nearest(names(0, COUNT)), [], threading.Event()

    def search(reader):
        while not stop.is_set():
            for query, best in zip(QUERIES[:10], expected, strict=False):
                try:
                    found = {hit.id for hit in reader.rank([query], 30, "dense")[0]}
                    missed.append(len(set(best[:3]) - found))
                except Exception as error:
                    missed.append(error)

    readers = [Index.open(location_of(stored), ClusteredEncoder()) for _ in range(2)]
    threads = [threading.Thread(target=search, args=[reader]) for reader in readers]
    for thread in threads:
        thread.start()
    for number, kind in enumerate((kinds[0], kinds[-1], "none", kinds[0])):
        stored.add(documents(5000 + 10 * number, 5010 + 10 * number))
        stored.delete(names(5000 + 10 * number, 5005 + 10 * number))
        stored.build_ann(kind)
    stop.set()
    for thread, reader in zip(threads, readers, strict=True):
        thread.join()
        reader.close()
    assert missed and [error for error in missed if not isinstance(error, int)] == []
    assert np.mean(missed) <= 0.15  # of three
    stored.verify()


def location_of(index):
    store = index.store
    return store.folder if isinstance(store, LanceStore) else f"{store._address}#{store.name}"


_LAUNCHER = """
import os, sys
sys.path.insert(0, sys.argv[2])
import lancedb
from decoder2vec.search.index import Index
from test_ann import ClusteredEncoder

for line in sys.stdin:  # the slow imports are done once; each build runs in a child process
    child = os.fork()
    if child == 0:
        Index.open(sys.argv[1], ClusteredEncoder()).build_ann(line.strip())
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("ended", flush=True)
"""


def test_kill_during_a_build_loses_nothing(index, quick_python):
    rng = random.Random(os.urandom(8))
    launcher = quick_python.start(_LAUNCHER, index.location, Path(__file__).parent)
    for kind in ("ivf_rq", "hnsw", "ivf_sq", "none"):
        print(kind, file=launcher.stdin, flush=True)
        child = int(launcher.stdout.readline())
        time.sleep(rng.uniform(0, 1.5))
        with suppress(ProcessLookupError):  # it has ended already
            os.kill(child, signal.SIGKILL)
        assert launcher.stdout.readline() == "ended\n"
        reopened = Index.open(index.location, ClusteredEncoder())
        reopened.verify()
        assert recall(reopened, names(0, COUNT)) >= 0.95
    launcher.communicate()
    index.build_ann("ivf_rq")
    assert index.count() == (COUNT, COUNT) and recall(index, names(0, COUNT)) >= 0.95
    index.verify()


def test_files_are_merged_during_a_long_run(tmp_path, monkeypatch):
    monkeypatch.setattr(indexing, "_MIN_BATCH_CHUNKS", 4)
    monkeypatch.setattr(lance_store, "_COMPACT_EVERY", 10)
    counts, write = [], LanceStore.write_chunks

    def counting(store, *args, **options):
        write(store, *args, **options)
        counts.append(store._table.stats()["fragment_stats"]["num_fragments"])

    monkeypatch.setattr(LanceStore, "write_chunks", counting)
    index = Index.create(tmp_path / "index", ClusteredEncoder())
    index.add(documents(0, 120))
    assert len(counts) == 30 and max(counts) <= 12
    index.verify()
    assert index.count() == (120, 120)
