"""Texts to token ids and pooled spans, by the tokenizer's own offsets over one whole prompt.

Nothing is tokenised in pieces: a token that straddles the border between prefix and text is seen as what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.text.template import Template

ON_OVERFLOW = ("truncate", "chunk", "error")


@dataclass(frozen=True)
class Prompt:
    """One tokenised prompt: its ids, and the tokens [start, end) that are pooled."""

    ids: list[int]
    start: int
    end: int


@dataclass
class Tokenised:
    """Prompts of some texts, and what had to be done to make them fit."""

    prompts: list[Prompt] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """For each prompt the number of its text; a text cut in chunks owns several prompts."""
    overlong: list[int] = field(default_factory=list)
    """Numbers of the texts that were longer than the limit."""


@dataclass(frozen=True)
class Tokeniser:
    """Turns texts into prompts of at most `max_length` tokens."""

    backbone: Backbone
    template: Template
    max_length: int
    on_overflow: str = "truncate"

    def __post_init__(self) -> None:
        if self.on_overflow not in ON_OVERFLOW:
            raise unknown_name("on_overflow", self.on_overflow, ON_OVERFLOW)
        context = self.backbone.context_length
        if context is not None and self.max_length > context:
            raise InputError(f"max_length {self.max_length} is over the model's context of {context} tokens.")
        fixed = len(self._encode([""])[0].ids) + (self.backbone.missing_bos_token_id is not None)
        if self.max_length < fixed + self.template.slots:
            raise InputError(
                f"max_length {self.max_length} leaves no room for the text: the template alone takes {fixed} tokens."
            )

    def __call__(self, texts: Sequence[str], numbers: Sequence[int] | None = None) -> Tokenised:
        """Tokenise all texts; those over the limit are cut, split or refused as `on_overflow` says.

        `numbers` are the texts' places in the user's list, for messages.
        """
        result = Tokenised()
        for number, (text, encoding) in enumerate(zip(texts, self._encode(texts), strict=True)):
            prompts = [self._prompt(encoding, text)]
            if len(prompts[0].ids) > self.max_length:
                result.overlong.append(number)
                prompts = self._fit(numbers[number] if numbers else number, text, encoding)
            result.prompts += prompts
            result.owners += [number] * len(prompts)
        return result

    def _encode(self, texts: Sequence[str]) -> list[Any]:
        rendered = [self.template.render(text)[0] for text in texts]
        backend = self.backbone.tokenizer.backend_tokenizer
        # a call of the tokenizer with padding or truncation leaves them switched on behind everybody's back
        backend.no_padding()
        backend.no_truncation()
        return list(backend.encode_batch(rendered))

    def _prompt(self, encoding: Any, text: str) -> Prompt:
        """Ids and pooled span: the tokens that reach beyond the first character of the last copy of the text."""
        _, first, _ = self.template.render(text)
        ids: list[int] = encoding.ids
        start = 0
        if first:
            offsets, special = encoding.offsets, encoding.special_tokens_mask
            start = next((i for i, (_, end) in enumerate(offsets) if end > first and not special[i]), len(ids) - 1)
        if (bos := self.backbone.missing_bos_token_id) is not None:
            ids, start = [bos, *ids], start + 1 if first else 0
        if not ids:
            ids, start = [self.backbone.empty_text_token_id], 0
        return Prompt(ids, max(start, 0), len(ids))

    def _fit(self, number: int, text: str, encoding: Any) -> list[Prompt]:
        if self.on_overflow == "error":
            raise InputError(
                f"Text {number} takes {len(encoding.ids)} tokens, over the limit of {self.max_length}; raise "
                "max_length, or set on_overflow to 'truncate' or 'chunk'."
            )
        if self.on_overflow == "truncate":
            return [self._longest_head(text, encoding)[1]]
        return list(self._chunks(text))

    def _chunks(self, text: str) -> Iterator[Prompt]:
        """Prompts of the text's pieces in order; only as much is tokenised at a time as is likely to fit."""
        reach = 16 * self.max_length
        while text:
            piece = text[:reach]
            encoding = self._encode([piece])[0]
            head, prompt = len(piece), self._prompt(encoding, piece)
            if len(prompt.ids) > self.max_length:
                head, prompt = self._longest_head(piece, encoding)
            elif len(piece) < len(text):
                reach *= 2
                continue
            yield prompt
            text = text[head:]

    def _longest_head(self, text: str, encoding: Any) -> tuple[int, Prompt]:
        """How many characters of the text fit, and their prompt; template and suffix always stay whole.

        The cut text is tokenised anew, so its vector is exactly that of the shorter text.
        """
        _, first, last = self.template.render(text)
        special = encoding.special_tokens_mask
        ends = [end - first for i, (_, end) in enumerate(encoding.offsets) if first < end <= last and not special[i]]
        excess = len(encoding.ids) + (self.backbone.missing_bos_token_id is not None) - self.max_length
        keep = len(ends) - -(-excess // self.template.slots)
        while keep > 0:
            head = ends[keep - 1]
            if head > 0:
                prompt = self._prompt(self._encode([text[:head]])[0], text[:head])
                if len(prompt.ids) <= self.max_length:
                    return head, prompt
                keep -= max(1, -(-(len(prompt.ids) - self.max_length) // self.template.slots))
            else:
                keep -= 1
        # not even one token's characters fit (one character can take several tokens): give up that character
        return 1, self._prompt(self._encode([""])[0], "")


Span = tuple[int, int]
"""First character and the one behind the last."""


def token_positions(
    texts: Sequence[str], prompts: Sequence[Prompt], backbone: Backbone, spans: Callable[[str], Iterable[Span]]
) -> list[list[list[int]]]:
    """For each plain text the places in its prompt of the tokens that every span touches.

    A text that was cut to fit has those spans that stand whole in what is left of it. A span of which the tokenizer
    keeps nothing has no tokens.
    """
    backend = backbone.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    shift = int(backbone.missing_bos_token_id is not None)
    found: list[list[list[int]]] = []
    for text, prompt, encoding in zip(texts, prompts, backend.encode_batch(list(texts)), strict=True):
        offsets, kept = encoding.offsets, _alike(prompt.ids[shift:], encoding.ids)
        lost = min((begin for begin, end in offsets[kept:] if begin < end), default=len(text))
        holders = _holders(len(text), offsets[:kept], shift)
        found.append([_together(holders[slice(*span)]) for span in spans(text) if span[1] <= lost])
    return found


def _alike(ids: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens are the same up to the first that is not: where a text was cut, or EOS added to what is left."""
    return next((n for n, (one, other) in enumerate(zip(ids, others, strict=False)) if one != other), len(ids))


def _holders(size: int, offsets: Sequence[Span], shift: int) -> list[list[int]]:
    """For each character the places of the tokens that it is a part of."""
    found: list[list[int]] = [[] for _ in range(size)]
    for place, span in enumerate(offsets):
        for character in range(*span):
            found[character].append(place + shift)
    return found


def _together(places: Iterable[list[int]]) -> list[int]:
    return sorted({place for some in places for place in some})
