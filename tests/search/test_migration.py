"""An index moves to another encoder: nothing is lost or doubled, readers go on, and a poor map is refused."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, StorageError
from decoder2vec.evaluation.baselines import RandomVectors
from decoder2vec.report.api import migration_report
from decoder2vec.search.chunks import Chunking
from decoder2vec.search.comparison import SHOWN_QUERIES
from decoder2vec.search.documents import Document
from decoder2vec.search.hybrid import Fusion
from decoder2vec.search.index import Index
from decoder2vec.search.migration import migrate
from toys.command import d2v
from toys.encoder import WordEncoder

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "re", "po") for b in ("tar", "ben", "sol", "dim", "fex", "gul")]
CHUNKING = Chunking(16, 4)


class RotatedEncoder(WordEncoder):
    """The vectors of a WordEncoder, rotated; `during` is called at each call of `encode`."""

    def __init__(self, during=lambda: None, **options):
        super().__init__(**options)
        self.fingerprint = f"rotated-{self.dim}"
        self.during = during
        self.rotation = np.linalg.qr(np.random.default_rng(5).standard_normal((self.dim, self.dim)))[0]

    def encode(self, texts):
        self.during()
        return np.asarray(super().encode(texts) @ self.rotation, np.float32)


class RandomWordsEncoder(WordEncoder):
    """Counts of words in another space, with noise that no map knows."""

    def __init__(self):
        super().__init__(dim=40, seed=9)
        self.fingerprint = "random words"

    def encode(self, texts):
        return np.asarray(super().encode(texts) + 0.7 * RandomVectors(40).encode(texts), np.float32)


def toy_documents(count=260, version=0):
    rng = random.Random(version)
    return [
        Document(f"d{n}", " ".join(rng.choices(WORDS, k=4 + n % 30)) + ".", {"even": n % 2 == 0, "version": version})
        for n in range(count)
    ]


@pytest.fixture
def index(location, closing):
    index = closing(Index.create(location, WordEncoder(), CHUNKING))
    index.add(toy_documents())
    return index


class StoredVector:
    """A vector that equals others up to what the order of additions changes."""

    def __init__(self, values):
        self.values = values

    def __eq__(self, other):
        return np.allclose(self.values, other.values, atol=1e-5)

    __hash__ = None


def stored_chunks(index):
    keys, vectors = index.store.read_vectors()
    chunks = index.store.read_chunks(keys)
    assert len(set(keys)) == len(keys) == len(chunks)
    return {key: (chunks[key], StoredVector(vector)) for key, vector in zip(keys, vectors, strict=True)}


def fresh_chunks(folder, documents, encoder=None):
    index = Index.create(folder, encoder or RotatedEncoder(), CHUNKING)
    index.add(documents)
    return stored_chunks(index)


def file_hashes(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


# --- embed again ----------------------------------------------------------------------------------------------------


def test_index_is_as_if_created_with_the_new_encoder(index, location, closing, tmp_path):
    index.set_fusion(Fusion("rrf", 0.3))
    lexical = {hit.id: hit.score for hit in index.search("katar loben", 300, "lexical")}
    index.close()
    result = migrate(location, RotatedEncoder())
    moved = closing(Index.open(location, RotatedEncoder()))
    moved.verify()
    assert result.is_switched and result.chunks == moved.count()[1] == len(stored_chunks(moved))
    assert stored_chunks(moved) == fresh_chunks(tmp_path / "fresh", toy_documents())
    assert {hit.id: hit.score for hit in moved.search("katar loben", 300, "lexical")} == pytest.approx(lexical)
    assert moved.header.fusion == Fusion("rrf", 0.3) and moved.header.mapped is None
    assert all(hit.metadata["even"] for hit in moved.search("katar", 5, filter={"even": "true"}))
    with pytest.raises(InputError, match="another embedding space"):
        Index.open(location, WordEncoder())
    moved.add([Document("new", "katar katar")])
    assert moved.search("katar katar", 1, "dense")[0].id == "new"
    moved.verify()


def test_only_one_table_remains(index, location, tmp_path):
    index.close()
    migrate(location, RotatedEncoder())
    if index.store.local_folder == Path(location):
        assert len(list(Path(location).glob("chunks*.lance"))) == 1
        assert not list(Path(location).glob("space_map*")) and not (Path(location) / ".migrating").exists()
    else:
        assert not index.store._has_table(index.store.name)
        index.close()


def test_index_keeps_the_new_encoder_and_migrates_again(location, closing, backbone):
    from decoder2vec.config import EncoderSpec, Reading

    first, second = (
        Encoder(backbone("tiny-llama"), EncoderSpec("tiny-llama", (Reading(layer, "mean"),))) for layer in (2, 3)
    )
    closing(Index.create(location, first)).add(["A cat sleeps.", "Stocks fell."])
    for encoder in (second, first, second):
        migrate(location, encoder)
        opened = closing(Index.open(location))
        assert opened.encoder.fingerprint == encoder.fingerprint
        assert opened.search("A cat sleeps.", 1, "dense")[0].score == pytest.approx(1, abs=1e-5)
        opened.verify()
        opened.close()


def test_same_encoder_is_nothing_to_do(index, location):
    before = file_hashes(index.store.local_folder)
    result = migrate(location, WordEncoder())
    assert result.is_switched and result.chunks == 0
    assert file_hashes(index.store.local_folder) == before


def test_stopped_migration_goes_on(index, location, closing, tmp_path):
    count = index.count()[1]

    class StoppedError(Exception):
        pass

    calls = []

    def stop():
        calls.append(None)
        if len(calls) == 4:
            raise StoppedError

    stopped, second = RotatedEncoder(stop), RotatedEncoder()
    with pytest.raises(StoppedError):
        migrate(location, stopped)
    assert closing(Index.open(location, WordEncoder())).count()[1] == count
    index.verify()
    migrate(location, second)
    texts = [chunk.text for chunk, _ in fresh_chunks(tmp_path / "fresh", toy_documents()).values()]
    encoded = stopped.encoded_texts + second.encoded_texts[:-SHOWN_QUERIES]
    assert sorted(encoded) == sorted(texts)  # each once: the batch at which it stopped was not encoded
    assert stored_chunks(closing(Index.open(location, RotatedEncoder()))) == fresh_chunks(
        tmp_path / "again", toy_documents()
    )


def test_reader_goes_on_during_and_after(index, location, closing, tmp_path):
    def scores():
        return {hit.id: hit.score for hit in index.search("katar loben", 300, "dense")}

    expected, seen = scores(), []
    migrate(location, RotatedEncoder(lambda: seen.append(scores())))
    assert len(seen) > 3 and all(found == pytest.approx(expected) for found in seen)
    index._ranker._dense = None  # as a reader that had not loaded the vectors
    assert scores() == pytest.approx(expected)
    assert index.search("katar", 3, "lexical")
    for change in (lambda: index.add(["text"]), lambda: index.delete(["d1"]), lambda: index.set_fusion(Fusion())):
        with pytest.raises(StorageError, match="open it again"):
            change()
    closing(Index.open(location, RotatedEncoder())).add(["text"])
    index.close()
    migrate(location, RotatedEncoder())  # nothing to do but to remove what the reader had open
    with pytest.raises(StorageError, match="open it again"):
        index.search("katar", 3, "dense")


def test_changes_meanwhile_are_in_the_new_index(index, location, closing, tmp_path):
    other = closing(Index.open(location, WordEncoder()))
    calls = []

    def change():
        calls.append(None)
        if len(calls) == 2:
            other.add([Document("late", "katar late"), *toy_documents(20, version=1)])
            other.delete(["d200", "d3"])

    migrate(location, RotatedEncoder(change))
    expected = {document.id: document for document in toy_documents()}
    expected |= {document.id: document for document in toy_documents(20, version=1)}
    expected["late"] = Document("late", "katar late")
    del expected["d200"], expected["d3"]
    moved = closing(Index.open(location, RotatedEncoder()))
    moved.verify()
    assert stored_chunks(moved) == fresh_chunks(tmp_path / "fresh", list(expected.values()))


def test_two_migrations_at_once_are_refused(index, location):
    errors = []

    def again():
        with pytest.raises(StorageError) as caught:
            migrate(location, WordEncoder(seed=7))
        errors.append(str(caught.value))

    migrate(location, RotatedEncoder(again))
    assert "Another process is" in errors[0] and "\n" not in errors[0]


def test_chunks_longer_than_the_encoder_reads_are_reported(index, location):
    short = RotatedEncoder()
    short.max_seq_length = 8
    messages = []
    migrate(location, short, dry_run=True, notify=messages.append)
    assert messages[0].startswith("warning") and "the new encoder reads 8" in messages[0]


# --- maps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["procrustes", "auto"])
def test_map_of_a_rotation_is_exact(index, location, closing, tmp_path, kind):
    index.close()
    messages = []
    result = migrate(location, RotatedEncoder(), map=kind, notify=messages.append)
    # texts of equal similarity are in any order
    assert 0.98 < result.quality.low <= result.quality.recall <= 1 and 0.98 < result.quality.old_recall <= 1
    assert " % of the new encoder's ten nearest texts (95 % interval " in messages[0]
    moved = closing(Index.open(location, RotatedEncoder()))
    moved.verify()
    expected = fresh_chunks(tmp_path / "fresh", toy_documents())
    stored = stored_chunks(moved)
    assert {key: chunk for key, (chunk, _) in stored.items()} == {key: chunk for key, (chunk, _) in expected.items()}
    query = "katar loben misol"
    fresh = Index.open(tmp_path / "fresh", RotatedEncoder())
    assert {hit.id: hit.score for hit in moved.search(query, 300, "dense")} == pytest.approx(
        {hit.id: hit.score for hit in fresh.search(query, 300, "dense")}, abs=1e-4
    )
    assert (
        moved.header.mapped.recall == result.quality.recall
        and moved.header.mapped.encoder == "words-32-0, 32 dimensions"
    )
    assert moved.header.mapped.chunks == len(stored)
    assert "vectors mapped by " in repr(moved) and " from words-32-0, 32 dimensions, keeping " in repr(moved)
    moved.add([Document("new", "katar gul")])
    vectors = moved.store.read_vectors(["new"])[1]
    assert vectors[0] == pytest.approx(RotatedEncoder().encode(["katar gul"])[0])  # not mapped
    moved.close()
    migrate(location, RotatedEncoder())  # embeds again what was mapped
    again = closing(Index.open(location, RotatedEncoder()))
    assert again.header.mapped is None
    expected = fresh_chunks(tmp_path / "again", [*toy_documents(), Document("new", "katar gul")])
    assert stored_chunks(again) == expected


def test_poor_map_is_refused_and_changes_nothing(index, location):
    folder, revision = index.store.local_folder, index.store.revision()
    before, header, chunks = file_hashes(folder), index.store.header(), stored_chunks(index)
    with pytest.raises(InputError, match=r"keeps \d+\.\d % of the new encoder's recall@10, less than 95 %"):
        migrate(location, RandomVectors(24), map="affine")
    assert file_hashes(folder) == before
    assert (index.store.header(), index.store.revision(), stored_chunks(index)) == (header, revision, chunks)
    result = migrate(location, RandomVectors(24), map="affine", min_recall=0.0)
    assert result.is_switched and result.quality.recall < 0.5
    assert result.quality.low < result.quality.recall < result.quality.high


@pytest.mark.parametrize("map", [None, "procrustes"])
def test_dry_run_changes_nothing(index, location, map):
    before = file_hashes(index.store.local_folder)
    result = migrate(location, RotatedEncoder(), map=map, dry_run=True)
    assert not result.is_switched and len(result.changes) == 10 and result.chunks == index.count()[1]
    assert file_hashes(index.store.local_folder) == before
    for change in result.changes:  # a rotation changes no neighbour
        assert change.kept > 0.85 and len(change.after) == 10 and change.query not in change.after
        assert change.kept_of_true == (None if map is None else pytest.approx(1, abs=0.2))


def test_map_to_another_width(index, location, closing):
    result = migrate(location, WordEncoder(dim=48, seed=3), map="auto", min_recall=0.0)
    moved = closing(Index.open(location, WordEncoder(dim=48, seed=3)))
    moved.verify()
    assert result.map.partition(" ")[0] in ("procrustes", "affine", "mlp") and moved.header.dim == 48


def test_recall_of_judged_queries(index, location):
    queries = {str(n): document.text for n, document in enumerate(toy_documents()[:40])}
    qrels = {str(n): {f"d{n}": 1.0} for n in range(40)} | {"unknown": {"nothing": 1.0}}
    encoder = WordEncoder(seed=1)
    result = migrate(location, encoder, map="affine", queries=queries, qrels=qrels, dry_run=True)
    quality = result.quality
    assert quality.is_judged and quality.queries == 40 and 0.2 < quality.recall <= 1.1
    assert quality.old_recall is None and result.changes[0].before is None  # the index holds no old encoder
    assert "% of the new encoder's recall@10" in str(quality)
    with pytest.raises(InputError, match="check the ids"):
        migrate(location, encoder, map="affine", queries=queries, qrels={"0": {"x": 1.0}}, dry_run=True)
    with pytest.raises(InputError, match="Give the queries"):
        migrate(location, encoder, map="affine", qrels=qrels)


def test_recall_is_at_least_what_was_measured(tmp_path):
    documents, new = toy_documents(600), RandomWordsEncoder()
    queries = {f"q{n}": " ".join(document.text.split()[:3]) for n, document in enumerate(documents[:80])}
    qrels = {f"q{n}": {f"d{n}": 1.0} for n in range(80)}
    recalls = {}
    for name, encoder in (("moved", WordEncoder()), ("true", new)):
        Index.create(tmp_path / name, encoder, Chunking(64, 0)).add(documents)
    result = migrate(tmp_path / "moved", new, map="affine", sample=250, queries=queries, qrels=qrels, min_recall=0.0)
    for name in ("moved", "true"):
        rankings = Index.open(tmp_path / name, new).rank(list(queries.values()), 10, "dense")
        recalls[name] = np.mean([f"d{n}" in {found.id for found in ranked} for n, ranked in enumerate(rankings)])
    assert result.quality.texts == 600
    assert 0 < result.quality.recall <= recalls["moved"] / recalls["true"] + 1e-6


def test_unknown_map_is_refused_before_any_work(index, location):
    encoder = RotatedEncoder()
    with pytest.raises(InputError, match="Did you mean procrustes"):
        migrate(location, encoder, map="procrustus")
    with pytest.raises(InputError, match="from 0 to 1"):
        migrate(location, encoder, map="auto", min_recall=95)
    assert encoder.encoded_texts == []


def test_few_texts_are_refused(tmp_path):
    Index.create(tmp_path / "index", WordEncoder()).add(["one", "two"])
    with pytest.raises(InputError, match="2 texts are too few"):
        migrate(tmp_path / "index", RotatedEncoder(), map="auto")
    assert migrate(tmp_path / "index", RotatedEncoder()).chunks == 2


def test_empty_index_migrates(location, closing):
    closing(Index.create(location, WordEncoder())).close()
    assert migrate(location, RotatedEncoder()).is_switched
    moved = closing(Index.open(location, RotatedEncoder()))
    moved.add(["text"])
    assert moved.count() == (1, 1)


# --- kills ----------------------------------------------------------------------------------------------------------

_LAUNCHER = """
import os, sys, warnings
sys.path.insert(0, sys.argv[2])
import lancedb
from decoder2vec.search import migration
from test_migration import RotatedEncoder

warnings.simplefilter("ignore")
migration._EMBEDDED_DOCUMENTS = migration._MAPPED_DOCUMENTS = 8
for line in sys.stdin:  # the slow imports are done once; each round runs in a child process
    child = os.fork()
    if child == 0:
        migration.migrate(sys.argv[1], RotatedEncoder(slow=0.01), map=line.strip() or None)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.parametrize("map", ["", "procrustes"])
def test_kills_leave_the_old_or_the_new_index(tmp_path, map, quick_python):
    folder, rng = tmp_path / "index", random.Random(os.urandom(8))
    Index.create(folder, WordEncoder(), CHUNKING).add(toy_documents())
    old = stored_chunks(Index.open(folder, WordEncoder()))
    launcher = quick_python.start(_LAUNCHER, folder, Path(__file__).parent)
    for _ in range(4):
        print(map, file=launcher.stdin, flush=True)
        child = int(launcher.stdout.readline())
        time.sleep(rng.uniform(0, 1.5))
        with suppress(ProcessLookupError):  # it has ended already
            os.kill(child, signal.SIGKILL)
        assert int(launcher.stdout.readline()) in (-signal.SIGKILL, 0)
        is_new = json.loads((folder / "index.json").read_text())["space"]["fingerprint"] == "rotated-32"
        opened = Index.open(folder, RotatedEncoder() if is_new else WordEncoder())
        opened.verify()
        if not is_new:
            assert stored_chunks(opened) == old
        opened.close()
    launcher.communicate()
    migrate(folder, RotatedEncoder(), map=map or None)
    moved = Index.open(folder, RotatedEncoder())
    moved.verify()
    expected, stored = fresh_chunks(tmp_path / "fresh", toy_documents()), stored_chunks(moved)
    assert {key: chunk for key, (chunk, _) in stored.items()} == {key: chunk for key, (chunk, _) in expected.items()}
    if not map:
        assert stored == expected
    assert len(list(folder.glob("chunks*.lance"))) == 1 and not list(folder.glob("space_map*"))


# --- command and page -----------------------------------------------------------------------------------------------


def test_command_migrates_and_writes_a_page(tmp_path):
    Index.create(tmp_path / "index", WordEncoder(), Chunking(64, 0)).add(toy_documents(30))
    page = tmp_path / "page.html"
    output = d2v("migrate", str(tmp_path / "index"), "--to", "tiny-llama", "--report", str(page))
    assert "30 chunks embedded again" in output.stderr and output.stdout.strip() == str(page)
    html = page.read_text(encoding="utf-8")
    assert "words-32-0, 32 dimensions" in html and "all 30 chunks" in html and "<script" not in html
    Index.open(tmp_path / "index").verify()
    again = d2v("migrate", str(tmp_path / "index"), "--to", "tiny-llama")
    assert "nothing to do" in again.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sample", "5"], "--sample belongs to --map or --dry-run; leave it out"),
        (["--min-recall", "0.5"], "--min-recall belongs to --map; leave it out"),
        (["--min-recall", "0.5", "--dry-run"], "--min-recall belongs to --map; leave it out"),
    ],
)
def test_options_of_a_map_are_refused_without_one(options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        d2v("migrate", str(tmp_path / "absent"), "--to", "tiny-llama", *options)


def test_index_without_documents_gets_the_new_encoder(tmp_path):
    Index.create(tmp_path / "index", WordEncoder())
    output = d2v("migrate", str(tmp_path / "index"), "--to", "tiny-llama")
    assert "has the new encoder now: 0 chunks" in output.stderr
    assert "tiny-llama" in Index.open(tmp_path / "index").encoder.backbone.name


def test_page_of_a_map_shows_three_rankings(tmp_path):
    Index.create(tmp_path / "index", WordEncoder()).add(toy_documents())
    result = migrate(tmp_path / "index", WordEncoder(seed=1), map="affine", dry_run=True)
    html = migration_report(result, tmp_path / "page.html").read_text(encoding="utf-8")
    for text in ("before", "after", "by embedding again", "kept of embedding again", "not done yet"):
        assert text in html
    data = json.loads(migration_report(result, tmp_path / "page.json").read_text(encoding="utf-8"))
    assert data["quality"]["recall"] == result.quality.recall and len(data["changes"]) == 10
    assert data["changes"][0]["kept"] == result.changes[0].kept
