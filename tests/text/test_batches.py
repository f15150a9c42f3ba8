"""Tests of `decoder2vec.text.batches`: padding of prompts and planning of batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoder2vec.text.batches import ThreadPlan, collate, plan_batches, plan_for_threads
from decoder2vec.text.tokens import Prompt

PROMPTS = [Prompt([5, 6, 7, 8], 1, 4), Prompt([9], 0, 1), Prompt([2, 0, 2], 2, 3)]


def realistic_lengths(count, seed=0):
    """Log-normal token counts with median 25, between 1 and 512."""
    lengths = np.random.default_rng(seed).lognormal(np.log(25), 0.7, count)
    return np.clip(np.round(lengths), 1, 512).astype(int).tolist()


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_equals_that_of_the_tokenizer(side, backbone):
    tokenizer = backbone("tiny-llama").tokenizer
    theirs = tokenizer.pad({"input_ids": [prompt.ids for prompt in PROMPTS]}, padding_side=side, return_tensors="pt")
    ours = collate(PROMPTS, tokenizer.pad_token_id, side=side)
    assert torch.equal(ours.ids, theirs["input_ids"])
    assert torch.equal(ours.mask, theirs["attention_mask"])
    assert ours.padding == side


@pytest.mark.parametrize("side", ["right", "left"])
def test_pooled_spans_shift_with_left_padding(side):
    batch = collate(PROMPTS, 0, side=side)
    for row, prompt in enumerate(PROMPTS):
        assert batch.ids[row, batch.start[row] : batch.end[row]].tolist() == prompt.ids[prompt.start : prompt.end]


def test_pad_id_within_a_text_is_not_masked():
    assert collate(PROMPTS, 2).mask.tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0]]


def test_prompts_of_equal_length_have_no_padding():
    batch = collate([PROMPTS[0], PROMPTS[0]], 0)
    assert batch.padding == ""
    assert batch.mask.all()


def test_moving_a_batch_keeps_all_fields():
    batch = collate(PROMPTS, 0, side="left")
    moved = batch.to(torch.device("cpu"))
    assert moved.padding == "left"
    assert all(torch.equal(getattr(moved, name), getattr(batch, name)) for name in ("ids", "mask", "start", "end"))


@pytest.mark.parametrize("budget", [1, 100, 2_048, 65_536])
@pytest.mark.parametrize("count", [0, 1, 7, 2_500])
def test_each_row_is_in_one_batch_within_the_budget(count, budget):
    lengths = realistic_lengths(count)
    batches = list(plan_batches(lengths, budget))
    assert sorted(row for batch in batches for row in batch) == list(range(count))
    for batch in batches:
        area = len(batch) * max(lengths[row] for row in batch)
        assert area <= budget or len(batch) == 1


def test_longest_texts_come_first():
    lengths = realistic_lengths(2_500)
    order = [lengths[row] for batch in plan_batches(lengths, 2_048) for row in batch]
    assert order == sorted(lengths, reverse=True)


def test_texts_of_equal_length_keep_their_order():
    assert [row for batch in plan_batches([3] * 100, 30) for row in batch] == list(range(100))


@pytest.mark.parametrize("count", [2_000, 4_000, 16_384])
@pytest.mark.parametrize("seed", range(5))
def test_padding_is_at_most_3_percent_of_realistic_texts(count, seed):
    lengths = realistic_lengths(count, seed)
    computed = sum(len(batch) * max(lengths[row] for row in batch) for batch in plan_batches(lengths, 2_048))
    assert 1 - sum(lengths) / computed <= 0.03


def test_number_of_batches_is_bounded():
    lengths = realistic_lengths(4_000)
    batches = list(plan_batches(lengths, 2_048))
    assert len(batches) <= 3 * sum(lengths) / 2_048


def time_of_plan(plan, lengths, threads, overhead):
    """When the last thread is done, in tokens, if whichever is free first takes the next batch."""

    def tokens(rows):
        return len(rows) * max(lengths[row] for row in rows)

    free_at = [0] * threads
    for rows in plan.at_once:
        first = free_at.index(min(free_at))
        free_at[first] += tokens(rows) + overhead
    shared = {2: 2 * 0.9, 3: 3 * 0.9 ** np.log2(3), 16: 16 * 0.9**4}[threads]
    return max(free_at) + sum(tokens(rows) / shared + overhead for rows in plan.in_turn)


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 48, 2_500])
def test_plans_for_threads_hold_each_row_once_within_the_budget(count, threads):
    lengths, budget = realistic_lengths(count), 600
    plan = plan_for_threads(lengths, budget, threads, 24)
    batches = [*plan.at_once, *plan.in_turn]
    assert sorted(row for rows in batches for row in rows) == list(range(count))
    assert all(len(rows) * lengths[rows[0]] <= budget for rows in batches)
    assert all(lengths[rows[0]] == max(lengths[row] for row in rows) for rows in batches)


@pytest.mark.parametrize("threads", [2, 3, 16])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [2, 5, 48, 300])
def test_threads_are_not_done_later_than_by_simpler_plans(count, seed, threads):
    lengths, budget, overhead = realistic_lengths(count, seed), 2_048, 24
    time = time_of_plan(plan_for_threads(lengths, budget, threads, overhead), lengths, threads, overhead)
    batches = list(plan_batches(lengths, budget, overhead))
    whole = len(batches) - len(batches) % threads
    for simpler in (ThreadPlan([], batches), ThreadPlan(batches, []), ThreadPlan(batches[:whole], batches[whole:])):
        assert time <= time_of_plan(simpler, lengths, threads, overhead) + 1e-6
    assert time >= sum(lengths) / threads


def test_a_batch_that_is_left_over_is_shared_by_all_threads():
    plan = plan_for_threads([300, 300, 300], 2_048, 2, 24)
    assert (sorted(map(len, plan.at_once)), sorted(map(len, plan.in_turn))) == ([1, 1], [1])


def test_a_long_text_is_begun_first():
    plan = plan_for_threads([20] * 40 + [800], 2_048, 2, 24)
    assert plan.at_once[0] == [40]
    assert time_of_plan(plan, [20] * 40 + [800], 2, 24) < 900
