"""Find the tasks in a folder of data files.

The subfolder of a file gives the kind of its task:

    sts/NAME-test.tsv               score, sentence1, sentence2
    pairs/NAME-test.tsv             label (0 or 1), sentence1, sentence2
    classification/NAME-train.tsv   label, text; together with NAME-test.tsv
    clustering/NAME-test.tsv        label, text (or sentence, or subject)
    retrieval/NAME/                 BEIR's layout
    reranking/NAME.jsonl            query, positive [..], negative [..]

Tables may be .tsv, .csv or .jsonl, and all may be gzipped. A file whose name has neither -train nor -dev is a test
file. Data for tuning is used only if it is named: files such as `stsb-dev`, dev queries such as `scifact-dev`.
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
TUNING_SUFFIXES = ("-dev", "-train", "-all")
"""Tasks whose names end so are not part of `all` and not in a summary."""

_EXTENSIONS = tuple(f".{kind}{gz}" for kind in ("tsv", "csv", "jsonl") for gz in ("", ".gz"))

Reader = Callable[[], Task]


def find_tasks(folder: str | Path, names: Sequence[str] = ("all",), *, limit: int | None = None) -> list[Task]:
    """Read the tasks of a folder.

    Args:
        folder: A folder with sts/, pairs/, classification/, clustering/, retrieval/ or reranking/ in it.
        names: Names of tasks, kinds of tasks, or "all".
        limit: Read at most this many pairs, texts or queries of each task.
    """
    if limit is not None and limit < 1:
        raise InputError(f"A limit of {limit} leaves nothing; give 1 or more.")
    root = Path(folder)
    if not root.is_dir():
        raise DataFileError(
            f"{root} is not a folder; tasks are read from a folder with sts/, pairs/, retrieval/, ... in it."
        )
    available: dict[str, tuple[str, Reader]] = {}
    for kind, name, reader in _available_tasks(root, limit):
        available[name if name not in available else f"{kind}/{name}"] = (kind, reader)
    if not available:
        raise DataFileError(f"{root} has no tasks; it needs sts/, pairs/, classification/, clustering/ or retrieval/.")
    chosen: dict[str, Reader] = {}
    for name in names:
        chosen |= _matching(name, available)
    return [replace(reader(), name=name) for name, reader in chosen.items()]


def _matching(name: str, available: dict[str, tuple[str, Reader]]) -> dict[str, Reader]:
    """The tasks that a task name, a kind or "all" stands for."""
    if name in available:
        return {name: available[name][1]}
    kinds = KINDS if name == "all" else (name,)
    readers = {
        task: reader
        for task, (kind, reader) in available.items()
        if kind in kinds and not task.endswith(TUNING_SUFFIXES)
    }
    if not readers:
        raise unknown_name("task", name, [*available, *{kind for kind, _ in available.values()}, "all"])
    return readers


def _available_tasks(root: Path, limit: int | None) -> Iterator[tuple[str, str, Reader]]:
    """Kind, name and reader of every task in the folder."""
    for file in _tables(root / "sts"):
        yield "sts", (name := _task_name(file)), partial(STS.read, file, name, limit)
    for folder in sorted(path for path in (root / "retrieval").glob("*") if path.is_dir()):
        for split in ("test", "dev", "all"):
            name = folder.name if split == "test" else f"{folder.name}-{split}"
            yield "retrieval", name, partial(Retrieval.read, folder, name, split, limit)
        name = f"{folder.name}-reranking"
        yield "reranking", name, partial(Reranking.from_retrieval, folder, name, "test", limit)
    for file in _tables(root / "reranking"):
        yield "reranking", (name := _task_name(file)), partial(Reranking.read, file, name, limit)
    for file in _tables(root / "pairs"):
        yield "pair_classification", (name := _task_name(file)), partial(PairClassification.read, file, name, limit)
    for file in _tables(root / "clustering"):
        yield "clustering", (name := _task_name(file)), partial(Clustering.read, file, name, limit)
    for file in _tables(root / "classification"):
        name = _task_name(file)
        if not name.endswith(TUNING_SUFFIXES):
            yield "classification", name, partial(_read_classification, file, name, limit)


def _read_classification(test: Path, name: str, limit: int | None) -> Task:
    for train in _tables(test.parent):
        if _task_name(train) == f"{name}-train":
            return Classification.read(train, test, name, limit)
    raise DataFileError(f"{test.parent} has no {name}-train file next to {test.name}; classification needs both.")


def _tables(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.is_file() and file.name.endswith(_EXTENSIONS))


def _task_name(file: Path) -> str:
    """The file's name without its extensions and without -test."""
    extension = max((extension for extension in _EXTENSIONS if file.name.endswith(extension)), key=len)
    return file.name.removesuffix(extension).removesuffix("-test")
