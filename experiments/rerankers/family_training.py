"""Pre-trains a decoder for some seconds, and trains it as a reranker for some more."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bm25_groups import Groups
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

sys.path.append(str(Path(__file__).parents[1]))
from pretraining import autocast, mean_loss, shuffled_batches, train_step

LENGTH = 256
"""Tokens of a sequence in pre-training, and the most that a pair may have."""
TEMPLATE = "{document}\n\n{query}"
"""Nothing of it is one token with a text, so that the tokens of texts can be put together."""
QUERY_TOKENS = 96
_HELD_OUT = 256
"""Sequences that are not pre-trained on."""
_FIRST_EVALUATION = 1_000_000
"""Tokens before the first evaluation; the next follow at every doubling."""
_BATCHES_SORTED = 32
"""Groups of this many batches are sorted by length together, so that little is padded."""


def wait(device: str) -> None:
    """Wait for the GPU, so that the clock counts finished work."""
    if device == "cuda":
        torch.cuda.synchronize()


def new_optimizer(parameters: Sequence[tuple[str, nn.Parameter]], decay: float, device: str) -> torch.optim.Optimizer:
    """AdamW; only matrices decay, and not the rates of a Mamba."""
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, weight in parameters:
        groups[weight.ndim > 1 and "A_log" not in name].append(weight)
    options: list[dict[str, Any]] = [
        {"params": groups[True], "weight_decay": decay},
        {"params": groups[False], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(options, betas=(0.9, 0.95), fused=device == "cuda")


def trapezoid(passed: float) -> float:
    """The learning rate as a share of its peak: up to 2 % of the time it rises, from 70 % on it falls to zero.

    It is constant between, so that the losses of families after equal tokens can be compared, too.
    """
    return max(0.0, min(1.0, (passed + 1e-3) / 0.02, (1 - passed) / 0.3))


def pretrain_model(
    model: Any, sequences: Tensor, *, seconds: float, batch: int, rate: float, seed: int
) -> dict[str, Any]:
    """Train on the next token for some seconds, evaluations not counted; returns a summary."""
    device = model.device.type
    held_out, batches = sequences[:_HELD_OUT], shuffled_batches(sequences[_HELD_OUT:], batch, seed)
    optimizer = new_optimizer(list(model.named_parameters()), 0.1, device)
    model.train()
    with autocast(device):  # kernels are compiled before the clock starts
        model(input_ids=sequences[:batch], labels=sequences[:batch], use_cache=False).loss.backward()
    wait(device)
    step, seen, passed, milestone = 0, 0, 0.0, _FIRST_EVALUATION
    losses: dict[int, float] = {}
    started = time.perf_counter()
    while passed < seconds:
        train_step(model, optimizer, next(batches), rate * trapezoid(passed / seconds))
        step, seen = step + 1, seen + batch * sequences.shape[1]
        if step % 10 == 0:
            wait(device)
        passed = time.perf_counter() - started
        if seen >= milestone:
            wait(device)
            paused = time.perf_counter()
            losses[seen] = round(_held_out_loss(model, held_out, device), 4)
            milestone *= 2
            started += time.perf_counter() - paused
    wait(device)
    passed = time.perf_counter() - started
    return {
        "steps": step,
        "tokens": seen,
        "epochs": round(step * batch / max(1, len(sequences) - _HELD_OUT), 2),
        "seconds": round(passed, 1),
        "tokens_per_second": round(seen / passed),
        "held_out_loss": round(_held_out_loss(model, held_out, device), 4),
        "held_out_loss_by_tokens": losses,
    }


def _held_out_loss(model: Any, held_out: Tensor, device: str) -> float:
    model.eval()
    loss = mean_loss(model, held_out, device)
    model.train()
    return loss


# --- reranking --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairPrompts:
    """Puts the tokens of texts together to prompts: the document, cut if needed, then the query and the end token."""

    tokens: list[NDArray[np.int32]]
    """Of each text."""
    between: NDArray[np.int32]
    closing: int

    @classmethod
    def of(cls, tokenizer: Any, texts: Sequence[str]) -> PairPrompts:
        """Tokenise the texts."""
        tokens: list[NDArray[np.int32]] = []
        for start in range(0, len(texts), 10_000):
            ids = tokenizer(list(texts[start : start + 10_000]), add_special_tokens=False)["input_ids"]
            tokens += [np.array(row, np.int32) for row in ids]
        between = tokenizer(TEMPLATE.format(document="", query=""), add_special_tokens=False)["input_ids"]
        return cls(tokens, np.array(between, np.int32), tokenizer.eos_token_id)

    def __call__(self, query: int, document: int) -> NDArray[np.int32]:
        """The tokens of a prompt."""
        asked = self.tokens[query][:QUERY_TOKENS]
        room = LENGTH - len(asked) - len(self.between) - 1
        return np.concatenate([self.tokens[document][:room], self.between, asked, [self.closing]]).astype(np.int32)


@dataclass(frozen=True)
class Batch:
    """Prompts of some groups, padded on the right."""

    ids: Tensor
    """[groups * (1 + negatives), tokens]"""
    last: Tensor
    """Index of the last token of each prompt."""
    groups: int
    tokens: int
    """Without padding."""


def draw_batches(groups: Groups, prompts: PairPrompts, size: int, seed: int, padding: int) -> Iterator[Batch]:
    """Endless batches of `size` groups of similar length, in an order that depends on nothing but the seed."""
    rng = np.random.default_rng(seed)
    lengths = np.array([len(tokens) for tokens in prompts.tokens])
    widths = lengths[groups.rows[:, 0]] + lengths[groups.rows[:, 1:]].max(axis=1)
    while True:
        order = rng.permutation(len(groups.rows))
        for begin in range(0, len(order), size * _BATCHES_SORTED):
            section = order[begin : begin + size * _BATCHES_SORTED]
            section = section[np.argsort(widths[section], kind="stable")]
            parts = [section[at : at + size] for at in range(0, len(section), size)]
            for part in rng.permutation(len(parts)):
                yield _pad([prompts(row[0], document) for row in groups.rows[parts[part]] for document in row[1:]],
                           len(parts[part]), padding)  # fmt: skip


def _pad(prompts: list[NDArray[np.int32]], groups: int, padding: int) -> Batch:
    lengths = np.array([len(prompt) for prompt in prompts])
    width = math.ceil(lengths.max() / 16) * 16  # few different shapes
    ids = np.full((len(prompts), width), padding, np.int64)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    return Batch(torch.from_numpy(ids), torch.from_numpy(lengths - 1), groups, int(lengths.sum()))


def group_loss(model: Any, head: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy of the positives among their own negatives.

    Padding needs no mask: it stands on the right, and nothing flows back from there.
    """
    device = head.device
    with autocast(device.type):
        states = model(input_ids=batch.ids.to(device), use_cache=False).last_hidden_state
    last = states[torch.arange(len(states), device=device), batch.last.to(device)]
    scores = (last.float() @ head).view(batch.groups, -1)
    return functional.cross_entropy(scores, torch.zeros(batch.groups, dtype=torch.long, device=device))


def train_reranker(
    model: Any, batches: Iterator[Batch], *, seconds: float, max_groups: int, rate: float, seed: int
) -> tuple[Tensor, dict[str, Any]]:
    """Train all weights of a decoder without its language-model head, and a linear score.

    Args:
        model: The decoder.
        batches: Groups.
        seconds: Training ends then, or
        max_groups: after this many groups; the learning rate falls to zero by the earlier of both.
        rate: Peak of the learning rate.
        seed: Of the first score.

    Returns:
        [dim] weights of the score, and a summary.
    """
    device = model.device.type
    generator = torch.Generator().manual_seed(seed)
    head = nn.Parameter((torch.randn(model.config.hidden_size, generator=generator) * 0.01).to(model.device))
    optimizer = new_optimizer([*model.named_parameters(), ("head", head)], 0.01, device)
    model.train()
    group_loss(model, head, next(batches)).backward()  # kernels are compiled before the clock starts
    wait(device)
    step, n_groups, n_tokens, progress = 0, 0, 0, 0.0
    losses: list[Tensor] = []
    started = time.perf_counter()
    while progress < 1:
        batch = next(batches)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 50, 1 - progress)
        optimizer.zero_grad(set_to_none=True)
        loss = group_loss(model, head, batch)
        loss.backward()
        nn.utils.clip_grad_norm_([*model.parameters(), head], 1.0)
        optimizer.step()
        losses.append(loss.detach())
        step, n_groups, n_tokens = step + 1, n_groups + batch.groups, n_tokens + batch.tokens
        if step % 10 == 0:
            wait(device)
        progress = max((time.perf_counter() - started) / seconds, n_groups / max_groups)
    wait(device)
    passed = time.perf_counter() - started
    summary = {
        "steps": step,
        "groups": n_groups,
        "tokens": n_tokens,
        "seconds": round(passed, 1),
        "tokens_per_second": round(n_tokens / passed),
        "loss": round(float(torch.stack(losses[-100:]).mean()), 4),
    }
    return head.detach(), summary
