"""Progress of long work: named phases with expected work, the fraction that is done and the time that is left.

Functions report to the progress that their caller has started, as they write to the log that their caller has set up:
`with current_progress().phase("saving"): ...`. Without one, reports go nowhere. Nothing is drawn here: a listener is
called after every report, and draws a bar or prints a line (`cli/output.py`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_MINOR_SHARE = 0.01
"""Share of all work that a phase without work of its own, such as saving, is expected to take."""
_ALMOST_DONE = 0.99
"""The largest fraction before the end."""


@dataclass
class Phase:
    """A part of the work with a name that a user understands."""

    name: str
    work: float | None = None
    """Expected work, in texts that a model encodes; None: little, such as saving."""
    stage: str = ""
    """What it is a phase of, where a plan has several stages."""
    kind: str = ""
    """Phases of the same kind take the same time for the same work; by default those of the same name."""
    done: float = 0.0
    """Work done so far."""
    seconds: float = 0.0
    """Time spent so far."""
    finished: bool = False

    @property
    def label(self) -> str:
        """The name, after that of the stage if there is one."""
        return f"{self.stage}: {self.name}" if self.stage else self.name

    @property
    def total(self) -> float:
        """Work in all: what is expected, or what has been done if that is more."""
        return max(self.work or 0.0, self.done)

    def finish(self) -> None:
        """Expect no more work, such as after early stopping."""
        self.finished = True
        if self.work is not None:
            self.work = self.done


class Progress:
    """Progress of everything that runs inside its `with` block.

    A function announces the phases to come with `expect`, so that fraction and time left are those of the whole from
    the start, and enters each of them with `phase`. Entering a phase of an expected name takes the next of that name
    in the current stage that is not finished; the others are shown but do not count.

    Args:
        listener: Called after every report.
        started: When the work began, by the clock; by default now.
        clock: Gives seconds.

    Example:
        >>> import decoder2vec as d2v
        >>> names = []
        >>> with d2v.Progress(lambda progress: names.append(progress.label)):
        ...     vectors = d2v.Encoder.from_pretrained("tiny-llama").encode(["A cat sleeps."])
        >>> names[0]
        'loading the model'
    """

    def __init__(
        self,
        listener: Callable[[Progress], object] = lambda _: None,
        *,
        started: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener, self._clock = listener, clock
        self.started = clock() if started is None else started
        self.phases: list[Phase] = []
        """All phases that count, in the order in which they were announced."""
        self.note = ""
        """What else a user wants to know of the current phase, such as the loss."""
        self.ended = False
        self._stage = ""
        self._active: list[Phase] = []
        """The phases that have been entered, the innermost last."""
        self._entered: list[Phase] = []
        """Those and the ones that were left inside the outermost of them."""
        self._last_report = self.started
        self._estimate: float | None = None
        """Seconds left at the last report."""
        self._fraction = 0.0
        self._label = ""
        self._token: Token[Progress | None] | None = None

    def __enter__(self) -> Progress:
        self._token = _current.set(self)
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)
        self.ended = error is None

    def expect(self, name: str, work: float | None = None, *, stage: str = "", kind: str = "") -> None:
        """Announce a phase; `work` is in texts that a model encodes, None if it is little."""
        self.phases.append(Phase(name, work, stage, kind or name))

    def drop(self, stage: str) -> None:
        """Expect no more work in the phases of a stage, such as one that was trained before."""
        for phase in self.phases:
            if phase.stage == stage:
                phase.finish()
        self._report()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Inside the block, phases are those of this stage; "" is the work outside all stages."""
        outer, self._stage = self._stage, name
        try:
            yield
        finally:
            self._stage = outer

    @contextmanager
    def phase(self, name: str, work: float | None = None) -> Iterator[Phase]:
        """Enter a phase; a phase inside another may be entered many times, and is finished with the outer one.

        Args:
            name: Its name.
            work: Its work, where that is known better now than when it was announced.
        """
        phase = self._find(name, work)
        self._count_time()
        self._active.append(phase)
        self._entered.append(phase)
        self._label, self.note = phase.label, ""
        self._report()
        try:
            yield phase
        except KeyboardInterrupt:  # so that a user sees where it stood
            raise
        except BaseException:
            self._leave()
            raise
        else:
            self._leave()

    def _leave(self) -> None:
        """Leave the current phase; with the outermost, all that were entered inside it are finished."""
        self._count_time()
        self._active.pop()
        if self._active:
            self._label = self._active[-1].label
        else:
            for entered in self._entered:
                entered.finish()
            self._entered = []
        self._report()

    def advance(self, work: float, note: str | None = None) -> None:
        """Count work of the current phase that has just been done."""
        if self._active and self._active[-1].work is not None:
            self._active[-1].done += work
        self.note = self.note if note is None else note
        self._report()

    def advance_part(self, n_left: int, note: str | None = None) -> None:
        """Count one of the equal parts that the current phase has left, of which this is one."""
        self.advance(self.remaining_work / max(1, n_left), note)

    def reach(self, done: float, note: str | None = None) -> None:
        """Count work of the current phase up to a mark; what was counted on the way to it is not counted again."""
        self.advance(max(0.0, done - self._active[-1].done) if self._active else 0.0, note)

    @property
    def remaining_work(self) -> float:
        """Work of the current phase that is still to do; set it where less was left to do, or more, than expected."""
        return self._active[-1].total - self._active[-1].done if self._active else 0.0

    @remaining_work.setter
    def remaining_work(self, work: float) -> None:
        if self._active and self._active[-1].work is not None:
            self._active[-1].work = self._active[-1].done + max(0.0, work)
        self._report()

    @property
    def label(self) -> str:
        """The current phase, or the last one between two of them."""
        return self._label

    @property
    def depth(self) -> int:
        """How many phases are entered, one inside the other."""
        return len(self._active)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self.started

    @property
    def fraction(self) -> float:
        """Share of the expected work that is done: it never falls, and is 1 at the end only."""
        return 1.0 if self.ended else self._fraction

    @property
    def knows_work(self) -> bool:
        """Whether there is work that was announced, so that a fraction of it can be shown."""
        return any(phase.total for phase in self.phases)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end; None where they cannot be told, or have passed."""
        if self.ended:
            return 0.0
        left = None if self._estimate is None else self._estimate - (self._clock() - self._last_report)
        return left if left and left > 0 else None

    def _find(self, name: str, work: float | None) -> Phase:
        """The next expected phase of that name in this stage; else a new one, which counts if its work is known."""
        expected = (phase for phase in self.phases if (phase.name, phase.stage) == (name, self._stage))
        phase = next((phase for phase in expected if not phase.finished), None)
        if phase is None:
            phase = Phase(name, work, self._stage, name)
            if work is not None:
                self.phases.append(phase)
        elif work is not None:
            phase.work = work
        return phase

    def _count_time(self) -> None:
        """Count the time since the last report as that of the current phase."""
        now = self._clock()
        if self._active:
            self._active[-1].seconds += now - self._last_report
        self._last_report = now

    def _report(self) -> None:
        """Estimate fraction and time left, and call the listener."""
        self._count_time()
        work = sum(phase.total for phase in self.phases)
        minor = [phase for phase in self.phases if phase.work is None]
        minor_work = _MINOR_SHARE * work
        done = sum(phase.done for phase in self.phases) + minor_work * sum(phase.finished for phase in minor)
        if work:
            self._fraction = max(self._fraction, min(done / (work + minor_work * len(minor)), _ALMOST_DONE))
        self._estimate = self._estimate_seconds_left(minor_work)
        self._listener(self)

    def _estimate_seconds_left(self, minor_work: float) -> float | None:
        """The remaining work by the speed of each phase itself, else of its kind, else of all; None before any work."""
        by_kind: dict[str, list[Phase]] = {}
        for phase in self.phases:
            if phase.done:
                by_kind.setdefault(phase.kind, []).append(phase)
        if not by_kind:
            return None
        speeds = {kind: _seconds_per_work(phases) for kind, phases in by_kind.items()}
        mean_speed = _seconds_per_work([phase for phases in by_kind.values() for phase in phases])
        seconds = 0.0
        for phase in self.phases:
            if not phase.finished:
                speed = _seconds_per_work([phase]) if phase.done else speeds.get(phase.kind, mean_speed)
                seconds += speed * (minor_work if phase.work is None else phase.total - phase.done)
        return seconds


def _seconds_per_work(phases: list[Phase]) -> float:
    return sum(phase.seconds for phase in phases) / sum(phase.done for phase in phases)


_current: ContextVar[Progress | None] = ContextVar("progress", default=None)


def current_progress() -> Progress:
    """The progress of the caller; if it has started none, one that nobody sees."""
    return _current.get() or Progress()


def in_phase(name: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorator: a function runs in a phase of this name of its caller's progress."""

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def wrapper(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            with current_progress().phase(name):
                return function(*args, **kwargs)

        return wrapper

    return decorate
