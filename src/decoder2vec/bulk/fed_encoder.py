"""The encoder of a worker that is fed with tokens."""

from __future__ import annotations

from collections.abc import Sequence

from decoder2vec.activations.extract import Reader
from decoder2vec.bulk.tokens import FedTokeniser, KnownPrompts
from decoder2vec.encoder import Encoder


class FedEncoder(Encoder):
    """An `Encoder` that takes the tokens of some texts from elsewhere; vectors are those of the encoder itself."""

    known: Sequence[KnownPrompts] = ()
    """The prompts of texts, for each template of the encoder."""

    def _reader(self, prompt: str | None, batch_size: int | None) -> Reader:
        reader = super()._reader(prompt, batch_size)
        for (_, extractor), known in zip(reader.extractors, self.known, strict=False):
            own = extractor.tokeniser
            extractor.tokeniser = FedTokeniser(own.backbone, own.template, own.max_length, own.on_overflow, known)
        return reader
