"""Toy target tasks, sources made of arrays, and a written miniature of GAP."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from decoder2vec.activations.spans import TextSpan
from decoder2vec.choosing.sources import Source
from decoder2vec.choosing.tasks import Example, TargetTask
from decoder2vec.config import Reading

_GAP_ROWS = (
    ("Anna met Berta before she left.", "she", "Anna", "TRUE", "Berta", "FALSE"),
    ("Karl told Otto that his car was gone.", "his", "Karl", "FALSE", "Otto", "TRUE"),
    ("Ida saw Rosa, and the dog followed her home.", "her", "Ida", "FALSE", "Rosa", "FALSE"),
    ("Paul wrote to Hugo when he was ill.", "he", "Paul", "TRUE", "Hugo", "FALSE"),
    ("Clara thanked Edith since she had helped.", "she", "Clara", "FALSE", "Edith", "TRUE"),
)


def classification_task(n: int = 240, n_labels: int = 3, seed: int = 0) -> TargetTask:
    """Texts with random labels."""
    labels = np.random.default_rng(seed).integers(0, n_labels, n)
    rows = [Example((TextSpan(f"text {index}"),), f"label {label}") for index, label in enumerate(labels)]
    return TargetTask.of("toy", "classification", rows)


def unit_labels(task: TargetTask) -> np.ndarray:
    """[unit] label index of each text of a classification task."""
    labels = np.zeros(len(task.units), int)
    for split in (task.train, task.valid, task.test):
        labels[split.units[:, 0]] = split.targets
    return labels


def planted_source(task: TargetTask, name: str, planted: int | None, *, dim: int = 12, seed: int = 0) -> Source:
    """Four layers of noise; the label is added to one of them, or to none."""
    rng = np.random.default_rng(seed)
    layers = rng.normal(size=(4, len(task.units), dim)).astype(np.float32)
    if planted is not None:
        layers[planted, :, : len(task.labels)] += 4 * np.eye(len(task.labels))[unit_labels(task)]
    return Source(name, tuple(Reading(layer) for layer in range(4)), lambda index: layers[index], "same")


def write_gap(file: Path, repeat: int = 1) -> Path:
    """Write a file in GAP's layout: five rows, each `repeat` times with another beginning."""
    columns = ["ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "A-coref", "B", "B-offset", "B-coref", "URL"]
    lines = ["\t".join(columns)]
    for number in range(repeat):
        for index, (sentence, pronoun, a, a_label, b, b_label) in enumerate(_GAP_ROWS):
            text = sentence if repeat == 1 else f"{number}. {sentence}"
            offsets = [text.index(f" {pronoun} ") + 1, text.index(a), text.index(b)]
            row = [
                f"toy-{number}-{index}",
                text,
                pronoun,
                offsets[0],
                a,
                offsets[1],
                a_label,
                b,
                offsets[2],
                b_label,
                "",
            ]
            lines.append("\t".join(map(str, row)))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
