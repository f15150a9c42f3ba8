"""Write the tokenizer of an encoder so that any program tokenises and pads texts as the encoder does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.gold import GOLD_TEXTS
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

_NO_LIMIT = 10**9
"""Maximum length of a tokenizer that cuts nothing."""
_MAX_PROBE_TOKENS = 1024
"""A text that must be truncated is only tried where the maximum length is at most this; longer ones are slow."""


def probe_texts(encoder: Encoder) -> list[str]:
    """Return texts to compare two implementations on: short, unusual, and one too long, unless that would be slow.

    Unusual texts are left out if they are too long: other programs may cut them inside a character.
    """
    template = Template.of(encoder.spec.readings[0].template or encoder.spec.template)
    overlong = Tokeniser(encoder.backbone, template, encoder.max_seq_length)(_PROBE_TEXTS).overlong
    texts = [text for index, text in enumerate(_PROBE_TEXTS) if index not in overlong]
    too_long = "A text that is too long:" + " a" * encoder.max_seq_length
    return [*texts, too_long] if encoder.max_seq_length <= _MAX_PROBE_TOKENS else texts


def write_tokenizer(backbone: Backbone, folder: Path, max_length: int | None, chat_template: str | None = None) -> None:
    """Write the tokenizer's files: padding on the right, BOS where the model needs it, and no chat template but ours.

    Args:
        backbone: The model whose tokenizer is written.
        folder: Folder to write to.
        max_length: Maximum number of tokens of a text; None if there is no limit.
        chat_template: Template that renders the prompt around a text.
    """
    tokenizer = copy.deepcopy(backbone.tokenizer)
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.model_max_length = _NO_LIMIT if max_length is None else max_length
    tokenizer.chat_template = chat_template
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


def render_chat_template(encoder: Encoder, suffix: str) -> str:
    """Return a Jinja template that puts a suffix after the text, and the model's special tokens around all of it.

    A system message is the prompt before the text, as sentence-transformers passes it. Texts that a chat template
    renders get no special tokens from the tokenizer, so they are part of the template. An empty text gets the token
    that the encoder reads instead of nothing.
    """
    before, after = special_tokens(encoder.backbone)
    contents = "{%- for message in messages -%}{{ message['content'] }}{%- endfor -%}"
    if not (before or after or suffix):
        empty = encoder.tokenizer.convert_ids_to_tokens(encoder.backbone.empty_text_token_id)
        is_empty = "messages | length == 1 and messages[0]['content'] == ''"
        return f"{contents}{{%- if {is_empty} -%}}{{{{ {empty!a} }}}}{{%- endif -%}}"
    return f"{{{{ {before!a} }}}}{contents}{{{{ {suffix + after!a} }}}}"


def special_tokens(backbone: Backbone) -> tuple[str, str]:
    """Return the special tokens that the tokenizer, or the encoder itself, adds before and after a text."""
    backend = backbone.tokenizer.backend_tokenizer
    plain = backend.encode("a", add_special_tokens=False).ids
    tokens = backend.encode("a")
    begin = next(i for i in range(len(tokens.ids)) if tokens.ids[i : i + len(plain)] == plain)
    before, after = tokens.ids[:begin], tokens.ids[begin + len(plain) :]
    if (bos := backbone.missing_bos_token_id) is not None:
        before = [bos, *before]
    return tuple("".join(backbone.tokenizer.convert_ids_to_tokens(ids)) for ids in (before, after))  # type: ignore[return-value]


def joins_punctuation(encoder: Encoder, suffix: str) -> bool:
    """Whether the tokenizer makes one token of the end of a sentence and the beginning of the suffix.

    Other programs cut a long text and then append the suffix, so they do not join the two where we do.
    """
    backend = encoder.tokenizer.backend_tokenizer

    def ids(text: str) -> list[int]:
        return list(backend.encode(text, add_special_tokens=False).ids)

    usual = ids(f"dog{suffix}")[len(ids("dog")) :]
    return any(ids(f"dog{mark}{suffix}") != ids(f"dog{mark}") + usual for mark in ".,;:!?)\"'")


def joined_when_cut(encoder: Encoder, suffix: str) -> list[str]:
    """Return the gold texts that other programs may cut differently: too long, with a suffix that joins punctuation."""
    if not suffix or not joins_punctuation(encoder, suffix):
        return []
    template = Template.of(encoder.spec.readings[0].template or encoder.spec.template)
    overlong = Tokeniser(encoder.backbone, template, encoder.max_seq_length)(GOLD_TEXTS).overlong
    return [GOLD_TEXTS[index] for index in overlong]


def check_tokenizer(encoder: Encoder, folder: Path, prompt: str, suffix: str = "") -> None:
    """Raise UnsupportedError if the written tokenizer splits a text differently, which would change vectors silently.

    Args:
        encoder: The encoder whose tokenizer was written.
        folder: Folder with the tokenizer's files.
        prompt: The prompt put before every text.
        suffix: What the chat template puts after every text.
    """
    from transformers import AutoTokenizer

    reloaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    texts = [*probe_texts(encoder), ""]
    expected = Tokeniser(encoder.backbone, Template(prompt + SLOT + suffix), encoder.max_seq_length)(texts)
    if reloaded.chat_template:
        messages = [
            [*([{"role": "system", "content": prompt}] if prompt else []), {"role": "user", "content": text}]
            for text in texts
        ]
        reloaded_ids = reloaded.apply_chat_template(messages, truncation=True, return_dict=True)["input_ids"]
        unchecked = expected.overlong  # whether a long text keeps the suffix is up to the program that truncates it
    else:
        reloaded_ids = reloaded([prompt + text for text in texts], truncation=True)["input_ids"]
        unchecked = [index for index, ids in enumerate(reloaded_ids) if not ids]
    for index, (text, tokens, ids) in enumerate(zip(texts, expected.prompts, reloaded_ids, strict=True)):
        if tokens.ids != ids and index not in unchecked:
            raise UnsupportedError(
                f"The tokenizer of {encoder.backbone.name}, written and reloaded, tokenises {text[:40]!r} as {ids[:8]} "
                f"where the encoder has {tokens.ids[:8]}; repair its tokenizer.json first."
            )
