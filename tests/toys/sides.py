"""Three jobs and four resumes to match, and an encoder with predictable vectors."""

from __future__ import annotations

import re
import zlib

import numpy as np

from decoder2vec.matching.sides import Side, SideDocument

JOBS = Side(
    "jobs",
    [
        SideDocument("b", "You will: bake bread at night.\nRequirements: an oven school diploma.", "Baker"),
        SideDocument("w", "Weld pipelines for gas. Travel is part of it.", "Welder"),
        SideDocument("only", "", "Cook", {"skills": "soup and fish"}),
    ],
)
RESUMES = Side(
    "resumes",
    [
        SideDocument("r1", "Summary\nI bake rolls.\nEducation\nOven school, 2019.", fields={"name": "Ann <b>Loaf</b>"}),
        SideDocument("r2", "Welder of gas pipelines & tanks."),
        SideDocument("r3", "Ich backe Brot in der Nacht. Ich habe Backen gelernt."),
        SideDocument("r4", "日本のパン職人です。"),
    ],
    ["r5.txt: no text in it."],
)


class LetterEncoder:
    """Counts letters."""

    def __init__(self):
        self.encoded_texts = []

    def encode(self, texts, **_):
        self.encoded_texts += texts
        return np.array([[text.lower().count(letter) for letter in "abcdeghilnoprstuw"] for text in texts], float) + 0.1


class WordEncoder:
    """Counts words, each in one of 512 dimensions: texts that share words are similar, others are not."""

    def encode(self, texts, **_):
        vectors = np.full((len(texts), 512), 0.01)
        for vector, text in zip(vectors, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                vector[zlib.crc32(word.encode()) % 512] += 1
        return vectors
