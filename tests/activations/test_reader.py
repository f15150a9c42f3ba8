"""Readings under several templates in one go, against a hand-written hook and against one extractor for each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.activations.extract import Extractor, Reader
from decoder2vec.config import Reading
from decoder2vec.errors import InputError
from decoder2vec.text.template import Template

PLAIN = Template("{text}")
ASKED = 'In a word, "{text}" is "'
TEXTS = ["The bread is in the oven.", "Rain", "", "Two dogs run along the beach towards the sea.", "Rain"]
MIXED = (
    Reading(4, "lasttoken", template=ASKED),
    Reading(2),
    Reading(1, "lasttoken", template=ASKED),
    Reading(4, "mean", True),
    Reading(0, "mean", template="{text}"),
)


def by_extractor(model, reading, template, texts=TEXTS):
    own = Template(reading.template or template.string)
    return Extractor(model, [Reading(reading.layer, reading.pooling, reading.normed)], own)(texts)[:, 0]


def assert_close(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


@torch.inference_mode()
def by_hook(model, prompt):
    """The last token after every block, of one prompt alone."""
    states = []

    def keep(module, args, output):
        states.append(output[0] if isinstance(output, tuple) else output)

    handles = [block.register_forward_hook(keep) for block in model.blocks]
    model.model(input_ids=model.tokenizer(prompt, return_tensors="pt")["input_ids"])
    for handle in handles:
        handle.remove()
    return np.stack([state.reshape(-1, model.dim)[-1].numpy() for state in states])


def test_the_last_token_of_each_block_equals_a_hand_written_hook(backbone):
    model = backbone("tiny-llama")
    found = Reader(model, [Reading(layer, "lasttoken", template=ASKED) for layer in (1, 2, 3, 4)], PLAIN)(TEXTS)
    for row, text in enumerate(TEXTS):
        assert_close(found[row], by_hook(model, ASKED.replace("{text}", text)))


def test_readings_keep_their_places_whatever_their_templates(backbone):
    found = Reader(backbone("tiny-llama"), MIXED, PLAIN)(TEXTS)
    assert found.shape == (5, 5, 32) and found.dtype == np.float32
    for column, reading in enumerate(MIXED):
        assert_close(found[:, column], by_extractor(backbone("tiny-llama"), reading, PLAIN))


def test_a_reading_without_a_template_takes_the_readers_own(backbone):
    found = Reader(backbone("tiny-llama"), [Reading(3)], Template("echo {text}"))(TEXTS)
    assert_close(found[:, 0], by_extractor(backbone("tiny-llama"), Reading(3), Template("echo {text}")))


def test_the_model_runs_once_for_each_template(backbone):
    assert Reader(backbone("tiny-llama"), MIXED, PLAIN).n_passes == 2, "an empty template and its own string are one"
    assert Reader(backbone("tiny-llama"), MIXED, Template("x {text}")).n_passes == 3
    assert Reader(backbone("tiny-llama"), [Reading(1), Reading(2)], PLAIN).n_passes == 1


def test_progress_counts_every_text_once_for_each_pass(backbone):
    steps = []
    Reader(backbone("tiny-llama"), MIXED, PLAIN)(TEXTS, steps.append)
    assert sum(steps) == 2 * len(TEXTS)


def test_the_tally_counts_a_text_once_and_its_tokens_in_every_pass(backbone):
    model = backbone("tiny-llama")
    reader, alone = (
        Reader(model, MIXED, PLAIN),
        [Extractor(model, [Reading(1)], Template(t)) for t in (ASKED, "{text}")],
    )
    reader(TEXTS)
    for extractor in alone:
        extractor(TEXTS)
    assert reader.stats.texts == alone[0].stats.texts == 4, "the same text twice is computed once"
    assert reader.stats.tokens == sum(extractor.stats.tokens for extractor in alone)


def test_a_prefix_stands_before_every_template(backbone):
    found = Reader(backbone("tiny-llama"), MIXED, PLAIN, prefix="Query: ")(TEXTS)
    for column, reading in enumerate(MIXED):
        before = Template("Query: " + (reading.template or "{text}"))
        bare = Reading(reading.layer, reading.pooling, reading.normed)
        assert_close(found[:, column], by_extractor(backbone("tiny-llama"), bare, before))


def test_a_prompt_with_a_slot_cannot_replace_several_templates(backbone):
    with pytest.raises(InputError, match="several prompts"):
        Reader(backbone("tiny-llama"), MIXED, PLAIN, prefix="Query: {text}")
    replaced = Reader(backbone("tiny-llama"), [Reading(2)], PLAIN, prefix="Query: {text}")
    assert_close(replaced(TEXTS)[:, 0], by_extractor(backbone("tiny-llama"), Reading(2), Template("Query: {text}")))


def test_a_template_without_a_slot_is_refused(backbone):
    with pytest.raises(InputError, match=r"must contain \{text\}"):
        Reader(backbone("tiny-llama"), [Reading(2, template="no slot here")], PLAIN)


def test_no_texts_give_no_vectors(backbone):
    assert Reader(backbone("tiny-llama"), MIXED, PLAIN)([]).shape == (0, 5, 32)
