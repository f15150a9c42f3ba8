"""Tokens per second against llama.cpp on the same GGUF file, and how near each is to the file's weights in float32.

llama.cpp comes prebuilt with the npm package node-llama-cpp, which is installed into a temporary folder; it encodes one
text at a time. Both give the last token of the last layer, with two threads, in alternation, best of four. decoder2vec
computes in its default dtype and, unless the processor is not made for it, in int8.
Run: python bench/against_llama_cpp.py model.gguf [--cpu]; --cpu gives both one thread and counts CPU seconds, for
machines that others use, too: the threads of llama.cpp wait for each other even more than those of torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from operator import itemgetter
from pathlib import Path

CPU = "--cpu" in sys.argv
THREADS = "1" if CPU else "2"
os.environ["OMP_NUM_THREADS"] = THREADS  # before torch is imported

import numpy as np  # noqa: E402

from corpus import sentences, texts_of_length  # noqa: E402
from decoder2vec import Encoder  # noqa: E402
from decoder2vec.errors import UnsupportedError  # noqa: E402
from measure import lowest_cosine, report, speed_column  # noqa: E402

ROUNDS = 4
clock = time.process_time if CPU else time.perf_counter
LLAMA_CPP = """
import {getLlama} from "node-llama-cpp";
import {readFileSync, writeFileSync} from "node:fs";
const [file, texts, threads] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: Number(threads)});
const model = await llama.loadModel({modelPath: file});
const context = await model.createEmbeddingContext({threads: Number(threads), contextSize: 1024});
const vectors = [];
await context.getEmbeddingFor("Once, so that memory is there.");
const now = () => threads == 1 ? (process.cpuUsage().user + process.cpuUsage().system) / 1e6 : performance.now() / 1000;
const started = now();
for (const text of JSON.parse(readFileSync(texts, "utf8"))) vectors.push((await context.getEmbeddingFor(text)).vector);
const seconds = now() - started;
writeFileSync("result.json", JSON.stringify({seconds, vectors}));
process.exit(0);
"""


def run_llama_cpp(folder: Path, gguf: str, texts: list[str]) -> tuple[np.ndarray, float]:
    """Vectors of one process, and the seconds they took."""
    (folder / "texts.json").write_text(json.dumps(texts))
    subprocess.run(["node", "encode.mjs", gguf, "texts.json", THREADS], cwd=folder, check=True)
    result = json.loads((folder / "result.json").read_text())
    return np.array(result["vectors"]), result["seconds"]


def run_encoder(encoder: Encoder, texts: list[str]) -> tuple[np.ndarray, float]:
    """Vectors, and the seconds they took."""
    started = clock()
    return encoder.encode(texts), clock() - started


def run_one_by_one(encoder: Encoder, texts: list[str]) -> tuple[np.ndarray, float]:
    """The same in a call for each text."""
    started = clock()
    return np.concatenate([encoder.encode([text]) for text in texts]), clock() - started


def main() -> None:
    if len(sys.argv) != 2 + CPU or not shutil.which("npm"):
        sys.exit("Give a .gguf file; npm must be installed, since llama.cpp comes with its package node-llama-cpp.")
    gguf = str(Path(sys.argv[1]).resolve())
    options = {"layer": -1, "normed": True, "pooling": "lasttoken", "template": "plain", "device": "cpu"}
    exact, ours = Encoder.from_pretrained(gguf, dtype="float32", **options), Encoder.from_pretrained(gguf, **options)
    encoders = {"decoder2vec": ours}
    try:
        encoders["decoder2vec, int8"] = Encoder.from_pretrained(gguf, dtype="int8", **options)
    except UnsupportedError as error:
        print(error)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "node-llama-cpp"]
        subprocess.run(install, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (folder / "encode.mjs").write_text(LLAMA_CPP)
        for kind, texts in (("sentences", sentences(48)), ("256 words", texts_of_length(6, 256))):
            tokens = sum(len(ours.tokenizer(text)["input_ids"]) for text in texts)
            reference = exact.encode(texts)
            best: dict[str, tuple[np.ndarray, float]] = {}
            for _ in range(ROUNDS):
                results = {"llama.cpp": run_llama_cpp(folder, gguf, texts)}
                for name, encoder in encoders.items():
                    results[f"{name}, one text at a time"] = run_one_by_one(encoder, texts)
                    results[name] = run_encoder(encoder, texts)
                best = {method: min(best.get(method, new), new, key=itemgetter(1)) for method, new in results.items()}
            for method, (vectors, seconds) in best.items():
                ratio = seconds / best["decoder2vec"][1]
                cosine = lowest_cosine(vectors, reference)
                rows.append((kind, method, f"{tokens / seconds:.0f}", f"{ratio:.2f}x", f"{cosine:.4f}"))
    dtype = str(ours.backbone.dtype).removeprefix("torch.")
    columns = ("texts", "engine", speed_column(CPU), "ours is faster by", "lowest cosine to float32")
    report("against_llama_cpp", columns, rows, model=Path(gguf).name, dtype=dtype, engine_threads=THREADS)


if __name__ == "__main__":
    main()
