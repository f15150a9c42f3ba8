"""How many tokens a text takes, told before the model reads it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from decoder2vec.serving.api_errors import APIError
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


_VOCABULARY = "cl100k_base"
"""What OpenAI's embeddings use, and LangChain for names it does not know."""
_ADDRESS = f"https://openaipublic.blob.core.windows.net/encodings/{_VOCABULARY}.tiktoken"


def texts_of(ids: Sequence[Sequence[int]]) -> list[str]:
    """The texts that OpenAI's tokenizer cut into these ids."""
    vocabulary = tiktoken_vocabulary()
    if vocabulary is None:
        raise APIError(
            400,
            "The input is token ids, which this server cannot turn back into texts; send texts. "
            "In LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False).",
            code="token_ids",
            param="input",
        )
    top = vocabulary.max_token_value
    if any(not 0 <= one <= top for some in ids for one in some):
        raise APIError(400, f"A token id is outside 0 to {top}, those of {vocabulary.name}.", param="input")
    try:
        return [vocabulary.decode(list(some)) for some in ids]
    except (KeyError, ValueError):
        raise APIError(400, f"A token id is unknown to {vocabulary.name}.", param="input") from None


@cache
def tiktoken_vocabulary() -> Any | None:
    """OpenAI's tokenizer where it and its vocabulary are on this machine; nothing is fetched."""
    try:
        import tiktoken
    except ImportError:
        return None
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = folder or os.path.join(tempfile.gettempdir(), "data-gym-cache")
    # tiktoken itself names the file so; asked for a file that is not there it would go out and fetch it
    if not (Path(folder) / hashlib.sha1(_ADDRESS.encode()).hexdigest()).is_file():
        return None
    return tiktoken.get_encoding(_VOCABULARY)
