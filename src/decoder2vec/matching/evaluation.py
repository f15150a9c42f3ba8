"""Jobs and resumes with labels that say who fits: to evaluate on, and to train from."""

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
from decoder2vec.matching.terms import Scores
from decoder2vec.text.files import read_rows

SPLITS = ("train", "dev", "test")
FITS = 2
"""The grade of a pair that fits; 1 fits in part, 0 does not."""
MEANING = "meaning"
"""The kind of pair that fits and shares next to no word."""
WORDS = "words"
"""The kind of pair that shares words and does not fit."""
_MOST_NEGATIVES = 4


@dataclass(frozen=True)
class LabelledSet:
    """Two sides, the grade of every pair, and the split that every document belongs to by its family."""

    jobs: Side
    resumes: Side
    grades: NDArray[np.intp]
    """[jobs, resumes]"""
    kinds: dict[str, list[tuple[int, int]]]
    """Pairs of a kind, by its name."""
    job_splits: list[str]
    resume_splits: list[str]

    def jobs_of(self, *splits: str) -> list[int]:
        """The places of the jobs in these splits."""
        for split in splits:
            if split not in SPLITS:
                raise unknown_name("split", split, SPLITS)
        return [place for place, own in enumerate(self.job_splits) if own in splits]

    def records(self, split: str) -> Iterator[dict[str, Any]]:
        """Training records of a split: what fits a job, and what might be taken for it and does not.

        Negatives are those that share the job's words, then those of its own family; all are resumes of the split.
        """
        for job in self.jobs_of(split):
            document = self.jobs.documents[job]
            near = [place for place, own in enumerate(self.resume_splits) if own == split]
            wrong = [place for place in near if self.grades[job, place] == 0]
            family = document.fields.get("family")
            wrong.sort(key=lambda place: self._nearness(job, place, family))
            hard = [p for p in wrong if self._nearness(job, p, family) < 2][:_MOST_NEGATIVES]
            right = [place for place in near if self.grades[job, place] == FITS]
            yield {
                "label": document.title,
                "description": full_text(document),
                "pos": [full_text(self.resumes.documents[place]) for place in right],
                "neg": [full_text(self.resumes.documents[place]) for place in hard],
            }

    def scored_pairs(self, split: str) -> Iterator[dict[str, Any]]:
        """The same as pairs to choose on: a job with what fits it scores 1, with what does not 0."""
        for record in self.records(split):
            for score, texts in ((1.0, record["pos"]), (0.0, record["neg"])):
                yield from ({"sentence1": record["description"], "sentence2": one, "score": score} for one in texts)

    def _nearness(self, job: int, place: int, family: str | None) -> int:
        if (job, place) in self.kinds.get(WORDS, []):
            return 0
        return 1 if self.resumes.documents[place].fields.get("family") == family else 2


def built_in_folder() -> Path:
    """The set that comes with the package: 100 jobs and 200 resumes of people who do not exist."""
    return Path(str(resources.files("decoder2vec") / "demo" / "matching"))


def read_labelled_set(folder: str | Path | None = None) -> LabelledSet:
    """The set of a folder with jobs.jsonl, resumes.jsonl, labels.tsv and families.tsv; by default the built-in one."""
    home = Path(folder) if folder else built_in_folder()
    jobs, resumes = read_side(home / "jobs.jsonl"), read_side(home / "resumes.jsonl")
    splits = {row["family"]: row["split"] for _, row in read_rows(home / "families.tsv")}
    places = [{one.id: place for place, one in enumerate(side.documents)} for side in (jobs, resumes)]
    grades = np.zeros((len(jobs), len(resumes)), np.intp)
    kinds: dict[str, list[tuple[int, int]]] = {}
    for line, row in read_rows(home / "labels.tsv"):
        try:
            pair = places[0][row["job"]], places[1][row["resume"]]
            grades[pair] = int(row["grade"])
        except (KeyError, ValueError, TypeError):
            raise DataFileError(f"{home / 'labels.tsv'}, line {line}: no such job, resume or grade.") from None
        if row.get("kind"):
            kinds.setdefault(row["kind"], []).append(pair)
    try:
        own = [[splits[one.fields["family"]] for one in side.documents] for side in (jobs, resumes)]
    except KeyError:
        raise DataFileError(f"{home / 'families.tsv'} does not name the family of every document.") from None
    return LabelledSet(jobs, resumes, grades, kinds, *own)


RECALLS = (1, 5, 10)
_GAIN_AT = 10


def evaluate_ranking(scores: Scores, labelled: LabelledSet, rows: Sequence[int]) -> dict[str, Any]:
    """Everything there is to say about the scores [jobs, resumes] of these jobs, the two hard kinds apart."""
    chosen = list(rows)
    found = _summary(per_query(scores[chosen], labelled.grades[chosen]))
    meaning = [pair for pair in labelled.kinds.get(MEANING, []) if pair[0] in set(chosen)]
    words = [pair for pair in labelled.kinds.get(WORDS, []) if pair[0] in set(chosen)]
    return {
        "jobs": len(chosen),
        **found,
        "meaning_only": {"pairs": len(meaning), **_summary(by_meaning_only(scores, labelled.grades, meaning))},
        "shared_words": {"pairs": len(words), **_summary(against_shared_words(scores, labelled.grades, words))},
    }


def per_query(scores: Scores, grades: NDArray[Any]) -> dict[str, Scores]:
    """Recall@k, reciprocal rank and nDCG@10 of every row; a row where nothing fits is left out.

    What fits has grade 2; half fits count for the gain only (2^grade - 1). Equal scores keep the order of the columns.
    """
    some = (grades >= FITS).any(1)
    order = np.argsort(-scores[some], axis=1, kind="stable")
    ranked = np.take_along_axis(grades[some], order, 1)
    fits = ranked >= FITS
    gains, ideal = 2.0**ranked - 1, -np.sort(-(2.0 ** grades[some] - 1), axis=1)
    discount = 1 / np.log2(np.arange(2, min(_GAIN_AT, ranked.shape[1]) + 2))
    size = len(discount)
    return {
        **{f"recall@{k}": fits[:, :k].sum(1) / fits.sum(1) for k in RECALLS},
        "mrr": 1.0 / (1 + fits.argmax(1)),
        f"ndcg@{_GAIN_AT}": (gains[:, :size] @ discount) / (ideal[:, :size] @ discount),
    }


def by_meaning_only(scores: Scores, grades: NDArray[Any], pairs: Sequence[tuple[int, int]]) -> dict[str, Scores]:
    """How high a fit that shares no word stands among those that do not fit; other fits are taken out."""
    ranks = []
    for job, resume in pairs:
        others = scores[job, (grades[job] == 0)]
        before = np.flatnonzero(grades[job] == 0) < resume
        ranks.append(1 + (others > scores[job, resume]).sum() + ((others == scores[job, resume]) & before).sum())
    places = np.array(ranks, np.float64)
    return {**{f"recall@{k}": (places <= k).astype(np.float64) for k in RECALLS}, "mrr": 1 / places}


def against_shared_words(scores: Scores, grades: NDArray[Any], pairs: Sequence[tuple[int, int]]) -> dict[str, Scores]:
    """The share of a job's fits that score higher than the one that only shares its words."""
    right = [(scores[job, grades[job] >= FITS] > scores[job, wrong]).mean() for job, wrong in pairs]
    return {"fits_above": np.array(right, np.float64)}


def _summary(values: dict[str, Scores]) -> dict[str, Any]:
    """Means in points, and their 95 % bootstrap intervals; nothing for nothing."""
    said: dict[str, Any] = {}
    for name, value in values.items():
        if len(value):
            low, high = bootstrap_interval(value)
            said[name] = round(100 * float(value.mean()), 1)
            said[f"{name}_95"] = [round(100 * low, 1), round(100 * high, 1)]
    return said


def bootstrap_interval(
    values: Scores, *, samples: int = 2000, level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """The interval of a mean: values are drawn anew with replacement."""
    rng = np.random.default_rng(seed)
    means = values[rng.integers(0, len(values), (samples, len(values)))].mean(1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
