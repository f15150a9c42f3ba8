"""A folder of data files -> tasks, by where the files stand.

    sts/NAME-test.tsv               score, sentence1, sentence2
    pairs/NAME-test.tsv             label (0 or 1), sentence1, sentence2
    classification/NAME-train.tsv   label, text; and NAME-test.tsv beside it
    clustering/NAME-test.tsv        label, text (or sentence, or subject)
    retrieval/NAME/                 BEIR's layout
    reranking/NAME.jsonl            query, positive [..], negative [..]

Tables may be .tsv, .csv or .jsonl, and all may be gzipped. A file that says neither -train nor -dev is a test file.
What is there to tune on is left alone unless it is named: files as in `stsb-dev`, queries as in `scifact-dev`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from decoder2vec.errors import DataFileError, InputError, unknown_name
from decoder2vec.evaluation.tasks.classification import Classification
from decoder2vec.evaluation.tasks.clustering import Clustering
from decoder2vec.evaluation.tasks.pair_classification import PairClassification
from decoder2vec.evaluation.tasks.reranking import Reranking
from decoder2vec.evaluation.tasks.retrieval import Retrieval
from decoder2vec.evaluation.tasks.sts import STS
from decoder2vec.evaluation.tasks.task import Task

KINDS = ("sts", "retrieval", "reranking", "pair_classification", "clustering", "classification")
TUNING = ("-dev", "-train", "-all")
"""Names that end so are not among `all`, and not in a summary."""

_ENDINGS = tuple(f".{kind}{gz}" for kind in ("tsv", "csv", "jsonl") for gz in ("", ".gz"))

Reader = Callable[[], Task]


def find_tasks(folder: str | Path, wanted: Sequence[str] = ("all",), *, limit: int | None = None) -> list[Task]:
    """The tasks of a folder: `all`, those of some kinds, or those with some names."""
    if limit is not None and limit < 1:
        raise InputError(f"A limit of {limit} leaves nothing; give 1 or more.")
    home = Path(folder)
    if not home.is_dir():
        raise DataFileError(
            f"{home} is not a folder; tasks are found in a folder with sts/, pairs/, retrieval/, ... in it."
        )
    known: dict[str, tuple[str, Reader]] = {}
    for kind, name, reader in _found(home, limit):
        known[name if name not in known else f"{kind}/{name}"] = (kind, reader)
    if not known:
        raise DataFileError(
            f"{home} holds no tasks; it needs sts/, pairs/, classification/, clustering/ or retrieval/."
        )
    chosen: dict[str, Reader] = {}
    for word in wanted:
        chosen |= _matching(word, known)
    return [replace(reader(), name=name) for name, reader in chosen.items()]


def _matching(word: str, known: dict[str, tuple[str, Reader]]) -> dict[str, Reader]:
    if word in known:
        return {word: known[word][1]}
    kinds = KINDS if word == "all" else (word,)
    found = {name: reader for name, (kind, reader) in known.items() if kind in kinds and not name.endswith(TUNING)}
    if not found:
        raise unknown_name("task", word, [*known, *{kind for kind, _ in known.values()}, "all"])
    return found


def _found(home: Path, limit: int | None) -> Iterator[tuple[str, str, Reader]]:
    """Kind, name and reader of every task there is."""
    for file in _tables(home / "sts"):
        yield "sts", (name := _name(file)), partial(STS.read, file, name, limit)
    for folder in sorted(path for path in (home / "retrieval").glob("*") if path.is_dir()):
        for part in ("test", "dev", "all"):
            name = folder.name if part == "test" else f"{folder.name}-{part}"
            yield "retrieval", name, partial(Retrieval.read, folder, name, part, limit)
        name = f"{folder.name}-reranking"
        yield "reranking", name, partial(Reranking.from_retrieval, folder, name, "test", limit)
    for file in _tables(home / "reranking"):
        yield "reranking", (name := _name(file)), partial(Reranking.read, file, name, limit)
    for file in _tables(home / "pairs"):
        yield "pair_classification", (name := _name(file)), partial(PairClassification.read, file, name, limit)
    for file in _tables(home / "clustering"):
        yield "clustering", (name := _name(file)), partial(Clustering.read, file, name, limit)
    for file in _tables(home / "classification"):
        name = _name(file)
        if not name.endswith(TUNING):
            yield "classification", name, partial(_classification, file, name, limit)


def _classification(test: Path, name: str, limit: int | None) -> Task:
    for train in _tables(test.parent):
        if _name(train) == f"{name}-train":
            return Classification.read(train, test, name, limit)
    raise DataFileError(f"{test.parent} has no {name}-train file beside {test.name}; there is nothing to learn from.")


def _tables(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.is_file() and file.name.endswith(_ENDINGS))


def _name(file: Path) -> str:
    """The file's name without its endings; that it is a test file goes without saying."""
    ending = max((end for end in _ENDINGS if file.name.endswith(end)), key=len)
    return file.name.removesuffix(ending).removesuffix("-test")
