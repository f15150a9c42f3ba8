"""Weights rounded to 4 bits by bitsandbytes, to train LoRA beside a model that would not fit otherwise (QLoRA)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from decoder2vec.errors import MissingExtraError

FOUR_BIT = "4bit"


def in_four_bits(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What transformers is told in order to round a model while it is loaded; `dtype` is what it computes in."""
    if find_spec("bitsandbytes") is None:
        raise MissingExtraError("bitsandbytes", "4bit")
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, bnb_4bit_use_double_quant=True
    )
    return {"quantization_config": config, "device_map": {"": device}}
