"""The page and the markdown of a comparison: everything inside, every text escaped, what is missing said."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from decoder2vec.errors import StorageError
from decoder2vec.report import figures as drawing
from decoder2vec.report.comparison_page import write_comparison
from decoder2vec.report.result_files import gather
from decoder2vec.report.runs import runs_of_files
from toys.evaluations import KINDS, make_dimensions, make_evaluation, make_sweep, write_evaluation
from toys.html_page import EVIL, Page
from toys.runs import make_results

MEGABYTE = 1e6


class ComparisonPage(Page):
    """A page of which the words of its own script and style are not counted."""

    void = ("meta", "img", "br", "link")

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """written() -> the page of what lies in tmp_path/in; its figures are drawn, but as empty files unless wanted."""

    def write(figures=False):
        if not figures:
            monkeypatch.setattr(drawing, "_save", lambda _, file: file.write_bytes(b""))
            empty = '<svg viewBox="0 0 9 9"></svg>'
            monkeypatch.setattr(drawing, "_save_vector", lambda _, file: file.write_text(empty))
        place = tmp_path / "in"
        found = gather([place])
        return ComparisonPage(write_comparison(found, runs_of_files(found.training, [place]), tmp_path / "out"))

    return write


@pytest.fixture
def put(tmp_path):
    """put(name, document) or put(name, document, items) -> a file in tmp_path/in."""

    def write(name, document, items=None):
        write_evaluation(tmp_path / "in", document, items, name)

    return write


def several(put):
    for number, (name, quality) in enumerate((("small", 0.7), ("large", 1.4), ("other large", 1.4))):
        put(f"e{number}", *make_evaluation(name, quality, number, flags=["seen in training"] if number == 0 else ()))
    put("bm25", *make_evaluation("BM25", 1.0, 9, {"scifact": "retrieval"}))


def source_of(tmp_path):
    return (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


def test_the_page_holds_every_part_and_needs_nothing_beside_it(put, written, tmp_path):
    several(put)
    put("sweep", make_sweep())
    put("sweep2", make_sweep("tiny-gpt2", layers=2))
    put("id", make_dimensions())
    page = written(figures=True)
    for heading in (
        "Comparison of 4 encoders",
        "Leaderboard",
        "Is A really better than B?",
        "Quality against cost",
        "Task by task",
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
    source = source_of(tmp_path)
    assert len(source) < 3 * MEGABYTE
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\((?!#)", source)
    assert "default-src 'none'" in source


def test_scores_means_and_marks_stand_on_the_leaderboard(put, written, tmp_path):
    several(put)
    written()
    large, _ = make_evaluation("large", 1.4, 1)
    sts = [task["score"] for name, task in large["tasks"].items() if KINDS[name] == "sts"]
    rows = re.findall(r"<tr>(.*?)</tr>", source_of(tmp_path).split("<table", 2)[1], re.S)
    names = [re.search(r'scope="row"[^>]*>([^<]*)', row)[1] for row in rows[1:]]
    assert names[2:] == ["small †", "BM25"] and set(names[:2]) == {"large", "other large"}
    assert f">{sum(sts) / 2:.1f}<" in rows[1 + names.index("large")]
    assert 'class="best"' in rows[1] and 'class="near"' in rows[2]
    assert "1 of 6 tasks" in rows[4] and "–" in rows[4] and 'class="best"' not in rows[4]


def test_verdicts_are_said_in_words(put, written):
    several(put)
    text = written().text
    assert re.search(r"No difference between (other )?large and (other )?large that this data can show", text)
    assert re.search(r"large is better than small by \d+\.\d points \[\d", text)
    assert "(Over 1 of 6 tasks.)" in text
    assert "small, stsb-test: seen in training" in text


def test_what_is_said_of_every_encoder_is_about_the_data(put, written, tmp_path):
    for name, flags in (("a", ["only 60 pairs", "seen"]), ("b", ["only 60 pairs"])):
        put(name, *make_evaluation(name, flags=flags))
    text = written().text
    assert "Read with care † a, stsb-test: seen About the data stsb-test: only 60 pairs" in text
    assert "a †" in text and "b †" not in text


def test_every_text_is_escaped_on_the_page_and_in_markdown(put, written, tmp_path):
    document, items = make_evaluation("x", flags=[EVIL])
    document["encoder"] |= {"name": EVIL, "kind": EVIL}
    document["tasks"][EVIL] = {**document["tasks"]["emotion"], "kind": EVIL, "metric": EVIL}
    document |= {"command": EVIL, "versions": {EVIL: EVIL}}
    put("a", document, items)
    put("b", *make_evaluation("b"))
    put("s", make_sweep(EVIL, data=EVIL))
    put("i", make_dimensions(EVIL))
    page = written()
    assert page.tags.count("script") == 1 and page.text.count(EVIL) >= 10
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "<script" not in markdown and "&lt;script&gt;" in markdown


def test_a_name_with_a_pipe_does_not_break_a_table(put, written, tmp_path):
    put("a", *make_evaluation("a | b_c *d*"))
    written()
    lines = (tmp_path / "out" / "report.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("|")][:3]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert r"a \| b\_c \*d\*" in table[2]


def test_one_encoder_alone_is_not_compared(put, written, tmp_path):
    put("a", *make_evaluation("alone"))
    text = written().text
    assert "Evaluation of alone" in text
    assert "really better" not in text and "Quality against cost" not in text
    assert not (tmp_path / "out" / "cost.png").exists()


def test_equal_encoders_score_the_same(put, written):
    for name in ("one", "two"):
        put(name, *make_evaluation(name))
    assert "one and two score the same." in written().text


def test_scores_that_are_no_numbers_and_costs_that_are_not_known_read_well(put, written):
    for name in ("one", "two"):
        document, items = make_evaluation(name)
        document["tasks"]["scifact"] |= {"score": math.nan, "interval": [math.nan, math.nan]}
        document["cost"] = {"parameters": None, "tokens_per_second": 0}
        put(name, document, items)
    text = written().text
    assert "not a number" in text and "5 of 6 tasks" in text
    assert "Quality against cost: no evaluation here says what its encoder costs." in text
    assert " nan" not in text


def test_long_names_are_cut_in_tables_and_stand_whole_once(put, written):
    long = [f"/models/{'x' * 100}/{letter}" for letter in "ab"]
    for number, name in enumerate(long):
        put(f"e{number}", *make_evaluation(name, seed=number))
    text = written().text
    assert all(text.count(name) == 2 for name in long)  # whole names, and the command that was given it
    assert "xxx/a" in text and "xxx/b" in text and " … " in text


def test_more_encoders_than_a_table_can_take_are_told(put, written, tmp_path):
    for number in range(18):
        put(f"e{number}", *make_evaluation(f"encoder {number}", 1 + number / 20, number, {"emotion": "classification"}))
    text = written().text
    assert "The first 15 encoders; 3 more are on the leaderboard." in text
    assert len(source_of(tmp_path)) < MEGABYTE


def test_a_sweep_alone_is_a_page(put, written):
    put("s", make_sweep())
    text = written().text
    assert "Sweep of tiny-llama" in text and "Leaderboard" not in text
    assert "Star: the best, prompteol, causal, layer 4, mean, standardised, 61.0 on stsb-dev." in text


def test_a_sweep_of_one_layer_and_a_dimension_that_is_not_known_are_drawn(put, written):
    sweep = make_sweep(layers=0)
    sweep["rows"][0]["spearman"] = math.nan
    dimensions = make_dimensions(layers=0)
    dimensions["layers"][0] |= {"twonn": None, "twonn_95": None, "mle": None}
    put("s", sweep)
    put("i", {**dimensions, "area": None})
    assert written().tags.count("svg") == 3


def test_training_runs_beside_evaluations_have_a_part_of_their_own(put, written, tmp_path):
    several(put)
    for name in ("step0", "step1"):
        put(name, make_results(name))
    page = written()
    assert "Training" in page.text and "80.50 ± 0.71" in page.text
    assert (tmp_path / "out" / "ladder.png").is_file() and (tmp_path / "out" / "step0-training.png").is_file()


def test_many_training_runs_are_only_set_side_by_side(put, written, tmp_path):
    several(put)
    for number in range(4):
        put(f"r{number}", make_results(f"plan{number}"))
    assert "Each run by itself: d2v report on the encoder's folder." in written().text
    assert {file.name for file in (tmp_path / "out").glob("plan*")} == set()


def test_figures_are_whole_drawings_on_disk_and_parts_of_the_page(put, written, tmp_path):
    tasks = {"scifact": "retrieval"}
    put("a", *make_evaluation(EVIL, tasks=tasks))
    put("b", *make_evaluation("other large", 1.2, tasks=tasks))
    page = written(figures=True)
    assert page.tags.count("script") == 1
    svg = ElementTree.parse(tmp_path / "out" / "cost.svg").getroot()
    assert svg.tag.endswith("svg")
    words = "".join(svg.itertext())
    assert "other large" in words and "tokens per second: more is better" in words


def test_the_same_files_give_the_same_page(put, written, tmp_path):
    for name, quality in (("a", 1.0), ("b", 1.2)):
        put(name, *make_evaluation(name, quality, tasks={"scifact": "retrieval"}))
    written(figures=True)
    first = source_of(tmp_path)
    written(figures=True)
    assert source_of(tmp_path) == first


def test_a_place_that_cannot_be_written_is_told_before_anything_is_drawn(put, tmp_path, monkeypatch):
    several(put)
    (tmp_path / "taken").write_text("x", encoding="utf-8")
    monkeypatch.setattr("decoder2vec.report.comparison_page.fill_contents", lambda *_: pytest.fail("drawn"))
    with pytest.raises(StorageError, match=r"Cannot write to .*taken.*--out"):
        write_comparison(gather([tmp_path / "in"]), [], tmp_path / "taken")


def test_files_to_choose_on_are_named_as_left_out(put, written):
    document, items = make_evaluation("x")
    document["tasks"]["stsb-dev"], items["stsb-dev"] = document["tasks"]["stsb-test"], items["stsb-test"]
    put("x", json.loads(json.dumps(document)), items)
    text = written().text
    assert "6 tasks in 5 families" in text and "Files one chooses on say nothing about others: stsb-dev." in text
