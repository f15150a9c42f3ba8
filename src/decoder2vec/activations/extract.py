"""Latents of texts: any number of texts through a backbone, in order, in batches that fit into memory.

`Extractor` reads texts under one template; `Reader` combines readings under several templates. A token prefix that all
prompts of a batch share is computed once per batch by `SharedPrefix`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.store import Store, text_keys
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import PastKeyValues, TokenBatch
from decoder2vec.backbone.block_modes import BusyBlocks
from decoder2vec.backbone.kv_cache import LayerKeyValues, compute_key_values, read_only_cache
from decoder2vec.backbone.packing import longest_packed_text, packing_pays
from decoder2vec.backbone.threads import THREADS
from decoder2vec.config import DEFAULT_MAX_LENGTH, EncoderSpec, Reading
from decoder2vec.errors import InputError, TextError, UnsupportedError
from decoder2vec.progress import current_progress
from decoder2vec.text.batches import collate, pack, plan_batches, plan_for_threads, plan_rows
from decoder2vec.text.charset import half_pair_position
from decoder2vec.text.template import SLOT, Template
from decoder2vec.text.tokens import Prompt, Tokenised, Tokeniser

log = logging.getLogger(__name__)

Progress = Callable[[int], object]
"""Called with the number of texts that were just finished."""

_WINDOW_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 30
_BATCHES_PAY = 10
"""A batch has a thread of its own if it costs so many times as much as one more batch; else all threads share one."""
_WINDOW_CHARACTERS = 1 << 20
"""Characters of a window: about as many tokens as a GPU computes at once; each takes about 100 bytes of memory."""


@dataclass
class EncodingStats:
    """What was computed: for reports, and for the speed that users see."""

    texts: int = 0
    tokens: int = 0
    padded_tokens: int = 0
    overlong: int = 0
    seconds: float = 0.0

    def __iadd__(self, other: EncodingStats) -> EncodingStats:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self

    @property
    def padding(self) -> float:
        """Share of the computed tokens that was padding."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Real tokens per second, without padding."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class Extractor:
    """Computes the latents of texts: the same readings of the same backbone for any number of texts.

    Args:
        backbone: The model.
        readings: Which layers to read, and how to pool each.
        template: The prompt around each text.
        max_length: Maximum number of tokens of a prompt; at most the model's context length.
        on_overflow: What to do with longer texts: "truncate", "chunk" (mean of the chunks' vectors) or "error".
        budget: Tokens per batch, padding included; by default what suits the device.
        work: Work of a text in the progress; less than 1 where other extractors read the same text.
    """

    backbone: Backbone
    readings: Sequence[Reading]
    template: Template = field(default_factory=lambda: Template.of("plain"))
    max_length: int = DEFAULT_MAX_LENGTH
    on_overflow: str = "truncate"
    budget: int | None = None
    work: float = 1.0

    def __post_init__(self) -> None:
        context = self.backbone.context_length or self.max_length
        self.max_length = min(self.max_length, context)
        self.capture = Capture(self.backbone, self.readings)
        self.tokeniser = Tokeniser(self.backbone, self.template, self.max_length, self.on_overflow)
        self.budget = self.budget or self.backbone.token_budget()
        self.stats = EncodingStats()

    def space(self) -> dict[str, object]:
        """Return everything that changes a vector; its fingerprint names the space in the store."""
        return {
            "weights": self.backbone.effective_fingerprint,
            "backbone": self.backbone.name,
            "attention": self.backbone.attention,
            "dtype": str(self.backbone.dtype),
            "template": self.template.string,
            "max_length": self.max_length,
            "on_overflow": self.on_overflow,
            "readings": [[r.layer, r.pooling, r.normed] for r in self.capture.readings],
            "format": 1,
        }

    def fill(self, store: Store, texts: Sequence[str], progress: Progress = lambda _: None) -> None:
        """Compute the latents that the store lacks; each finished window is on disk even if a later one fails."""
        keys = text_keys(check_texts(texts))
        missing = store.missing(keys)
        progress(len(texts) - len(missing))
        current_progress().remaining_work -= self.work * (len(texts) - len(missing))
        indices = missing.tolist()
        missing_texts = [texts[index] for index in indices]
        for rows, latents in self.windows(missing_texts, indices=indices, progress=progress):
            store.add(keys[missing[rows]], latents)

    def __call__(self, texts: Sequence[str], progress: Progress = lambda _: None) -> NDArray[np.float32]:
        """Return [text, reading, dim] float32 vectors; duplicate texts are computed once."""
        first_index: dict[str, int] = {}
        for index, text in enumerate(check_texts(texts)):
            first_index.setdefault(text, index)
        unique = list(first_index)
        result = _empty_latents(len(unique), len(self.capture.readings), self.backbone.dim)
        progress(len(texts) - len(unique))
        current_progress().remaining_work -= self.work * (len(texts) - len(unique))
        for _ in self.windows(unique, result, list(first_index.values()), progress):
            pass
        if len(unique) == len(texts):
            return np.asarray(result.numpy())
        row_of = {text: row for row, text in enumerate(unique)}
        return np.asarray(result.numpy()[[row_of[text] for text in texts]])

    def encode_prompts(self, prompts: list[Prompt], progress: Progress = lambda _: None) -> NDArray[np.float32]:
        """Return [prompt, reading, dim] float32 vectors of prompts that were tokenised elsewhere.

        Prompts with chunks give one row for each chunk, in their order.
        """
        self._prepare()
        n_vectors = sum(len(prompt.chunks) or 1 for prompt in prompts)
        result = _empty_latents(n_vectors, len(self.capture.readings), self.backbone.dim)
        started = time.perf_counter()
        with self.backbone.lock:
            window = self._plan(Tokenised(prompts, list(range(len(prompts)))))
            if (transfer := self._compute(window, result, progress)) is not None:
                transfer.finish()
        self.stats += EncodingStats(len(prompts), seconds=time.perf_counter() - started)
        return np.asarray(result.numpy())

    def windows(
        self,
        texts: Sequence[str],
        out: torch.Tensor | None = None,
        indices: Sequence[int] | None = None,
        progress: Progress = lambda _: None,
    ) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Yield (rows, latents) of one window of texts after another; within a window texts are sorted by length.

        Args:
            texts: The texts, without duplicates.
            out: [text, reading, dim] tensor to write the latents to.
            indices: Positions of the texts in the user's list, for messages; 0, 1, 2, ... by default.
            progress: Called after every batch.
        """
        shape = (len(self.capture.readings), self.backbone.dim)
        self._prepare()
        width = max(256, min(32_768, _window_bytes(self.backbone.device) // (4 * shape[0] * shape[1])))
        windows = list(_windows(texts, width, _WINDOW_CHARACTERS))
        indices = indices or range(len(texts))
        started = time.perf_counter()
        previous: tuple[slice, torch.Tensor, _DeviceTransfer | None] | None = None
        for rows, window in zip(windows, self._tokenised_windows(texts, indices, windows), strict=True):
            latents = _empty_latents(rows.stop - rows.start, *shape) if out is None else out[rows]
            with self.backbone.lock:
                last_transfer = self._compute(window, latents, progress, previous[2] if previous else None)
            overlong = window.tokenised.overlong
            self.stats += EncodingStats(len(latents), overlong=len(overlong), seconds=time.perf_counter() - started)
            if overlong and self.on_overflow == "truncate":
                _warn_truncated([indices[rows.start + index] for index in overlong], self)
            if previous is not None:
                yield previous[0], previous[1].numpy()
            previous = rows, latents, last_transfer
            if last_transfer is None:
                yield rows, latents.numpy()
                previous = None
            started = time.perf_counter()
        if previous is not None:
            rows, latents, last_transfer = previous
            if last_transfer is not None:
                last_transfer.finish()
            self.stats.seconds += time.perf_counter() - started
            yield rows, latents.numpy()

    def _tokenised_windows(
        self, texts: Sequence[str], indices: Sequence[int], windows: Iterable[slice]
    ) -> Iterator[_Window]:
        """The prompts of each window; the next window is tokenised while the model runs on this one."""
        with ThreadPoolExecutor(1) as worker:
            current: Future[_Window] | None = None
            for rows in windows:
                upcoming = worker.submit(self._tokenise, texts[rows], indices[rows])
                if current is not None:
                    yield current.result()
                current = upcoming
            if current is not None:
                yield current.result()

    def _tokenise(self, texts: Sequence[str], indices: Sequence[int]) -> _Window:
        return self._plan(self.tokeniser(texts, indices))

    def _prepare(self) -> None:
        """Choose how batches are computed; anew for each call, since weights and attention may have changed."""
        self._shared_prefix = SharedPrefix(self.backbone, self.capture.last_layer)
        self._packs = packing_pays(self.backbone)

    def _plan(self, tokenised: Tokenised) -> _Window:
        """Pack the prompts, where that pays."""
        lengths = [len(prompt.ids) for prompt in tokenised.prompts]
        if not self._packs or max(lengths, default=0) > longest_packed_text(self.backbone):
            return _Window(tokenised, lengths)
        plan = plan_rows(lengths, self.budget or 1)
        return _Window(tokenised, lengths, [(rows, pack([tokenised.prompts[row] for row in rows])) for rows in plan])

    def _compute(
        self, window: _Window, out: torch.Tensor, progress: Progress, transfer: _DeviceTransfer | None = None
    ) -> _DeviceTransfer | None:
        """Run all prompts and write their latents to `out`, one row per text.

        Args:
            window: The prompts.
            out: [text, reading, dim].
            progress: Called after every batch.
            transfer: The last copy of the window before, which is finished here.

        Returns:
            The last copy from a GPU, which may not be finished, so that the GPU need not wait for the next window.
        """
        prompts, text_indices = window.tokenised.prompts, window.tokenised.text_indices
        lengths = window.lengths
        chunked = len(prompts) > len(out)
        latents = _empty_latents(len(prompts), *out.shape[1:]) if chunked else out

        def report(rows: list[int]) -> None:
            progress(0 if chunked else len(rows))
            current_progress().advance(self.work * len(rows) * len(out) / len(prompts))
            n_tokens = sum(lengths[row] for row in rows)
            self.stats.tokens += n_tokens
            self.stats.padded_tokens += n_tokens if window.packed else len(rows) * lengths[rows[0]]

        if self.backbone.device.type == "cpu" and not window.packed:
            self._compute_on_cpu(window, latents, report)
        else:
            for rows, batch in window.packed or ((rows, None) for rows in self._batches(lengths)):
                vectors = self._forward([prompts[row] for row in rows], batch)
                if transfer is not None:  # the previous batch is copied while the device computes this one
                    transfer.finish()
                transfer = _DeviceTransfer(vectors, latents, window.vector_rows(rows))
                report(rows)
        if transfer is not None and (chunked or not self._packs):
            transfer.finish()
            transfer = None
        if chunked:
            _average_chunks(latents, torch.tensor(text_indices), torch.tensor(lengths), out)
            progress(len(out))
        return transfer

    def _compute_on_cpu(self, window: _Window, latents: torch.Tensor, report: Callable[[list[int]], None]) -> None:
        """Compute batches, as many at once as there are cores, and what is left over one after the other."""
        lengths, n_tokens = window.lengths, sum(window.lengths)
        workers = min(THREADS.workers(), n_tokens // (_BATCHES_PAY * self.backbone.batch_overhead))
        batches = self._batches(lengths)
        if workers > 1 and self.capture.runs_in_threads:
            plan = plan_for_threads(lengths, self.budget or 1, workers, self.backbone.batch_overhead)
            remaining = self._compute_together(window, plan.at_once, workers, latents, report)
            batches = self._fitting([*remaining, *plan.in_turn], lengths)
        for rows in batches:
            THREADS.adjust()
            latents[window.vector_rows(rows)] = self._forward([window.tokenised.prompts[row] for row in rows], None)
            report(rows)

    @torch.inference_mode()
    def _compute_together(
        self,
        window: _Window,
        batches: list[list[int]],
        workers: int,
        latents: torch.Tensor,
        report: Callable[[list[int]], None],
    ) -> list[list[int]]:
        """Compute several batches at once; return those that remain when one did not fit into memory."""
        capture = Capture(self.backbone.with_adapter(None), self.readings)  # the adapter is enabled once, for all
        # before the threads start: the keys and values of a shared prefix are computed with hooks that all would call
        collated = [self._shared_prefix.collate([window.tokenised.prompts[row] for row in rows]) for rows in batches]
        remaining: list[list[int]] = []

        @torch.inference_mode()  # holds for a thread
        def compute(batch: tuple[list[int], TokenBatch]) -> list[int]:
            """The rows that were computed."""
            rows, tokens = batch
            try:
                if not remaining:
                    latents[window.vector_rows(rows)] = capture(tokens)
                    return rows
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
            remaining.append(rows)
            return []

        def advance(rows: list[int]) -> None:
            if rows:
                report(rows)

        with self.backbone.adapter_enabled():
            THREADS.share_out(compute, zip(batches, collated, strict=True), workers, advance)
        return remaining

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        """The planned batches."""
        return self._fitting(plan_batches(lengths, self.budget or 1, self.backbone.batch_overhead), lengths)

    def _fitting(self, batches: Iterable[list[int]], lengths: list[int]) -> Iterator[list[int]]:
        """The batches, split further where the budget has shrunk since they were planned."""
        for rows in batches:
            begin = 0
            while begin < len(rows):
                count = max(1, (self.budget or 1) // lengths[rows[begin]])
                yield rows[begin : begin + count]
                begin += count

    @torch.inference_mode()
    def _forward(self, prompts: list[Prompt], packed: TokenBatch | None) -> torch.Tensor:
        """Run one batch; if it does not fit into memory, run its two halves and use smaller batches from then on."""
        try:
            if packed:
                batch, adapter = packed.to(self.backbone.device), self.backbone.adapter
                if adapter and adapter.hooks_blocks:
                    return self.capture(batch)
                return BusyBlocks.of(self.backbone).run(lambda: self.capture(batch), batch.width)
            return self.capture(self._shared_prefix.collate(prompts).to(self.backbone.device))
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            if len(prompts) == 1:
                raise InputError(
                    f"One text of {len(prompts[0].ids)} tokens does not fit into memory; set a smaller max_length."
                ) from error
        if self.backbone.device.type == "cuda":
            torch.cuda.empty_cache()
        half = len(prompts) // 2
        lengths = [len(prompt.ids) for prompt in prompts]
        self.budget = min(self.budget or 1, sum(lengths) // 2 if packed else half * max(lengths))
        log.warning("Out of memory: continuing with batches of %d tokens.", self.budget)
        halves = (prompts[:half], prompts[half:])
        return torch.cat([self._forward(texts, pack(texts) if packed else None) for texts in halves])


@dataclass
class _Window:
    """The prompts of some texts."""

    tokenised: Tokenised
    lengths: list[int]
    """Tokens of each prompt."""
    packed: list[tuple[list[int], TokenBatch]] = field(default_factory=list)
    """The indices of the prompts of each batch, and the batch; empty if batches are padded."""

    def __post_init__(self) -> None:
        counts = [len(prompt.chunks) or 1 for prompt in self.tokenised.prompts]
        self._ends = None if max(counts, default=1) == 1 else list(accumulate(counts))

    def vector_rows(self, prompts: list[int]) -> list[int]:
        """Return the rows of the vectors of some prompts: one for each, or for each of its chunks."""
        if self._ends is None:
            return prompts
        ends, all_prompts = self._ends, self.tokenised.prompts
        return [row for index in prompts for row in range(ends[index] - len(all_prompts[index].chunks), ends[index])]


class Reader:
    """Like `Extractor`, for readings that may each have a template of their own.

    Args:
        backbone: The model.
        readings: Which layers to read, how to pool each, and under which template.
        template: The prompt of the readings that name none.
        max_length: Maximum number of tokens of a prompt.
        on_overflow: What to do with longer texts: "truncate", "chunk" or "error".
        budget: Tokens per batch, padding included; by default what suits the device.
        prefix: An instruction in front of every template.
    """

    def __init__(
        self,
        backbone: Backbone,
        readings: Sequence[Reading],
        template: Template,
        max_length: int = DEFAULT_MAX_LENGTH,
        on_overflow: str = "truncate",
        budget: int | None = None,
        prefix: str = "",
    ) -> None:
        if not readings:
            raise InputError("Nothing to read: give at least one layer and pooling.")
        self.backbone = backbone
        self.readings, self.prefix = tuple(readings), prefix
        if SLOT in prefix and any(reading.template for reading in readings):
            raise InputError(f"This encoder reads several prompts; a prompt with {SLOT} cannot replace them all.")
        columns: dict[Template, list[int]] = {}
        for column, reading in enumerate(readings):
            prompt = Template.of(reading.template or template.string).with_prefix(prefix)
            columns.setdefault(prompt, []).append(column)
        bare = [replace(reading, template="") for reading in readings]
        options = (max_length, on_overflow, budget, 1 / len(columns))
        self.extractors = [
            (group, Extractor(backbone, [bare[column] for column in group], prompt, *options))
            for prompt, group in columns.items()
        ]
        """One extractor per template, with the indices of the readings that it computes."""

    @classmethod
    def from_spec(cls, backbone: Backbone, spec: EncoderSpec, budget: int | None, prefix: str) -> Reader:
        """Return the reader of an encoder, with an instruction in front of its templates."""
        return cls(backbone, spec.readings, Template(spec.template), spec.max_length, spec.on_overflow, budget, prefix)

    @property
    def texts_per_chunk(self) -> int:
        """Number of texts whose latents fit into a modest part of memory."""
        return max(1024, _CHUNK_BYTES // (4 * len(self.readings) * self.backbone.dim))

    @property
    def n_passes(self) -> int:
        """How often the backbone runs over each text: once per template."""
        return len(self.extractors)

    @property
    def stats(self) -> EncodingStats:
        """Totals over all passes; each text counts once."""
        total = EncodingStats()
        for _, extractor in self.extractors:
            total += extractor.stats
        total.texts //= max(1, self.n_passes)
        return total

    def __call__(self, texts: Sequence[str], progress: Progress = lambda _: None) -> NDArray[np.float32]:
        """Return [text, reading, dim] float32 vectors; progress counts each text once per pass."""
        if self.n_passes == 1:
            return self.extractors[0][1](texts, progress)
        result = np.empty((len(texts), len(self.readings), self.backbone.dim), np.float32)
        for columns, extractor in self.extractors:
            result[:, columns] = extractor(texts, progress)
        return result


def to_text_list(inputs: Any) -> list[str]:
    """Return an iterable of texts as a list; raise an error for anything else."""
    if isinstance(inputs, bytes | bytearray | Mapping) or not hasattr(inputs, "__iter__"):
        raise InputError(f"encode() takes a text or a list of texts, not {type(inputs).__name__}.")
    return list(inputs)


def check_texts(texts: Sequence[str]) -> Sequence[str]:
    """Return the texts unchanged; raise an error that names the first item that is not a valid text."""
    if isinstance(texts, str):
        raise InputError("Expected a list of texts, not one text; put it into a list.")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"Text {index} is {type(text).__name__}, not str; convert or drop it first.")
        if (position := half_pair_position(text)) is not None:
            hint = "clean it with text.encode('utf-8', 'replace').decode()"
            raise TextError(index, text, f"holds half of a surrogate pair at character {position}; {hint}.")
    return texts


class SharedPrefix:
    """Collates batches so that the tokens that all prompts begin with are computed once, where this is valid and pays.

    Under causal attention the states of a prefix do not depend on what follows, so its keys and values can be reused
    for every text of the batch. The part of a template in front of the text is such a prefix, and often a large share
    of the tokens of a short text. The last prefix is cached, so an instance must not outlive a change of the weights.
    """

    def __init__(self, backbone: Backbone, depth: int) -> None:
        self._backbone, self._depth = backbone, depth
        # on a GPU attention is fastest without the mask that a past needs
        plain = backbone.attention == "causal" and backbone.adapter is None and backbone.device.type == "cpu"
        self._possible = plain and depth > 0
        self._cached: tuple[list[int], list[LayerKeyValues]] = ([], [])

    def collate(self, prompts: Sequence[Prompt]) -> TokenBatch:
        """Return the batch of the prompts, for the first `depth` layers."""
        length = _shared_length(prompts) if self._possible else 0
        saved_tokens = (len(prompts) - 1) * length
        pays = saved_tokens > self._backbone.batch_overhead
        layers = self._keys_values(prompts[0].ids[:length]) if pays else []
        if not layers:
            return collate(prompts, self._backbone.pad_token_id)
        batch = collate([prompt.without_first(length) for prompt in prompts], self._backbone.pad_token_id)
        rows = len(prompts)
        cache = read_only_cache([(k.expand(rows, -1, -1, -1), v.expand(rows, -1, -1, -1)) for k, v in layers])
        positions = torch.arange(length, length + batch.width).expand(rows, -1)
        return replace(batch, past=PastKeyValues(cache, batch.mask.new_ones(rows, length), positions))

    def _keys_values(self, ids: list[int]) -> list[LayerKeyValues]:
        if self._cached[0] != ids:
            try:
                tokens = torch.tensor([ids], device=self._backbone.device)
                self._cached = (ids, compute_key_values(self._backbone, self._depth, input_ids=tokens))
            except UnsupportedError:  # a family that has no keys and values
                self._possible = False
                return []
        return self._cached[1]


def _shared_length(prompts: Sequence[Prompt]) -> int:
    """Number of tokens that all prompts begin with and none pools."""
    ids = [prompt.ids for prompt in prompts]
    first, last = min(ids), max(ids)  # in lexicographic order: what these two share, all between them share
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return min(shared, *(min(prompt.start, len(prompt.ids) - 1) for prompt in prompts))


def _windows(texts: Sequence[str], width: int, n_characters: int) -> Iterator[slice]:
    """Consecutive texts: at most `width` of them, and no more once they have `n_characters`."""
    begin = seen = 0
    for index, text in enumerate(texts):
        seen += len(text)
        if index + 1 - begin == width or seen >= n_characters:
            yield slice(begin, index + 1)
            begin, seen = index + 1, 0
    if begin < len(texts):
        yield slice(begin, len(texts))


def _empty_latents(*shape: int) -> torch.Tensor:
    """A float32 tensor of memory from NumPy, which asks Linux for large pages: gigabytes are ready a third sooner."""
    return torch.from_numpy(np.empty(shape, np.float32))


class _DeviceTransfer:
    """An asynchronous copy of vectors from the device to their rows in memory."""

    def __init__(self, vectors: torch.Tensor, latents: torch.Tensor, rows: list[int]) -> None:
        in_order = rows == list(range(rows[0], rows[0] + len(rows)))
        self.latents, self.rows = latents, slice(rows[0], rows[0] + len(rows)) if in_order else rows
        self.done = torch.cuda.Event() if vectors.is_cuda else None  # type: ignore[no-untyped-call]
        # a copy to memory that is not pinned would make the host wait
        self.host = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=vectors.is_cuda)
        self.host.copy_(vectors, non_blocking=vectors.is_cuda)
        if self.done is not None:
            self.done.record()

    def finish(self) -> None:
        """Wait for the copy and write it to the latents."""
        if self.done is not None:
            self.done.synchronize()
        self.latents[self.rows] = self.host


def _average_chunks(
    latents: torch.Tensor, text_indices: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor
) -> None:
    """The vector of a chunked text is the mean of its chunks' vectors, weighted by their numbers of tokens."""
    totals = torch.zeros(len(out)).index_add_(0, text_indices, lengths.float())
    weights = lengths.float() / totals[text_indices]
    out.zero_().index_add_(0, text_indices, latents * weights[:, None, None])


def _window_bytes(device: torch.device) -> int:
    """Latents kept in memory before they are written, which a kill would lose. A GPU recomputes them in a second."""
    return _WINDOW_BYTES * (32 if device.type == "cuda" else 1)


def _is_out_of_memory(error: RuntimeError) -> bool:
    message = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in message or "can't allocate memory" in message


@contextmanager
def without_truncation_warnings() -> Iterator[None]:
    """Context for texts of our own, some of which are too long on purpose, and for callers that warn by themselves."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.funcName != _warn_truncated.__name__

    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)


def _warn_truncated(indices: list[int], extractor: Extractor) -> None:
    shown = ", ".join(map(str, indices[:5])) + (", ..." if len(indices) > 5 else "")
    limit = extractor.max_length
    hint = "the model takes no more" if limit == extractor.backbone.context_length else "raise max_length"
    log.warning(
        "%d text(s) over %d tokens were truncated (index %s); %s, or set on_overflow='chunk'.",
        len(indices),
        limit,
        shown,
        hint,
    )
