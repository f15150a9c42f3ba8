"""Batches: what is padded, and how texts of all lengths are put together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.text.batches import collate, plan_batches
from decoder2vec.text.tokens import Prompt

PROMPTS = [Prompt([5, 6, 7, 8], 1, 4), Prompt([9], 0, 1), Prompt([2, 0, 2], 2, 3)]


def realistic_lengths(count, seed=0):
    """Lognormal token counts, median 25, between 1 and 512."""
    lengths = np.random.default_rng(seed).lognormal(np.log(25), 0.7, count)
    return np.clip(np.round(lengths), 1, 512).astype(int).tolist()


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_equals_the_tokenizers_own(side, backbone):
    tokenizer = backbone("tiny-llama").tokenizer
    theirs = tokenizer.pad({"input_ids": [prompt.ids for prompt in PROMPTS]}, padding_side=side, return_tensors="pt")
    ours = collate(PROMPTS, tokenizer.pad_token_id, side=side)
    assert torch.equal(ours.ids, theirs["input_ids"])
    assert torch.equal(ours.mask, theirs["attention_mask"])
    assert ours.padding == side


@pytest.mark.parametrize("side", ["right", "left"])
def test_spans_move_with_the_padding(side):
    batch = collate(PROMPTS, 0, side=side)
    for row, prompt in enumerate(PROMPTS):
        assert batch.ids[row, batch.start[row] : batch.end[row]].tolist() == prompt.ids[prompt.start : prompt.end]


def test_a_pad_id_that_occurs_in_the_text_does_not_hide_it():
    assert collate(PROMPTS, 2).mask.tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0]]


def test_prompts_of_one_length_need_no_padding():
    batch = collate([PROMPTS[0], PROMPTS[0]], 0)
    assert batch.padding == ""
    assert batch.mask.all()


def test_moving_a_batch_keeps_everything():
    batch = collate(PROMPTS, 0, side="left")
    moved = batch.to(torch.device("cpu"))
    assert moved.padding == "left"
    assert all(torch.equal(getattr(moved, part), getattr(batch, part)) for part in ("ids", "mask", "start", "end"))


@pytest.mark.parametrize("budget", [1, 100, 2_048, 65_536])
@pytest.mark.parametrize("count", [0, 1, 7, 2_500])
def test_every_row_is_in_exactly_one_batch_and_no_batch_is_over_budget(count, budget):
    lengths = realistic_lengths(count)
    batches = list(plan_batches(lengths, budget))
    assert sorted(row for batch in batches for row in batch) == list(range(count))
    for batch in batches:
        area = len(batch) * max(lengths[row] for row in batch)
        assert area <= budget or len(batch) == 1


def test_the_longest_texts_come_first():
    lengths = realistic_lengths(2_500)
    order = [lengths[row] for batch in plan_batches(lengths, 2_048) for row in batch]
    assert order == sorted(lengths, reverse=True)


def test_texts_of_one_length_keep_their_order():
    assert [row for batch in plan_batches([3] * 100, 30) for row in batch] == list(range(100))


@pytest.mark.parametrize("count", [2_000, 4_000, 16_384])
@pytest.mark.parametrize("seed", range(5))
def test_at_most_three_percent_of_a_realistic_mix_is_padding(count, seed):
    lengths = realistic_lengths(count, seed)
    computed = sum(len(batch) * max(lengths[row] for row in batch) for batch in plan_batches(lengths, 2_048))
    assert 1 - sum(lengths) / computed <= 0.03


def test_batches_are_large_enough_to_be_worth_a_call():
    lengths = realistic_lengths(4_000)
    batches = list(plan_batches(lengths, 2_048))
    assert len(batches) <= 3 * sum(lengths) / 2_048
