"""ONNX folders as encoders, in the layout of transformers.js and optimum: config, tokenizer and `onnx/model.onnx`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from decoder2vec.backbone.fingerprint import file_sha256
from decoder2vec.backbone.machine import choose_device, quiet_transformers, token_budget
from decoder2vec.config import DEFAULT_MAX_LENGTH, fingerprint
from decoder2vec.errors import BackboneError, MissingExtraError, UnsupportedError, unknown_name
from decoder2vec.evaluation.text_encoder import FloatArray, TextEncoder
from decoder2vec.export.sentence_transformers import POOLING_FLAGS
from decoder2vec.gold import GOLD_FILE
from decoder2vec.maths.pooling import POOLINGS, pool
from decoder2vec.storage import parse_json
from decoder2vec.text.batches import plan_batches

_MODEL_FILES = ("onnx/model.onnx", "model.onnx", "onnx/model_quantized.onnx", "model_quantized.onnx")
_POOLED_OUTPUT = "sentence_embedding"
"""The output that sentence-transformers adds to a model when it exports one with its pooling."""
_SUPPORTED_MODULES = {"Transformer", "Pooling", "Normalize"}


class OnnxEncoder(TextEncoder):
    """An ONNX model with its tokenizer, pooled as the folder says.

    Args:
        folder: Holds config.json, tokenizer.json and (in `onnx/` or not) model.onnx; the pooling, prompts and maximum
            length of sentence-transformers are used where there are any.
        device: cuda or cpu; by default the best one available.
        pooling: One of `POOLINGS`; by default that of `1_Pooling/config.json`, else the mean over all tokens.

    Raises:
        BackboneError: The folder is incomplete, or onnxruntime cannot load the model.
        UnsupportedError: The model has inputs or modules that are not known here.
    """

    kind = "onnx"

    def __init__(self, folder: str | Path, device: str | None = None, pooling: str | None = None) -> None:
        self.folder = Path(folder).expanduser()
        if pooling is not None and pooling not in POOLINGS:
            raise unknown_name("pooling", pooling, POOLINGS)
        file = onnx_file(self.folder)
        if file is None:
            raise BackboneError(f"{self.folder} has none of {', '.join(_MODEL_FILES)}, so it is not an ONNX folder.")
        self._session, on_gpu = _load_session(file, device)
        self._device = torch.device("cuda" if on_gpu else "cpu")
        self._tokenizer = _load_tokenizer(self.folder)
        self._inputs = _input_names(self._session, file)
        names = [output.name for output in self._session.get_outputs()]
        self._pooled = _POOLED_OUTPUT in names and pooling is None
        modules = [] if self._pooled else _module_types(self.folder)  # else they are inside the graph
        self._output = _POOLED_OUTPUT if self._pooled else next(name for name in names if name != _POOLED_OUTPUT)
        self._normalize = "Normalize" in modules
        self.pooling = _POOLED_OUTPUT if self._pooled else pooling or _read_pooling(self.folder)
        self.max_seq_length = self._limit = _max_length(self.folder, self._tokenizer)
        self._suffix_ids = _chat_template_suffix(self.folder, self._tokenizer)
        self.dtype = "int8" if "quant" in file.name else "float32"
        settings = _read_json(self.folder / "config_sentence_transformers.json")
        self.prompts = dict(settings.get("prompts") or {})
        self.default_prompt_name = settings.get("default_prompt_name")
        weights = [file, *sorted(file.parent.glob(f"{file.name}?*"))]  # large weights lie in files of their own
        others = sorted([*self.folder.glob("*.json"), *self.folder.glob("*_*/config.json")])
        others = [path for path in others if path.name != GOLD_FILE]
        hashes = {path.relative_to(self.folder).as_posix(): file_sha256(path) for path in [*weights, *others]}
        self.fingerprint = fingerprint("onnx", hashes, self._output, self.pooling)
        self.dim = self.embed(["dimension"]).shape[1]

    def embed(self, texts: list[str]) -> FloatArray:
        """[texts, dim] vectors, computed in batches of similar length."""
        ids = self._tokenise(texts)
        vectors: FloatArray | None = None
        budget = token_budget(self._device, getattr(self, "dim", 1024))
        for rows in plan_batches([max(1, len(row)) for row in ids], budget):
            batch = self._embed_batch([ids[row] for row in rows])
            if vectors is None:
                vectors = np.empty((len(texts), batch.shape[1]), np.float32)
            vectors[rows] = batch
        assert vectors is not None
        return vectors

    def _tokenise(self, texts: list[str]) -> list[list[int]]:
        """Token ids of the texts; a chat template keeps its suffix where a text is cut, as in sentence-transformers."""
        limit = self._limit
        if self._suffix_ids is None:
            return list(self._tokenizer(texts, truncation=True, max_length=limit)["input_ids"])
        messages = [[{"role": "user", "content": text}] for text in texts]
        rendered = self._tokenizer.apply_chat_template(messages, tokenize=False)
        rows = self._tokenizer(rendered, add_special_tokens=False)["input_ids"]
        kept = limit - len(self._suffix_ids)
        return [row if len(row) <= limit else [*row[:kept], *self._suffix_ids] for row in rows]

    def _embed_batch(self, ids: Sequence[list[int]]) -> FloatArray:
        lengths = np.array([len(row) for row in ids])
        mask = np.arange(max(1, lengths.max())) < lengths[:, None]
        padded = np.full(mask.shape, self._tokenizer.pad_token_id or 0, np.int64)
        padded[mask] = np.concatenate([np.asarray(row, np.int64) for row in ids])
        arrays = {
            "input_ids": padded,
            "attention_mask": mask.astype(np.int64),
            "token_type_ids": np.zeros_like(padded),
            "position_ids": np.broadcast_to(np.arange(mask.shape[1]), mask.shape),
        }
        (output,) = self._session.run([self._output], {name: arrays[name] for name in self._inputs})
        states = torch.from_numpy(np.asarray(output, np.float32))
        if not self._pooled:
            end = torch.from_numpy(np.maximum(lengths, 1))
            states = pool(states, torch.zeros_like(end), end, [self.pooling])[:, 0]
        return (functional.normalize(states, dim=1) if self._normalize else states).numpy()

    def __repr__(self) -> str:
        return f"onnx {self.folder.name} ({self.dim} dimensions)"


def onnx_file(folder: Path) -> Path | None:
    """The ONNX model of a folder; None if there is none."""
    return next((folder / name for name in _MODEL_FILES if (folder / name).is_file()), None)


def _load_session(file: Path, device: str | None) -> tuple[Any, bool]:
    """The onnxruntime session, and whether it runs on a GPU."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "onnx") from None
    on_gpu = choose_device(device).type == "cuda" and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    providers = ["CUDAExecutionProvider"] * on_gpu + ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=providers), on_gpu
    except Exception as error:  # onnxruntime has a dozen classes without a common base
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BackboneError(f"onnxruntime cannot load {file}: {reason}") from error


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a missing or broken file raises many kinds of exceptions, which all mean this
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BackboneError(f"The tokenizer of {folder} cannot be loaded: {reason}") from error


def _input_names(session: Any, file: Path) -> list[str]:
    names = [entry.name for entry in session.get_inputs()]
    known = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    if unknown := [name for name in names if name not in known]:
        raise UnsupportedError(f"{file} needs the input {unknown[0]!r}; export the model for feature extraction.")
    return names


def _module_types(folder: Path) -> list[str]:
    """Names of the sentence-transformers modules, such as Pooling; none if the folder has no modules.json."""
    modules = _read_json(folder / "modules.json") or []
    types = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if others := set(types) - _SUPPORTED_MODULES:
        raise UnsupportedError(f"{folder} has a module {min(others)}, which its ONNX model lacks; use the full model.")
    return types


def _read_pooling(folder: Path) -> str:
    """The pooling of the folder's sentence-transformers module; mean if there is none."""
    config = _read_json(folder / "1_Pooling" / "config.json")
    if config.get("include_prompt") is False:
        raise UnsupportedError(f"{folder} leaves prompts out of the pooling; use the full model, or set a pooling.")
    modes = config.get("pooling_mode") or [name for name, flag in POOLING_FLAGS.items() if config.get(flag)] or "mean"
    modes = [modes] if isinstance(modes, str) else list(modes)
    if len(modes) > 1 or modes[0] not in POOLINGS:
        raise UnsupportedError(f"{folder} pools by {' and '.join(modes)}; give one pooling of {', '.join(POOLINGS)}.")
    return str(modes[0])


def _chat_template_suffix(folder: Path, tokenizer: Any) -> list[int] | None:
    """Tokens that the chat template puts after a text; None if the folder does not render texts by a chat template."""
    settings = _read_json(folder / "sentence_bert_config.json").get("modality_config") or {}
    if "message" not in settings or not tokenizer.chat_template:
        return None
    marker = "\x1f"
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": marker}], tokenize=False)
    return list(tokenizer(rendered.rpartition(marker)[2], add_special_tokens=False)["input_ids"])


def _max_length(folder: Path, tokenizer: Any) -> int:
    """The shortest limit that the folder states."""
    limits = [
        _read_json(folder / "sentence_bert_config.json").get("max_seq_length"),
        _read_json(folder / "config.json").get("max_position_embeddings"),
        tokenizer.model_max_length,
    ]
    limit = min(limit for limit in limits if limit)
    return int(limit) if limit < 1e9 else DEFAULT_MAX_LENGTH  # transformers writes 1e30 for "not known"


def _read_json(file: Path) -> Any:
    """The content of a JSON file; an empty dict if there is none."""
    if not file.is_file():
        return {}
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BackboneError(f"{file} is not valid JSON: {error}.") from error
