"""Tokens per second of the same weights, texts and pooling (mean of the last layer, float32), side by side.

Four ways in one process, in turns, best of two: sentence-transformers, a plain loop of unsorted batches of 32 with
all hidden states, one text at a time, and ours. Vectors are compared first: being fast and wrong does not count.
Run: python bench/against_sentence_transformers.py [model]
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from corpus import mixed, sentences
from decoder2vec import Encoder
from decoder2vec.backbone.source import resolve
from measure import report

ROUNDS = 2


def plain_loop(encoder: Encoder, texts: list[str], size: int) -> np.ndarray:
    """What many people write first: pad, run everything, average the last state."""
    tokenizer, model, rows = encoder.tokenizer, encoder.backbone.model, []
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with torch.inference_mode():
        for begin in range(0, len(texts), size):
            part = tokenizer(texts[begin : begin + size], return_tensors="pt", padding=True, padding_side="right")
            states = model(**part, output_hidden_states=True).hidden_states[-1]
            mask = part["attention_mask"].unsqueeze(-1)
            rows.append(((states * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(rows)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    folder = str(resolve(name))
    peer = SentenceTransformer(
        modules=[body := Transformer(folder), Pooling(body.get_embedding_dimension(), "mean")], device="cpu"
    )
    peer.tokenizer.pad_token = peer.tokenizer.pad_token or peer.tokenizer.eos_token
    ours = Encoder.from_pretrained(name, layer=-1, normed=True, pooling="mean", template="plain", device="cpu")
    rows = []
    for kind, texts in (("sentences", sentences(100)), ("mixed lengths", mixed(60))):
        tokens = sum(len(ours.tokenizer(text)["input_ids"]) for text in texts)
        ways = {
            "sentence-transformers": lambda texts=texts: peer.encode(texts, batch_size=32),
            "unsorted batches of 32": lambda texts=texts: plain_loop(ours, texts, 32),
            "one at a time": lambda texts=texts: plain_loop(ours, texts, 1),
            "decoder2vec": lambda texts=texts: ours.encode(texts),
        }
        expected = ways["one at a time"]()
        best = dict.fromkeys(ways, float("inf"))
        for way, run in ways.items():
            difference = np.abs(run() - expected).max() / np.abs(expected).max()
            assert difference < 1e-3, (way, difference)
        for _ in range(ROUNDS):
            for way, run in ways.items():
                started = time.perf_counter()
                run()
                best[way] = min(best[way], time.perf_counter() - started)
        for way, seconds in best.items():
            ratio = seconds / best["decoder2vec"]
            rows.append((kind, way, tokens, round(seconds, 2), round(tokens / seconds, 1), f"{ratio:.2f}x"))
    columns = ("texts", "way", "tokens", "seconds", "tokens/s", "ours is faster by")
    report("against_sentence_transformers", columns, rows, model=name)


if __name__ == "__main__":
    main()
