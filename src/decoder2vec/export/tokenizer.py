"""Write the tokenizer of an encoder so that any program tokenises and pads texts as the encoder does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.text.template import SLOT, Template
from decoder2vec.text.tokens import Tokeniser

_PROBE_TEXTS = (
    "no",
    "A dog runs.",
    "Two people talk about the weather in the mountains, and a third one listens to them.",
    "  spaces before and after  ",
    "naïve café 😀 中文 — ½",
    "line one\nline two\twith a tab",
    "(brackets) & <b>marks</b>, 1234567890",
    "</s> <eos> <|endoftext|>",
    "def f(x):\n    return x",
)

_MAX_PROBE_TOKENS = 1024
"""A text that must be truncated is only tried where the maximum length is at most this; longer ones are slow."""


def probe_texts(encoder: Encoder) -> list[str]:
    """Return texts to compare two implementations on: short, unusual, and one too long, unless that would be slow."""
    too_long = "A text that is too long:" + " a" * encoder.max_seq_length
    return [*_PROBE_TEXTS, too_long] if encoder.max_seq_length <= _MAX_PROBE_TOKENS else list(_PROBE_TEXTS)


def write_tokenizer(encoder: Encoder, folder: Path) -> None:
    """Write the tokenizer's files: padding on the right, BOS where the model needs it, and no chat template."""
    backbone = encoder.backbone
    tokenizer = copy.deepcopy(backbone.tokenizer)
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.model_max_length = encoder.max_seq_length
    tokenizer.chat_template = None
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise UnsupportedError(
                f"The tokenizer of {backbone.name} has neither a pad token nor an EOS token to pad with; add one to it."
            )
        tokenizer.pad_token = tokenizer.eos_token
    if backbone.missing_bos_token_id is not None:
        _add_bos(tokenizer)
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.save_pretrained(folder)


def _add_bos(tokenizer: Any) -> None:
    from tokenizers import processors

    backend, bos = tokenizer.backend_tokenizer, tokenizer.bos_token
    add_bos = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)])
    existing = backend.post_processor
    backend.post_processor = add_bos if existing is None else processors.Sequence([existing, add_bos])


def check_tokenizer(encoder: Encoder, folder: Path, prompt: str) -> None:
    """Raise UnsupportedError if the written tokenizer splits a text differently, which would change vectors silently.

    Args:
        encoder: The encoder whose tokenizer was written.
        folder: Folder with the tokenizer's files.
        prompt: The prompt put before every text.
    """
    from transformers import AutoTokenizer

    reloaded = AutoTokenizer.from_pretrained(folder)
    texts = probe_texts(encoder)
    expected = Tokeniser(encoder.backbone, Template(prompt + SLOT), encoder.max_seq_length)(texts).prompts
    reloaded_ids = reloaded([prompt + text for text in texts], truncation=True)["input_ids"]
    for text, tokens, ids in zip(texts, expected, reloaded_ids, strict=True):
        if tokens.ids != ids:
            raise UnsupportedError(
                f"The tokenizer of {encoder.backbone.name}, written and reloaded, tokenises {text[:40]!r} as {ids[:8]} "
                f"where the encoder has {tokens.ids[:8]}; repair its tokenizer.json first."
            )
