"""Conversion of GGUF files to float32 safetensors folders.

A file is converted once: transformers needs half a minute to read one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

from decoder2vec.backbone.fingerprint import record_gguf_source
from decoder2vec.errors import BackboneError

_BOS_BY_DEFAULT = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
"""Pre-tokenizers for which llama.cpp adds BOS unless the file says otherwise; it does so for sentencepiece, too."""
_LOCK = Lock()
"""Held by a conversion, which exchanges functions of the package gguf."""


def convert_gguf(file: Path, folder: Path) -> None:
    """Write the model and tokenizer of a GGUF file to `folder` in Hugging Face's layout."""
    with _parsed_once():
        _convert(file, folder)


@contextmanager
def _parsed_once() -> Iterator[None]:
    """Context in which a file is parsed once; transformers does it three times, and lists all names for each module."""
    import gguf

    with _LOCK:
        parts = gguf.GGUFReader, gguf.get_tensor_name_map
        gguf.GGUFReader, gguf.get_tensor_name_map = map(cache, parts)
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = parts


def _convert(file: Path, folder: Path) -> None:
    metadata = read_metadata(file)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from decoder2vec.backbone.machine import quiet_transformers

    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        with quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(**source, trust_remote_code=False)
    except (ValueError, KeyError, RuntimeError) as error:
        raise BackboneError(f"transformers cannot read the GGUF file {file}: {error}") from error
    _clear_quantisation(model)
    _repair_tokenizer(tokenizer, metadata)
    if not metadata["causal"]:
        model.config.is_causal = False
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record_gguf_source(folder, file)


def read_metadata(file: Path) -> dict[str, Any]:
    """Read the tokenizer and attention settings of a GGUF header; refuse a broken or truncated file."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(os.fspath(file))
        end = max((int(tensor.data_offset + tensor.n_bytes) for tensor in reader.tensors), default=0)
    except (ValueError, IndexError, KeyError, UnicodeDecodeError, MemoryError) as error:
        raise BackboneError(f"{file} is not a complete GGUF file ({error}); download it again.") from error
    if end > file.stat().st_size:
        raise BackboneError(f"{file} is truncated: {file.stat().st_size:,} of {end:,} bytes; download it again.")
    keys = ("ggml.pre", "ggml.model", "ggml.add_bos_token", "ggml.add_eos_token")
    metadata = {
        key: reader.fields[f"tokenizer.{key}"].contents() for key in keys if f"tokenizer.{key}" in reader.fields
    }
    causal = next((field for key, field in reader.fields.items() if key.endswith(".attention.causal")), None)
    return metadata | {"causal": True if causal is None else bool(causal.contents())}


def _clear_quantisation(model: Any) -> None:
    """Remove the marks of quantisation: the weights are dense float32 now, but the model refuses to be saved."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _repair_tokenizer(tokenizer: Any, metadata: dict[str, Any]) -> None:
    """Add what transformers drops from a GGUF tokenizer: BOS, EOS and the splitting of digits."""
    from tokenizers import pre_tokenizers, processors

    backend = tokenizer.backend_tokenizer
    if metadata.get("ggml.pre") == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    bos_by_default = metadata.get("ggml.model") == "llama" or metadata.get("ggml.pre") in _BOS_BY_DEFAULT
    present = backend.encode("a").ids
    prefix = suffix = ""
    special_tokens = []
    if metadata.get("ggml.add_bos_token", bos_by_default) and tokenizer.bos_token_id not in present:
        prefix = f"{tokenizer.bos_token} "
        special_tokens.append((tokenizer.bos_token, tokenizer.bos_token_id))
    if metadata.get("ggml.add_eos_token", False) and tokenizer.eos_token_id not in present:
        suffix = f" {tokenizer.eos_token}"
        special_tokens.append((tokenizer.eos_token, tokenizer.eos_token_id))
    if special_tokens:
        add = processors.TemplateProcessing(single=f"{prefix}$A{suffix}", special_tokens=special_tokens)
        existing = backend.post_processor
        backend.post_processor = add if existing is None else processors.Sequence([existing, add])
