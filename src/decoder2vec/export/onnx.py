"""Write an encoder as an ONNX model that onnxruntime runs alone: token ids and attention mask in, vectors out.

Pooling, head and normalisation are inside the graph, and so are bottleneck and convolution adapters. The
files around it are those that transformers.js, optimum and sentence-transformers expect: `onnx/model.onnx`, config,
tokenizer, and the settings of sentence-transformers.
"""

from __future__ import annotations

import inspect
import warnings
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from decoder2vec.adapters.bottleneck import BranchAdapter
from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.batch import TokenBatch
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, MissingExtraError, UnsupportedError, unknown_name
from decoder2vec.export.model_cards import onnx_card
from decoder2vec.export.onnx_check import compare_with_onnxruntime
from decoder2vec.export.reload_check import TOLERANCE
from decoder2vec.export.sentence_transformers import pooling_module, write_modules, write_tokenizer_and_settings
from decoder2vec.export.sentence_transformers_config import (
    SentenceTransformersConfig,
    count_prompt_tokens,
    unsupported,
)
from decoder2vec.export.tokenizer import joined_when_cut
from decoder2vec.export.transformers import merged_model_copy
from decoder2vec.heads.standardise import AffineHead
from decoder2vec.progress import current_progress
from decoder2vec.storage import atomic_folder

ONNX_DTYPES = ("float32", "int8")

_OPSET = 17
_OLDEST_TORCH = "2.9"
"""Of the extra `onnx`; older ones write graphs that give NaN."""
_LARGEST_FILE = 1_800_000_000
"""Bytes of weights from which they lie in a file of their own: a protobuf takes no more than 2 GB."""


def export_onnx(encoder: Encoder, target: Path, dtype: str = "float32") -> str:
    """Write the folder, run it with onnxruntime in a new process, compare its vectors, and return a description.

    Args:
        encoder: The encoder, computing in float32.
        target: Folder to write.
        dtype: "float32", or "int8" for weights and activations of 8 bits: a quarter of the size, other vectors.

    Raises:
        MissingExtraError: A package is missing, or torch is too old.
        UnsupportedError: The encoder or its family cannot be expressed as such a graph.
        BackboneError: onnxruntime computes other vectors; the folder is removed.
    """
    if dtype not in ONNX_DTYPES:
        raise unknown_name("dtype of ONNX", dtype, ONNX_DTYPES)
    for package in ("onnx", "onnxruntime"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "onnx")
    if torch.torch_version.TorchVersion(torch.__version__) < _OLDEST_TORCH:
        needed = f"torch {_OLDEST_TORCH} or later (torch {torch.__version__} writes wrong graphs)"
        raise MissingExtraError(needed, "onnx")
    config = SentenceTransformersConfig.from_encoder(encoder, (Lora, BranchAdapter))
    progress = current_progress()
    with atomic_folder(target) as folder, progress.phase("writing"):
        with progress.phase("merging"):
            graph = OnnxGraph(encoder, config)
        file = folder / "onnx" / "model.onnx"
        file.parent.mkdir()
        _write_graph(graph, file, encoder.backbone.family)
        if dtype == "int8":
            with progress.phase("quantising"):
                file = _quantise(file)
        graph.model.config.save_pretrained(folder)
        requirements = {name: needed for name, needed in _requirements(config).items() if not config.needs_own_module}
        write_tokenizer_and_settings(encoder, config, folder, "last_hidden_state", requirements)
        if not config.needs_own_module:  # sentence-transformers cannot pool what the graph alone computes
            write_modules(encoder, config, folder)
        (folder / "README.md").write_text(onnx_card(encoder, config, file.name), encoding="utf-8")
        encoder.write_gold_vectors(folder, leave_out=joined_when_cut(encoder, config.suffix))
        with progress.phase("checking"):
            difference, cosine = compare_with_onnxruntime(encoder, file)
        if not difference <= (TOLERANCE if dtype == "float32" else np.inf):
            raise BackboneError(
                f"onnxruntime runs the model, but its vectors differ by {difference:.2g} where {TOLERANCE:g} is "
                f"allowed, so the folder was removed; please report the family {encoder.backbone.family}."
            )
    measured = f"the largest difference is {difference:.1e}" + (f", cosine {cosine:.4f}" if dtype == "int8" else "")
    return f"ONNX, {dtype}, 2 inputs; run by onnxruntime alone, {measured}"


class OnnxGraph(nn.Module):
    """What the ONNX model computes.

    Args:
        encoder: The encoder; its weights are copied.
        config: Its pooling and prompts.
    """

    def __init__(self, encoder: Encoder, config: SentenceTransformersConfig) -> None:
        super().__init__()
        self.prompt_tokens = 0 if config.include_prompt else _prompt_tokens(encoder, config)
        self.model, self.state = merged_model_copy(encoder)
        adapter = encoder.backbone.adapter
        self.adapter = adapter.copy_for(self.model).cpu() if isinstance(adapter, BranchAdapter) else None
        self.pooling = pooling_module(encoder, include_prompt=True).float()
        if self.state != "hidden_states":
            self.pooling.config["readings"][0]["layer"] = 0  # the only state that it is given
        self.affine = encoder.head if isinstance(encoder.head, AffineHead) else None
        self.length = {False: None, True: 1.0, "rms": encoder.dim**0.5}[encoder.spec.normalize]
        self.takes_positions = "position_ids" in inspect.signature(self.model.forward).parameters

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """[text, token] ids and mask to [text, dim] vectors, and the [text, token, width] states that are pooled."""
        counts = attention_mask.cumsum(dim=1)
        positions = {"position_ids": (counts - 1).clamp(min=0)} if self.takes_positions else {}
        batch = TokenBatch(input_ids, attention_mask, torch.zeros_like(counts[:, -1]), counts[:, -1])
        with self.adapter.enabled(batch) if self.adapter else nullcontext():
            outputs = self.model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                use_cache=False,
                output_hidden_states=self.state != "last_hidden_state",
                **positions,
            )
        if self.state == "hidden_states":
            states = list(outputs.hidden_states)
        elif self.state == "last_hidden_state":
            states = [outputs.last_hidden_state]
        else:
            states = [outputs.hidden_states[self.state[1]]]
        padding = (attention_mask == 0).unsqueeze(-1)
        states = [state.masked_fill(padding, 0.0) for state in states]  # padding may have become NaN, which 0 * keeps
        unpooled = torch.minimum(
            torch.full_like(counts, self.prompt_tokens), counts[:, -1:] - 1
        )  # not of an empty text
        features = {"attention_mask": attention_mask * (counts > unpooled), "all_layer_embeddings": states}
        vectors = self.pooling(features)["sentence_embedding"]
        if self.affine is not None:
            centred = vectors - torch.from_numpy(self.affine.mean)
            factor = torch.from_numpy(self.affine.map)
            vectors = centred * factor if factor.ndim == 1 else centred @ factor
        if self.length is not None:
            vectors = functional.normalize(vectors, dim=1) * self.length
        return (vectors,) if self.state == "hidden_states" else (vectors, states[0])


def _prompt_tokens(encoder: Encoder, config: SentenceTransformersConfig) -> int:
    """How many leading tokens are a prompt, which is not pooled: a graph cannot be told, so all texts have as many."""
    counts = {count_prompt_tokens(encoder.backbone, prompt) if prompt else 0 for prompt in config.prompts.values()}
    if len(counts) > 1:
        raise unsupported(
            f"its prompts take {' or '.join(map(str, sorted(counts)))} tokens, and a graph that leaves them out of the "
            "pooling cannot be told how many they are; make the encoder with pooling='lasttoken', or without prompts"
        )
    return counts.pop()


def _requirements(config: SentenceTransformersConfig) -> dict[str, dict[str, str]]:
    if not config.uses_chat_template:
        return {}
    reason = "older versions have no settings for the prompt around a text"
    return {"sentence-transformers": {"specifier": ">=6.2", "reason": reason}}


def _write_graph(graph: OnnxGraph, file: Path, family: str) -> None:
    """Trace the graph and write it.

    The exporter of TorchScript handles every family with attention, in a second where the one of `torch.export` takes
    ten for the same graph. Where tracing would freeze a length, the comparison of vectors finds it.
    """
    ids = torch.arange(5, 19).reshape(2, 7)
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    outputs = ["sentence_embedding"] if graph.state == "hidden_states" else ["sentence_embedding", "last_hidden_state"]
    axes = {0: "batch_size", 1: "sequence_length"}
    try:
        with torch.no_grad(), quiet_transformers(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                graph.eval(),
                (ids, mask),
                str(file),
                input_names=["input_ids", "attention_mask"],
                output_names=outputs,
                dynamic_axes={
                    "input_ids": axes,
                    "attention_mask": axes,
                    "sentence_embedding": {0: "batch_size"},
                    "last_hidden_state": axes,
                },
                opset_version=_OPSET,
                dynamo=False,
            )
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, NotImplementedError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UnsupportedError(
            f"torch cannot write the family {family} as an ONNX graph ({reason}); export it for sentence-transformers "
            "instead."
        ) from error
    if sum(weight.numel() for weight in graph.parameters()) * 4 > _LARGEST_FILE:
        _move_weights(file)


def _move_weights(file: Path) -> None:
    """Move all weights to one file beside the graph, as programs expect it, instead of one file for each."""
    import onnx

    model = onnx.load(str(file))
    for part in file.parent.iterdir():
        part.unlink()
    onnx.save_model(model, str(file), save_as_external_data=True, location=f"{file.name}_data", size_threshold=1024)


def _quantise(file: Path) -> Path:
    """Replace a model by one with weights of 8 bits, whose activations are quantised as they are computed."""
    import logging

    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantised = file.with_name("model_quantized.onnx")
    large = file.with_name(f"{file.name}_data").exists()
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)  # it recommends a pre-processing that needs shapes
    try:
        quantize_dynamic(
            file,
            quantised,
            weight_type=QuantType.QInt8,
            per_channel=True,
            reduce_range=True,  # 7 bits: an x86 processor without VNNI adds two products in 16 bits, which overflow
            use_external_data_format=large,
        )
    finally:
        logging.root.setLevel(level)
    for part in file.parent.glob("model.onnx*"):
        part.unlink()
    return quantised
