"""Choices that depend on the machine: device, dtype, tokens per batch, attention kernels; and quiet transformers."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from decoder2vec.errors import InputError, UnsupportedError, unknown_name

FOUR_BIT = "4bit"
"""The value of `dtype` that quantises the weights of the blocks to 4 bits."""
INT8 = "int8"
"""The value of `dtype` that computes the linear layers of the blocks in 8 bits, on a CPU."""
X86 = ("x86_64", "AMD64")
"""Values of `platform.machine()`."""
_DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
_ANY_SHAPE_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def choose_device(requested: str | torch.device | None = None) -> torch.device:
    """The requested device, else CUDA, else Apple's MPS, else the CPU; each process of several takes its own GPU."""
    if requested is not None:
        try:
            device = torch.device(requested)
        except RuntimeError:
            raise InputError(f"Unknown device {requested!r}; give cpu, cuda, cuda:1, mps or the like.") from None
        _check_available(device)
        if device != torch.device("cuda"):
            return device
    if torch.cuda.is_available():
        rank = os.environ.get("LOCAL_RANK")
        return torch.device("cuda") if rank is None else torch.device("cuda", int(rank) % torch.cuda.device_count())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _check_available(device: torch.device) -> None:
    """Refuse a GPU that torch does not find: the CPU in its stead would only be slow, without a word."""
    if device.type == "cuda":
        found = torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    else:
        found = device.type != "mps" or torch.backends.mps.is_available()
    if not found:
        raise InputError(
            f"torch {torch.__version__} finds no device {str(device)!r} here; leave out the device to use the best one "
            "there is, or install the build of torch for your GPU."
        )


def choose_dtype(device: torch.device, requested: str | torch.dtype | None = None) -> torch.dtype:
    """The requested dtype, else bfloat16 on GPUs that support it natively, else float32.

    Never float16, which turns rows to NaN. On a CPU `cpu_dtype` measures instead.
    """
    if isinstance(requested, torch.dtype):
        return requested
    if requested not in (None, "auto"):
        if requested == "int4":
            raise UnsupportedError(
                "int4 is not supported: on x86 torch has only a slow reference for it, on ARM it gains 1.3x and loses "
                "quality; use int8, or 4bit to train LoRA."
            )
        if requested not in _DTYPES:
            raise unknown_name("dtype", requested, (*_DTYPES, INT8, FOUR_BIT))
        return getattr(torch, requested)  # type: ignore[no-any-return]
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float32


def any_shape_attention(device: torch.device) -> AbstractContextManager[Any]:
    """Context for forward passes: use attention kernels that accept any shape at once.

    On recent GPUs torch prefers cuDNN's kernel, which is planned again for every shape of batch, and here there are
    many shapes.
    """
    return sdpa_kernel(_ANY_SHAPE_KERNELS) if device.type == "cuda" else nullcontext()


def token_budget(device: torch.device, dim: int, dtype: str = "float32") -> int:
    """Tokens per batch that keep the matrix units busy without filling the memory.

    A GPU needs many, or it waits for kernels to be launched; the activations of a token take about a hundred times its
    width in bytes, and may fill a quarter of the free memory. In int8 on x86 what is rounded and scaled between the
    products must fit into the cache, or it takes as long as they do.
    """
    if device.type != "cuda":
        return 512 if dtype == INT8 and platform.machine() in X86 else 2_048
    free, _ = torch.cuda.mem_get_info(device)
    return max(4_096, min(262_144, free // 4 // (100 * dim)))


def training_token_budget(device: torch.device, dim: int, layers: int, *, compiled: bool = False) -> int:
    """Tokens whose activations, kept for the backward pass, fill two thirds of the free memory.

    A token leaves about forty values per dimension in each block, and less than twenty in one that is compiled. Memory
    that torch has reserved and does not use is free.
    """
    if device.type != "cuda":
        return 32_768
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    n_bytes = 50 if compiled else 80
    return int(max(1_024, free * 2 // 3 // (n_bytes * dim * layers)))


def batch_overhead(device: torch.device, dim: int, dtype: str = "float32") -> int:
    """Cost of one more batch, as the number of tokens that could be computed in the same time.

    On a CPU each batch reads all weights from memory: as long as 25 to 40 tokens of a model of 135M parameters take,
    on ARM and x86, and 90 to 190 where 16 bits make tokens cheap. On a GPU hundreds of kernels must be launched: as
    long as 15,000 tokens of a model of width 576 take, and a token costs more the wider the model is.
    """
    if device.type == "cuda":
        return max(64, 5_000_000_000 // dim**2)
    return 96 if dtype in ("bfloat16", "float16") else 24


def training_batch_overhead(device: torch.device, dim: int) -> int:
    """The same for training. Dropout is drawn batch by batch: on a CPU 8 is kept, so that seeds give what they gave."""
    return batch_overhead(device, dim) if device.type == "cuda" else 8


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Context without progress bars, reports and warnings from transformers."""
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
