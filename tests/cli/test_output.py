"""Progress bars: none before there is something to count, and no remaining time if the total is unknown."""

from __future__ import annotations

import pytest

from decoder2vec.cli.output import TrainingBars, bars, labelled_bars
from decoder2vec.errors import InputError


@pytest.mark.parametrize("show", [bars, labelled_bars])
def test_nothing_is_printed_without_a_count(show, capsys):
    with show():
        pass
    assert capsys.readouterr() == ("", "")


def test_error_before_the_first_count_prints_no_bar(capsys):
    with pytest.raises(InputError), bars() as progress:
        TrainingBars(progress)
        raise InputError("wrong")
    assert capsys.readouterr() == ("", "")


def test_bar_without_total_shows_no_time_left(capsys):
    with labelled_bars() as advance:
        advance("texts", 2, None)
        advance("texts", 3, None)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("texts ") and "5/?" in err and "left" not in err


def test_bar_with_total_shows_the_time_left(capsys):
    with labelled_bars() as advance:
        advance("layers", 1, 4)
        advance("runs", 2, 2)
    out, err = capsys.readouterr()
    layers, runs = err.splitlines()[:2]
    assert out == "" and "1/4" in layers and "2/2" in runs
    assert "left -:--:--" in layers and "left 0:00:00" in runs


def test_bar_of_texts_appears_with_the_first_texts(capsys):
    with bars() as progress:
        shown = TrainingBars(progress)
        assert not progress.tasks
        shown.texts_read(3)
        shown.texts_read(4)
    _, err = capsys.readouterr()
    assert "reading texts" in err and "7/?" in err and "left" not in err
