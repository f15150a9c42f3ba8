"""Target tasks: files of every kind, splits by text, scores against scikit-learn and GAP's rule counted by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from decoder2vec.activations.spans import TextSpan
from decoder2vec.choosing.tasks import Example, TargetTask, f1, read_examples, read_task
from decoder2vec.errors import DataFileError, InputError
from toys.choosing import write_gap


def test_gap_rows_are_two_pairs_with_the_gender_of_the_pronoun(tmp_path):
    kind, examples = read_examples(write_gap(tmp_path / "gap.tsv"))
    assert kind == "span pair" and len(examples) == 10
    text = "Anna met Berta before she left."
    assert examples[:2] == [
        Example((TextSpan(text, (22, 25)), TextSpan(text, (0, 4))), "1", "feminine"),
        Example((TextSpan(text, (22, 25)), TextSpan(text, (9, 14))), "0", "feminine"),
    ]
    assert [each.group for each in examples[::2]] == ["feminine", "masculine", "feminine", "masculine", "feminine"]
    assert [each.target for each in examples] == list("1001001001")


def test_gap_f1_by_the_official_rule_and_by_gender(tmp_path):
    """Counted by hand; the official scorer counts A and B of every row as two decisions."""
    rows = read_examples(write_gap(tmp_path / "gap.tsv"))[1]
    task = TargetTask.of("gap", "span pair", rows, rows, rows)
    predicted = np.array([1, 1, 0, 1, 0, 0, 0, 1, 0, 0])
    # true positives: rows 1 A and 2 B; false positives: 1 B and 4 B; false negatives: 4 A and 5 B
    assert task.metric == "f1"
    assert task.score(task.test, predicted) == pytest.approx(100 * 2 * 2 / (2 * 2 + 2 + 2))
    groups = task.score_groups(task.test, predicted)
    assert groups["feminine"] == pytest.approx(100 * 2 * 1 / (2 * 1 + 1 + 1))
    assert groups["masculine"] == pytest.approx(100 * 2 * 1 / (2 * 1 + 1 + 1))


def test_f1_equals_scikit_learn():
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 4, 300), rng.integers(0, 4, 300)
    assert f1(gold, predicted, 0) == pytest.approx(f1_score(gold, predicted, labels=[1, 2, 3], average="micro"))
    assert f1(np.zeros(3), np.zeros(3), 0) == 0.0


def test_regression_is_scored_by_spearman():
    pairs = [Example((TextSpan(f"a {n}"), TextSpan(f"b {n}")), n / 3) for n in range(20)]
    task = TargetTask.of("sts", "regression", pairs, pairs, pairs)
    predicted = np.random.default_rng(0).normal(size=20)
    expected = 100 * stats.spearmanr(predicted, np.arange(20)).statistic
    assert task.score(task.test, predicted) == pytest.approx(expected)


def test_tags_become_spans_of_the_joined_text(tmp_path):
    file = tmp_path / "tags.jsonl"
    file.write_text(json.dumps({"tokens": ["Anna", "lives", "in", "Bern"], "tags": ["PER", "O", "O", "LOC"]}) + "\n")
    kind, examples = read_examples(file)
    assert kind == "tagging"
    assert [(each.units[0].text[slice(*each.units[0].span)], each.target) for each in examples] == [
        ("Anna", "PER"),
        ("lives", "O"),
        ("in", "O"),
        ("Bern", "LOC"),
    ]
    assert TargetTask.of("tags", "tagging", examples, examples, examples).metric == "f1"


def test_other_kinds_are_known_by_their_columns(tmp_path):
    (tmp_path / "a.tsv").write_text("label\ttext\nx\tone\n")
    (tmp_path / "b.csv").write_text("sentence1,sentence2,score\none,two,3.5\n")
    (tmp_path / "c.tsv").write_text("text\tstart1\tend1\tstart2\tend2\tlabel\nIt rains.\t0\t2\t3\t8\tnone\n")
    assert read_examples(tmp_path / "a.tsv") == ("classification", [Example((TextSpan("one"),), "x")])
    assert read_examples(tmp_path / "b.csv")[1] == [Example((TextSpan("one"), TextSpan("two")), 3.5)]
    spans = TextSpan("It rains.", (0, 2)), TextSpan("It rains.", (3, 8))
    assert read_examples(tmp_path / "c.tsv") == ("span pair", [Example(spans, "none")])


def test_held_out_splits_share_no_text():
    rows = [Example((TextSpan(f"text {n % 50}"),), str(n % 3)) for n in range(150)]
    task = TargetTask.of("toy", "classification", rows)
    used = [{task.units[unit].text for unit in split.units[:, 0]} for split in (task.train, task.valid, task.test)]
    assert [len(texts) for texts in used] == [30, 10, 10]
    assert not (used[0] & used[1] or used[0] & used[2] or used[1] & used[2])
    given = TargetTask.of("toy", "classification", rows, test=rows[:9])
    assert len(given.train) == 120 and len(given.valid) == 30 and len(given.test) == 9


def test_an_unseen_test_label_is_always_wrong():
    rows = [Example((TextSpan(f"text {n}"),), str(n % 2)) for n in range(10)]
    task = TargetTask.of("toy", "classification", rows, rows, [*rows, Example((TextSpan("new"),), "unseen")])
    assert task.test.targets[-1] == -1
    assert task.score(task.test, np.array([0, 1] * 5 + [0])) == pytest.approx(100 * 10 / 11)


def test_a_limit_keeps_whole_texts(tmp_path):
    task = read_task(write_gap(tmp_path / "gap.tsv", repeat=8), limit=20)
    assert task.n_texts() == 20
    assert len(task.train) + len(task.valid) + len(task.test) == 40


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("colour\tsize\nred\t3\n", "has the columns colour, size; rename"),
        ("sentence1\tsentence2\tscore\na\tb\tgood\n", "line 2: the score 'good' is not a finite number"),
        ("text\tstart1\tend1\tstart2\tend2\tlabel\nIt\t0\t2\t1\t9\tx\n", "line 2: the span 1-9 is not inside"),
        ("text\tlabel\nIt\t \n", "line 2: the label"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, content, message):
    (tmp_path / "bad.tsv").write_text(content)
    with pytest.raises(DataFileError, match=message):
        read_examples(tmp_path / "bad.tsv")


@pytest.mark.parametrize("label", ["NaN", "null", '""'])
def test_missing_labels_are_refused(label, tmp_path):
    rows = ('{"text": "It rains", "label": "weather"}', f'{{"text": "It is", "label": {label}}}')
    (tmp_path / "bad.jsonl").write_text("\n".join(rows))
    with pytest.raises(DataFileError, match=r"bad.jsonl, line 2: the label .* is not a word or number"):
        read_examples(tmp_path / "bad.jsonl")


def test_the_text_nan_is_a_label(tmp_path):
    (tmp_path / "good.tsv").write_text("text\tlabel\nBread from India\tnan\n")
    assert read_examples(tmp_path / "good.tsv")[1][0].target == "nan"


@pytest.mark.parametrize("column", ["Pronoun", "A"])
@pytest.mark.parametrize("value", [None, 3])
def test_a_gap_mention_that_is_no_text_is_named(column, value, tmp_path):
    header, first, *_ = write_gap(tmp_path / "gap.tsv").read_text().splitlines()
    row = dict(zip(header.split("\t"), first.split("\t"), strict=True))
    (tmp_path / "gap.jsonl").write_text(json.dumps(row | {column: value}))
    with pytest.raises(DataFileError, match=f"gap.jsonl, line 1: {column} is .*, not a text"):
        read_examples(tmp_path / "gap.jsonl")


def test_a_gap_offset_that_is_off_is_named(tmp_path):
    file = write_gap(tmp_path / "gap.tsv")
    file.write_text(file.read_text().replace("\tAnna\t0\t", "\tAnna\t1\t"))
    with pytest.raises(DataFileError, match="line 2: A is 'Anna', but the text has 'nna ' at character 1"):
        read_examples(file)


def test_files_of_two_kinds_and_too_little_data_are_errors(tmp_path):
    (tmp_path / "a.tsv").write_text("label\ttext\n" + "".join(f"x{n % 2}\ttext {n}\n" for n in range(30)))
    (tmp_path / "b.csv").write_text("sentence1,sentence2,score\none,two,3.5\n")
    with pytest.raises(DataFileError, match=r"b.csv holds regression data"):
        read_task(tmp_path / "a.tsv", test=tmp_path / "b.csv")
    with pytest.raises(InputError, match="limit of 3 texts"):
        read_task(tmp_path / "a.tsv", limit=3)
    with pytest.raises(InputError, match="fewer than two different labels"):
        TargetTask.of("toy", "classification", [Example((TextSpan(str(n)),), "same") for n in range(20)])
