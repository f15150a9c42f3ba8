"""Data for the gold tests: small files made from the package's own demo pairs, the same on every machine."""

from __future__ import annotations

from importlib import resources
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "gold" / "folders"
"""Folders and files written by version 0.1.0."""
TEXTS = ("A cat sleeps.", "The dogs run over the long road in the rain and sing of boats that sail.", "a", "")

TRIPLET = "anchor\tpositive\tnegative"
PAIR = "score\tsentence1\tsentence2"
PLAN = """
name = "gold"
recipe = "{recipe}"
[{recipe}]
{settings}
[{recipe}.training]
steps = {steps}
batch = {batch}
rate = {rate}
evaluate_every = 2
{more}
"""


def demo_pairs() -> list[tuple[float, str, str]]:
    """The demo's scored pairs."""
    text = resources.files("decoder2vec").joinpath("demo/pairs.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    return [(float(score), left, right) for score, left, right in rows]


def write_data(home: Path) -> Path:
    """train, dev and test pairs, triplets, nli, texts and concepts, under the names that training looks for."""
    home.mkdir(parents=True, exist_ok=True)
    rows = demo_pairs()
    parts = {"train": rows[:60], "dev": rows[60:90], "test": rows[90:]}
    for name, part in parts.items():
        lines = [PAIR, *(f"{score}\t{left}\t{right}" for score, left, right in part)]
        (home / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    near = [(left, right) for score, left, right in rows if score >= 3.5]
    triplets = [f"{a}\t{b}\t{other}" for (a, b), (other, _) in pairwise(near)]
    (home / "triplets.tsv").write_text("\n".join([TRIPLET, *triplets]) + "\n", encoding="utf-8")
    labels = [("entailment" if s > 3.5 else "neutral" if s > 1.5 else "contradiction", a, b) for s, a, b in rows[:60]]
    nli = ["label\tpremise\thypothesis", *("\t".join(row) for row in labels)]
    (home / "nli.tsv").write_text("\n".join(nli) + "\n", encoding="utf-8")
    texts = list(dict.fromkeys(text for _, left, right in rows for text in (left, right)))
    (home / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    (home / "concepts.txt").write_text("ticket\nclub\negg\nrain\ncar\ndog\nmusic\n", encoding="utf-8")
    return home
