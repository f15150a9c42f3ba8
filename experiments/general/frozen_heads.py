"""Distil teachers into a frozen model: only a head on its layers is trained.

`d2v train --recipe freeze` with `pretrain = "distill"` does this for any model, on latents in the store. This script is
built for speed on one GPU: the latents of all texts stay in its memory in 16 bits, and the head is trained on them in
large batches.

1. Read several layers of the frozen model under one or more templates, text after text, until the time for it is over.
2. Standardise every dimension of every reading, by its mean and deviation over the first thousands of texts.
3. Train a head: an MLP with a linear shortcut for each reading, whose codes are projected to one width and summed. The
   losses are those of `distill_packed.py` on plain texts: cosine to each teacher through a linear map, and similarities
   within the batch. No labels are used.
4. Save the encoder, with the log of the run beside it; held-out texts and dev pairs are scored for the log alone.

Texts are the lines of a file, in random order. Vectors are a dictionary of [texts, dim] tensors by teacher, written by
torch.save, in the order of the lines.

Run: python experiments/general/frozen_heads.py --model DIR --texts texts.txt --vectors vectors.pt --out ENC
         [--seeds 0 1 2]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from decoder2vec.activations.extract import Reader
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import EncoderSpec, Reading, from_table, override, to_table
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import check_output_folder
from decoder2vec.errors import DivergedError, InputError
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.maths.metrics import pairwise_cos_sim, spearman
from decoder2vec.text.files import read_pairs
from decoder2vec.text.template import Template
from decoder2vec.training.recipes.freeze import LatentSource
from distill_packed import DistillationLoss, centre, folders_by_seed, learning_rate
from distill_packed import Settings as LossSettings

_HELD_OUT = 2048
"""Texts that are not trained on, at most; one in ten where texts are few."""
_LOG_EVERY = 200
_LOG_FILE = "distillation.json"

ECHO_EOL = 'This sentence: "{text}" or again: "{text}" means in one word: "'
"""`echo` and `prompteol_tight` in one pass of the model: the mean of the second copy, and the last token."""
SOURCES = (
    LatentSource(ECHO_EOL, "mean", (0, 1, 2, 4, 7, 10, 14, 18, 22, 24, 26, 28, 30)),
    LatentSource(ECHO_EOL, "lasttoken", (22, 24, 25, 26, 27, 28, 29, 30)),
)
"""What is read by default."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    read_seconds: float = 90
    """Texts that are not read by then are left out."""
    max_length: int = 1024
    """Tokens of a prompt, which may have the text twice."""
    dim: int = 768
    """Dimension of the vectors."""
    hidden: int = 1024
    """Width of the hidden layer of each reading."""
    width: int = 256
    """Width of the code of each reading."""
    dropout: float = 0.1
    """Of the latents and of the hidden layer."""
    steps: int = 2500
    batch: int = 4096
    rate: float = 1e-3
    """Peak learning rate: it rises linearly, then follows a cosine to zero."""
    warm_up: float = 0.04
    """Share of the steps in which the learning rate rises."""
    weight_decay: float = 0.01
    vectors: float = 1.0
    """Weight of 1 - cosine between the teachers' vectors and the mapped vectors of the head."""
    similarities: float = 2.0
    """Weight of the squared difference between the head's and the teachers' mean cosines within a batch."""
    seed: int = 0


class Latents(NamedTuple):
    """Readings of the texts that were read in time."""

    values: Tensor
    """[texts, readings, dim] in 16 bits, standardised."""
    mean: Tensor
    """[readings, 1, dim] of the latents before."""
    deviation: Tensor
    """[readings, 1, dim]"""


def readings_of(sources: Sequence[LatentSource], backbone: Backbone) -> tuple[Reading, ...]:
    """All readings, in order, each once."""
    return tuple(dict.fromkeys(reading for source in sources for reading in source.readings(backbone.n_layers)))


def read_latents(reader: Reader, texts: Sequence[str], seconds: float) -> Latents:
    """Read texts in order, one template after the other, each until its part of the time is over.

    The first thousands are always read, and what an earlier template did not reach is left out.
    """
    backbone, started = reader.backbone, time.perf_counter()
    values = torch.empty(len(texts), len(reader.readings), backbone.dim, dtype=torch.float16, device=backbone.device)
    mean = torch.empty(len(reader.readings), 1, backbone.dim, device=backbone.device)
    deviation = torch.empty_like(mean)
    n_read = len(texts)
    with tqdm(desc="latents", total=len(texts) * reader.n_passes, unit=" texts", disable=None) as bar:
        for number, (columns, extractor) in enumerate(reader.extractors, 1):
            for rows, window in extractor.windows(texts[:n_read], progress=bar.update):
                latents = torch.from_numpy(window).to(backbone.device).transpose(0, 1)
                if rows.start == 0:
                    mean[columns], deviation[columns] = latents.mean(1, keepdim=True), latents.std(1, keepdim=True)
                    scaler = CodeNet(CodeSpec(backbone.dim, (0,) * len(columns))).to(backbone.device)
                    scaler.set_statistics(mean[columns], deviation[columns], standardise=True)
                values[rows, columns] = scaler.normalise(latents).transpose(0, 1).half()
                if time.perf_counter() - started > seconds * number / reader.n_passes:
                    break
            n_read = rows.stop
    if not torch.isfinite(values[:n_read]).all():
        raise InputError("Some latents are not finite; run `d2v doctor` on the model.")
    return Latents(values[:n_read], mean, deviation)


def new_head(latents: Latents, settings: Settings) -> CodeNet:
    """A head with the shape of the settings, for latents that are standardised already."""
    _, readings, dim = latents.values.shape
    spec = CodeSpec(
        dim=dim,
        widths=(settings.width,) * readings,
        hidden=settings.hidden,
        shortcut=True,
        mixing="unified",
        mixed_width=settings.dim,
        head="sum",
        dropout=settings.dropout,
    )
    return CodeNet(spec).to(latents.values.device)


def head_vectors(net: CodeNet, values: Tensor) -> Tensor:
    """[texts, dim] vectors of [texts, readings, dim] latents; in training on a GPU computed in 16 bits."""
    with torch.autocast(values.device.type, torch.bfloat16, enabled=values.is_cuda and net.training):
        vectors: Tensor = net(values.transpose(0, 1))
    return vectors.float()


def train(
    net: CodeNet, latents: Tensor, n_held_out: int, loss: DistillationLoss, settings: Settings
) -> list[dict[str, Any]]:
    """Train the head together with the maps to the teachers, and return the log.

    Args:
        net: The head.
        latents: [texts, readings, dim] standardised latents.
        n_held_out: Number of texts at the end that are not trained on.
        loss: The loss of a batch, by its rows.
        settings: Settings of the run.

    Raises:
        DivergedError: The loss is not finite.
    """
    rng = np.random.default_rng(settings.seed)
    parameters = [*net.parameters(), *loss.parameters()]
    optimiser = torch.optim.AdamW(parameters, weight_decay=settings.weight_decay, fused=latents.is_cuda)
    log: list[dict[str, Any]] = []
    order = np.empty(0, np.intp)
    started = time.perf_counter()
    net.train()
    for step in tqdm(range(settings.steps), desc="steps", disable=None):
        if len(order) < settings.batch:
            order = rng.permutation(len(latents) - n_held_out)
        rows, order = order[: settings.batch], order[settings.batch :]
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, loss.settings)
        batch = latents[torch.from_numpy(rows).to(latents.device)]
        total, losses = loss(head_vectors(net, batch), rows, 0)
        optimiser.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        if (step + 1) % _LOG_EVERY == 0 or step + 1 == settings.steps:
            last = {name: float(value) for name, value in losses.items()}
            if not np.isfinite(list(last.values())).all():
                raise DivergedError(f"A loss is not finite ({last}); lower the rate.")
            cosines = held_out_cosines(net, latents[-n_held_out:], loss)
            seconds = round(time.perf_counter() - started, 1)
            log.append({"step": step + 1, **last, "held-out cosines": cosines, "seconds": seconds})
            print(json.dumps(log[-1]), flush=True)
    return log


@torch.no_grad()
def held_out_cosines(net: CodeNet, latents: Tensor, loss: DistillationLoss) -> list[float]:
    """Mean cosine to each teacher on the last texts, whose latents are given."""
    vectors = head_vectors(net.eval(), latents)
    net.train()
    pairs = zip(loss.maps, loss.targets, strict=True)
    cosine = nn.functional.cosine_similarity
    return [
        round(float(cosine(linear(vectors), target[-len(latents) :].float()).mean()), 4) for linear, target in pairs
    ]


def as_encoder(backbone: Backbone, readings: Sequence[Reading], net: CodeNet, max_length: int) -> Encoder:
    """The encoder; where all readings share a prompt, it is the encoder's template."""
    template = "{text}"
    if len(templates := {reading.template for reading in readings}) == 1:
        template = templates.pop()
        readings = [replace(reading, template="") for reading in readings]
    spec = EncoderSpec(backbone.name, tuple(readings), template, backbone.attention, max_length)
    return Encoder(backbone, spec, LayerwiseHead(net))


def dev_score(encoder: Encoder, file: Path) -> float:
    """Spearman correlation with the scores of a file of pairs, in points."""
    pairs = read_pairs(file)
    left, right = encoder.encode(list(pairs.left)), encoder.encode(list(pairs.right))
    return round(100 * spearman(pairwise_cos_sim(left, right), np.asarray(pairs.scores)), 2)


def distil(
    model: str,
    sources: Sequence[LatentSource],
    texts: Sequence[str],
    vectors: dict[str, Tensor],
    outs: Mapping[int, Path],
    settings: Settings,
    *,
    dev: Sequence[Path] = (),
    copy: bool = False,
    device: str | None = None,
) -> list[Encoder]:
    """Run the experiment; see the description of this file. The texts are read once for all seeds.

    Args:
        model: The model that stays as it is.
        sources: What is read from it.
        texts: Texts in random order.
        vectors: [texts, dim] vectors of each teacher.
        outs: Folders of the encoders by seed.
        settings: Settings of the run.
        dev: Files of scored pairs for the log.
        copy: Copy the model into the folder.
        device: By default the best one available.
    """
    for out in outs.values():
        check_output_folder(out)
    for name, rows in vectors.items():
        if len(rows) != len(texts):
            raise InputError(f"The teacher {name} has {len(rows)} vectors for {len(texts)} texts.")
    backbone = Backbone.load(model, device=device)
    readings = readings_of(sources, backbone)
    started = time.perf_counter()
    reader = Reader(backbone, readings, Template("{text}"), settings.max_length)
    latents = read_latents(reader, texts, settings.read_seconds)
    about: dict[str, Any] = {"model": model, "teachers": list(vectors), "readings": list(map(str, readings))}
    about |= {"texts": len(latents.values), "tokens": reader.stats.tokens}
    about["seconds of reading"] = round(time.perf_counter() - started, 1)
    print(json.dumps(about), flush=True)
    targets = [centre(rows[: len(latents.values)].to(backbone.device, copy=True)) for rows in vectors.values()]
    encoders = []
    for seed, out in outs.items():
        of_seed = replace(settings, seed=seed)
        net, log = train_head(latents, targets, of_seed)
        encoder = as_encoder(backbone, readings, net, settings.max_length)
        record = {"settings": to_table(of_seed), **about, "log": log, "parameters": net.count_parameters()}
        record["dev"] = {file.name: dev_score(encoder, file) for file in dev}
        print(json.dumps({key: record[key] for key in ("parameters", "dev")}), flush=True)
        encoder.save(out, copy_backbone=copy, extra_files={_LOG_FILE: (json.dumps(record, indent=1) + "\n").encode()})
        encoders.append(encoder)
    return encoders


def train_head(latents: Latents, targets: Sequence[Tensor], settings: Settings) -> tuple[CodeNet, list[dict[str, Any]]]:
    """A head for latents as they are read, trained with the seed of the settings, and the log."""
    torch.manual_seed(settings.seed)
    loss_settings = LossSettings(
        rate=settings.rate,
        steps=settings.steps,
        warm_up=settings.warm_up,
        vectors=settings.vectors,
        similarities=settings.similarities,
    )
    net = new_head(latents, settings)
    loss = DistillationLoss(settings.dim, targets, [1.0] * len(targets), loss_settings).to(latents.values.device)
    n_held_out = min(_HELD_OUT, max(1, len(latents.values) // 10))
    log = train(net, latents.values, n_held_out, loss, settings)
    net.set_statistics(latents.mean, latents.deviation, standardise=True)
    return net, log


def parse_source(template: str, pooling: str, layers: str) -> LatentSource:
    """A source from the command line: layers are numbers such as 20,24,30 or a range such as 20:30."""
    if ":" in layers or layers == "all":
        return LatentSource(template, pooling, layers)
    return LatentSource(template, pooling, tuple(int(layer) for layer in layers.split(",")))


def main() -> None:
    """Read the options and run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--teachers", nargs="+", help="names in the file of vectors; all by default")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dev", type=Path, nargs="*", default=[], help="files of scored pairs for the log")
    parser.add_argument(
        "--read", nargs=3, action="append", metavar=("TEMPLATE", "POOLING", "LAYERS"), help="may be repeated"
    )
    parser.add_argument("--copy", action="store_true", help="copy the model into the encoder's folder")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="several: folders OUT/seed-N")
    parser.add_argument("--set", nargs="*", default=[], help="key=value: other settings")
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # TF32
    vectors = torch.load(arguments.vectors, mmap=True)
    distil(
        arguments.model,
        [parse_source(*source) for source in arguments.read] if arguments.read else SOURCES,
        arguments.texts.read_text(encoding="utf-8").rstrip("\n").split("\n"),
        {name: vectors[name] for name in arguments.teachers or vectors},
        folders_by_seed(arguments.out, arguments.seeds),
        from_table(Settings, override(to_table(Settings()), arguments.set)),
        dev=arguments.dev,
        copy=arguments.copy,
    )


if __name__ == "__main__":
    main()
