"""Add whole abstracts to the pool: documents, pairs of titles and abstracts, and sentences with what surrounds them.

The texts of the pool end after 64 words; documents that are searched do not. Three repositories have whole abstracts:
`staeiou/arxiv_archive` (CC0; processed_data/20200101/per_category), `acl-org/acl-anthology` (CC BY, data/xml) and
`jayded/evidence-inference` (open-access articles on trials; annotations/txt_files, of which paragraphs are taken, too).

An abstract that shares its title or a sentence of six or more words with a file named by --exclude is left out.

Run: python experiments/general/documents.py --arxiv ARXIV --acl ACL --trials TRIALS --out POOL --exclude DATA/*/*.tsv*
"""

from __future__ import annotations

import argparse
import csv
import lzma
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tqdm import tqdm

from decoder2vec.text.files import read_rows
from forum_posts import is_western, normalised, write_table

_WORDS = range(60, 351)
"""Length of a document."""
_MOST = {"arxiv": 60_000, "acl": 25_000, "trials": 5_000, "paragraphs": 40_000}
_CLOZE_SHARE = 0.5
"""Share of the abstracts of which one sentence is paired with the others."""
_SECTION = re.compile(r"\s*(TITLE|ABSTRACT|BODY)(?:\.[^:]*)?:(.*)")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


class Abstract(NamedTuple):
    """An abstract, or a paragraph without a title."""

    title: str
    text: str


def read_arxiv(folder: Path) -> Iterator[Abstract]:
    """The papers of all categories; one in several categories comes several times."""
    csv.field_size_limit(10**9)
    for file in sorted(folder.glob("*.tsv.xz")):
        with lzma.open(file, "rt", encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines, delimiter="\t"):
                yield Abstract(row["title"], row["abstract"])


def read_acl(folder: Path) -> Iterator[Abstract]:
    """The papers that have an abstract."""
    for file in sorted(folder.glob("*.xml")):
        for paper in ElementTree.parse(file).iter("paper"):
            title, abstract = paper.find("title"), paper.find("abstract")
            if title is not None and abstract is not None:
                yield Abstract("".join(title.itertext()), "".join(abstract.itertext()))


def read_trials(folder: Path) -> Iterator[Abstract]:
    """The abstract of each article, then its paragraphs; sections begin with a line like "ABSTRACT.METHODS:"."""
    for file in sorted(folder.glob("*.txt")):
        title, section = "", ""
        abstract: list[str] = []
        paragraphs: list[str] = []
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if begin := _SECTION.match(line):
                section, line = begin.groups()
            if section == "TITLE" and not title:
                title = line.strip()
            elif line.strip():  # some articles have no line before the abstract
                (paragraphs if section == "BODY" else abstract).append(line)
        yield Abstract(title, " ".join(abstract))
        yield from (Abstract("", paragraph) for paragraph in paragraphs)


def sentences(text: str) -> list[str]:
    """The sentences of a text, roughly."""
    return _SENTENCE.split(text)


def long_keys(text: str) -> Iterator[str]:
    """The sentences of six or more words, normalised."""
    return (key for sentence in sentences(text) if len((key := normalised(sentence)).split()) >= 6)


def excluded_sentences(files: Iterable[Path]) -> set[str]:
    """The sentences of all cells of the files."""
    cells = (cell for file in files for _, row in read_rows(file) for cell in row.values())
    return {key for cell in cells for key in long_keys(str(cell))}


def choose(abstracts: Iterable[Abstract], count: int, seen: set[str], rng: random.Random) -> list[Abstract]:
    """At most `count` documents in random order; `seen` are normalised texts that are left out, and grows."""
    chosen = []
    for title, text in abstracts:
        title, text = " ".join(title.split()), " ".join(text.split())
        key = normalised(text)
        if len(text.split()) not in _WORDS or not is_western(text) or key in seen or normalised(title) in seen:
            continue
        if not seen.isdisjoint(long_keys(text)):
            continue
        seen.add(key)
        chosen.append(Abstract(title, text))
    rng.shuffle(chosen)
    return chosen[:count]


def cloze(text: str, rng: random.Random) -> tuple[str, str] | None:
    """A sentence of 8 to 40 words, and the text without it; None if there is no such sentence."""
    parts = sentences(text)
    places = [place for place, sentence in enumerate(parts) if 8 <= len(sentence.split()) <= 40]
    if len(parts) < 4 or not places:
        return None
    place = rng.choice(places)
    return parts[place], " ".join(parts[:place] + parts[place + 1 :])


def add_documents(readers: dict[str, Iterator[Abstract]], pool: Path, excluded: Iterable[Path]) -> None:
    """Write texts-documents.tsv.gz and pairs-documents.tsv.gz into the pool; see the description of this file."""
    rng, seen = random.Random(0), excluded_sentences(excluded)
    texts: list[tuple[str, str]] = []
    pairs: list[tuple[str, str, str]] = []
    for name, reader in readers.items():
        everything = list(tqdm(reader, desc=name, disable=None))
        abstracts = choose((one for one in everything if one.title), _MOST[name], seen, rng)
        texts += [(f"{name}-abstract", one.text) for one in abstracts]
        pairs += [(f"{name}-abstract", one.title, one.text) for one in abstracts]
        gaps = [cloze(one.text, rng) for one in abstracts if rng.random() < _CLOZE_SHARE]
        pairs += [(f"{name}-cloze", *gap) for gap in gaps if gap]
        paragraphs = choose((one for one in everything if not one.title), _MOST["paragraphs"], seen, rng)
        texts += [(f"{name}-paragraph", one.text) for one in paragraphs]
        gaps = [cloze(one.text, rng) for one in paragraphs if rng.random() < _CLOZE_SHARE]
        pairs += [(f"{name}-cloze", *gap) for gap in gaps if gap]
    rng.shuffle(texts)
    write_table(pool / "texts-documents.tsv.gz", "source\ttext", texts)
    write_table(pool / "pairs-documents.tsv.gz", "source\ttext1\ttext2", pairs)
    print(f"{len(texts):,} texts and {len(pairs):,} pairs added to {pool}")


def main() -> None:
    """Read the options and add the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arxiv", type=Path, required=True, help="folder of arxiv_archive's *.tsv.xz")
    parser.add_argument("--acl", type=Path, required=True, help="folder of the ACL Anthology's *.xml")
    parser.add_argument("--trials", type=Path, required=True, help="folder of evidence-inference's *.txt")
    parser.add_argument("--out", type=Path, required=True, help="folder of the pool")
    parser.add_argument("--exclude", type=Path, nargs="*", default=[], help="tables whose texts are left out")
    arguments = parser.parse_args()
    readers = {
        "arxiv": read_arxiv(arguments.arxiv),
        "acl": read_acl(arguments.acl),
        "trials": read_trials(arguments.trials),
    }
    add_documents(readers, arguments.out, arguments.exclude)


if __name__ == "__main__":
    main()
