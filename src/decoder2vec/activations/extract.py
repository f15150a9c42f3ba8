"""What all prompts of a batch begin with is read once, not once for each text.

Under causal attention the states of a beginning do not depend on what follows, so its keys and values can stand before
every text of the batch. The prompt before a text is such a beginning, and often a good part of a short text's tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.store import Store, text_key
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import PastKeyValues, TokenBatch
from decoder2vec.backbone.kv_cache import LayerKeyValues, compute_key_values, read_only_cache
from decoder2vec.backbone.machine import batch_overhead, token_budget
from decoder2vec.config import DEFAULT_MAX_LENGTH, EncoderSpec, Reading
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.batches import collate, plan
from decoder2vec.text.template import SLOT, Template
from decoder2vec.text.tokens import Prompt, Tokenised, Tokeniser


class SharedPrefix:
    """Makes batches whose common beginning has been read before, where that can be done and pays.

    It remembers the last beginning, so it must not outlive a change of the weights.
    """

    def __init__(self, backbone: Backbone, depth: int) -> None:
        self._backbone, self._depth = backbone, depth
        # on a GPU attention is fastest without the mask that a past needs
        plain = backbone.attention == "causal" and backbone.adapter is None and backbone.device.type == "cpu"
        self._possible = plain and depth > 0
        self._known: tuple[list[int], list[LayerKeyValues]] = ([], [])

    def collate(self, prompts: Sequence[Prompt]) -> TokenBatch:
        """The batch of some prompts, for the first `depth` layers."""
        length = _common(prompts) if self._possible else 0
        saved = (len(prompts) - 1) * length
        worth = saved > batch_overhead(self._backbone.device, self._backbone.dim)
        layers = self._read(prompts[0].ids[:length]) if worth else []
        if not layers:
            return collate(prompts, self._backbone.pad_token_id)
        rest = [Prompt(one.ids[length:], one.start - length, one.end - length) for one in prompts]
        batch = collate(rest, self._backbone.pad_token_id)
        rows = len(prompts)
        cache = read_only_cache([(k.expand(rows, -1, -1, -1), v.expand(rows, -1, -1, -1)) for k, v in layers])
        positions = torch.arange(length, length + batch.width).expand(rows, -1)
        return replace(batch, past=PastKeyValues(cache, batch.mask.new_ones(rows, length), positions))

    def _read(self, ids: list[int]) -> list[LayerKeyValues]:
        if self._known[0] != ids:
            try:
                tokens = torch.tensor([ids], device=self._backbone.device)
                self._known = (ids, compute_key_values(self._backbone, self._depth, input_ids=tokens))
            except UnsupportedError:  # a family that keeps no keys and values
                self._possible = False
                return []
        return self._known[1]


def _common(prompts: Sequence[Prompt]) -> int:
    """How many tokens all prompts begin with and none pools."""
    ids = [one.ids for one in prompts]
    first, last = min(ids), max(ids)  # in the order of a dictionary: what these two share, all between them share
    alike = next((place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return min(alike, *(min(one.start, len(one.ids) - 1) for one in prompts))


log = logging.getLogger(__name__)

Progress = Callable[[int], object]
"""Called with the number of texts just finished."""

_WINDOW_BYTES = 64 << 20


@dataclass
class EncodingStats:
    """What an extraction did: for reports, and for the rate that users see."""

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
        """Share of the tokens computed that was padding."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Real tokens, padding not counted."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class Extractor:
    """Reads the same places of the same backbone from any number of texts."""

    backbone: Backbone
    readings: Sequence[Reading]
    template: Template = field(default_factory=lambda: Template.of("plain"))
    max_length: int = DEFAULT_MAX_LENGTH
    on_overflow: str = "truncate"
    budget: int | None = None
    """Tokens per batch, padding included; by default what suits the device."""

    def __post_init__(self) -> None:
        context = self.backbone.context_length or self.max_length
        self.max_length = min(self.max_length, context)
        self.capture = Capture(self.backbone, self.readings)
        self.tokeniser = Tokeniser(self.backbone, self.template, self.max_length, self.on_overflow)
        self.budget = self.budget or token_budget(self.backbone.device, self.backbone.dim)
        self.stats = EncodingStats()

    def space(self) -> dict[str, object]:
        """Everything that changes a vector; its fingerprint names the space in the store."""
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
        """Compute what the store lacks of the texts; what is done is on disk even if the rest never is."""
        keys = {text_key(text): number for number, text in reversed(list(enumerate(check_texts(texts))))}
        missing = {key: number for key, number in reversed(keys.items()) if key not in store}
        progress(len(texts) - len(missing))
        names, numbers = list(missing), list(missing.values())
        wanted = [texts[number] for number in numbers]
        for rows, latents in self.windows(wanted, numbers=numbers, progress=progress):
            store.add(names[rows], latents)

    def __call__(self, texts: Sequence[str], progress: Progress = lambda _: None) -> NDArray[np.float32]:
        """[text, reading, dim] float32 vectors; a text that stands there twice is computed once."""
        first: dict[str, int] = {}
        for number, text in enumerate(check_texts(texts)):
            first.setdefault(text, number)
        unique = list(first)
        result = torch.empty(len(unique), len(self.capture.readings), self.backbone.dim)
        progress(len(texts) - len(unique))
        for _ in self.windows(unique, result, list(first.values()), progress):
            pass
        if len(unique) == len(texts):
            return np.asarray(result.numpy())
        place = {text: row for row, text in enumerate(unique)}
        return np.asarray(result.numpy()[[place[text] for text in texts]])

    def windows(
        self,
        texts: Sequence[str],
        out: torch.Tensor | None = None,
        numbers: Sequence[int] | None = None,
        progress: Progress = lambda _: None,
    ) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """(which texts, their latents) a window at a time; inside a window texts run sorted by length.

        With `out`, [text, reading, dim], the latents are written there. `numbers` are the texts' places in the user's
        own list, for messages. Progress is told after every batch.
        """
        shape = (len(self.capture.readings), self.backbone.dim)
        width = max(256, min(32_768, _window_bytes(self.backbone.device) // (4 * shape[0] * shape[1])))
        begins = range(0, len(texts), width)
        numbers = numbers or range(len(texts))
        self._shared = SharedPrefix(self.backbone, self.capture.last_layer)  # anew: weights may have changed
        started = time.perf_counter()
        for begin, tokenised in zip(begins, self._tokenised(texts, numbers, begins, width), strict=True):
            rows = slice(begin, min(begin + width, len(texts)))
            latents = torch.empty(rows.stop - begin, *shape) if out is None else out[rows]
            self._run(tokenised, latents, progress)
            self.stats += EncodingStats(
                len(latents), overlong=len(tokenised.overlong), seconds=time.perf_counter() - started
            )
            if tokenised.overlong and self.on_overflow == "truncate":
                _warn_truncated([numbers[begin + number] for number in tokenised.overlong], self)
            yield rows, latents.numpy()
            started = time.perf_counter()

    def _tokenised(
        self, texts: Sequence[str], numbers: Sequence[int], begins: Iterable[int], width: int
    ) -> Iterator[Tokenised]:
        """Each window's prompts; the next window is tokenised while the model runs on this one."""
        with ThreadPoolExecutor(1) as worker:
            ahead: Future[Tokenised] | None = None
            for begin in begins:
                after = worker.submit(self.tokeniser, texts[begin : begin + width], numbers[begin : begin + width])
                if ahead is not None:
                    yield ahead.result()
                ahead = after
            if ahead is not None:
                yield ahead.result()

    def _run(self, tokenised: Tokenised, out: torch.Tensor, progress: Progress) -> None:
        """Compute all prompts and put their latents into `out`, one row for each text."""
        prompts, owners = tokenised.prompts, tokenised.owners
        lengths = [len(prompt.ids) for prompt in prompts]
        chunked = len(prompts) > len(out)
        latents = torch.empty(len(prompts), *out.shape[1:]) if chunked else out
        arriving: _Arriving | None = None
        for rows in self._batches(lengths):
            vectors = self._forward([prompts[row] for row in rows])
            if arriving is not None:  # the last batch is fetched while the device works on this one
                arriving.land(latents)
            arriving = _Arriving(vectors, rows)
            progress(0 if chunked else len(rows))
            self.stats.tokens += sum(lengths[row] for row in rows)
            self.stats.padded_tokens += len(rows) * lengths[rows[0]]
        if arriving is not None:
            arriving.land(latents)
        if chunked:
            _mean_by_owner(latents, torch.tensor(owners), torch.tensor(lengths), out)
            progress(len(out))

    def _batches(self, lengths: list[int]) -> Iterator[list[int]]:
        """The plan, cut finer where the budget has shrunk since it was made."""
        for rows in plan(lengths, self.budget or 1, batch_overhead(self.backbone.device, self.backbone.dim)):
            begin = 0
            while begin < len(rows):
                count = max(1, (self.budget or 1) // lengths[rows[begin]])
                yield rows[begin : begin + count]
                begin += count

    @torch.inference_mode()
    def _forward(self, prompts: list[Prompt]) -> torch.Tensor:
        """One batch; if it is too large for memory, its two halves, and smaller batches from then on."""
        try:
            return self.capture(self._shared.collate(prompts).to(self.backbone.device))
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
        self.budget = min(self.budget or 1, half * max(len(prompt.ids) for prompt in prompts))
        log.warning("Out of memory: going on with batches of %d tokens.", self.budget)
        return torch.cat([self._forward(prompts[:half]), self._forward(prompts[half:])])


def check_texts(texts: Sequence[str]) -> Sequence[str]:
    """Refuse anything that is not a list of texts, and say which one is not a text."""
    if isinstance(texts, str):
        raise InputError("One text was given where a list of texts is wanted; put it into a list.")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"Text {number} is {type(text).__name__}, not str; convert or drop it first.")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"Text {number} holds half of a surrogate pair at character {error.start}; clean it with "
                "text.encode('utf-8', 'replace').decode()."
            ) from None
    return texts


class _Arriving:
    """Vectors on their way from the device to their rows in memory."""

    def __init__(self, vectors: torch.Tensor, rows: list[int]) -> None:
        self.rows = rows
        self.done = torch.cuda.Event() if vectors.is_cuda else None  # type: ignore[no-untyped-call]
        self.host = vectors.to("cpu", non_blocking=vectors.is_cuda)
        if self.done is not None:
            self.done.record()

    def land(self, latents: torch.Tensor) -> None:
        """Wait for them and put them there."""
        if self.done is not None:
            self.done.synchronize()
        latents[self.rows] = self.host


def _mean_by_owner(latents: torch.Tensor, owners: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor) -> None:
    """A text cut in chunks gets the mean of its chunks' vectors, weighted by their tokens."""
    weights = lengths.float() / torch.zeros(len(out)).index_add_(0, owners, lengths.float())[owners]
    out.zero_().index_add_(0, owners, latents * weights[:, None, None])


def _window_bytes(device: torch.device) -> int:
    """Latents held in memory before they are written, so what a kill can lose. A GPU makes that up in a second."""
    return _WINDOW_BYTES * (32 if device.type == "cuda" else 1)


def _is_out_of_memory(error: RuntimeError) -> bool:
    words = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in words or "can't allocate memory" in words


def _warn_truncated(numbers: list[int], extractor: Extractor) -> None:
    shown = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
    limit = extractor.max_length
    cure = "the model takes no more" if limit == extractor.backbone.context_length else "raise max_length"
    log.warning(
        "%d text(s) over %d tokens were cut (number %s); %s, or set on_overflow='chunk'.",
        len(numbers),
        limit,
        shown,
        cure,
    )


_LATENT_BYTES = 1 << 30


class Reader:
    """Like an Extractor, for readings that may each name a template of their own."""

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
        self.readings = tuple(readings)
        if SLOT in prefix and any(reading.template for reading in readings):
            raise InputError(f"This encoder reads several prompts; a prompt with {SLOT} cannot replace them all.")
        places: dict[Template, list[int]] = {}
        for number, reading in enumerate(readings):
            own = Template.of(reading.template or template.string).with_prefix(prefix)
            places.setdefault(own, []).append(number)
        self.parts = [
            (where, Extractor(backbone, [_bare(readings[n]) for n in where], own, max_length, on_overflow, budget))
            for own, where in places.items()
        ]

    @classmethod
    def of(cls, backbone: Backbone, spec: EncoderSpec, budget: int | None, prefix: str) -> Reader:
        """What an encoder's description asks for, behind an instruction."""
        return cls(backbone, spec.readings, Template(spec.template), spec.max_length, spec.on_overflow, budget, prefix)

    @property
    def at_once(self) -> int:
        """How many texts' latents fit into a modest part of memory."""
        return max(1024, _LATENT_BYTES // (4 * len(self.readings) * self.backbone.dim))

    @property
    def passes(self) -> int:
        """How often the backbone runs over each text."""
        return len(self.parts)

    @property
    def stats(self) -> EncodingStats:
        """What all passes did together; a text counts once."""
        total = EncodingStats()
        for _, extractor in self.parts:
            total += extractor.stats
        total.texts //= max(1, self.passes)
        return total

    def __call__(self, texts: Sequence[str], progress: Progress = lambda _: None) -> NDArray[np.float32]:
        """[text, reading, dim] float32 vectors; progress is told of each text once for every pass."""
        if self.passes == 1:
            return self.parts[0][1](texts, progress)
        result = np.empty((len(texts), len(self.readings), self.backbone.dim), np.float32)
        for where, extractor in self.parts:
            result[:, where] = extractor(texts, progress)
        return result


def _bare(reading: Reading) -> Reading:
    return replace(reading, template="")
