"""What a user hands to an encoder, put into shape: its choices with defaults for the rest, and its texts."""

from __future__ import annotations

import json
import logging
import operator
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from tqdm.auto import tqdm

from decoder2vec.activations.extract import EncodingStats, Reader, check_texts
from decoder2vec.adapters.saving import load_adapter, save_adapter
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.config import EncoderSpec, Reading, fingerprint
from decoder2vec.errors import BackboneError, EncoderError, InputError, unknown_name
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.layerwise import Explanation, LayerwiseHead, explain_pair
from decoder2vec.heads.standardise import Head
from decoder2vec.maths.similarity import (
    PRECISIONS,
    SIMILARITIES,
    as_float_rows,
    pairwise_similarity,
    quantise,
    similarity_matrix,
)
from decoder2vec.storage import atomic_folder, check_writable
from decoder2vec.text.template import Template
from decoder2vec.version import __version__


def spec_from(name: str, choices: dict[str, Any]) -> EncoderSpec:
    """An `EncoderSpec` from the keyword arguments of `Encoder.from_pretrained`."""
    layer = choices.pop("layer", -1)
    layers: list[Any] = [layer] if np.ndim(layer) == 0 else list(layer)
    reading = (choices.pop("pooling", "lasttoken"), choices.pop("normed", False))
    template = Template.of(choices.pop("template", "prompteol")).string
    prompts = tuple(dict(choices.pop("prompts", {})).items())
    if unknown := choices.keys() - EncoderSpec.__dataclass_fields__:
        raise unknown_name("choice", unknown.pop(), EncoderSpec.__dataclass_fields__)
    readings = tuple(Reading(operator.index(number), *reading) for number in layers)
    return EncoderSpec(name, readings, template, prompts=prompts, **choices)


def as_list(inputs: Any) -> list[str]:
    """Texts as a list; what is no collection of texts is refused."""
    if isinstance(inputs, bytes | bytearray | Mapping) or not hasattr(inputs, "__iter__"):
        raise InputError(f"encode() takes a text or a list of texts, not {type(inputs).__name__}.")
    return list(inputs)


def choose_prompt(prompts: Mapping[str, str], name: str | None, prompt: str | None) -> str:
    """The instruction that is asked for, by name or as it is; nothing if none is."""
    if prompt is None and name is not None:
        if name not in prompts:
            raise unknown_name("prompt", name, prompts or ["(this encoder has no prompts)"])
        prompt = prompts[name]
    return prompt or ""


_FILE = "encoder.json"
_ADAPTER = "adapter"
_ADAPTERS = "adapters"

AnyHead = Head | LayerwiseHead


def is_encoder_folder(folder: str | Path) -> bool:
    """Does an encoder live there?"""
    return (Path(folder) / _FILE).is_file()


def check_output_folder(target: Path) -> None:
    """Refuse a place where something other than an encoder stands, or where nothing can be written."""
    if target.exists() and not is_encoder_folder(target) and (not target.is_dir() or any(target.iterdir())):
        what = "is not empty and not an encoder" if target.is_dir() else "is a file"
        raise InputError(f"{target} {what}; choose another folder.")
    check_writable(target)


def write_encoder(
    target: Path,
    description: dict[str, Any],
    head: AnyHead | None,
    backbone: Backbone,
    weights: Path | None = None,
    extras: Mapping[str, bytes] | None = None,
) -> None:
    """Write all of it beside the target, then put it in the target's place; nothing is lost if that is cut short.

    `weights` is a folder to copy the model from, if it is to come along. `extras` are further files by name: the
    card and the record of a training run.
    """
    target = target.resolve()  # a link to another disk stays a link
    check_output_folder(target)
    new = target.with_name(f".{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)  # what a killed save left behind
    with atomic_folder(new) as temporary:
        text = json.dumps({**description, "head": head.kind if head else None}, indent=1)
        (temporary / _FILE).write_text(text + "\n", encoding="utf-8")
        if head:
            head.save(temporary / "head.safetensors")
        for name, content in (extras or {}).items():
            (temporary / name).write_bytes(content)
        if backbone.adapter:
            save_adapter(backbone.adapter, temporary / _ADAPTER, backbone)
        for name, adapter in backbone.adapters.items():
            save_adapter(adapter, temporary / _ADAPTERS / name, backbone)
        if weights:
            shutil.copytree(weights, temporary / "backbone")
    if target.exists():
        shutil.rmtree(target)
    new.rename(target)


def read_encoder(home: Path) -> tuple[dict[str, Any], AnyHead | None, Path | None]:
    """The description, the head and the folder of the backbone, if it lives inside."""
    try:
        description = json.loads((home / _FILE).read_text(encoding="utf-8"))
        kind = description["head"]
        for key in ("spec", "backbone_fingerprint"):
            description[key]
    except OSError as error:
        raise InputError(f"{home} is not the folder of a saved encoder: it has no {_FILE}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EncoderError(f"{home} is not a saved encoder: {error}") from error
    backbone = home / "backbone"
    return description, _read_head(home / "head.safetensors", kind), backbone if backbone.is_dir() else None


def as_saved(backbone: Backbone, home: Path, description: dict[str, Any]) -> Backbone:
    """The backbone as the encoder in that folder reads it, with its adapter; weights that have changed are refused."""
    expected = description["backbone_fingerprint"]
    if backbone.fingerprint != expected:
        raise BackboneError(
            f"The weights of {backbone.name} are not those this encoder was made with "
            f"({backbone.fingerprint}, expected {expected})."
        )
    for folder in sorted((home / _ADAPTERS).glob("*/")):
        backbone.adapters[folder.name] = load_adapter(folder, backbone)
    own = home / _ADAPTER
    return backbone.with_adapter(load_adapter(own, backbone)) if own.is_dir() else backbone


def named_adapter(name: str, home: Path, backbone: Backbone) -> Adapter:
    """The adapter of a saved encoder, to be kept under a name that can be a folder's."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise InputError(f"An adapter's name has letters, digits, - and _ only, unlike {name!r}.")
    return load_adapter(home / _ADAPTER, backbone)


def _read_head(file: Path, kind: str | None) -> AnyHead | None:
    if kind is None:
        return None
    try:
        return LayerwiseHead.load(file) if kind == LayerwiseHead.kind else Head.load(file, kind)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise EncoderError(f"The head in {file} cannot be read ({error}); train or save the encoder again.") from error


log = logging.getLogger(__name__)

_TOKENS_PER_TEXT = 64
"""`batch_size` counts texts; batches are cut by tokens, this many for each text."""


class Encoder:
    """A text encoder made of a decoder. Make one with `from_pretrained`, keep it with `save`."""

    def __init__(self, backbone: Backbone, spec: EncoderSpec, head: AnyHead | None = None) -> None:
        if spec.similarity not in SIMILARITIES:
            raise unknown_name("similarity", spec.similarity, SIMILARITIES)
        readings = tuple(replace(reading, layer=backbone.resolve_layer(reading.layer)) for reading in spec.readings)
        self.backbone = backbone
        self.spec = replace(spec, readings=readings, attention=backbone.attention)
        self.head = head.to(backbone.device) if isinstance(head, LayerwiseHead) else head
        self.stats = EncodingStats()
        """Texts, tokens and seconds of everything encoded so far."""
        self._reader(None, None)  # a wrong pooling, template or length limit is refused now, not at first use

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        layer: int | Sequence[int] | None = None,
        pooling: str | None = None,
        normed: bool | None = None,
        template: str | None = None,
        attention: str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        **choices: Any,
    ) -> Encoder:
        """An encoder that reads `layer` of any decoder, or the one saved in the folder `name`.

        By default it reads the last token of the last layer under the "prompteol" template: a good start for most
        decoders; `d2v sweep` finds what is best for one on your own pairs. `layer` may be several layers, which are
        concatenated. `choices` are further fields of `EncoderSpec`: max_length, on_overflow, normalize, similarity,
        prompts.
        """
        choices |= {"layer": layer, "pooling": pooling, "normed": normed, "template": template, "attention": attention}
        choices = {key: value for key, value in choices.items() if value is not None}
        if is_encoder_folder(name):
            if choices:
                raise InputError(f"{name} is a saved encoder and its choices are made; leave out {', '.join(choices)}.")
            return cls.load(name, device=device, dtype=dtype)
        backbone = Backbone.load(name, attention=choices.pop("attention", None), device=device, dtype=dtype)
        return cls(backbone, spec_from(str(name), choices))

    def encode(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Vectors of texts: a string gives one vector, a list gives [n, dim], an empty list [0, dim].

        Arguments mean what they mean in sentence-transformers, with three differences. A `prompt` is never
        pooled, and one that contains {text} replaces the template. `batch_size` counts texts of 64 tokens, and
        by default suits the device. Numpy and torch are the only outputs: `convert_to_tensor` chooses.
        """
        if kwargs:
            raise InputError(f"encode() has no argument {', '.join(map(repr, kwargs))}.")
        if output_value != "sentence_embedding":
            raise InputError(f"output_value {output_value!r} is not offered; only 'sentence_embedding' is.")
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size must be 1 or more, not {batch_size}.")
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, PRECISIONS)
        if device is not None:
            self.to(device)
        texts = [inputs] if isinstance(inputs, str) else as_list(inputs)
        vectors = self._vectors(texts, choose_prompt(self.prompts, prompt_name, prompt), batch_size, show_progress_bar)
        if truncate_dim is not None:
            vectors = vectors[:, :truncate_dim]
        if normalize_embeddings or self.spec.normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        result = quantise(vectors, precision) if len(vectors) else vectors
        result = result[0] if isinstance(inputs, str) else result
        if convert_to_tensor or not convert_to_numpy:
            return torch.from_numpy(np.ascontiguousarray(result)).to(self.device)
        return result

    def encode_query(self, inputs: str | Sequence[str], **kwargs: Any) -> Any:
        """`encode` with the prompt called "query", where there is one."""
        return self.encode(inputs, **self._role(kwargs, "query"))

    def encode_document(self, inputs: str | Sequence[str], **kwargs: Any) -> Any:
        """`encode` with the prompt called "document", "passage" or "corpus", where there is one."""
        return self.encode(inputs, **self._role(kwargs, "document", "passage", "corpus"))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """[n, m] similarities of all embeddings with all others."""
        if pair_head := self._pair_head():
            return pair_head.similarity(as_float_rows(embeddings1), as_float_rows(embeddings2))
        return similarity_matrix(self.spec.similarity, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """[n] similarities, row by row."""
        if pair_head := self._pair_head():
            return pair_head.similarity_pairwise(as_float_rows(embeddings1), as_float_rows(embeddings2))
        return pairwise_similarity(self.spec.similarity, embeddings1, embeddings2)

    def score(self, texts1: str | Sequence[str], texts2: str | Sequence[str], **kwargs: Any) -> Any:
        """Scores of pairs of texts between 0 and 1, as people would give them if the encoder was trained on such.

        Equal texts score exactly 1 (except under the paper's own "mlp" head). Two strings give one number.
        """
        one = isinstance(texts1, str)
        if one != isinstance(texts2, str) or (not one and len(texts1) != len(texts2)):
            raise InputError("score() takes two texts, or two lists of as many texts.")
        left, right = ([texts1], [texts2]) if one else (as_list(texts1), as_list(texts2))
        place = {text: row for row, text in enumerate(dict.fromkeys([*left, *right]))}  # equal texts are read once
        vectors = self.encode(list(place), **kwargs)
        raw = self.similarity_pairwise(vectors[[place[t] for t in left]], vectors[[place[t] for t in right]])
        scores = (self.head.calibration if isinstance(self.head, LayerwiseHead) else Calibration())(raw).numpy()
        return float(scores[0]) if one else scores

    def explain(self, text1: str, text2: str) -> Explanation:
        """Which layers say that two texts are similar: cosine and contribution of each reading of a trained encoder."""
        return explain_pair(self.head, self.spec.readings, self.encode([text1, text2]))

    def add_adapter(self, name: str, folder: str | Path) -> None:
        """Take over the adapter of another encoder of the same weights, under a name; `save` keeps it."""
        self.backbone.adapters[name] = named_adapter(name, Path(folder), self.backbone)

    def through(self, name: str) -> Encoder:
        """The same encoder read through an adapter by name; weights are shared, so to switch costs nothing."""
        if name not in self.backbone.adapters:
            raise unknown_name("adapter", name, self.backbone.adapters or ["(this encoder has no named adapters)"])
        return Encoder(self.backbone.with_adapter(self.backbone.adapters[name]), self.spec, self.head)

    def with_head(self, kind: str, texts: Sequence[str], **kwargs: Any) -> Encoder:
        """The same encoder with a head of that kind, fitted on unlabelled texts."""
        bare = Encoder(self.backbone, replace(self.spec, normalize=False))
        vectors = bare.encode(list(dict.fromkeys(check_texts(texts))), **kwargs)
        return Encoder(self.backbone, self.spec, Head.fit(kind, vectors))

    def save(
        self, folder: str | Path, *, copy_backbone: bool = False, extras: Mapping[str, bytes] | None = None
    ) -> Path:
        """Write the encoder to a new folder, with further files by name if there are `extras`.

        The backbone is named, with its fingerprint, rather than copied: built-ins and hub models are found again
        anywhere. `copy_backbone` puts the weights beside it, for a folder that stands alone.
        """
        target = Path(folder)
        source = resolve_model_folder(self.backbone.name)
        inside = source.resolve().is_relative_to(target.resolve())  # saved over itself: its weights must come along
        description = {
            "decoder2vec": __version__,
            "fingerprint": self.fingerprint,
            "backbone_fingerprint": self.backbone.fingerprint,
            "dim": self.dim,
            "spec": replace(self.spec, backbone=self.backbone.name).to_json(),
        }
        write_encoder(
            target, description, self.head, self.backbone, source if copy_backbone or inside else None, extras
        )
        return target

    save_pretrained = save

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
    ) -> Encoder:
        """Read what `save` wrote; weights that have changed since are refused."""
        home = Path(folder)
        description, head, inside = read_encoder(home)
        spec = EncoderSpec.from_json(description["spec"])
        place = inside or spec.backbone
        backbone = Backbone.load(place, attention=spec.attention, device=device, dtype=dtype)
        return cls(as_saved(backbone, home, description), spec, head)

    def to(self, device: str | torch.device) -> Encoder:
        """Move the weights."""
        self.backbone.to(device)
        if isinstance(self.head, LayerwiseHead):
            self.head.to(device)
        return self

    @property
    def fingerprint(self) -> str:
        """Names the embedding space: two encoders with the same one give comparable vectors."""
        choices = {key: value for key, value in self.spec.to_json().items() if key != "backbone"}
        return fingerprint(self.backbone.effective_fingerprint, choices, self.head.digest() if self.head else None)

    @property
    def dim(self) -> int:
        """Width of a vector."""
        return self.head.dim if self.head else len(self.spec.readings) * self.backbone.dim

    def get_embedding_dimension(self) -> int:
        """Width of a vector."""
        return self.dim

    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a prompt that are read."""
        return min(self.spec.max_length, self.backbone.context_length or self.spec.max_length)

    @property
    def similarity_fn_name(self) -> str:
        """Which similarity the embeddings are made for."""
        return self.spec.similarity

    @property
    def prompts(self) -> dict[str, str]:
        """Instructions by name."""
        return dict(self.spec.prompts)

    @property
    def tokenizer(self) -> Any:
        """The backbone's tokenizer."""
        return self.backbone.tokenizer

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.backbone.device

    def __repr__(self) -> str:
        readings = " + ".join(map(str, self.spec.readings[:3])) + (" + ..." if len(self.spec.readings) > 3 else "")
        head = f", {self.head.kind}" if self.head else ""
        return f"Encoder({self.backbone.name}: {readings}, {self.spec.template!r}, {self.spec.attention}{head})"

    def _vectors(self, texts: list[str], prompt: str, batch_size: int | None, show: bool | None) -> NDArray[np.float32]:
        if not texts:
            return np.empty((0, self.dim), np.float32)
        reader = self._reader(prompt, batch_size)
        shown = log.getEffectiveLevel() <= logging.INFO if show is None else show
        vectors = np.empty((len(texts), self.dim), np.float32)
        with tqdm(total=len(texts) * reader.passes, desc="Texts", disable=not shown) as bar:
            for begin in range(0, len(texts), reader.at_once):
                part = slice(begin, begin + reader.at_once)
                latents = reader(texts[part], bar.update).reshape(len(texts[part]), -1)
                vectors[part] = self.head(latents) if self.head else latents
        self.stats += reader.stats
        return vectors

    def _reader(self, prompt: str | None, batch_size: int | None) -> Reader:
        return Reader.of(self.backbone, self.spec, batch_size and batch_size * _TOKENS_PER_TEXT, prompt or "")

    def _pair_head(self) -> LayerwiseHead | None:
        return self.head if isinstance(self.head, LayerwiseHead) and self.head.pairwise else None

    def _role(self, kwargs: Mapping[str, Any], *names: str) -> dict[str, Any]:
        chosen = kwargs.get("prompt") is not None or kwargs.get("prompt_name") is not None
        known = next((name for name in names if name in self.prompts), None)
        return dict(kwargs) if chosen or known is None else {**kwargs, "prompt_name": known}
