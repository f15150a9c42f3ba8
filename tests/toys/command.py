"""Run a command in a test; the scored pairs, encoders and reference values of such tests."""

from __future__ import annotations

import numpy as np
import torch
from typer.testing import CliRunner

from decoder2vec.adapters.lora import Lora
from decoder2vec.cli import app
from decoder2vec.encoder import Encoder

SCORED_ROWS = [
    ("A man plays a guitar.", "Someone is playing music.", 4.0),
    ("Two dogs run on the beach.", "Dogs are running by the sea.", 4.5),
    ("The bread is in the oven.", "A red card in the second half.", 0.2),
    ("She reads a book.", "She is not reading anything.", 2.0),
    ("The server went down at noon.", "At noon the server crashed.", 5.0),
    ("Birds fly south in autumn.", "My bike has a flat tyre.", 0.0),
    ("It rains.", "The sun is shining today.", 1.0),
    ("Half of the eggs were cracked.", "Six of twelve eggs had cracks.", 4.8),
]
"""Two texts and their score."""
SMALL_SWEEP = ("--templates", "plain", "--poolings", "mean,lasttoken", "--attentions", "causal")
"""Options of a sweep over few combinations."""


def d2v(*args, stdin=None):
    """Run `d2v ARGS` and return its output and exit code; errors are raised."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def write_rows(file, rows):
    """Write scored pairs to a TSV file and return the file."""
    lines = ["sentence1\tsentence2\tscore", *(f"{a}\t{b}\t{score}" for a, b, score in rows)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def as_options(choices):
    """{"layer": 2} as ["--layer", 2]."""
    return [part for name, value in choices.items() for part in (f"--{name}", value)]


def tiny_encoder(**choices):
    """An untrained encoder of tiny-llama."""
    return Encoder.from_pretrained("tiny-llama", device="cpu", **choices)


def cosine(a, b):
    """Cosine of two vectors in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def one_line(text):
    """The text without the line breaks that a narrow table makes."""
    return " ".join(text.split())


def with_lora(encoder):
    """The encoder with small random LoRA updates, always the same."""
    adapter = Lora.initialise(encoder.backbone, rank=2, alpha=4)
    with torch.no_grad():
        for matrix in adapter.upper.values():
            matrix.normal_(generator=torch.Generator().manual_seed(1)).mul_(0.1)
    return Encoder(encoder.backbone.with_adapter(adapter.requires_grad_(False)), encoder.spec, encoder.head)
