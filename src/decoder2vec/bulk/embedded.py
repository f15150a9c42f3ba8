"""A folder of parts that is finished: its rows, with their vectors, for those who use them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decoder2vec.bulk.files import import_pyarrow
from decoder2vec.bulk.output import OutputFolder
from decoder2vec.bulk.parts import read_note
from decoder2vec.bulk.plan import MANIFEST_FILE, PLAN_FILE, EmbeddingPlan, Part
from decoder2vec.errors import StorageError


class EmbeddedDataset:
    """A folder that `embed_dataset` has finished.

    Args:
        out: The folder, a path or URL.

    Raises:
        StorageError: It is not finished, or not as it was written.
    """

    def __init__(self, out: str | Path) -> None:
        self.output = OutputFolder(str(out))
        self.plan = EmbeddingPlan.from_json(self.output.read_json(PLAN_FILE), f"{self.output.url}/{PLAN_FILE}")
        self.records = {row["name"]: row for row in read_manifest(self.plan, self.output)}
        """What is recorded of each part, by its name."""
        if not self.records:
            names = self.output.names()
            n_parts = sum(part.name in names for part in self.plan.parts())
            raise StorageError(
                f"{self.output.url} is not finished: {n_parts} parts are there; run the same command again."
            )

    def tables(self) -> Iterator[Any]:
        """Yield the rows of each part as an Arrow table, in order."""
        return map(self.read, self.plan.parts())

    def read(self, part: Part) -> Any:
        """Return the table of a part.

        Raises:
            StorageError: It is not as it was written.
        """
        pyarrow, parquet = import_pyarrow()
        record, file = self.records[part.name], f"{self.output.url}/{part.name}"
        cure = "delete it and run `d2v embed` again"
        try:
            if self.output.sha256(part.name) != record["sha256"]:
                raise StorageError(f"{file} is not as it was written; {cure}.")
            with self.output.open(part.name) as handle:
                table = parquet.read_table(io.BytesIO(handle.read()))
        except FileNotFoundError:
            raise StorageError(f"{file} is missing; run `d2v embed` again.") from None
        except pyarrow.ArrowException as error:
            raise StorageError(f"{file} is damaged ({error}); {cure}.") from None
        if read_note(part, self.output) not in map(part.note, self.plan.keys):
            raise StorageError(f"{file} is a part of something else; {cure}.")
        if len(table) + record["n_skipped"] != part.stop - part.start:
            n_rows, n_skipped = part.stop - part.start, record["n_skipped"]
            raise StorageError(f"{file} has {len(table)} rows and {n_skipped} skipped ones, not {n_rows}; {cure}.")
        return table


def read_manifest(plan: EmbeddingPlan, output: OutputFolder) -> list[dict[str, Any]]:
    """Return what is recorded of all parts; nothing if that is absent, damaged or of something else."""
    try:
        document = output.read_json(MANIFEST_FILE)
        parts: list[dict[str, Any]] = document["parts"]
        is_complete = document["plan"] in plan.keys and [row["name"] for row in parts] == [p.name for p in plan.parts()]
        return parts if is_complete else []
    except (StorageError, KeyError, TypeError):
        return []
