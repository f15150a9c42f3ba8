"""Texts that arrive as token ids: some clients cut them with OpenAI's tokenizer, which is not the model's."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from decoder2vec.serving.problems import Problem

_VOCABULARY = "cl100k_base"
"""What OpenAI's embeddings use, and LangChain for names it does not know."""
_ADDRESS = f"https://openaipublic.blob.core.windows.net/encodings/{_VOCABULARY}.tiktoken"


def texts_of(ids: Sequence[Sequence[int]]) -> list[str]:
    """The texts that OpenAI's tokenizer cut into these ids."""
    vocabulary = tiktoken_vocabulary()
    if vocabulary is None:
        raise Problem(
            400,
            "The input is token ids, which this server cannot turn back into texts; send texts. "
            "In LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False).",
            code="token_ids",
            param="input",
        )
    top = vocabulary.max_token_value
    if any(not 0 <= one <= top for some in ids for one in some):
        raise Problem(400, f"A token id is outside 0 to {top}, those of {vocabulary.name}.", param="input")
    try:
        return [vocabulary.decode(list(some)) for some in ids]
    except (KeyError, ValueError):
        raise Problem(400, f"A token id is unknown to {vocabulary.name}.", param="input") from None


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
