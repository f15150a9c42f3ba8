"""What matters for a reranker that is trained without labels: train variants one after the other, and compare them.

1. Compute the student's tokens and the teachers' vectors of the texts that occur in pairs (`packed_pool.py`).
2. Mine the groups, once: at most 60,000 queries of a source, with 15 negatives each.
3. Train each variant and score it on the runs of `bm25_runs.py`; score other rerankers on them, too.

OUT/results.json is written after each variant, with nDCG@10 of every query and the differences to BM25 and to the
variant "7 negatives". A second run with the same OUT trains only what is missing. OUT/main is the variant "main" as a
saved reranker in int8.

The published results (`results/rerankers/scifact.json`) came from the same functions before they were in this script.
They had the vectors of the teachers centred by texts of the whole pool: that is --texts all.

Run: export PYTHONPATH=experiments/general
     python experiments/rerankers/bm25_runs.py DATA RUNS.json
     python experiments/rerankers/study.py POOL DATA OUT --runs RUNS.json --teachers mpnet=FOLDER bge=FOLDER
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from bm25_runs import DEPTHS, Candidates, Cosines, difference, read_candidates
from train_packed import TEMPLATES, Groups, PairPacker, Settings, draw_batches, mine, new_reranker, train

from decoder2vec.adapters.lora import Lora, LoraConfig
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.block_modes import CompiledBlocks
from decoder2vec.backbone.machine import choose_device
from decoder2vec.config import DEFAULT_MAX_LENGTH, from_table, override, to_table
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.encoder_folder import saved_encoder_folder
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.reranker import Reranker
from decoder2vec.storage import write_json
from decoder2vec.text.pair_template import PairTemplate, PairTokeniser
from distill_packed import Pool, centre, copy_updates, prefetched, read_pool, training_dtype
from packed_pool import Teacher, add_arguments, pack_texts, read_teachers, some_pairs, texts_of_pairs

PAIRS_OF_A_SOURCE = 60_000
RERANKERS = (
    "smollm2-135m-reranker",
    "likelihood:smollm2-135m",
    "yes_no:smollm2-135m",
    "cosine:smollm2-135m-general",
    "cosine:all-minilm-l6-v2",
)
"""Scored as they are: the reranker that ships, in int8, two ways without training, and the cosines of two encoders."""
LORA_OF_A_MODEL = LoraConfig(rank=64, alpha=128)
"""What is trained if the start is a plain model: the size of the encoder's."""
_REFERENCE = "7 negatives"
_DEEP = {"main": 200, "smollm2-135m-reranker": 200}
"""Depth on SciFact of those that are also measured deeper than the others."""
_SHORT = Settings(steps=400)
_CHECKED = 20
"""Pairs of each source whose prompts are compared with those of the library."""


@dataclass(frozen=True)
class Variant:
    """A way to train a reranker."""

    settings: Settings = _SHORT
    from_encoder: bool = True
    """Start from the encoder, not from its model."""
    attention: str = "bidirectional"
    all_weights: bool = False
    """Train all weights instead of LoRA."""


VARIANTS = {
    _REFERENCE: Variant(),
    "main": Variant(replace(_SHORT, steps=1800)),
    "1 negative": Variant(replace(_SHORT, negatives=1)),
    "3 negatives": Variant(replace(_SHORT, negatives=3)),
    "15 negatives": Variant(replace(_SHORT, negatives=15)),
    "query first": Variant(replace(_SHORT, order="query first")),
    "no teacher": Variant(replace(_SHORT, teacher=0.0)),
    "from the model itself": Variant(from_encoder=False),
    "seed 1": Variant(replace(_SHORT, seed=1)),
    "seed 2": Variant(replace(_SHORT, seed=2)),
    "causal attention": Variant(attention="causal"),
    # the distillation had an eighth of LoRA's rate for all weights, too
    "all weights": Variant(replace(_SHORT, rate=7.5e-5), all_weights=True),
}


# --- training -------------------------------------------------------------------------------------------------------


@dataclass
class Trainer:
    """Trains variants on the same groups.

    Args:
        start: The encoder to start from, on the CPU in float32.
        groups: Queries with their documents by source.
        packer: Puts the tokens of texts together.
        device: Where the model is trained.
    """

    start: Encoder
    groups: dict[str, Groups]
    packer: PairPacker
    device: torch.device

    @cached_property
    def backbone(self) -> Backbone:
        """The model that LoRA is trained on."""
        return self._load(training_dtype(self.device))

    @cached_property
    def compiled(self) -> CompiledBlocks | None:
        """Its blocks, compiled on a GPU."""
        return self._compile(self.backbone)

    def _load(self, dtype: torch.dtype) -> Backbone:
        of_start = self.start.backbone
        return Backbone.load(of_start.name, attention=of_start.attention, device=self.device, dtype=dtype)

    def _compile(self, backbone: Backbone) -> CompiledBlocks | None:
        return CompiledBlocks(backbone) if self.device.type == "cuda" else None

    def train(self, variant: Variant) -> tuple[Reranker, dict[str, float]]:
        """Train a variant; return the reranker and a summary of the training."""
        batches = prefetched(draw_batches(self.groups, self.packer, variant.settings, self.device))
        if variant.all_weights:
            backbone = self._merged_model() if variant.from_encoder else self._load(torch.float32)
            backbone.set_attention(variant.attention)
            head, summary = train(backbone, None, self._compile(backbone), batches, variant.settings)
            backbone.model.to(training_dtype(self.device))  # scored in the dtype of the other variants
            return new_reranker(backbone, None, head, variant.settings), summary
        self.backbone.set_attention(variant.attention)
        lora = self._new_lora(variant)
        head, summary = train(self.backbone, lora, self.compiled, batches, variant.settings)
        return new_reranker(self.backbone, lora, head, variant.settings), summary

    @property
    def _start_lora(self) -> Lora:
        adapter = self.start.backbone.adapter
        if not isinstance(adapter, Lora):
            raise InputError(f"{self.start.backbone.name} has no LoRA to start from; give --start an encoder with one.")
        return adapter

    def _new_lora(self, variant: Variant) -> Lora:
        torch.manual_seed(variant.settings.seed)
        adapter = self.start.backbone.adapter
        config = adapter.config if isinstance(adapter, Lora) else LORA_OF_A_MODEL
        lora = Lora.initialise(self.backbone, config.rank, config.alpha)
        if variant.from_encoder:
            copy_updates(lora, self._start_lora)
        lora.compiled = self.compiled is not None
        return lora.to(self.device)

    @torch.no_grad()
    def _merged_model(self) -> Backbone:
        """The model with the encoder's LoRA merged into its weights, in float32."""
        backbone = self._load(torch.float32)
        for path, weight in self._start_lora.merged_weights_by_path().items():
            backbone.model.get_submodule(path).get_parameter("weight").copy_(weight)
        return backbone


def prepare(
    pool_folder: Path,
    teachers: Mapping[str, Teacher],
    start_name: str,
    *,
    pairs: int = PAIRS_OF_A_SOURCE,
    negatives: int = 15,
    only_pairs: bool = True,
    cache: Path | None = None,
    processes: int = 0,
) -> Trainer:
    """Pack the texts of a pool and mine the groups.

    Args:
        pool_folder: Folder of the pool.
        teachers: The teachers by name.
        start_name: The encoder to start from.
        pairs: Pairs of a source, at most.
        negatives: Mined for each query.
        only_pairs: Leave out texts that occur in no pair; they only change the mean vector of a teacher.
        cache: Folder in which tokens and vectors of teachers are kept.
        processes: Number of processes that tokenise.
    """
    start = starting_encoder(start_name)
    device = choose_device(None)
    pool = some_pairs(read_pool(pool_folder), pairs)
    if only_pairs:
        pool = texts_of_pairs(pool)
    print(f"{len(pool.texts):,} texts, {sum(map(len, pool.pairs.values())):,} pairs", flush=True)
    table, vectors = pack_texts(pool.texts, start.backbone, teachers, device, cache=cache, processes=processes)
    targets = [centre(of_teacher) for of_teacher in vectors]
    groups = {source: mined for source, of in pool.pairs.items() if (mined := mine(of, targets, negatives))}
    if not groups:
        raise InputError(f"No query of {pool_folder} has {negatives} negatives; give more pairs.")
    print(f"groups: { {source: len(of.queries) for source, of in groups.items()} }", flush=True)
    packer = PairPacker.of(start.backbone, table)
    check_prompts(packer, pool, start.backbone)
    return Trainer(start, groups, packer, device)


def starting_encoder(name: str) -> Encoder:
    """The encoder that training starts from, on the CPU in float32; a plain model has no LoRA to start from."""
    if saved_encoder_folder(name):
        return Encoder.load(name, device="cpu", dtype="float32")
    backbone = Backbone.load(name, attention="bidirectional", device="cpu", dtype="float32")
    return Encoder(backbone, spec_from_kwargs(name, {"pooling": "mean", "normed": True, "template": "plain"}))


def check_prompts(packer: PairPacker, pool: Pool, backbone: Backbone) -> None:
    """Compare prompts that are put together from the tokens of texts with those that the library tokenises.

    Raises:
        InputError: More than a tenth differ: the tokenizer adds tokens to texts, or joins them with line breaks.
    """
    rows = [int(row) for of in pool.pairs.values() for row in of[:_CHECKED].ravel() if packer.table.lengths[row] < 90]
    queries, documents = rows[::2], rows[1::2]
    max_length = min(DEFAULT_MAX_LENGTH, backbone.context_length or DEFAULT_MAX_LENGTH)
    for order, template in TEMPLATES.items():
        tokeniser = PairTokeniser(backbone, PairTemplate(template), max_length, [packer.closing])
        pairs = list(zip(queries, documents, strict=False))
        prompts, _ = tokeniser([pool.texts[query] for query, _ in pairs], [pool.texts[row] for _, row in pairs])
        packed = [packer.prompt(*pair, order).tolist() for pair in pairs]
        differing = sum(list(prompt.ids) != ids for prompt, ids in zip(prompts, packed, strict=True))
        if differing > len(pairs) / 10:
            raise InputError(f"{backbone.name} has other tokens in a prompt than alone: prompts cannot be packed.")


# --- results --------------------------------------------------------------------------------------------------------


@dataclass
class Results:
    """The results of the study, in a file that is written after each reranker."""

    file: Path
    candidates: dict[str, Candidates]
    reference: str = _REFERENCE
    """What the others are compared with, beside BM25."""
    document: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file.is_file():
            self.document = json.loads(self.file.read_text(encoding="utf-8"))
        else:
            bm25 = {task: of.measure_bm25() for task, of in self.candidates.items()}
            self.document = {"bm25": bm25, "rerankers": {}}

    def has(self, name: str, variant: dict[str, Any]) -> bool:
        """Whether a reranker was measured before; raises InputError if that was with other settings."""
        before = self.document["rerankers"].get(name)
        if before and before["variant"] != variant:
            raise InputError(f"{self.file} has {name!r} with other settings; give another folder.")
        return bool(before)

    def add(self, name: str, variant: dict[str, Any], training: dict[str, float], reranker: Any) -> None:
        """Measure a reranker, compare it with the others and write the file."""
        result: dict[str, Any] = {"variant": variant, "training": training}
        for task, of in self.candidates.items():
            depth = max(_DEEP.get(name, 0), DEPTHS[task]) if task == "scifact" else DEPTHS[task]
            result[task] = of.measure(reranker, depth)
            print(name, task, {at: score for at, score in result[task].items() if at.isdigit()}, flush=True)
        self.document["rerankers"][name] = result
        self._compare()
        write_json(self.file, self.document)

    def _compare(self) -> None:
        rerankers = self.document["rerankers"]
        for result in rerankers.values():
            for task, bm25 in self.document["bm25"].items():
                others = {"BM25": bm25}
                if self.reference in rerankers:
                    others[self.reference] = rerankers[self.reference][task]
                values = result[task]["queries"]
                result[task]["against"] = {name: difference(values, of["queries"]) for name, of in others.items()}


def run_study(
    results: Results, trainer: Callable[[], Trainer], variants: Mapping[str, Variant], rerankers: Sequence[str]
) -> list[str]:
    """Train and measure what is missing; return the names of those that failed, whose errors are printed.

    Args:
        results: What is there, and what is added.
        trainer: Makes the trainer; called if a variant is missing.
        variants: The variants by name.
        rerankers: Others: what `Reranker.from_pretrained` loads, or cosine:ENCODER.
    """
    jobs: dict[str, tuple[dict[str, Any], Callable[[], tuple[Any, dict[str, float]]]]] = {}
    prepared = _Once(trainer)
    for name, variant in variants.items():
        jobs[name] = to_table(variant), lambda variant=variant: prepared().train(variant)  # type: ignore[misc]
    for name in rerankers:
        jobs[name] = {}, lambda name=name: (open_reranker(name), {})  # type: ignore[misc]
    failed = []
    for name, (settings, job) in jobs.items():
        if results.has(name, settings):
            continue
        started = time.perf_counter()
        try:
            reranker, training = job()
            print(f"{name}: {training}", flush=True)
            results.add(name, settings, training, reranker)
            if name == "main":
                reranker.save(results.file.parent / "main", lora_dtype="int8")
        except Exception:  # the others are still worth the machine's time
            traceback.print_exc()
            failed.append(name)
        print(f"{name}: {time.perf_counter() - started:.0f} s in all", flush=True)
    return failed


def open_reranker(name: str) -> Reranker | Cosines:
    """A reranker by name, or an encoder whose cosines are one."""
    kind, _, encoder = name.partition("cosine:")
    return Reranker.from_pretrained(kind) if kind else Cosines(load_encoder(encoder))


class _Once:
    """Calls a function the first time and returns the same result afterwards."""

    def __init__(self, function: Callable[[], Trainer]) -> None:
        self.function = function

    @cached_property
    def result(self) -> Trainer:
        return self.function()

    def __call__(self) -> Trainer:
        return self.result


def main() -> None:
    """Read the options and run the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", type=Path)
    parser.add_argument("data", type=Path, help="folder that has retrieval/TASK in BEIR's layout")
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="file that bm25_runs.py wrote")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), help="all by default")
    parser.add_argument(
        "--rerankers", nargs="*", default=RERANKERS, help="others to score: a reranker, or cosine:ENCODER"
    )
    parser.add_argument("--texts", choices=("all", "pairs"), default="pairs", help="texts that teachers are centred by")
    parser.add_argument("--pairs", type=int, default=PAIRS_OF_A_SOURCE, help="of a source, at most")
    parser.add_argument("--cache", type=Path, help="folder in which tokens and vectors of teachers are kept")
    parser.add_argument("--set", nargs="*", default=[], help="key=value over the settings of every variant")
    add_arguments(parser)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 64  # blocks are compiled for each attention, with and without gradients
    for name in set(arguments.variants) - set(VARIANTS):
        raise unknown_name("variant", name, VARIANTS)
    variants = {name: with_settings(VARIANTS[name], arguments.set) for name in arguments.variants}
    teachers = read_teachers(arguments.teachers)
    candidates = read_candidates(arguments.runs, arguments.data)
    arguments.out.mkdir(parents=True, exist_ok=True)

    def trainer() -> Trainer:
        return prepare(
            arguments.pool,
            teachers,
            arguments.start,
            pairs=arguments.pairs,
            negatives=max(variant.settings.negatives for variant in VARIANTS.values()),
            only_pairs=arguments.texts == "pairs",
            cache=arguments.cache,
            processes=arguments.processes,
        )

    results = Results(arguments.out / "results.json", candidates)
    if failed := run_study(results, trainer, variants, arguments.rerankers):
        raise SystemExit(f"Not finished: {', '.join(failed)}; run the same command again for these.")


def with_settings(variant: Variant, assignments: list[str]) -> Variant:
    """The variant with other settings, each given as key=value."""
    return replace(variant, settings=from_table(Settings, override(to_table(variant.settings), assignments)))


if __name__ == "__main__":
    main()
