"""Make the built-in encoder: distil several teachers into a model, with packed batches on one GPU.

`d2v train --recipe distill` distils into any model, resumes and reports. This script has one reading and one way to
train, and all tokens and all vectors of the teachers are in memory.

1. Read the pool: texts-*.tsv.gz (columns source, text) and pairs-*.tsv.gz (source, text1, text2) of a folder.
2. Compute the vectors of the teachers, once: they are cached. From each teacher the mean over texts is removed. The
   ensemble is the concatenation of the teachers, so its cosine is the weighted mean of theirs.
3. Add long documents: a text followed by near neighbours of the same source.
4. Train with bidirectional attention and mean pooling. A share of the batches consists of pairs of one source.
5. Save the encoder, with the linear maps to the teachers and the log of the run beside it, and gold vectors that
   `d2v doctor` computes again.

`smollm2-135m-general` and the encoder with all weights were made from SmolLM2-135M with the teachers all-mpnet-base-v2
and bge-small-en-v1.5, on 1,866,891 texts (those of the pairs and of `forum_posts.py` included), 294,429 pairs and
89,996 long documents, in the runs below. Runs 1 and 3 had 1,288,102 of the texts and 49,997 of the documents; run 5 had
the texts and pairs of `documents.py` as well, 2,162,031 and 437,163, and 19,997 long documents.

| run | what is trained | starts from | steps | seconds on one H200 |
|---|---|---|---|---|
| 1 | LoRA of rank 32, rate 2.5e-3 | the model | 2,800 | 367 |
| 2 | LoRA of rank 64, rate 2e-3 | 1, and 950 steps more at 1.5e-3 | 3,100 | 401 |
| 3 | all weights, rate 3e-4 | 1, merged | 3,200 | 471, the GPU shared with another process |
| 4 | all weights, rate 4e-4, by Muon | 3 | 2,300 | 370, shared as well |
| 5 | LoRA of rank 64, rate 1.5e-3, pair_share 0.25: `smollm2-135m-general` | 2, in int8 | 4,855 | 616 |
| 6 | all weights, rate 3e-4, three seeds | 5, merged | about 1,600 each | 200 each |

Runs 1 to 4 are those of a predecessor of this script, which computed the teachers in 16 bits, let norms decay in runs 1
and 3, and drew its random numbers in another order: expect a similar encoder, not the same one. In 150 steps of run 4
the loss of Muon was 0.5 % below that of AdamW. Runs 5 and 6 are those of `continue_training.py`.

Run: python experiments/general/forum_posts.py REDDIT --out DIR; python experiments/general/documents.py ... --out DIR
     python experiments/general/distill_packed.py lora --pool DIR --teachers MPNET BGE --out LORA
     python experiments/general/distill_packed.py lora --pool DIR --teachers MPNET BGE --out LORA64 --grow LORA \
         --set rank=64 alpha=128 rate=2e-3 steps=3100
     python experiments/general/distill_packed.py full --pool DIR --teachers MPNET BGE --out FULL --backbone LORA
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import TokenBatch
from decoder2vec.backbone.block_modes import CompiledBlocks, computing_in
from decoder2vec.backbone.machine import choose_device
from decoder2vec.base_model import load_base_model
from decoder2vec.config import EncoderSpec, Reading, from_table, override, to_table
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.encoder_folder import check_output_folder
from decoder2vec.errors import DivergedError, InputError
from decoder2vec.export.transformers import write_model
from decoder2vec.maths.losses import info_nce, margin_kl
from decoder2vec.text.files import read_columns
from decoder2vec.training.objectives.distill import mapped_cosines, matched_views, similarity_distance
from decoder2vec.training.teachers import Teacher, TeacherVectors
from token_table import Rows, TokenTable

T = TypeVar("T")

DOCUMENT_SOURCES = ("wikipedia", "abstracts", "openstax", "trials", "medquad", "debian-docs", "mdn", "science")
"""Sources whose texts are put together to long documents."""

_CENTRED_ON = 200_000
"""The mean of a teacher is that of its first vectors; the texts of the pool are shuffled."""
_VECTORS_AT_ONCE = 100_000
_NEIGHBOURS = 24
"""Nearest texts of the same source, the text itself included, from which a long document takes up to six."""
_QUERIES_AT_ONCE = 4096
_FALSE_NEGATIVE = 0.95
"""A candidate that is more similar than this share of the pair's own similarity is no negative."""
_MIN_PAIRS = 64
"""With fewer pairs left, a source is shuffled again."""
_LOG_EVERY = 50
_COMPILING_STEPS = 30
"""A time limit begins after so many steps; the first ones compile."""
READING = Reading(-1, "mean", normed=True)
_MAPS_FILE = "teacher_maps.safetensors"
_LOG_FILE = "distillation.json"


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    rank: int = 32
    """Rank of LoRA; 0 trains all weights."""
    alpha: float = 64
    rate: float = 2.5e-3
    """Peak learning rate: it rises linearly, then follows a cosine to zero."""
    steps: int = 2800
    seed: int = 0
    max_length: int = 512
    """Tokens of a text."""
    batch_tokens: int = 49_152
    """Tokens of a batch, at most."""
    batch_texts: int = 1280
    """Texts of a batch, at most."""
    pair_share: float = 0.2
    """Share of the batches that consist of pairs of one source."""
    balance: float = 0.7
    """Sources of pairs are drawn in proportion to this power of their sizes."""
    long_documents: int = 90_000
    vectors: float = 1.0
    """Weight of 1 - cosine between the teachers' vectors and the mapped vectors of the model."""
    similarities: float = 2.0
    """Weight of the squared difference between the model's and the ensemble's cosines within a batch."""
    kl: float = 0.1
    """Weight of the divergence of the model's from the ensemble's distribution over the other sides of pairs."""
    info_nce: float = 0.03
    """Weight of InfoNCE on pairs."""
    temperature: float = 0.05
    """What cosines are divided by in the losses on pairs."""
    dims: tuple[int, ...] = ()
    """Matryoshka: lengths of prefixes of the vector that match the teachers, too."""
    precisions: tuple[str, ...] = ()
    """Quantisation-aware: int8, binary; the vectors rounded like that match the teachers, too."""
    warm_up: float = 0.04
    """Share of the steps in which the learning rate rises."""
    weight_decay: float = 0.01
    """Of matrices; embeddings, norms and biases do not decay."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    optimiser: str = "adamw"
    """adamw, or muon: Muon for the matrices of the model, AdamW for all else.

    At one rate a step of Muon changes a matrix about nine times less than one of AdamW here. Scaled to the size of
    AdamW's, 1e-3 destroyed Gemma 3 270M within 50 steps.
    """
    embeddings: bool = True
    """Whether training all weights trains the embeddings, too."""

    def __post_init__(self) -> None:
        if self.batch_tokens < 2 * self.max_length or self.batch_texts < 2:
            raise InputError("A batch must have room for a pair: batch_tokens at least twice max_length, two texts.")
        if self.optimiser not in ("adamw", "muon"):
            raise InputError(f"The optimiser is adamw or muon, not {self.optimiser!r}.")


PRESETS = {"lora": Settings(), "full": Settings(rank=0, rate=3e-4, steps=3200, seed=1)}


# --- texts and teachers ---------------------------------------------------------------------------------------------


class Pool(NamedTuple):
    """Different texts with their sources, and pairs of them."""

    texts: list[str]
    sources: list[str]
    pairs: dict[str, NDArray[np.intp]]
    """[pairs, 2] indices of texts by source."""


def read_pool(folder: Path) -> Pool:
    """Read the texts, then the pairs; texts that occur in pairs only are added to the others."""
    files = sorted(folder.glob("texts-*.tsv.gz"))
    if not files:
        raise InputError(f"{folder} has no texts-*.tsv.gz; give the folder of the pool.")
    index: dict[str, int] = {}
    sources: list[str] = []

    def add(text: str, source: str) -> int:
        row = index.setdefault(text, len(index))
        if row == len(sources):
            sources.append(source)
        return row

    for file in files:
        for source, text in read_columns(file, ("source", "text")):
            add(text, source)
    pairs: dict[str, list[tuple[int, int]]] = {}
    for file in sorted(folder.glob("pairs-*.tsv.gz")):
        for source, text1, text2 in read_columns(file, ("source", "text1", "text2")):
            if text1 and text2:
                pairs.setdefault(source, []).append((add(text1, source), add(text2, source)))
    return Pool(list(index), sources, {source: np.array(rows) for source, rows in pairs.items()})


def teacher_vectors(teacher: Teacher, texts: Sequence[str], device: torch.device) -> Tensor:
    """[texts, dim] unit vectors of a teacher in float16, on the device."""
    stored = TeacherVectors(teacher, texts)
    vectors = torch.empty(len(texts), stored.dim, dtype=torch.float16, device=device)
    for begin in range(0, len(texts), _VECTORS_AT_ONCE):
        rows = np.arange(begin, min(begin + _VECTORS_AT_ONCE, len(texts)))
        vectors[begin : begin + len(rows)] = stored.batch(rows).to(device)
    return vectors


def long_documents(pool: Pool, vectors: Tensor, count: int) -> list[str]:
    """About `count` documents of up to seven texts each, in proportion to the sizes of the sources.

    Args:
        pool: The texts.
        vectors: [texts, dim] unit vectors of the texts, by which neighbours are found.
        count: Number of documents.
    """
    rng = np.random.default_rng(0)
    sources = np.array(pool.sources)
    rows_of_sources = [np.flatnonzero(sources == source) for source in DOCUMENT_SOURCES]
    total = max(1, sum(map(len, rows_of_sources)))
    documents = []
    for rows in rows_of_sources:
        first_texts = rng.choice(rows, min(count * len(rows) // total, len(rows)), replace=False)
        candidates = vectors[rows]
        for begin in range(0, len(first_texts), _QUERIES_AT_ONCE):
            queries = first_texts[begin : begin + _QUERIES_AT_ONCE]
            nearest = (vectors[queries] @ candidates.T).topk(min(_NEIGHBOURS, len(rows)), dim=1).indices
            for first, neighbours in zip(queries, rows[nearest.cpu().numpy()], strict=True):
                others = neighbours[neighbours != first]
                chosen = rng.choice(others, min(int(rng.integers(1, 7)), len(others)), replace=False)
                documents.append(" ".join(pool.texts[row] for row in (first, *chosen)))
    return documents


def centre(vectors: Tensor) -> Tensor:
    """Remove the mean over texts and scale to unit length, in place."""
    mean = vectors[:_CENTRED_ON].float().mean(0)
    for begin in range(0, len(vectors), _VECTORS_AT_ONCE):
        chunk = vectors[begin : begin + _VECTORS_AT_ONCE]
        chunk.copy_(functional.normalize(chunk.float() - mean, dim=1))
    return vectors


# --- batches --------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Texts of one step."""

    rows: Rows
    """Indices of the texts; of pairs, all first sides and then all second sides."""
    n_pairs: int
    """Number of pairs; 0 for plain texts."""
    n_tokens: int
    """Number of tokens, without padding."""
    packed: TokenBatch


def text_batches(lengths: NDArray[np.intp], settings: Settings, rng: np.random.Generator) -> Iterator[Rows]:
    """One epoch: every text once, in random order, as many to a batch as fit."""
    order = rng.permutation(len(lengths))
    ends = np.cumsum(lengths[order])
    begin = 0
    while begin < len(order):
        before = ends[begin] - lengths[order[begin]]
        fitting = int(np.searchsorted(ends, before + settings.batch_tokens, "right"))
        end = min(begin + settings.batch_texts, fitting)
        yield order[begin:end]
        begin = end


def pair_batches(
    pairs: dict[str, NDArray[np.intp]], lengths: NDArray[np.intp], settings: Settings, rng: np.random.Generator
) -> Iterator[NDArray[np.intp]]:
    """Endless [pairs, 2] batches of one source each."""
    sources = list(pairs)
    sizes = np.array([len(pairs[source]) for source in sources]) ** settings.balance
    remaining = {source: np.empty((0, 2), np.intp) for source in sources}
    while True:
        source = sources[rng.choice(len(sources), p=sizes / sizes.sum())]
        if len(remaining[source]) <= _MIN_PAIRS:
            remaining[source] = rng.permutation(pairs[source])
        candidates = remaining[source][: settings.batch_texts // 2]
        ends = np.cumsum(lengths[candidates].sum(1))
        count = int(np.searchsorted(ends, settings.batch_tokens, "right"))
        yield candidates[:count]
        remaining[source] = remaining[source][count:]


def draw_batches(
    table: TokenTable, pairs: dict[str, NDArray[np.intp]], settings: Settings, device: torch.device
) -> Iterator[Batch]:
    """The batches of all steps, packed."""
    rng = np.random.default_rng(settings.seed)
    epochs = (text_batches(table.lengths, settings, rng) for _ in itertools.count())
    texts = itertools.chain.from_iterable(epochs)
    pairs_of_one_source = pair_batches(pairs, table.lengths, settings, rng)
    for _ in range(settings.steps):
        if rng.random() < settings.pair_share:
            batch = next(pairs_of_one_source)
            rows, n_pairs = batch.T.flatten(), len(batch)
        else:
            rows, n_pairs = next(texts), 0
        yield Batch(rows, n_pairs, int(table.lengths[rows].sum()), table.pack(rows).to(device))


def prefetched(batches: Iterator[T]) -> Iterator[T]:
    """The same batches, each prepared by a thread while the previous one is used."""
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(next, batches, None)
        while (batch := pending.result()) is not None:
            pending = pool.submit(next, batches, None)
            yield batch


# --- losses ---------------------------------------------------------------------------------------------------------


class DistillationLoss(nn.Module):
    """The losses of a batch against several teachers, with a linear map to the vectors of each.

    Args:
        dim: Width of the model's vectors.
        targets: [texts, dim] centred unit vectors of each teacher.
        weights: Weights of the teachers.
        settings: Weights of the losses, and the temperature.
    """

    def __init__(self, dim: int, targets: Sequence[Tensor], weights: Sequence[float], settings: Settings) -> None:
        super().__init__()
        self.maps = nn.ModuleList([nn.Linear(dim, vectors.shape[1]) for vectors in targets])
        self.targets = targets
        self.weights = [weight / sum(weights) for weight in weights]
        self.settings = settings

    def forward(self, vectors: Tensor, rows: Rows, n_pairs: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of the losses, and each loss by its name in `Settings`.

        Args:
            vectors: [texts, dim] vectors of the model.
            rows: Indices of the texts.
            n_pairs: Number of pairs, of which `vectors` holds first all left and then all right sides; 0 for texts.
        """
        device_rows = torch.from_numpy(rows).to(vectors.device)
        targets = [teacher[device_rows].float() for teacher in self.targets]
        ensemble = torch.cat([weight**0.5 * target for weight, target in zip(self.weights, targets, strict=True)], 1)
        views = matched_views(vectors, self.settings.dims, self.settings.precisions)
        losses = {
            "vectors": torch.stack([self._vector_distance(view, targets) for view in views]).mean(),
            "similarities": torch.stack([similarity_distance(view, ensemble) for view in views]).mean(),
        }
        if n_pairs:
            left, right = vectors[:n_pairs], vectors[n_pairs:]
            losses |= self._pair_losses(left, right, ensemble[:n_pairs] @ ensemble[n_pairs:].T)
        total = torch.stack([getattr(self.settings, name) * loss for name, loss in losses.items()]).sum()
        return total, {name: loss.detach() for name, loss in losses.items()}

    def _vector_distance(self, vectors: Tensor, targets: Sequence[Tensor]) -> Tensor:
        """Weighted mean over teachers of 1 - cosine between the mapped vectors and the teacher's."""
        distances = [
            weight * (1 - mapped_cosines(vectors, linear, target)).mean()
            for weight, linear, target in zip(self.weights, self.maps, targets, strict=True)
        ]
        return torch.stack(distances).sum()

    def _pair_losses(self, left: Tensor, right: Tensor, similarities: Tensor) -> dict[str, Tensor]:
        """Losses on pairs, each the mean of both directions; `similarities` are [left, right] of the ensemble."""
        temperature = self.settings.temperature
        forward = margin_kl(left, right, None, teacher=similarities, temperature=temperature)
        backward = margin_kl(right, left, None, teacher=similarities.T, temperature=temperature)
        masked = false_negatives(similarities)
        contrast = info_nce(left, right, temperature=temperature, symmetric=True, masked=masked)
        return {"kl": (forward + backward) / 2, "info_nce": contrast}


def false_negatives(similarities: Tensor) -> Tensor:
    """[n, n] booleans: where a teacher finds two sides of different pairs nearly as similar as those of either pair."""
    own = _FALSE_NEGATIVE * similarities.diag()
    return (similarities > own[:, None]) | (similarities > own[None])


# --- training -------------------------------------------------------------------------------------------------------


def learning_rate(step: int, settings: Settings) -> float:
    """Linear warm-up, then a cosine to zero."""
    warm_up = settings.warm_up * settings.steps
    if step < warm_up:
        return settings.rate * min(1, (step + 1) / warm_up)
    return settings.rate * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (settings.steps - warm_up)))


def new_optimisers(
    trained: nn.Module, loss: nn.Module, embeddings: nn.Parameter, settings: Settings
) -> list[torch.optim.Optimizer]:
    """AdamW, or Muon for the matrices of what is trained and AdamW for all else.

    Args:
        trained: LoRA or the model.
        loss: The losses, whose maps are trained.
        embeddings: The embeddings of the model, which do not decay.
        settings: Settings of the run.
    """
    parameters = [parameter for parameter in trained.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.ndim > 1 and parameter is not embeddings]
    others = [parameter for parameter in parameters if parameter.ndim == 1 or parameter is embeddings]
    maps = list(loss.parameters())
    of_adamw = maps if settings.optimiser == "muon" else [*matrices, *maps]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in of_adamw if parameter.ndim > 1]},
        {"params": [*others, *(parameter for parameter in maps if parameter.ndim == 1)], "weight_decay": 0.0},
    ]
    decay = settings.weight_decay
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=decay, fused=embeddings.device.type == "cuda")
    if settings.optimiser == "adamw":
        return [adamw]
    return [torch.optim.Muon(matrices, weight_decay=decay), adamw]


def training_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which a model computes while it is trained."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def train(
    backbone: Backbone,
    lora: Lora | None,
    loss: DistillationLoss,
    batches: Iterator[Batch],
    settings: Settings,
    seconds: float | None = None,
) -> list[dict[str, float]]:
    """Train LoRA, or all weights without it, together with the maps; return the log.

    Args:
        backbone: The model.
        lora: What is trained; None trains all weights of the model.
        loss: The losses, with maps that are trained, too.
        batches: The batches.
        settings: Settings of the run.
        seconds: Stop after this time, with a learning rate that follows the time instead of the steps.

    Raises:
        DivergedError: A loss is not finite.
    """
    on_gpu = backbone.device.type == "cuda"
    model: Any = backbone.model
    embeddings = model.get_input_embeddings().weight
    trained: nn.Module = lora or model.requires_grad_(True)
    if lora is not None:
        lora.compiled = on_gpu
    elif not settings.embeddings:
        embeddings.requires_grad_(False)
    capture = Capture(backbone.with_adapter(lora), [READING])
    compiled = CompiledBlocks(backbone) if on_gpu else None
    optimisers = new_optimisers(trained, loss, embeddings, settings)
    groups = [group for optimiser in optimisers for group in optimiser.param_groups]
    parameters = [parameter for group in groups for parameter in group["params"]]
    log: list[dict[str, float]] = []
    recent: list[dict[str, Tensor]] = []
    n_steps, tokens, started = 0, 0, time.perf_counter()
    clock = _Clock(seconds, settings.steps)
    for step, batch in enumerate(tqdm(batches, desc="steps", total=None if seconds else settings.steps, disable=None)):
        if (position := clock.position(step)) >= settings.steps:
            break
        for group in groups:
            group["lr"] = learning_rate(position, settings)
        modes = compiled.enabled() if compiled else nullcontext()
        with computing_in(model, training_dtype(backbone.device)), modes:
            total, losses = loss(capture(batch.packed)[:, 0], batch.rows, batch.n_pairs)
            total.backward()
        nn.utils.clip_grad_norm_(parameters, settings.clip)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        recent.append(losses)
        n_steps, tokens = step + 1, tokens + batch.n_tokens
        if n_steps % _LOG_EVERY == 0:
            log.append(_log_entry(n_steps, recent, tokens, started))
            recent = []
    if recent:
        log.append(_log_entry(n_steps, recent, tokens, started))
    trained.requires_grad_(False)
    return log


def _log_entry(n_steps: int, recent: Sequence[dict[str, Tensor]], tokens: int, started: float) -> dict[str, float]:
    """What is logged and printed; it waits for the GPU."""
    means = _means(recent)
    entry = {"step": n_steps, **means, "tokens": tokens, "seconds": round(time.perf_counter() - started, 1)}
    print(json.dumps(entry), flush=True)
    return entry


class _Clock:
    """Where in a run of `steps` a step is: at its own index, or where the time passed has brought it."""

    def __init__(self, seconds: float | None, steps: int) -> None:
        self.seconds, self.steps, self.began = seconds, steps, 0.0

    def position(self, step: int) -> int:
        if self.seconds is None:
            return step
        if step <= _COMPILING_STEPS:
            self.began = time.perf_counter()
        return int(self.steps * (time.perf_counter() - self.began) / self.seconds)


def _means(recent: Sequence[dict[str, Tensor]]) -> dict[str, float]:
    """The mean of each loss over the steps that have it."""
    names = dict.fromkeys(name for losses in recent for name in losses)
    means = {name: float(torch.stack([losses[name] for losses in recent if name in losses]).mean()) for name in names}
    if not all(map(math.isfinite, means.values())):
        raise DivergedError(f"A loss is not finite ({means}); lower the learning rate with --set rate=...")
    return means


def plain_reading(model: str, settings: Settings) -> EncoderSpec:
    """How the encoders here read a model."""
    reading = {"pooling": "mean", "normed": True, "template": "plain", "max_length": settings.max_length}
    return spec_from_kwargs(model, {**reading, "normalize": "rms"})


def save_encoder(
    backbone: Backbone, lora: Lora | None, out: Path, files: dict[str, bytes], settings: Settings, *, copy: bool
) -> None:
    """Save the trained model as an encoder.

    Args:
        backbone: The model.
        lora: The trained adapter; without it all weights were trained, and a copy of them is saved.
        out: Folder of the encoder.
        files: Further files by name.
        settings: Settings of the run.
        copy: Copy the weights of the model that LoRA was trained on.
    """
    spec = plain_reading(backbone.name, settings)
    if lora:
        Encoder(backbone.with_adapter(lora), spec).save(out, copy_backbone=copy, extra_files=files)
        return
    with TemporaryDirectory() as folder:
        write_model(backbone, Path(folder))
        trained = Backbone.load(folder, attention=backbone.attention, device=backbone.device, dtype=backbone.dtype)
        Encoder(trained, spec).save(out, copy_backbone=True, extra_files=files)


@torch.no_grad()
def copy_updates(lora: Lora | None, start: Any) -> None:
    """Let LoRA begin with the updates of another one of the same or a lower rank."""
    if lora is None or not isinstance(start, Lora) or start.config.rank > lora.config.rank:
        raise InputError("LoRA grows from a LoRA of the same or a lower rank: check --grow and --set rank.")
    rank = start.config.rank
    for name, upper in lora.upper.items():
        lora.lower[name][:, :rank] = start.lower[name]
        upper[:, :, :rank] = start.upper[name] * (start.scaling / lora.scaling)


def folders_by_seed(out: Path, seeds: Sequence[int]) -> dict[int, Path]:
    """The folder of each seed's encoder: `out` itself, or one in it for each of several seeds."""
    return {seed: out / f"seed-{seed}" if len(seeds) > 1 else out for seed in seeds}


def distil(
    pool_folder: Path,
    teachers: Sequence[Teacher],
    base: str,
    out: Path,
    settings: Settings,
    *,
    grown_from: Path | None = None,
    device: str | None = None,
) -> None:
    """Run the experiment; see the description of this file.

    Args:
        pool_folder: Folder of the pool.
        teachers: The teachers; neighbours for long documents are found by the first.
        base: A model, or an encoder of an earlier run, whose LoRA is merged and whose maps are taken over.
        out: Folder of the encoder.
        settings: Settings of the run.
        grown_from: An encoder of an earlier run on the same model, whose LoRA is continued, at a higher rank if wished.
        device: By default the best one available.
    """
    check_output_folder(out)
    # weights that are trained themselves need all bits; what LoRA is added to does not
    dtype = training_dtype(choose_device(device)) if settings.rank else torch.float32
    backbone, copy = load_base_model(base, device=device, dtype=dtype)
    backbone.set_attention("bidirectional")
    pool = read_pool(pool_folder)
    if settings.pair_share and not pool.pairs:
        raise InputError(f"{pool_folder} has no pairs-*.tsv.gz; add --set pair_share=0 to train on texts alone.")
    vectors = [teacher_vectors(teacher, pool.texts, backbone.device) for teacher in teachers]
    documents = long_documents(pool, vectors[0], settings.long_documents)
    if documents:
        of_documents = [teacher_vectors(teacher, documents, backbone.device) for teacher in teachers]
        vectors = [torch.cat(both) for both in zip(vectors, of_documents, strict=True)]
    table = TokenTable.of(backbone, [*pool.texts, *documents], settings.max_length)
    torch.manual_seed(settings.seed)
    lora = Lora.initialise(backbone, settings.rank, settings.alpha).to(backbone.device) if settings.rank else None
    if grown_from is not None:
        copy_updates(lora, Encoder.load(grown_from, device=device).backbone.adapter)
    weights = [teacher.weight for teacher in teachers]
    loss = DistillationLoss(backbone.dim, [centre(teacher) for teacher in vectors], weights, settings)
    if (maps_file := (grown_from or Path(base)) / _MAPS_FILE).is_file():
        loss.maps.load_state_dict(load_file(maps_file))
    loss.to(backbone.device)
    batches = prefetched(draw_batches(table, pool.pairs, settings, backbone.device))
    log = train(backbone, lora, loss, batches, settings)
    record = {
        "settings": to_table(settings),
        "backbone": base,
        "grown from": str(grown_from) if grown_from is not None else None,
        "teachers": [to_table(teacher) for teacher in teachers],
        "texts": len(pool.texts),
        "pairs": sum(map(len, pool.pairs.values())),
        "documents": len(documents),
        "log": log,
    }
    files = {
        _LOG_FILE: (json.dumps(record, indent=1) + "\n").encode(),
        _MAPS_FILE: to_safetensors(loss.maps.state_dict()),
    }
    save_encoder(backbone, lora, out, files, settings, copy=copy)
    Encoder.load(out, device="cpu", dtype="float32").write_gold_vectors(out)  # more exact than what was trained


def main() -> None:
    """Read the options and run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--teachers", nargs="+", required=True, help="anything that d2v eval takes; weight 1 each")
    parser.add_argument("--backbone", default="smollm2-135m", help="a Llama model, or the encoder of an earlier run")
    parser.add_argument("--grow", type=Path, help="an encoder of an earlier run, whose LoRA is continued")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", nargs="*", default=[], help="key=value over the preset")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # TF32: for teachers, and for merging LoRA
    settings = from_table(Settings, override(to_table(PRESETS[arguments.preset]), arguments.set))
    teachers = [Teacher(name) for name in arguments.teachers]
    distil(arguments.pool, teachers, arguments.backbone, arguments.out, settings, grown_from=arguments.grow)


if __name__ == "__main__":
    main()
