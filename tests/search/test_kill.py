"""A process that indexes is killed at random moments: what was stored stays, the rest follows, and nothing is twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from decoder2vec.search.chunks import Chunking
from decoder2vec.search.documents import Document
from decoder2vec.search.index import Index
from toys.encoder import WordEncoder

_LAUNCHER = """
import os, sys, warnings
import lancedb
from decoder2vec.search import index as indexing
from decoder2vec.search.index import Index
from toys.encoder import WordEncoder
from test_kill import CHUNKING, documents

warnings.simplefilter("ignore")
indexing._BATCH = 4
for line in sys.stdin:  # the slow imports are done once; each round runs in a process of its own
    child = os.fork()
    if child == 0:
        encoder = WordEncoder(slow=0.004)
        place = sys.argv[1]
        index = Index.open(place, encoder) if Index.exists(place) else Index.create(place, encoder, CHUNKING)
        index.add(documents(int(line)))
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
CHUNKING = Chunking(16, 4)
LENGTH = 1.5
"""Seconds in which the moment of death is drawn: about as long as the work takes."""


def documents(round_: int) -> list[Document]:
    """150 of them; every third has other words and another length in every round."""
    found = []
    for number in range(150):
        version = round_ if number % 3 == 0 else 0
        sentences = [
            f"Word{number} version{version} sentence{place} of this text."
            for place in range(1 + (number + version) % 5)
        ]
        found.append(Document(f"d{number}", " ".join(sentences), {"version": version}))
    return found


@contextmanager
def launcher(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that starts one that indexes, as often as it is asked."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", _LAUNCHER, str(place)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, env={**os.environ, "PYTHONPATH": path}) as running:
        yield running
        running.stdin.close()


def kill_and_continue(place: Path, kills: int) -> None:
    rng = random.Random(os.urandom(8))
    with launcher(place) as running:
        for round_ in range(1, kills + 1):
            print(round_, file=running.stdin, flush=True)
            child = int(running.stdout.readline())
            time.sleep(rng.uniform(0, LENGTH))
            with suppress(ProcessLookupError):  # it was done before
                os.kill(child, signal.SIGKILL)
            assert int(running.stdout.readline()) in (-signal.SIGKILL, 0)
            if Index.exists(place):  # else it was killed before there was one
                Index.open(place, WordEncoder()).verify()
    encoder = WordEncoder()
    index = Index.open(place, encoder) if Index.exists(place) else Index.create(place, encoder, CHUNKING)
    changes = index.add(documents(kills))
    index.verify()
    assert changes.added + changes.updated + changes.unchanged == 150
    plain = Index.create(place.parent / "plain", WordEncoder(), CHUNKING)
    plain.add(documents(kills))
    assert stored(index) == stored(plain)


def stored(index):
    keys, vectors = index.store.vectors()
    chunks = index.store.chunks(keys)
    return {key: (chunks[key], tuple(vector)) for key, vector in zip(keys, vectors.tolist(), strict=True)}


def test_three_kills_lose_and_double_nothing(tmp_path):
    kill_and_continue(tmp_path / "index", 3)


@pytest.mark.soak
def test_twenty_kills_lose_and_double_nothing(tmp_path):
    kill_and_continue(tmp_path / "index", 20)


def test_a_creation_that_was_killed_before_the_header_is_begun_again(tmp_path):
    whole = Index.create(tmp_path / "index", WordEncoder())
    (tmp_path / "index" / "index.json").unlink()
    assert not Index.exists(whole.place)
    Index.create(tmp_path / "index", WordEncoder()).add([Document("a", "text")])
    assert Index.open(tmp_path / "index", WordEncoder()).count() == (1, 1)
