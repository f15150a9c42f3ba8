"""Documents of a folder that `embed_dataset` wrote: they come with their vectors, and are not encoded again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.bulk.embedded import EmbeddedDataset
from decoder2vec.bulk.parts import VECTOR_COLUMN
from decoder2vec.bulk.plan import EmbeddingPlan
from decoder2vec.config import DOCUMENT_PROMPTS
from decoder2vec.errors import InputError
from decoder2vec.search.documents import Document, Skipped, row_document
from decoder2vec.search.store import EmbeddingSpace


def embedded_documents(folder: str | Path, encoder: Any) -> Iterator[Document | Skipped]:
    """Yield every row as a document.

    Args:
        folder: The folder.
        encoder: The encoder of the index.

    Raises:
        InputError: The vectors are not those that this encoder gives documents.
        StorageError: The folder is not finished, or damaged.
    """
    dataset = EmbeddedDataset(folder)
    _check_comparable(dataset.plan, encoder, str(folder))
    text_column, id_column = dataset.plan.text_column, dataset.plan.id_column or "id"
    for table in dataset.tables():
        vectors = np.stack(table[VECTOR_COLUMN].to_numpy(zero_copy_only=False)) if len(table) else ()
        for row, vector in zip(table.drop_columns([VECTOR_COLUMN]).to_pylist(), vectors, strict=True):
            row = {name: _plain(value) for name, value in row.items()}
            row["id"] = row.pop(id_column)
            yield row_document(row, (text_column,), name=str(row["id"]), vector=np.asarray(vector, np.float32))


def _check_comparable(plan: EmbeddingPlan, encoder: Any, folder: str) -> None:
    space, how = EmbeddingSpace.of(encoder), plan.vectors
    if space.fingerprint != plan.encoder:
        raise InputError(f"{folder} holds vectors of another encoder; use the one that wrote it with --encoder.")
    if how.precision not in ("float32", "float16") or how.dimensions not in (None, space.dim):
        raise InputError(f"{folder} holds reduced vectors; embed it with all dimensions, as float32 or float16.")
    if how.normalize and space.similarity != "cosine":
        raise InputError(f"{folder} holds vectors of length 1; embed it without --normalize.")
    prompt = next((name for name in DOCUMENT_PROMPTS if name in getattr(encoder, "prompts", ())), None)
    if plan.prompt_name != prompt:
        wanted = f"with --prompt-name {prompt}" if prompt else "without --prompt-name"
        raise InputError(f"{folder} was embedded with another prompt than documents have; embed it {wanted}.")


def _plain(value: Any) -> Any:
    """A value of Arrow as one of JSON; a time becomes a text."""
    return value if value is None or isinstance(value, str | bool | int | float | list | dict) else str(value)
