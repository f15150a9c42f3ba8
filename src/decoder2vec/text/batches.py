"""Batches of prompts: planned by length under a token budget and padded to one width, or packed into one row."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch

from decoder2vec.backbone.batch import Packing, PooledChunks, TokenBatch
from decoder2vec.text.tokens import Prompt

_SHARED = 0.9
"""Speed of two threads that compute a batch together, to that of two with a batch each; of four it is the square."""
_MORE_ROUNDS = 3
"""Up to so many more batches for each thread than memory asks for are tried."""


def collate(prompts: Sequence[Prompt], pad_token_id: int, *, side: str = "right") -> TokenBatch:
    """Pad prompts to one width.

    Args:
        prompts: The prompts of the batch.
        pad_token_id: The id to pad with.
        side: "right" or "left". The package always pads on the right; left padding exists for comparison.
    """
    width = max(len(prompt.ids) for prompt in prompts)
    ids = np.full((len(prompts), width), pad_token_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    spans = np.zeros((2, len(prompts)), dtype=np.int64)
    shifts = [width - len(prompt.ids) if side == "left" else 0 for prompt in prompts]
    for row, (prompt, shift) in enumerate(zip(prompts, shifts, strict=True)):
        ids[row, shift : shift + len(prompt.ids)] = prompt.ids
        mask[row, shift : shift + len(prompt.ids)] = 1
        spans[:, row] = prompt.start + shift, prompt.end + shift
    start, end = torch.from_numpy(spans)
    chunks = _pooled_chunks(prompts, range(len(prompts)), shifts)
    padding = "" if mask.all() else side
    return TokenBatch(torch.from_numpy(ids), torch.from_numpy(mask), start, end, padding, chunks=chunks)


def pack(prompts: Sequence[Prompt]) -> TokenBatch:
    """Put prompts into one row, one after the other."""
    lengths = [len(prompt.ids) for prompt in prompts]
    ids = np.fromiter(chain.from_iterable(prompt.ids for prompt in prompts), np.int64, sum(lengths))[None]
    begins = (np.cumsum(lengths) - lengths).tolist()
    spans = np.array([(prompt.start, prompt.end) for prompt in prompts]).T + begins
    start, end = torch.from_numpy(spans)
    row = torch.from_numpy(ids)
    chunks = _pooled_chunks(prompts, [0] * len(prompts), begins)
    return TokenBatch(row, torch.ones_like(row), start, end, packing=Packing.of(lengths), chunks=chunks)


def _pooled_chunks(prompts: Sequence[Prompt], rows: Sequence[int], shifts: Sequence[int]) -> PooledChunks | None:
    """Where the chunks of the prompts are in a batch, given the row of each prompt and where it begins in the row."""
    if not any(prompt.chunks for prompt in prompts):
        return None
    tokens = [
        (row, shift + position)
        for prompt, row, shift in zip(prompts, rows, shifts, strict=True)
        for chunk in prompt.chunks
        for position in chunk
    ]
    lengths = [len(chunk) for prompt in prompts for chunk in prompt.chunks]
    row_of, position = torch.tensor(tokens).T
    return PooledChunks(row_of, position, torch.tensor([0, *lengths]).cumsum(0))


def plan_rows(lengths: Sequence[int], budget: int, *, even: bool = False) -> Iterator[list[int]]:
    """Yield consecutive texts that are packed into a row of at most `budget` tokens; a longer text is alone in one.

    Args:
        lengths: Number of tokens of each text.
        budget: Maximum number of tokens in a row.
        even: Make rows of about the same size, instead of full ones and a small one at the end.
    """
    if even and lengths:
        total = sum(lengths)
        budget = min(budget, -(-total // -(-total // budget)) + max(lengths))
    row: list[int] = []
    n_tokens = 0
    for index, length in enumerate(lengths):
        if row and n_tokens + length > budget:
            yield row
            row, n_tokens = [], 0
        row.append(index)
        n_tokens += length
    if row:
        yield row


def plan_batches(lengths: Sequence[int], budget: int, overhead: int = 8) -> Iterator[list[int]]:
    """Yield the rows of each batch, longest texts first so that a batch too large for memory fails at once.

    Texts sorted by length are cut into batches where the total cost is lowest: padding costs tokens, and so does each
    further batch.

    Args:
        lengths: Number of tokens of each text.
        budget: Maximum number of tokens in a batch, padding included.
        overhead: Fixed cost of one more batch, in tokens.
    """
    rows_by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        rows_by_length.setdefault(length, []).append(row)
    widths = sorted(rows_by_length, reverse=True)
    begin = 0
    for end in _cheapest_cuts(widths, [len(rows_by_length[width]) for width in widths], budget, overhead):
        rows = [row for width in widths[begin:end] for row in rows_by_length[width]]
        size = max(1, budget // widths[begin])
        yield from (rows[first : first + size] for first in range(0, len(rows), size))
        begin = end


class ThreadPlan(NamedTuple):
    """Batches for several threads."""

    at_once: list[list[int]]
    """The rows of batches that one thread computes each, in order."""
    in_turn: list[list[int]]
    """The rows of batches that all threads then compute together, one after the other."""


def plan_for_threads(lengths: Sequence[int], budget: int, threads: int, overhead: int = 8) -> ThreadPlan:
    """Return the batches with which the last thread is done soonest.

    Args:
        lengths: Number of tokens of each text.
        budget: Maximum number of tokens in a batch, padding included.
        threads: Number of threads.
        overhead: Fixed cost of one more batch, in tokens.
    """
    total, widest = sum(lengths), max(lengths)
    rounds = -(-total // (threads * budget))
    # where each thread has many batches, they come out even by themselves
    tried = range(rounds, rounds + _MORE_ROUNDS + 1) if rounds <= _MORE_ROUNDS else [rounds]
    even = [-(-total // (threads * per_thread)) for per_thread in tried]
    limits = {min(budget, limit + slack) for limit in even for slack in (0, widest)} | {budget}
    plans = []
    for limit in sorted(limits):
        planned = [(len(rows) * lengths[rows[0]], rows) for rows in plan_batches(lengths, limit, overhead)]
        for batches in (planned, sorted(planned, reverse=True)):  # the longest texts first, or the largest batches
            time, n_at_once = _best_division([n_tokens for n_tokens, _ in batches], threads, overhead)
            rows = [rows for _, rows in batches]
            plans.append((time, ThreadPlan(rows[:n_at_once], rows[n_at_once:])))
    return min(plans, key=itemgetter(0))[1]


def _best_division(n_tokens: Sequence[int], threads: int, overhead: int) -> tuple[float, int]:
    """(time, count): how many of the first batches to compute at once, and the time of all batches, in tokens."""
    speed = threads * _SHARED ** math.log2(threads)
    in_turn = sum(n_tokens) / speed + len(n_tokens) * overhead
    busy_until = [0.0] * threads
    best = in_turn, 0
    for index, tokens in enumerate(n_tokens):
        in_turn -= tokens / speed + overhead
        heapq.heapreplace(busy_until, busy_until[0] + tokens + overhead)  # whichever thread is free first
        best = min(best, (max(busy_until) + in_turn, index + 1))
    return best


def _cheapest_cuts(widths: Sequence[int], counts: Sequence[int], budget: int, overhead: int) -> list[int]:
    """Ends of the cheapest groups of neighbouring widths, by dynamic programming; a group is padded to its widest."""
    best = [0.0] + [float("inf")] * len(widths)
    previous = [0] * (len(widths) + 1)
    for begin, width in enumerate(widths):
        per_batch = max(1, budget // width)
        rows = 0
        for end in range(begin + 1, len(widths) + 1):
            rows += counts[end - 1]
            cost = best[begin] + rows * width + overhead * -(-rows // per_batch)
            if cost < best[end]:
                best[end], previous[end] = cost, begin
            if rows > per_batch and widths[end - 1] * 2 < width:  # no wider group can be cheaper
                break
    cuts = [len(widths)]
    while previous[cuts[-1]]:
        cuts.append(previous[cuts[-1]])
    return cuts[::-1] if widths else []
