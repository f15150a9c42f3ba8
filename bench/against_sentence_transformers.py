"""Tokens per second against sentence-transformers: same weights, texts and pooling (mean of the last layer, float32).

Methods in one process, in alternation, best of four runs: sentence-transformers on the model folder without its chat
template, the same with torch.compile on its model, sentence-transformers on the unchanged folder, ONNX Runtime on our
export, a plain loop over unsorted batches of 32 with all hidden states, one text at a time, and decoder2vec. All but
the chat template must give the same vectors, which is checked; the first run also compiles. decoder2vec also computes
in int8, and in bfloat16 where that is its default, since the processor is made for it.

Given an instruct model, sentence-transformers 6 wraps every text into the chat template, system prompt included: more
tokens, and other vectors. Tokens are counted before any wrapping.
Run: python bench/against_sentence_transformers.py [model] [--cpu]; --cpu counts CPU seconds of one thread, for which
ONNX Runtime must be kept on one core (taskset -c 0 python ...).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from corpus import sentences, texts_of_length, texts_of_mixed_lengths
from decoder2vec import Encoder
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.errors import UnsupportedError
from decoder2vec.evaluation.onnx_encoder import OnnxEncoder
from decoder2vec.export.onnx import export_onnx
from measure import lowest_cosine, report, select_clock, speed_column


def plain_loop(encoder: Encoder, texts: list[str], batch_size: int) -> np.ndarray:
    """Encode as a first script usually does: pad, keep all hidden states, average the last."""
    tokenizer, model, vectors = encoder.tokenizer, encoder.backbone.model, []
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    with torch.inference_mode():
        for start in range(0, len(texts), batch_size):
            chunk = texts[start : start + batch_size]
            batch = tokenizer(chunk, return_tensors="pt", padding=True, padding_side="right")
            states = model(**batch, output_hidden_states=True).hidden_states[-1]
            mask = batch["attention_mask"].unsqueeze(-1)
            vectors.append(((states * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(vectors)


def mean_pooled_model(folder: str) -> SentenceTransformer:
    """Return the model of a folder in sentence-transformers, with mean pooling."""
    transformer = Transformer(folder)
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[transformer, pooling], device="cpu")
    model.tokenizer.pad_token = model.tokenizer.pad_token or model.tokenizer.eos_token
    return model


def link_without_chat_template(folder: str, target: str) -> str:
    """Link all files of a model folder into another, except the one that makes sentence-transformers wrap texts."""
    for file in Path(folder).iterdir():
        if file.name != "chat_template.jinja":
            (Path(target) / file.name).symlink_to(file)
    return target


def compiled_model(folder: str) -> SentenceTransformer:
    """Return the same with torch.compile on the model inside, for any shape of batch."""
    model = mean_pooled_model(folder)
    inner = model[0].auto_model
    inner.forward = torch.compile(inner.forward, dynamic=True)
    return model


def in_16_and_8_bits(name: str, reading: dict[str, object]) -> dict[str, Encoder]:
    """Encoders in bfloat16, where it is the default, and in int8, unless the processor is not made for it."""
    default = Encoder.from_pretrained(name, **reading, device="cpu")
    encoders = {"decoder2vec, bfloat16": default} if default.backbone.dtype == torch.bfloat16 else {}
    try:
        encoders["decoder2vec, int8"] = Encoder.from_pretrained(name, **reading, device="cpu", dtype="int8")
    except UnsupportedError as error:
        print(error)
    return encoders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args()
    clock, name = select_clock(args.cpu), args.model
    folder = str(resolve_model_folder(name))
    scratch = tempfile.TemporaryDirectory()
    (plain_folder := Path(scratch.name) / "plain").mkdir()
    unwrapped = mean_pooled_model(link_without_chat_template(folder, str(plain_folder)))
    compiled = compiled_model(str(plain_folder))
    chat = mean_pooled_model(folder)
    reading = {"layer": -1, "normed": True, "pooling": "mean", "template": "plain"}
    ours = Encoder.from_pretrained(name, **reading, device="cpu", dtype="float32")
    rounded = in_16_and_8_bits(name, reading)
    export_onnx(ours, Path(scratch.name) / "onnx")
    onnx = OnnxEncoder(Path(scratch.name) / "onnx", "cpu")
    kinds = {
        "sentences": sentences(48),
        "mixed lengths": texts_of_mixed_lengths(48),
        "256 words": texts_of_length(3, 256),
    }
    rows = []
    for kind, texts in kinds.items():
        tokens = sum(len(ours.tokenizer(text)["input_ids"]) for text in texts)
        methods = {
            "sentence-transformers": lambda texts=texts: unwrapped.encode(texts, batch_size=32),
            "sentence-transformers, torch.compile": lambda texts=texts: compiled.encode(texts, batch_size=32),
            "sentence-transformers, chat template": lambda texts=texts: chat.encode(texts, batch_size=32),
            "ONNX Runtime": lambda texts=texts: onnx.embed(texts),
            "unsorted batches of 32": lambda texts=texts: plain_loop(ours, texts, 32),
            "one at a time": lambda texts=texts: plain_loop(ours, texts, 1),
            "decoder2vec": lambda texts=texts: ours.encode(texts),
        }
        for method, encoder in rounded.items():
            methods[method] = lambda texts=texts, encoder=encoder: encoder.encode(texts)
        best = dict.fromkeys(methods, float("inf"))
        vectors = {}
        for _ in range(4):
            for method, encode in methods.items():
                started = clock()
                vectors[method] = encode()
                best[method] = min(best[method], clock() - started)
        expected = vectors["one at a time"]
        cosines = {method: lowest_cosine(encoded, expected) for method, encoded in vectors.items()}
        for method, encoded in vectors.items():
            difference = np.abs(encoded - expected).max() / np.abs(expected).max()
            assert difference < 1e-3 or method in rounded or "chat" in method, (method, difference)
        for method, seconds in best.items():
            ratio, cosine = f"{seconds / best['decoder2vec']:.2f}x", f"{cosines[method]:.4f}"
            rows.append((kind, method, tokens, round(seconds, 2), round(tokens / seconds, 1), ratio, cosine))
    columns = ("texts", "way", "tokens", "seconds", speed_column(args.cpu), "ours is faster by", "lowest cosine")
    report("against_sentence_transformers", columns, rows, model=name, dtype="float32")


if __name__ == "__main__":
    main()
