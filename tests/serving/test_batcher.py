"""The queue in front of the model: who is served when, with whom, and what is dropped."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from decoder2vec.errors import InputError
from decoder2vec.serving import batcher as queue
from decoder2vec.serving.api_errors import APIError
from decoder2vec.serving.batcher import CURRENT, Batcher, Client


class Model:
    """Vectors that can be told by hand; it waits at a door that the test opens."""

    def __init__(self):
        self.door = threading.Event()
        self.door.set()
        self.inside = threading.Event()
        self.batches = []
        self.seconds = 0.0

    def read(self, key, texts):
        self.inside.set()
        assert self.door.wait(10)
        time.sleep(self.seconds if len(texts) > 1 else 0)
        self.batches.append((key, list(texts)))
        if "bad" in texts:
            raise InputError("a bad text")
        return np.array([[float(text), len(key)] for text in texts], np.float32)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def batcher(model):
    made = Batcher(model.read, budget=10, most_waiting=100)
    yield made
    model.door.set()
    made.close()


def occupied(model, batcher):
    """The model is busy with a text of its own until the door opens."""
    model.door.clear()
    first = batcher.submit("k", ["0"], [1])
    assert model.inside.wait(10)
    return first


def test_what_waits_is_read_together_up_to_the_budget_in_turn(model, batcher):
    occupied(model, batcher)
    long = batcher.submit("k", [str(n) for n in range(1, 9)], [2] * 8)
    short = batcher.submit("k", ["100"], [2])
    model.door.set()
    assert short.result(10)[:, 0].tolist() == [100]
    assert long.result(10)[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [texts for _, texts in model.batches] == [["0"], ["1", "100", "2", "3", "4"], ["5", "6", "7", "8"]]
    assert batcher.waiting == 0


def together(model, batcher, count):
    """So many clients whose texts were read in one batch that took a while."""
    occupied(model, batcher)
    works = [batcher.submit("k", [str(n)], [1]) for n in range(1, count + 1)]
    model.seconds = 0.2
    model.door.set()
    for work in works:
        work.result(10)
    model.seconds = 0.0


@pytest.fixture
def patient(monkeypatch):
    """The model waits for its clients for longer than any of these tests would."""
    monkeypatch.setattr(queue, "_PATIENCE", 1000)


def test_clients_that_were_answered_together_are_read_together_again(model, batcher, patient):
    together(model, batcher, 4)
    again = []
    for number in range(5, 9):
        again.append(batcher.submit("k", [str(number)], [1]))
        time.sleep(0.01)  # an idle model would begin with the first of them
    [work.result(10) for work in again]
    assert [texts for _, texts in model.batches][-2:] == [["1", "2", "3", "4"], ["5", "6", "7", "8"]]


def test_nobody_waits_for_ever_for_a_client_that_does_not_come_back(model, batcher, monkeypatch):
    monkeypatch.setattr(queue, "_PATIENCE", 5)
    together(model, batcher, 4)
    started = time.perf_counter()
    assert batcher.submit("k", ["5"], [1]).result(10)[0, 0] == 5
    assert 0.3 < time.perf_counter() - started < 5  # five times the 0.2 s that the batch took


def test_a_client_that_was_read_alone_waits_for_nobody(model, batcher, patient):
    for number in (1, 2, 3):
        model.door.clear()
        work = batcher.submit("k", [str(number)], [1])
        time.sleep(0.05)  # a thousand times that, if the next one had to wait
        model.door.set()
        assert work.result(10)[0, 0] == number


def test_a_full_batch_waits_for_nobody(model, batcher, patient):
    together(model, batcher, 4)
    batcher.submit("k", ["5", "6"], [5, 5]).result(10)


def test_texts_of_different_keys_are_never_read_together_and_none_waits_for_ever(model, batcher):
    occupied(model, batcher)
    works = [batcher.submit("k" * (1 + n % 2), [str(n)], [1]) for n in range(6)]
    model.door.set()
    assert [work.result(10)[0].tolist() for work in works] == [[n, 1 + n % 2] for n in range(6)]
    assert [key for key, _ in model.batches] == ["k", "k", "kk"]


def test_a_text_over_the_budget_is_read_alone(model, batcher):
    occupied(model, batcher)
    large, small = batcher.submit("k", ["1"], [50]), batcher.submit("k", ["2"], [1])
    model.door.set()
    large.result(10), small.result(10)
    assert [texts for _, texts in model.batches][1:] == [["1"], ["2"]]


def test_what_nobody_waits_for_is_never_read(model, batcher):
    occupied(model, batcher)
    gone, kept = batcher.submit("k", ["1", "2"], [3, 3]), batcher.submit("k", ["3"], [3])
    assert gone.cancel()
    model.door.set()
    kept.result(10)
    assert [texts for _, texts in model.batches] == [["0"], ["3"]]
    assert (batcher.stats.dropped, batcher.waiting) == (2, 0)


def test_a_client_that_leaves_takes_with_it_what_its_threads_still_begin(model, batcher):
    occupied(model, batcher)
    client = Client()
    token = CURRENT.set(client)
    try:
        before = batcher.submit("k", ["1"], [1])
        client.leave()
        after = batcher.submit("k", ["2"], [1])
    finally:
        CURRENT.reset(token)
    model.door.set()
    assert before.cancelled() and after.cancelled()


def test_an_error_meets_only_the_request_that_made_it(model, batcher):
    occupied(model, batcher)
    works = [batcher.submit("k", [text], [1]) for text in ("1", "bad", "2")]
    model.door.set()
    assert works[0].result(10)[0, 0] == 1 and works[2].result(10)[0, 0] == 2
    with pytest.raises(InputError, match="a bad text"):
        works[1].result(10)


def test_a_full_queue_says_when_to_come_back(model, batcher):
    occupied(model, batcher)
    batcher.submit("k", ["1"], [90])
    with pytest.raises(APIError) as caught:
        batcher.submit("k", ["2"], [11])
    assert caught.value.status == 429 and 0 < caught.value.wait <= 60
    batcher.submit("k", ["3"], [10])
    batcher.submit("k", ["4"], [10], admitted=True)


def test_closing_finishes_the_batch_that_runs_and_fails_the_rest(model, batcher):
    first = occupied(model, batcher)
    second = batcher.submit("k", ["1"], [1])
    closer = threading.Thread(target=batcher.close)
    closer.start()
    time.sleep(0.05)
    model.door.set()
    closer.join(10)
    assert first.result(1)[0, 0] == 0
    with pytest.raises(APIError, match="stopping"):
        second.result(1)
    with pytest.raises(APIError, match="stopping"):
        batcher.submit("k", ["2"], [1])


def test_many_threads_get_each_their_own_vectors(model, batcher):
    wrong = []

    def ask(person):
        for turn in range(20):
            texts = [str(1000 * person + 10 * turn + n) for n in range(turn % 3 + 1)]
            found = batcher.submit("k" * (1 + person % 3), texts, [1] * len(texts), admitted=True).result(30)
            if found[:, 0].tolist() != [float(text) for text in texts]:
                wrong.append(person)

    threads = [threading.Thread(target=ask, args=(person,)) for person in range(16)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    assert wrong == [] and batcher.waiting == 0
