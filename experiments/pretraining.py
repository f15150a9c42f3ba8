"""Pre-training of small decoders from scratch on the texts of a pool, shared by the studies that need some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.text.files import read_rows

TOKENIZER_TEXTS = 100_000


def read_texts(pool: Path, limit: int | None) -> list[str]:
    """The texts of a pool, at most `limit`."""
    texts: list[str] = []
    for file in sorted(pool.glob("texts-*.tsv.gz")):
        for _, row in read_rows(file):
            texts.append(str(row["text"]))
            if len(texts) == limit:
                return texts
    return texts


def train_tokenizer(texts: list[str], size: int) -> Any:
    """A byte-level BPE tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<eos>", "<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts[:TOKENIZER_TEXTS], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")


def pack(texts: list[str], tokenizer: Any, length: int) -> Tensor:
    """[sequences, length] token ids: all texts one after another, each closed by the end token."""
    parts = []
    for start in range(0, len(texts), 10_000):
        encoded = tokenizer(texts[start : start + 10_000], add_special_tokens=False)["input_ids"]
        parts.append(np.array([token for row in encoded for token in (*row, tokenizer.eos_token_id)], np.int32))
    ids = np.concatenate(parts)
    rows = len(ids) // length
    return torch.from_numpy(ids[: rows * length].astype(np.int64).reshape(rows, length))


def shuffled_batches(sequences: Tensor, size: int, seed: int) -> Iterator[Tensor]:
    """Endless batches of `size` sequences; every epoch has an order of its own."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    while True:
        while len(order) < size:
            order = torch.cat([order, torch.randperm(len(sequences), generator=generator)])
        rows, order = order[:size], order[size:]
        yield sequences[rows.to(sequences.device)]


def autocast(device: str) -> Any:
    """bfloat16 on a GPU, float32 elsewhere."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def mean_loss(model: Any, held_out: Tensor, device: str) -> float:
    """The loss on held-out sequences."""
    with torch.no_grad(), autocast(device):
        parts = [part.to(device) for part in held_out.split(16)]
        losses = [float(model(input_ids=part, labels=part, use_cache=False).loss) for part in parts]
    return float(np.mean(losses))


def train_step(model: Any, optimizer: torch.optim.Optimizer, batch: Tensor, rate: float) -> Tensor:
    """One step of next-token prediction; returns the loss."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    with autocast(batch.device.type):
        loss: Tensor = model(input_ids=batch, labels=batch, use_cache=False).loss
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()
