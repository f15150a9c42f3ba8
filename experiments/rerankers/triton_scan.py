"""Mamba's selective scan as two Triton kernels: one program steps through the tokens of a row for a block of channels.

The states stay in registers, so the forward pass reads and writes each input and output once. The backward pass runs
the forward one again to write the states of one layer, and then goes through the tokens from the end.
Triton comes with torch for CUDA. `TRITON_INTERPRET=1` runs the kernels on a CPU, for tests.
"""

# ruff: noqa: ANN001, ANN202 - arguments of kernels are pointers and numbers without types

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS = 32
"""Channels of a program."""


@triton.jit
def _forward(
    x, step, decay, write, read, y, states, length, channels, n: tl.constexpr, block: tl.constexpr, keep: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    inside = channel < channels
    state = tl.arange(0, n)
    rates = tl.load(decay + channel[:, None] * n + state[None, :], mask=inside[:, None], other=0.0)
    h = tl.zeros([block, n], dtype=tl.float32)
    for t in range(length):
        token = row * length + t
        x_t = tl.load(x + token * channels + channel, mask=inside, other=0.0)
        step_t = tl.load(step + token * channels + channel, mask=inside, other=0.0)
        write_t = tl.load(write + token * n + state)
        read_t = tl.load(read + token * n + state)
        h = tl.exp(step_t[:, None] * rates) * h + (step_t * x_t)[:, None] * write_t[None, :]
        tl.store(y + token * channels + channel, tl.sum(h * read_t[None, :], axis=1), mask=inside)
        if keep:
            tl.store(states + (token * channels + channel[:, None]) * n + state[None, :], h, mask=inside[:, None])


@triton.jit
def _backward(
    x, step, decay, write, read, states, dy, dx, dstep, ddecay, dwrite, dread, length, channels, n: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    channel = part * block + tl.arange(0, block)
    inside = channel < channels
    state = tl.arange(0, n)
    rates = tl.load(decay + channel[:, None] * n + state[None, :], mask=inside[:, None], other=0.0)
    gradient = tl.zeros([block, n], dtype=tl.float32)
    of_rates = tl.zeros([block, n], dtype=tl.float32)
    last = row * length + length - 1
    h = tl.load(states + (last * channels + channel[:, None]) * n + state[None, :], mask=inside[:, None], other=0.0)
    for back in range(length):
        t = length - 1 - back
        token = row * length + t
        x_t = tl.load(x + token * channels + channel, mask=inside, other=0.0)
        step_t = tl.load(step + token * channels + channel, mask=inside, other=0.0)
        dy_t = tl.load(dy + token * channels + channel, mask=inside, other=0.0)
        write_t = tl.load(write + token * n + state)
        read_t = tl.load(read + token * n + state)
        before = states + (tl.maximum(token - 1, 0) * channels + channel[:, None]) * n + state[None, :]
        h_before = tl.where(token > row * length, tl.load(before, mask=inside[:, None], other=0.0), 0.0)
        partial = ((row * tl.num_programs(1) + part) * length + t) * n + state
        tl.store(dread + partial, tl.sum(dy_t[:, None] * h, axis=0))
        gradient += dy_t[:, None] * read_t[None, :]
        tl.store(dwrite + partial, tl.sum(gradient * (step_t * x_t)[:, None], axis=0))
        written = tl.sum(gradient * write_t[None, :], axis=1)
        gradient = gradient * tl.exp(step_t[:, None] * rates)
        of_exponent = gradient * h_before
        tl.store(dx + token * channels + channel, written * step_t, mask=inside)
        tl.store(dstep + token * channels + channel, written * x_t + tl.sum(of_exponent * rates, axis=1), mask=inside)
        of_rates += of_exponent * step_t[:, None]
        h = h_before
    tl.store(ddecay + (row * channels + channel[:, None]) * n + state[None, :], of_rates, mask=inside[:, None])


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, *inputs: Tensor) -> Tensor:
        inputs = tuple(value.contiguous() for value in inputs)
        context.save_for_backward(*inputs)
        return _run_forward(inputs)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, step, decay, *_ = inputs = context.saved_tensors
        (rows, length, channels), n = x.shape, decay.shape[1]
        states = x.new_empty(rows, length, channels, n)
        _run_forward(inputs, states)
        parts = triton.cdiv(channels, CHANNELS)
        dx, dstep = torch.empty_like(x), torch.empty_like(step)
        ddecay = x.new_empty(rows, channels, n)
        dwrite, dread = (x.new_empty(rows, parts, length, n) for _ in range(2))
        _backward[(rows, parts)](
            *inputs, states, gradients[0].contiguous(), dx, dstep, ddecay, dwrite, dread, length, channels, n, CHANNELS,
            num_warps=1,
        )  # fmt: skip
        return dx, dstep, ddecay.sum(0), dwrite.sum(1), dread.sum(1)


def _run_forward(inputs: tuple[Tensor, ...], states: Tensor | None = None) -> Tensor:
    """The outputs; the states of all tokens are written to `states`, if given."""
    x, n = inputs[0], inputs[2].shape[1]
    rows, length, channels = x.shape
    y = torch.empty_like(x)
    keep = states is not None
    grid = (rows, triton.cdiv(channels, CHANNELS))
    _forward[grid](*inputs, y, states if keep else y, length, channels, n, CHANNELS, keep, num_warps=1)
    return y


def triton_scan(x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor) -> Tensor:
    """The same as `state_space.chunked_scan`; the number of states must be a power of 2."""
    result: Tensor = _Scan.apply(x, step, decay, write, read)
    return result
