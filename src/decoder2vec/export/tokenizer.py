"""The tokenizer of an encoder so that any program spells and pads texts as the encoder does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.text.template import SLOT, Template
from decoder2vec.text.tokens import Tokeniser

_TEXTS = (
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

_LONG = 1024
"""The longest text, in tokens, that is tried on a model."""


def odd_texts(encoder: Encoder) -> list[str]:
    """Texts to compare on: short, odd, and one that must be cut, unless that would take long."""
    cut = "A text that is too long:" + " a" * encoder.max_seq_length
    return [*_TEXTS, cut] if encoder.max_seq_length <= _LONG else list(_TEXTS)


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
                f"The tokenizer of {backbone.name} has neither a pad token nor an end token to pad with; give it one."
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
    first = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)])
    kept = backend.post_processor
    backend.post_processor = first if kept is None else processors.Sequence([kept, first])


def check_tokenizer(encoder: Encoder, folder: Path, prefix: str) -> None:
    """Refuse a folder whose tokenizer, read again, spells a text differently; that would change vectors unseen."""
    from transformers import AutoTokenizer

    again = AutoTokenizer.from_pretrained(folder)
    texts = odd_texts(encoder)
    ours = Tokeniser(encoder.backbone, Template(prefix + SLOT), encoder.max_seq_length)(texts).prompts
    theirs = again([prefix + text for text in texts], truncation=True)["input_ids"]
    for text, prompt, ids in zip(texts, ours, theirs, strict=True):
        if prompt.ids != ids:
            raise UnsupportedError(
                f"The tokenizer of {encoder.backbone.name}, written and read again, spells {text[:40]!r} as {ids[:8]} "
                f"where the encoder reads {prompt.ids[:8]}; mend its tokenizer.json first."
            )
