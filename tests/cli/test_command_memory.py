"""Memory that whole commands take for larger inputs: at most a stated multiple of what the input has more."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

pytestmark = pytest.mark.soak

SMALL, LARGE = 2**20, 2**22
"""Bytes of the two inputs; below the first one, batches are not full."""
MULTIPLE = 20
"""Of the size of an input, as docs/promises.md states it."""
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
    file.write_text("\n".join(lines) + "\n", "utf-8")


def write_one_line(file, size):
    file.write_text("word " * (size // 5) + "\n", "utf-8")


@pytest.mark.parametrize(
    ("command", "write"),
    [("embed", write_lines), ("embed", write_one_line), ("index", write_lines), ("index", write_one_line)],
)
def test_command_takes_a_multiple_of_its_input(tmp_path, command, write):
    def peak(size):
        write(tmp_path / f"{size}.txt", size)
        out = tmp_path / (f"{size}.npy" if command == "embed" else str(size))
        options = [command, tmp_path / f"{size}.txt", "--encoder", "tiny-llama", "--device", "cpu", "--out", out]
        result = subprocess.run([sys.executable, "-c", MEASURE, *options], capture_output=True, text=True, check=True)
        return int(result.stdout)

    assert peak(LARGE) - peak(SMALL) < MULTIPLE * (LARGE - SMALL)
