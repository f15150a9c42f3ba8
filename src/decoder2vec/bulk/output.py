"""A folder of results, local or remote, in which every file is written atomically."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from decoder2vec.bulk.files import is_local, open_filesystem, store_errors
from decoder2vec.errors import StorageError
from decoder2vec.storage import TEMPORARY_PREFIX, atomic_file, check_writable, parse_json, write_lock

_LOCK_FILE = ".writing"


class OutputFolder:
    """A folder on a disk or in an object store.

    Args:
        url: Its path or URL.
    """

    def __init__(self, url: str) -> None:
        self._system, self.path = open_filesystem(url)
        self.url = url
        self.local = Path(self.path) if is_local(self._system) else None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Inside the block no other process of this machine writes here; in an object store none is needed."""
        if self.local is None:
            yield
            return
        check_writable(self.local)
        with write_lock(self.local / _LOCK_FILE, self.url):
            try:
                yield
            finally:
                (self.local / _LOCK_FILE).unlink(missing_ok=True)

    def names(self) -> set[str]:
        """Names of all files, without those that are being written."""
        if self.local is not None:
            names = {file.name for file in self.local.glob("*")} if self.local.is_dir() else set()
        else:
            with store_errors(self.url):
                self._system.invalidate_cache()
                paths = self._system.ls(self.path, detail=False) if self._system.exists(self.path) else ()
            names = {path.rsplit("/", 1)[-1] for path in paths}
        return {name for name in names if name and name != _LOCK_FILE and not name.startswith(TEMPORARY_PREFIX)}

    @contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """Yield a local path; what is written there becomes the file of that name if the block succeeds."""
        if self.local is not None:
            with atomic_file(self.local / name) as temporary:
                yield temporary
            return
        with tempfile.TemporaryDirectory(prefix="d2v-") as folder:
            temporary = Path(folder, name)
            yield temporary
            try:  # an object appears when its upload is complete
                with store_errors(self.url):
                    self._system.put_file(str(temporary), f"{self.path}/{name}")
            except FileNotFoundError as error:
                raise StorageError(f"Cannot write to {self.url}: {error}.") from None

    def write_json(self, name: str, document: Any) -> None:
        """Write a JSON file."""
        with self.writing(name) as temporary:
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def read_json(self, name: str) -> Any:
        """Read a JSON file.

        Raises:
            StorageError: It is absent or no JSON.
        """
        try:
            with self.open(name) as handle:
                return parse_json(handle.read())
        except FileNotFoundError:
            raise StorageError(f"{self.url} has no {name}; `d2v embed` has written nothing there.") from None
        except ValueError as error:
            raise StorageError(f"{self.url}/{name} is damaged ({error}); embed into a new folder.") from None

    def open(self, name: str) -> Any:
        """Open a file for reading bytes."""
        with store_errors(self.url) if self.local is None else nullcontext():
            return self._system.open(f"{self.path}/{name}", "rb")

    def sha256(self, name: str) -> str:
        """The SHA-256 of a file."""
        with self.open(name) as handle:
            digest = hashlib.sha256()
            while block := handle.read(2**20):
                digest.update(block)
        return digest.hexdigest()
