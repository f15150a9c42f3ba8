"""Batches that are computed at once, each by a thread of its own, give the vectors of one batch after the other."""

from __future__ import annotations

import platform
import threading

import numpy as np
import pytest
import torch

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.extract import Extractor
from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import X86
from decoder2vec.backbone.threads import ThreadAdjuster
from decoder2vec.backbone.tiny import TINY
from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError
from decoder2vec.text.template import Template

TEXTS = [f"{'Knead the dough. ' * (n % 9)}Loaf {n}" for n in range(48)]
BUDGET = 120
WORKERS = 3

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(platform.machine() not in X86, reason="only on x86 are batches computed at once"),
]


@pytest.fixture
def workers(monkeypatch):
    """workers(count): compute as many batches at once."""

    def use(count):
        monkeypatch.setattr(ThreadAdjuster, "workers", lambda _: count)

    return use


@pytest.fixture
def threads_used(monkeypatch):
    """Threads that computed a batch."""
    used = []
    real = Capture.__call__

    def recording(self, batch):
        used.append(threading.get_ident())
        return real(self, batch)

    monkeypatch.setattr(Capture, "__call__", recording)
    return used


def extract(backbone, template="plain", texts=TEXTS):
    readings = [
        Reading(layer, pooling, normed)
        for layer, normed in ((0, False), (2, False), (backbone.n_layers, False), (backbone.n_layers, True))
        for pooling in ("lasttoken", "mean", "max")
    ]
    return Extractor(backbone, readings, Template.of(template), budget=BUDGET)(texts)


@pytest.mark.parametrize("name", TINY)
def test_every_family_gives_the_same_vectors(name, backbone, workers, threads_used, gap):
    model = backbone(name)
    for attention in ("causal", "bidirectional"):
        try:
            model.set_attention(attention)
        except UnsupportedError:
            continue
        workers(1)
        expected = extract(model, "echo")
        threads_used.clear()
        workers(WORKERS)
        assert gap(extract(model, "echo"), expected) < 1e-5
        assert set(threads_used) - {threading.get_ident()}
    model.set_attention("causal")


def test_adapted_models_give_the_same_vectors(workers, threads_used, gap):
    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    lora = Lora.initialise(backbone, 2, 4).requires_grad_(False)
    torch.manual_seed(0)
    for upper in lora.upper.values():
        torch.nn.init.normal_(upper, std=0.3)
    weight = backbone.blocks[0].mlp.up_proj.weight
    before = weight.clone()
    for adapter, at_once in ((lora, True), (SoftPrompt.initialise(backbone, 3), False)):
        workers(1)
        expected = extract(backbone.with_adapter(adapter))
        threads_used.clear()
        workers(WORKERS)
        assert gap(extract(backbone.with_adapter(adapter)), expected) < 1e-5
        assert (len(set(threads_used)) > 1) == at_once
    assert backbone.blocks[0].mlp.up_proj.weight is weight and torch.equal(weight, before)


def test_lora_that_is_trained_adds_its_updates(workers, threads_used, gap):
    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    lora = Lora.initialise(backbone, 2, 4)
    for upper in lora.upper.values():
        torch.nn.init.normal_(upper, std=0.3)
    workers(1)
    expected = extract(backbone.with_adapter(lora))
    threads_used.clear()
    workers(WORKERS)
    assert gap(extract(backbone.with_adapter(lora)), expected) < 1e-5
    assert len(set(threads_used)) > 1
    assert gap(extract(backbone), expected) > 1e-3


def test_int8_gives_the_same_vectors(workers, gap):
    try:
        backbone = Backbone.load("tiny-llama", device="cpu", dtype="int8")
    except UnsupportedError as reason:
        pytest.skip(str(reason))
    workers(1)
    expected = extract(backbone)
    workers(WORKERS)
    for _ in range(5):
        assert gap(extract(backbone), expected) < 1e-5


def test_frequencies_that_follow_the_length_are_not_shared(backbone, workers, threads_used):
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    workers(WORKERS)
    extract(model)
    assert len(set(threads_used)) > 1
    threads_used.clear()
    model.model.rotary_emb.rope_type = "dynamic"
    extract(model)
    assert set(threads_used) == {threading.get_ident()}


def test_few_tokens_are_computed_by_all_threads(backbone, workers, threads_used):
    workers(WORKERS)
    extract(backbone("tiny-llama"), texts=TEXTS[:8])
    assert set(threads_used) == {threading.get_ident()}


def test_progress_and_statistics_count_every_text(backbone, workers):
    totals = []
    for count in (1, WORKERS):
        workers(count)
        extractor = Extractor(backbone("tiny-llama"), [Reading(2)], budget=BUDGET)
        steps = []
        extractor(TEXTS, steps.append)
        totals.append((sum(steps), extractor.stats.texts, extractor.stats.tokens))
    assert totals[0] == totals[1]
    assert totals[0][:2] == (len(TEXTS), len(TEXTS))


def test_batches_that_do_not_fit_beside_others_are_divided(backbone, workers, monkeypatch, gap):
    model = backbone("tiny-llama")
    workers(1)
    expected = extract(model)
    real, failures = Capture.__call__, []
    fitting = BUDGET * 3 // 4  # tokens; the longest text has 80

    def limited_memory(self, batch):
        if batch.ids.numel() > fitting:
            failures.append(threading.get_ident())
            raise torch.OutOfMemoryError("out of memory")
        return real(self, batch)

    monkeypatch.setattr(Capture, "__call__", limited_memory)
    workers(WORKERS)
    steps = []
    extractor = Extractor(model, [Reading(2, "mean")], budget=BUDGET)
    vectors = extractor(TEXTS, steps.append)
    assert failures and failures[0] != threading.get_ident()
    assert len(failures) <= WORKERS + 3, "every batch ran out of memory again"
    assert gap(vectors[:, 0], expected[:, 4]) < 1e-5 and sum(steps) == len(TEXTS)


def test_what_prompts_begin_with_is_computed_once(backbone, workers, monkeypatch, gap):
    """Its keys and values are computed under a hook that stops whatever pass meets it."""
    model, real, with_past = backbone("tiny-llama"), Capture.__call__, []

    def recording(self, batch):
        with_past.append((threading.get_ident(), batch.past is not None))
        return real(self, batch)

    monkeypatch.setattr(Capture, "__call__", recording)
    template = "Somebody who bakes a lot of bread at home wrote this down to remember it one day: {text}"
    workers(1)
    expected = extract(model, template)
    with_past.clear()
    workers(WORKERS)
    assert gap(extract(model, template), expected) < 1e-5
    assert any(past and thread != threading.get_ident() for thread, past in with_past)


def test_error_in_a_batch_ends_the_work(backbone, workers, monkeypatch):
    def broken(*_):
        raise RuntimeError("shapes cannot be multiplied")

    workers(WORKERS)
    monkeypatch.setattr(Capture, "__call__", broken)
    with pytest.raises(RuntimeError, match="multiplied"):
        extract(backbone("tiny-llama"))


def test_threads_may_share_a_model_that_computes_batches_at_once(backbone, workers, gap):
    """Hooks of one call must not see the batches of another."""
    model = backbone("tiny-llama")
    workers(1)
    expected = extract(model)
    workers(WORKERS)
    results = {}

    def call(number):
        results[number] = extract(model)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert np.array([gap(vectors, expected) for vectors in results.values()]).max() < 1e-5 and len(results) == 3
