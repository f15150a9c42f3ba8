"""The package itself: its version, what is done before or while torch is imported, and subpackages to call."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__version__ = "0.2.0"

WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""Environment variables by which users choose how threads of OpenMP wait."""
_SPIN_COUNT = "20000"
"""Rounds that a thread of GNU OpenMP waits for work before it sleeps: some tens of microseconds, longer than a thread
waits on a quiet machine, and short compared with the milliseconds for which it may wait on a busy one."""


def limit_spinning() -> None:
    """Let threads of OpenMP sleep soon after they run out of work; to be called before torch is imported.

    What a user has set is kept. Once torch is imported, this has no effect.
    """
    if not any(name in os.environ for name in WAIT_VARIABLES) and "torch" not in sys.modules:
        os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Context for a quick start: imports and loading create a million objects that stay.

    The garbage collector would walk them over and over as they become more.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class CallablePackage(ModuleType):
    """A subpackage with the name of a public function.

    Importing any module of `decoder2vec.export` binds `decoder2vec.export` to the package, and the function of that
    name must still be callable: the package forwards the call.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the public function of the package's name."""
        package, _, name = self.__name__.rpartition(".")
        return sys.modules[package].__getattr__(name)(*args, **kwargs)
