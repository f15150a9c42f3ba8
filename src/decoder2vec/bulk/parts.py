"""One part of an embedding run: its rows are read, embedded and written with their vectors to one Parquet file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.bulk.files import Problems, RowReader, import_pyarrow
from decoder2vec.bulk.output import OutputFolder
from decoder2vec.bulk.plan import EmbeddingPlan, Part, VectorFormat
from decoder2vec.errors import DataFileError, Decoder2VecError
from decoder2vec.maths.similarity import normalise
from decoder2vec.storage import parse_json

if TYPE_CHECKING:  # it imports torch, which processes that only tokenise do not need
    from decoder2vec.bulk.isolated_encoder import IsolatedEncoder
    from decoder2vec.encoder import Encoder

VECTOR_COLUMN = "embedding"
_METADATA = b"decoder2vec"
"""Key of the metadata of a part: the key of its plan and the range of its rows."""


@dataclass(frozen=True)
class PartResult:
    """What a part took and has."""

    name: str
    n_rows: int
    """Rows that were read."""
    n_skipped: int
    """Rows without a vector."""
    sha256: str
    n_tokens: int = 0
    n_overlong: int = 0
    """Texts that are longer than the encoder reads at once."""
    n_empty: int = 0


class PartReader:
    """Reads the rows of parts.

    Args:
        plan: The plan.
    """

    def __init__(self, plan: EmbeddingPlan) -> None:
        self.plan = plan
        self._reader: RowReader | None = None

    def __call__(self, part: Part) -> tuple[Any, Problems]:
        """The rows of a part with their ids, and why some cannot be embedded."""
        file = self.plan.files[part.file]
        if self._reader is None or self._reader.file != file:
            self._reader = RowReader(file, self.plan.columns, self.plan.text_column)
        table, problems = self._reader.read(part.start, part.stop)
        if self.plan.id_column is None:
            pyarrow, _ = import_pyarrow()
            name = self.plan.file_names[part.file]
            table = table.add_column(0, "id", pyarrow.array([f"{name}:{row}" for row in range(part.start, part.stop)]))
        return table, problems


class PartEmbedder:
    """Computes parts of a plan.

    Args:
        plan: The plan.
        encoder: Its encoder.
        output: Where parts are written.
    """

    def __init__(self, plan: EmbeddingPlan, encoder: Encoder | IsolatedEncoder, output: OutputFolder) -> None:
        self.plan, self.encoder, self.output = plan, encoder, output
        self._rows = PartReader(plan)

    def __call__(self, part: Part) -> PartResult:
        """Compute and write one part.

        Raises:
            DataFileError: A row cannot be embedded, and the plan does not skip such rows.
        """
        return self.embed(part, *self.read(part))

    def embed(self, part: Part, table: Any, problems: Problems) -> PartResult:
        """Compute and write a part whose rows `read` has returned."""
        self._check(part, problems)
        stats = self.encoder.stats
        n_tokens, n_overlong = stats.tokens, stats.overlong
        texts = table[self.plan.text_column].to_pylist()
        rows = [index for index in range(len(texts)) if index not in problems]
        vectors = store_vectors(self._embed(texts, rows, part, problems), self.plan.vectors)
        if problems:
            self._write_skipped(part, table, problems)
        keep = [index for index in rows if index not in problems]
        with self.output.writing(part.name) as file:
            self._write(file, table.take(keep), vectors, part)
        return PartResult(
            part.name,
            len(table),
            len(problems),
            self.output.sha256(part.name),
            n_tokens=stats.tokens - n_tokens,
            n_overlong=stats.overlong - n_overlong,
            n_empty=sum(not texts[index].strip() for index in keep),
        )

    def read(self, part: Part) -> tuple[Any, Problems]:
        """The rows of a part with their ids, and why some cannot be embedded."""
        return self._rows(part)

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """Vectors of texts, with the prompt of the plan."""
        from decoder2vec.activations.extract import without_truncation_warnings

        with without_truncation_warnings():
            return np.asarray(self.encoder.encode(texts, prompt_name=self.plan.prompt_name), np.float32)

    def _embed(self, texts: Sequence[str], rows: list[int], part: Part, problems: Problems) -> NDArray[np.float32]:
        """Vectors of rows, in order, without those that the encoder refuses: these are added to the problems."""
        if not rows:
            return np.empty((0, self.encoder.dim), np.float32)
        try:
            return self.encode([texts[row] for row in rows])
        except Decoder2VecError as error:
            if len(rows) > 1:  # one of them is refused: in halves, the others are encoded together
                half = len(rows) // 2
                return np.concatenate([self._embed(texts, each, part, problems) for each in (rows[:half], rows[half:])])
            problems[rows[0]] = str(error).removeprefix("Text 0 ")
        self._check(part, problems)
        return self._embed(texts, [], part, problems)

    def _check(self, part: Part, problems: Problems) -> None:
        """Raise an error for the first row with a problem, unless such rows are skipped."""
        if problems and self.plan.on_error != "skip":
            index, reason = min(problems.items())
            location = f"{self.plan.files[part.file].path}, row {part.start + index + 1}"
            raise DataFileError(f"{location}: {reason} Mend it, or leave such rows out with --on-error skip.")

    def _write_skipped(self, part: Part, table: Any, problems: Problems) -> None:
        ids = table[self.plan.id_column or "id"].to_pylist()
        rows = [
            {"id": ids[index], "row": part.start + index, "file": self.plan.files[part.file].path, "reason": reason}
            for index, reason in sorted(problems.items())
        ]
        with self.output.writing(part.skipped_name) as file:
            file.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8")

    def _write(self, file: Any, table: Any, vectors: NDArray[Any], part: Part) -> None:
        pyarrow, parquet = import_pyarrow()
        column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1])
        table = table.append_column(VECTOR_COLUMN, column)
        table = table.replace_schema_metadata({_METADATA: json.dumps(part.note(self.plan.key))})
        parquet.write_table(table, file, use_dictionary=False, compression="zstd")


def read_note(part: Part, output: OutputFolder) -> Any:
    """What the file of a part says of itself; None if it is damaged or not a Parquet file."""
    pyarrow, parquet = import_pyarrow()
    try:
        with output.open(part.name) as handle:
            return parse_json((parquet.read_schema(handle).metadata or {}).get(_METADATA, b"null"))
    except (pyarrow.ArrowException, OSError, ValueError):
        return None


def store_vectors(vectors: NDArray[np.float32], how: VectorFormat) -> NDArray[Any]:
    """Return vectors as they are stored."""
    vectors = normalise(np.ascontiguousarray(vectors[:, : how.dimensions]), how.normalize)
    if how.precision == "float16":
        return vectors.astype(np.float16)
    if how.precision == "int8":
        largest = np.maximum(np.abs(vectors).max(axis=1, keepdims=True, initial=0), 1e-12)
        return np.asarray(np.rint(vectors / largest * 127), np.int8)
    return np.packbits(vectors > 0, axis=1) if how.precision == "binary" else vectors
