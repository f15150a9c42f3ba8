"""Tables of Lance as input, and as a copy of the parts."""

from __future__ import annotations

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import decoder2vec as d2v
from decoder2vec.errors import DataFileError, InputError, StorageError

lancedb = pytest.importorskip("lancedb", reason="needs lancedb: pip install 'decoder2vec[index]'")


@pytest.fixture(scope="module")
def encoder():
    return d2v.Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")


def rows(start, stop):
    numbers = range(start, stop)
    return pa.table({"id": [f"r{n}" for n in numbers], "text": [f"row {n}" for n in numbers], "n": list(numbers)})


@pytest.fixture
def table(tmp_path):
    """A table that was written in three steps, with rows deleted: 58 rows."""
    opened = lancedb.connect(tmp_path).create_table("rows", rows(0, 25))
    opened.add(rows(25, 40))
    opened.add(rows(40, 60))
    opened.delete("n in (3, 41)")
    return opened


def expected_rows():
    return [n for n in range(60) if n not in (3, 41)]


@pytest.mark.parametrize("source", ["rows.lance", "*.lance", ""])
def test_table_gives_the_vectors_of_the_same_rows_in_parquet(tmp_path, table, encoder, source):
    pq.write_table(table.search().limit(None).to_arrow(), tmp_path.parent / "rows.parquet")
    options = {"rows_per_part": 10}
    d2v.embed_dataset(encoder, str(tmp_path / source), tmp_path.parent / "from_lance", **options)
    d2v.embed_dataset(encoder, str(tmp_path.parent / "rows.parquet"), tmp_path.parent / "from_parquet", **options)
    parts = [sorted((tmp_path.parent / name).glob("part-*")) for name in ("from_lance", "from_parquet")]
    assert [file.name for file in parts[0]] == [file.name for file in parts[1]]
    both = [pa.concat_tables(pq.read_table(file).replace_schema_metadata() for file in files) for files in parts]
    assert both[0].equals(both[1])
    assert both[0]["n"].to_pylist() == expected_rows()
    assert not d2v.verify_dataset(tmp_path.parent / "from_lance", encoder).problems
    for name in ("from_lance", "from_parquet"):
        shutil.rmtree(tmp_path.parent / name)


def test_changed_table_is_refused(tmp_path, table, encoder):
    d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out")
    table.add(rows(60, 61))
    with pytest.raises(StorageError, match=r"rows.lance has changed"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out")


def test_folder_that_is_no_table_is_one_sentence(tmp_path, encoder):
    (tmp_path / "rows.lance").mkdir()
    with pytest.raises(DataFileError, match="is damaged or not a table of Lance"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out")


@pytest.mark.parametrize("precision", ["float32", "float16", "int8", "binary"])
def test_copy_has_all_rows_in_order(tmp_path, table, encoder, precision):
    source, out = str(tmp_path / "rows.lance"), tmp_path / "out"
    vectors = d2v.VectorFormat(precision)
    for _ in range(2):  # the second run finds it
        d2v.embed_dataset(encoder, source, out, rows_per_part=10, vectors=vectors, lance=True)
    copy = lancedb.connect(out).open_table("vectors").search().limit(None).to_arrow()
    parts = pa.concat_tables(pq.read_table(file) for file in sorted(out.glob("part-*")))
    assert copy.equals(parts.replace_schema_metadata(copy.schema.metadata))
    assert not d2v.verify_dataset(out, encoder).problems


def test_copy_can_be_searched(tmp_path, table, encoder):
    d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out", lance=True)
    copy = lancedb.connect(tmp_path / "out").open_table("vectors")
    nearest = copy.search(np.asarray(encoder.encode("row 17"))).limit(1).to_list()[0]
    assert nearest["id"] == "r17"


def test_copy_of_other_rows_is_found(tmp_path, table, encoder):
    d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out", rows_per_part=10, lance=True)
    lancedb.connect(tmp_path / "out").open_table("vectors").delete("n = 20")
    (problem,) = d2v.verify_dataset(tmp_path / "out", encoder).problems
    assert "vectors.lance differs from part-00000-000000000010" in problem


def test_damaged_copy_is_found(tmp_path, table, encoder):
    d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out", rows_per_part=10, lance=True)
    copy = tmp_path / "out" / "vectors.lance"
    (data,), (version,) = (copy / "data").iterdir(), (copy / "_versions").glob("*.manifest")
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    (problem,) = d2v.verify_dataset(tmp_path / "out", encoder).problems
    assert problem.startswith("vectors.lance is damaged (") and problem.endswith("delete it and run again")
    version.write_bytes(b"")
    with pytest.raises(StorageError, match=r"vectors\.lance is damaged or not a table .*; delete it and run again\.$"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out", rows_per_part=10, lance=True)


@pytest.mark.parametrize("damage", ["truncated", "missing", "emptied"])
def test_damaged_copy_is_refused_by_the_next_run(tmp_path, table, encoder, damage):
    options = {"rows_per_part": 10, "lance": True}
    d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out", **options)
    (data,) = (tmp_path / "out" / "vectors.lance" / "data").iterdir()
    content = data.read_bytes()
    if damage == "missing":
        data.unlink()
    else:
        data.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"")
    with pytest.raises(StorageError, match=r"out/vectors\.lance is damaged \(.*\); delete it and run again\.$"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out", **options)
    data.write_bytes(content)
    d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out", **options)


def test_copy_that_lacks_rows_is_refused_by_the_next_run(tmp_path, table, encoder):
    d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out", rows_per_part=10, lance=True)
    lancedb.connect(tmp_path / "out").open_table("vectors").delete("n = 20")
    with pytest.raises(StorageError, match=r"vectors\.lance has 57 rows instead of 58; delete it and run again\.$"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out", rows_per_part=10, lance=True)


def test_killed_copy_is_written_again(tmp_path, table, encoder):
    d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out")
    (tmp_path / "out" / ".tmp-1-dead" / "vectors.lance" / "data").mkdir(parents=True)  # what a kill leaves
    d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), tmp_path / "out", lance=True)
    assert lancedb.connect(tmp_path / "out").open_table("vectors").count_rows() == 58


def test_remote_folder_is_refused(table, tmp_path, encoder):
    with pytest.raises(InputError, match="local folder only"):
        d2v.embed_dataset(encoder, str(tmp_path / "rows.lance"), "memory://lance/out", lance=True)
