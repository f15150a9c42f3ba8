"""Jobs and resumes with labels that say who fits: to evaluate on, and to train from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import DataFileError, unknown_name
from decoder2vec.search.matching.section_scores import full_text
from decoder2vec.search.matching.sides import Side, read_side
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
