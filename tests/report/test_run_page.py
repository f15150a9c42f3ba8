"""The page of training runs: self-contained, every text escaped, missing data reported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from decoder2vec.errors import StorageError
from decoder2vec.progress import Progress
from decoder2vec.report.run_page import write_run_page
from decoder2vec.report.runs import find_runs
from toys.html_page import HOSTILE_TEXT, Page
from toys.progress import Recorder
from toys.runs import make_record, make_results, write_run

RUNS = (
    ("step5", "freeze", "86.6 on dev, +4.1 over untrained; better on 2 of 3 files"),
    ("runs/a", "lora", "80.0 on dev, +1.0 over untrained"),
    ("runs/b", "full", "81.0 on dev, 2.0 below untrained"),
    ("runs/c", "freeze", "82.0 on dev, +3.0 over untrained"),
)
"""Path, recipe and headline."""


def write_page(folder, tmp_path):
    return Page(write_run_page(find_runs(folder), tmp_path / "out"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of one run and of three runs, each of another recipe: drawing their figures takes seconds."""
    folder = tmp_path_factory.mktemp("pages")
    for path, recipe, headline in RUNS:
        results = {**make_results(Path(path).name), "headline": headline}
        results["config"] |= {"recipe": recipe, recipe: results["config"].pop("freeze")}
        write_run(folder / path, make_record(Path(path).name), results)
    return {name: Page(write_run_page(find_runs(folder / name), folder / f"{name}-page")) for name in ("step5", "runs")}


def test_page_of_one_run_is_complete_and_self_contained(pages):
    page = pages["step5"]
    assert page.tags.count("svg") == 7 and page.tags.count("table") == 5
    assert len(list(page.file.parent.glob("*.png"))) == 7
    assert "Training run step5" in page.text
    assert "80.50 ± 0.71" in page.text and "71.50 ± 0.71" in page.text
    assert "equal texts" in page.text and "expected 1 close to 1 close to 0" in page.text
    assert "2 of 199 pairs of test also stand in the training data" in page.text
    assert "mean absolute error 0.60 0.40" in page.text  # |.9-.5|, |.1-.9|; |.9-.2|, |.1-.2|
    assert "-0.70" in page.text  # the worst pair
    assert "raw cosine best at layer 4 (Pearson 60.5), trained codes best at layer 4 (Pearson 65.5)" in page.text
    assert "Not shown" not in page.text
    assert "1,206,000 trained parameters, 0.9 % of the encoder's" in page.text

    assert page.addresses and all(address.startswith(("#", "data:")) for address in page.addresses)
    assert not re.search(r"https?://(?!www\.w3\.org/)|url\((?!#)|@import", page.source)
    assert page.policy.startswith("default-src 'none';") and "script" not in page.tags  # one run: nothing to sort
    assert 'name="viewport"' in page.source and "color-scheme: light dark" in page.source


def test_ids_are_unique_and_links_lead_to_them(pages):
    page = pages["runs"]
    assert len(page.ids) == len(set(page.ids))
    targets = [address[1:] for address in page.addresses if address.startswith("#")]
    assert {"overview", "run-0", "run-1", "run-2"} <= set(targets) <= set(page.ids)


def test_every_text_is_escaped(tmp_path):
    record, results = make_record(HOSTILE_TEXT), make_results(HOSTILE_TEXT)
    record["errors"]["worst"][0]["left"] = record["examples"][0]["left"] = HOSTILE_TEXT
    record["errors"]["data"] = record["layers"]["data"] = HOSTILE_TEXT
    results["command"] = results["backbone"]["name"] = results["notes"][0] = HOSTILE_TEXT
    results["seeds"][0]["dev"][HOSTILE_TEXT] = {"spearman": 1.0, "pearson": 2.0}
    results["seeds"][0]["checks"][HOSTILE_TEXT] = 0.5
    page = write_page(write_run(tmp_path / "it", record, results), tmp_path)
    assert "script" not in page.tags
    assert page.text.count(HOSTILE_TEXT) >= 8


def test_run_without_a_record_lists_missing_figures(tmp_path):
    (tmp_path / "step2.json").write_text(json.dumps(make_results("step2", pretrain=False)), encoding="utf-8")
    page = write_page(tmp_path, tmp_path)
    assert page.tags.count("svg") == 2  # scores and training
    for title in ("Correlation of each layer", "Error distribution", "Importance of each layer"):
        assert f"{title}: it needs the encoder's run.json, which is missing." in page.text
    assert "Reconstruction error of the autoencoders: this run did not pre-train autoencoders." in page.text
    assert "run.json, which none of these runs has" not in page.text, "a single run has no figure of parameters"


def test_page_begins_with_what_training_came_to(pages):
    assert f"{RUNS[0][2]}. 1 encoder trained on tiny-llama by" in pages["step5"].text
    assert "a 80.0 on dev, +1.0 over untrained b 81.0 on dev, 2.0 below untrained" in pages["runs"].text


@pytest.mark.parametrize("recipe", ["lora", "full", "freeze"])
def test_no_model_is_called_frozen(recipe, pages):
    page = pages["runs"]
    assert "frozen" not in page.source and f"recipe {recipe}" in page.text


def test_many_runs_are_folded_and_sortable(tmp_path):
    (tmp_path / "runs").mkdir()
    for name in ("step0", "step1", "step2", "other"):
        results = make_results(name, pretrain=False)
        for seed in results["seeds"]:
            del seed["notes"]
        (tmp_path / "runs" / f"{name}.json").write_text(json.dumps(results), encoding="utf-8")
    recorder = Recorder()
    with Progress(recorder):
        page = Page(write_run_page(find_runs(tmp_path / "runs"), tmp_path / "out"))
    assert page.tags.count("details") == 4 and "4 training runs" in page.text
    assert page.tags.count("script") == 1
    assert recorder.notes == ["step0", "step1", "step2", "other"] and set(recorder.totals) == {4}


def test_unwritable_folder_fails_before_anything_is_drawn(complete_run, tmp_path, monkeypatch):
    runs = find_runs(complete_run("step5"))
    (tmp_path / "taken").write_text("x", encoding="utf-8")
    monkeypatch.setattr("decoder2vec.report.run_page.draw_overview", lambda *_: pytest.fail("drawn"))
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(StorageError, match=r"Cannot write to .*taken.*--out"):
            write_run_page(runs, folder)
