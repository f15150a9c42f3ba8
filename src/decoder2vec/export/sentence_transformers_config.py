"""Express an encoder in the terms of sentence-transformers, or raise an error that names the reason why not.

A sentence-transformers folder pools the output of a model after its final norm, and may apply a linear layer and
normalise. Before a text it can put a prompt, and nothing after it.
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
from decoder2vec.export.tokenizer import probe_texts
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.text.template import SLOT, Template
from decoder2vec.text.tokens import Tokeniser

POOLINGS = ("cls", "max", "mean", "weightedmean", "lasttoken")

_TEXT_STARTS = ("dog", "Dog", "7", " dog", '"dog"', "(dog)", "émile", "狗", "😀")
"""Beginnings of texts that a tokenizer could merge with the end of a prompt."""


@dataclass(frozen=True)
class SentenceTransformersConfig:
    """Pooling and prompts of an encoder as sentence-transformers needs them."""

    reading: Reading
    prompts: dict[str, str]
    """Prompts by name; `query` and `document` are always among them."""
    default_prompt_name: str | None
    """The prompt used when a caller names none."""
    include_prompt: bool
    """Whether the tokens of the prompt are pooled too."""

    @classmethod
    def from_encoder(cls, encoder: Encoder) -> SentenceTransformersConfig:
        """Return the config of an encoder; raise UnsupportedError if sentence-transformers cannot express it."""
        if reason := next(_unsupported_features(encoder), None):
            raise unsupported(reason)
        reading = encoder.spec.readings[0]
        template = Template.of(reading.template or encoder.spec.template)
        prompts, default_prompt_name = _prompts(encoder, template)
        non_empty_prompts = sorted(set(prompts.values()) - {""})
        if non_empty_prompts and reading.pooling != "lasttoken":
            _check_prompt_tokens(encoder, reading.pooling, non_empty_prompts)
        include_prompt = reading.pooling == "lasttoken" or not non_empty_prompts
        return cls(reading, prompts, default_prompt_name, include_prompt)

    @property
    def default_prompt(self) -> str:
        """The text put before a text when a caller names no prompt."""
        return self.prompts[self.default_prompt_name] if self.default_prompt_name else ""


def unsupported(reason: str) -> UnsupportedError:
    """Return the error for an encoder that sentence-transformers cannot express."""
    return UnsupportedError(f"The format sentence-transformers cannot hold this encoder: {reason}.")


def _unsupported_features(encoder: Encoder) -> Iterator[str]:
    spec, backbone = encoder.spec, encoder.backbone
    if isinstance(encoder.head, LayerwiseHead):
        yield "its layerwise head is a network over many layers"
    if len(spec.readings) > 1:
        yield f"it concatenates {len(spec.readings)} pooled vectors of a text, and Pooling gives one"
    if backbone.adapter and not isinstance(backbone.adapter, Lora):
        yield f"its adapter ({backbone.adapter.kind}) adds tokens or states and does not change the weights"
    reading = spec.readings[0]
    if reading.pooling not in POOLINGS:
        yield f"Pooling has no {reading.pooling!r}; choose {', '.join(POOLINGS)}"
    if reading.layer == 0:
        yield "layer 0 is below the first block, and a model cannot be cut to no blocks"
    if ":" in spec.attention:
        yield f"a config sets causal or bidirectional for all layers, not {spec.attention}"
    if spec.on_overflow != "truncate":
        yield f"it would truncate long texts despite on_overflow={spec.on_overflow!r}; make the encoder with 'truncate'"
    if backbone.dtype != torch.float32:
        yield f"it computes in {str(backbone.dtype).removeprefix('torch.')}; load it with dtype='float32' first"


def _prompts(encoder: Encoder, template: Template) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the default prompt.

    Queries and documents always get a prompt: without one of that name sentence-transformers would use none at all.
    """
    template_prefix = _prefix(template)
    prompts = {name: _prefix(template.with_prefix(prompt)) for name, prompt in encoder.prompts.items()}
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), template_prefix)
    prompts = {"query": template_prefix, **prompts, "document": document}
    if not template_prefix:
        return prompts, None
    default_name = "default"
    while default_name in prompts:
        default_name += "_"
    return {**prompts, default_name: template_prefix}, default_name


def _prefix(template: Template) -> str:
    if template.slots > 1:
        raise unsupported(f"its template {template.string!r} repeats the text {template.slots} times")
    prefix, _, suffix = template.string.partition(SLOT)
    if suffix:
        raise unsupported(f"its template {template.string!r} continues after the text, and a prompt is only a prefix")
    return prefix


def _check_prompt_tokens(encoder: Encoder, pooling: str, prompts: list[str]) -> None:
    """Raise UnsupportedError for prompts that sentence-transformers would not exclude from pooling exactly as we do."""
    if pooling == "weightedmean":
        raise unsupported("after a prompt, weightedmean counts positions from the prompt's first token, not the text's")
    texts = [*_TEXT_STARTS, *probe_texts(encoder)]
    for prompt in prompts:
        tokeniser = Tokeniser(encoder.backbone, Template(prompt + SLOT), encoder.max_seq_length)
        for text, tokens in zip(texts, tokeniser(texts).prompts, strict=True):
            if tokens.start != _count_prompt_tokens(encoder.backbone, prompt):
                raise unsupported(
                    f"the tokens of the prompt {prompt!r} are not the same before {text[:40]!r}, so it cannot be "
                    f"excluded from {pooling!r}; use 'lasttoken', or end the prompt differently"
                )


def _count_prompt_tokens(backbone: Backbone, prompt: str) -> int:
    """Return how many leading tokens sentence-transformers excludes from pooling for a prompt."""
    ids = backbone.tokenizer.backend_tokenizer.encode(prompt).ids
    return len(ids) + (backbone.missing_bos_token_id is not None) - (ids[-1] in backbone.tokenizer.all_special_ids)
