"""Metrics equal plain loops and scikit-learn; the built-in labelled set is as described."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.matching.evaluation import (
    SPLITS,
    bootstrap_interval,
    built_in_folder,
    evaluate_ranking,
    meaning_only_metrics,
    per_query_metrics,
    read_labelled_set,
    shared_words_metrics,
)
from decoder2vec.matching.section_scores import full_text
from decoder2vec.matching.terms import stemmed_words
from decoder2vec.text.files import read_data_file, read_pairs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def labelled():
    return read_labelled_set()


@pytest.fixture(scope="module")
def toy_scores():
    """Random scores and grades [12, 30]."""
    rng = np.random.default_rng(3)
    return rng.normal(size=(12, 30)), rng.choice([0, 0, 0, 0, 1, 2], (12, 30))


def test_recall_and_mrr_equal_a_plain_loop(toy_scores):
    scores, grades = toy_scores
    metrics = per_query_metrics(scores, grades)
    for row in range(12):
        order = sorted(range(30), key=lambda column: -scores[row, column])
        fits = [grades[row, column] == 2 for column in order]
        assert metrics["mrr"][row] == 1 / (1 + fits.index(True))
        for k in (1, 5, 10):
            assert metrics[f"recall@{k}"][row] == sum(fits[:k]) / sum(fits)


def test_ndcg_equals_scikit_learn(toy_scores):
    scores, grades = toy_scores
    expected = [ndcg_score([2.0**truth - 1], [row], k=10) for truth, row in zip(grades, scores, strict=True)]
    np.testing.assert_allclose(per_query_metrics(scores, grades)["ndcg@10"], expected)


def test_queries_without_a_fit_are_left_out():
    scores, grades = np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[0, 1], [2, 0]])  # also fewer candidates than k
    assert {name: values.tolist() for name, values in per_query_metrics(scores, grades).items()} == {
        "recall@1": [1.0],
        "recall@5": [1.0],
        "recall@10": [1.0],
        "mrr": [1.0],
        "ndcg@10": [1.0],
    }


def test_metrics_of_hard_pairs_equal_a_plain_loop(toy_scores):
    scores, grades = toy_scores
    fits = [tuple(pair) for pair in np.argwhere(grades == 2)]
    metrics = meaning_only_metrics(scores, grades, fits)
    for (job, resume), value in zip(fits, metrics["mrr"], strict=True):
        better = sum(scores[job, j] > scores[job, resume] for j in range(30) if grades[job, j] == 0)
        assert value == 1 / (1 + better)
    unfitting = [tuple(pair) for pair in np.argwhere(grades == 0)[:40]]
    metrics = shared_words_metrics(scores, grades, unfitting)
    for (job, resume), value in zip(unfitting, metrics["fits_above"], strict=True):
        above = [scores[job, j] > scores[job, resume] for j in range(30) if grades[job, j] == 2]
        assert math.isclose(value, sum(above) / len(above))


def test_bootstrap_interval_is_near_the_normal_interval():
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap_interval(values)
    half_width = 1.96 * values.std() / 20
    assert abs(low - (values.mean() - half_width)) < 0.02 and abs(high - (values.mean() + half_width)) < 0.02
    assert bootstrap_interval(values) == (low, high)


def test_perfect_ranking_scores_100(labelled):
    metrics = evaluate_ranking(labelled.grades.astype(float), labelled, labelled.job_indices("test"))
    assert metrics["jobs"] == 30 and metrics["ndcg@10"] == metrics["mrr"] == metrics["recall@5"] == 100
    assert metrics["meaning_only"]["recall@1"] == metrics["shared_words"]["fits_above"] == 100


def test_set_has_100_jobs_and_200_resumes_of_20_families(labelled):
    assert (len(labelled.jobs), len(labelled.resumes)) == (100, 200)
    resumes = labelled.resumes.documents
    assert len({full_text(resume) for resume in resumes}) == 200
    assert len({resume.fields["name"] for resume in resumes}) == 200
    assert not any(resume.fields["name"] in resume.text.splitlines() for resume in resumes)
    families = {document.fields["family"] for document in (*labelled.jobs.documents, *resumes)}
    assert len(families) == 20
    assert [len(labelled.job_indices(split)) for split in SPLITS] == [50, 20, 30]
    assert ((labelled.grades == 2).sum(1) == 2).all() and ((labelled.grades == 2).sum(0) == 1).all()
    assert sum(file.stat().st_size for file in built_in_folder().iterdir()) < 600_000


def test_fitting_resumes_belong_to_the_family_of_the_job(labelled):
    for job, resume in np.argwhere(labelled.grades == 2):
        documents = labelled.jobs.documents[job], labelled.resumes.documents[resume]
        assert documents[0].fields["family"] == documents[1].fields["family"]


def test_hard_pairs_share_few_or_many_words(labelled):
    jobs, resumes = (
        [set(words) for words in stemmed_words([full_text(document) for document in side.documents])]
        for side in (labelled.jobs, labelled.resumes)
    )
    shared = {
        kind: [len(jobs[job] & resumes[resume]) for job, resume in labelled.kinds[kind]]
        for kind in ("meaning", "words")
    }
    assert len(shared["meaning"]) >= 20 and len(shared["words"]) >= 20
    assert all(labelled.grades[pair] == 2 for pair in labelled.kinds["meaning"])
    assert all(labelled.grades[pair] == 0 for pair in labelled.kinds["words"])
    assert max(shared["meaning"]) <= 6 and np.mean(shared["meaning"]) < 1.5
    assert min(shared["words"]) >= 6 and np.mean(shared["words"]) > 9


def test_cloud_job_is_fitted_by_aws_and_gcp(labelled):
    job = next(n for n, document in enumerate(labelled.jobs.documents) if document.title == "Cloud Engineer")
    text = labelled.jobs.documents[job].text
    assert "cloud-based systems" in text and "AWS" not in text
    fitting = [labelled.resumes.documents[n].text for n in np.flatnonzero(labelled.grades[job] == 2)]
    assert any("AWS and GCP" in resume and "cloud" not in resume.lower() for resume in fitting)


def test_records_stay_in_their_split_and_negatives_do_not_fit(labelled):
    resume_index = {full_text(document): n for n, document in enumerate(labelled.resumes.documents)}
    job_index = {full_text(document): n for n, document in enumerate(labelled.jobs.documents)}
    records = list(labelled.training_records("train"))
    assert len(records) == 50
    for record in records:
        job = job_index[record["description"]]
        assert labelled.job_splits[job] == "train" and record["label"] == labelled.jobs.documents[job].title
        positives, negatives = ([resume_index[text] for text in record[key]] for key in ("pos", "neg"))
        assert all(labelled.grades[job, resume] == 2 for resume in positives) and len(positives) == 2
        assert all(labelled.grades[job, resume] == 0 for resume in negatives) and negatives
        assert all(labelled.resume_splits[resume] == "train" for resume in [*positives, *negatives])


def test_committed_records_are_current_and_can_be_read(labelled):
    folder = ROOT / "experiments" / "matching" / "records"
    for name, rows in (("train", labelled.training_records("train")), ("dev", labelled.scored_pairs("dev"))):
        lines = (folder / f"{name}.jsonl").read_text("utf-8").splitlines()
        assert [json.loads(line) for line in lines] == list(rows)
    train = read_data_file(folder / "train.jsonl")
    assert (train.kind, len(train.rows)) == ("records", 50)
    pairs = read_pairs(folder / "dev.jsonl")
    assert len(pairs) > 100 and set(pairs.scores) == {0.0, 1.0}
    assert not set(pairs.texts()) & set(train.texts())


def test_unknown_resumes_and_splits_are_refused(labelled, tmp_path):
    for file in built_in_folder().glob("*.*l*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for file in ("families.tsv", "labels.tsv"):
        (tmp_path / file).write_bytes((built_in_folder() / file).read_bytes())
    with (tmp_path / "labels.tsv").open("a") as labels:
        labels.write("job-001\tresume-999\t2\t\n")
    with pytest.raises(DataFileError, match="no such job"):
        read_labelled_set(tmp_path)
    with pytest.raises(InputError, match="split"):
        labelled.job_indices("exam")
