"""Texts to latents: order, duplicates, memory, and texts that are none."""

from __future__ import annotations

import logging
import re
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from decoder2vec.activations import extract
from decoder2vec.activations.capture import Capture
from decoder2vec.activations.extract import EncodingStats, Extractor, check_texts
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.config import Reading
from decoder2vec.errors import Decoder2VecError, InputError
from decoder2vec.text.template import Template

READINGS = [Reading(2), Reading(4, "lasttoken", True)]
TEXTS = [f"{'The dough rests. ' * (n % 7)}Loaf {n}" for n in range(40)]
LONG = " ".join(f"Loaf number {n} is in the oven." for n in range(60))


@pytest.fixture
def seen(monkeypatch):
    """(rows, width) of every batch that reached the model."""
    sizes = []
    real = Capture.__call__

    def counting(self, batch):
        sizes.append(tuple(batch.ids.shape))
        return real(self, batch)

    monkeypatch.setattr(Capture, "__call__", counting)
    return sizes


@pytest.fixture(scope="module")
def plain():
    """layer 2 mean and last layer's last token of one text, straight from transformers."""
    with quiet_transformers():
        model = AutoModel.from_pretrained(tiny_folder("tiny-gpt2")).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder("tiny-gpt2"))

    @cache
    @torch.inference_mode()
    def vectors(text):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        states = model(input_ids=ids, output_hidden_states=True).hidden_states
        return np.stack([states[2][0].mean(0).numpy(), states[-1][0, -1].numpy()])

    return vectors


def assert_close(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def test_vectors_come_back_in_the_order_of_the_texts(backbone, plain):
    found = Extractor(backbone("tiny-gpt2"), READINGS, budget=200)(TEXTS)
    assert found.dtype == np.float32
    assert_close(found, np.stack([plain(text) for text in TEXTS]))


def test_windows_are_put_together_in_order(backbone, plain, monkeypatch):
    monkeypatch.setattr(extract, "_WINDOW_BYTES", 1)
    texts = [f"Loaf {n}" for n in range(600)]
    extractor = Extractor(backbone("tiny-gpt2"), READINGS)
    rows = [np.arange(600)[rows] for rows, _ in extractor.windows(texts)]
    assert len(rows) == 3
    assert np.concatenate(rows).tolist() == list(range(600))
    assert_close(extractor(texts)[[0, 255, 256, 599]], np.stack([plain(texts[n]) for n in (0, 255, 256, 599)]))


def test_duplicates_are_computed_once_and_come_back_each_time(backbone, plain, seen):
    texts = ["b", "a", "b", "b", "c", "a"]
    found = Extractor(backbone("tiny-gpt2"), READINGS)(texts)
    assert sum(rows for rows, _ in seen) == 3
    assert_close(found, np.stack([plain(text) for text in texts]))


@pytest.mark.parametrize("budget", [1, 64, 300, 100_000])
def test_the_budget_changes_batches_but_not_vectors(budget, backbone, seen):
    found = Extractor(backbone("tiny-gpt2"), READINGS, budget=budget)(TEXTS)
    assert all(rows * width <= budget or rows == 1 for rows, width in seen)
    assert_close(found, Extractor(backbone("tiny-gpt2"), READINGS)(TEXTS))


def test_progress_counts_every_text_once_duplicates_included(backbone, monkeypatch):
    monkeypatch.setattr(extract, "_WINDOW_BYTES", 1)
    texts = [f"Loaf {n % 300}" for n in range(500)]
    steps = []
    Extractor(backbone("tiny-gpt2"), READINGS)(texts, steps.append)
    assert sum(steps) == 500
    assert steps[-1] == 300 - 256, "each window is reported when it is done"


def test_no_texts_give_no_vectors(backbone):
    assert Extractor(backbone("tiny-gpt2"), READINGS)([]).shape == (0, 2, 32)


OUT_OF_MEMORY = {
    "torch": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    "driver": RuntimeError("CUDA error: out of memory"),
    "allocator": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
}
ROOM = 150
"""Tokens that fit into memory in these tests."""


@pytest.fixture(params=OUT_OF_MEMORY)
def failures(request, monkeypatch):
    """Sizes of the batches that did not fit."""
    sizes = []
    real = Capture.__call__

    def small_only(capture, batch):
        if batch.ids.numel() > ROOM:
            sizes.append(batch.ids.numel())
            raise OUT_OF_MEMORY[request.param]
        return real(capture, batch)

    monkeypatch.setattr(Capture, "__call__", small_only)
    return sizes


def test_out_of_memory_halves_the_batch_and_gives_the_same_vectors(backbone, failures, plain, caplog):
    found = Extractor(backbone("tiny-gpt2"), READINGS, budget=2_048)(TEXTS)
    assert failures
    assert "Out of memory" in caplog.text
    assert_close(found, np.stack([plain(text) for text in TEXTS]))


def test_batches_after_out_of_memory_are_smaller_from_the_start(backbone, failures):
    extractor = Extractor(backbone("tiny-gpt2"), READINGS, budget=600)
    extractor([f"Loaf {n}, and the next one" for n in range(400)])
    assert extractor.budget <= ROOM
    assert len(failures) <= 10, "every batch ran out of memory again"


def test_one_text_that_does_not_fit_is_named_by_its_tokens(backbone, failures):
    count = len(AutoTokenizer.from_pretrained(tiny_folder("tiny-gpt2"))(LONG[:350])["input_ids"])
    assert ROOM < count <= 256
    with pytest.raises(InputError, match=f"One text of {count} tokens .* smaller max_length"):
        Extractor(backbone("tiny-gpt2"), READINGS)([LONG[:350], "short"])


def test_other_failures_are_not_taken_for_lack_of_memory(backbone, monkeypatch):
    def broken(*_):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(Capture, "__call__", broken)
    with pytest.raises(RuntimeError, match="multiplied"):
        Extractor(backbone("tiny-gpt2"), READINGS)(["a", "b"])


@pytest.mark.parametrize("wrong", [None, 3, 2.5, float("nan"), b"bytes", ["nested"], np.float32(1)])
def test_what_is_no_text_is_refused_by_number(wrong, backbone):
    with pytest.raises(InputError, match=f"Text 2 is {type(wrong).__name__}, not str"):
        Extractor(backbone("tiny-gpt2"), READINGS)(["a", "b", wrong, "c", wrong])


@pytest.mark.parametrize("wrong", ["\ud83d", "ok \udc4d ok", "\ud800" * 3])
def test_half_a_surrogate_pair_is_refused_by_number_and_character(wrong, backbone):
    where = next(position for position, letter in enumerate(wrong) if "\ud800" <= letter <= "\udfff")
    with pytest.raises(InputError, match=f"Text 1 .* character {where}") as caught:
        Extractor(backbone("tiny-gpt2"), READINGS)(["a", wrong])
    assert isinstance(caught.value, Decoder2VecError)
    cleaned = wrong.encode("utf-8", "replace").decode()
    assert np.isfinite(Extractor(backbone("tiny-gpt2"), READINGS)([cleaned])).all()


def test_sound_texts_pass_unchanged():
    texts = ["a", "", "👍", "a\x00b", np.str_("numpy")]
    assert check_texts(texts) is texts


def test_a_chunked_text_is_the_mean_of_its_chunks_weighted_by_their_tokens(backbone, plain):
    extractor = Extractor(backbone("tiny-gpt2"), READINGS, max_length=70, on_overflow="chunk")
    found = extractor(["short", LONG, "other"])
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder("tiny-gpt2"))
    total, weight, text = np.zeros((2, 32)), 0, LONG
    for prompt in extractor.tokeniser([LONG]).prompts:
        chunk = tokenizer.decode(prompt.ids)
        assert text.startswith(chunk)
        text = text[len(chunk) :]
        tokens = len(tokenizer(chunk)["input_ids"])
        total += tokens * plain(chunk)
        weight += tokens
    assert text == ""
    assert_close(found, np.stack([plain("short"), total / weight, plain("other")]))


@pytest.mark.parametrize("template", ["plain", "prompteol", "echo", "instruct"])
def test_a_cut_text_has_the_vector_of_the_shorter_text(template, backbone):
    chosen = Template.of(template)
    extractor = Extractor(backbone("tiny-llama"), READINGS, chosen, max_length=64)
    prompt = extractor.tokeniser([LONG]).prompts[0]
    whole = Extractor(backbone("tiny-llama"), READINGS, chosen)
    ids = [whole.tokeniser([LONG[:head]]).prompts[0].ids for head in range(200)]
    assert prompt.ids in ids
    np.testing.assert_array_equal(extractor([LONG]), whole([LONG[: ids.index(prompt.ids)]]))


def test_texts_cut_are_counted_and_reported(backbone, caplog):
    extractor = Extractor(backbone("tiny-gpt2"), READINGS, max_length=32)
    extractor(["a", LONG, "b", LONG + "!"])
    assert extractor.stats.overlong == 2
    assert re.search(r"2 text\(s\) over 32 tokens were cut \(number 1, 3\); raise max_length", caplog.text)
    Extractor(backbone("tiny-gpt2"), READINGS)([LONG * 9])
    assert re.search(r"1 text\(s\) over 256 tokens were cut \(number 0\); the model takes no more", caplog.text)


def test_nothing_is_reported_where_nothing_is_cut(backbone, caplog):
    caplog.set_level(logging.WARNING)
    extractor = Extractor(backbone("tiny-gpt2"), READINGS)
    extractor(TEXTS)
    assert extractor.stats.overlong == 0
    assert caplog.text == ""


def test_the_number_of_a_cut_text_is_its_place_in_the_list_also_after_duplicates(backbone, caplog):
    Extractor(backbone("tiny-gpt2"), READINGS, max_length=32)(["a", "a", "a", LONG])
    assert "(number 3)" in caplog.text


def test_the_number_of_a_refused_text_is_its_place_in_the_list_also_after_duplicates(backbone):
    with pytest.raises(InputError, match="Text 3 takes"):
        Extractor(backbone("tiny-gpt2"), READINGS, max_length=32, on_overflow="error")(["a", "a", "a", LONG])


def test_the_number_of_a_refused_text_counts_from_the_first_window(backbone, monkeypatch):
    monkeypatch.setattr(extract, "_WINDOW_BYTES", 1)
    texts = [f"Loaf {n}" for n in range(300)] + [LONG]
    with pytest.raises(InputError, match="Text 300 takes"):
        Extractor(backbone("tiny-gpt2"), READINGS, max_length=32, on_overflow="error")(texts)


def test_the_tally_counts_texts_and_tokens(backbone, seen):
    extractor = Extractor(backbone("tiny-gpt2"), READINGS, budget=200)
    extractor(TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder("tiny-gpt2"))
    tokens = sum(len(tokenizer(text)["input_ids"]) for text in TEXTS)
    padded = sum(rows * width for rows, width in seen)
    stats = extractor.stats
    assert (stats.texts, stats.tokens, stats.padded_tokens) == (len(TEXTS), tokens, padded)
    assert stats.padding == pytest.approx(1 - tokens / padded)
    assert stats.tokens_per_second == pytest.approx(tokens / stats.seconds)


def test_tallies_add_up_and_an_empty_one_divides_nothing():
    total = EncodingStats()
    assert (total.padding, total.tokens_per_second) == (0.0, 0.0)
    total += EncodingStats(1, 2, 3, 4, 5.0)
    total += EncodingStats(1, 2, 3, 4, 5.0)
    assert total == EncodingStats(2, 4, 6, 8, 10.0)


def test_the_limit_is_never_over_the_models_context(backbone):
    assert Extractor(backbone("tiny-gpt2"), READINGS, max_length=10_000).max_length == 256
    assert Extractor(backbone("tiny-mamba"), READINGS, max_length=10_000).max_length == 10_000


def test_progress_is_told_after_every_batch_and_adds_up_to_the_texts(backbone):
    told = []
    texts = [f"text number {n} {'word ' * (n % 7)}" for n in range(40)]
    extractor = Extractor(backbone("tiny-llama"), [Reading(1, "mean")], budget=64)
    extractor(texts + texts[:3], told.append)
    assert sum(told) == 43
    assert len([count for count in told if count]) > 10
