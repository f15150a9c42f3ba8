"""All parts of a folder as one table of Lance, beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from decoder2vec.bulk.embedded import EmbeddedDataset
from decoder2vec.bulk.files import error_reason, import_pyarrow, open_lance, same_rows
from decoder2vec.errors import DataFileError, Decoder2VecError, StorageError
from decoder2vec.progress import current_progress
from decoder2vec.storage import atomic_folder

LANCE_TABLE = "vectors.lance"
_PLAN_KEY = b"decoder2vec.plan"
"""Where the schema of the table names the plan of its rows."""


def write_lance_copy(dataset: EmbeddedDataset) -> None:
    """Write the table into the folder, which must be local, unless it is there.

    Raises:
        StorageError: The table that is there is of other rows, lacks some, or has files that are missing or cut off.
    """
    pyarrow, _ = import_pyarrow()
    if has_lance_copy(dataset):
        if problems := _find_problems(dataset, _count_rows):
            raise StorageError(f"{dataset.output.url}/{problems[0]}.")
        return
    first = next(dataset.tables())
    schema = first.schema.with_metadata({_PLAN_KEY: dataset.plan.key.encode()})

    def batches() -> Iterator[Any]:
        for table in dataset.tables():
            yield from table.replace_schema_metadata(schema.metadata).to_batches()
            current_progress().advance(len(table))

    import lancedb

    with (
        current_progress().phase("saving", dataset.plan.n_rows),
        atomic_folder(Path(dataset.output.path, LANCE_TABLE)) as temporary,
    ):
        temporary.rmdir()  # LanceDB makes it
        reader = pyarrow.RecordBatchReader.from_batches(schema, batches())
        lancedb.connect(temporary.parent).create_table(temporary.stem, reader, schema=schema)


def has_lance_copy(dataset: EmbeddedDataset) -> bool:
    """Tell whether the table is there.

    Raises:
        StorageError: It is damaged, or of other rows.
    """
    if LANCE_TABLE not in dataset.output.names():
        return False
    try:
        table = open_lance(f"{dataset.output.path}/{LANCE_TABLE}")
    except DataFileError as error:
        raise StorageError(f"{str(error).rstrip('.')}; delete it and run again.") from None
    if (table.schema.metadata or {}).get(_PLAN_KEY, b"").decode() not in dataset.plan.keys:
        raise StorageError(f"{dataset.output.url}/{LANCE_TABLE} has other rows; delete it and run again.")
    return True


def compare_lance_copy(dataset: EmbeddedDataset) -> list[str]:
    """What differs between the table and the parts, in words; nothing if there is no table."""
    return _find_problems(dataset, _compare_rows) if has_lance_copy(dataset) else []


def _find_problems(dataset: EmbeddedDataset, check: Callable[[EmbeddedDataset], list[str]]) -> list[str]:
    """What a check finds; files of the table that cannot be read are a problem, too."""
    try:
        return check(dataset)
    except Decoder2VecError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # whatever Lance finds wrong with its files
        return [f"{LANCE_TABLE} is damaged ({error_reason(error)}); delete it and run again"]


def _compare_rows(dataset: EmbeddedDataset) -> list[str]:
    copy, start = open_lance(f"{dataset.output.path}/{LANCE_TABLE}"), 0
    for part, table in zip(dataset.plan.parts(), dataset.tables(), strict=True):
        rows = copy.search().offset(start).limit(len(table)).to_arrow() if len(table) else table
        if not same_rows(rows.select(table.column_names), table):
            return [f"{LANCE_TABLE} differs from {part.name}; delete it and run the same command again"]
        start += len(table)
    return _count_rows(dataset)


def _count_rows(dataset: EmbeddedDataset) -> list[str]:
    """Compare the numbers of rows, by reading one column of every file of the table."""
    plan, copy = dataset.plan, open_lance(f"{dataset.output.path}/{LANCE_TABLE}")
    expected = plan.n_rows - sum(record["n_skipped"] for record in dataset.records.values())
    ids = copy.search().select([plan.id_column or "id"]).limit(None).to_batches()
    if (n_rows := sum(map(len, ids))) != expected:
        return [f"{LANCE_TABLE} has {n_rows} rows instead of {expected}; delete it and run again"]
    return []
