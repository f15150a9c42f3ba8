"""`d2v match`."""

from __future__ import annotations

import json
import logging
import re
import sys

import pytest

from decoder2vec.cli import main
from decoder2vec.errors import Decoder2VecError
from toys.command import d2v

SECRET = "Zweitausendschoen"


@pytest.fixture
def sides(tmp_path):
    """Options for a file of jobs and a folder of resumes, one of which cannot be read."""
    jobs = [{"id": f"job {n}", "title": "Baker", "text": f"Bake {what} at night."} for n, what in enumerate("abc")]
    (tmp_path / "jobs.jsonl").write_text("\n".join(map(json.dumps, jobs)), "utf-8")
    folder = tmp_path / "resumes"
    folder.mkdir()
    (folder / "ann.txt").write_text(f"Skills\n{SECRET} and bread.\nEducation\nOven school.", "utf-8")
    (folder / "bob.md").write_text(f"I bake a at night, said {SECRET}.", "utf-8")
    (folder / "cut.txt").write_bytes(f"{SECRET} \x81".encode("latin1"))
    return "--left", tmp_path / "jobs.jsonl", "--right", folder


def test_report_is_written_and_no_text_printed_or_logged(sides, tmp_path, caplog):
    with caplog.at_level(logging.DEBUG):
        result = d2v("match", *sides, "--out", tmp_path / "report.html", "--encoder", "tiny-llama", "--device", "cpu")
    assert result.exit_code == 0
    output = result.output + result.stderr + caplog.text
    assert "job 0" in output and ("bob.md" in output or "ann.txt" in output) and "left out: cut.txt" in output
    assert SECRET not in output
    assert SECRET in (tmp_path / "report.html").read_text("utf-8")


OPTIONS = ("--encoder", "tiny-llama", "--device", "cpu", "--weight", 0)


def test_without_out_the_best_matches_are_printed(sides):
    result = d2v("match", *sides, *OPTIONS)
    rows = [line.split() for line in result.stdout.splitlines() if re.search(r"\d\.\d\d", line)]
    assert len(rows) == 3 * 2  # three jobs, two resumes that can be read
    assert rows[0] == ["Baker", "bob", rows[0][-1]] and rows[1][0] == "ann"  # the name of a job once
    assert float(rows[0][-1]) >= float(rows[1][-1])
    assert "left out: cut.txt" in result.stderr and "unrelated texts" in result.stderr


def test_json_is_printed_alone_and_equals_the_report(sides, tmp_path):
    printed = d2v("match", *sides, *OPTIONS, "--json").stdout
    both = d2v("match", *sides, *OPTIONS, "--json", "--out", tmp_path / "report.json").stdout
    assert json.loads(printed) == json.loads(both) == json.loads((tmp_path / "report.json").read_text("utf-8"))


def test_json_report_holds_both_directions(sides, tmp_path):
    options = ("--encoder", "tiny-llama", "--device", "cpu", "--top", 1, "--weight", 0, "--aggregate", "sections")
    assert d2v("match", *sides, "--out", tmp_path / "report.json", *options).exit_code == 0
    data = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [len(ranking) for ranking in data["for_left"]] == [1, 1, 1]
    assert [ranking[0]["right"] for ranking in data["for_right"]] == ["ann.txt", "bob.md"]
    assert data["for_left"][0][0]["right"] == "bob.md"  # by BM25 alone: it shares "night" and "bake"


def test_invalid_options_are_refused_before_files_are_read(tmp_path):
    missing = ("--left", tmp_path / "no.jsonl", "--right", tmp_path / "no")
    with pytest.raises(Decoder2VecError, match=r"\.html"):
        d2v("match", *missing, "--out", tmp_path / "report.doc")
    with pytest.raises(Decoder2VecError, match="from 0 to 1"):
        d2v("match", *missing, "--out", tmp_path / "report.html", "--weight", 2)
    with pytest.raises(Decoder2VecError, match="does not exist"):
        d2v("match", *missing, "--out", tmp_path / "report.html")


def test_error_is_one_line_without_text_of_a_resume(tmp_path, monkeypatch, capsys):
    (tmp_path / "twins.jsonl").write_text(f'{{"id": 1, "text": "{SECRET}"}}\n' * 2, "utf-8")
    sides = ("--left", str(tmp_path / "twins.jsonl"), "--right", str(tmp_path / "twins.jsonl"))
    monkeypatch.setattr(sys, "argv", ["d2v", "match", *sides, "--out", "report.html"])
    with pytest.raises(SystemExit) as caught:
        main()
    message = str(caught.value)
    assert message.startswith("error: ") and "id of its own" in message and "\n" not in message
    assert SECRET not in message + "".join(capsys.readouterr())
