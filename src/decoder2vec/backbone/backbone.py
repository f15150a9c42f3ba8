"""The Backbone: a decoder-only language model with its tokenizer, loaded by name, folder or file.

Weights of 4 bits are quantised by bitsandbytes, to train LoRA on a model that would not fit otherwise (QLoRA).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from decoder2vec.backbone.attention import attention_from_config, set_attention
from decoder2vec.backbone.batch import Adapter, TokenBatch
from decoder2vec.backbone.blocks import find_blocks, find_final_norm, text_config
from decoder2vec.backbone.cpu_dtype import load_in_fastest_dtype
from decoder2vec.backbone.fingerprint import folder_fingerprint
from decoder2vec.backbone.int8_fusion import fuse_blocks
from decoder2vec.backbone.int8_linear import quantise_layers
from decoder2vec.backbone.machine import (
    FOUR_BIT,
    INT8,
    batch_overhead,
    choose_device,
    choose_dtype,
    quiet_transformers,
    token_budget,
)
from decoder2vec.backbone.sources import Notify, resolve_model_folder
from decoder2vec.backbone.vocabulary import check_token_ids
from decoder2vec.config import fingerprint
from decoder2vec.errors import BackboneError, InputError, MissingExtraError, UnsupportedError
from decoder2vec.progress import in_phase

_PROBE = "The committee met on Tuesday to discuss the new library, which opens in spring."
"""Text whose vectors must be the same in 16 bits."""

_NEEDS_BOS = ("gemma",)
"""Families whose states are useless without a BOS token in front, whatever their tokenizer file says."""


_LOCKS: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()


@dataclass(eq=False)
class Backbone:
    """A decoder-only language model to take hidden states from. Create one with `Backbone.load`."""

    name: str
    model: nn.Module
    tokenizer: Any
    attention: str
    fingerprint: str
    """Hash of weights, config and tokenizer; independent of device and dtype."""
    adapter: Adapter | None = None
    """The active adapter, if any."""
    adapters: dict[str, Adapter] = field(default_factory=dict)
    """Further adapters by name, to switch to."""
    sentence_tokens: Adapter | None = None
    """Embeddings of tokens that stand for sentences, if the model was trained with them."""
    four_bit: bool = False
    """Whether the weights of the blocks are quantised to 4 bits."""
    int8: bool = False
    """Whether the linear layers of the blocks compute in 8 bits."""
    dtype_reason: str = ""
    """Why the weights have their dtype, if it was measured."""

    @classmethod
    @in_phase("loading the model")
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
        """Load a language model.

        Args:
            name: Hub id, model folder, GGUF file or built-in name.
            attention: "causal", "bidirectional", or "bidirectional:12" for bidirectional attention above layer 12 only;
                by default what the model's config says.
            device: By default the fastest device of the machine.
            dtype: "auto", the default, takes what the device is fast at; "4bit" quantises the weights inside the blocks
                (QLoRA); "int8" computes their linear layers in 8 bits, for encoding on a CPU.
            revision: Revision of a model on the hub.
            notify: Called with a message before a step that takes long.

        """
        folder = resolve_model_folder(name, revision=revision, notify=notify)
        device = choose_device(device)
        four_bit, int8, reason = dtype == FOUR_BIT, dtype == INT8, ""
        if int8 and device.type != "cpu":
            raise UnsupportedError(f"int8 is for CPUs; on {device.type} use bfloat16 or 4bit.")
        if dtype in (None, "auto") and device.type == "cpu":
            model, reason = load_in_fastest_dtype(
                partial(_load_model, folder), lambda: load_tokenizer(folder)(_PROBE)["input_ids"], folder
            )
        else:
            compute_dtype = torch.float32 if int8 else choose_dtype(device, None if four_bit else dtype)
            quantisation = _four_bit_options(device, compute_dtype) if four_bit else {}
            model = _load_model(folder, compute_dtype, **quantisation)
        try:
            model = model if four_bit else model.to(device)
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"The device {device} cannot be used here: {str(error).splitlines()[0]}") from None
        if four_bit:
            _use_plain_kernels(model)
            _check_four_bit(model)
        if int8:
            blocks = find_blocks(model)[1]
            reason = quantise_layers(blocks)
            fuse_blocks(blocks)
        attention = attention or attention_from_config(model)
        set_attention(model, attention)
        name = Path(name).expanduser().resolve() if Path(name).expanduser().exists() else name
        tokenizer = load_tokenizer(folder)
        return cls(
            str(name),
            model,
            tokenizer,
            attention,
            folder_fingerprint(folder),
            four_bit=four_bit,
            int8=int8,
            dtype_reason=reason,
        )

    def set_attention(self, attention: str) -> None:
        """Switch between causal and bidirectional attention and verify it; a family that cannot is refused."""
        set_attention(self.model, attention)
        self.attention = attention

    def with_adapter(self, adapter: Adapter | None) -> Backbone:
        """The same model with another adapter, or without one; the weights are shared, not copied."""
        return replace(self, adapter=adapter)

    def to(self, device: str | torch.device) -> None:
        """Move the model and all adapters to a device."""
        device = choose_device(device)
        if self.int8 and device.type != "cpu":
            raise UnsupportedError(f"int8 is for CPUs; load the model in another dtype for {device}.")
        self.model.to(device)
        for adapter in filter(None, (self.adapter, self.sentence_tokens, *self.adapters.values())):
            adapter.to(device)

    @property
    def lock(self) -> threading.RLock:
        """Held during a pass: hooks and adapters belong to one pass, so threads that share a model take turns."""
        with _LOCKS_LOCK:
            return _LOCKS.setdefault(self.model, threading.RLock())

    def adapt(self, batch: TokenBatch) -> TokenBatch:
        """The batch that the model reads: the given one, changed by the adapter."""
        return self.adapter.adapt(batch, self.model) if self.adapter else batch

    def adapter_enabled(self, batch: TokenBatch | None = None) -> AbstractContextManager[Any]:
        """Context for every forward pass, on the batch that `adapt` returned: the model computes with the adapter."""
        return self.adapter.enabled(batch) if self.adapter else nullcontext()

    @property
    def effective_fingerprint(self) -> str:
        """Hash of everything the model computes with: its fingerprint, quantisation, and the adapter."""
        quantised = self.four_bit or self.int8
        weights = fingerprint(self.fingerprint, self.dtype_name) if quantised else self.fingerprint
        return fingerprint(weights, self.adapter.digest()) if self.adapter else weights

    def variants(self) -> tuple[Backbone, ...]:
        """The backbone as if loaded plain, in 4 bits and in int8: what is saved from one may be loaded as another."""
        plain = replace(self, four_bit=False, int8=False)
        return plain, replace(plain, four_bit=True), replace(plain, int8=True)

    @property
    def family(self) -> str:
        """The architecture as transformers names it (`model_type`)."""
        return str(text_config(self.model.config).model_type)

    @property
    def n_layers(self) -> int:
        """Number of blocks; layer 0 is the embeddings, layer n_layers the output of the last block."""
        return len(self.blocks)

    @property
    def dim(self) -> int:
        """Width of the hidden states."""
        return int(text_config(self.model.config).hidden_size)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights, and of the states where the weights are quantised."""
        return next(self.model.parameters()).dtype

    @property
    def dtype_name(self) -> str:
        """The value of `dtype` with which `load` gives this model."""
        quantised = FOUR_BIT if self.four_bit else INT8 if self.int8 else ""
        return quantised or str(self.dtype).removeprefix("torch.")

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def token_budget(self) -> int:
        """Return how many tokens a batch should have at most; on a GPU that depends on its free memory."""
        return token_budget(self.device, self.dim, self.dtype_name)

    @property
    def batch_overhead(self) -> int:
        """Cost of one more batch, as a number of tokens."""
        return batch_overhead(self.device, self.dim, self.dtype_name)

    @cached_property
    def blocks(self) -> nn.ModuleList:
        """The decoder blocks, first to last."""
        return find_blocks(self.model)[1]

    @cached_property
    def final_norm(self) -> nn.Module:
        """The norm after the last block."""
        return find_final_norm(find_blocks(self.model)[0])

    @cached_property
    def context_length(self) -> int | None:
        """Maximum number of tokens of an input; None if the model has no limit (state-space models, ALiBi)."""
        config = text_config(self.model.config)
        limits = (getattr(config, key, None) for key in ("max_position_embeddings", "n_positions"))
        adapter_tokens = self.adapter.extra_tokens if self.adapter else 0
        return next((int(limit) - adapter_tokens for limit in limits if limit), None)

    @cached_property
    def vocabulary_size(self) -> int:
        """Number of tokens that the model has an embedding for; its tokenizer may have more."""
        return int(self.model.get_input_embeddings().num_embeddings)  # type: ignore[operator]

    @cached_property
    def pad_token_id(self) -> int:
        """The token that fills rows. Masks are not computed from it, so any token will do, EOS included."""
        candidates = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(int(id) for id in candidates if id is not None and id < self.vocabulary_size)

    @cached_property
    def missing_bos_token_id(self) -> int | None:
        """The BOS token if the family needs one and the tokenizer does not add it, else None."""
        bos = self.tokenizer.bos_token_id
        needs_bos = self.family.startswith(_NEEDS_BOS) or getattr(self.tokenizer, "add_bos_token", False)
        if bos is None or not needs_bos or bos in self.tokenizer.backend_tokenizer.encode("a").ids:
            return None
        return int(bos)

    @cached_property
    def empty_text_token_id(self) -> int:
        """The token that represents an empty text if the tokenizer returns no token for it."""
        candidates = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, self.pad_token_id)
        return next(int(id) for id in candidates if id is not None and id < self.vocabulary_size)

    @cached_property
    def closing_token_id(self) -> int:
        """The token that ends a prompt whose last state is read: EOS, or the pad token of a tokenizer without EOS."""
        eos = self.tokenizer.eos_token_id
        return self.pad_token_id if eos is None or eos >= self.vocabulary_size else int(eos)

    def token_ids(self, text: str) -> Sequence[int]:
        """Return the tokens of a text without special tokens; at least one, whatever the text is."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"] or [self.pad_token_id]
        return check_token_ids(ids, self.vocabulary_size)

    def check_token_count(self, what: str, tokens: int) -> None:
        """Raise InputError if `what` (such as "A soft prompt") has no token or leaves no room for a text."""
        maximum = None if self.context_length is None else self.context_length - 1
        if tokens < 1 or (maximum is not None and tokens > maximum):
            allowed = "1 token or more" if maximum is None else f"1 to {maximum} tokens on this model"
            raise InputError(f"{what} has {allowed}, not {tokens}.")

    def resolve_layer(self, index: int) -> int:
        """Return the layer index in 0..n_layers; a negative index counts from the top, as in a list."""
        if not isinstance(index, int) or not -self.n_layers - 1 <= index <= self.n_layers:
            raise InputError(f"{self.name} has layers 0 (embeddings) to {self.n_layers}; there is no layer {index!r}.")
        return index if index >= 0 else self.n_layers + 1 + index


def _load_model(folder: Path, dtype: torch.dtype, **options: Any) -> nn.Module:
    from transformers import AutoModel

    try:
        with quiet_transformers():
            model, report = AutoModel.from_pretrained(
                folder,
                dtype=dtype,
                use_safetensors=True,
                output_loading_info=True,
                trust_remote_code=False,
                **options,
            )
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # wrong configs and weights fail in as many ways as there are families
        if "trust_remote_code" in str(error):
            raise BackboneError(
                f"{folder} needs Python code of its own, which is never run; use a model that transformers supports."
            ) from error
        if "ignore_mismatched_sizes" in str(error):  # transformers refers to a report that it does not show here
            raise BackboneError(f"{folder} has weights of other shapes than its config.json says.") from error
        raise BackboneError(f"transformers cannot load {folder}: {' '.join(str(error).split())[:500]}") from error
    if missing := sorted(report["missing_keys"]):
        raise BackboneError(f"{folder} lacks {len(missing)} weights, among them {missing[0]}; the model is incomplete.")
    if (depth := getattr(text_config(model.config), "num_hidden_layers", 1)) < 1:
        raise BackboneError(f"{folder} has no layers: its config.json says {depth}.")
    model.requires_grad_(False)
    return model.eval()  # type: ignore[no-any-return]


def load_tokenizer(folder: Path) -> Any:
    """Load the fast tokenizer of a model folder; raise BackboneError if it has none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # damaged files fail in many ways
        raise BackboneError(f"{folder} has no tokenizer that transformers can load (tokenizer.json).") from error
    if not getattr(tokenizer, "is_fast", False):
        raise BackboneError(f"{folder} has no fast tokenizer (tokenizer.json); its offsets are needed for pooling.")
    return tokenizer


def _four_bit_options(device: torch.device, compute_dtype: torch.dtype) -> dict[str, Any]:
    """Options with which `from_pretrained` quantises a model while loading it."""
    if find_spec("bitsandbytes") is None:
        raise MissingExtraError("bitsandbytes", "4bit")
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=compute_dtype,
        bnb_4bit_use_double_quant=True,
    )
    return {"quantization_config": config, "device_map": {"": device}}


def _use_plain_kernels(model: nn.Module) -> None:
    """Keep bitsandbytes from its fused CPU kernel.

    On CPUs with AVX512-BF16 bitsandbytes repacks weights for it in the first pass without gradients. It takes only
    widths divisible by 64, always computes in bfloat16 and has no backward pass, so gradients would silently stop at
    every layer that was evaluated before. The plain kernels have none of these limits.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


@torch.no_grad()
def _check_four_bit(model: nn.Module) -> None:
    """Raise UnsupportedError if this machine cannot compute a 4-bit model, or computes it wrongly.

    Every shape of weights is dequantised by the kernel and by plain tensor operations: with AVX512, the kernel of
    bitsandbytes 0.50 scales weights wrongly if a block of 64 spans two rows.
    """
    device = next(model.parameters()).device
    weights = {weight.quant_state.shape: weight for weight in model.parameters() if hasattr(weight, "quant_state")}
    try:
        wrong = next((shape for shape, weight in weights.items() if not _dequantises_correctly(weight)), None)
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device))
        reason = f"bitsandbytes dequantises weights of shape {tuple(wrong)} wrongly" if wrong else ""
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if reason:
        raise UnsupportedError(
            f"This model cannot be computed in 4 bits on {device.type} ({reason}); use another dtype or a GPU."
        )


def _dequantises_correctly(weight: Any) -> bool:
    """Whether the kernel gives code x absmax for every value, up to rounding."""
    from bitsandbytes.functional import dequantize_4bit, dequantize_blockwise

    state = weight.quant_state
    absmax = dequantize_blockwise(state.absmax, state.state2) + state.offset if state.nested else state.absmax
    packed = weight.data.view(torch.uint8).flatten()
    indices = torch.stack((packed >> 4, packed & 15), dim=-1).flatten()[: state.shape.numel()].long()
    expected = state.code.float()[indices] * absmax.float().repeat_interleave(state.blocksize)[: len(indices)]
    actual = dequantize_4bit(weight.data, state).float().flatten()
    return bool((actual - expected).abs().max() <= 0.01 * expected.abs().max())
