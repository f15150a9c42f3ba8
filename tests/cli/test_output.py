"""What a command shows of its progress: one bar on a terminal, sparse lines elsewhere, the whole time at the end."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from decoder2vec.cli import output
from decoder2vec.cli.output import format_duration, show_progress, start_command
from decoder2vec.errors import InputError
from decoder2vec.progress import Progress
from toys.progress import Clock

COMMAND = """
import time
from decoder2vec.cli.output import info, show_progress
with show_progress() as progress:
    progress.expect("encoding", 4)
    progress.expect("saving")
    with progress.phase("encoding"):
        for number in range(4):
            time.sleep(0.15)
            progress.advance(1, f"text {number}")
        info("a message")
        print("a result")
    with progress.phase("saving"):
        time.sleep(0.15)
"""


def test_command_without_work_prints_only_its_time(capsys):
    with show_progress():
        pass
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(r"done in [\d.]+ (s|min \d+ s|h \d+ min)\n", err)


def test_error_is_all_that_is_printed(capsys):
    with pytest.raises(InputError), show_progress() as progress, progress.phase("reading"):
        raise InputError("wrong")
    assert capsys.readouterr() == ("", "")


def test_time_at_the_end_counts_from_the_start(capsys, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(output.time, "monotonic", clock)
    monkeypatch.setattr(output, "Progress", lambda show, started: Progress(show, started=started, clock=clock))
    clock.now = 1000  # what this process did before is not part of the command
    start_command()
    clock.now += 100  # imports
    with show_progress():
        clock.now += 92
    assert capsys.readouterr().err == "done in 3 min 12 s\n"


def shown_lines(capsys, n_texts, seconds):
    """The lines of a command that encodes texts, each in some seconds, without a terminal."""
    clock = Clock()
    with Progress(output._ProgressLines(), clock=clock) as progress:
        progress.expect("encoding", n_texts)
        progress.expect("saving")
        with progress.phase("loading the model"):
            clock.now += 10
        with progress.phase("encoding"):
            for number in range(n_texts):
                clock.now += seconds
                progress.advance(1, f"text {number + 1}")
        with progress.phase("saving"):
            clock.now += 1
    return capsys.readouterr().err


def test_without_a_terminal_lines_are_sparse(capsys):
    lines = shown_lines(capsys, 100, 1.0).splitlines()
    assert lines == [
        "encoding (0%)",
        "encoding text 20 (20%, 1 min 21 s left)",
        "encoding text 40 (40%, 1 min 1 s left)",
        "encoding text 60 (59%, 41 s left)",
        "encoding text 80 (79%, 21 s left)",
        "encoding text 100 (99%, 1 s left)",
    ]


def test_long_runs_get_fewer_lines(capsys):
    hour, day = (len(shown_lines(capsys, n, 60.0).splitlines()) for n in (60, 1440))
    assert hour < 60 and day < 3 * hour


def test_short_runs_get_no_lines(capsys):
    clock = Clock()
    with Progress(output._ProgressLines(), clock=clock) as progress:
        for name in ("reading", "loading the model", "encoding"):
            with progress.phase(name):
                clock.now += 1
    assert capsys.readouterr().err == ""


def test_interrupted_run_ends_with_where_it_stood(capsys):
    with pytest.raises(KeyboardInterrupt), show_progress() as progress:
        progress.expect("encoding", 100)
        with progress.phase("encoding"):
            progress.advance(37, "text 37")
            raise KeyboardInterrupt
    assert re.fullmatch(r"encoding text 37 \(37%.*\)\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.84, "0.8 s"), (3, "3 s"), (9.97, "10 s"), (59.7, "1 min 0 s"), (192, "3 min 12 s"), (7500, "2 h 5 min")],
)
def test_durations_are_for_people(seconds, text):
    assert format_duration(seconds) == text


def run_command(stderr, command=COMMAND, **environment):
    env = {**os.environ, "COLUMNS": "120", "TERM": "xterm", **environment}
    return subprocess.run(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=stderr, env=env, text=True, check=True
    )


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}])
def test_log_has_lines_without_carriage_returns(environment):
    result = run_command(subprocess.PIPE, **environment)
    assert result.stdout == "a result\n"
    assert re.fullmatch(r"a message\ndone in [\d.]+ s\n", result.stderr)


def run_on_terminal(**options):
    """The finished command, and everything that its terminal got."""
    leader, follower = pty.openpty()
    result = run_command(follower, **options)
    os.close(follower)
    chunks = []
    while chunk := read_terminal(leader):
        chunks.append(chunk)
    os.close(leader)
    return result, b"".join(chunks).decode()


def without_escapes(shown):
    return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown)


@pytest.mark.parametrize("width", [40, 80])
def test_bar_fits_one_line_of_a_narrow_terminal(width):
    note = "triplets, step 12/5000, loss 0.1234, dev 86.70, and whatever else"
    _, shown = run_on_terminal(command=COMMAND.replace("text {number}", note), COLUMNS=str(width))
    lines = without_escapes(shown.replace("\x1b[2K", "\n")).splitlines()  # a line is erased before it is drawn again
    drawn = [line for line in lines if line.startswith("encod")]
    assert drawn and max(map(len, drawn)) <= width
    assert "\x1b[1A\x1b[2K\x1b[1A" not in shown  # two lines up, to erase a bar of several lines
    if width == 80:
        assert any(re.search(r"^encoding triplets.*… .* \d+%, \d+ s left, after [\d.]+ s", line) for line in drawn)


def test_terminal_has_one_bar_and_stdout_stays_clean():
    result, shown = run_on_terminal()
    assert result.stdout == "a result\n"
    assert "encoding text 0" in shown and "saving" in shown and re.search(r"\d+%, \d+ s left, after", shown)
    assert re.search(r"[\r\n]a message", without_escapes(shown))  # above the bar, not in its line
    lines = without_escapes(shown).split()
    assert re.fullmatch(r"done in [\d.]+ s", " ".join(lines[-4:]))


def read_terminal(leader):
    """What a terminal shows next; empty where its program has ended."""
    try:
        return os.read(leader, 65536)
    except OSError:
        return b""
