"""Encoders that start at once: a saved encoder of a Llama in NumPy, without torch, for commands that read a few texts.

`d2v similarity` and `d2v search` read one or two texts and end. Most of their time went into importing torch and
transformers. A `QuickEncoder` gives the vectors of `Encoder` without them, for what it supports: the built-in encoder,
and others whose model is a Llama in float32 with LoRA or no adapter, and with an affine head or none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from decoder2vec.backbone.fingerprint import folder_fingerprint
from decoder2vec.backbone.numpy_llama import LowRank, NumpyLlama, States
from decoder2vec.backbone.sources import BUILTIN_MODELS, builtin_folder
from decoder2vec.config import DOCUMENT_PROMPTS, EncoderSpec, fingerprint
from decoder2vec.encoder_folder import (
    ADAPTER_FOLDER,
    BACKBONE_FOLDER,
    DESCRIPTION_FILE,
    HEAD_FILE,
    read_probabilities,
    saved_encoder_folder,
)
from decoder2vec.heads.standardise import AFFINE_HEADS, AffineHead
from decoder2vec.maths.probability import ProbabilityCurve
from decoder2vec.maths.similarity import check_finite, normalise
from decoder2vec.storage import parse_json
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Prompt, Tokeniser

if TYPE_CHECKING:
    from decoder2vec.encoder import Encoder

Vectors = NDArray[np.float32]

_TOKENIZER_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Tokenizers that are exactly what `tokenizer.json` says."""


def open_for_queries(
    name: str | Path, device: str | None = None, dtype: str | None = None, **options: Any
) -> QuickEncoder | Encoder:
    """Return an encoder for a few texts: a `QuickEncoder` where it is supported, else an `Encoder`.

    Args:
        name: As for `Encoder.from_pretrained`.
        device: A device other than the CPU needs an `Encoder`.
        dtype: A dtype other than float32 needs an `Encoder`.
        options: Options of `Encoder.from_pretrained`, for a model; None means the default.
    """
    is_plain = device in (None, "cpu") and dtype in (None, "float32")
    if is_plain and all(value is None for value in options.values()) and (quick := QuickEncoder.load(name)):
        return quick
    from decoder2vec.encoder import Encoder

    return Encoder.from_pretrained(name, device=device, dtype=dtype, **options)


class QuickEncoder:
    """A saved encoder in NumPy.

    Args:
        model: The model with the updates of the adapter.
        tokenizer: Its tokenizer.
        spec: The description of the encoder.
        head: What follows pooling.
        fingerprint: That of the embedding space.
    """

    def __init__(
        self, model: NumpyLlama, tokenizer: _FileTokenizer, spec: EncoderSpec, head: AffineHead | None, fingerprint: str
    ) -> None:
        self.model, self.spec, self.head, self.fingerprint = model, spec, head, fingerprint
        self.probabilities: dict[str, ProbabilityCurve] = {}
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, name: str | Path) -> QuickEncoder | None:
        """Load a saved encoder; None if it is not supported, not complete, or not a saved encoder at all."""
        folder = saved_encoder_folder(name)
        try:
            return cls._load(folder) if folder else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # `Encoder` says what is wrong with it

    @classmethod
    def _load(cls, folder: Path) -> QuickEncoder | None:
        description = parse_json((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
        spec = EncoderSpec.from_json(description["spec"])
        model_folder = _model_folder(folder, spec.backbone)
        if model_folder is None or not _is_supported(spec) or description["head"] not in (None, *AFFINE_HEADS):
            return None
        weights_fingerprint = folder_fingerprint(model_folder)
        if weights_fingerprint != description["backbone_fingerprint"]:
            return None
        lora = _Lora.load(folder / ADAPTER_FOLDER)
        tokenizer = _FileTokenizer.load(model_folder)
        model = NumpyLlama.load(model_folder, lora.updates if lora else {})
        head = AffineHead.load(folder / HEAD_FILE, description["head"]) if description["head"] else None
        settings = {key: value for key, value in spec.to_json().items() if key != "backbone"}
        effective = fingerprint(weights_fingerprint, lora.digest()) if lora else weights_fingerprint
        found = fingerprint(effective, settings, head.digest() if head else None)
        if model is None or tokenizer is None or found != description["fingerprint"]:
            return None
        encoder = cls(model, tokenizer, spec, head, found)
        encoder.probabilities = read_probabilities(description, folder)
        return encoder

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return self.head.dim if self.head else len(self.spec.readings) * self.model.dim

    @property
    def similarity_fn_name(self) -> str:
        """Name of the similarity function."""
        return self.spec.similarity

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by name."""
        return dict(self.spec.prompts)

    def encode(self, inputs: Sequence[str], prompt_name: str | None = None) -> Vectors:
        """Return [texts, dim] vectors.

        Args:
            inputs: The texts.
            prompt_name: The name of one of `prompts` to put in front of every text.
        """
        template = Template.of(self.spec.template).with_prefix(self.prompts[prompt_name] if prompt_name else "")
        limit = min(self.spec.max_length, self._tokenizer.context_length or self.spec.max_length)
        prompts = Tokeniser(self._tokenizer, template, limit, self.spec.on_overflow)(inputs).prompts
        with threadpool_limits(1, "blas"):  # threads wait for each other longer than such small products take
            # each alone: BLAS sums a row in another order if there are more rows, and the vector would depend on them
            vectors = [self._read([prompt]) for prompt in prompts]
        stacked = np.concatenate(vectors) if vectors else np.empty((0, self.dim), np.float32)
        stacked = self.head(stacked) if self.head and len(stacked) else stacked
        check_finite(stacked, inputs)
        return normalise(stacked, self.spec.normalize)

    def encode_query(self, inputs: Sequence[str]) -> Vectors:
        """Call `encode` with the prompt named "query", if there is one."""
        return self.encode(inputs, "query" if "query" in self.prompts else None)

    def encode_document(self, inputs: Sequence[str]) -> Vectors:
        """Call `encode` with the first existing prompt of "document", "passage" and "corpus"."""
        return self.encode(inputs, next((name for name in DOCUMENT_PROMPTS if name in self.prompts), None))

    def similarity(self, embeddings1: Vectors, embeddings2: Vectors) -> Vectors:
        """Return [n, m] similarities."""
        a, b = np.asarray(embeddings1, np.float64)[:, None], np.asarray(embeddings2, np.float64)[None]
        if self.spec.similarity == "euclidean":
            result = -np.linalg.norm(a - b, axis=-1)
        elif self.spec.similarity == "manhattan":
            result = -np.abs(a - b).sum(-1)
        else:
            result = (a * b).sum(-1)
            if self.spec.similarity == "cosine":
                lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
                result = result / np.maximum(lengths, 1e-12)
        return np.asarray(result, np.float32)

    def _read(self, prompts: Sequence[Prompt]) -> Vectors:
        layers = sorted({reading.layer for reading in self.spec.readings})
        states = self.model.states([prompt.ids for prompt in prompts], layers, causal=self.spec.attention == "causal")
        ends = np.cumsum([len(prompt.ids) for prompt in prompts])
        columns = []
        for reading in self.spec.readings:
            layer = self.model.final_norm(states[reading.layer]) if reading.normed else states[reading.layer]
            texts = zip(prompts, ends, strict=True)
            columns.append(
                [_POOLINGS[reading.pooling](layer[end - len(prompt.ids) + prompt.start : end]) for prompt, end in texts]
            )
        return np.concatenate([np.stack(column) for column in columns], axis=1).astype(np.float32)


@dataclass(frozen=True)
class _FileTokenizer:
    """What `Tokeniser` asks of a backbone, from the files of a model folder."""

    backend_tokenizer: Any
    context_length: int | None
    missing_bos_token_id: int | None
    empty_text_token_id: int
    vocabulary_size: int

    @property
    def tokenizer(self) -> _FileTokenizer:
        """Where a backbone has its tokenizer."""
        return self

    @classmethod
    def load(cls, folder: Path) -> _FileTokenizer | None:
        """Read the files; None if the tokenizer is not simply what `tokenizer.json` says."""
        from tokenizers import Tokenizer

        config = parse_json((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        if config["tokenizer_class"] not in _TOKENIZER_CLASSES or config.get("add_eos_token"):
            return None
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        bos, eos, pad = (_token_id(backend, config.get(f"{name}_token")) for name in ("bos", "eos", "pad"))
        adds_bos = config.get("add_bos_token") and bos is not None and bos not in backend.encode("a").ids
        empty = next(token_id for token_id in (bos, eos, pad, 0) if token_id is not None)
        model = parse_json((folder / "config.json").read_text(encoding="utf-8"))
        limit, vocabulary_size = model.get("max_position_embeddings"), model["vocab_size"]
        return cls(backend, limit, bos if adds_bos else None, empty, vocabulary_size)


@dataclass(frozen=True)
class _Lora:
    """The LoRA of a saved encoder."""

    settings: dict[str, Any]
    matrices: dict[str, States]
    """By peft's names, without scaling."""

    @classmethod
    def load(cls, folder: Path) -> _Lora | None:
        """Read the folder of an adapter; None if there is none, an error if it is another adapter."""
        from safetensors.numpy import load_file

        if not folder.is_dir():
            return None
        description = parse_json((folder / "adapter.json").read_text(encoding="utf-8"))
        if description["kind"] != "lora":
            raise ValueError(description["kind"])
        names = ("adapter.safetensors", "adapter_model.safetensors")  # in int8, or as peft writes it
        stored = load_file(next(folder / name for name in names if (folder / name).is_file()))
        matrices = {
            name: matrix.astype(np.float32) * stored[name.removesuffix("weight") + "scale"]
            if matrix.dtype == np.int8
            else matrix.astype(np.float32)
            for name, matrix in stored.items()
            if name.endswith(".weight")
        }
        return cls(description["settings"], matrices)

    @cached_property
    def updates(self) -> Mapping[str, LowRank]:
        """The updates by the path of their layer."""
        scaling = np.float32(self.settings["alpha"] / self.settings["rank"])
        return {
            path.removeprefix("model."): (
                scaling * self.matrices[_peft_name(path, "A")],
                self.matrices[_peft_name(path, "B")],
            )
            for path in self._paths()
        }

    def digest(self) -> str:
        """The digest of `decoder2vec.adapters.lora.Lora`, which stacks the matrices of equal layers."""
        groups: dict[str, list[str]] = {}
        for path in self._paths():
            _, _, layer = path.partition("layers.")[2].partition(".")
            sizes = (self.matrices[_peft_name(path, "A")].shape[1], self.matrices[_peft_name(path, "B")].shape[0])
            groups.setdefault(f"{layer.replace('.', '-')}-{'x'.join(map(str, sizes))}", []).append(path)
        sha256 = hashlib.sha256(repr(sorted(self.settings.items())).encode())
        for part, letter in (("lower", "A"), ("upper", "B")):
            for group, paths in sorted(groups.items()):
                sha256.update(f"{part}.{group}".encode())
                for path in paths:
                    sha256.update(np.ascontiguousarray(self.matrices[_peft_name(path, letter)]).data)
        return sha256.hexdigest()[:16]

    def _paths(self) -> list[str]:
        """Paths of the layers, those of lower blocks first."""
        suffix = ".lora_A.weight"
        names = [name.removesuffix(suffix) for name in self.matrices if name.endswith(suffix)]
        paths = [name.removeprefix("base_model.model.") for name in names]
        return sorted(paths, key=lambda path: int(path.partition("layers.")[2].partition(".")[0]))


def _peft_name(path: str, letter: str) -> str:
    return f"base_model.model.{path}.lora_{letter}.weight"


def _model_folder(encoder_folder: Path, backbone: str) -> Path | None:
    """The folder of the model if it is on this machine already."""
    copied, path = encoder_folder / BACKBONE_FOLDER, Path(backbone).expanduser()
    candidates = [copied, *([builtin_folder(backbone)] if backbone in BUILTIN_MODELS else []), path]
    return next((folder for folder in candidates if (folder / "config.json").is_file()), None)


def _is_supported(spec: EncoderSpec) -> bool:
    return (
        spec.attention in ("causal", "bidirectional")
        and spec.on_overflow == "truncate"
        and all(reading.pooling in _POOLINGS and not reading.template for reading in spec.readings)
    )


def _token_id(backend: Any, token: str | Mapping[str, Any] | None) -> int | None:
    """The id of a special token, which is written as a string or a table."""
    content = token["content"] if isinstance(token, Mapping) else token
    return backend.token_to_id(content) if content else None


_POOLINGS: dict[str, Callable[[States], States]] = {
    "lasttoken": lambda states: states[-1],
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(0),
    "sum": lambda states: states.sum(0),
    "max": lambda states: states.max(0),
    "weightedmean": lambda states: np.average(states, axis=0, weights=np.arange(1, len(states) + 1)),
}
