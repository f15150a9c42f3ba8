"""The index behind /search, which is opened again with its new encoder when `d2v migrate` has moved it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from decoder2vec.errors import StorageError
from decoder2vec.search.index import Hit, Index

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""How often the server looks whether the index was moved to another encoder."""


@dataclass(eq=False)
class OpenedIndex:
    """An open index, and the model that encodes its queries."""

    index: Index
    model: Any
    n_searches: int = 0
    """Searches that are running."""


class ServedIndex:
    """Searches an index, and follows it to another encoder without a pause.

    A thread looks for a move. The old index answers until the new encoder is loaded, and is closed when the last search
    in it has ended.

    Args:
        opened: The index.
        open_moved: Opens it again after a move, with the model for its queries.
        close_moved: Closes the old one, when nothing searches it any more.
    """

    def __init__(
        self,
        opened: OpenedIndex,
        open_moved: Callable[[], OpenedIndex],
        close_moved: Callable[[OpenedIndex], object],
    ) -> None:
        self._opened, self._open_moved, self._close_moved = opened, open_moved, close_moved
        self._lock, self._moving, self._stopped = threading.Lock(), threading.Lock(), threading.Event()
        self._failed: str | None = None
        self._watcher = threading.Thread(target=self._watch, name="index", daemon=True)
        self._watcher.start()

    @property
    def model(self) -> Any:
        """The model that encodes queries now."""
        return self._opened.model

    @property
    def rerank_depth(self) -> int:
        """How many documents the index's tuning found best to rerank."""
        return self._opened.index.header.rerank_depth

    def search(self, *args: Any) -> list[Hit]:
        """Search as `Index.search`; called in a thread."""
        try:
            with self._current() as index:
                return index.search(*args)
        except StorageError:
            if not self._is_moved():
                raise
        self.follow()  # the old vectors are gone already
        with self._current() as index:
            return index.search(*args)

    def follow(self) -> None:
        """Open the index again if it was moved to another encoder.

        Raises:
            InputError: The new encoder is not known on this machine; the old index stays.
        """
        with self._moving:
            if not self._is_moved():
                return
            opened = self._open_moved()
            with self._lock:
                old, self._opened = self._opened, opened
                is_unused = not old.n_searches
            if is_unused:
                self._close_moved(old)

    def close(self) -> None:
        """Stop looking, and close the index."""
        self._stopped.set()
        self._watcher.join()
        self._opened.index.close()

    def _is_moved(self) -> bool:
        store = self._opened.index.store
        header = store.header()
        return header is not None and header.get("generation", "") != store.generation

    @contextmanager
    def _current(self) -> Iterator[Index]:
        with self._lock:
            opened = self._opened
            opened.n_searches += 1
        try:
            yield opened.index
        finally:
            with self._lock:
                opened.n_searches -= 1
                is_left = opened is not self._opened and not opened.n_searches
            if is_left:
                self._close_moved(opened)

    def _watch(self) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            try:
                self.follow()
                self._failed = None
            except Exception as error:  # whatever it is: the old index answers, and the next look tries again
                if self._failed != str(error):
                    log.warning("The index was moved to another encoder, and the old one serves on: %s", error)
                self._failed = str(error)
