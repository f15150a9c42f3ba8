"""Tokens per second of the same weights, texts and pooling (mean of the last layer, float32), side by side.

Five ways in one process, in turns, best of two: sentence-transformers on the folder without its chat template, the
same on the folder as it is, a plain loop of unsorted batches of 32 with all hidden states, one text at a time, and
ours. Vectors are compared first: being fast and wrong does not count.

Given an instruct model, sentence-transformers 6 wraps every text into its chat template, system prompt included: more
tokens, and other vectors; tokens are counted before any wrapping.
Run: python bench/against_sentence_transformers.py [model]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from corpus import mixed, sentences
from decoder2vec import Encoder
from decoder2vec.backbone.sources import resolve_model_folder
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


def sentence_transformer(folder: str) -> SentenceTransformer:
    """Mean pooling over the folder's model."""
    body = Transformer(folder)
    peer = SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), "mean")], device="cpu")
    peer.tokenizer.pad_token = peer.tokenizer.pad_token or peer.tokenizer.eos_token
    return peer


def without_chat_template(folder: str, target: str) -> str:
    """The same folder, by links, less the file that makes sentence-transformers wrap its texts."""
    for file in Path(folder).iterdir():
        if file.name != "chat_template.jinja":
            (Path(target) / file.name).symlink_to(file)
    return target


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    folder = str(resolve_model_folder(name))
    scratch = tempfile.TemporaryDirectory()
    peer = sentence_transformer(without_chat_template(folder, scratch.name))
    wrapping = sentence_transformer(folder)
    ours = Encoder.from_pretrained(name, layer=-1, normed=True, pooling="mean", template="plain", device="cpu")
    rows = []
    for kind, texts in (("sentences", sentences(48)), ("mixed lengths", mixed(48))):
        tokens = sum(len(ours.tokenizer(text)["input_ids"]) for text in texts)
        ways = {
            "sentence-transformers": lambda texts=texts: peer.encode(texts, batch_size=32),
            "sentence-transformers, chat template": lambda texts=texts: wrapping.encode(texts, batch_size=32),
            "unsorted batches of 32": lambda texts=texts: plain_loop(ours, texts, 32),
            "one at a time": lambda texts=texts: plain_loop(ours, texts, 1),
            "decoder2vec": lambda texts=texts: ours.encode(texts),
        }
        expected = ways["one at a time"]()
        best = dict.fromkeys(ways, float("inf"))
        for way, run in ways.items():
            difference = np.abs(run() - expected).max() / np.abs(expected).max()
            assert difference < 1e-3 or "chat" in way, (way, difference)
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
