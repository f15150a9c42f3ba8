"""Weights rounded to 4 bits by bitsandbytes, to train LoRA beside a model that would not fit otherwise (QLoRA)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from decoder2vec.backbone.attention import attention_from_config, set_attention
from decoder2vec.backbone.batch import Adapter, TokenBatch
from decoder2vec.backbone.blocks import find_blocks, find_final_norm, text_config
from decoder2vec.backbone.fingerprint import folder_fingerprint
from decoder2vec.backbone.machine import choose_device, choose_dtype, quiet_transformers
from decoder2vec.backbone.sources import Notify, resolve_model_folder
from decoder2vec.config import fingerprint
from decoder2vec.errors import BackboneError, InputError, MissingExtraError, UnsupportedError

FOUR_BIT = "4bit"


def four_bit_settings(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
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


_NEEDS_BOS = ("gemma",)
"""Families whose states are useless without a BOS token in front, whatever their tokenizer file says."""


@dataclass(eq=False)
class Backbone:
    """A decoder-only language model to read from. Make one with `Backbone.load`."""

    name: str
    model: nn.Module
    tokenizer: Any
    attention: str
    fingerprint: str
    """Hash of weights, config and tokenizer; independent of device and dtype."""
    adapter: Adapter | None = None
    """What makes the model read differently, if anything."""
    adapters: dict[str, Adapter] = field(default_factory=dict)
    """Further ones by name, to be switched to."""
    four_bit: bool = False
    """Are the weights of its blocks rounded to 4 bits?"""

    @classmethod
    def load(
        cls,
        name: str | Path,
        *,
        attention: str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
        notify: Notify = lambda _: None,
    ) -> Backbone:
        """Load by hub id, folder, GGUF file or built-in name; device and dtype are chosen by the machine.

        `attention` is "causal", "bidirectional" or, above a layer only, "bidirectional:12"; by default what the
        model's own config says. `dtype` may be "4bit": weights inside the blocks are rounded, to train LoRA beside a
        model that would not fit otherwise.
        """
        folder = resolve_model_folder(name, revision=revision, notify=notify)
        place = choose_device(device)
        four_bit = dtype == FOUR_BIT
        numbers = choose_dtype(place, None if four_bit else dtype)
        model = _load_model(folder, numbers, **(four_bit_settings(place, numbers) if four_bit else {}))
        try:
            model = model if four_bit else model.to(place)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"The device {place} cannot be used here: {str(error).splitlines()[0]}") from None
        if four_bit:
            check_four_bit(model)
        attention = attention or attention_from_config(model)
        set_attention(model, attention)
        name = Path(name).expanduser().resolve() if Path(name).expanduser().exists() else name
        tokenizer = _load_tokenizer(folder)
        return cls(str(name), model, tokenizer, attention, folder_fingerprint(folder), four_bit=four_bit)

    def set_attention(self, attention: str) -> None:
        """Switch between causal and bidirectional attention, and prove it; a family that cannot is refused."""
        set_attention(self.model, attention)
        self.attention = attention

    def with_adapter(self, adapter: Adapter | None) -> Backbone:
        """The same model read through an adapter, or without one; the weights are shared, not copied."""
        return replace(self, adapter=adapter)

    def to(self, device: str | torch.device) -> None:
        """Move the weights, and those of the adapter."""
        self.model.to(device)
        for adapter in filter(None, (self.adapter, *self.adapters.values())):
            adapter.to(device)

    def adapt(self, batch: TokenBatch) -> TokenBatch:
        """The batch as the model is to read it."""
        return self.adapter.adapt(batch, self.model) if self.adapter else batch

    def adapter_enabled(self) -> AbstractContextManager[Any]:
        """Open this around every pass of the model."""
        return self.adapter.enabled() if self.adapter else nullcontext()

    @property
    def effective_fingerprint(self) -> str:
        """Names what the model computes: its fingerprint, whether it was rounded, and that of the adapter."""
        weights = fingerprint(self.fingerprint, FOUR_BIT) if self.four_bit else self.fingerprint
        return fingerprint(weights, self.adapter.digest()) if self.adapter else weights

    @property
    def family(self) -> str:
        """The architecture's name as transformers spells it."""
        return str(text_config(self.model.config).model_type)

    @property
    def n_layers(self) -> int:
        """Number of blocks; layer 0 is the embeddings, layer n_layers the last block's output."""
        return len(self.blocks)

    @property
    def dim(self) -> int:
        """Width of a layer's state."""
        return int(text_config(self.model.config).hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The number format the model computes in."""
        return next(self.model.parameters()).dtype

    @cached_property
    def blocks(self) -> nn.ModuleList:
        """The decoder blocks, first to last."""
        return find_blocks(self.model)[1]

    @cached_property
    def final_norm(self) -> nn.Module:
        """The norm behind the last block."""
        return find_final_norm(find_blocks(self.model)[0])

    @cached_property
    def context_length(self) -> int | None:
        """The most tokens the model takes; None where it has no limit (state-space models, ALiBi)."""
        config = text_config(self.model.config)
        known = (getattr(config, key, None) for key in ("max_position_embeddings", "n_positions"))
        own = self.adapter.extra_tokens if self.adapter else 0
        return next((int(value) - own for value in known if value), None)

    @cached_property
    def pad_token_id(self) -> int:
        """A token to fill rows with. Masks never look at it, so any token will do, EOS included."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(int(value) for value in known if value is not None)

    @cached_property
    def missing_bos_token_id(self) -> int | None:
        """The BOS token that the family needs and the tokenizer forgets, or None."""
        bos = self.tokenizer.bos_token_id
        wanted = self.family.startswith(_NEEDS_BOS) or getattr(self.tokenizer, "add_bos_token", False)
        if bos is None or not wanted or bos in self.tokenizer.backend_tokenizer.encode("a").ids:
            return None
        return int(bos)

    @cached_property
    def empty_text_token_id(self) -> int:
        """What an empty text is read as when the tokenizer gives no token at all for it."""
        known = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, self.pad_token_id)
        return next(int(value) for value in known if value is not None)

    def check_token_count(self, what: str, tokens: int) -> None:
        """Refuse something that would take no token of the context, or all of them."""
        most = None if self.context_length is None else self.context_length - 1
        if tokens < 1 or (most is not None and tokens > most):
            room = "1 token or more" if most is None else f"1 to {most} tokens on this model"
            raise InputError(f"{what} has {room}, not {tokens}.")

    def resolve_layer(self, number: int) -> int:
        """A layer number in 0..n_layers; negative numbers count from the top, as in a list."""
        if not isinstance(number, int) or not -self.n_layers - 1 <= number <= self.n_layers:
            raise InputError(f"{self.name} has layers 0 (embeddings) to {self.n_layers}; there is no layer {number!r}.")
        return number if number >= 0 else self.n_layers + 1 + number


def _load_model(folder: Path, dtype: torch.dtype, **settings: Any) -> nn.Module:
    from transformers import AutoModel

    try:
        with quiet_transformers():
            model, report = AutoModel.from_pretrained(
                folder, dtype=dtype, use_safetensors=True, output_loading_info=True, **settings
            )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise BackboneError(f"transformers cannot load {folder}: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise BackboneError(f"{folder} lacks {len(missing)} weights, {missing[0]} among them; it is not whole.")
    model.requires_grad_(False)
    return model.eval()  # type: ignore[no-any-return]


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise BackboneError(f"{folder} has no tokenizer that transformers can load (tokenizer.json).") from error
    if not getattr(tokenizer, "is_fast", False):
        raise BackboneError(f"{folder} has no fast tokenizer (tokenizer.json); its offsets are needed for pooling.")
    return tokenizer
