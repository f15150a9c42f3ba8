"""Express an encoder in the terms of sentence-transformers, or raise an error that names the reason why not.

A sentence-transformers folder pools one hidden state of a model, and may apply a linear layer and normalise. A prompt
goes before a text; what follows the text is written by a chat template, which then renders the whole prompt. Several
layers and code networks need a module of our own, `layerwise_pooling.py`, which is code that a user has to trust.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from decoder2vec.adapters.bottleneck import BranchAdapter
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter
from decoder2vec.config import DOCUMENT_PROMPTS
from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.export.tokenizer import probe_texts
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.text.template import SLOT, Template
from decoder2vec.text.tokens import Tokeniser

POOLINGS = ("cls", "max", "mean", "weightedmean", "lasttoken")

_EXPORTABLE = (
    "`d2v sweep --templates plain,prompteol --poolings lasttoken`, or "
    "`d2v train --recipe lora --set read.template=prompteol --set read.pooling=lasttoken`, makes one that it can hold"
)
_ONE_TEMPLATE = '`d2v train --set \'latents=[{template="prompteol_tight", layers="0.67:1.0"}]\'` trains one'
"""What to do instead, as commands."""

_TEXT_STARTS = ("dog", "Dog", "7", " dog", '"dog"', "(dog)", "émile", "狗", "😀")
"""Beginnings of texts that a tokenizer could merge with the end of a prompt."""


@dataclass(frozen=True)
class SentenceTransformersConfig:
    """Pooling and prompts of an encoder as sentence-transformers needs them."""

    prompts: dict[str, str]
    """Prompts by name; `query` and `document` are always among them."""
    default_prompt_name: str | None
    """The prompt used when a caller names none."""
    include_prompt: bool
    """Whether the tokens of the prompt are pooled too."""
    suffix: str
    """What follows a text."""
    uses_chat_template: bool
    """Whether a chat template renders prompt, text and suffix; else the prompt is put before the text."""
    needs_own_module: bool
    """Whether `layerwise_pooling.py` pools; loading the folder then needs trust_remote_code=True."""

    @classmethod
    def from_encoder(
        cls, encoder: Encoder, adapters: tuple[type[Adapter], ...] = (Lora,)
    ) -> SentenceTransformersConfig:
        """Return the config of an encoder; raise UnsupportedError if the format cannot express it.

        Args:
            encoder: The encoder.
            adapters: The kinds of adapters that the format can hold.
        """
        if reason := next(_unsupported_features(encoder, adapters), None):
            raise unsupported(reason)
        readings = encoder.spec.readings
        template = Template.of(readings[0].template or encoder.spec.template)
        suffix = template.string.rpartition(SLOT)[2]
        prompts, default_prompt_name = _prompts(encoder, template)
        non_empty_prompts = sorted(set(prompts.values()) - {""})
        poolings = {reading.pooling for reading in readings} - {"lasttoken"}
        if suffix and non_empty_prompts and poolings:
            raise unsupported(
                f"its template {template.string!r} has text before and after the slot, and {poolings.pop()!r} must "
                f"leave out what is before; choose 'lasttoken', or nothing before {{text}}: {_EXPORTABLE}"
            )
        if non_empty_prompts and poolings:
            _check_prompt_tokens(encoder, poolings, non_empty_prompts)
        include_prompt = not (poolings and non_empty_prompts)
        return cls(
            prompts,
            default_prompt_name,
            include_prompt,
            suffix,
            # an empty text without any token has no state to pool; the template gives it one
            uses_chat_template=bool(suffix) or (include_prompt and not _has_tokens(encoder, "")),
            needs_own_module=len(readings) > 1 or isinstance(encoder.head, LayerwiseHead),
        )

    @property
    def default_prompt(self) -> str:
        """The text put before a text when a caller names no prompt."""
        return self.prompts[self.default_prompt_name] if self.default_prompt_name else ""


def unsupported(reason: str) -> UnsupportedError:
    """Return the error for an encoder that the formats with pooling, sentence-transformers and onnx, cannot express."""
    return UnsupportedError(f"This encoder cannot be exported with its pooling: {reason}.")


def _unsupported_features(encoder: Encoder, adapters: tuple[type[Adapter], ...]) -> Iterator[str]:
    spec, backbone = encoder.spec, encoder.backbone
    if backbone.adapter and not isinstance(backbone.adapter, adapters):
        instead = "use the format onnx" if isinstance(backbone.adapter, BranchAdapter) else "keep decoder2vec"
        yield (
            f"its adapter ({backbone.adapter.kind}) does not change the weights but the tokens or states; "
            f"train with the recipe 'lora' or 'full', or {instead}"
        )
    if len({reading.template or spec.template for reading in spec.readings}) > 1:
        yield f"its readings have several templates, and a text is read once; use one template for all: {_ONE_TEMPLATE}"
    for reading in spec.readings:
        if reading.pooling not in POOLINGS:
            yield f"Pooling has no {reading.pooling!r}; choose {', '.join(POOLINGS)}: {_EXPORTABLE}"
    if ":" in spec.attention or "+" in spec.attention:
        yield (
            f"a config sets causal or bidirectional for all layers, not {spec.attention}; "
            "make the encoder with attention='causal' or 'bidirectional'"
        )
    if spec.on_overflow != "truncate":
        yield f"it would truncate long texts despite on_overflow={spec.on_overflow!r}; make the encoder with 'truncate'"
    if backbone.dtype != torch.float32:
        yield f"it computes in {str(backbone.dtype).removeprefix('torch.')}; load it with dtype='float32' first"


def _has_tokens(encoder: Encoder, text: str) -> bool:
    return bool(encoder.tokenizer(text)["input_ids"]) or encoder.backbone.missing_bos_token_id is not None


def _prompts(encoder: Encoder, template: Template) -> tuple[dict[str, str], str | None]:
    """Return the prompts by name, and the name of the default prompt.

    Queries and documents always get a prompt: without one of that name sentence-transformers would use none at all.
    """
    prefix, suffix = _around_text(template)
    prompts = {}
    for name, prompt in encoder.prompts.items():
        prompts[name], prompt_suffix = _around_text(template.with_prefix(prompt))
        if prompt_suffix != suffix:
            raise unsupported(
                f"after the text, the prompt {name!r} has {prompt_suffix!r} and the template {suffix!r}; "
                "let all prompts end alike"
            )
    document = next((prompts[name] for name in DOCUMENT_PROMPTS if name in prompts), prefix)
    prompts = {"query": prefix, **prompts, "document": document}
    if not prefix:
        return prompts, None
    default_name = "default"
    while default_name in prompts:
        default_name += "_"
    return {**prompts, default_name: prefix}, default_name


def _around_text(template: Template) -> tuple[str, str]:
    """Return what is before and after the text."""
    if template.slots > 1:
        raise unsupported(
            f"its template {template.string!r} repeats the text {template.slots} times, and a long text could not be "
            f"cut in all copies; choose a template that has {{text}} once: {_EXPORTABLE}"
        )
    prefix, _, suffix = template.string.partition(SLOT)
    return prefix, suffix


def _check_prompt_tokens(encoder: Encoder, poolings: set[str], prompts: list[str]) -> None:
    """Raise UnsupportedError for prompts that sentence-transformers would not exclude from pooling exactly as we do."""
    if "weightedmean" in poolings:
        raise unsupported(
            "after a prompt, weightedmean counts positions from the prompt's first token, not the text's; "
            f"choose 'mean' or 'lasttoken': {_EXPORTABLE}"
        )
    texts = [*_TEXT_STARTS, *probe_texts(encoder)]
    for prompt in prompts:
        tokeniser = Tokeniser(encoder.backbone, Template(prompt + SLOT), encoder.max_seq_length)
        for text, tokens in zip(texts, tokeniser(texts).prompts, strict=True):
            if tokens.start != count_prompt_tokens(encoder.backbone, prompt):
                raise unsupported(
                    f"the tokens of the prompt {prompt!r} are not the same before {text[:40]!r}, so it cannot be "
                    f"excluded from {min(poolings)!r}; use 'lasttoken', or end the prompt differently"
                )


def count_prompt_tokens(backbone: Backbone, prompt: str) -> int:
    """Return how many leading tokens sentence-transformers excludes from pooling for a prompt."""
    ids = backbone.tokenizer.backend_tokenizer.encode(prompt).ids
    return len(ids) + (backbone.missing_bos_token_id is not None) - (ids[-1] in backbone.tokenizer.all_special_ids)
