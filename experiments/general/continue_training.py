"""Continue the training of an encoder for some time on one GPU: runs 5 and 6 of `distill_packed.py`.

1. Compute the tokens of the pool and the vectors of the teachers (`packed_pool.py`), and add long documents.
2. Fit the linear maps to the teachers by ridge regression, since the maps of the encoder's own training were dropped.
   From a plain model, without LoRA to continue, they start at random: its vectors say too little about the teachers'.
3. Train with the losses and batches of `distill_packed.py`; the learning rate follows the time.
4. Save the LoRA in int8, as `smollm2-135m-general` ships, with gold vectors computed on the CPU in float32. With
   `--set rank=0` LoRA is merged before, all weights are trained, and the whole model is saved.

Run 5 made `smollm2-135m-general` from the encoder of run 2 with the functions of this file and of `distill_packed.py`
before they were a script: 600 seconds after compiling, 4,855 steps, seed 11. It planned steps by the time that they
took, and this file lets the learning rate follow the time itself: expect a similar encoder, not the same one.

Run: python experiments/general/continue_training.py POOL OUT --start ENCODER --seconds 600 \
         --teachers mpnet=FOLDER bge=FOLDER [--cache FOLDER] [--set rank=0 rate=3e-4] [--seeds 11 12 13]
The mean of several seeds is another encoder: d2v merge OUT/seed-11 OUT/seed-12 OUT/seed-13 --out MEAN
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.block_modes import computing_in
from decoder2vec.backbone.machine import choose_device
from decoder2vec.base_model import load_base_model
from decoder2vec.config import from_table, override, to_table
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import check_output_folder, saved_encoder_folder
from decoder2vec.errors import InputError
from distill_packed import (
    READING,
    DistillationLoss,
    Pool,
    Settings,
    centre,
    copy_updates,
    draw_batches,
    folders_by_seed,
    long_documents,
    plain_reading,
    prefetched,
    read_pool,
    save_encoder,
    text_batches,
    train,
    training_dtype,
)
from packed_pool import Teacher, add_arguments, pack_texts, read_teachers
from token_table import TokenTable

SETTINGS = Settings(rank=64, alpha=128, rate=1.5e-3, steps=10_000, seed=11, pair_share=0.25, long_documents=20_000)
"""With a time limit, steps only divide the schedule of the learning rate."""
_TEXTS_FOR_MAPS = 100_000
_RIDGE = 1e-4
"""Penalty of the regression, relative to the mean variance of a dimension."""
_MAP_SIZE = 0.1
"""Root mean square of a map's weights: the loss sees directions only, and a step of Adam turns a large map little."""
_ENDLESS = 10**9


@torch.no_grad()
def fit_maps(loss: DistillationLoss, vectors: Tensor, rows: Tensor) -> list[float]:
    """Set the maps by ridge regression on nine tenths of the texts; return the mean cosines on the others.

    Args:
        loss: The losses, which hold the maps and the teachers' vectors.
        vectors: [texts, dim] vectors of the model.
        rows: Indices of these texts.
    """
    n_held_out = len(rows) // 10
    fitted = vectors[n_held_out:].double()
    mean = fitted.mean(0)
    covariance = (fitted - mean).T @ (fitted - mean)
    covariance += torch.eye(len(mean), device=vectors.device) * _RIDGE * covariance.diag().mean()
    cosines = []
    maps: Any = loss.maps
    for linear, targets in zip(maps, loss.targets, strict=True):
        wanted = targets[rows[n_held_out:]].double()
        weight = torch.linalg.solve(covariance, (fitted - mean).T @ (wanted - wanted.mean(0))).T
        scale = _MAP_SIZE / weight.square().mean().sqrt()
        linear.weight.copy_(weight * scale)
        linear.bias.copy_((wanted.mean(0) - weight @ mean) * scale)
        cosine = functional.cosine_similarity(linear(vectors[:n_held_out]), targets[rows[:n_held_out]].float())
        cosines.append(float(cosine.mean()))
    return cosines


@torch.no_grad()
def some_vectors(backbone: Backbone, lora: Lora | None, table: TokenTable, settings: Settings) -> tuple[Tensor, Tensor]:
    """Vectors of the model for random texts, and the indices of these texts, both on the device."""
    capture = Capture(backbone.with_adapter(lora), [READING])
    rows, vectors, count = [], [], 0
    with computing_in(backbone.model, training_dtype(backbone.device)):
        for batch in text_batches(table.lengths, settings, np.random.default_rng(7)):
            vectors.append(capture(table.pack(batch).to(backbone.device))[:, 0].float())
            rows.append(batch)
            count += len(batch)
            if count >= _TEXTS_FOR_MAPS:
                break
    return torch.cat(vectors), torch.from_numpy(np.concatenate(rows)).to(backbone.device)


def pack_with_documents(
    pool: Pool,
    backbone: Backbone,
    teachers: Mapping[str, Teacher],
    settings: Settings,
    cache: Path | None,
    processes: int,
) -> tuple[TokenTable, list[Tensor], int]:
    """Tokens and vectors of the texts and of long documents, and the number of documents."""
    pack = partial(
        pack_texts,
        backbone=backbone,
        teachers=teachers,
        device=choose_device(None),
        max_length=settings.max_length,
        cache=cache,
    )
    table, vectors = pack(pool.texts, processes=processes)
    documents = long_documents(pool, vectors[0], settings.long_documents)
    if documents:
        more, of_documents = pack(documents)
        vectors = [torch.cat(both) for both in zip(vectors, of_documents, strict=True)]
        lengths = np.concatenate([table.lengths, more.lengths])
        ids = np.concatenate([table.token_ids, more.token_ids])
        table = replace(table, token_ids=ids, lengths=lengths, starts=np.cumsum(lengths) - lengths)
    return table, vectors, len(documents)


def starting_encoder(name: str, settings: Settings) -> Encoder | None:
    """The encoder whose LoRA is trained, on the CPU in float32, also of a model without LoRA; None at rank 0."""
    if not settings.rank:
        return None
    if saved_encoder_folder(name):
        return Encoder.load(name, device="cpu", dtype="float32")
    backbone = Backbone.load(name, attention="bidirectional", device="cpu", dtype="float32")
    return Encoder(backbone, plain_reading(name, settings))


def to_train(
    start: Encoder | None, name: str, settings: Settings, device: torch.device
) -> tuple[Backbone, Lora | None]:
    """The model with the LoRA to train, at the rank of the settings; at rank 0 the whole model, with LoRA merged."""
    if start is None:
        backbone, _ = load_base_model(name, device=device, dtype=torch.float32)  # what is trained needs all bits
        backbone.set_attention("bidirectional")
        return backbone, None
    attention, dtype = start.backbone.attention, training_dtype(device)
    backbone = Backbone.load(start.backbone.name, attention=attention, device=device, dtype=dtype)
    lora = Lora.initialise(backbone, settings.rank, settings.alpha)
    if saved_encoder_folder(name):  # a model has no LoRA yet
        copy_updates(lora, start.backbone.adapter)
    return backbone, lora.to(device).requires_grad_(False)


def save_in_int8(start: Encoder, trained: Lora, out: Path, files: dict[str, bytes]) -> None:
    """Save the encoder that training started from with another LoRA, in int8; `start` is on the CPU in float32."""
    lora = Lora(start.backbone, trained.config)
    lora.load_peft_state_dict(
        {name: matrix.detach().float().cpu() for name, matrix in trained.peft_state_dict().items()}
    )
    lora.requires_grad_(False)
    Encoder(start.backbone.with_adapter(lora), start.spec).save(out, lora_dtype="int8", extra_files=files)


class Data(NamedTuple):
    """What every seed is trained on."""

    pool: Pool
    table: TokenTable
    targets: list[Tensor]


def continue_training(
    pool_folder: Path,
    teachers: Mapping[str, Teacher],
    start_name: str,
    outs: Mapping[int, Path],
    settings: Settings,
    seconds: float,
    *,
    cache: Path | None = None,
    processes: int = 0,
) -> None:
    """Run the experiment; see the description of this file.

    Args:
        pool_folder: Folder of the pool.
        teachers: The teachers by name; neighbours for long documents are found by the first.
        start_name: A model, or a saved encoder with LoRA of at most the rank of the settings; at rank 0 any encoder.
        outs: Folders of the encoders by seed; every training has the same start.
        settings: Settings of the run.
        seconds: Time of each training, without that of compiling.
        cache: Folder in which tokens and vectors of teachers are kept.
        processes: Number of processes that tokenise.
    """
    for out in outs.values():
        check_output_folder(out)
    pool = read_pool(pool_folder)
    if settings.pair_share and not pool.pairs:
        raise InputError(f"{pool_folder} has no pairs-*.tsv.gz; add --set pair_share=0 to train on texts alone.")
    start = starting_encoder(start_name, settings)
    backbone = start.backbone if start else load_base_model(start_name, device="cpu", dtype=torch.float32)[0]
    table, vectors, n_documents = pack_with_documents(pool, backbone, teachers, settings, cache, processes)
    data = Data(pool, table, [centre(of_teacher) for of_teacher in vectors])
    about = {
        "seconds": seconds,
        "start": start_name,
        "teachers": {name: teacher.fingerprint() for name, teacher in teachers.items()},
        "texts": len(pool.texts),
        "pairs": sum(map(len, pool.pairs.values())),
        "documents": n_documents,
    }
    for seed, out in outs.items():
        train_seed(data, start, start_name, replace(settings, seed=seed), seconds, out, about)


def train_seed(
    data: Data,
    start: Encoder | None,
    start_name: str,
    settings: Settings,
    seconds: float,
    out: Path,
    about: Mapping[str, Any],
) -> None:
    """Train with the seed of the settings and save the encoder, with `about` in its record."""
    device = choose_device(None)
    torch.manual_seed(settings.seed)
    backbone, lora = to_train(start, start_name, settings, device)
    loss = DistillationLoss(backbone.dim, data.targets, [1.0] * len(data.targets), settings).to(device)
    cosines = []
    if saved_encoder_folder(start_name):
        cosines = fit_maps(loss, *some_vectors(backbone, lora, data.table, settings))
        print(f"cosines of the fitted maps to {', '.join(about['teachers'])}: {cosines}", flush=True)
    if lora is not None:
        lora.requires_grad_(True)
    batches = prefetched(draw_batches(data.table, data.pool.pairs, replace(settings, steps=_ENDLESS), device))
    log = train(backbone, lora, loss, batches, settings, seconds)
    record = {"settings": to_table(settings), **about, "cosines of the maps": cosines, "log": log}
    files = {"distillation.json": (json.dumps(record, indent=1) + "\n").encode()}
    if start is not None and lora is not None:
        save_in_int8(start, lora, out, files)
    else:
        save_encoder(backbone, None, out, files, settings, copy=True)


def main() -> None:
    """Read the options and run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seeds", nargs="+", type=int, default=[SETTINGS.seed], help="several: folders OUT/seed-N")
    parser.add_argument("--cache", type=Path, help="folder in which tokens and vectors of teachers are kept")
    parser.add_argument("--set", nargs="*", default=[], help="key=value over the settings of run 5")
    add_arguments(parser)
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    continue_training(
        arguments.pool,
        read_teachers(arguments.teachers),
        arguments.start,
        folders_by_seed(arguments.out, arguments.seeds),
        from_table(Settings, override(to_table(SETTINGS), arguments.set)),
        arguments.seconds,
        cache=arguments.cache,
        processes=arguments.processes,
    )


if __name__ == "__main__":
    main()
