"""Gold vectors: 16 texts, and the vectors that an encoder gave them when it was saved or exported.

Every saved encoder and every export has them in `gold.json`, so that any program in any language can check that it
computes the same: `d2v doctor` does, on another machine, with later versions and against other engines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import EncoderError, InputError
from decoder2vec.storage import parse_json

GOLD_FILE = "gold.json"
"""In the folder of a saved encoder, and of an export."""

GOLD_TEXTS = (
    "no",
    "Two dogs",
    "A man is playing a guitar.",
    "The committee will meet again on Thursday 14 March to decide about the budget for next year.",
    "",
    "  spaces before and after  ",
    "line one\nline two\twith a tab",
    "naïve café 😀 ½ — “quoted”",
    "Der Zug nach Köln fährt heute um 17:45 Uhr von Gleis 3 ab.",
    "La bibliothèque ferme à dix-huit heures, même en été.",
    "Поезд опоздал на двадцать минут из-за снега.",
    "مرحبا، كيف حالك اليوم؟",
    "今天的天气很好，我们去公园散步吧。",
    "0 1 23 456 7890 3.14159 -2.5e-8 1,000,000",
    'def mean(values):\n    """Average."""\n    return sum(values) / len(values)  # {braces} & <b>marks</b>',
    " ".join(
        f"Entry {day}: the ferry left the harbour at {5 + day % 7}:{day:02d} with {97 * day % 61} passengers, and the "
        "captain wrote down the wind, the height of the waves and the colour of the sky."
        for day in range(1, 25)
    ),
)
"""Short, empty, unusual, in several languages and scripts, code, and one that a limit of 512 tokens truncates."""

TOLERANCES = {"float64": 5e-4, "float32": 5e-4, "bfloat16": 5e-2, "float16": 5e-2, "int8": 0.3, "4bit": 0.5}
"""Dtype of a computation -> the largest allowed of `differences`.

In 16 bits the states of a text change with the texts in the same batch.
"""
_COARSE = {"int8", "4bit"}
"""Dtypes of weights in which one number of a vector may be far off while the vector as a whole is near."""


@dataclass(frozen=True)
class GoldVectors:
    """Texts, the [text, dim] vectors that an encoder gave them, and how it computed these."""

    texts: list[str]
    vectors: NDArray[np.float32]
    dtype: str
    """Dtype of the model that computed the vectors; they are stored with six digits, whatever it is."""

    @classmethod
    def compute(cls, encode: Callable[[list[str]], Any], dtype: str, leave_out: Container[str] = ()) -> GoldVectors:
        """Encode the texts; those that the encoder refuses, since they are too long for it, are left out, too."""
        texts = [text for text in GOLD_TEXTS if text not in leave_out]
        try:
            return cls(texts, encode(texts), dtype)
        except InputError:
            accepted = [text for text in texts if _accepts(encode, text)]
            return cls(accepted, encode(accepted), dtype)

    def write(self, folder: Path, settings: dict[str, Any]) -> None:
        """Write the vectors into a folder.

        Args:
            folder: Folder of the encoder or the export.
            settings: How the vectors were made (layers, pooling, template), for programs that do not read the rest.
        """
        vectors = [[float(f"{value:.6g}") for value in vector] for vector in self.vectors.tolist()]
        content = {"texts": self.texts, "dtype": self.dtype, "settings": settings, "vectors": vectors}
        (folder / GOLD_FILE).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> GoldVectors | None:
        """Read the vectors of a folder; None if it has none, as folders of earlier versions."""
        file = folder / GOLD_FILE
        if not file.is_file():
            return None
        try:
            content = parse_json(file.read_text(encoding="utf-8"))
            vectors = np.array(content["vectors"], np.float32)
            if vectors.ndim != 2 or len(vectors) != len(content["texts"]):
                raise ValueError("it has not one vector for each text")
            return cls(list(content["texts"]), vectors, content.get("dtype", "float32"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EncoderError(f"{file} is damaged ({error}); save or export the encoder again.") from None

    def compare(self, vectors: NDArray[np.float32], dtype: str) -> tuple[float, float]:
        """Return the largest difference of other vectors of the texts, and the largest that is allowed.

        Args:
            vectors: [text, dim] vectors.
            dtype: Dtype of the model that computed them.
        """
        if vectors.shape != self.vectors.shape:
            raise EncoderError(f"vectors have {vectors.shape[1]} dimensions, the gold vectors {self.vectors.shape[1]}")
        coarser = max(dtype, self.dtype, key=TOLERANCES.__getitem__)
        return float(differences(vectors, self.vectors, coarser).max()), TOLERANCES[coarser]


def differences(
    vectors: NDArray[np.float32], expected: NDArray[np.float32], dtype: str = "float32"
) -> NDArray[np.float32]:
    """[text] largest difference of two numbers, relative to the largest one of the expected vector; NaN is infinite.

    With weights in 8 or 4 bits it is the norm of the difference, relative to that of the expected vector.
    """
    order = 2 if dtype in _COARSE else np.inf
    scale = np.maximum(np.linalg.norm(expected, order, axis=-1), 1e-6)
    relative: NDArray[np.float32] = np.linalg.norm(vectors - expected, order, axis=-1) / scale
    return np.where(np.isnan(relative), np.float32(np.inf), relative)


def _accepts(encode: Callable[[list[str]], Any], text: str) -> bool:
    try:
        encode([text])
    except InputError:
        return False
    return True
