"""Mamba and Mamba-2 mixers that train fast without the CUDA kernels of mamba-ssm and causal-conv1d.

transformers without those kernels steps through a Mamba token by token in Python. Inside `fast_mixers()` both mixers
compute the same in other ways: Mamba's selective scan in one Triton kernel on a GPU (`triton_scan.py`) and in chunks
elsewhere, Mamba-2's as matrix products within chunks (the "state space dual" of its paper), and the convolution as a
sum of shifted products. Calls with a cache are left to transformers.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

DUAL_CHUNK = 64
"""Tokens of a Mamba-2 chunk: within it the work is quadratic."""


# --- Mamba: a scan with a decay for each channel and state ------------------------------------------------------------


def chunked_recurrence(decay: Tensor, inputs: Tensor) -> Tensor:
    """h_t = decay_t h_(t-1) + inputs_t along dimension 1, in about 2 sqrt(length) steps.

    All chunks of sqrt(length) tokens run side by side from zero; then each adds what the one before it hands over.
    """
    length = decay.shape[1]
    size = math.isqrt(max(0, length - 1)) + 1
    padding = [0, 0] * (decay.ndim - 2) + [0, -length % size]
    states = functional.pad(inputs, padding).unflatten(1, (-1, size)).clone()
    carried = functional.pad(decay, padding).unflatten(1, (-1, size)).clone()
    for step in range(1, size):
        states[:, :, step] += carried[:, :, step] * states[:, :, step - 1]
        carried[:, :, step] *= carried[:, :, step - 1]
    for chunk in range(1, states.shape[1]):
        states[:, chunk] += carried[:, chunk] * states[:, chunk - 1, -1:]
    return states.flatten(1, 2)[:, :length]


class _Recurrence(torch.autograd.Function):
    """`chunked_recurrence` with a gradient, which is the same recurrence from the end to the beginning."""

    @staticmethod
    def forward(context: Any, decay: Tensor, inputs: Tensor) -> Tensor:
        states = chunked_recurrence(decay, inputs)
        context.save_for_backward(decay, states)
        return states

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        decay, states = context.saved_tensors
        of_next = torch.cat([decay[:, 1:], torch.zeros_like(decay[:, :1])], dim=1)
        gradient = chunked_recurrence(of_next.flip(1), gradients[0].flip(1)).flip(1)
        before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], dim=1)
        return gradient * before, gradient


def chunked_scan(x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor) -> Tensor:
    """Mamba's selective scan in plain torch: h_t = exp(step_t decay) h_(t-1) + step_t write_t x_t, y_t = read_t h_t.

    Args:
        x: [rows, tokens, channels] inputs, float32 like all others.
        step: [rows, tokens, channels] time steps, positive.
        decay: [channels, states] negative rates, A in the paper.
        write: [rows, tokens, states], B in the paper.
        read: [rows, tokens, states], C in the paper.

    Returns:
        [rows, tokens, channels] outputs.
    """
    states = _Recurrence.apply(torch.exp(step[..., None] * decay), (step * x)[..., None] * write[:, :, None])
    return torch.einsum("bten,btn->bte", states, read)


def relative_gap(scan: Callable[..., Tensor], device: str) -> float:
    """Largest relative difference of a scan and its gradients from `chunked_scan`, on small random inputs."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 37, 80), (2, 37, 80), (80, 16), (2, 37, 16), (2, 37, 16)]
    values = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    values[1], values[2] = functional.softplus(values[1]), -values[2].exp()
    weights = torch.randn(shapes[0], generator=generator).to(device)

    def evaluate(function: Callable[..., Tensor]) -> list[Tensor]:
        inputs = [value.clone().requires_grad_() for value in values]
        result = function(*inputs)
        (result * weights).sum().backward()
        return [result.detach(), *(value.grad for value in inputs if value.grad is not None)]

    pairs = zip(evaluate(scan), evaluate(chunked_scan), strict=True)
    return max(float((ours - plain).abs().max() / plain.abs().max()) for ours, plain in pairs)


@functools.cache
def best_scan(device: str) -> tuple[str, Callable[..., Tensor]]:
    """The name and the function of the fastest scan that is proved on this device."""
    if device != "cuda":
        return "chunked torch", chunked_scan
    try:
        from triton_scan import triton_scan

        if (gap := relative_gap(triton_scan, device)) < 1e-4:
            return "triton", triton_scan
        reason = f"it differs by {gap:.1e}"
    except Exception as error:  # whatever a compiler may raise: the slower way is right, too
        reason = f"{type(error).__name__}: {error}"
    sys.stderr.write(f"The Triton scan is not used: {reason}\n")
    return "chunked torch", chunked_scan


# --- Mamba-2: one decay for each head ---------------------------------------------------------------------------------


def state_space_dual(x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor) -> Tensor:
    """Mamba-2's scan as matrix products: quadratic within chunks, a recurrence between them.

    Args:
        x: [rows, tokens, heads, size] inputs.
        step: [rows, tokens, heads] time steps, positive, float32.
        decay: [heads] negative rates, float32.
        write: [rows, tokens, states], shared by all heads.
        read: [rows, tokens, states], likewise.

    Returns:
        [rows, tokens, heads, size] outputs in float32.
    """
    length, size = x.shape[1], min(DUAL_CHUNK, x.shape[1])

    def chunks(values: Tensor) -> Tensor:
        padding = [0, 0] * (values.ndim - 2) + [0, -length % size]
        return functional.pad(values, padding).unflatten(1, (-1, size))

    scaled = chunks(x * step[..., None].to(x.dtype)).transpose(2, 3)  # [rows, chunks, heads, tokens, size]
    write, read = chunks(write)[:, :, None], chunks(read)[:, :, None]  # [rows, chunks, 1, tokens, states]
    passed = chunks(step * decay).cumsum(2).transpose(2, 3)  # [rows, chunks, heads, tokens]
    later = torch.ones(size, size, dtype=torch.bool, device=x.device).triu(1)
    between = (passed[..., :, None] - passed[..., None, :]).masked_fill(later, -torch.inf).exp()
    within = (read @ write.transpose(3, 4)).float() * between
    result = (within.to(x.dtype) @ scaled).float()
    to_end = (passed[..., -1:] - passed).exp()[..., None]
    gathered = write.transpose(3, 4) @ (scaled * to_end.to(x.dtype))  # [rows, chunks, heads, states, size]
    state = torch.zeros_like(gathered[:, 0], dtype=torch.float32)
    begins = []
    for chunk in range(gathered.shape[1]):
        begins.append(state)
        state = passed[:, chunk, :, -1, None, None].exp() * state + gathered[:, chunk].float()
    carried = read @ torch.stack(begins, 1).to(x.dtype)
    result = result + carried.float() * passed.exp()[..., None]
    return result.transpose(2, 3).flatten(1, 2)[:, :length]


# --- mixers -----------------------------------------------------------------------------------------------------------


def causal_convolution(values: Tensor, convolution: nn.Conv1d) -> Tensor:
    """[rows, tokens, channels] values convolved along the tokens, each channel on its own."""
    kernel = convolution.weight.squeeze(1).to(values.dtype)
    width, length = kernel.shape[1], values.shape[1]
    padded = functional.pad(values, (0, 0, width - 1, 0))
    result = sum(padded[:, shift : shift + length] * kernel[:, shift] for shift in range(width))
    assert isinstance(result, Tensor)
    return result if convolution.bias is None else result + convolution.bias.to(values.dtype)


def _masked(states: Tensor, mask: Tensor | None) -> Tensor:
    return states if mask is None or mask.ndim != 2 else states * mask[:, :, None].to(states.dtype)


def _mamba(mixer: Any, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
    """The output of a `MambaMixer`."""
    values, gate = mixer.in_proj(_masked(hidden_states, mask)).chunk(2, dim=-1)
    values = _masked(mixer.act(causal_convolution(values, mixer.conv1d)), mask)
    sizes = [mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size]
    step, write, read = mixer.x_proj(values).split(sizes, dim=-1)
    decay = -torch.exp(mixer.A_log.float())
    with torch.autocast(values.device.type, enabled=False):
        x = values.float()
        step = functional.linear(step, mixer.dt_proj.weight.to(step.dtype)).float() + mixer.dt_proj.bias.float()
        _, scan = best_scan(values.device.type)
        result = scan(x, functional.softplus(step), decay, write.float(), read.float()) + x * mixer.D.float()
        result = result * functional.silu(gate.float())
    return mixer.out_proj(result.to(hidden_states.dtype))


def _mamba2(mixer: Any, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
    """The output of a `Mamba2Mixer` with one group."""
    assert mixer.n_groups == 1
    sizes = [mixer.intermediate_size, mixer.conv_dim, mixer.num_heads]
    gate, values, step = mixer.in_proj(_masked(hidden_states, mask)).split(sizes, dim=-1)
    values = _masked(mixer.act(causal_convolution(values, mixer.conv1d)), mask)
    x, write, read = values.split([mixer.intermediate_size, mixer.ssm_state_size, mixer.ssm_state_size], dim=-1)
    x = x.unflatten(2, (mixer.num_heads, mixer.head_dim))
    with torch.autocast(values.device.type, enabled=False):
        step = functional.softplus(step.float() + mixer.dt_bias.float()).clamp(*mixer.time_step_limit)
        result = state_space_dual(x, step, -torch.exp(mixer.A_log.float()), write, read)
        result = result + x.float() * mixer.D.float()[:, None]
    return mixer.out_proj(mixer.norm(result.flatten(2), gate).to(hidden_states.dtype))


@contextmanager
def fast_mixers() -> Iterator[None]:
    """Compute the mixers of Mamba and Mamba-2 as above."""

    def replaced(kind: type[nn.Module], compute: Callable[[Any, Tensor, Tensor | None], Tensor]) -> Any:
        original = kind.forward

        def forward(
            self: Any, hidden_states: Tensor, cache_params: Any = None, attention_mask: Any = None, **options: Any
        ) -> Any:
            if cache_params is not None:
                return original(self, hidden_states, cache_params, attention_mask=attention_mask, **options)
            return compute(self, hidden_states, attention_mask)

        return mock.patch.object(kind, "forward", forward)

    with replaced(MambaMixer, _mamba), replaced(Mamba2Mixer, _mamba2):
        yield
