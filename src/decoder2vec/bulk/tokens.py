"""Texts that are tokenised in processes without a model, and the tokeniser that looks up their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from decoder2vec.bulk.files import Problems, import_pyarrow
from decoder2vec.errors import Decoder2VecError
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Prompt, Tokenised, Tokeniser

if TYPE_CHECKING:
    from decoder2vec.encoder import Encoder

KnownPrompts = Mapping[str, tuple[list[Prompt], bool]]
"""Text -> its prompts, and whether it was longer than the limit."""


@dataclass(frozen=True)
class TokeniserSettings:
    """All that a process needs to tokenise texts as an encoder does: a `TokenSource` without weights.

    Args:
        tokenizer_json: The tokenizer, in the format of tokenizer.json.
        context_length: Of the model.
        missing_bos_token_id: The BOS token, if the tokenizer does not add it.
        empty_text_token_id: The token of a text without tokens.
        vocabulary_size: Of the model.
        templates: The prompts, one for each pass of the encoder over a text.
        max_length: Tokens of a prompt.
        on_overflow: What is done with longer texts.
    """

    tokenizer_json: str
    context_length: int | None
    missing_bos_token_id: int | None
    empty_text_token_id: int
    vocabulary_size: int
    templates: tuple[str, ...]
    max_length: int
    on_overflow: str

    @classmethod
    def of(cls, encoder: Encoder, prompt: str) -> TokeniserSettings:
        """Return those of an encoder that reads texts after a prompt."""
        backbone, extractors = encoder.backbone, [each for _, each in encoder._reader(prompt, None).extractors]
        return cls(
            backbone.tokenizer.backend_tokenizer.to_str(),
            backbone.context_length,
            backbone.missing_bos_token_id,
            backbone.empty_text_token_id,
            backbone.vocabulary_size,
            tuple(extractor.template.string for extractor in extractors),
            extractors[0].max_length,
            extractors[0].on_overflow,
        )

    @property
    def tokenizer(self) -> TokeniserSettings:
        """Itself: a `Tokeniser` reads `tokenizer.backend_tokenizer` of a backbone."""
        return self

    @cached_property
    def backend_tokenizer(self) -> Any:
        """The tokenizer."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.tokenizer_json)

    @cached_property
    def tokenisers(self) -> list[Tokeniser]:
        """One for each template."""
        return [Tokeniser(self, Template(each), self.max_length, self.on_overflow) for each in self.templates]

    def tokenise(self, texts: Sequence[str]) -> list[bytes]:
        """Return the tokens of texts without duplicates for each template.

        Nothing if a text is refused: the encoder then tokenises them itself, and says why.
        """
        try:
            return [_to_bytes(tokeniser(texts)) for tokeniser in self.tokenisers]
        except Decoder2VecError:
            return []


@dataclass(frozen=True)
class LookupTokeniser(Tokeniser):
    """A tokeniser that looks up prompts that were made elsewhere, and makes those of other texts itself."""

    known: KnownPrompts = field(default_factory=dict)

    def __call__(self, texts: Sequence[str], indices: Sequence[int] | None = None) -> Tokenised:
        """Tokenise all texts."""
        if not all(text in self.known for text in texts):
            return super().__call__(texts, indices)
        result = Tokenised()
        for index, text in enumerate(texts):
            prompts, is_overlong = self.known[text]
            result.prompts += prompts
            result.text_indices += [index] * len(prompts)
            result.overlong += [index] * is_overlong
        return result


def distinct_texts(texts: Sequence[str | None], problems: Problems) -> list[str]:
    """Return the texts of rows without a problem, each once."""
    return list(dict.fromkeys(text for row, text in enumerate(texts) if row not in problems and text is not None))


def read_prompts(texts: Sequence[str], tokens: Sequence[bytes]) -> list[KnownPrompts]:
    """Return what `TokeniserSettings.tokenise` has made of texts without duplicates."""
    return [_from_bytes(texts, each) for each in tokens]


def _to_bytes(tokenised: Tokenised) -> bytes:
    """Prompts as a file of Arrow: small, and without pickle."""
    pyarrow, _ = import_pyarrow()
    prompts, overlong = tokenised.prompts, set(tokenised.overlong)
    ends = np.cumsum([0, *(len(prompt.ids) for prompt in prompts)], dtype=np.int32)
    ids = np.fromiter((id for prompt in prompts for id in prompt.ids), np.int32, count=int(ends[-1]))
    table = pyarrow.table(
        {
            "ids": pyarrow.ListArray.from_arrays(pyarrow.array(ends), pyarrow.array(ids)),
            "start": pyarrow.array([prompt.start for prompt in prompts], pyarrow.int32()),
            "end": pyarrow.array([prompt.end for prompt in prompts], pyarrow.int32()),
            "text": pyarrow.array(tokenised.text_indices, pyarrow.int32()),
            "overlong": [index in overlong for index in tokenised.text_indices],
        }
    )
    return table_to_bytes(table)


def _from_bytes(texts: Sequence[str], content: bytes) -> KnownPrompts:
    known: dict[str, tuple[list[Prompt], bool]] = {}
    columns = (column.to_pylist() for column in table_from_bytes(content).columns)
    for ids, start, end, index, is_overlong in zip(*columns, strict=True):
        known.setdefault(texts[index], ([], is_overlong))[0].append(Prompt(ids, start, end))
    return known


def table_to_bytes(table: Any) -> bytes:
    """A table of Arrow as a file."""
    pyarrow, _ = import_pyarrow()
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def table_from_bytes(content: bytes) -> Any:
    """The table that `table_to_bytes` has written."""
    pyarrow, _ = import_pyarrow()
    return pyarrow.ipc.open_stream(content).read_all()
