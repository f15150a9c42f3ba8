"""Latents of sentence tokens: a text is read once, and the state of the token before each sentence is its vector."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.chunks import check_spans
from decoder2vec.activations.extract import EncodingStats, Extractor, Progress, Reader, check_texts
from decoder2vec.adapters.sentence_tokens import SentenceTokens
from decoder2vec.backbone.sentence_attention import PADDING, hierarchical_attention, hierarchical_mask
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.batches import collate, plan_batches
from decoder2vec.text.shuffled import mark_sentences, outer_tokens
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Prompt, Span, Tokeniser

log = logging.getLogger(__name__)


class _Window(NamedTuple):
    """Some sentences of a text that are read at once."""

    prompt: Prompt
    """Its chunks are the sentence tokens."""
    sentences: list[int]
    """Number of the sentence of each token."""


def read_sentence_tokens(
    reader: Reader,
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    window: int | None = None,
    progress: Progress = lambda _: None,
) -> NDArray[np.float32]:
    """Return [chunk, reading, dim] float32 states of the tokens that stand for the chunks of all texts.

    As many chunks are read at once as there are sentence tokens and as fit into a window. Templates are not used: the
    model has learned sentence tokens in plain texts.

    Args:
        reader: Reads the texts.
        texts: The texts.
        spans: The chunks of each text.
        window: Tokens that are read at once; by default the reader's `max_length`.
        progress: Called with the number of windows of each batch, once it is computed.

    Raises:
        InputError: A span is empty or outside its text, there is a prompt, or the window is longer than the context.
        UnsupportedError: The model was not trained with sentence tokens, or cannot see all of a text.
    """
    check_texts(texts)
    check_spans(texts, spans)
    backbone, tokens = reader.backbone, reader.backbone.sentence_tokens
    if not isinstance(tokens, SentenceTokens):
        raise UnsupportedError("This encoder has no sentence tokens; train one with the objective unshuffle.")
    if backbone.attention != "bidirectional":
        raise UnsupportedError("Sentence tokens stand before their sentences; set attention to bidirectional.")
    if reader.prefix:
        raise InputError("Sentence tokens are read without a prompt; leave it out, or set sentence_tokens to False.")
    extractor = reader.extractors[0][1]
    windows = list(_windows(extractor, tokens, texts, spans, window or extractor.max_length))
    lengths = [len(each.prompt.ids) for each in windows]
    ends = np.cumsum([len(each.prompt.chunks) for each in windows], dtype=int)
    result = np.empty((sum(map(len, spans)), len(reader.readings), backbone.dim), np.float32)
    capture, started = Capture(backbone, reader.readings), time.perf_counter()
    for rows in plan_batches(lengths, extractor.budget or 1, backbone.batch_overhead):
        with backbone.lock, torch.inference_mode():
            latents = _read(capture, tokens, [windows[row] for row in rows]).cpu().numpy()
        chunks = [range(ends[row] - len(windows[row].prompt.chunks), ends[row]) for row in rows]
        result[np.concatenate(chunks)] = latents
        progress(len(rows))
        n_tokens = sum(lengths[row] for row in rows)
        extractor.stats += EncodingStats(tokens=n_tokens, padded_tokens=len(rows) * max(lengths[row] for row in rows))
    extractor.stats += EncodingStats(len(windows), seconds=time.perf_counter() - started)
    return result


def _windows(
    extractor: Extractor, tokens: SentenceTokens, texts: Sequence[str], spans: Sequence[Sequence[Span]], size: int
) -> Iterator[_Window]:
    """The chunks of all texts, in order, in windows of at most `size` tokens."""
    backbone = extractor.backbone
    tokenise = Tokeniser(backbone, Template.of("plain"), size)
    special, start = outer_tokens(tokenise)
    room = size - len(start) - 2
    if room < 3:
        raise InputError(f"A window of {size} tokens has no room for a sentence; give a larger one.")
    n_truncated = 0
    for text, text_spans in zip(texts, spans, strict=True):
        prompts = tokenise([text[begin:end] for begin, end in text_spans]).prompts if text_spans else []
        words = [[token for token in prompt.ids if token not in special] for prompt in prompts]
        n_truncated += sum(len(each) > room - 2 for each in words)
        first = 0
        while first < len(words):
            used = np.cumsum([min(len(each), room - 2) + 2 for each in words[first : first + tokens.count]])
            last = first + int(np.searchsorted(used, room, "right"))
            chunks = [each[: room - 2] for each in words[first:last]]
            marked = mark_sentences(chunks, range(len(chunks)), tokens, start, backbone.closing_token_id)
            positions = tuple((position,) for position in marked.order)
            yield _Window(Prompt(marked.source, 0, len(marked.source), positions), marked.sentences)
            first = last
    if n_truncated:
        log.warning("%d chunk(s) over %d tokens were truncated; give shorter chunks.", n_truncated, room - 2)


def _read(capture: Capture, tokens: SentenceTokens, windows: Sequence[_Window]) -> torch.Tensor:
    """[chunk, reading, dim] states of the sentence tokens of some windows."""
    backbone = capture.backbone
    batch = collate([window.prompt for window in windows], backbone.pad_token_id).to(backbone.device)
    sentences = torch.full(batch.ids.shape, PADDING)
    for row, window in enumerate(windows):
        sentences[row, : len(window.sentences)] = torch.tensor(window.sentences)
    mask = hierarchical_mask(sentences.to(backbone.device), tokens.are_sentence_tokens(batch.ids))
    with hierarchical_attention(backbone.blocks, mask):
        return capture(tokens.adapt(batch, backbone.model))
