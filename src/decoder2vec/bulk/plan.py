"""The plan of an embedding run: which rows of which files become which part, fixed before anything is computed.

A part is named by its rows alone, and a folder belongs to one plan. So whoever computes a part, however often, writes
the same file: that is why a run that is killed at any moment and started again has every row exactly once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import takewhile
from typing import Any

from decoder2vec.bulk.files import RowFile
from decoder2vec.errors import StorageError
from decoder2vec.storage import name_in_utf8

PLAN_FILE, MANIFEST_FILE = "plan.json", "manifest.json"
FORMAT = 1
"""Version of the layout of a folder of parts; docs/formats.md has the others."""
PRECISIONS = ("float32", "float16", "int8", "binary")


@dataclass(frozen=True)
class VectorFormat:
    """How vectors are stored.

    Args:
        precision: float32, float16, int8 (each vector scaled so that its largest value is 127, which keeps cosines) or
            binary (one bit for the sign of each dimension, eight in a byte, the first in the highest bit).
        dimensions: Keep only the first ones; None: all.
        normalize: Scale vectors to length 1 before they are stored.
    """

    precision: str = "float32"
    dimensions: int | None = None
    normalize: bool = False


@dataclass(frozen=True)
class Part:
    """A range of rows of one file, and the file that their vectors are written to."""

    file: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Name of the file with the vectors."""
        return f"part-{self.file:05d}-{self.start:012d}.parquet"

    def note(self, plan: str) -> dict[str, Any]:
        """What the file with the vectors says of itself, given the key of its plan."""
        return {"plan": plan, **asdict(self)}

    @property
    def skipped_name(self) -> str:
        """Name of the file with the rows that were skipped, if there are any."""
        return f"skipped-{self.file:05d}-{self.start:012d}.jsonl"


@dataclass(frozen=True)
class EmbeddingPlan:
    """All that decides what an embedding run writes.

    Args:
        encoder: Fingerprint of the encoder's space.
        compute: The type it computes in, which changes the last digits of vectors.
        vectors: How vectors are stored.
        files: The files, in order.
        columns: Type of each column of the rows.
        text_column: The column with the texts.
        id_column: The column that names a row; None: file and number of the row.
        rows_per_part: Rows of a part; the last part of a file may have fewer.
        on_error: What happens to rows that cannot be embedded: stop or skip.
        prompt_name: The encoder's prompt in front of every text; None: no prompt.
    """

    encoder: str
    compute: str
    vectors: VectorFormat
    files: tuple[RowFile, ...]
    columns: dict[str, str]
    text_column: str
    id_column: str | None
    rows_per_part: int
    on_error: str
    prompt_name: str | None = None

    def parts(self) -> Iterator[Part]:
        """All parts, in the order of the rows."""
        for index, file in enumerate(self.files):
            for start in range(0, file.n_rows, self.rows_per_part):
                yield Part(index, start, min(start + self.rows_per_part, file.n_rows))

    @property
    def file_names(self) -> list[str]:
        """A name of each file that no other has: its path below the folder that all of them are in."""
        folders = [file.path.split("/")[:-1] for file in self.files]
        n_shared = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False)))
        return [name_in_utf8("/".join(file.path.split("/")[n_shared:])) for file in self.files]

    @property
    def n_rows(self) -> int:
        """Rows of all files."""
        return sum(file.n_rows for file in self.files)

    @property
    def key(self) -> str:
        """Identifies the plan; a file that has moved is the same file."""
        identity = self.to_json()
        for file, name in zip(identity["files"], self.file_names, strict=True):
            file["path"] = name
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    @property
    def keys(self) -> tuple[str, str]:
        """The key, and that of the same plan before rows were skipped: what was written by then has no such rows."""
        return self.key, replace(self, on_error="stop").key

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON object, for `from_json`."""
        return {"format": FORMAT, **asdict(self), "files": [asdict(file) for file in self.files]}

    @classmethod
    def from_json(cls, document: Any, source: str) -> EmbeddingPlan:
        """The plan that `to_json` wrote.

        Raises:
            StorageError: It is none, or of a later version.
        """
        try:
            if document["format"] > FORMAT:
                raise StorageError(f"{source} was written by a later version of decoder2vec; update this one.")
            values = {field.name: document[field.name] for field in fields(cls)}
            values["files"] = tuple(RowFile(**file) for file in values["files"])
            values["vectors"] = VectorFormat(**values["vectors"])
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{source} is damaged ({error}); embed into a new folder.") from None
        return cls(**values)

    def check_same(self, stored: EmbeddingPlan, folder: str) -> None:
        """Raise an error unless a folder that was begun with the stored plan can be finished with this one.

        Raises:
            StorageError: It has vectors of another encoder, other settings or other rows.
        """
        if stored.key in self.keys:
            return
        new, old = self.to_json(), stored.to_json()
        name = next(name for name in new if new[name] != old[name])
        if name == "encoder":
            what = "of another encoder"
        elif name == "files":
            what = f"of other rows: {_changed_file(self, stored)}"
        else:
            what = f"with {name} = {_shown(old[name])}, not {_shown(new[name])}"
        raise StorageError(f"{folder} holds vectors {what}; choose another folder.")


def _changed_file(new: EmbeddingPlan, old: EmbeddingPlan) -> str:
    """Which file differs, in words."""
    versions = {name: file.version for name, file in zip(old.file_names, old.files, strict=True)}
    for name, file in zip(new.file_names, new.files, strict=True):
        if name not in versions:
            return f"{file.path} is new"
        if file.version != versions[name]:
            return f"{file.path} has changed"
    return "files are missing, or in another order"


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
