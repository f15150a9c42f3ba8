"""Indexing is killed at random moments: stored documents stay, a new run continues, and nothing is stored twice."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from decoder2vec.search.chunks import Chunking
from decoder2vec.search.documents import Document
from decoder2vec.search.index import Index
from toys.encoder import WordEncoder

_LAUNCHER = """
import os, sys, warnings
sys.path.insert(0, sys.argv[2])
import lancedb
from decoder2vec.search import indexing
from decoder2vec.search.index import Index
from toys.encoder import WordEncoder
from test_kill import CHUNKING, toy_documents

warnings.simplefilter("ignore")
assert indexing._MIN_BATCH_CHUNKS == 64
indexing._MIN_BATCH_CHUNKS = 4
for line in sys.stdin:  # the slow imports are done once; each round runs in a child process
    child = os.fork()
    if child == 0:
        encoder = WordEncoder(slow=0.004)
        place = sys.argv[1]
        index = Index.open(place, encoder) if Index.exists(place) else Index.create(place, encoder, CHUNKING)
        index.add(toy_documents(int(line)))
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
CHUNKING = Chunking(16, 4)
MAX_DELAY = 1.5
"""Seconds before a kill, at most: about as long as indexing takes."""


def toy_documents(round_: int) -> list[Document]:
    """Return 150 documents, of which every third changes its words and length in every round."""
    documents = []
    for number in range(150):
        version = round_ if number % 3 == 0 else 0
        sentences = [
            f"Word{number} version{version} sentence{index} of this text."
            for index in range(1 + (number + version) % 5)
        ]
        documents.append(Document(f"d{number}", " ".join(sentences), {"version": version}))
    return documents


def open_or_create(location: str) -> Index:
    encoder = WordEncoder()
    return Index.open(location, encoder) if Index.exists(location) else Index.create(location, encoder, CHUNKING)


def stored_chunks(index):
    keys, vectors = index.store.read_vectors()
    chunks = index.store.read_chunks(keys)
    return {key: (chunks[key], tuple(vector)) for key, vector in zip(keys, vectors.tolist(), strict=True)}


def test_three_kills_lose_and_duplicate_nothing(location, closing, tmp_path, quick_python):
    rng, kills = random.Random(os.urandom(8)), 3
    launcher = quick_python.start(_LAUNCHER, location, Path(__file__).parent)
    for round_ in range(1, kills + 1):
        print(round_, file=launcher.stdin, flush=True)
        child = int(launcher.stdout.readline())
        time.sleep(rng.uniform(0, MAX_DELAY))
        with suppress(ProcessLookupError):  # it has ended already
            os.kill(child, signal.SIGKILL)
        assert int(launcher.stdout.readline()) in (-signal.SIGKILL, 0)
        if Index.exists(location):  # else it was killed before the index was created
            closing(Index.open(location, WordEncoder())).verify()
    launcher.communicate()
    index = closing(open_or_create(location))
    changes = index.add(toy_documents(kills))
    index.verify()
    assert changes.added + changes.updated + changes.unchanged == 150
    uninterrupted = Index.create(tmp_path / "uninterrupted", WordEncoder(), CHUNKING)
    uninterrupted.add(toy_documents(kills))
    assert stored_chunks(index) == stored_chunks(uninterrupted)


def test_creation_killed_before_the_header_can_be_repeated(tmp_path):
    complete = Index.create(tmp_path / "index", WordEncoder())
    (tmp_path / "index" / "index.json").unlink()
    assert not Index.exists(complete.location)
    Index.create(tmp_path / "index", WordEncoder()).add([Document("a", "text")])
    assert Index.open(tmp_path / "index", WordEncoder()).count() == (1, 1)
