"""Tokens a second of each worker of the engine ray, beside one process that computes alone with one thread.

Every worker of Ray has one core. Counted from the moment in which each worker has written its first part, so that
neither starting Ray nor loading the encoder counts; both are in the seconds of the whole run. With as many workers as
cores, Ray's own processes take a part of what workers have.

Run: python bench/ray_workers.py [--workers 1,2] [--rows 960] [--encoder smollm2-135m-general]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from corpus import sentences
from measure import report

ROWS_PER_PART = 40
COLUMNS = ("processes", "tokens/s of each", "ratio", "seconds of the whole run")


def embed(encoder: str, file: Path, out: Path, workers: int) -> None:
    """Embed a file, in this process or by workers of Ray, and print the number of tokens."""
    import decoder2vec as d2v

    engine = {"engine": "ray", "workers": workers} if workers else {}
    settings = {"rows_per_part": ROWS_PER_PART, "device": "cpu", "dtype": "float32"}
    print(d2v.embed_dataset(encoder, file, out, **settings, **engine).n_tokens)


def measure(folder: Path, workers: int) -> tuple[float, float]:
    """Return the tokens a second of each process, and the seconds of the whole run."""
    out = folder / f"out-{workers}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    started = time.perf_counter()
    command = [*sys.orig_argv, "--file", str(folder / "rows.jsonl"), "--out", str(out), "--with", str(workers)]
    process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds = time.perf_counter() - started
    written = sorted(file.stat().st_mtime for file in out.glob("*.parquet"))
    processes = max(1, workers)
    tokens_of_a_part = int(process.stdout.splitlines()[-1]) / len(written)
    steady = written[processes - 1 :]
    return (len(steady) - 1) * tokens_of_a_part / (steady[-1] - steady[0]) / processes, seconds


def main() -> None:
    """Measure one process, then workers of Ray."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--rows", type=int, default=960)
    parser.add_argument("--encoder", default="smollm2-135m-general")
    for name in ("--file", "--out"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--with", dest="engine_workers", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file:
        embed(options.encoder, options.file, options.out, options.engine_workers)
        return
    table, alone = [], 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = (json.dumps({"id": number, "text": text}) for number, text in enumerate(sentences(options.rows)))
        (folder / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
        for workers in (0, *map(int, options.workers.split(","))):
            rate, seconds = measure(folder, workers)
            alone = alone or rate
            label = f"{workers} of Ray" if workers else "1, alone"
            table.append((label, round(rate), f"{rate / alone:.2f}", round(seconds)))
            print(*table[-1], flush=True)
    report("ray_workers", COLUMNS, table, encoder=options.encoder, n_texts=options.rows)


if __name__ == "__main__":
    main()
