"""Latents of chunks that are read together: one pass over a text, and a vector for each of its chunks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import Extractor, Progress, Reader, check_texts
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.tokens import Span
from decoder2vec.text.windows import WindowTokeniser

log = logging.getLogger(__name__)


class SentenceVectors(NamedTuple):
    """The vectors of the sentences of a text, and where they are."""

    vectors: NDArray[np.float32]
    """[sentence, dim]."""
    spans: list[Span]
    """Begin and end of each sentence in characters."""


def read_chunks(
    reader: Reader,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    window: int | None = None,
    progress: Progress = lambda _: None,
) -> NDArray[np.float32]:
    """Return [chunk, reading, dim] float32 vectors of the chunks of all texts, each text read as a whole.

    Args:
        reader: Reads the texts.
        texts: The texts.
        spans: The chunks of each text.
        window: Tokens that are read at once; by default the reader's `max_length`.
        progress: Called with the number of windows of each batch, once it is computed.

    Raises:
        InputError: A span is empty or outside its text, or the window is longer than the model's context.
        UnsupportedError: The encoder pools nothing of a chunk itself.
    """
    check_texts(texts)
    check_spans(texts, spans)
    adapter = reader.backbone.adapter
    if adapter and not adapter.pools_text:
        raise UnsupportedError(
            "This encoder pools its soft prompt, which reads a text as a whole; encode chunks alone."
        )
    result = np.empty((sum(map(len, spans)), len(reader.readings), reader.backbone.dim), np.float32)
    for columns, extractor in reader.extractors:
        result[:, columns] = _read(extractor, texts, spans, window or extractor.max_length, progress)
    return result


def check_spans(texts: Sequence[str], spans: Sequence[Sequence[Span]]) -> None:
    """Raise InputError for spans that are not (begin, end) of some characters of their text."""
    if len(texts) != len(spans):
        raise InputError(f"There are {len(texts)} texts and spans of {len(spans)}; give a list of spans for each text.")
    for index, (text, text_spans) in enumerate(zip(texts, spans, strict=True)):
        for span in text_spans:
            if not _is_span(span):
                raise InputError(f"Text {index} has the span {span!r}; give (begin, end) in characters.")
            if not 0 <= span[0] < span[1] <= len(text):
                raise InputError(
                    f"Text {index} has the span {tuple(span)}, which is empty or outside of its {len(text)} "
                    "characters; give 0 <= begin < end."
                )


def _is_span(span: object) -> bool:
    is_pair = isinstance(span, Iterable) and not isinstance(span, str) and len(pair := list(span)) == 2
    return is_pair and all(isinstance(place, int | np.integer) for place in pair)


def _read(
    extractor: Extractor, texts: Sequence[str], spans: Sequence[Sequence[Span]], window: int, progress: Progress
) -> NDArray[np.float32]:
    """Return [chunk, reading, dim] vectors under one template."""
    tokeniser = WindowTokeniser(extractor.backbone, extractor.template, window, extractor.on_overflow)
    if tokeniser.pools_bos and any(reading.pooling == "cls" for reading in extractor.readings):
        raise UnsupportedError(
            "Pooling cls takes the BOS token, which all chunks of a text share; encode chunks alone, or pool otherwise."
        )
    prompts, owners, weights, n_chunks, n_truncated = [], [], [], 0, 0
    for index, (text, text_spans) in enumerate(zip(texts, spans, strict=True)):
        windows = tokeniser(text, text_spans, index)
        prompts += windows.prompts
        owners += [n_chunks + chunk for chunk in windows.chunk_indices]
        weights += [len(chunk) for prompt in windows.prompts for chunk in prompt.chunks]
        n_chunks += len(text_spans)
        n_truncated += len(windows.truncated)
    if n_truncated:
        log.warning(
            "%d chunk(s) over %d tokens were truncated; give shorter chunks, a larger window, or set "
            "on_overflow='chunk'.",
            n_truncated,
            window,
        )
    vectors = extractor.encode_prompts(prompts, progress)
    return _mean_of_parts(vectors, np.array(owners, np.int64), np.array(weights, np.float32), n_chunks)


def _mean_of_parts(
    vectors: NDArray[np.float32], owners: NDArray[np.int64], weights: NDArray[np.float32], n_chunks: int
) -> NDArray[np.float32]:
    """The vectors in the order of the chunks; of one that has several, their mean weighted by numbers of tokens."""
    result = np.zeros((n_chunks, *vectors.shape[1:]), np.float32)
    if len(owners) == n_chunks:  # a mean of one vector would differ in the last bit
        result[owners] = vectors
        return result
    totals = np.bincount(owners, weights, n_chunks)
    np.add.at(result, owners, vectors * (weights / totals[owners])[:, None, None].astype(np.float32))
    return result
