"""`d2v match` as people use it, and what it says when it cannot."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from decoder2vec.cli import main
from decoder2vec.errors import Decoder2VecError
from toys.command import d2v

SECRET = "Zweitausendschoen"


@pytest.fixture
def sides(tmp_path):
    """A file of jobs and a folder of resumes, one of which cannot be read."""
    jobs = [{"id": f"job {n}", "title": "Baker", "text": f"Bake {what} at night."} for n, what in enumerate("abc")]
    (tmp_path / "jobs.jsonl").write_text("\n".join(map(json.dumps, jobs)), "utf-8")
    folder = tmp_path / "resumes"
    folder.mkdir()
    (folder / "ann.txt").write_text(f"Skills\n{SECRET} and bread.\nEducation\nOven school.", "utf-8")
    (folder / "bob.md").write_text(f"I bake a at night, said {SECRET}.", "utf-8")
    (folder / "cut.txt").write_bytes(f"{SECRET} \xff".encode("latin1"))
    return "--left", tmp_path / "jobs.jsonl", "--right", folder


def test_a_report_is_written_and_no_text_is_printed_or_logged(sides, tmp_path, caplog):
    with caplog.at_level(logging.DEBUG):
        result = d2v("match", *sides, "--out", tmp_path / "report.html", "--encoder", "tiny-llama", "--device", "cpu")
    assert result.exit_code == 0
    said = result.output + result.stderr + caplog.text
    assert "job 0" in said and ("bob.md" in said or "ann.txt" in said) and "left out: cut.txt" in said
    assert SECRET not in said
    assert SECRET in (tmp_path / "report.html").read_text("utf-8")


def test_the_report_as_data_holds_both_directions(sides, tmp_path):
    options = ("--encoder", "tiny-llama", "--device", "cpu", "--top", 1, "--weight", 0, "--aggregate", "sections")
    assert d2v("match", *sides, "--out", tmp_path / "report.json", *options).exit_code == 0
    data = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert [len(rows) for rows in data["for_left"]] == [1, 1, 1]
    assert [rows[0]["right"] for rows in data["for_right"]] == ["ann.txt", "bob.md"]
    assert data["for_left"][0][0]["right"] == "bob.md"  # by words alone: "night" and "bake" stand in it


def test_a_wrong_kind_of_report_or_choice_is_refused_before_anything_is_read(tmp_path):
    missing = ("--left", tmp_path / "no.jsonl", "--right", tmp_path / "no")
    with pytest.raises(Decoder2VecError, match=r"\.html"):
        d2v("match", *missing, "--out", tmp_path / "report.doc")
    with pytest.raises(Decoder2VecError, match="from 0 to 1"):
        d2v("match", *missing, "--out", tmp_path / "report.html", "--weight", 2)
    with pytest.raises(Decoder2VecError, match="does not exist"):
        d2v("match", *missing, "--out", tmp_path / "report.html")


def test_an_error_is_one_line_without_a_word_of_a_resume(tmp_path, monkeypatch, capsys):
    (tmp_path / "twins.jsonl").write_text(f'{{"id": 1, "text": "{SECRET}"}}\n' * 2, "utf-8")
    sides = ("--left", str(tmp_path / "twins.jsonl"), "--right", str(tmp_path / "twins.jsonl"))
    monkeypatch.setattr(sys, "argv", ["d2v", "match", *sides, "--out", "report.html"])
    with pytest.raises(SystemExit) as left:
        main()
    said = str(left.value)
    assert said.startswith("error: ") and "id of its own" in said and "\n" not in said
    assert SECRET not in said + "".join(capsys.readouterr())
