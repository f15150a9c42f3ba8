"""Split long documents into chunks of whole sentences, measured in the encoder's tokens, and encode them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from decoder2vec.config import DOCUMENT_PROMPTS
from decoder2vec.errors import InputError
from decoder2vec.search.store import Chunk, Embeddings, document_id_of
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
    """How documents are split into chunks, and whether a chunk is encoded alone or with the document around it."""

    size: int = 256
    """Maximum length of a chunk in tokens."""
    overlap: int = 32
    """How much of the end of a chunk is repeated at the start of the next, in tokens; 0 if `late`."""
    late: bool = False
    """Encode a document as a whole, so that the vector of a chunk has seen the text around it (`encode_chunks`)."""
    window: int = 0
    """Tokens of a document that are read at once if `late`; 0: as many as the encoder's `max_seq_length`."""

    def __post_init__(self) -> None:
        if self.late:
            object.__setattr__(self, "overlap", 0)  # each chunk has seen its neighbours
        if self.size < 8 or not 0 <= self.overlap <= self.size // 2:
            raise InputError(
                f"Chunks of {self.size} tokens with an overlap of {self.overlap} are not possible: "
                "give a size of 8 tokens or more, and an overlap of at most half of it."
            )
        if self.window < 0 or (self.window and not self.late):
            raise InputError("A window is for chunks that are encoded together; give late, and a positive window.")

    def limited_to(self, encoder: Any) -> Chunking:
        """Return the same chunking, with a smaller size if the encoder would truncate such chunks.

        Raises:
            InputError: Chunks are to be encoded together, and the encoder cannot do that, or its context is shorter.
        """
        max_tokens = _max_text_tokens(encoder)
        size = self.size if max_tokens is None else min(self.size, max(8, max_tokens))
        limited = replace(self, size=size, overlap=min(self.overlap, size // 2))
        return replace(limited, window=_window(encoder, self.window)) if self.late else limited

    def split(self, text: str, lengths_of: LengthFunction) -> list[str]:
        """Return the chunks of a text in order; every sentence is in one of them, and only overlong ones are split.

        If `late`, the white space behind a chunk belongs to it, so that all chunks joined are the text.
        """
        spans, lengths = _split_overlong(text, sentence_spans(text), lengths_of, self.size)
        chunks, first, total = [], 0, 0
        for index, length in enumerate(lengths):
            if total + length > self.size:
                chunks.append((spans[first][0], spans[index - 1][1]))
                first, total = self._next_start(lengths, first, index)
            total += length + 1  # one token for the space between two sentences
        if spans:
            chunks.append((spans[first][0], spans[-1][1]))
        if self.late:
            chunks = [(begin, following) for (begin, _), (following, _) in pairwise(chunks)] + chunks[-1:]
        return [text[begin:end] for begin, end in chunks]

    def _next_start(self, lengths: list[int], first: int, index: int) -> tuple[int, int]:
        """Return the first sentence of the next chunk, and the length of the sentences repeated as overlap."""
        start, total = index, 0
        while start > first + 1 and total + lengths[start - 1] <= min(self.overlap, self.size - lengths[index]):
            start -= 1
            total += lengths[start] + 1
        return start, total


def encode_together(
    encoder: Any, chunking: Chunking, chunks: Sequence[Chunk], wanted: Iterable[str] | None = None
) -> Embeddings:
    """Return the vectors of chunks that are read with the rest of their documents.

    Args:
        encoder: An encoder with `encode_chunks`.
        chunking: The chunking of the index, which is `late`.
        chunks: All chunks of some documents.
        wanted: Keys of the chunks to encode, in the order of the vectors; by default those of all chunks.
    """
    documents: dict[str, list[Chunk]] = {}
    for chunk in sorted(chunks, key=lambda chunk: chunk.number):
        documents.setdefault(chunk.document, []).append(chunk)
    span_of = {
        chunk.key: span
        for parts in documents.values()
        for chunk, span in zip(parts, _spans([part.text for part in parts]), strict=True)
    }
    wanted_keys = [chunk.key for chunk in chunks] if wanted is None else list(wanted)
    keys_of: dict[str, list[str]] = {id: [] for id in documents}
    for key in wanted_keys:
        keys_of[document_id_of(key)].append(key)
    vectors = encoder.encode_chunks(
        ["".join(part.text for part in parts) for parts in documents.values()],
        [[span_of[key] for key in keys] for keys in keys_of.values()],
        prompt_name=next((name for name in DOCUMENT_PROMPTS if name in encoder.prompts), None),
        window=chunking.window or None,
    )
    row_of = {key: row for row, key in enumerate(chain.from_iterable(keys_of.values()))}
    return np.asarray(np.concatenate(vectors)[[row_of[key] for key in wanted_keys]], np.float32)


def _spans(chunks: Sequence[str]) -> list[Span]:
    """Where chunks are in the text that they make up, without the white space behind them."""
    ends = accumulate(map(len, chunks))
    return [(end - len(chunk), end - len(chunk) + len(chunk.rstrip())) for end, chunk in zip(ends, chunks, strict=True)]


def _window(encoder: Any, requested: int) -> int:
    """Tokens that an encoder reads at once: as many as requested, or by default."""
    if not callable(getattr(encoder, "encode_chunks", None)):
        raise InputError(
            f"A {type(encoder).__name__} cannot encode chunks together; use an Encoder of this package, or leave out "
            "late."
        )
    context = encoder.backbone.context_length
    if context is not None and requested > context:
        raise InputError(f"A window of {requested} tokens is over the model's context of {context} tokens.")
    return requested or int(encoder.max_seq_length)


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
