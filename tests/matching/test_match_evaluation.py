"""Metrics against plain loops and scikit-learn; the labelled set is what its description says."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from decoder2vec.errors import DataFileError, InputError
from decoder2vec.matching.evaluation import (
    SPLITS,
    against_shared_words,
    bootstrap_interval,
    built_in_folder,
    by_meaning_only,
    evaluate_ranking,
    per_query,
    read_labelled_set,
)
from decoder2vec.matching.section_scores import full_text
from decoder2vec.matching.terms import tokens
from decoder2vec.text.files import read_data_file, read_pairs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def labelled():
    return read_labelled_set()


@pytest.fixture(scope="module")
def made_up():
    rng = np.random.default_rng(3)
    return rng.normal(size=(12, 30)), rng.choice([0, 0, 0, 0, 1, 2], (12, 30))


def test_recall_and_reciprocal_rank_are_those_of_a_plain_loop(made_up):
    scores, grades = made_up
    found = per_query(scores, grades)
    for row in range(12):
        order = sorted(range(30), key=lambda column: -scores[row, column])
        hits = [grades[row, column] == 2 for column in order]
        assert found["mrr"][row] == 1 / (1 + hits.index(True))
        for k in (1, 5, 10):
            assert found[f"recall@{k}"][row] == sum(hits[:k]) / sum(hits)


def test_gain_is_that_of_scikit_learn(made_up):
    scores, grades = made_up
    expected = [ndcg_score([2.0**truth - 1], [row], k=10) for truth, row in zip(grades, scores, strict=True)]
    np.testing.assert_allclose(per_query(scores, grades)["ndcg@10"], expected)


def test_a_query_that_nothing_fits_is_left_out_and_few_candidates_are_enough():
    scores, grades = np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[0, 1], [2, 0]])
    assert {name: value.tolist() for name, value in per_query(scores, grades).items()} == {
        "recall@1": [1.0],
        "recall@5": [1.0],
        "recall@10": [1.0],
        "mrr": [1.0],
        "ndcg@10": [1.0],
    }


def test_the_two_hard_kinds_are_those_of_a_plain_loop(made_up):
    scores, grades = made_up
    fits = [tuple(place) for place in np.argwhere(grades == 2)]
    found = by_meaning_only(scores, grades, fits)
    for (job, resume), got in zip(fits, found["mrr"], strict=True):
        better = sum(scores[job, j] > scores[job, resume] for j in range(30) if grades[job, j] == 0)
        assert got == 1 / (1 + better)
    wrong = [tuple(place) for place in np.argwhere(grades == 0)[:40]]
    found = against_shared_words(scores, grades, wrong)
    for (job, resume), got in zip(wrong, found["fits_above"], strict=True):
        above = [scores[job, j] > scores[job, resume] for j in range(30) if grades[job, j] == 2]
        assert math.isclose(got, sum(above) / len(above))


def test_the_interval_of_a_mean_is_about_that_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(size=400)
    low, high = bootstrap_interval(values)
    wide = 1.96 * values.std() / 20
    assert abs(low - (values.mean() - wide)) < 0.02 and abs(high - (values.mean() + wide)) < 0.02
    assert bootstrap_interval(values) == (low, high)


def test_a_perfect_ranking_scores_100_everywhere(labelled):
    found = evaluate_ranking(labelled.grades.astype(float), labelled, labelled.jobs_of("test"))
    assert found["jobs"] == 30 and found["ndcg@10"] == found["mrr"] == found["recall@5"] == 100
    assert found["meaning_only"]["recall@1"] == found["shared_words"]["fits_above"] == 100


def test_the_set_has_100_jobs_and_200_different_resumes_of_20_families(labelled):
    assert (len(labelled.jobs), len(labelled.resumes)) == (100, 200)
    assert len({full_text(one) for one in labelled.resumes.documents}) == 200
    assert len({one.fields["name"] for one in labelled.resumes.documents}) == 200
    assert not any(one.fields["name"] in one.text.splitlines() for one in labelled.resumes.documents)
    families = {one.fields["family"] for side in (labelled.jobs, labelled.resumes) for one in side.documents}
    assert len(families) == 20
    assert [len(labelled.jobs_of(split)) for split in SPLITS] == [50, 20, 30]
    assert ((labelled.grades == 2).sum(1) == 2).all() and ((labelled.grades == 2).sum(0) == 1).all()
    assert sum(file.stat().st_size for file in built_in_folder().iterdir()) < 600_000


def test_whoever_fits_belongs_to_the_family_of_the_job(labelled):
    for job, resume in np.argwhere(labelled.grades == 2):
        sides = labelled.jobs.documents[job], labelled.resumes.documents[resume]
        assert sides[0].fields["family"] == sides[1].fields["family"]


def test_the_hard_kinds_are_hard(labelled):
    sides = [tokens([full_text(one) for one in side.documents]) for side in (labelled.jobs, labelled.resumes)]
    jobs, resumes = ([set(words) for words in side] for side in sides)
    shared = {
        kind: [len(jobs[job] & resumes[resume]) for job, resume in labelled.kinds[kind]]
        for kind in ("meaning", "words")
    }
    assert len(shared["meaning"]) >= 20 and len(shared["words"]) >= 20
    assert all(labelled.grades[pair] == 2 for pair in labelled.kinds["meaning"])
    assert all(labelled.grades[pair] == 0 for pair in labelled.kinds["words"])
    assert max(shared["meaning"]) <= 6 and np.mean(shared["meaning"]) < 1.5
    assert min(shared["words"]) >= 6 and np.mean(shared["words"]) > 9


def test_aws_and_gcp_stand_against_cloud_based_systems(labelled):
    place = next(n for n, one in enumerate(labelled.jobs.documents) if one.title == "Cloud Engineer")
    text = labelled.jobs.documents[place].text
    assert "cloud-based systems" in text and "AWS" not in text
    fitting = [labelled.resumes.documents[n].text for n in np.flatnonzero(labelled.grades[place] == 2)]
    assert any("AWS and GCP" in one and "cloud" not in one.lower() for one in fitting)


def test_records_hold_nothing_of_another_split_and_no_fit_as_a_negative(labelled):
    texts = {full_text(one): n for n, one in enumerate(labelled.resumes.documents)}
    titles = {full_text(one): n for n, one in enumerate(labelled.jobs.documents)}
    records = list(labelled.records("train"))
    assert len(records) == 50
    for record in records:
        job = titles[record["description"]]
        assert labelled.job_splits[job] == "train" and record["label"] == labelled.jobs.documents[job].title
        assert all(labelled.grades[job, texts[one]] == 2 for one in record["pos"]) and len(record["pos"]) == 2
        assert all(labelled.grades[job, texts[one]] == 0 for one in record["neg"]) and record["neg"]
        assert all(labelled.resume_splits[texts[one]] == "train" for one in [*record["pos"], *record["neg"]])


def test_the_committed_records_are_those_of_the_labels_and_the_trainer_reads_them(labelled):
    folder = ROOT / "experiments" / "matching" / "records"
    for name, rows in (("train", labelled.records("train")), ("dev", labelled.scored_pairs("dev"))):
        lines = (folder / f"{name}.jsonl").read_text("utf-8").splitlines()
        assert [json.loads(line) for line in lines] == list(rows)
    read = read_data_file(folder / "train.jsonl")
    assert (read.kind, len(read.rows)) == ("records", 50)
    pairs = read_pairs(folder / "dev.jsonl")
    assert len(pairs) > 100 and set(pairs.scores) == {0.0, 1.0}
    assert not set(pairs.texts()) & set(read.texts())


def test_a_label_of_nothing_is_refused(labelled, tmp_path):
    for file in built_in_folder().glob("*.*l*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for file in ("families.tsv", "labels.tsv"):
        (tmp_path / file).write_bytes((built_in_folder() / file).read_bytes())
    with (tmp_path / "labels.tsv").open("a") as labels:
        labels.write("job-001\tresume-999\t2\t\n")
    with pytest.raises(DataFileError, match="no such job"):
        read_labelled_set(tmp_path)
    with pytest.raises(InputError, match="split"):
        labelled.jobs_of("exam")
