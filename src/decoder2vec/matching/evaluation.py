"""Jobs and resumes with graded pairs: ranking metrics to evaluate on them, and records to train on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import DataFileError, unknown_name
from decoder2vec.matching.section_scores import full_text
from decoder2vec.matching.sides import Side, read_side
from decoder2vec.matching.terms import ScoreMatrix
from decoder2vec.text.files import read_rows

SPLITS = ("train", "dev", "test")
FITS = 2
"""Grade of a pair that fits; 1 fits in part, 0 does not fit."""
MEANING = "meaning"
"""Kind of a pair that fits and shares almost no word."""
WORDS = "words"
"""Kind of a pair that shares words and does not fit."""
RECALL_CUTOFFS = (1, 5, 10)
_NDCG_CUTOFF = 10
_MAX_NEGATIVES = 4

Metric = NDArray[np.float64]
"""[queries] or [pairs] values of one metric."""


@dataclass(frozen=True)
class LabelledSet:
    """Jobs, resumes and the grade of every pair. Every document belongs to a split, by its family of occupations."""

    jobs: Side
    resumes: Side
    grades: NDArray[np.intp]
    """[jobs, resumes]"""
    kinds: dict[str, list[tuple[int, int]]]
    """Kind -> its (job, resume) pairs."""
    job_splits: list[str]
    resume_splits: list[str]

    def job_indices(self, *splits: str) -> list[int]:
        """Return the indices of the jobs in these splits."""
        for split in splits:
            if split not in SPLITS:
                raise unknown_name("split", split, SPLITS)
        return [index for index, split in enumerate(self.job_splits) if split in splits]

    def training_records(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield one record per job: resumes of the split that fit it, and hard negatives.

        Hard negatives are resumes that share the job's words, then those of its family.
        """
        resumes = [index for index, resume_split in enumerate(self.resume_splits) if resume_split == split]
        for job in self.job_indices(split):
            document = self.jobs.documents[job]
            fitting = [resume for resume in resumes if self.grades[job, resume] == FITS]
            unfitting = [resume for resume in resumes if self.grades[job, resume] == 0]
            unfitting.sort(key=lambda resume: self._hardness_rank(job, resume))
            hard = [resume for resume in unfitting if self._hardness_rank(job, resume) < 2][:_MAX_NEGATIVES]
            yield {
                "label": document.title,
                "description": full_text(document),
                "pos": [full_text(self.resumes.documents[resume]) for resume in fitting],
                "neg": [full_text(self.resumes.documents[resume]) for resume in hard],
            }

    def scored_pairs(self, split: str) -> Iterator[dict[str, Any]]:
        """Yield the same records as scored pairs: 1 for a resume that fits the job, 0 for a hard negative."""
        for record in self.training_records(split):
            for score, texts in ((1.0, record["pos"]), (0.0, record["neg"])):
                yield from ({"sentence1": record["description"], "sentence2": text, "score": score} for text in texts)

    def _hardness_rank(self, job: int, resume: int) -> int:
        """0 for a resume that shares the job's words, 1 for one of its family, else 2."""
        if (job, resume) in self.kinds.get(WORDS, []):
            return 0
        family = self.jobs.documents[job].fields.get("family")
        return 1 if self.resumes.documents[resume].fields.get("family") == family else 2


def built_in_folder() -> Path:
    """Return the folder of the set that comes with the package: 100 jobs, and 200 resumes of invented people."""
    return Path(str(resources.files("decoder2vec") / "demo" / "matching"))


def read_labelled_set(folder: str | Path | None = None) -> LabelledSet:
    """Read a folder with jobs.jsonl, resumes.jsonl, labels.tsv and families.tsv; by default the built-in set."""
    root = Path(folder) if folder else built_in_folder()
    jobs, resumes = read_side(root / "jobs.jsonl"), read_side(root / "resumes.jsonl")
    split_of = {row["family"]: row["split"] for _, row in read_rows(root / "families.tsv")}
    job_index, resume_index = (
        {document.id: index for index, document in enumerate(side.documents)} for side in (jobs, resumes)
    )
    grades = np.zeros((len(jobs), len(resumes)), np.intp)
    kinds: dict[str, list[tuple[int, int]]] = {}
    for line, row in read_rows(root / "labels.tsv"):
        try:
            pair = job_index[row["job"]], resume_index[row["resume"]]
            grades[pair] = int(row["grade"])
        except (KeyError, ValueError, TypeError):
            raise DataFileError(f"{root / 'labels.tsv'}, line {line}: no such job, resume or grade.") from None
        if row.get("kind"):
            kinds.setdefault(row["kind"], []).append(pair)
    try:
        splits = [[split_of[document.fields["family"]] for document in side.documents] for side in (jobs, resumes)]
    except KeyError:
        raise DataFileError(f"{root / 'families.tsv'} does not name the family of every document.") from None
    return LabelledSet(jobs, resumes, grades, kinds, *splits)


def evaluate_ranking(scores: ScoreMatrix, labelled: LabelledSet, jobs: Sequence[int]) -> dict[str, Any]:
    """Return all metrics of some jobs with 95 % intervals, and those of the two hard kinds of pairs.

    Args:
        scores: [jobs, resumes] scores.
        labelled: The set that was scored.
        jobs: Indices of the jobs to evaluate.
    """
    rows = list(jobs)
    meaning, words = (
        [pair for pair in labelled.kinds.get(kind, []) if pair[0] in set(rows)] for kind in (MEANING, WORDS)
    )
    meaning_metrics = meaning_only_metrics(scores, labelled.grades, meaning)
    words_metrics = shared_words_metrics(scores, labelled.grades, words)
    return {
        "jobs": len(rows),
        **_summary(per_query_metrics(scores[rows], labelled.grades[rows])),
        "meaning_only": {"pairs": len(meaning), **_summary(meaning_metrics)},
        "shared_words": {"pairs": len(words), **_summary(words_metrics)},
    }


def per_query_metrics(scores: ScoreMatrix, grades: NDArray[Any]) -> dict[str, Metric]:
    """Return recall@k, MRR and nDCG@10 of every row; rows where nothing fits are left out.

    A pair fits if its grade is 2; partial fits count only for the gain (2^grade - 1). Equal scores keep the order of
    the columns.
    """
    has_fit = (grades >= FITS).any(1)
    order = np.argsort(-scores[has_fit], axis=1, kind="stable")
    ranked = np.take_along_axis(grades[has_fit], order, 1)
    fits = ranked >= FITS
    gains, ideal = 2.0**ranked - 1, -np.sort(-(2.0 ** grades[has_fit] - 1), axis=1)
    discount = 1 / np.log2(np.arange(2, min(_NDCG_CUTOFF, ranked.shape[1]) + 2))
    size = len(discount)
    return {
        **{f"recall@{k}": fits[:, :k].sum(1) / fits.sum(1) for k in RECALL_CUTOFFS},
        "mrr": 1.0 / (1 + fits.argmax(1)),
        f"ndcg@{_NDCG_CUTOFF}": (gains[:, :size] @ discount) / (ideal[:, :size] @ discount),
    }


def meaning_only_metrics(
    scores: ScoreMatrix, grades: NDArray[Any], pairs: Sequence[tuple[int, int]]
) -> dict[str, Metric]:
    """Return recall@k and MRR of fits that share no word, ranked among the resumes that do not fit."""
    ranks = []
    for job, resume in pairs:
        unfitting = scores[job, (grades[job] == 0)]
        earlier = np.flatnonzero(grades[job] == 0) < resume
        ranks.append(1 + (unfitting > scores[job, resume]).sum() + ((unfitting == scores[job, resume]) & earlier).sum())
    rank_array = np.array(ranks, np.float64)
    return {**{f"recall@{k}": (rank_array <= k).astype(np.float64) for k in RECALL_CUTOFFS}, "mrr": 1 / rank_array}


def shared_words_metrics(
    scores: ScoreMatrix, grades: NDArray[Any], pairs: Sequence[tuple[int, int]]
) -> dict[str, Metric]:
    """Return the share of a job's fits that score higher than a resume that only shares its words."""
    shares = [(scores[job, grades[job] >= FITS] > scores[job, resume]).mean() for job, resume in pairs]
    return {"fits_above": np.array(shares, np.float64)}


def bootstrap_interval(
    values: Metric, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Return the bootstrap confidence interval of the mean."""
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), (samples, len(values)))].mean(1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def _summary(metrics: dict[str, Metric]) -> dict[str, Any]:
    """Return the mean of each metric in percent and its 95 % bootstrap interval; empty metrics are left out."""
    summary: dict[str, Any] = {}
    for name, values in metrics.items():
        if len(values):
            low, high = bootstrap_interval(values)
            summary[name] = round(100 * float(values.mean()), 1)
            summary[f"{name}_95"] = [round(100 * low, 1), round(100 * high, 1)]
    return summary
