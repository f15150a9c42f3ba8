"""A stand-in for pytrec_eval, which mteb imports and which cannot be built on every machine.

It has what mteb uses: `RelevanceEvaluator` with the measures map_cut, ndcg_cut, recall, P and success, as trec_eval
computes them, and recip_rank_cut, the reciprocal rank among the first documents. `python -m
decoder2vec.evaluation.trec_metrics` writes it next to the installed packages, so that a plain `import mteb` works.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np

from decoder2vec.maths.ranking import Floats, Ranks, average_precision, ndcg, recall, reciprocal_rank
from decoder2vec.package import __version__

_MODULE = "pytrec_eval"
STAND_IN_FILE = '''"""Stand-in for pytrec_eval, which could not be installed."""

from decoder2vec.evaluation.trec_metrics import RelevanceEvaluator as RelevanceEvaluator
'''

Measure = Callable[[Ranks, Floats, Floats, int], float]
"""Ranks and gains of the retrieved relevant documents, gains of all relevant documents, cutoff -> value."""

MEASURES: dict[str, Measure] = {
    "map_cut": lambda ranks, _, all_gains, k: average_precision(ranks[ranks <= k], len(all_gains)),
    "ndcg_cut": lambda ranks, gains, all_gains, k: ndcg(ranks, gains, all_gains, k),
    "recall": lambda ranks, _, all_gains, k: recall(ranks, len(all_gains), k),
    "recip_rank_cut": lambda ranks, _, __, k: reciprocal_rank(ranks[ranks <= k]),
    "P": lambda ranks, _, __, k: float(np.count_nonzero(ranks <= k) / k),
    "success": lambda ranks, _, __, k: float((ranks <= k).any()),
}


class RelevanceEvaluator:
    """Scores rankings against relevance judgements, as `pytrec_eval.RelevanceEvaluator` does.

    Args:
        query_relevance: Query -> document -> grade; a document is relevant if its grade is above 0.
        measures: Names with cutoffs, such as "ndcg_cut.1,10".
    """

    def __init__(self, query_relevance: Mapping[str, Mapping[str, float]], measures: Iterable[str]) -> None:
        self.query_relevance = query_relevance
        self.measures: list[tuple[str, int]] = []
        for requested in measures:
            name, _, cutoffs = requested.partition(".")
            if name not in MEASURES or not cutoffs:
                raise ValueError(f"{requested!r} is none of {', '.join(f'{known}.K' for known in MEASURES)}.")
            self.measures += [(name, int(cutoff)) for cutoff in cutoffs.split(",")]

    def evaluate(self, scores: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
        """Return query -> measure such as "ndcg_cut_10" -> value, for queries that have judgements.

        Args:
            scores: Query -> document -> score. Of equal scores, the document with the last name ranks first.
        """
        return {
            query: self._evaluate_query(self.query_relevance[query], documents)
            for query, documents in scores.items()
            if query in self.query_relevance
        }

    def _evaluate_query(self, grades: Mapping[str, float], scores: Mapping[str, float]) -> dict[str, float]:
        # trec_eval holds scores in single precision, so more of them are equal
        ranking = sorted(scores, key=lambda document: (np.float32(scores[document]), document.encode()), reverse=True)
        relevant = [(rank, grades[document]) for rank, document in enumerate(ranking, 1) if grades.get(document, 0) > 0]
        ranks = np.array([rank for rank, _ in relevant], np.intp)
        gains = np.array([grade for _, grade in relevant], np.float64)
        all_gains = np.array([grade for grade in grades.values() if grade > 0], np.float64)
        return {f"{name}_{k}": MEASURES[name](ranks, gains, all_gains, k) for name, k in self.measures}


def provide_pytrec_eval() -> None:
    """Let `import pytrec_eval` in this process find the stand-in, unless the package itself is installed."""
    if _MODULE not in sys.modules and find_spec(_MODULE) is None:
        module = ModuleType(_MODULE, __doc__)
        module.__spec__ = ModuleSpec(_MODULE, None)
        module.RelevanceEvaluator = RelevanceEvaluator  # type: ignore[attr-defined]
        sys.modules[_MODULE] = module


def pytrec_eval_version() -> str:
    """Return what computes the measures of mteb: the version of pytrec_eval, or that of the stand-in."""
    try:
        return metadata.version("pytrec-eval-terrier")
    except metadata.PackageNotFoundError:
        return f"stand-in of decoder2vec {__version__}"


def write_stand_in(site_packages: Path) -> Path | None:
    """Write the stand-in as a module next to the installed packages; return its path, or None if it is not needed."""
    file = site_packages / f"{_MODULE}.py"
    if find_spec(_MODULE) is not None:
        return None
    file.write_text(STAND_IN_FILE, encoding="utf-8")
    return file


if __name__ == "__main__":
    write_stand_in(Path(sysconfig.get_path("purelib")))
