"""Split long documents into overlapping chunks of whole sentences, measured in the encoder's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from decoder2vec.errors import InputError
from decoder2vec.text.sentences import sentence_spans, strip_span
from decoder2vec.text.template import SLOT, Template
from decoder2vec.text.tokens import CHARACTERS_PER_TOKEN, tokenising_batches

LengthFunction = Callable[[Sequence[str]], list[int]]
"""Texts -> the length of each, in tokens."""

Span = tuple[int, int]
"""Start and end offset in a text."""

_SPARE_TOKENS = 8
"""Tokens left free for BOS and EOS, and for words that are tokenised differently inside the template."""


@dataclass(frozen=True)
class Chunking:
    """Maximum length of a chunk, and how much of its end is repeated at the start of the next, in tokens."""

    size: int = 256
    overlap: int = 32

    def __post_init__(self) -> None:
        if self.size < 8 or not 0 <= self.overlap <= self.size // 2:
            raise InputError(
                f"Chunks of {self.size} tokens with an overlap of {self.overlap} are not possible: "
                "give a size of 8 tokens or more, and an overlap of at most half of it."
            )

    def limited_to(self, encoder: Any) -> Chunking:
        """Return the same chunking, with a smaller size if the encoder would truncate such chunks."""
        max_tokens = _max_text_tokens(encoder)
        size = self.size if max_tokens is None else min(self.size, max(8, max_tokens))
        return Chunking(size, min(self.overlap, size // 2))

    def split(self, text: str, lengths_of: LengthFunction) -> list[str]:
        """Return the chunks of a text in order; every sentence is in one of them, and only overlong ones are split."""
        spans, lengths = _split_overlong(text, sentence_spans(text), lengths_of, self.size)
        chunks, first, total = [], 0, 0
        for index, length in enumerate(lengths):
            if total + length > self.size:
                chunks.append(text[spans[first][0] : spans[index - 1][1]])
                first, total = self._next_start(lengths, first, index)
            total += length + 1  # one token for the space between two sentences
        if spans:
            chunks.append(text[spans[first][0] : spans[-1][1]])
        return chunks

    def _next_start(self, lengths: list[int], first: int, index: int) -> tuple[int, int]:
        """Return the first sentence of the next chunk, and the length of the sentences repeated as overlap."""
        start, total = index, 0
        while start > first + 1 and total + lengths[start - 1] <= min(self.overlap, self.size - lengths[index]):
            start -= 1
            total += lengths[start] + 1
        return start, total


def token_lengths(encoder: Any) -> LengthFunction:
    """Return a function that counts tokens with the encoder's tokenizer, or one per 4 characters if it has none."""
    tokenizer = getattr(encoder, "tokenizer", None)
    if tokenizer is None or not callable(tokenizer):
        return lambda texts: [len(text) // 4 + 1 for text in texts]

    def lengths_of(texts: Sequence[str]) -> list[int]:
        batches = (tokenizer(batch, add_special_tokens=False, verbose=False) for batch in tokenising_batches(texts))
        return [len(ids) for batch in batches for ids in batch["input_ids"]]

    return lengths_of


def _max_text_tokens(encoder: Any) -> int | None:
    """Return how many tokens of a text fit beside the longest prompt and the template; None without a limit."""
    limit = getattr(encoder, "max_seq_length", None)
    if not isinstance(limit, int):
        return None
    from decoder2vec.encoder import Encoder

    if not isinstance(encoder, Encoder):
        return limit - _SPARE_TOKENS
    longest_prompt = max(encoder.prompts.values(), key=len, default="")
    template = Template.of(encoder.spec.template).with_prefix(longest_prompt)
    template_tokens = token_lengths(encoder)([template.string.replace(SLOT, "")])[0]
    return (limit - template_tokens) // template.slots - _SPARE_TOKENS


def _split_overlong(
    text: str, spans: list[Span], lengths_of: LengthFunction, max_length: int
) -> tuple[list[Span], list[int]]:
    """Halve spans longer than `max_length`, between words, until all fit; return the spans and their lengths."""
    while any(end - start > CHARACTERS_PER_TOKEN * max_length for start, end in spans):  # too long: not measured
        spans = [
            half
            for span in spans
            for half in (_halves(text, *span) if span[1] - span[0] > CHARACTERS_PER_TOKEN * max_length else [span])
        ]
    lengths = _span_lengths(text, spans, lengths_of)
    while overlong := [span for span, length in lengths.items() if length > max_length and span[1] - span[0] > 1]:
        halves = {span: _halves(text, *span) for span in overlong}
        half_lengths = _span_lengths(text, [half for pair in halves.values() for half in pair], lengths_of)
        lengths = {
            half: half_lengths.get(half, lengths.get(half, 0)) for span in lengths for half in halves.get(span, [span])
        }
    return list(lengths), list(lengths.values())


def _span_lengths(text: str, spans: list[Span], lengths_of: LengthFunction) -> dict[Span, int]:
    lengths = lengths_of([text[start:end] for start, end in spans]) if spans else []
    return dict(zip(spans, lengths, strict=True))


def _halves(text: str, start: int, end: int) -> list[Span]:
    middle = (start + end) // 2
    space = text.rfind(" ", start + 1, middle + 1)
    cut = space if space > 0 else text.find(" ", middle, end - 1)
    cut = cut if cut > 0 else middle
    return [half for span in ((start, cut), (cut, end)) if (half := strip_span(text, *span))]
