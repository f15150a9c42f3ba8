"""Tokens per second of one worker of Ray, against the same encoder in one process, both with one thread.

Each way embeds the same texts of about 60 words into parts in a process of its own. Tokens per CPU second count what
the process with the model takes, from its first part to its last: other processes do not change them, so that they can
be compared on a busy machine. Tokens/s are wall time from the first part to the last; compare them on a quiet one.

Run: OMP_NUM_THREADS=1 python bench/ray_workers.py
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

import decoder2vec as d2v
from corpus import texts_of_length
from measure import fastest_runs, report

METHODS = ("local", "ray", "ray_tokenisers")
COLUMNS = ("method", "tokens/s", "tokens per CPU s", "share of local", "share of local, CPU")


def watch(
    folder: Path, find_process: Callable[[], psutil.Process | None], notes: list[tuple[int, float, float]]
) -> None:
    """Note the time and the CPU seconds of a process whenever a folder has more parts."""
    seen = 0
    while True:
        n_parts = len(list(folder.glob("part-*")))
        if n_parts > seen and (process := find_process()):
            seen = n_parts
            times = process.cpu_times()
            notes.append((n_parts, time.perf_counter(), times.user + times.system))
        time.sleep(0.005)


def worker_of_ray() -> psutil.Process | None:
    """The process with the encoder."""
    for process in psutil.Process().children(recursive=True):
        try:
            if "MapWorker(MapBatches(_Worker))" in " ".join(process.cmdline()):
                return process
        except psutil.Error:
            continue
    return None


def measure(method: str, model: str, n_texts: int, rows_per_part: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "texts.jsonl", Path(folder) / "out"
        texts = texts_of_length(n_texts, 60)
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        ray = {"engine": "ray", "workers": 1, "tokenisers": int(method == "ray_tokenisers")}
        notes: list[tuple[int, float, float]] = []
        find_process = psutil.Process if method == "local" else worker_of_ray
        threading.Thread(target=watch, args=(out, find_process, notes), daemon=True).start()
        options = {"rows_per_part": rows_per_part, "device": "cpu", "dtype": "float32"}
        result = d2v.embed_dataset(model, str(file), out, **options, **({} if method == "local" else ray))
        (first, started, cpu), (last, ended, cpu_end) = notes[0], notes[-1]
    n_tokens, seconds = result.n_tokens * (last - first) * rows_per_part / n_texts, ended - started
    speeds = {"tokens_per_second": n_tokens / seconds, "tokens_per_cpu_second": n_tokens / (cpu_end - cpu)}
    return {"seconds": seconds, **speeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-general")
    parser.add_argument("--texts", type=int, default=160)
    parser.add_argument("--rows-per-part", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--method", help="measure this one in the same process")
    options = parser.parse_args()
    if options.method:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        print(json.dumps(measure(options.method, options.model, options.texts, options.rows_per_part)))
        return
    sizes = ("--texts", str(options.texts), "--rows-per-part", str(options.rows_per_part), "--model", options.model)
    runs = fastest_runs(__file__, METHODS, *sizes, rounds=options.rounds)
    local, rows = runs["local"], []
    for method, run in runs.items():
        shares = [f"{run[name] / local[name]:.3f}" for name in ("tokens_per_second", "tokens_per_cpu_second")]
        rows.append((method, f"{run['tokens_per_second']:.0f}", f"{run['tokens_per_cpu_second']:.0f}", *shares))
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    report("ray_workers", COLUMNS, rows, model=options.model, texts=options.texts, load=load)


if __name__ == "__main__":
    main()
