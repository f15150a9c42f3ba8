"""Tests of `Reader`: readings under several templates, against a hook and against one extractor each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations.extract import Extractor, Reader
from decoder2vec.config import Reading
from decoder2vec.errors import InputError
from decoder2vec.text.template import Template

PLAIN = Template("{text}")
QUESTION = 'In a word, "{text}" is "'
TEXTS = ["The bread is in the oven.", "Rain", "", "Two dogs run along the beach towards the sea.", "Rain"]
MIXED = (
    Reading(4, "lasttoken", template=QUESTION),
    Reading(2),
    Reading(1, "lasttoken", template=QUESTION),
    Reading(4, "mean", True),
    Reading(0, "mean", template="{text}"),
)


def by_extractor(model, reading, template, texts=TEXTS):
    prompt = Template(reading.template or template.string)
    return Extractor(model, [Reading(reading.layer, reading.pooling, reading.normed)], prompt)(texts)[:, 0]


def assert_close(latents, expected, tolerance=1e-5):
    assert latents.shape == expected.shape
    assert np.abs(latents - expected).max() <= tolerance * np.abs(expected).max()


@torch.inference_mode()
def by_hook(model, prompt):
    """Last token after every block, of one prompt."""
    states = []

    def save_output(module, args, output):
        states.append(output[0] if isinstance(output, tuple) else output)

    handles = [block.register_forward_hook(save_output) for block in model.blocks]
    model.model(input_ids=model.tokenizer(prompt, return_tensors="pt")["input_ids"])
    for handle in handles:
        handle.remove()
    return np.stack([state.reshape(-1, model.dim)[-1].numpy() for state in states])


def test_last_token_equals_a_hand_written_hook(backbone):
    model = backbone("tiny-llama")
    latents = Reader(model, [Reading(layer, "lasttoken", template=QUESTION) for layer in (1, 2, 3, 4)], PLAIN)(TEXTS)
    for row, text in enumerate(TEXTS):
        assert_close(latents[row], by_hook(model, QUESTION.replace("{text}", text)))


def test_readings_of_several_templates_keep_their_order(backbone):
    latents = Reader(backbone("tiny-llama"), MIXED, PLAIN)(TEXTS)
    assert latents.shape == (5, 5, 32) and latents.dtype == np.float32
    for column, reading in enumerate(MIXED):
        assert_close(latents[:, column], by_extractor(backbone("tiny-llama"), reading, PLAIN))


def test_reading_without_a_template_uses_the_default(backbone):
    latents = Reader(backbone("tiny-llama"), [Reading(3)], Template("echo {text}"))(TEXTS)
    assert_close(latents[:, 0], by_extractor(backbone("tiny-llama"), Reading(3), Template("echo {text}")))


def test_model_runs_once_per_template(backbone):
    assert Reader(backbone("tiny-llama"), MIXED, PLAIN).n_passes == 2, "an empty template is the default template"
    assert Reader(backbone("tiny-llama"), MIXED, Template("x {text}")).n_passes == 3
    assert Reader(backbone("tiny-llama"), [Reading(1), Reading(2)], PLAIN).n_passes == 1


def test_progress_counts_each_text_once_per_pass(backbone):
    steps = []
    Reader(backbone("tiny-llama"), MIXED, PLAIN)(TEXTS, steps.append)
    assert sum(steps) == 2 * len(TEXTS)


def test_stats_count_texts_once_and_tokens_per_pass(backbone):
    model = backbone("tiny-llama")
    reader = Reader(model, MIXED, PLAIN)
    extractors = [Extractor(model, [Reading(1)], Template(t)) for t in (QUESTION, "{text}")]
    reader(TEXTS)
    for extractor in extractors:
        extractor(TEXTS)
    assert reader.stats.texts == extractors[0].stats.texts == 4, "duplicates are computed once"
    assert reader.stats.tokens == sum(extractor.stats.tokens for extractor in extractors)


def test_prefix_is_put_in_front_of_every_template(backbone):
    latents = Reader(backbone("tiny-llama"), MIXED, PLAIN, prefix="Query: ")(TEXTS)
    for column, reading in enumerate(MIXED):
        prefixed = Template("Query: " + (reading.template or "{text}"))
        bare = Reading(reading.layer, reading.pooling, reading.normed)
        assert_close(latents[:, column], by_extractor(backbone("tiny-llama"), bare, prefixed))


def test_prefix_with_a_slot_needs_a_single_template(backbone):
    with pytest.raises(InputError, match="several prompts"):
        Reader(backbone("tiny-llama"), MIXED, PLAIN, prefix="Query: {text}")
    replaced = Reader(backbone("tiny-llama"), [Reading(2)], PLAIN, prefix="Query: {text}")
    assert_close(replaced(TEXTS)[:, 0], by_extractor(backbone("tiny-llama"), Reading(2), Template("Query: {text}")))


def test_template_without_a_slot_is_refused(backbone):
    with pytest.raises(InputError, match=r"must contain \{text\}"):
        Reader(backbone("tiny-llama"), [Reading(2, template="no slot here")], PLAIN)


def test_no_texts_give_no_vectors(backbone):
    assert Reader(backbone("tiny-llama"), MIXED, PLAIN)([]).shape == (0, 5, 32)
