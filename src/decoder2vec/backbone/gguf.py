"""GGUF file to a float32 safetensors folder, once: reading such a file through transformers takes most of a minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from decoder2vec.backbone.quiet import quiet_transformers
from decoder2vec.errors import BackboneError


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
    except (ValueError, KeyError, NotImplementedError) as error:
        raise BackboneError(f"transformers cannot read the GGUF file {file}: {error}") from error
    _forget_quantisation(model)
    _mend_tokenizer(tokenizer, metadata)
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def read_metadata(file: Path) -> dict[str, Any]:
    """The tokenizer's switches from the file's header; a broken or cut-off file is refused here."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(os.fspath(file))
        end = max((int(tensor.data_offset + tensor.n_bytes) for tensor in reader.tensors), default=0)
    except (ValueError, IndexError, KeyError, UnicodeDecodeError, MemoryError) as error:
        raise BackboneError(f"{file} is not a whole GGUF file ({error}); download it again.") from error
    if end > file.stat().st_size:
        raise BackboneError(f"{file} is cut off: {file.stat().st_size:,} of {end:,} bytes; download it again.")
    wanted = (
        "tokenizer.ggml.pre",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.model",
        "general.architecture",
    )
    return {key: reader.fields[key].contents() for key in wanted if key in reader.fields}


def _forget_quantisation(model: Any) -> None:
    """The weights are dense float32 by now, but the model still refuses to be saved as such."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _mend_tokenizer(tokenizer: Any, metadata: dict[str, Any]) -> None:
    """Put back what transformers leaves out of a GGUF tokenizer: the BOS token and digit splitting."""
    from tokenizers import pre_tokenizers, processors

    backend = tokenizer.backend_tokenizer
    if metadata.get("tokenizer.ggml.pre") == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    # sentencepiece-like vocabularies ask for BOS unless they say otherwise, as llama.cpp reads them
    default = metadata.get("tokenizer.ggml.model") == "llama"
    if metadata.get("tokenizer.ggml.add_bos_token", default) and not _adds_bos(tokenizer):
        bos, number = tokenizer.bos_token, tokenizer.bos_token_id
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, number)]
        )


def _adds_bos(tokenizer: Any) -> bool:
    return tokenizer.bos_token_id in tokenizer.backend_tokenizer.encode("a").ids
