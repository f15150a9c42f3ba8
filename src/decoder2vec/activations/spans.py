"""Latents of spans within texts, such as words and mentions: each text is computed once, whatever the number of spans.

The model reads the whole text without a template; a span is given in characters and pooled over its tokens. Vectors
are kept in the latents store, in a space of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.extract import check_texts
from decoder2vec.activations.store import Keys, Store, text_keys
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import DEFAULT_MAX_LENGTH, Reading
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.progress import current_progress
from decoder2vec.text.batches import collate, plan_batches
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Prompt, Span, Tokeniser, token_positions

_WINDOW_BYTES = 64 << 20
"""Latents kept in memory before they are written, which a kill would lose."""


class TextSpan(NamedTuple):
    """A span of a text, or the whole text."""

    text: str
    span: Span | None = None
    """Begin and end in characters; None: the whole text, with special tokens such as BOS."""


def span_keys(spans: Sequence[TextSpan]) -> Keys:
    """Return [spans] keys of spans within a space."""
    return text_keys(f"{item.text}\0{item.span}" for item in spans)


@dataclass
class SpanExtractor:
    """Computes the latents of spans.

    Args:
        backbone: The model.
        readings: Which layers to read, and how to pool the tokens of a span.
        max_length: Maximum number of tokens of a text; a span behind them is an error.
    """

    backbone: Backbone
    readings: Sequence[Reading]
    max_length: int = DEFAULT_MAX_LENGTH

    def __post_init__(self) -> None:
        adapter = self.backbone.adapter
        if isinstance(adapter, SoftPrompt) and adapter.output == "prompt":
            raise UnsupportedError(
                "The soft prompt of this encoder is pooled instead of the text, so it has no vectors of words; use "
                "another encoder, or one trained with output = 'text'."
            )
        self.max_length = min(self.max_length, self.backbone.context_length or self.max_length)
        self.capture = Capture(self.backbone, self.readings)
        self.tokeniser = Tokeniser(self.backbone, Template.of("plain"), self.max_length)

    def space(self) -> dict[str, object]:
        """Return everything that changes a vector; its fingerprint names the space in the store."""
        return {
            "weights": self.backbone.effective_fingerprint,
            "backbone": self.backbone.name,
            "attention": self.backbone.attention,
            "dtype": str(self.backbone.dtype),
            "max_length": self.max_length,
            "readings": [[r.layer, r.pooling, r.normed] for r in self.capture.readings],
            "spans": True,
            "format": 1,
        }

    def fill(self, store: Store, spans: Sequence[TextSpan]) -> None:
        """Compute the latents that the store lacks; each finished window is on disk even if a later one fails."""
        missing = [spans[index] for index in store.missing(span_keys(spans)).tolist()]
        by_text: dict[str, list[TextSpan]] = {}
        for item in missing:
            by_text.setdefault(item.text, []).append(item)
        texts = check_texts(list(by_text))
        n_texts = len({item.text for item in spans})
        current_progress().remaining_work -= n_texts - len(texts)
        for window in self._windows(by_text):
            items = [item for text in window for item in by_text[text]]
            store.add(span_keys(items), self._compute(window, by_text))

    def _windows(self, by_text: dict[str, list[TextSpan]]) -> Iterator[list[str]]:
        """Consecutive texts whose latents fit into a modest part of memory."""
        most = max(1, _WINDOW_BYTES // (4 * len(self.capture.readings) * self.backbone.dim))
        window: list[str] = []
        n_spans = 0
        for text, items in by_text.items():
            if window and n_spans + len(items) > most:
                yield window
                window, n_spans = [], 0
            window.append(text)
            n_spans += len(items)
        if window:
            yield window

    @torch.inference_mode()
    def _compute(self, texts: list[str], by_text: dict[str, list[TextSpan]]) -> NDArray[np.float32]:
        """[span, reading, dim] latents of the spans of some texts, text by text."""
        prompts = self.tokeniser(texts).prompts
        spans = self._token_spans(texts, prompts, by_text)
        first = np.cumsum([0, *map(len, spans)])
        result = np.empty((first[-1], len(self.capture.readings), self.backbone.dim), np.float32)
        lengths = [len(prompt.ids) for prompt in prompts]
        for rows in plan_batches(lengths, self.backbone.token_budget(), self.backbone.batch_overhead):
            chunks = {row: tuple(tuple(range(*span)) for span in spans[row]) for row in rows}
            whole = [Prompt(prompts[row].ids, 0, len(prompts[row].ids), chunks[row]) for row in rows]
            batch = collate(whole, self.backbone.pad_token_id)
            with self.backbone.lock:
                vectors = self.capture(batch.to(self.backbone.device))
            result[np.concatenate([np.arange(first[row], first[row + 1]) for row in rows])] = vectors.cpu().numpy()
            current_progress().advance(len(rows))
        return result

    def _token_spans(
        self, texts: list[str], prompts: list[Prompt], by_text: dict[str, list[TextSpan]]
    ) -> list[list[Span]]:
        """First token of each span of each text, and the token after its last one."""
        characters = {text: [item.span for item in by_text[text] if item.span] for text in texts}
        found = token_positions(texts, prompts, self.backbone, characters.__getitem__)
        spans: list[list[Span]] = []
        for text, prompt, tokens in zip(texts, prompts, found, strict=True):
            if len(tokens) < len(characters[text]):
                raise InputError(
                    f"The text {text[:40]!r}... is longer than {self.max_length} tokens, and a span of it lies behind "
                    "them; raise max_length, or cut the text."
                )
            if empty := [span for span, positions in zip(characters[text], tokens, strict=True) if not positions]:
                raise InputError(f"The span {empty[0]} of {text[:40]!r} has no token; leave it out.")
            rest = iter(tokens)
            in_tokens = (next(rest) if item.span else range(len(prompt.ids)) for item in by_text[text])
            spans.append([(positions[0], positions[-1] + 1) for positions in in_tokens])
        return spans
