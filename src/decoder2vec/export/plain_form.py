"""What a plain sentence-transformers folder can hold of an encoder; the rest is refused with the reason.

Such a folder reads the output of a model after its final norm, pools it, and may map and normalise the result. What
stands before a text is its prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.export.tokenizer import odd_texts
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.text.template import SLOT, Template
from decoder2vec.text.tokens import Tokeniser

POOLINGS = ("cls", "max", "mean", "weightedmean", "lasttoken")

_STARTS = ("dog", "Dog", "7", " dog", '"dog"', "(dog)", "émile", "狗", "😀")
"""How texts begin: any of these could melt into the end of a prompt."""


@dataclass(frozen=True)
class PlainForm:
    """An encoder as sentence-transformers sees it."""

    reading: Reading
    prompts: dict[str, str]
    """All that may stand before a text, by name; `query` and `document` are always among them."""
    default: str | None
    """The prompt of a text for which none is asked."""
    include_prompt: bool
    """Whether the prompt is pooled as well."""

    @property
    def prefix(self) -> str:
        """What stands before a text for which no prompt is asked."""
        return self.prompts[self.default] if self.default else ""


def plain_form(encoder: Encoder) -> PlainForm:
    """The encoder in that form; one that does not fit is refused."""
    if reason := next(_too_much(encoder), None):
        raise refusal(reason)
    reading = encoder.spec.readings[0]
    template = Template.of(reading.template or encoder.spec.template)
    prompts, default = _prompts(encoder, template)
    spoken = sorted(set(prompts.values()) - {""})
    if spoken and reading.pooling != "lasttoken":
        _check_borders(encoder, reading.pooling, spoken)
    return PlainForm(reading, prompts, default, include_prompt=reading.pooling == "lasttoken" or not spoken)


def refusal(reason: str) -> UnsupportedError:
    """The error for an encoder that does not fit."""
    return UnsupportedError(f"A plain sentence-transformers folder cannot hold this encoder: {reason}.")


def _too_much(encoder: Encoder) -> Iterator[str]:
    spec, backbone = encoder.spec, encoder.backbone
    if isinstance(encoder.head, LayerwiseHead):
        yield "its layerwise head is a network of its own over many layers"
    if len(spec.readings) > 1:
        yield f"it reads {len(spec.readings)} vectors of a text and joins them, where Pooling reads one"
    if backbone.adapter and not isinstance(backbone.adapter, Lora):
        yield f"its adapter ({backbone.adapter.kind}) stands beside the tokens and is no change of the weights"
    reading = spec.readings[0]
    if reading.pooling not in POOLINGS:
        yield f"Pooling has no {reading.pooling!r}; choose {', '.join(POOLINGS)}"
    if reading.layer == 0:
        yield "layer 0 is below the first block, and a model cannot be cut to none"
    if ":" in spec.attention:
        yield f"a config says causal or bidirectional for all layers, not {spec.attention}"
    if spec.on_overflow != "truncate":
        yield f"it would cut long texts in spite of on_overflow={spec.on_overflow!r}; make the encoder with 'truncate'"
    if backbone.dtype != torch.float32:
        yield f"it computes in {str(backbone.dtype).removeprefix('torch.')}; load it with dtype='float32' first"


def _prompts(encoder: Encoder, template: Template) -> tuple[dict[str, str], str | None]:
    """What stands before a text under every name, and which name to take if none is given.

    Without a prompt for queries or documents of its own, sentence-transformers would put nothing before them.
    """
    bare = _prefix(template)
    prompts = {name: _prefix(template.with_prefix(prompt)) for name, prompt in encoder.prompts.items()}
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), bare)
    prompts = {"query": bare, **prompts, "document": document}
    if not bare:
        return prompts, None
    default = "default"
    while default in prompts:
        default += "_"
    return {**prompts, default: bare}, default


def _prefix(template: Template) -> str:
    if template.slots > 1:
        raise refusal(f"its template {template.string!r} holds the text {template.slots} times")
    prefix, _, suffix = template.string.partition(SLOT)
    if suffix:
        raise refusal(f"its template {template.string!r} goes on after the text, where nothing but a prefix is known")
    return prefix


def _check_borders(encoder: Encoder, pooling: str, prompts: list[str]) -> None:
    """Refuse prompts that sentence-transformers would not leave out of the pooled tokens just as we do."""
    if pooling == "weightedmean":
        raise refusal("behind a prompt weightedmean counts positions from the prompt's first token, not the text's")
    texts = [*_STARTS, *odd_texts(encoder)]
    for prompt in prompts:
        tokeniser = Tokeniser(encoder.backbone, Template(prompt + SLOT), encoder.max_seq_length)
        for text, read in zip(texts, tokeniser(texts).prompts, strict=True):
            if read.start != _tokens_alone(encoder.backbone, prompt):
                raise refusal(
                    f"the tokens of the prompt {prompt!r} are not the same before {text[:40]!r}, so it cannot be "
                    f"left out of {pooling!r}; read 'lasttoken', or end the prompt differently"
                )


def _tokens_alone(backbone: Backbone, prompt: str) -> int:
    """How many tokens sentence-transformers leaves out for a prompt."""
    ids = backbone.tokenizer.backend_tokenizer.encode(prompt).ids
    return len(ids) + (backbone.missing_bos_token_id is not None) - (ids[-1] in backbone.tokenizer.all_special_ids)
