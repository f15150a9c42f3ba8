"""What all benches share: timing, the machine's limits, and the output format (a table, then one line of JSON)."""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata

import numpy as np
import torch


def best_seconds(job: Callable[[], object], repeats: int = 3, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of the fastest of several runs: on a shared machine it is the least disturbed one."""
    times = []
    for _ in range(repeats):
        _synchronise()
        started = clock()
        job()
        _synchronise()
        times.append(clock() - started)
    return min(times)


def select_clock(cpu: bool) -> Callable[[], float]:
    """Return a wall clock, or with `cpu` a clock of CPU seconds, and limit torch to one thread.

    CPU seconds do not count the time in which other processes use the processor.
    """
    if not cpu:
        return time.perf_counter
    torch.set_num_threads(1)  # threads busy-wait for each other, which would count as CPU time
    return time.process_time


def speed_column(cpu: bool) -> str:
    """Return the title of a column of speeds measured with that clock."""
    return "tokens per CPU second of one thread" if cpu else "tokens/s"


def lowest_cosine(vectors: np.ndarray, expected: np.ndarray) -> float:
    """Return the lowest cosine between vectors of the same text."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    return float(((vectors * expected).sum(1) / norms).min())


def gemm_flops(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """Return the measured FLOP/s of a large matrix product: the practical peak of the machine."""
    size = size or (8192 if device.type == "cuda" else 2048)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    a @ b
    return 2 * size**3 / best_seconds(lambda: a @ b, 10)


def flops_per_token(backbone: object) -> float:
    """Return two FLOPs per weight of the blocks; attention scores, embeddings and LM head are not counted."""
    return 2.0 * sum(p.numel() for p in backbone.blocks.parameters() if p.ndim == 2)


def describe_machine() -> dict[str, object]:
    """Return the hardware, the number of threads and the versions of the libraries."""
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else _processor()
    packages = ("torch", "transformers")
    return {
        "machine": hardware,
        "threads": torch.get_num_threads(),
        **{name: metadata.version(name) for name in packages},
    }


def _processor() -> str:
    """The architecture and, where `lscpu` is there, the name of the processor."""
    described = subprocess.run("lscpu", shell=True, capture_output=True, text=True, check=False).stdout
    names = [line.partition(":")[2].strip() for line in described.splitlines() if line.startswith("Model name")]
    return " ".join([platform.machine(), "CPU", *(f"({name})" for name in names[:1])])


def report(name: str, columns: Sequence[str], rows: Sequence[Sequence[object]], **facts: object) -> None:
    """Print a table and, as the last line, the same as JSON.

    Args:
        name: Name of the bench.
        columns: Titles of the columns.
        rows: A cell for each column.
        facts: Further results and settings, printed below the table.

    """
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, *rows]:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)))
    for key, value in facts.items():
        print(f"{key}: {value}")
    table = [dict(zip(columns, row, strict=True)) for row in rows]
    print(json.dumps({"bench": name, **describe_machine(), "rows": table, **facts}), flush=True)


def fastest_runs(file: str, methods: Sequence[str], *options: str, rounds: int = 2) -> dict[str, dict[str, float]]:
    """Measure each method in a new process, alternating between methods; return the fastest run of each.

    Args:
        file: A bench that accepts `--method` and prints one line of JSON with `seconds`.
        methods: What to measure.
        options: Further command-line options of the bench.
        rounds: How often each method is measured.

    """
    fastest: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for method in methods:
            command = [sys.executable, file, *options, "--method", method]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if process.returncode:
                raise SystemExit(process.stderr[-2000:])
            run = json.loads(process.stdout.splitlines()[-1])
            if method not in fastest or run["seconds"] < fastest[method]["seconds"]:
                fastest[method] = run
    return fastest


def peak_megabytes() -> float:
    """Return the peak memory so far: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
