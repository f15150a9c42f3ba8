"""Tests of `Extractor`: order, duplicates, memory, overflow and invalid texts."""

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
def batch_shapes(monkeypatch):
    """(rows, width) of every batch that ran through the model."""
    sizes = []
    real = Capture.__call__

    def counting(self, batch):
        sizes.append(tuple(batch.ids.shape))
        return real(self, batch)

    monkeypatch.setattr(Capture, "__call__", counting)
    return sizes


@pytest.fixture(scope="module")
def plain():
    """plain(text): mean of layer 2 and last token of the last layer, computed with transformers alone."""
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


def assert_close(latents, expected, tolerance=1e-5):
    assert latents.shape == expected.shape
    assert np.abs(latents - expected).max() <= tolerance * np.abs(expected).max()


def test_vectors_keep_the_order_of_the_texts(backbone, plain):
    latents = Extractor(backbone("tiny-gpt2"), READINGS, budget=200)(TEXTS)
    assert latents.dtype == np.float32
    assert_close(latents, np.stack([plain(text) for text in TEXTS]))


def test_windows_are_joined_in_order(backbone, plain, monkeypatch):
    monkeypatch.setattr(extract, "_WINDOW_BYTES", 1)
    texts = [f"Loaf {n}" for n in range(600)]
    extractor = Extractor(backbone("tiny-gpt2"), READINGS)
    rows = [np.arange(600)[rows] for rows, _ in extractor.windows(texts)]
    assert len(rows) == 3
    assert np.concatenate(rows).tolist() == list(range(600))
    assert_close(extractor(texts)[[0, 255, 256, 599]], np.stack([plain(texts[n]) for n in (0, 255, 256, 599)]))


def test_duplicates_are_computed_once(backbone, plain, batch_shapes):
    texts = ["b", "a", "b", "b", "c", "a"]
    latents = Extractor(backbone("tiny-gpt2"), READINGS)(texts)
    assert sum(rows for rows, _ in batch_shapes) == 3
    assert_close(latents, np.stack([plain(text) for text in texts]))


@pytest.mark.parametrize("budget", [1, 64, 300, 100_000])
def test_budget_changes_batches_but_not_vectors(budget, backbone, batch_shapes):
    latents = Extractor(backbone("tiny-gpt2"), READINGS, budget=budget)(TEXTS)
    assert all(rows * width <= budget or rows == 1 for rows, width in batch_shapes)
    assert_close(latents, Extractor(backbone("tiny-gpt2"), READINGS)(TEXTS))


def test_progress_counts_duplicates_too(backbone, monkeypatch):
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
MEMORY_TOKENS = 150
"""Number of tokens that fit into memory in these tests."""


@pytest.fixture(params=OUT_OF_MEMORY)
def failures(request, monkeypatch):
    """Sizes of the batches that did not fit into memory."""
    sizes = []
    real = Capture.__call__

    def limited_memory(capture, batch):
        if batch.ids.numel() > MEMORY_TOKENS:
            sizes.append(batch.ids.numel())
            raise OUT_OF_MEMORY[request.param]
        return real(capture, batch)

    monkeypatch.setattr(Capture, "__call__", limited_memory)
    return sizes


def test_out_of_memory_halves_the_batch(backbone, failures, plain, caplog):
    latents = Extractor(backbone("tiny-gpt2"), READINGS, budget=2_048)(TEXTS)
    assert failures
    assert "Out of memory" in caplog.text
    assert_close(latents, np.stack([plain(text) for text in TEXTS]))


def test_batches_stay_smaller_after_out_of_memory(backbone, failures):
    extractor = Extractor(backbone("tiny-gpt2"), READINGS, budget=600)
    extractor([f"Loaf {n}, and the next one" for n in range(400)])
    assert extractor.budget <= MEMORY_TOKENS
    assert len(failures) <= 10, "every batch ran out of memory again"


def test_single_text_that_does_not_fit_is_refused(backbone, failures):
    count = len(AutoTokenizer.from_pretrained(tiny_folder("tiny-gpt2"))(LONG[:350])["input_ids"])
    assert MEMORY_TOKENS < count <= 256
    with pytest.raises(InputError, match=f"One text of {count} tokens .* smaller max_length"):
        Extractor(backbone("tiny-gpt2"), READINGS)([LONG[:350], "short"])


def test_other_errors_are_not_treated_as_out_of_memory(backbone, monkeypatch):
    def broken(*_):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(Capture, "__call__", broken)
    with pytest.raises(RuntimeError, match="multiplied"):
        Extractor(backbone("tiny-gpt2"), READINGS)(["a", "b"])


@pytest.mark.parametrize("wrong", [None, 3, 2.5, float("nan"), b"bytes", ["nested"], np.float32(1)])
def test_item_that_is_not_a_text_is_named_by_index(wrong, backbone):
    with pytest.raises(InputError, match=f"Text 2 is {type(wrong).__name__}, not str"):
        Extractor(backbone("tiny-gpt2"), READINGS)(["a", "b", wrong, "c", wrong])


@pytest.mark.parametrize("wrong", ["\ud83d", "ok \udc4d ok", "\ud800" * 3])
def test_lone_surrogate_is_named_by_index_and_character(wrong, backbone):
    index = next(position for position, character in enumerate(wrong) if "\ud800" <= character <= "\udfff")
    with pytest.raises(InputError, match=f"Text 1 .* character {index}") as caught:
        Extractor(backbone("tiny-gpt2"), READINGS)(["a", wrong])
    assert isinstance(caught.value, Decoder2VecError)
    cleaned = wrong.encode("utf-8", "replace").decode()
    assert np.isfinite(Extractor(backbone("tiny-gpt2"), READINGS)([cleaned])).all()


def test_valid_texts_are_returned_unchanged():
    texts = ["a", "", "👍", "a\x00b", np.str_("numpy")]
    assert check_texts(texts) is texts


def test_chunked_text_is_the_weighted_mean_of_its_chunks(backbone, plain):
    extractor = Extractor(backbone("tiny-gpt2"), READINGS, max_length=70, on_overflow="chunk")
    latents = extractor(["short", LONG, "other"])
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
    assert_close(latents, np.stack([plain("short"), total / weight, plain("other")]))


@pytest.mark.parametrize("template", ["plain", "prompteol", "echo", "instruct"])
def test_truncated_text_has_the_vector_of_the_shorter_text(template, backbone):
    prompt_template = Template.of(template)
    extractor = Extractor(backbone("tiny-llama"), READINGS, prompt_template, max_length=64)
    prompt = extractor.tokeniser([LONG]).prompts[0]
    whole = Extractor(backbone("tiny-llama"), READINGS, prompt_template)
    ids = [whole.tokeniser([LONG[:length]]).prompts[0].ids for length in range(200)]
    assert prompt.ids in ids
    np.testing.assert_array_equal(extractor([LONG]), whole([LONG[: ids.index(prompt.ids)]]))


def test_truncated_texts_are_counted_and_warned_about(backbone, caplog):
    extractor = Extractor(backbone("tiny-gpt2"), READINGS, max_length=32)
    extractor(["a", LONG, "b", LONG + "!"])
    assert extractor.stats.overlong == 2
    assert re.search(r"2 text\(s\) over 32 tokens were truncated \(index 1, 3\); raise max_length", caplog.text)
    Extractor(backbone("tiny-gpt2"), READINGS)([LONG * 9])
    assert re.search(r"1 text\(s\) over 256 tokens were truncated \(index 0\); the model takes no more", caplog.text)


def test_no_warning_without_truncation(backbone, caplog):
    caplog.set_level(logging.WARNING)
    extractor = Extractor(backbone("tiny-gpt2"), READINGS)
    extractor(TEXTS)
    assert extractor.stats.overlong == 0
    assert caplog.text == ""


def test_truncation_warning_counts_duplicates(backbone, caplog):
    Extractor(backbone("tiny-gpt2"), READINGS, max_length=32)(["a", "a", "a", LONG])
    assert "(index 3)" in caplog.text


def test_overflow_error_counts_duplicates(backbone):
    with pytest.raises(InputError, match="Text 3 takes"):
        Extractor(backbone("tiny-gpt2"), READINGS, max_length=32, on_overflow="error")(["a", "a", "a", LONG])


def test_overflow_error_counts_from_the_first_window(backbone, monkeypatch):
    monkeypatch.setattr(extract, "_WINDOW_BYTES", 1)
    texts = [f"Loaf {n}" for n in range(300)] + [LONG]
    with pytest.raises(InputError, match="Text 300 takes"):
        Extractor(backbone("tiny-gpt2"), READINGS, max_length=32, on_overflow="error")(texts)


def test_stats_count_texts_and_tokens(backbone, batch_shapes):
    extractor = Extractor(backbone("tiny-gpt2"), READINGS, budget=200)
    extractor(TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder("tiny-gpt2"))
    tokens = sum(len(tokenizer(text)["input_ids"]) for text in TEXTS)
    padded = sum(rows * width for rows, width in batch_shapes)
    stats = extractor.stats
    assert (stats.texts, stats.tokens, stats.padded_tokens) == (len(TEXTS), tokens, padded)
    assert stats.padding == pytest.approx(1 - tokens / padded)
    assert stats.tokens_per_second == pytest.approx(tokens / stats.seconds)


def test_stats_add_up_and_empty_stats_have_zero_rates():
    total = EncodingStats()
    assert (total.padding, total.tokens_per_second) == (0.0, 0.0)
    total += EncodingStats(1, 2, 3, 4, 5.0)
    total += EncodingStats(1, 2, 3, 4, 5.0)
    assert total == EncodingStats(2, 4, 6, 8, 10.0)


def test_max_length_is_capped_at_the_context_length(backbone):
    assert Extractor(backbone("tiny-gpt2"), READINGS, max_length=10_000).max_length == 256
    assert Extractor(backbone("tiny-mamba"), READINGS, max_length=10_000).max_length == 10_000


def test_progress_is_reported_after_every_batch(backbone):
    counts = []
    texts = [f"text number {n} {'word ' * (n % 7)}" for n in range(40)]
    extractor = Extractor(backbone("tiny-llama"), [Reading(1, "mean")], budget=64)
    extractor(texts + texts[:3], counts.append)
    assert sum(counts) == 43
    assert len([count for count in counts if count]) > 10
