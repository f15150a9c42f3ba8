"""The encoder of a worker for texts that other processes have tokenised."""

from __future__ import annotations

from collections.abc import Sequence

from decoder2vec.activations.extract import Reader
from decoder2vec.bulk.tokens import KnownPrompts, LookupTokeniser
from decoder2vec.encoder import Encoder


class PretokenisedEncoder(Encoder):
    """An `Encoder` that takes the tokens of some texts from elsewhere; vectors are those of the encoder itself."""

    known: Sequence[KnownPrompts] = ()
    """The prompts of texts, for each template of the encoder."""

    def _reader(self, prompt: str | None, batch_size: int | None) -> Reader:
        reader = super()._reader(prompt, batch_size)
        for (_, extractor), known in zip(reader.extractors, self.known, strict=False):
            plain = extractor.tokeniser
            extractor.tokeniser = LookupTokeniser(
                plain.backbone, plain.template, plain.max_length, plain.on_overflow, known
            )
        return reader
