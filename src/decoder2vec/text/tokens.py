"""Tokenisation of prompts: token ids, the pooled span, and the tokens of spans within a text.

A prompt is always tokenised as a whole and mapped by the tokenizer's own offsets, never in pieces: a token that
straddles the border between prefix and text is handled as the single token it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from decoder2vec.backbone.vocabulary import check_token_ids
from decoder2vec.errors import InputError, TextError, unknown_name

if TYPE_CHECKING:
    from decoder2vec.backbone.backbone import Backbone

CHARACTERS_PER_TOKEN = 32
"""More than tokens have on average in any text but one of blanks."""
CHARACTERS_AT_ONCE = 2**18
"""Characters that are tokenised at a time: while a tokenizer works, it takes hundreds of bytes for each of them."""
_TOKENS_NEAR_A_CUT = 64
"""Tokens before the end of a cut text that may differ from those of the whole text, at most."""
ON_OVERFLOW = ("truncate", "chunk", "error")

Span = tuple[int, int]
"""Begin and end in characters; the end is exclusive."""


@dataclass(frozen=True)
class Prompt:
    """One tokenised prompt: its ids, and the tokens [start, end) that are pooled."""

    ids: list[int]
    start: int
    end: int
    chunks: tuple[tuple[int, ...], ...] = ()
    """Positions of the tokens of each chunk of the text, which are pooled one by one instead of [start, end)."""

    def without_first(self, count: int) -> Prompt:
        """Return what follows the first `count` tokens, none of which is pooled."""
        chunks = tuple(tuple(position - count for position in chunk) for chunk in self.chunks)
        return Prompt(self.ids[count:], self.start - count, self.end - count, chunks)


@dataclass
class Tokenised:
    """The prompts of a list of texts."""

    prompts: list[Prompt] = field(default_factory=list)
    text_indices: list[int] = field(default_factory=list)
    """Index of the text of each prompt; a text split into chunks has several prompts."""
    overlong: list[int] = field(default_factory=list)
    """Indices of the texts that were longer than the limit."""


class TokenSource(Protocol):
    """What a `Tokeniser` needs of a `Backbone`."""

    @property
    def tokenizer(self) -> Any:
        """An object whose `backend_tokenizer` is a tokenizer of the library tokenizers."""

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens of an input; None if there is no limit."""

    @property
    def missing_bos_token_id(self) -> int | None:
        """The BOS token if one is needed and the tokenizer does not add it, else None."""

    @property
    def empty_text_token_id(self) -> int:
        """The token that represents a text without tokens."""

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that the model has an embedding for."""


class PromptTemplate(Protocol):
    """What a `Tokeniser` needs of a `Template`."""

    @property
    def slots(self) -> int:
        """Number of copies of the text in a prompt."""

    def render(self, text: str) -> tuple[str, int, int]:
        """Return the prompt, and begin and end of the last copy of the text in it, in characters."""

    def pooled_from(self, text: str) -> int:
        """Return the character of the prompt from which on it is pooled."""


@dataclass(frozen=True)
class Tokeniser:
    """Turns texts into prompts of at most `max_length` tokens.

    Args:
        backbone: The model whose tokenizer is used.
        template: The prompt around each text.
        max_length: Maximum number of tokens of a prompt, template included.
        on_overflow: What to do with longer prompts: "truncate" the text, split it into "chunk"s, or raise an "error".
    """

    backbone: TokenSource
    template: PromptTemplate
    max_length: int
    on_overflow: str = "truncate"

    def __post_init__(self) -> None:
        if self.on_overflow not in ON_OVERFLOW:
            raise unknown_name("on_overflow", self.on_overflow, ON_OVERFLOW)
        context = self.backbone.context_length
        if context is not None and self.max_length > context:
            raise InputError(f"max_length {self.max_length} is over the model's context of {context} tokens.")
        template_tokens = len(self._encode([""])[0].ids) + (self.backbone.missing_bos_token_id is not None)
        if self.max_length < template_tokens + self.template.slots:
            raise InputError(
                f"max_length {self.max_length} leaves no room for the text: the template alone takes "
                f"{template_tokens} tokens."
            )

    def __call__(self, texts: Sequence[str], indices: Sequence[int] | None = None) -> Tokenised:
        """Tokenise all texts.

        Args:
            texts: The texts.
            indices: Positions of the texts in the user's list, for error messages; 0, 1, 2, ... by default.
        """
        result = Tokenised()
        beginnings = [text if self.on_overflow == "error" else text[: self._lookahead] for text in texts]
        for index, (text, encoding) in enumerate(zip(beginnings, self._encode(beginnings), strict=True)):
            if len(text) < len(texts[index]):
                text, encoding = self._overlong_beginning(texts[index], encoding)
            prompts = [self._prompt(encoding, text)]
            if len(prompts[0].ids) > self.max_length:
                result.overlong.append(index)
                whole = texts[index] if self.on_overflow == "chunk" else text
                prompts = self._shorten(indices[index] if indices else index, whole, encoding)
            result.prompts += prompts
            result.text_indices += [index] * len(prompts)
        return result

    @property
    def _lookahead(self) -> int:
        """Number of characters that are likely to be more than fit: a text of megabytes is not tokenised as a whole."""
        return CHARACTERS_PER_TOKEN * self.max_length

    def _overlong_beginning(self, text: str, encoding: Any) -> tuple[str, Any]:
        """The beginning of a text that has more tokens than fit, with its encoding; the whole text if it fits.

        Args:
            text: The text.
            encoding: That of its first characters, as many as `_lookahead`.
        """
        length = self._lookahead
        while length < len(text) and len(encoding.ids) < self.max_length + _TOKENS_NEAR_A_CUT:
            length *= 4
            encoding = self._encode([text[:length]])[0]
        return text[:length], encoding

    def _encode(self, texts: Sequence[str]) -> list[Any]:
        rendered = [self.template.render(text)[0] for text in texts]
        return list(plain_backend(self.backbone.tokenizer).encode_batch(rendered))

    def _prompt(self, encoding: Any, text: str) -> Prompt:
        """Ids and pooled span: the tokens that reach beyond the first pooled character."""
        begin = self.template.pooled_from(text)
        ids: list[int] = encoding.ids
        start = 0
        if begin:
            offsets, special = encoding.offsets, encoding.special_tokens_mask
            start = next((i for i, (_, end) in enumerate(offsets) if end > begin and not special[i]), len(ids) - 1)
        if (bos := self.backbone.missing_bos_token_id) is not None:
            ids, start = [bos, *ids], start + 1 if begin else 0
        if not ids:
            ids, start = [self.backbone.empty_text_token_id], 0
        check_token_ids(ids, self.backbone.vocabulary_size)
        return Prompt(ids, max(start, 0), len(ids))

    def _shorten(self, index: int, text: str, encoding: Any) -> list[Prompt]:
        if self.on_overflow == "error":
            reason = f"takes {len(encoding.ids)} tokens, over the limit of {self.max_length}"
            hint = "raise max_length, or set on_overflow to 'truncate' or 'chunk'"
            raise TextError(index, text, f"{reason}; {hint}.")
        if self.on_overflow == "truncate":
            return [self._longest_prefix(text, encoding)[1]]
        return list(self._chunks(text))

    def _chunks(self, text: str) -> Iterator[Prompt]:
        """Prompts of consecutive chunks of the text; only as much is tokenised at a time as is likely to fit."""
        lookahead = 16 * self.max_length
        while text:
            piece = text[:lookahead]
            encoding = self._encode([piece])[0]
            length, prompt = len(piece), self._prompt(encoding, piece)
            if len(prompt.ids) > self.max_length:
                length, prompt = self._longest_prefix(piece, encoding)
            elif len(piece) < len(text):
                lookahead *= 2
                continue
            yield prompt
            text = text[length:]

    def _longest_prefix(self, text: str, encoding: Any) -> tuple[int, Prompt]:
        """How many characters of the text fit, and their prompt; the template is never cut.

        The shortened text is tokenised again, so its vector is exactly that of the shorter text.
        """
        _, text_begin, text_end = self.template.render(text)
        special = encoding.special_tokens_mask
        ends = [
            end - text_begin
            for i, (_, end) in enumerate(encoding.offsets)
            if text_begin < end <= text_end and not special[i]
        ]
        excess = len(encoding.ids) + (self.backbone.missing_bos_token_id is not None) - self.max_length
        n_tokens = len(ends) - -(-excess // self.template.slots)
        while n_tokens > 0:
            length = ends[n_tokens - 1]
            if length > 0:
                prompt = self._prompt(self._encode([text[:length]])[0], text[:length])
                if len(prompt.ids) <= self.max_length:
                    return length, prompt
                n_tokens -= max(1, -(-(len(prompt.ids) - self.max_length) // self.template.slots))
            else:
                n_tokens -= 1
        # not even the characters of one token fit (one character can take several tokens): skip one character
        return 1, self._prompt(self._encode([""])[0], "")


def tokenising_batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield consecutive texts that are tokenised at a time; a text of more than `CHARACTERS_AT_ONCE` is alone."""
    batch: list[str] = []
    n_characters = 0
    for text in texts:
        if batch and n_characters + len(text) > CHARACTERS_AT_ONCE:
            yield batch
            batch, n_characters = [], 0
        batch.append(text)
        n_characters += len(text)
    if batch:
        yield batch


def token_positions(
    texts: Sequence[str], prompts: Sequence[Prompt], backbone: Backbone, spans: Callable[[str], Iterable[Span]]
) -> list[list[list[int]]]:
    """Find the tokens that overlap each span of each text.

    Args:
        texts: The texts.
        prompts: The prompts of the texts under the "plain" template.
        backbone: The model whose tokenizer made the prompts.
        spans: Returns the spans of a text, such as its words.

    Returns:
        Positions of tokens in the prompt, for each span of each text. Of a truncated text, only the spans that lie
        completely within the kept part are listed. A span that the tokenizer drops has no tokens.
    """
    shift = int(backbone.missing_bos_token_id is not None)
    encodings = plain_backend(backbone.tokenizer).encode_batch(list(texts))
    positions: list[list[list[int]]] = []
    for text, prompt, encoding in zip(texts, prompts, encodings, strict=True):
        offsets, n_kept = encoding.offsets, _common_prefix(prompt.ids[shift:], encoding.ids)
        cut_at = min((begin for begin, end in offsets[n_kept:] if begin < end), default=len(text))
        by_character = _tokens_by_character(len(text), offsets[:n_kept], shift)
        positions.append(
            [
                sorted({token for tokens in by_character[slice(*span)] for token in tokens})
                for span in spans(text)
                if span[1] <= cut_at
            ]
        )
    return positions


def plain_backend(tokenizer: Any) -> Any:
    """The fast tokenizer with padding and truncation off: a call of the tokenizer that uses them leaves them on."""
    backend = tokenizer.backend_tokenizer
    if backend.padding is not None:  # a change while another thread tokenises is an error
        backend.no_padding()
    if backend.truncation is not None:
        backend.no_truncation()
    return backend


def _common_prefix(ids: Sequence[int], other_ids: Sequence[int]) -> int:
    """Number of equal leading tokens: they differ where the text was cut, or where EOS was added to what is left."""
    return next((i for i, (a, b) in enumerate(zip(ids, other_ids, strict=False)) if a != b), len(ids))


def _tokens_by_character(length: int, offsets: Sequence[Span], shift: int) -> list[list[int]]:
    """For each character, the positions of the tokens that it is part of."""
    tokens: list[list[int]] = [[] for _ in range(length)]
    for position, span in enumerate(offsets):
        for character in range(*span):
            tokens[character].append(position + shift)
    return tokens
