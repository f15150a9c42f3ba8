"""Which documents came from which folder, so that indexing the folder again mirrors it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from decoder2vec.search.documents import Document
from decoder2vec.storage import atomic_file, parse_json

log = logging.getLogger(__name__)


class Origin(NamedTuple):
    """Where a document of a folder came from."""

    path: str
    """Its file inside the folder."""
    content: str
    """Hash of the document without the path, by which it is recognised in a renamed file."""
    digest: str = ""
    """Hash of the stored document. If the store has another one, the document was replaced and not recorded."""

    @classmethod
    def of(cls, document: Document) -> Origin:
        """Return the origin of a document that was read from a folder."""
        metadata = {key: value for key, value in document.metadata.items() if key != "path"}
        content = Document("", document.text, metadata).digest()
        return cls(str(document.metadata.get("path", "")), content, document.digest())


class SourceRecord:
    """The documents of every indexed folder: `sources.json` beside the index.

    A document belongs to the folder that it was last read from, and to none if it was added otherwise.

    Args:
        file: Where the record is kept. If it is missing or damaged, no document is known to come from a folder, so
            none is removed.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folders: dict[str, dict[str, Origin]] = {}
        try:
            for folder, origins in parse_json(file.read_text(encoding="utf-8")).items():
                self._folders[folder] = {id: Origin(*origin) for id, origin in origins.items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            self._folders = {}
            log.warning("%s is damaged (%s): documents whose files are gone stay in the index", file, error)

    def of(self, folder: Path) -> dict[str, Origin]:
        """Return document id -> origin for the documents of a folder."""
        return dict(self._folders.get(_key(folder), {}))

    def forget(self, ids: Iterable[str]) -> None:
        """Record that documents were deleted, or added otherwise than from a folder."""
        gone = set(ids)
        if any(gone & origins.keys() for origins in self._folders.values()):
            self._folders = {
                folder: {id: origin for id, origin in origins.items() if id not in gone}
                for folder, origins in self._folders.items()
            }
            self._save()

    def replace(self, folder: Path, origins: Mapping[str, Origin]) -> None:
        """Record the documents of a folder, which no other folder has any more."""
        others = {
            other: {id: origin for id, origin in known.items() if id not in origins}
            for other, known in self._folders.items()
            if other != _key(folder)
        }
        self._folders = {**others, _key(folder): dict(origins)}
        self._save()

    def _save(self) -> None:
        with atomic_file(self._file) as temporary:
            temporary.write_text(json.dumps(self._folders, ensure_ascii=False) + "\n", encoding="utf-8")


def _key(folder: Path) -> str:
    return str(folder.resolve())
