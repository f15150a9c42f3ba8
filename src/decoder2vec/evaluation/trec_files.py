"""TREC's files of rankings (runs), their measures, and reranking of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.evaluation.trec_metrics import RelevanceEvaluator
from decoder2vec.reranker import Reranker
from decoder2vec.storage import atomic_file

Run = dict[str, dict[str, float]]
"""Query -> document -> score."""
_MEASURES = {
    "nDCG@10": "ndcg_cut.10",
    "MRR@10": "recip_rank_cut.10",
    "MAP@100": "map_cut.100",
    "recall@10": "recall.10",
    "success@1": "success.1",
}


def read_run(file: Path) -> Run:
    """Read a run: query, Q0, document, rank, score and name in each line.

    Raises:
        DataFileError: A line has other fields, the score NaN, or a document that its query has already.
    """
    run: Run = {}
    for line, fields in _lines(file):
        try:
            query, _, document, _, number, *_ = fields
            score = float(number)
        except ValueError:
            raise DataFileError(f"{file}, line {line}: a run has query, Q0, document, rank, score and name.") from None
        if math.isnan(score):
            raise DataFileError(
                f"{file}, line {line}: the score nan is not a number that can be sorted by; correct it."
            )
        scores = run.setdefault(query, {})
        if document in scores:
            raise DataFileError(
                f"{file}, line {line}: the query {query} has the document {document} already; remove one."
            )
        scores[document] = score
    if not run:
        raise DataFileError(f"{file} holds no line of a run.")
    return run


def write_run(run: Mapping[str, Mapping[str, float]], file: Path, name: str) -> None:
    """Write a run, best documents first; trec_eval reads the scores, not the ranks."""
    with atomic_file(file) as temporary, temporary.open("w", encoding="utf-8") as handle:
        for query, scores in run.items():
            for rank, document in enumerate(_best_first(scores), 1):
                # nine digits tell any two numbers in single precision apart, so that no new ties arise
                handle.write(f"{query} Q0 {document} {rank} {scores[document]:.9g} {name}\n")


def rerank_run(
    reranker: Reranker, run: Run, queries: Mapping[str, str], documents: Mapping[str, str], depth: int = 100
) -> Run:
    """Rescore the best documents of each query; those below keep their order below them.

    Args:
        reranker: Scores the pairs.
        run: The ranking of a first stage.
        queries: Query id -> text.
        documents: Document id -> text.
        depth: Number of documents of each query that are rescored.

    Raises:
        InputError: The text of a query or document is not known.
    """
    if depth < 1:
        raise InputError(f"A depth of {depth} rescores nothing; give 1 or more.")
    pairs = [(query, document) for query, scores in run.items() for document in _best_first(scores)[:depth]]
    for kind, known, ids in (("query", queries, run), ("document", documents, [pair[1] for pair in pairs])):
        if missing := next((id for id in ids if id not in known), None):
            raise InputError(f"The {kind} {missing!r} of the run has no text in the data.")
    texts = [queries[query] for query, _ in pairs], [documents[document] for _, document in pairs]
    scores = reranker.score_pairs(*texts)
    reranked: Run = {query: {} for query in run}
    for (query, document), score in zip(pairs, scores.tolist(), strict=True):
        reranked[query][document] = score
    for query, before in run.items():
        lowest = min(reranked[query].values())
        for offset, document in enumerate(_best_first(before)[depth:], 1):
            reranked[query][document] = lowest - offset
    return reranked


def evaluate_run(run: Run, qrels: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Means over the judged queries of a run, in points."""
    by_query = RelevanceEvaluator(qrels, _MEASURES.values()).evaluate(run)
    if not by_query:
        raise InputError("The qrels judge no query of the run.")
    return {
        name: 100 * float(np.mean([scores[measure.replace(".", "_")] for scores in by_query.values()]))
        for name, measure in _MEASURES.items()
    }


def _best_first(scores: Mapping[str, float]) -> list[str]:
    """As trec_eval sorts: by score, of equal scores the last name first."""
    return sorted(scores, key=lambda document: (np.float32(scores[document]), document.encode()), reverse=True)


def _lines(file: Path) -> list[tuple[int, list[str]]]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataFileError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataFileError(f"{file} is not a text file in UTF-8.") from None
    return [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
