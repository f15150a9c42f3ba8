"""A folder in BEIR's layout: corpus.jsonl, queries.jsonl and qrels-test.tsv (or qrels/test.tsv), each also gzipped."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from decoder2vec.errors import DataFileError, unknown_name
from decoder2vec.evaluation.tasks.task import limited, spread
from decoder2vec.text.files import read_rows

PARTS = ("dev", "test", "all")
_OTHERS_PER_QUERY = 20
"""Under a limit the corpus shrinks too: to the relevant documents and so many others for each query."""


@dataclass
class Judged:
    """Queries, documents, and how relevant some documents are to some queries."""

    documents: dict[str, str]
    queries: dict[str, str]
    relevant: dict[str, dict[str, int]]
    """Gains above 0 by query and document; a document that is not there counts as never found."""
    flags: list[str] = field(default_factory=list)

    def own(self, query: str) -> str | None:
        """The query's own document: the same name and the same text. To find itself is no merit."""
        return query if self.documents.get(query) == self.queries[query] else None


def read_beir(folder: Path, part: str = "test", limit: int | None = None) -> Judged:
    """Read a folder. There are no qrels to tune on, so the queries with sha1(id) mod 10 < 3 are kept apart as `dev`."""
    if part not in PARTS:
        raise unknown_name("part", part, PARTS)
    documents = _texts(_file(folder, "corpus.jsonl"))
    queries = _texts(_file(folder, "queries.jsonl"))
    relevant, flags = _judgements(_file(folder, "qrels-test.tsv", "qrels/test.tsv"), documents, queries)
    judged = Judged(documents, queries, relevant, flags)
    for name in queries.keys() & relevant.keys():
        relevant[name].pop(judged.own(name) or "", None)
    mine = {name: text for name, text in queries.items() if part == "all" or is_dev(name) == (part == "dev")}
    found = [name for name in mine if relevant.get(name)]
    if len(found) < len(mine):
        flags.append(f"{len(mine) - len(found)} queries without a relevant document left out")
    if not found:
        raise DataFileError(f"{folder}: no query of the part {part!r} has a relevant document in the qrels.")
    flags.extend(limited(limit, len(found), "queries"))
    found = spread(found, limit)
    judged.queries = {name: queries[name] for name in found}
    judged.relevant = {name: relevant[name] for name in found}
    if limit is not None:
        _shrink(judged, limit * _OTHERS_PER_QUERY)
    if own := sum(judged.own(name) is not None for name in found):
        flags.append(f"{own} queries stand in the corpus themselves and are not ranked for themselves")
    return judged


def is_dev(query: str) -> bool:
    """Is this query one to tune on?"""
    return int(hashlib.sha1(query.encode()).hexdigest(), 16) % 10 < 3


def _shrink(judged: Judged, others: int) -> None:
    wanted = {name for names in judged.relevant.values() for name in names} | set(judged.queries)
    kept = wanted | set(spread([name for name in judged.documents if name not in wanted], others))
    judged.flags.extend(limited(len(kept & judged.documents.keys()), len(judged.documents), "documents"))
    judged.documents = {name: text for name, text in judged.documents.items() if name in kept}


def _file(folder: Path, *names: str) -> Path:
    for name in names:
        for file in (folder / name, folder / f"{name}.gz"):
            if file.is_file():
                return file
    raise DataFileError(f"{folder} has no {names[0]} (nor {names[0]}.gz); BEIR's layout is corpus, queries and qrels.")


def _texts(file: Path) -> dict[str, str]:
    """Texts by id, the title, if there is one, before the text."""
    found: dict[str, str] = {}
    for line, row in read_rows(file):
        name, text, title = row.get("_id"), row.get("text"), row.get("title") or ""
        if not isinstance(name, str | int) or not isinstance(text, str) or not isinstance(title, str):
            raise DataFileError(
                f"{file}, line {line}: _id and text are needed, and title must be a text if it is there."
            )
        if str(name) in found:
            raise DataFileError(f"{file}, line {line}: the id {name!r} was there before; ids must differ.")
        found[str(name)] = f"{title} {text}".strip()
    if not found:
        raise DataFileError(f"{file} holds no usable row.")
    return found


def _judgements(
    file: Path, documents: Iterable[str], queries: Iterable[str]
) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Gains above 0 by query and document, and flags for names that are nowhere."""
    known, asked = set(documents), set(queries)
    found: dict[str, dict[str, int]] = {}
    absent = strange = 0
    for line, row in read_rows(file):
        try:
            query, document, gain = str(row["query-id"]), str(row["corpus-id"]), int(row["score"])
        except (KeyError, TypeError, ValueError):
            raise DataFileError(f"{file}, line {line}: query-id, corpus-id and a whole score are needed.") from None
        if found.setdefault(query, {}).setdefault(document, gain) != gain:
            raise DataFileError(f"{file}, line {line}: {query} and {document} were judged before, and differently.")
        absent += document not in known
        strange += query not in asked
    flags = [f"{absent} judged documents are not in the corpus and count as never found"] if absent else []
    flags += [f"{strange} judgements are of queries that do not exist"] if strange else []
    return {query: {name: gain for name, gain in row.items() if gain > 0} for query, row in found.items()}, flags
