"""How many tokens a text takes, told before the model reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoder2vec.text.template import Template

_CHARACTERS = 4
"""Of a token, about, where there is no tokenizer to ask."""


class TokenCounter:
    """Counts with a copy of the encoder's tokenizer that nobody changes, so that any thread may ask."""

    def __init__(self, encoder: Any) -> None:
        self._backend = _copy_of(getattr(getattr(encoder, "tokenizer", None), "backend_tokenizer", None))
        spec = getattr(encoder, "spec", None)
        named = [reading.template or spec.template for reading in spec.readings] if spec else ["{text}"]
        self._templates = [Template(string) for string in dict.fromkeys(named)]
        cut = spec is not None and spec.on_overflow == "truncate"
        self._longest = int(encoder.max_seq_length) * len(self._templates) if cut else None

    def __call__(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text with the prompt around it, all of them."""
        if self._backend is None:
            return [1 + len(text) // _CHARACTERS for text in texts]
        clean = [text.encode("utf-8", "replace").decode() for text in texts]  # half a surrogate pair is refused later
        totals = [0] * len(texts)
        for template in self._templates:
            prompts = [template.render(text)[0] for text in clean]
            for row, encoding in enumerate(self._backend.encode_batch_fast(prompts)):
                totals[row] += len(encoding)
        return [max(1, total) for total in totals]

    def read(self, counts: Sequence[int]) -> list[int]:
        """Of so many tokens those that the model reads: a text that is too long is cut."""
        return [min(count, self._longest) for count in counts] if self._longest else list(counts)


def _copy_of(backend: Any) -> Any:
    if backend is None:
        return None
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(backend.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy
