"""Tiny random decoders of every supported family, for tests, docs and the demo without a download.

The same name gives the same weights everywhere. The vectors are meaningless; they serve to test that a family is read
correctly.
"""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any

from decoder2vec.errors import StorageError
from decoder2vec.storage import (
    atomic_folder,
    cache_root,
    damaged_files,
    files_below,
    read_checksums,
    write_checksums,
)

_SIZE = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
_PLAIN = {**_SIZE, "intermediate_size": 64, "max_position_embeddings": 256, "initializer_range": 0.3}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2}
_WINDOWED = {**_GROUPED, "head_dim": 8, "sliding_window": 16}
_GPT = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 256, "initializer_range": 0.3}
_SSM = {"hidden_size": 32, "num_hidden_layers": 4, "state_size": 8, "initializer_range": 0.3}

_FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": _GPT,
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 4,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 8,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
    },
    "gptj": {**_GPT, "rotary_dim": 8},
    "opt": {
        **_SIZE,
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 256,
        "init_std": 0.3,
    },
    "gpt_neox": _PLAIN,
    "llama": _GROUPED,
    "mistral": {**_GROUPED, "sliding_window": 16},
    "qwen2": _GROUPED,
    "qwen3": {**_GROUPED, "head_dim": 8},
    "gemma2": _WINDOWED,
    "gemma3_text": _WINDOWED,
    "phi": _PLAIN,
    "phi3": _GROUPED,
    "falcon": {**_SIZE, "initializer_range": 0.3},
    "bloom": {"hidden_size": 32, "n_layer": 4, "n_head": 4, "initializer_range": 0.3},
    "olmo2": _GROUPED,
    "granite": _GROUPED,
    "smollm3": _GROUPED,
    "mamba": _SSM,
    "mamba2": {**_SSM, "num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 1, "chunk_size": 16},
}
_NO_PAD_TOKEN = {"gpt2", "gpt_neo", "gptj", "gpt_neox", "phi", "mamba", "mamba2"}
_ADDS_BOS = {"opt", "llama", "mistral", "gemma2", "gemma3_text"}

TINY = {f"tiny-{family}": family for family in _FAMILIES}
"""Family by name; the names are accepted wherever a model name is: `tiny-gpt2`, `tiny-llama`, ..."""


def tiny_folder(name: str) -> Path:
    """The folder of a tiny model; build it the first time, and again if it is damaged."""
    from decoder2vec.package import __version__

    folder = cache_root() / "models" / f"{name}-{__version__}"
    if not _is_whole(folder):
        with atomic_folder(folder, replace=folder.is_dir()) as target:
            build_tiny(TINY[name], target)
            write_checksums(target, files_below(target))
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether a folder is there with all files as they were written."""
    try:
        return bool(read_checksums(folder)) and not damaged_files(folder)
    except StorageError:
        return False


def build_tiny(family: str, folder: Path, *, seed: int = 0) -> None:
    """Write a random 4-layer model of a family and a small byte-level BPE tokenizer to `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from decoder2vec.backbone.machine import quiet_transformers

    tokenizer = tiny_tokenizer(pad=family not in _NO_PAD_TOKEN, bos=family in _ADDS_BOS)
    token_ids = {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 2 if family not in _NO_PAD_TOKEN else None}
    with quiet_transformers(), torch.random.fork_rng():
        config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **token_ids, **_FAMILIES[family])
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny_tokenizer(*, pad: bool, bos: bool) -> Any:
    """A byte-level BPE tokenizer of 512 tokens, trained on the demo sentences; it can encode every string."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sentences = resources.files("decoder2vec").joinpath("demo/sentences.txt").read_text(encoding="utf-8")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        sentences.splitlines(),
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=["<eos>", "<bos>", "<pad>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    special_tokens = {"eos_token": "<eos>", "bos_token": "<bos>"} | ({"pad_token": "<pad>"} if pad else {})
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens)
