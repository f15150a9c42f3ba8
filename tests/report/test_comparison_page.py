"""The comparison as page and Markdown: self-contained, every text escaped, missing data reported."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from decoder2vec.errors import StorageError
from decoder2vec.progress import Progress
from decoder2vec.report import figures as figure_module
from decoder2vec.report.comparison_page import write_comparison
from decoder2vec.report.result_files import find_results
from decoder2vec.report.runs import runs_of_results
from toys.evaluations import KINDS, make_dimensions, make_evaluation, make_sweep, write_evaluation
from toys.html_page import HOSTILE_TEXT, Page
from toys.progress import Recorder
from toys.runs import make_results

MEGABYTE = 1e6


@pytest.fixture
def write_page(tmp_path, monkeypatch):
    """write_page() -> the page of the files in tmp_path/in; figures are drawn, but saved empty unless requested."""

    def write(figures=False):
        if not figures:
            monkeypatch.setattr(figure_module, "save_png", lambda _, file: file.write_bytes(b""))
            empty = '<svg viewBox="0 0 9 9"></svg>'
            monkeypatch.setattr(figure_module, "save_svg", lambda _, file: file.write_text(empty))
        inputs = find_results([tmp_path / "in"])
        runs = runs_of_results(inputs.training_results, [tmp_path / "in"])
        return Page(write_comparison(inputs, runs, tmp_path / "out"))

    return write


@pytest.fixture
def add(tmp_path):
    """add(name, document) or add(name, document, items) writes a file into tmp_path/in."""

    def write(name, document, items=None):
        write_evaluation(tmp_path / "in", document, items, name)

    return write


def add_four_encoders(add):
    for number, (name, quality) in enumerate((("small", 0.7), ("large", 1.4), ("other large", 1.4))):
        add(f"e{number}", *make_evaluation(name, quality, number, flags=["seen in training"] if number == 0 else ()))
    add("bm25", *make_evaluation("BM25", 1.0, 9, {"scifact": "retrieval"}))


def test_page_has_every_section_and_is_self_contained(add, write_page, tmp_path):
    add_four_encoders(add)
    add("sweep", make_sweep())
    add("sweep2", make_sweep("tiny-gpt2", layers=2))
    add("id", make_dimensions())
    page = write_page(figures=True)
    for heading in (
        "Comparison of 4 encoders",
        "Leaderboard",
        "Is A really better than B?",
        "Quality against cost",
        "Scores by task",
        "Layers",
        "Intrinsic dimension",
        "Notes",
    ):
        assert heading in page.text
    assert page.tags.count("svg") == 2 + 1 + 2 * 2 + 1
    assert {file.stem for file in (tmp_path / "out").glob("*.png")} == {
        *("tasks", "cost", "sweeps", "dimension"),
        *(f"{kind}-{model}" for kind in ("layers", "sweep") for model in ("tiny-llama", "tiny-gpt2")),
    }
    assert len(page.source) < 3 * MEGABYTE
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\((?!#)", page.source)
    assert page.policy.startswith("default-src 'none';")


def test_leaderboard_shows_scores_means_and_marks(add, write_page):
    add_four_encoders(add)
    source = write_page().source
    large, _ = make_evaluation("large", 1.4, 1)
    sts = [task["score"] for name, task in large["tasks"].items() if KINDS[name] == "sts"]
    rows = re.findall(r"<tr>(.*?)</tr>", source.split("<table", 2)[1], re.S)
    names = [re.search(r'scope="row"[^>]*>([^<]*)', row)[1] for row in rows[1:]]
    assert names[2:] == ["small †", "BM25"] and set(names[:2]) == {"large", "other large"}
    assert f">{sum(sts) / 2:.1f}<" in rows[1 + names.index("large")]
    assert 'class="best"' in rows[1] and 'class="tied"' in rows[2]
    assert "1 of 6 tasks" in rows[4] and "–" in rows[4] and 'class="best"' not in rows[4]


def test_differences_are_described_in_sentences(add, write_page):
    add_four_encoders(add)
    text = write_page().text
    assert re.search(r"No significant difference between (other )?large and (other )?large: ", text)
    assert re.search(r"large is better than small by \d+\.\d points \[\d", text)
    assert "(Over 1 of 6 tasks.)" in text
    assert "small, stsb-test: seen in training" in text


def test_warnings_of_all_encoders_are_about_the_data(add, write_page):
    for name, flags in (("a", ["only 60 pairs", "seen"]), ("b", ["only 60 pairs"])):
        add(name, *make_evaluation(name, flags=flags))
    text = write_page().text
    assert "Read with care † a, stsb-test: seen About the data stsb-test: only 60 pairs" in text
    assert "a †" in text and "b †" not in text


def test_every_text_is_escaped(add, write_page, tmp_path):
    document, items = make_evaluation("x", flags=[HOSTILE_TEXT])
    document["encoder"] |= {"name": HOSTILE_TEXT, "kind": HOSTILE_TEXT}
    document["tasks"][HOSTILE_TEXT] = {**document["tasks"]["emotion"], "kind": HOSTILE_TEXT, "metric": HOSTILE_TEXT}
    document |= {"command": HOSTILE_TEXT, "versions": {HOSTILE_TEXT: HOSTILE_TEXT}}
    add("a", document, items)
    add("b", *make_evaluation("b"))
    add("s", make_sweep(HOSTILE_TEXT, data=HOSTILE_TEXT))
    add("i", make_dimensions(HOSTILE_TEXT))
    page = write_page()
    assert page.tags.count("script") == 1 and page.text.count(HOSTILE_TEXT) >= 10
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "<script" not in markdown and "&lt;script&gt;" in markdown


def test_pipe_in_a_name_keeps_the_markdown_table_whole(add, write_page, tmp_path):
    add("a", *make_evaluation("a | b_c *d*"))
    write_page()
    lines = (tmp_path / "out" / "report.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")][:3]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert r"a \| b\_c \*d\*" in table[2]


def test_single_encoder_is_not_compared(add, write_page, tmp_path):
    add("a", *make_evaluation("alone"))
    text = write_page().text
    assert "Evaluation of alone" in text
    assert "really better" not in text and "Quality against cost" not in text
    assert not (tmp_path / "out" / "cost.png").exists()


def test_equal_encoders_score_the_same(add, write_page):
    for name in ("one", "two"):
        add(name, *make_evaluation(name))
    assert "one and two score the same." in write_page().text


def test_nan_scores_and_unknown_costs_are_reported(add, write_page):
    for name in ("one", "two"):
        document, items = make_evaluation(name)
        document["tasks"]["scifact"] |= {"score": math.nan, "interval": [math.nan, math.nan]}
        document["cost"] = {"parameters": None, "tokens_per_second": 0}
        add(name, document, items)
    text = write_page().text
    assert "not a number" in text and "5 of 6 tasks" in text
    assert "Quality against cost: no evaluation states the cost of its encoder." in text
    assert " nan" not in text


def test_long_names_are_cut_and_listed_in_full_once(add, write_page):
    long_names = [f"/models/{'x' * 100}/{letter}" for letter in "ab"]
    for number, name in enumerate(long_names):
        add(f"e{number}", *make_evaluation(name, seed=number))
    text = write_page().text
    assert all(text.count(name) == 2 for name in long_names)  # in the full names, and in the command
    assert "xxx/a" in text and "xxx/b" in text and " … " in text


def test_at_most_15_encoders_are_compared_pairwise(add, write_page):
    for number in range(18):
        add(f"e{number}", *make_evaluation(f"encoder {number}", 1 + number / 20, number, {"emotion": "classification"}))
    page = write_page()
    assert "The first 15 encoders; 3 more are on the leaderboard." in page.text
    assert len(page.source) < MEGABYTE


def test_sweep_alone_is_a_page(add, write_page):
    add("s", make_sweep())
    text = write_page().text
    assert "Sweep of tiny-llama" in text and "Leaderboard" not in text
    assert "Star: the best, prompteol, causal, layer 4, mean, standardised, 61.0 on stsb-dev." in text


def test_sweep_of_one_layer_and_unknown_dimension_are_drawn(add, write_page):
    sweep = make_sweep(layers=0)
    sweep["rows"][0]["spearman"] = math.nan
    dimensions = make_dimensions(layers=0)
    dimensions["layers"][0] |= {"twonn": None, "twonn_95": None, "mle": None}
    add("s", sweep)
    add("i", {**dimensions, "area": None})
    assert write_page().tags.count("svg") == 3


def test_training_runs_get_a_section(add, write_page, tmp_path):
    add_four_encoders(add)
    for name in ("step0", "step1"):
        add(name, make_results(name))
    page = write_page()
    assert "Training" in page.text and "80.50 ± 0.71" in page.text
    assert (tmp_path / "out" / "ladder.png").is_file() and (tmp_path / "out" / "step0-training.png").is_file()


def test_many_training_runs_get_only_an_overview(add, write_page, tmp_path):
    add_four_encoders(add)
    for number in range(4):
        add(f"r{number}", make_results(f"plan{number}"))
    assert "For the figures of a run call d2v report on the encoder's folder." in write_page().text
    assert {file.name for file in (tmp_path / "out").glob("plan*")} == set()


def test_figures_are_valid_svg_on_disk_and_in_the_page(add, write_page, tmp_path):
    tasks = {"scifact": "retrieval"}
    add("a", *make_evaluation(HOSTILE_TEXT, tasks=tasks))
    add("b", *make_evaluation("other large", 1.2, tasks=tasks))
    page = write_page(figures=True)
    assert page.tags.count("script") == 1
    svg = ElementTree.parse(tmp_path / "out" / "cost.svg").getroot()
    assert svg.tag.endswith("svg")
    words = "".join(svg.itertext())
    assert "other large" in words and "tokens per second: more is better" in words


def test_same_files_give_the_same_page(add, write_page):
    for name, quality in (("a", 1.0), ("b", 1.2)):
        add(name, *make_evaluation(name, quality, tasks={"scifact": "retrieval"}))
    first = write_page(figures=True).source
    assert write_page(figures=True).source == first


def test_unwritable_folder_fails_before_anything_is_drawn(add, tmp_path, monkeypatch):
    add_four_encoders(add)
    (tmp_path / "taken").write_text("x", encoding="utf-8")
    monkeypatch.setattr("decoder2vec.report.comparison_page.build_comparison", lambda *_: pytest.fail("drawn"))
    with pytest.raises(StorageError, match=r"Cannot write to .*taken.*--out"):
        write_comparison(find_results([tmp_path / "in"]), [], tmp_path / "taken")


def test_tuning_sets_are_listed_as_left_out(add, write_page):
    document, items = make_evaluation("x")
    document["tasks"]["stsb-dev"], items["stsb-dev"] = document["tasks"]["stsb-test"], items["stsb-test"]
    add("x", json.loads(json.dumps(document)), items)
    text = write_page().text
    assert "6 tasks in 5 families" in text and "Tuning sets are not part of the means: stsb-dev." in text


def test_progress_counts_every_part_of_a_known_total(add, tmp_path):
    add("a", *make_evaluation("a", tasks={"scifact": "retrieval"}))
    add("s", make_sweep(layers=1))
    add("i", make_dimensions(layers=1))
    recorder = Recorder()
    with Progress(recorder):
        write_comparison(find_results([tmp_path / "in"]), [], tmp_path / "out")
    assert recorder.labels == ["comparing", "drawing"]
    assert recorder.notes == ["scifact", "scores", "tiny-llama", "intrinsic dimension"]
    assert set(recorder.totals) == {4}
