"""Count the tokens of texts before the model reads them, and decode token ids that clients send instead of texts."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from decoder2vec.reranker import Reranker
from decoder2vec.serving.api_errors import APIError
from decoder2vec.text.pair_template import DOCUMENT, QUERY
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import CHARACTERS_AT_ONCE, tokenising_batches

_CHARACTERS_PER_TOKEN = 4
"""Estimate for encoders without a tokenizer."""
_OPENAI_VOCABULARY = "cl100k_base"
"""The vocabulary of OpenAI's embedding models, which LangChain also uses for model names it does not know."""
_OPENAI_VOCABULARY_URL = f"https://openaipublic.blob.core.windows.net/encodings/{_OPENAI_VOCABULARY}.tiktoken"


class TokenCounter:
    """Counts tokens with a copy of the encoder's tokenizer; the copy never changes, so any thread may use it."""

    def __init__(self, encoder: Any) -> None:
        self._tokenizer = _copy_tokenizer(getattr(getattr(encoder, "tokenizer", None), "backend_tokenizer", None))
        spec = getattr(encoder, "spec", None)
        templates = [reading.template or spec.template for reading in spec.readings] if spec else ["{text}"]
        self._templates = [Template(string) for string in dict.fromkeys(templates)]
        truncates = spec is not None and spec.on_overflow == "truncate"
        self._max_tokens = int(encoder.max_seq_length) * len(self._templates) if truncates else None

    def count(self, texts: Sequence[str], *, truncate: bool = True) -> list[int]:
        """Return the number of tokens of each text with its template.

        Args:
            texts: The texts.
            truncate: Count only what the model reads of a text that it truncates to its maximum length.
        """
        counts = self._count(texts)
        if truncate and self._max_tokens is not None:
            return [min(count, self._max_tokens) for count in counts]
        return counts

    def _count(self, texts: Sequence[str]) -> list[int]:
        if self._tokenizer is None:
            return [1 + len(text) // _CHARACTERS_PER_TOKEN for text in texts]
        # the tokenizer cannot read lone surrogates; here they count as "?", and the encoder rejects them
        valid = [text.encode("utf-8", "replace").decode() for text in texts]
        by_template = [
            _count_tokens(self._tokenizer, [template.render(text)[0] for text in valid]) for template in self._templates
        ]
        return [max(1, sum(counts)) for counts in zip(*by_template, strict=True)]


class PairTokenCounter:
    """Counts the tokens of prompts of a reranker, with a copy of its tokenizer that any thread may use."""

    def __init__(self, reranker: Reranker) -> None:
        self._tokenizer = _copy_tokenizer(reranker.backbone.tokenizer.backend_tokenizer)
        self._max_tokens = reranker.max_seq_length
        template = reranker.spec.template.replace(DOCUMENT, "").replace(QUERY, "")
        (self._template_tokens,) = _count_tokens(self._tokenizer, [template])

    def count(self, query: str, documents: Sequence[str]) -> list[int]:
        """Return the number of tokens that the model reads of the query with each document, within a few."""
        n_query, *n_documents = _count_tokens(self._tokenizer, [query, *documents])
        return [min(self._max_tokens, self._template_tokens + n_query + count) for count in n_documents]


def _count_tokens(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Number of tokens of each text; a long one is counted in pieces, whose borders add a token at most."""
    totals = [0] * len(texts)
    pieces = [(row, piece) for row, text in enumerate(texts) for piece in _pieces(text)]
    rows = iter(row for row, _ in pieces)
    for batch in tokenising_batches([piece for _, piece in pieces]):
        for encoding, row in zip(tokenizer.encode_batch_fast(batch), rows, strict=False):
            totals[row] += len(encoding)
    return totals


def _pieces(text: str) -> list[str]:
    """The text in pieces that are tokenised one at a time; the empty text is one."""
    starts = range(0, max(1, len(text)), CHARACTERS_AT_ONCE)
    return [text[start : start + CHARACTERS_AT_ONCE] for start in starts]


def _copy_tokenizer(tokenizer: Any) -> Any:
    if tokenizer is None:
        return None
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


def decode_token_ids(rows: Sequence[Sequence[int]], model: str | None) -> list[str]:
    """Return the texts of rows of token ids, or raise a 400 if they cannot be decoded.

    Args:
        rows: Token ids of OpenAI's embedding models.
        model: The model name in the request. Clients choose their vocabulary by it.
    """
    vocabulary = _load_vocabulary(model)
    max_id = vocabulary.max_token_value
    if any(not 0 <= token_id <= max_id for row in rows for token_id in row):
        raise APIError(400, f"A token id is outside 0 to {max_id}, the range of {vocabulary.name}.", param="input")
    try:
        return [vocabulary.decode(list(row)) for row in rows]
    except (KeyError, ValueError):
        raise APIError(400, f"A token id is unknown to {vocabulary.name}.", param="input") from None


def _load_vocabulary(model: str | None) -> Any:
    """Return OpenAI's tokenizer for embeddings, or raise a 400 that says why it is not there. Nothing is downloaded."""
    try:
        import tiktoken
    except ImportError:
        raise _refuse_token_ids("tiktoken is not installed on the server") from None
    # a client that knows the model's name uses the vocabulary of that model, and decoding would return another text
    with suppress(KeyError):
        if model and (known := tiktoken.encoding_name_for_model(model)) != _OPENAI_VOCABULARY:
            raise _refuse_token_ids(f"clients take {model!r} for an OpenAI model with the vocabulary {known}")
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = folder or os.path.join(tempfile.gettempdir(), "data-gym-cache")
    # tiktoken names its cached file by this digest, and downloads it if it is missing
    if not (Path(folder) / hashlib.sha1(_OPENAI_VOCABULARY_URL.encode()).hexdigest()).is_file():
        raise _refuse_token_ids(
            f"the vocabulary {_OPENAI_VOCABULARY} is not in the tiktoken cache of the server (TIKTOKEN_CACHE_DIR)"
        )
    return tiktoken.get_encoding(_OPENAI_VOCABULARY)


def _refuse_token_ids(reason: str) -> APIError:
    return APIError(
        400,
        f"The input is token ids, which this server cannot decode, since {reason}; send texts, "
        "in LangChain with OpenAIEmbeddings(check_embedding_ctx_length=False).",
        code="token_ids",
        param="input",
    )
