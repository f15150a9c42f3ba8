"""Sources: frozen models, encoders and adapters, read once at every layer through the latents store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import Extractor
from decoder2vec.activations.spans import SpanExtractor, TextSpan, span_keys
from decoder2vec.activations.store import Store, text_keys
from decoder2vec.backbone.attention import ATTENTIONS
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.choosing.tasks import TargetTask
from decoder2vec.config import Reading, as_tuple
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import saved_encoder_folder
from decoder2vec.errors import EncoderError, InputError, unknown_name
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.progress import current_progress
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import tokenising_batches

SourceLike = str | Path | Encoder

_SPAN_POOLINGS = {"tagging": "lasttoken", "span pair": "mean"}
"""How the tokens of a span are pooled by default; a word of a causal model is complete at its last token."""


@dataclass(frozen=True)
class Source:
    """The vectors of one frozen model for all units of a task."""

    name: str
    readings: tuple[Reading, ...]
    """What can be read: every layer with every pooling."""
    read: Callable[[int], NDArray[np.float32]]
    """Returns [unit, dim] vectors by index of the reading."""
    tokens: str = ""
    """Hash of the token ids of all texts: sources whose tokens line up have the same."""

    def vectors(self, reading: Reading) -> NDArray[np.float32]:
        """Return [unit, dim] vectors.

        Raises:
            EncoderError: A vector is not finite.
        """
        vectors = self.read(self.readings.index(reading))
        if not np.isfinite(vectors).all():
            raise EncoderError(f"{self.name}, {reading}: vectors are not finite; run `d2v doctor` on the model.")
        return vectors


def name_sources(sources: Mapping[str, SourceLike] | Sequence[SourceLike]) -> dict[str, SourceLike]:
    """Return the sources by name; a string may be NAME=SOURCE, else the name is the last part of the path.

    Raises:
        InputError: There is no source, or two have the same name.
    """
    if isinstance(sources, Mapping):
        named = list(sources.items())
    else:
        named = [_named(source, index) for index, source in enumerate(as_tuple(sources))]
    if not named:
        raise InputError("There is nothing to choose from; give one or more models or encoders.")
    names = [name for name, _ in named]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"Two sources are called {double!r}; name them, such as first={double} second=OTHER.")
    return dict(named)


def _named(source: SourceLike, index: int) -> tuple[str, SourceLike]:
    if isinstance(source, Encoder):
        return f"encoder {index}", source
    name, equals, path = str(source).partition("=")
    return (name, path) if equals else (Path(str(source)).name, source)


def load_source(source: SourceLike, *, device: str | None = None, dtype: str | None = None) -> Encoder:
    """Return a source as an encoder; a plain model is read without a template, the mean of its tokens.

    Args:
        source: A model, a saved encoder, or either with an adapter or an attention after #: `enc#nli`,
            `smollm2-135m#bidirectional`.
        device: Device such as "cuda" or "cpu".
        dtype: Dtype of the weights.
    """
    if isinstance(source, Encoder):
        return source
    path, _, variant = str(source).partition("#")
    options: dict[str, Any] = {"device": device, "dtype": dtype}
    is_model = not saved_encoder_folder(path)
    is_attention = is_model and variant.partition(":")[0] in ATTENTIONS
    if is_model:
        options |= {"pooling": "mean", "template": "plain", "attention": variant if is_attention else None}
    encoder = Encoder.from_pretrained(path, **options)
    return encoder.with_adapter(variant) if variant and not is_attention else encoder


def read_source(
    name: str,
    encoder: Encoder,
    task: TargetTask,
    poolings: Sequence[str] = (),
    layers: Sequence[int] = (),
    *,
    like: Source | None = None,
) -> Source:
    """Read all units of a task at every layer; what the latents store has is not computed again.

    Args:
        name: Name of the source.
        encoder: The source; its weights are not changed.
        task: The target task.
        poolings: How tokens are pooled; by default that of the encoder for texts, the last token of tagged words, the
            mean of spans.
        layers: Layers to read; by default all. Negative ones count from the top.
        like: Another source whose tokens must be the same.

    Raises:
        InputError: The tokens of `like` are others, so that vectors of the two do not line up.
    """
    backbone, spec = encoder.backbone, encoder.spec
    tokens = tokens_digest(backbone, task.units)
    if like is not None and tokens != like.tokens:
        raise InputError(
            f"{name} splits the texts into other tokens than {like.name}, so their vectors cannot be combined; choose "
            "among sources of one tokenizer at a time, or align them by words (--align-words, align_words=True)."
        )
    for pooling in poolings:
        if pooling not in POOLINGS:
            raise unknown_name("pooling", pooling, POOLINGS)
    default = _SPAN_POOLINGS.get(task.kind)
    used = tuple(poolings) or ((default,) if default else tuple(dict.fromkeys(r.pooling for r in spec.readings)))
    chosen = {backbone.resolve_layer(layer) for layer in layers} or set(range(backbone.n_layers + 1))
    # all layers are read, so that a later call with other layers finds them in the store
    stored = [Reading(layer, pooling) for layer in range(backbone.n_layers + 1) for pooling in used]
    columns = [column for column, reading in enumerate(stored) if reading.layer in chosen]
    with current_progress().phase("encoding"):
        read = (_read_spans if default else _read_texts)(encoder, task.units, stored)
    readings = tuple(stored[column] for column in columns)
    return Source(name, readings, lambda index: read(columns[index]), tokens)


def _read_texts(
    encoder: Encoder, units: Sequence[TextSpan], readings: Sequence[Reading]
) -> Callable[[int], NDArray[np.float32]]:
    spec, texts = encoder.spec, [unit.text for unit in units]
    extractor = Extractor(encoder.backbone, readings, Template(spec.template), spec.max_length)
    store = Store(extractor.space())
    extractor.fill(store, texts)
    keys = text_keys(texts)
    return lambda index: store.read(keys, [index])[:, 0]


def _read_spans(
    encoder: Encoder, units: Sequence[TextSpan], readings: Sequence[Reading]
) -> Callable[[int], NDArray[np.float32]]:
    extractor = SpanExtractor(encoder.backbone, readings, encoder.spec.max_length)
    store = Store(extractor.space())
    extractor.fill(store, units)
    keys = span_keys(units)
    return lambda index: store.read(keys, [index])[:, 0]


def tokens_digest(backbone: Backbone, units: Sequence[TextSpan]) -> str:
    """Return a hash of the token ids of all texts, without special tokens."""
    total = hashlib.sha256()
    for batch in tokenising_batches(list(dict.fromkeys(unit.text for unit in units))):
        for ids in backbone.tokenizer(batch, add_special_tokens=False)["input_ids"]:
            total.update(repr(ids).encode())
    return total.hexdigest()[:16]
