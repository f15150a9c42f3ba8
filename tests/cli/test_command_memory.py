"""Memory that whole commands take for larger inputs: at most a stated multiple of what the input has more."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.soak

SMALL, LARGE = 2**20, 2**22
"""Bytes of the two inputs; below the first one, batches are not full."""
BYTES_PER_BYTE, BYTES_PER_DOCUMENT = 20, 10_000
"""What an input takes, as docs/promises.md states it."""
MEASURE = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "decoder2vec", *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def write_lines(file, size):
    rng = random.Random(0)
    words = [f"word{number}" for number in range(3000)]
    lines, length = [], 0
    while length < size:
        lines.append(" ".join(rng.choices(words, k=rng.randint(5, 40))))
        length += len(lines[-1]) + 1
    if file.suffix == ".jsonl":
        lines = [json.dumps({"text": line}) for line in lines]
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return len(lines)


def write_one_line(file, size):
    file.write_text("word " * (size // 5) + "\n", "utf-8")
    return 1


@pytest.mark.parametrize(
    ("command", "suffix", "write"),
    [
        ("embed", ".txt", write_lines),
        ("embed", ".txt", write_one_line),
        ("index", ".txt", write_lines),  # one document
        ("index", ".txt", write_one_line),
        ("index", ".jsonl", write_lines),  # a document in each line
    ],
)
def test_command_takes_a_multiple_of_its_input(tmp_path, command, suffix, write):
    def measure(size):
        file = tmp_path / f"{size}{suffix}"
        n_lines = write(file, size)
        out = tmp_path / (f"{size}.npy" if command == "embed" else str(size))
        options = [command, file, "--encoder", "tiny-llama", "--device", "cpu", "--out", out]
        result = subprocess.run([sys.executable, "-c", MEASURE, *options], capture_output=True, text=True, check=True)
        return np.array([int(result.stdout), file.stat().st_size, n_lines if suffix == ".jsonl" else 0])

    more_memory, more_bytes, more_documents = measure(LARGE) - measure(SMALL)
    assert more_memory < BYTES_PER_BYTE * more_bytes + BYTES_PER_DOCUMENT * more_documents
