"""The page: everything inside, every text escaped, what is missing said."""

from __future__ import annotations

import json
import re

import pytest

from decoder2vec.errors import StorageError
from decoder2vec.report.run_page import write_report
from decoder2vec.report.runs import find_runs
from toys.html_page import EVIL, Page
from toys.runs import make_record, make_results


def written(folder, tmp_path):
    return Page(write_report(find_runs(folder), tmp_path / "out"))


def test_the_page_of_one_run_holds_everything_it_needs(a_run, tmp_path):
    page = written(a_run("step5"), tmp_path)
    assert page.tags.count("img") == 8 and page.tags.count("table") == 5
    assert len(list((tmp_path / "out").glob("*.png"))) == 8
    assert "Report on step5" in page.text
    assert "80.50 ± 0.71" in page.text and "71.50 ± 0.71" in page.text
    assert "equal texts" in page.text and "what one hopes for" in page.text
    assert "2 of 199 pairs of test also stand in the training data" in page.text
    assert "mean distance from people 0.60 0.40" in page.text  # |.9-.5|, |.1-.9|; |.9-.2|, |.1-.2|
    assert "-0.70" in page.text  # the worst pair
    assert "Not shown" not in page.text

    # and it needs nothing beside it
    assert page.addresses and all(address.startswith("data:image/png;base64,") for address in page.addresses)
    source = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(|@import|<script|<link", source)
    assert 'name="viewport"' in source and "color-scheme: light" in source


def test_every_text_is_escaped(write_run, tmp_path):
    record, results = make_record(EVIL), make_results(EVIL)
    record["errors"]["worst"][0]["left"] = record["examples"][0]["left"] = EVIL
    record["errors"]["data"] = record["layers"]["data"] = EVIL
    results["command"] = results["backbone"]["name"] = results["notes"][0] = EVIL
    results["seeds"][0]["dev"][EVIL] = {"spearman": 1.0, "pearson": 2.0}
    results["seeds"][0]["checks"][EVIL] = 0.5
    page = written(write_run("it", record, results), tmp_path)
    assert "script" not in page.tags
    assert page.text.count(EVIL) >= 8


def test_a_run_without_a_record_says_what_is_missing(tmp_path):
    (tmp_path / "step2.json").write_text(json.dumps(make_results("step2", pretrain=False)), encoding="utf-8")
    page = written(tmp_path, tmp_path)
    assert page.tags.count("img") == 2  # ladder and training
    for title in ("Correlation of each layer", "Errors", "What each layer is worth"):
        assert f"{title}: it is kept in the encoder's run.json, which is not here." in page.text
    assert "Loss of the autoencoders: this run did not pre-train autoencoders." in page.text
    assert "Trained parameters: they are counted in run.json, which no run here has." in page.text


def test_many_runs_are_folded(tmp_path):
    (tmp_path / "runs").mkdir()
    for name in ("step0", "step1", "step2", "other"):
        results = make_results(name, pretrain=False)
        for seed in results["seeds"]:
            del seed["notes"]
        (tmp_path / "runs" / f"{name}.json").write_text(json.dumps(results), encoding="utf-8")
    heard = []
    page = Page(write_report(find_runs(tmp_path / "runs"), tmp_path / "out", on_progress=heard.append))
    assert page.tags.count("details") == 4 and "Report on 4 runs" in page.text
    assert heard == ["step0", "step1", "step2", "other"]


def test_a_place_that_cannot_be_written_is_told_before_anything_is_drawn(a_run, tmp_path, monkeypatch):
    runs = find_runs(a_run("step5"))
    (tmp_path / "taken").write_text("x", encoding="utf-8")
    monkeypatch.setattr("decoder2vec.report.run_page.draw_overview", lambda *_: pytest.fail("drawn"))
    for place in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(StorageError, match=r"Cannot write to .*taken.*--out"):
            write_report(runs, place)
