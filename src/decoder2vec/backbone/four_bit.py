"""Weights rounded to 4 bits by bitsandbytes, to train LoRA beside a model that would not fit otherwise (QLoRA)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from decoder2vec.errors import MissingExtraError, UnsupportedError

FOUR_BIT = "4bit"


def in_four_bits(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Settings with which transformers rounds a model while loading it; `dtype` is the compute dtype."""
    if find_spec("bitsandbytes") is None:
        raise MissingExtraError("bitsandbytes", "4bit")
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, bnb_4bit_use_double_quant=True
    )
    return {"quantization_config": config, "device_map": {"": device}}


@torch.no_grad()
def check_four_bit(model: nn.Module) -> None:
    """Run one token through a 4-bit model; refuse it if this machine cannot compute it.

    On CPUs with AVX512-BF16 bitsandbytes repacks weights for a fused kernel in the first pass without gradients. That
    kernel takes only widths divisible by 64, always computes in bfloat16 and has no backward pass, so gradients would
    silently stop at every layer that was evaluated before. The plain kernels have none of these limits.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
    device = next(model.parameters()).device
    try:
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnsupportedError(
            f"This model cannot be computed in 4 bits on {device.type} ({reason}); use another dtype or a GPU."
        ) from error
