"""Which device and number format this machine is good at."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from decoder2vec.errors import InputError, unknown_name

_DTYPES = ("float32", "bfloat16", "float16", "float64")
_ANY_SHAPE = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def choose_device(asked: str | torch.device | None = None) -> torch.device:
    """The device asked for, else CUDA, else Apple's MPS, else the CPU; of several processes each takes its own GPU."""
    if asked is not None:
        try:
            return torch.device(asked)
        except RuntimeError:
            raise InputError(f"Unknown device {asked!r}; give cpu, cuda, cuda:1, mps or the like.") from None
    if torch.cuda.is_available():
        own = os.environ.get("LOCAL_RANK")
        return torch.device("cuda") if own is None else torch.device("cuda", int(own) % torch.cuda.device_count())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_dtype(device: torch.device, asked: str | torch.dtype | None = None) -> torch.dtype:
    """The dtype asked for, else bfloat16 on GPUs that compute in it, else float32.

    Never float16 (rows turn to NaN), and never 16 bits on a CPU, where most machines are 10-300x slower at it.
    """
    if isinstance(asked, torch.dtype):
        return asked
    if asked is not None:
        if asked not in _DTYPES:
            raise unknown_name("dtype", asked, _DTYPES)
        return getattr(torch, asked)  # type: ignore[no-any-return]
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float32


def any_shape_attention(device: torch.device) -> AbstractContextManager[Any]:
    """Open this around passes of a model: attention by kernels that take any shape at once.

    On recent GPUs torch prefers cuDNN's, which is planned anew for every shape of batch, and batches here have many.
    """
    return sdpa_kernel(_ANY_SHAPE) if device.type == "cuda" else nullcontext()


def token_budget(device: torch.device, dim: int) -> int:
    """Tokens per batch at which the machine's matrix units are busy and its memory is not full.

    A GPU wants many, or it waits for the next kernel to be launched; a token's activations take about a hundred
    times its width in bytes, and a quarter of the free memory may hold them.
    """
    if device.type != "cuda":
        return 2_048
    free, _ = torch.cuda.mem_get_info(device)
    return max(4_096, min(262_144, free // 4 // (100 * dim)))


def training_token_budget(device: torch.device, dim: int, layers: int) -> int:
    """Tokens whose activations, kept for the backward pass, take two thirds of the free memory.

    A token leaves about forty numbers of its width in each block. Memory that torch holds and does not use is free.
    """
    if device.type != "cuda":
        return 32_768
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(max(1_024, free * 2 // 3 // (80 * dim * layers)))


def batch_overhead(device: torch.device, dim: int) -> int:
    """What one more batch costs, in tokens that could have been computed instead.

    On a CPU small matrices lose a little speed; on a GPU hundreds of kernels must be launched anew. That took as long
    as 15,000 tokens of a model of width 576, and a token costs more the wider the model is.
    """
    return max(64, 5_000_000_000 // dim**2) if device.type == "cuda" else 8


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No bars, reports or warnings from transformers inside the block."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
