"""Pre-train a small decoder from scratch and keep checkpoints, for the study of when it becomes a good encoder.

`python experiments/trajectory/pretrain.py --pool DATA/pool --out CKPT --size 30m --steps 8000` reads texts-*.tsv.gz
(column text), trains a byte-level BPE tokenizer on a part of them and a Llama on all, and saves a model folder for step
0 and for 1/128, 1/64 ... 1/2 and all of the steps. `pretraining.json` has the loss on held-out texts at every
checkpoint. `--size tiny --texts 2000 --steps 64` takes a minute on a CPU. Then: `adapt.py`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch

from decoder2vec.storage import atomic_folder, write_json

sys.path.append(str(Path(__file__).parents[1]))
from pretraining import mean_loss, pack, read_texts, shuffled_batches, train_step, train_tokenizer

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3, "num_attention_heads": 4},
    "10m": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 9, "num_attention_heads": 4},
    "30m": {"hidden_size": 448, "intermediate_size": 1216, "num_hidden_layers": 10, "num_attention_heads": 7},
}
VOCABULARY = {"tiny": 2048, "10m": 8192, "30m": 16384}
LENGTH = 256
HELD_OUT = 64
"""Sequences that are not trained on."""


def make_model(size: str, tokenizer: Any) -> Any:
    """A Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=2 * LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES[size],
    )
    return LlamaForCausalLM(config)


def checkpoint_steps(steps: int) -> list[int]:
    """0, then every doubling up to the last step."""
    return sorted({0, *(steps >> power for power in range(8))})


def rate_at(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 2 % of the steps, then a cosine to a tenth of the peak."""
    warm_up = max(1, steps // 50)
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up))))


def pretrain(arguments: argparse.Namespace) -> None:
    """Train, and save every checkpoint."""
    torch.manual_seed(arguments.seed)
    texts = read_texts(arguments.pool, arguments.texts)
    tokenizer = train_tokenizer(texts, VOCABULARY[arguments.size])
    sequences = pack(texts, tokenizer, LENGTH)
    held_out, sequences = sequences[:HELD_OUT], sequences[HELD_OUT:]
    device = arguments.device
    model = make_model(arguments.size, tokenizer).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.rate, betas=(0.9, 0.95), weight_decay=0.1)
    batches = shuffled_batches(sequences, arguments.batch, arguments.seed)
    parameters = sum(weight.numel() for weight in model.parameters())
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    record: dict[str, Any] = {"parameters": parameters, "texts": len(texts), "sequences": len(sequences), **options}
    record["checkpoints"] = {}
    started = time.perf_counter()
    for step in range(arguments.steps + 1):
        if step in checkpoint_steps(arguments.steps):
            model.eval()
            loss = mean_loss(model, held_out, device)
            with atomic_folder(arguments.out / f"step{step}", replace=True) as folder:
                model.save_pretrained(folder)
                tokenizer.save_pretrained(folder)
            tokens = step * arguments.batch * LENGTH
            record["checkpoints"][f"step{step}"] = {"tokens": tokens, "held_out_loss": round(loss, 4)}
            record["seconds"] = round(time.perf_counter() - started, 1)
            write_json(arguments.out / "pretraining.json", record)
            sys.stdout.write(f"step {step}: {tokens:,} tokens, held-out loss {loss:.3f}\n")
            sys.stdout.flush()
            model.train()
        if step == arguments.steps:
            break
        rate = rate_at(step, arguments.steps, arguments.rate)
        train_step(model, optimizer, next(batches).to(device), rate)


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--texts", type=int)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    pretrain(parser.parse_args())


if __name__ == "__main__":
    main()
