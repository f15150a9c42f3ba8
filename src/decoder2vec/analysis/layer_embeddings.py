"""The vectors of texts in every layer of an encoder's model, read from the latents store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import Reader
from decoder2vec.activations.latent_table import LatentTable
from decoder2vec.config import Reading, fingerprint
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.maths.similarity import normalise
from decoder2vec.progress import current_progress
from decoder2vec.storage import versions, write_json
from decoder2vec.text.files import read_data_file
from decoder2vec.text.template import Template

_CHUNK = 1024
"""Texts whose latents are in memory at once when embeddings are computed."""
MEASURING = "measuring layers"
ENCODING_PAIRS = "encoding pairs"
"""Phases of progress."""
_MEASURING_COST = 0.1
"""Work of measuring a text in all layers, in texts that a model encodes."""

FloatArray = NDArray[np.float32]
Document = dict[str, Any]


class LayerEmbeddings:
    """Vectors of texts in every layer, with the template and pooling of an encoder, and the encoder's embeddings.

    Args:
        encoder: The encoder whose model is read.
        texts: The texts; duplicates are dropped.
        pooling: Pooling of the layers, if it should differ from the encoder's.
    """

    def __init__(self, encoder: Encoder, texts: Sequence[str], pooling: str | None = None) -> None:
        spec, last = encoder.spec, encoder.backbone.n_layers
        base = replace(spec.readings[0], normed=False, pooling=pooling or spec.readings[0].pooling)
        self.encoder = encoder
        self.readings = [replace(base, layer=layer) for layer in range(last + 1)]
        """Every layer before the final norm, then the last layer after it."""
        self.readings.append(replace(base, layer=last, normed=True))
        all_readings = list(dict.fromkeys([*self.readings, *spec.readings]))
        reader = Reader(encoder.backbone, all_readings, Template(spec.template), spec.max_length, spec.on_overflow)
        self._encoder_readings = [all_readings.index(reading) for reading in spec.readings]
        self._table = LatentTable(reader, texts)
        self.texts = self._table.texts
        """The unique texts in order; row i of every matrix belongs to text i."""

    def __len__(self) -> int:
        return len(self.readings)

    def layer(self, index: int, rows: NDArray[np.intp] | None = None) -> FloatArray:
        """[texts, dim] vectors of reading `index`, of all texts or of some rows."""
        return self._read([index], self._selected_rows(rows))[:, 0]

    def embeddings(self, rows: NDArray[np.intp] | None = None) -> FloatArray:
        """[texts, dim] vectors as `encoder.encode` returns them, with head and normalisation."""
        selected, batches = self._selected_rows(rows), []
        for start in range(0, len(selected), _CHUNK):
            latents = self._read(self._encoder_readings, selected[start : start + _CHUNK])
            concatenated = latents.reshape(len(latents), -1)
            batches.append(self.encoder.head(concatenated) if self.encoder.head else concatenated)
        return normalise(np.concatenate(batches), self.encoder.spec.normalize)

    def row_indices(self, texts: Sequence[str]) -> NDArray[np.intp]:
        """The rows of these texts."""
        return self._table.rows(texts)

    def for_texts(self, texts: Sequence[str]) -> LayerEmbeddings:
        """The same encoder and pooling for other texts."""
        return LayerEmbeddings(self.encoder, texts, self.readings[0].pooling)

    def describe(self) -> Document:
        """The model, template, pooling and sizes, for a results file."""
        base, spec = self.readings[0], self.encoder.spec
        return {
            "backbone": self.encoder.backbone.name,
            "fingerprint": self.encoder.fingerprint,
            "pooling": base.pooling,
            "template": base.template or spec.template,
            "attention": spec.attention,
            "dim": self.encoder.backbone.dim,
            "depth": self.encoder.backbone.n_layers,
        }

    def texts_fingerprint(self) -> str:
        """Hash of the texts; samples of equal lists can be paired when two encoders are compared."""
        return fingerprint(self.texts)

    def _selected_rows(self, rows: NDArray[np.intp] | None) -> NDArray[np.intp]:
        return np.arange(len(self.texts)) if rows is None else rows

    def _read(self, indices: list[int], rows: NDArray[np.intp]) -> FloatArray:
        """[rows, readings, dim] latents."""
        latents: FloatArray = self._table.select_readings(indices).batch(rows).transpose(0, 1).cpu().numpy()
        return latents


@dataclass(frozen=True)
class LayerMeasurement:
    """The texts and settings with which the layers of one or several encoders are measured."""

    texts: list[str]
    file: str | None = None
    """Name of the file that the texts are from."""
    pooling: str | None = None
    template: str | None = None
    attention: str | None = None
    device: str | None = None
    dtype: str | None = None
    n_pair_texts: int = 0
    """Texts of pairs that are encoded besides."""

    def run(
        self, encoders: Sequence[str | Path | Encoder], measure: Callable[[LayerEmbeddings], Document]
    ) -> list[Document]:
        """Read the layers of every encoder and pass them to `measure`.

        Args:
            encoders: Encoders, or names of saved encoders or models.
            measure: Returns a document from the layers, in the phase `MEASURING`.

        Returns:
            The documents of `measure` with the encoder's name, the file of the texts and the versions of packages.
        """
        progress, several = current_progress(), len(encoders) > 1
        stages = [_name(encoder) if several else "" for encoder in encoders]
        for encoder, stage in zip(encoders, stages, strict=True):
            if not isinstance(encoder, Encoder):
                progress.expect("loading the model", stage=stage)
            progress.expect("encoding", len(self.texts), stage=stage)
            if self.n_pair_texts:
                progress.expect(ENCODING_PAIRS, self.n_pair_texts, stage=stage, kind="encoding")
            progress.expect(MEASURING, _MEASURING_COST * (len(self.texts) + self.n_pair_texts), stage=stage)
        documents = []
        for encoder, stage in zip(encoders, stages, strict=True):
            with progress.stage(stage):
                documents.append(self._measure(encoder, measure))
        return documents

    def _measure(self, encoder: str | Path | Encoder, measure: Callable[[LayerEmbeddings], Document]) -> Document:
        name = _name(encoder)
        if isinstance(encoder, str | Path):
            encoder = Encoder.from_pretrained(
                encoder, template=self.template, attention=self.attention, device=self.device, dtype=self.dtype
            )
        with current_progress().phase("encoding"):
            layers = LayerEmbeddings(encoder, self.texts, self.pooling)
        document = measure(layers)
        texts = {"file": self.file, **document.pop("texts")}
        samples = {key: document.pop(key) for key in ("area_samples",) if key in document}
        return {"encoder": name, **document, "texts": texts, "versions": versions(), **samples}


def _name(encoder: str | Path | Encoder) -> str:
    return str(encoder) if isinstance(encoder, str | Path) else repr(encoder)


def load_texts(
    source: str | Path | Sequence[str] | None,
    limit: int | None = None,
    notify: Callable[[str], object] = lambda _: None,
) -> tuple[list[str], str | None]:
    """The unique texts of a file or list that are not blank, and the name of the file.

    Args:
        source: A .txt file, any data file, of which all texts are taken, or a list of texts.
        limit: Take at most this many texts, evenly spaced.
        notify: Called with a message if texts are left out because they are blank or duplicates.
    """
    if source is None:
        raise InputError("Give the texts to measure on: --texts FILE.")
    if limit is not None and limit < 1:
        raise InputError(f"A limit of {limit} texts leaves nothing; give 1 or more.")
    file = None
    if isinstance(source, str | Path):
        file, texts = Path(source), list(read_data_file(source).texts())
    else:
        texts = list(source)
    unique = sample_texts(texts)
    if len(unique) < len(texts):
        left_out = len(texts) - len(unique)
        notify(f"{file or 'texts'}: {left_out:,} of {len(texts):,} texts are blank or duplicates; left out")
    return sample_texts(unique, limit), file.name if file else None


def sample_texts(texts: Sequence[str], limit: int | None = None) -> list[str]:
    """The unique texts that are not blank: all, or at most `limit` of them, evenly spaced."""
    unique = [text for text in dict.fromkeys(texts) if text.strip()]
    if limit is None or limit >= len(unique):
        return unique
    return [unique[round(i * (len(unique) - 1) / max(1, limit - 1))] for i in range(limit)]


def curve_indices(readings: Sequence[Reading]) -> list[int]:
    """Indices of the readings of the paper's curve: layers 1 to L, the last one after the final norm."""
    last = max(reading.layer for reading in readings)
    return [
        index for index, reading in enumerate(readings) if reading.layer and reading.normed == (reading.layer == last)
    ]


def write_documents(file: Path | None, documents: list[Document], **extra: Any) -> Document:
    """Combine the documents of several encoders and write them: one document unchanged, several under "encoders"."""
    combined = documents[0] if len(documents) == 1 else {"encoders": documents, **extra}
    if file is not None:
        write_json(file, combined, allow_nan=False)
    return combined
