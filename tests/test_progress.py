"""Progress of long work, by a clock that only the test moves."""

from __future__ import annotations

import pytest

from decoder2vec.encoder import Encoder
from decoder2vec.progress import Progress, current_progress, in_phase
from toys.docstrings import run_examples
from toys.progress import Clock, Recorder


@pytest.fixture
def clock():
    """Starts at 0."""
    return Clock()


@pytest.fixture
def progress(clock):
    """A progress with three announced phases: 10 texts, 30 texts, and saving."""
    with Progress(clock=clock) as progress:
        progress.expect("encoding", 10)
        progress.expect("training", 30)
        progress.expect("saving")
        yield progress


def work(clock, n_texts, seconds=1.0):
    """Do work of the current phase, text by text."""
    for _ in range(n_texts):
        clock.now += seconds
        current_progress().advance(1)


def test_fraction_is_that_of_all_phases(progress, clock):
    assert progress.fraction == 0
    with progress.phase("encoding"):
        work(clock, 5)
        assert progress.fraction == pytest.approx(5 / 40.4)  # saving counts 1 % of the other work
        work(clock, 5)
    with progress.phase("training"):
        work(clock, 20)
        assert progress.fraction == pytest.approx(30 / 40.4)


def test_fraction_is_1_only_after_the_end(clock):
    recorder = Recorder()
    with Progress(recorder, clock=clock) as progress:
        progress.expect("encoding", 4)
        with progress.phase("encoding"):
            work(clock, 9)  # more than was expected
        assert recorder.fractions[-1] < 1
    assert progress.fraction == 1 and progress.seconds_left == 0
    assert recorder.fractions == sorted(recorder.fractions)


def test_fraction_never_falls_when_work_is_found(progress, clock):
    with progress.phase("encoding"):
        work(clock, 10)
    before = progress.fraction
    with progress.phase("training", 3000):
        assert progress.fraction == before
        work(clock, 2900)
    assert progress.fraction > before


def test_time_left_follows_the_speed_of_each_kind(clock):
    with Progress(clock=clock) as progress:
        progress.expect("training", 20)
        progress.expect("evaluating", 10)
        progress.expect("final checks", 40, kind="evaluating")
        with progress.phase("training"):
            assert progress.seconds_left is None  # nothing is measured
            work(clock, 5, seconds=2)
            assert progress.seconds_left == pytest.approx(2 * (15 + 10 + 40))
            with progress.phase("evaluating"):
                work(clock, 5, seconds=7)
            assert progress.seconds_left == pytest.approx(2 * 15 + 7 * (5 + 40))


def test_time_left_runs_down_between_reports(progress, clock):
    with progress.phase("encoding"):
        work(clock, 8)
        left = progress.seconds_left
        assert left == pytest.approx(2 + 30 + 0.4)
        clock.now += 20
        assert progress.seconds_left == pytest.approx(left - 20)
        clock.now += 20
        assert progress.seconds_left is None  # late, and nobody knows by how much


def test_work_done_before_takes_no_time(progress, clock):
    with progress.phase("encoding"):
        progress.remaining_work -= 6
        work(clock, 2)
        assert progress.remaining_work == 2
        assert progress.seconds_left == pytest.approx(2 + 30 + 0.34)


def test_early_stopping_drops_what_is_left(progress, clock):
    with progress.phase("encoding"):
        work(clock, 10)
    with progress.phase("training"):
        work(clock, 2)
    assert progress.seconds_left == pytest.approx(0.12)  # saving


def test_inner_phase_goes_on_until_the_outer_ends(clock):
    with Progress(clock=clock) as progress:
        progress.expect("training", 4)
        progress.expect("evaluating", 6)
        with progress.phase("training"):
            for _ in range(2):
                with progress.phase("evaluating"):
                    assert progress.label == "evaluating"
                    work(clock, 2)
                assert progress.label == "training"
                work(clock, 1)
            assert progress.seconds_left == pytest.approx(2 + 2)
        assert progress.seconds_left is None  # nothing is left


def test_phases_of_a_stage_can_be_dropped(clock):
    with Progress(clock=clock) as progress:
        for stage in ("first", "second"):
            progress.expect("training", 10, stage=stage)
        progress.drop("first")
        with progress.stage("second"), progress.phase("training"):
            assert progress.label == "second: training"
            work(clock, 5)
            assert progress.fraction == 0.5


def test_phase_is_one_of_the_current_stage(clock):
    """A phase of the same name that a later stage has announced stays to do."""
    with Progress(clock=clock) as progress:
        for stage in ("first", "second"):
            progress.expect("loading the model", 10, stage=stage)
        with progress.stage("first"):
            for _ in range(2):  # the model, then one that nobody announced, such as a teacher's
                with progress.phase("loading the model") as phase:
                    assert progress.label == "first: loading the model"
                    work(clock, 10)
            assert phase not in progress.phases and progress.fraction == 0.5
        with progress.stage("second"), progress.phase("loading the model") as phase:
            assert phase in progress.phases


def test_work_up_to_a_mark_is_counted_once(progress, clock):
    with progress.phase("encoding"):
        work(clock, 3)
        progress.reach(5)
        assert progress.remaining_work == 5
        progress.reach(4)
        assert progress.remaining_work == 5


def test_minor_phases_alone_have_no_fraction(clock):
    with Progress(clock=clock) as progress:
        progress.expect("reading")
        progress.expect("saving")
        with progress.phase("reading"):
            work(clock, 3)
        assert not progress.knows_work and progress.fraction == 0 and progress.seconds_left is None


def test_elapsed_time_counts_from_the_start(clock):
    clock.now = 100
    progress = Progress(started=40, clock=clock)
    assert progress.elapsed == 60


def test_reports_without_a_listener_go_nowhere():
    current_progress().advance(1)
    current_progress().remaining_work -= 1
    with current_progress().phase("saving"):
        current_progress().reach(3)
    assert in_phase("reading")(lambda x: x + 1)(2) == 3


def test_error_leaves_the_progress_of_the_caller(clock):
    with pytest.raises(ValueError, match="broken"), Progress(clock=clock) as progress, progress.phase("encoding"):
        raise ValueError("broken")
    assert not progress.ended and current_progress() is not progress


def test_encoding_counts_every_text_once(backbone):
    texts = ["one", "two words", "one", "and three words"]
    encoder = Encoder.from_pretrained("tiny-llama", device="cpu")
    with Progress() as progress, progress.phase("encoding", len(texts)) as phase:
        encoder.encode(texts)
    assert phase.done == 3 and progress.phases == [phase]


def test_examples_of_progress():
    run_examples(Progress)
