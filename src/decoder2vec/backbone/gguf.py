"""GGUF file to a float32 safetensors folder, once: reading such a file through transformers takes most of a minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from decoder2vec.backbone.fingerprint import record_gguf_source
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.errors import BackboneError

_BOS_BY_DEFAULT = {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"}
"""Tokenizers that put BOS first unless the file says otherwise, as llama.cpp reads them; sentencepiece ones do too."""


def convert(file: Path, folder: Path) -> None:
    """Write the model and tokenizer held in `file` to `folder` in Hugging Face's layout."""
    metadata = read_metadata(file)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        with quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(**place)
    except (ValueError, KeyError, RuntimeError) as error:
        raise BackboneError(f"transformers cannot read the GGUF file {file}: {error}") from error
    _forget_quantisation(model)
    _mend_tokenizer(tokenizer, metadata)
    if not metadata["causal"]:
        model.config.is_causal = False
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record_gguf_source(folder, file)


def read_metadata(file: Path) -> dict[str, Any]:
    """Switches of tokenizer and attention from the file's header; a broken or cut-off file is refused here."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(os.fspath(file))
        end = max((int(tensor.data_offset + tensor.n_bytes) for tensor in reader.tensors), default=0)
    except (ValueError, IndexError, KeyError, UnicodeDecodeError, MemoryError) as error:
        raise BackboneError(f"{file} is not a whole GGUF file ({error}); download it again.") from error
    if end > file.stat().st_size:
        raise BackboneError(f"{file} is cut off: {file.stat().st_size:,} of {end:,} bytes; download it again.")
    wanted = ("ggml.pre", "ggml.model", "ggml.add_bos_token", "ggml.add_eos_token")
    metadata = {
        key: reader.fields[f"tokenizer.{key}"].contents() for key in wanted if f"tokenizer.{key}" in reader.fields
    }
    direction = next((field for key, field in reader.fields.items() if key.endswith(".attention.causal")), None)
    return metadata | {"causal": True if direction is None else bool(direction.contents())}


def _forget_quantisation(model: Any) -> None:
    """The weights are dense float32 by now, but the model still refuses to be saved as such."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _mend_tokenizer(tokenizer: Any, metadata: dict[str, Any]) -> None:
    """Put back what transformers leaves out of a GGUF tokenizer: BOS, EOS and digit splitting."""
    from tokenizers import pre_tokenizers, processors

    backend = tokenizer.backend_tokenizer
    if metadata.get("ggml.pre") == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    by_default = metadata.get("ggml.model") == "llama" or metadata.get("ggml.pre") in _BOS_BY_DEFAULT
    present = backend.encode("a").ids
    first = last = ""
    special = []
    if metadata.get("ggml.add_bos_token", by_default) and tokenizer.bos_token_id not in present:
        first = f"{tokenizer.bos_token} "
        special.append((tokenizer.bos_token, tokenizer.bos_token_id))
    if metadata.get("ggml.add_eos_token", False) and tokenizer.eos_token_id not in present:
        last = f" {tokenizer.eos_token}"
        special.append((tokenizer.eos_token, tokenizer.eos_token_id))
    if special:
        add = processors.TemplateProcessing(single=f"{first}$A{last}", special_tokens=special)
        kept = backend.post_processor
        backend.post_processor = add if kept is None else processors.Sequence([kept, add])
