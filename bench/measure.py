"""What every bench shares: best-of timing, the model, and the output format (a table, then one JSON line)."""

from __future__ import annotations

import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import metadata

import torch


def best_seconds(job: Callable[[], object], repeats: int = 3, clock: Callable[[], float] = time.perf_counter) -> float:
    """The fastest of some runs: on a shared machine the minimum is the least disturbed."""
    times = []
    for _ in range(repeats):
        _finish()
        started = clock()
        job()
        _finish()
        times.append(clock() - started)
    return min(times)


def clock_of(cpu: bool) -> Callable[[], float]:
    """A clock; with `cpu` one that stands still while others have the processor, for one thread from now on."""
    if not cpu:
        return time.perf_counter
    torch.set_num_threads(1)  # several wait for each other, and their waiting counts
    return time.process_time


def speed_column(cpu: bool) -> str:
    """What a column of speeds by that clock is called."""
    return "tokens per CPU second of one thread" if cpu else "tokens/s"


def gemm_flops(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float:
    """Measured FLOP/s of a large matrix product: the machine's practical ceiling."""
    size = size or (8192 if device.type == "cuda" else 2048)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    a @ b
    return 2 * size**3 / best_seconds(lambda: a @ b, 10)


def flops_per_token(backbone: object) -> float:
    """Two per weight inside the blocks; attention itself, the embeddings and the LM head are not counted."""
    return 2.0 * sum(p.numel() for p in backbone.blocks.parameters() if p.ndim == 2)


def machine() -> dict[str, object]:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    packages = ("torch", "transformers")
    return {
        "machine": where,
        "threads": torch.get_num_threads(),
        **{name: metadata.version(name) for name in packages},
    }


def report(name: str, columns: Sequence[str], rows: Sequence[Sequence[object]], **facts: object) -> None:
    """Print the table for people and, last, one JSON line for programs."""
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, *rows]:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)))
    for key, value in facts.items():
        print(f"{key}: {value}")
    table = [dict(zip(columns, row, strict=True)) for row in rows]
    print(json.dumps({"bench": name, **machine(), "rows": table, **facts}), flush=True)


def in_turn(file: str, ways: Sequence[str], *options: str, rounds: int = 2) -> dict[str, dict[str, float]]:
    """Each way in a process of its own, all of them in turn, some rounds of it; the faster run of each counts.

    The bench in `file` is called with `--way` and prints one line of JSON with seconds.
    """
    found: dict[str, dict[str, float]] = {}
    for _ in range(rounds):
        for way in ways:
            command = [sys.executable, file, *options, "--way", way]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr[-2000:])
            one = json.loads(done.stdout.splitlines()[-1])
            if way not in found or one["seconds"] < found[way]["seconds"]:
                found[way] = one
    return found


def peak_megabytes() -> float:
    """The most memory so far: of the GPU if there is one, else of this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
