"""Long documents cut into overlapping chunks of whole sentences, measured as the encoder reads them: in tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.text.sentences import sentence_spans, trimmed
from decoder2vec.text.template import SLOT, Template

Measure = Callable[[Sequence[str]], list[int]]
"""Texts -> how long each is."""

_SPARE = 8
"""Tokens that are kept free: begin and end marks, and words that the template tears apart."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Chunking:
    """How long chunks are, and how much of the end of one stands again at the beginning of the next."""

    size: int = 256
    overlap: int = 32

    def __post_init__(self) -> None:
        if self.size < 8 or not 0 <= self.overlap <= self.size // 2:
            raise InputError(
                f"Chunks of {self.size} tokens that overlap by {self.overlap} cannot be made: "
                "give 8 tokens or more, and an overlap of at most half of them."
            )

    def within(self, encoder: Any) -> Chunking:
        """The same, or as much as the encoder can read at once beside its template."""
        room = _room(encoder)
        size = self.size if room is None else min(self.size, max(8, room))
        return Chunking(size, min(self.overlap, size // 2))

    def cut(self, text: str, measure: Measure) -> list[str]:
        """The chunks of a text, in order. Every sentence stands in one of them; only over-long ones are cut."""
        spans, lengths = _fitting(text, sentence_spans(text), measure, self.size)
        chunks, first, held = [], 0, 0
        for place, length in enumerate(lengths):
            if held + length > self.size:
                chunks.append(text[spans[first][0] : spans[place - 1][1]])
                first, held = self._onward(lengths, first, place)
            held += length + 1  # what stands between two sentences
        if spans:
            chunks.append(text[spans[first][0] : spans[-1][1]])
        return chunks

    def _onward(self, lengths: list[int], first: int, place: int) -> tuple[int, int]:
        """Where the next chunk begins, and how long it is already: the last sentences that fit into the overlap."""
        begin, held = place, 0
        while begin > first + 1 and held + lengths[begin - 1] <= min(self.overlap, self.size - lengths[place]):
            begin -= 1
            held += lengths[begin] + 1
        return begin, held


def _fitting(text: str, spans: list[Span], measure: Measure, size: int) -> tuple[list[Span], list[int]]:
    """Spans no longer than `size`, with their lengths: one that is longer is halved where a word ends."""
    known = _measured(text, spans, measure)
    while long := [span for span, length in known.items() if length > size and span[1] - span[0] > 1]:
        halves = {span: _halves(text, *span) for span in long}
        lengths = _measured(text, [half for both in halves.values() for half in both], measure)
        kept = [(half, lengths.get(half, known.get(half, 0))) for span in known for half in halves.get(span, [span])]
        known = dict(kept)
    return list(known), list(known.values())


def _measured(text: str, spans: list[Span], measure: Measure) -> dict[Span, int]:
    lengths = measure([text[begin:end] for begin, end in spans]) if spans else []
    return dict(zip(spans, lengths, strict=True))


def _halves(text: str, begin: int, end: int) -> list[Span]:
    middle = (begin + end) // 2
    gap = text.rfind(" ", begin + 1, middle + 1)
    cut = gap if gap > 0 else text.find(" ", middle, end - 1)
    cut = cut if cut > 0 else middle
    return [kept for span in ((begin, cut), (cut, end)) if (kept := trimmed(text, *span))]


def _room(encoder: Any) -> int | None:
    """Tokens of a text that are read; None where the encoder sets no limit."""
    limit = getattr(encoder, "max_seq_length", None)
    if not isinstance(limit, int):
        return None
    if not isinstance(encoder, Encoder):
        return limit - _SPARE
    longest = max(encoder.prompts.values(), key=len, default="")
    template = Template.of(encoder.spec.template).with_prefix(longest)
    return (limit - measure_of(encoder)([template.string.replace(SLOT, "")])[0]) // template.slots - _SPARE


def measure_of(encoder: Any) -> Measure:
    """Tokens as the encoder's tokenizer counts them; four characters are one where it has none."""
    tokenizer = getattr(encoder, "tokenizer", None)
    if tokenizer is None or not callable(tokenizer):
        return lambda texts: [len(text) // 4 + 1 for text in texts]

    def tokens(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]]

    return tokens
