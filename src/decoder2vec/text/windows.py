"""Windows of a text: prompts in which chunks of the text are pooled one by one, each with the text around it.

A text that fits into the model is one window. A longer one is read in several, which overlap: every chunk is pooled in
one of them, in which as much text as fits stands on both sides of it. A chunk pools what a text of its own would: its
tokens, the part of the template behind a text and the EOS token, which therefore follow every chunk, and the BOS token
where nothing precedes a text. What precedes a text is read once per window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoder2vec.backbone.vocabulary import check_token_ids
from decoder2vec.errors import InputError, TextError
from decoder2vec.text.template import SLOT, Template
from decoder2vec.text.tokens import CHARACTERS_AT_ONCE, Prompt, Span, Tokeniser, TokenSource, plain_backend

_CONTEXT_SHARE = 8
"""A window holds as many chunks as leave this part of it, an eighth, on either side for the text around them."""


@dataclass
class Windows:
    """The prompts of all windows, and the chunk that each pooled vector belongs to."""

    prompts: list[Prompt] = field(default_factory=list)
    chunk_indices: list[int] = field(default_factory=list)
    """Index of the chunk of each vector; a chunk that is longer than a window may have several."""
    truncated: list[int] = field(default_factory=list)
    """Indices of the chunks whose end was cut off."""


class _Part(NamedTuple):
    """What a window pools of a chunk: all of it, unless it is longer than a window."""

    begin: int
    end: int
    chunk: int


class _Layout(NamedTuple):
    """The text of one window and what is pooled in it."""

    begin: int
    end: int
    parts: list[_Part]


class WindowTokeniser:
    """Turns texts and the spans of their chunks into windows of at most `max_length` tokens.

    Args:
        backbone: The model whose tokenizer is used.
        template: The prompt around each text.
        max_length: Maximum number of tokens of a window, template included.
        on_overflow: What to do with chunks that are longer than a window: "truncate", "chunk" (pool parts of it), or
            raise an "error".
    """

    def __init__(
        self, backbone: TokenSource, template: Template, max_length: int, on_overflow: str = "truncate"
    ) -> None:
        # it checks the limits, and makes the prompts of chunks without tokens
        self._alone = Tokeniser(backbone, template, max_length, "truncate")
        self.backbone, self.max_length, self.on_overflow = backbone, max_length, on_overflow
        self._slots = template.slots
        self._before, self._after = template.string.rsplit(SLOT, 1)
        probe = plain_backend(backbone.tokenizer).encode(template.render("a")[0])
        content = np.flatnonzero(np.array(probe.special_tokens_mask) == 0)
        self._trailing: list[int] = probe.ids[content[-1] + 1 :]
        """Special tokens that the tokenizer puts behind a text."""
        self._missing_bos = [] if backbone.missing_bos_token_id is None else [backbone.missing_bos_token_id]
        self._n_leading = int(content[0]) + len(self._missing_bos)
        template_encoding = plain_backend(backbone.tokenizer).encode(template.string.replace(SLOT, ""))
        self._n_template = len(template_encoding.ids) + len(self._missing_bos)
        self._n_after = len(self._text_tokens(self._after)) + len(self._trailing)
        self._context = max_length // _CONTEXT_SHARE

    @property
    def pools_bos(self) -> bool:
        """Whether the first pooled token of every chunk is the BOS token."""
        return not self._before and self._n_leading > 0

    def __call__(self, text: str, spans: Sequence[Span], index: int = 0) -> Windows:
        """Return the windows of a text.

        Args:
            text: The text.
            spans: Begin and end of each chunk in characters; they may overlap, in any order.
            index: Position of the text in the user's list, for error messages.
        """
        result = Windows()
        starts = self._text_tokens(text)
        waiting = sorted(_Part(begin, end, chunk) for chunk, (begin, end) in enumerate(spans))
        while waiting:
            layout, prompt = self._next_window(text, starts, waiting)
            cut = layout.parts[0] if layout.parts[0] != waiting[0] else None
            first, waiting = waiting[0], waiting[len(layout.parts) :]
            if cut and self.on_overflow == "error":
                reason = f"has the chunk {first[:2]}, over the limit of {self.max_length} tokens"
                raise TextError(index, text, f"{reason}; give shorter chunks, or set on_overflow to 'truncate'.")
            if cut and self.on_overflow == "chunk":
                waiting.insert(0, first._replace(begin=cut.end))
            elif cut:
                result.truncated.append(first.chunk)
            for part, chunk in zip(layout.parts, prompt.chunks, strict=True):
                if not chunk:  # characters that the tokenizer drops
                    self._add(result, self._prompt_alone(text[part.begin : part.end]), [part])
            kept = [part for part, chunk in zip(layout.parts, prompt.chunks, strict=True) if chunk]
            if kept:
                chunks = tuple(chunk for chunk in prompt.chunks if chunk)
                self._add(result, Prompt(prompt.ids, prompt.start, prompt.end, chunks), kept)
        return result

    def _add(self, result: Windows, prompt: Prompt, parts: Sequence[_Part]) -> None:
        result.prompts.append(prompt)
        result.chunk_indices += [part.chunk for part in parts]

    def _prompt_alone(self, text: str) -> Prompt:
        prompt = self._alone([text]).prompts[0]
        return Prompt(prompt.ids, prompt.start, prompt.end, (tuple(range(prompt.start, prompt.end)),))

    def _text_tokens(self, text: str) -> NDArray[np.int64]:
        """Where the tokens of a text begin, in characters; long texts are tokenised in pieces."""
        pieces = []
        for begin in range(0, len(text), CHARACTERS_AT_ONCE):
            piece = text[begin : begin + CHARACTERS_AT_ONCE]
            offsets = plain_backend(self.backbone.tokenizer).encode(piece, add_special_tokens=False).offsets
            pieces.append(begin + np.array([start for start, _ in offsets], np.int64))
        return np.maximum.accumulate(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)

    def _next_window(self, text: str, starts: NDArray[np.int64], waiting: Sequence[_Part]) -> tuple[_Layout, Prompt]:
        """The window of the first chunks that wait; it is made smaller until it fits, template included."""
        spare = 0
        while True:
            layout = self._lay_out(len(text), starts, waiting, spare)
            prompt = self._prompt(text, layout)
            excess = len(prompt.ids) - self.max_length
            if excess <= 0:
                return layout, prompt
            spare += -(-excess // self._slots) * self._slots

    def _lay_out(self, length: int, starts: NDArray[np.int64], waiting: Sequence[_Part], spare: int) -> _Layout:
        """Choose as many chunks as leave room for context on both sides, and the text around them.

        Args:
            length: Characters of the text.
            starts: Where its tokens begin.
            waiting: Chunks that have no window yet, sorted; one at least.
            spare: Tokens to leave free.
        """
        first = max(0, int(np.searchsorted(starts, waiting[0].begin, "right")) - 1)
        last, n_tokens, ends = first, len(starts), {length}
        parts: list[_Part] = []
        for part in waiting:
            stop = max(last, int(np.searchsorted(starts, part.end, "left")))
            needed = stop - first + min(self._context, first) + min(self._context, n_tokens - stop)
            if parts and needed > self._room(len(ends | {part.end}), spare):
                break
            parts.append(part)
            ends.add(part.end)
            last = stop
        free = self._room(len(ends), spare) - (last - first)
        if free < 0:  # a single chunk that is longer than a window
            last, free = last + free, 0
            if last <= first:
                raise InputError(
                    f"A window of {self.max_length} tokens leaves no room for the text: the template alone takes "
                    f"{self._n_template}."
                )
            parts = [parts[0]._replace(end=int(starts[last]))]
        left = min(first, max(free // 2, free - (n_tokens - last)))
        right = min(n_tokens - last, free - left)
        begin = int(starts[first - left]) if first > left else 0
        end = int(starts[last + right]) if last + right < n_tokens else length
        return _Layout(begin, end, parts)

    def _room(self, n_ends: int, spare: int) -> int:
        """Tokens of the text that fit into a window with chunks that end in `n_ends` places, its own end included."""
        return (self.max_length - self._n_template - (n_ends - 1) * self._n_after - spare) // self._slots

    def _prompt(self, text: str, layout: _Layout) -> Prompt:
        """The tokens of a window and of each of its chunks."""
        ends = sorted({part.end for part in layout.parts} | {layout.end})
        strings = [self._before.replace(SLOT, text[layout.begin : layout.end])]
        length, position = len(strings[0]), layout.begin
        pooled_from = length
        pieces: list[tuple[int, int, int]] = []  # begin and end of text between two ends, and where the prompt has it
        for end in ends:
            pieces.append((position, end, length))
            strings += [text[position:end], self._after]
            length += end - position + len(self._after)
            position = end
        encoding = plain_backend(self.backbone.tokenizer).encode("".join(strings))
        tokens = _Tokens.of(encoding)
        behind = {
            end: tokens.between(at + end - begin, at + end - begin + len(self._after)) for begin, end, at in pieces
        }
        text_tokens = {
            part: [
                token
                for begin, end, at in pieces
                if begin < part.end and end > part.begin
                for token in tokens.between(at + max(begin, part.begin) - begin, at + min(end, part.end) - begin)
            ]
            for part in layout.parts
        }
        inserted_after: dict[int, list[int]] = {}  # two ends may be within one token
        for begin, end, at in pieces[:-1]:
            inserted_after.setdefault(max(behind[end], default=tokens.before(at + end - begin)), []).append(end)
        ids, new_position, special = self._insert_trailing(encoding.ids, inserted_after, layout.end)
        leading = range(self._n_leading) if not self._before else ()
        chunks = tuple(
            (*leading, *(new_position[token] for token in sorted({*own, *behind[part.end]})), *special[part.end])
            if (own := text_tokens[part])
            else ()
            for part in layout.parts
        )
        start = new_position[tokens.first_reaching(pooled_from)] if pooled_from else 0
        check_token_ids(ids, self.backbone.vocabulary_size)
        return Prompt(ids, start, len(ids), chunks)

    def _insert_trailing(
        self, ids: list[int], inserted_after: dict[int, list[int]], window_end: int
    ) -> tuple[list[int], list[int], dict[int, range]]:
        """Put the special tokens that end a text behind every chunk, and a BOS that the tokenizer omits in front.

        Args:
            ids: Token ids of the window.
            inserted_after: Token -> the ends of chunks that follow it.
            window_end: The end of the window, which the tokenizer has put special tokens behind.

        Returns:
            Token ids, the new position of each token, and the positions of the special tokens of each end.
        """
        result, new_position = list(self._missing_bos), []
        special: dict[int, range] = {}
        for token, id in enumerate(ids):
            new_position.append(len(result))
            result.append(id)
            if token in inserted_after:
                own = range(len(result), len(result) + len(self._trailing))
                special |= dict.fromkeys(inserted_after[token], own)
                result += self._trailing
        special[window_end] = range(len(result) - len(self._trailing), len(result))
        return result, new_position, special


class _Tokens(NamedTuple):
    """Offsets of the tokens of a prompt in its characters, without special tokens."""

    indices: NDArray[np.int64]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, encoding: Any) -> _Tokens:
        indices = np.flatnonzero(np.array(encoding.special_tokens_mask, bool) == 0)
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)[indices]
        return cls(indices, offsets[:, 0], offsets[:, 1])

    def first_reaching(self, character: int) -> int:
        """The first token that reaches beyond a character, as the first pooled token of a prompt."""
        found = np.flatnonzero(self.ends > character)
        return int(self.indices[found[0] if len(found) else -1])

    def before(self, character: int) -> int:
        """The last token that begins before a character."""
        found = np.flatnonzero(self.begins < character)
        return int(self.indices[found[-1]]) if len(found) else -1

    def between(self, begin: int, end: int) -> list[int]:
        """The tokens from the first that reaches beyond `begin` to the last that begins before `end`."""
        reaching = np.flatnonzero(self.ends > begin) if begin else np.arange(len(self.indices))
        beginning = np.flatnonzero(self.begins < end)
        if begin >= end or not len(reaching) or not len(beginning):
            return []
        return [int(index) for index in self.indices[reaching[0] : beginning[-1] + 1]]
