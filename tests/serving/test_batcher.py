"""The queue in front of the model: the order of texts, what shares a batch, and what is dropped."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from decoder2vec.errors import EncoderError, InputError
from decoder2vec.serving import batcher as batcher_module
from decoder2vec.serving.api_errors import APIError
from decoder2vec.serving.batcher import CURRENT_SCOPE, Batcher, CancellationScope


class Model:
    """Returns vectors with predictable values, and blocks until the test allows it to run."""

    def __init__(self):
        self.may_run = threading.Event()
        self.may_run.set()
        self.started = threading.Event()
        self.batches = []
        self.seconds = 0.0

    def encode(self, key, texts):
        self.started.set()
        assert self.may_run.wait(10)
        time.sleep(self.seconds if len(texts) > 1 else 0)
        self.batches.append((key, list(texts)))
        if "bad" in texts:
            raise InputError("a bad text")
        rows = [[float(text), len(key)] for text in texts if text != "-1"]
        return np.array(rows, np.float32)


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def batcher(model):
    created = Batcher(model.encode, max_batch_tokens=10, max_waiting_tokens=100)
    yield created
    model.may_run.set()
    created.close()


def block(model, batcher):
    """Keep the model busy with one text until the test lets it run."""
    model.may_run.clear()
    first = batcher.submit("k", ["0"], [1])
    assert model.started.wait(10)
    return first


def test_batch_takes_texts_of_each_request_in_turn(model, batcher):
    block(model, batcher)
    long = batcher.submit("k", [str(n) for n in range(1, 9)], [2] * 8)
    short = batcher.submit("k", ["100"], [2])
    model.may_run.set()
    assert short.result(10)[:, 0].tolist() == [100]
    assert long.result(10)[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [texts for _, texts in model.batches] == [["0"], ["1", "100", "2", "3", "4"], ["5", "6", "7", "8"]]
    assert batcher.waiting_tokens == 0


def encode_together(model, batcher, count):
    """Encode the texts of `count` clients in one batch that takes a while."""
    block(model, batcher)
    futures = [batcher.submit("k", [str(n)], [1]) for n in range(1, count + 1)]
    model.seconds = 0.2
    model.may_run.set()
    for future in futures:
        future.result(10)
    model.seconds = 0.0


@pytest.fixture
def long_return_wait(monkeypatch):
    """The model waits for returning clients for longer than any of these tests takes."""
    monkeypatch.setattr(batcher_module, "_RETURN_WAIT", 1000)


def test_clients_of_one_batch_share_the_next_batch(model, batcher, long_return_wait):
    encode_together(model, batcher, 4)
    futures = []
    for number in range(5, 9):
        futures.append(batcher.submit("k", [str(number)], [1]))
        time.sleep(0.01)  # an idle model would start with the first of them
    [future.result(10) for future in futures]
    assert [texts for _, texts in model.batches][-2:] == [["1", "2", "3", "4"], ["5", "6", "7", "8"]]


def test_wait_for_returning_clients_is_limited(model, batcher, monkeypatch):
    monkeypatch.setattr(batcher_module, "_RETURN_WAIT", 60)
    encode_together(model, batcher, 4)
    started = time.perf_counter()
    assert batcher.submit("k", ["5"], [1]).result(50)[0, 0] == 5
    assert time.perf_counter() - started > 0.3  # five times the 0.2 s that the batch took


def test_single_client_waits_for_nobody(model, batcher, long_return_wait):
    for number in (1, 2, 3):
        model.may_run.clear()
        future = batcher.submit("k", [str(number)], [1])
        time.sleep(0.05)  # the next one would wait a thousand times as long
        model.may_run.set()
        assert future.result(10)[0, 0] == number


def test_full_batch_waits_for_nobody(model, batcher, long_return_wait):
    encode_together(model, batcher, 4)
    batcher.submit("k", ["5", "6"], [5, 5]).result(10)


def test_texts_of_different_keys_never_share_a_batch(model, batcher):
    block(model, batcher)
    futures = [batcher.submit("k" * (1 + n % 2), [str(n)], [1]) for n in range(6)]
    model.may_run.set()
    assert [future.result(10)[0].tolist() for future in futures] == [[n, 1 + n % 2] for n in range(6)]
    assert [key for key, _ in model.batches] == ["k", "k", "kk"]


def test_text_longer_than_a_batch_is_encoded_alone(model, batcher):
    block(model, batcher)
    large, small = batcher.submit("k", ["1"], [50]), batcher.submit("k", ["2"], [1])
    model.may_run.set()
    large.result(10), small.result(10)
    assert [texts for _, texts in model.batches][1:] == [["1"], ["2"]]


def test_cancelled_texts_are_never_encoded(model, batcher):
    block(model, batcher)
    cancelled, kept = batcher.submit("k", ["1", "2"], [3, 3]), batcher.submit("k", ["3"], [3])
    assert cancelled.cancel()
    model.may_run.set()
    kept.result(10)
    assert [texts for _, texts in model.batches] == [["0"], ["3"]]
    assert (batcher.stats.dropped, batcher.waiting_tokens) == (2, 0)


def test_cancelled_scope_cancels_later_submissions_too(model, batcher):
    block(model, batcher)
    scope = CancellationScope()
    token = CURRENT_SCOPE.set(scope)
    try:
        before = batcher.submit("k", ["1"], [1])
        scope.cancel()
        after = batcher.submit("k", ["2"], [1])
    finally:
        CURRENT_SCOPE.reset(token)
    model.may_run.set()
    assert before.cancelled() and after.cancelled()


def test_error_fails_only_the_request_that_caused_it(model, batcher):
    block(model, batcher)
    futures = [batcher.submit("k", [text], [1]) for text in ("1", "bad", "2")]
    model.may_run.set()
    assert futures[0].result(10)[0, 0] == 1 and futures[2].result(10)[0, 0] == 2
    with pytest.raises(InputError, match="a bad text"):
        futures[1].result(10)


def test_wrong_number_of_vectors_does_not_stop_the_batcher(model, batcher):
    block(model, batcher)
    futures = [batcher.submit("k", texts, [1] * len(texts)) for texts in (["1"], ["2", "-1"], ["3"])]
    model.may_run.set()
    assert futures[0].result(10)[0, 0] == 1 and futures[2].result(10)[0, 0] == 3
    with pytest.raises(EncoderError, match="1 vectors for 2 texts"):
        futures[1].result(10)
    assert batcher.submit("k", ["4"], [1]).result(10)[0, 0] == 4


def test_full_queue_reports_when_to_retry(model, batcher):
    block(model, batcher)
    batcher.submit("k", ["1"], [90])
    with pytest.raises(APIError) as caught:
        batcher.submit("k", ["2"], [11])
    assert caught.value.status == 429 and 0 < caught.value.retry_after <= 60
    batcher.submit("k", ["3"], [10])
    batcher.submit("k", ["4"], [10], admitted=True)


def test_closing_finishes_the_running_batch_and_fails_others(model, batcher):
    first = block(model, batcher)
    second = batcher.submit("k", ["1"], [1])
    closer = threading.Thread(target=batcher.close)
    closer.start()
    time.sleep(0.05)
    model.may_run.set()
    closer.join(10)
    assert first.result(1)[0, 0] == 0
    with pytest.raises(APIError, match="stopping"):
        second.result(1)
    with pytest.raises(APIError, match="stopping"):
        batcher.submit("k", ["2"], [1])


def test_every_thread_gets_the_vectors_of_its_own_texts(model, batcher):
    wrong = []

    def request(client):
        for turn in range(20):
            texts = [str(1000 * client + 10 * turn + n) for n in range(turn % 3 + 1)]
            vectors = batcher.submit("k" * (1 + client % 3), texts, [1] * len(texts), admitted=True).result(30)
            if vectors[:, 0].tolist() != [float(text) for text in texts]:
                wrong.append(client)

    threads = [threading.Thread(target=request, args=(client,)) for client in range(16)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    assert wrong == [] and batcher.waiting_tokens == 0
