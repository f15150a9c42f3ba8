"""What changed from one encoder to another: gains and ratios against plain loops, reasons, page, Markdown and JSON."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats

from decoder2vec.errors import InputError, UnknownNameError
from decoder2vec.report import api
from decoder2vec.report.changes import change_table, describe_change, measure_changes
from decoder2vec.report.result_files import find_results
from toys.evaluations import KINDS, make_evaluation, score_of, write_evaluation
from toys.html_page import HOSTILE_TEXT, Page
from toys.scipy_bootstrap import bootstrap as scipy_bootstrap
from toys.tasks import write_toy_tasks


@pytest.fixture
def load(tmp_path):
    """load(document, items) -> the evaluation as the report reads it."""

    def read(document, items):
        return find_results([write_evaluation(tmp_path, document, items)]).evaluations[0]

    return read


@pytest.fixture
def before_after(load):
    return load(*make_evaluation("before", 1.0, 1)), load(*make_evaluation("after", 0.6, 2))


def test_gains_and_mean_ratio_equal_a_plain_loop(before_after):
    before, after = before_after
    (change,) = measure_changes([before, after])
    assert (change.before, change.after, change.refused) == ("before", "after", ())
    assert {task.name for task in change.tasks} == set(KINDS)
    ratios = []
    for task in change.tasks:
        old, new = before.tasks[task.name].score, after.tasks[task.name].score
        assert (task.before, task.after, task.gain) == (old, new, new - old)
        ratios.append((new - old) / old)
        assert task.ratio == pytest.approx(ratios[-1])
    assert change.mean_ratio.value == pytest.approx(sum(ratios) / len(ratios))
    assert change.item_interval[0] < change.mean_ratio.value < change.item_interval[1]


def test_intervals_equal_scipys_paired_bootstrap(load):
    tasks = {"stsb-test": "sts"}
    evaluations = [make_evaluation("before", 1.0, 1, tasks), make_evaluation("after", 0.6, 2, tasks)]
    (change,) = measure_changes([load(*each) for each in evaluations])
    (old, gold), (new, _) = ((items["stsb-test"]["predicted"], items["stsb-test"]["gold"]) for _, items in evaluations)

    def spearman(a, b):
        return 100 * stats.spearmanr(a, b).statistic

    def bootstrap(statistic):
        data = tuple(map(np.array, (old, new, gold)))
        rng = np.random.default_rng(3)
        return scipy_bootstrap(
            data, statistic, n_resamples=1000, paired=True, vectorized=False, method="percentile", rng=rng
        ).confidence_interval

    gain = bootstrap(lambda a, b, g: spearman(b, g) - spearman(a, g))
    ratio = bootstrap(lambda a, b, g: spearman(b, g) / spearman(a, g) - 1)
    (task,) = change.tasks
    assert [task.interval.low, task.interval.high] == pytest.approx(
        [gain.low, gain.high], abs=0.1 * (gain.high - gain.low)
    )
    assert change.item_interval == pytest.approx([ratio.low, ratio.high], abs=0.1 * (ratio.high - ratio.low))


def test_tasks_that_were_trained_on_or_score_nearly_nothing_are_no_part_of_the_mean(load):
    document, items = make_evaluation("before", 1.0, 1)
    document["tasks"]["scifact"]["score"] = 0.0
    evaluations = [load(document, items), load(*make_evaluation("after", 0.6, 2))]
    (change,) = measure_changes(evaluations, ["sts"])
    reasons = {task.name: task.left_out for task in change.tasks}
    assert reasons.pop("scifact") == "0.0 before is too little for a ratio"
    assert {name for name, reason in reasons.items() if reason == "trained on"} == {"stsb-test", "sickr-test"}
    assert [task.name for task in change.elsewhere] == ["mrpc-test", "20newsgroups", "emotion"]
    assert len(change.mean_ratio.ratios) == 3
    scifact = next(task for task in change.tasks if task.name == "scifact")
    assert math.isnan(scifact.ratio) and scifact.gain > 0 and scifact.to_json()["ratio"] is None


def test_everything_trained_on_leaves_no_mean(before_after):
    (change,) = measure_changes(before_after, list(KINDS))
    assert change.mean_ratio is None and "no task is left" in describe_change(change)
    with pytest.raises(UnknownNameError, match=r"Unknown task 'stbs-test'\. Did you mean stsb-test"):
        measure_changes(before_after, ["stbs-test"])


def test_constant_hidden_and_incomparable_tasks_are_refused_with_the_reason(load):
    old, old_items = make_evaluation("before", 1.0, 1)
    new, new_items = make_evaluation("after", 0.6, 2)
    for items in (old_items, new_items):
        items["mrpc-test"]["gold"] = [-1] * len(items["mrpc-test"]["gold"])
    new["tasks"]["scifact"]["metric"] = "recall@10"
    del new["tasks"]["emotion"]
    new["tasks"]["20newsgroups"]["score"] = math.nan
    (change,) = measure_changes([load(old, old_items), load(new, new_items)])
    assert [task.name for task in change.tasks] == ["stsb-test", "sickr-test"]
    assert set(change.refused) == {
        "mrpc-test: every label is -1, so they are hidden or constant, and a score means nothing.",
        "scifact: scored by ndcg@10 before and by recall@10 after; evaluate both again.",
        "emotion: after has no score for it.",
        "20newsgroups: a score is not a number.",
    }


def test_constant_predictions_are_beside_the_scores(load):
    document, items = make_evaluation("before", 1.0, 1)
    document["tasks"]["emotion"]["constant_score"] = document["tasks"]["emotion"]["score"] + 1
    (change,) = measure_changes([load(document, items), load(*make_evaluation("after", 0.6, 2))])
    constant = {task.name: task.constant for task in change.tasks}
    assert constant["stsb-test"] == constant["20newsgroups"] == 0
    assert constant["mrpc-test"] == pytest.approx(100 * np.mean(items["mrpc-test"]["gold"]))
    assert math.isnan(constant["scifact"])
    emotion = next(row for row in change_table(change).rows if row[0].text == "emotion")
    assert emotion[0].small == "not above constant before"
    assert emotion[3].text == f"{document['tasks']['emotion']['score'] + 1:.1f}"


def test_without_items_there_are_ratios_but_no_interval_over_items(load):
    evaluations = [load(make_evaluation(name, quality)[0], None) for name, quality in (("a", 1.0), ("b", 0.6))]
    (change,) = measure_changes(evaluations)
    assert change.item_interval is None and all(task.interval is None for task in change.tasks)
    assert change.mean_ratio.low < change.mean_ratio.value < change.mean_ratio.high


def test_report_on_before_and_after_has_page_markdown_figure_and_json(tmp_path):
    for name, quality in (("before", 1.0), ("after", 0.6), ("other", 1.5)):
        write_evaluation(tmp_path / name, *make_evaluation(name, quality), "eval")
    folders = [tmp_path / name for name in ("before", "after", "other")]
    page = Page(api.report(folders, tmp_path / "out", trained_on=["retrieval"]))
    assert "What changed elsewhere?" in page.text and "after: mean ratio of change -" in page.text
    assert (tmp_path / "out" / "changes.png").is_file()
    assert "--trained-on retrieval" in page.source
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "## What changed elsewhere?" in markdown and "![Gain by task](changes.png)" in markdown
    document = json.loads((tmp_path / "out" / "changes.json").read_text(encoding="utf-8"))
    assert [(one["before"], one["after"]) for one in document["changes"]] == [("before", "after"), ("before", "other")]
    scores = {name: score_of(kind, make_evaluation("after", 0.6)[1][name]) for name, kind in KINDS.items()}
    tasks = document["changes"][0]["tasks"]
    assert {name: task["after"] for name, task in tasks.items()} == pytest.approx(scores, abs=0.01)
    assert tasks["scifact"]["left_out"] == "trained on"


def test_a_folder_of_evaluations_is_compared_as_before(tmp_path):
    for name in ("a", "b"):
        write_evaluation(tmp_path / "evals", *make_evaluation(name))
    page = Page(api.report(tmp_path / "evals", tmp_path / "out"))
    assert "What changed elsewhere?" not in page.text and not (tmp_path / "out" / "changes.json").exists()
    with pytest.raises(InputError, match="trained_on needs two paths or more"):
        api.report(tmp_path / "evals", tmp_path / "out", trained_on=["sts"])


def test_every_text_of_a_change_is_escaped(tmp_path):
    for name in ("before", "after"):
        document, items = make_evaluation(f"{name} {HOSTILE_TEXT}")
        document["tasks"][HOSTILE_TEXT] = dict(document["tasks"]["emotion"])
        write_evaluation(tmp_path / name, document, items, "eval")
    page = Page(api.report([tmp_path / "before", tmp_path / "after"], tmp_path / "out"))
    assert HOSTILE_TEXT not in page.source and HOSTILE_TEXT in page.text


@pytest.mark.usefixtures("one_thread")
def test_encoders_are_scored_first_where_data_are_given(tmp_path):
    data = write_toy_tasks(tmp_path / "data")
    messages = []
    options = {"data": data, "tasks": "sts,classification", "instruction": "Topic: ", "limit": 20, "device": "cpu"}
    page = Page(api.report(["tiny-llama", "random:8"], tmp_path / "out", notify=messages.append, **options))
    assert "What changed elsewhere?" in page.text and "With and without an instruction" in page.text
    document = json.loads((tmp_path / "out" / "changes.json").read_text(encoding="utf-8"))
    (change,) = document["changes"]
    assert (change["before"], change["after"], set(change["tasks"])) == ("tiny-llama", "random:8", {"mine", "topics"})
    assert change["tasks"]["topics"]["constant_score"] == pytest.approx(100 * 7 / 20)
    llama, random = document["formats"]
    assert llama["before"] == "tiny-llama" and llama["after"] == "tiny-llama with the instruction"
    assert llama["tasks"]["mine"]["gain"] != 0 and random["tasks"]["mine"]["gain"] == 0, "baselines ignore prompts"
    messages.clear()
    api.report(["tiny-llama", "random:8"], tmp_path / "out", notify=messages.append, **options)
    assert sum("2 of 2 tasks are finished" in message for message in messages) == 4


def test_options_for_scoring_need_data(tmp_path):
    file = write_evaluation(tmp_path, *make_evaluation("a"))
    with pytest.raises(InputError, match="tasks, limit: only with data"):
        api.report(file, tasks="sts", limit=3)
