"""Start-up times: `import decoder2vec`, and commands from a cold start with the parts that take longest.

Seconds are of the clock and of the CPU, each of the fastest run; only the latter do not depend on other processes. The
files are in the cache of the system.

Run: python bench/start_up.py [encoder]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from decoder2vec.config import DEFAULT_ENCODER
from measure import report

REPEATS = 3
D2V = [sys.executable, "-m", "decoder2vec"]
TEXTS = ["A cat sleeps on the sofa.", "Stocks fell sharply in autumn."]
PARTS = """
import gc, json, sys, time
gc.disable()  # as the commands do
seconds, last = {}, time.process_time()
def done(part):
    global last
    now = time.process_time()
    seconds[part], last = now - last, now
import torch
done("import torch")
import transformers.modeling_utils
from transformers import AutoModel, AutoTokenizer
done("import transformers")
import lancedb
done("import lancedb")
from decoder2vec import Encoder
encoder = Encoder.from_pretrained(sys.argv[1], device="cpu")
done("load the encoder")
encoder.encode(sys.argv[2:])
done("encode two texts")
print(json.dumps(seconds))
"""


def fastest_run(command: list[str]) -> tuple[float, float]:
    """Return the seconds of the clock and of the CPU of the fastest of several runs."""
    runs = []
    for _ in range(REPEATS):
        started, used = time.perf_counter(), _children_cpu_seconds()
        subprocess.run(command, check=True, capture_output=True)
        runs.append((time.perf_counter() - started, _children_cpu_seconds() - used))
    clock, cpu = zip(*runs, strict=True)
    return min(clock), min(cpu)


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fastest_parts(encoder: str) -> dict[str, float]:
    """Return the CPU seconds of each part of a search; of several runs, the fastest of each part."""
    command = [sys.executable, "-c", PARTS, encoder, *TEXTS]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(REPEATS)]
    parts = [json.loads(output.splitlines()[-1]) for output in runs]
    return {part: min(run[part] for run in parts) for part in parts[0]}


def main() -> None:
    encoder = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_ENCODER
    with tempfile.TemporaryDirectory() as scratch:
        corpus, index = Path(scratch) / "corpus.jsonl", str(Path(scratch) / "index")
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        subprocess.run([*D2V, "index", str(corpus), "--out", index, "-e", encoder], check=True, capture_output=True)
        commands = {
            "import decoder2vec": [sys.executable, "-c", "import decoder2vec"],
            "d2v --version": [*D2V, "--version"],
            "d2v --help": [*D2V, "--help"],
            "d2v similarity A B": [*D2V, "similarity", *TEXTS, "-e", encoder],
            "d2v search INDEX QUERY": [*D2V, "search", index, "sleeping cat"],
        }
        rows = [(what, *(f"{seconds:.2f}" for seconds in fastest_run(command))) for what, command in commands.items()]
    rows += [(f"  {part}", "", f"{seconds:.2f}") for part, seconds in fastest_parts(encoder).items()]
    report("start_up", ("what", "seconds", "CPU seconds"), rows, encoder=encoder)


if __name__ == "__main__":
    main()
