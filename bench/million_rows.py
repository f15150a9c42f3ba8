"""Peak memory and time of `d2v embed` over a growing number of rows, with a tiny model: memory must not grow with rows.

Rows are synthetic texts of 4 to 11 words in one Parquet file. Each size is embedded by the command line in a process of
its own; its peak memory is that of the operating system (with the engine ray: of the driver alone), and the result is
checked by the number of rows in the files and by `--verify`.

Run: python bench/million_rows.py --rows 100000,1000000
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow
from pyarrow import parquet

from measure import report

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "re", "po") for b in ("tar", "ben", "sol", "dim", "fex", "gul")]
BATCH = 50_000
COLUMNS = ("engine", "rows", "CPU s", "s", "rows per CPU s", "peak MB", "rows written", "output MB")


def write_rows(file: Path, rows: int) -> None:
    """Write rows with an id and a text; only a batch of them is in memory."""
    rng = random.Random(0)
    schema = pyarrow.schema([("id", pyarrow.int64()), ("text", pyarrow.string())])
    with parquet.ParquetWriter(file, schema) as writer:
        for start in range(0, rows, BATCH):
            ids = list(range(start, min(start + BATCH, rows)))
            texts = [" ".join(rng.choices(WORDS, k=4 + id % 8)) for id in ids]
            writer.write_table(pyarrow.table({"id": ids, "text": texts}, schema=schema))


def run(*arguments: str) -> tuple[float, float, float]:
    """Run `d2v` with arguments; return its CPU seconds, seconds and peak megabytes."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "decoder2vec", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        error = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(error.decode()[-2000:])
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - started, usage.ru_maxrss / 1024


def measure_size(rows: int, engine: str, model: str, folder: Path) -> tuple[object, ...]:
    file, out = folder / f"{rows}.parquet", folder / f"out-{rows}-{engine}"
    write_rows(file, rows)
    cpu, seconds, peak = run(
        *("embed", str(file), "--out", str(out), "--encoder", model, "--engine", engine, "--precision", "float16")
    )
    written = sum(parquet.ParquetFile(part).metadata.num_rows for part in out.glob("part-*.parquet"))
    run("embed", "--verify", str(out), "--encoder", model)
    size = sum(part.stat().st_size for part in out.iterdir()) / 2**20
    return engine, rows, f"{cpu:.0f}", f"{seconds:.0f}", f"{rows / cpu:.0f}", f"{peak:.0f}", written, f"{size:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="100000,1000000")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--model", default="tiny-llama")
    options = parser.parse_args()
    table = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in map(int, options.rows.split(",")):
            table.append(measure_size(rows, options.engine, options.model, Path(folder)))
            print(table[-1], flush=True)
    report("million_rows", COLUMNS, table, model=options.model)


if __name__ == "__main__":
    main()
