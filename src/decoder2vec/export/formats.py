"""Export an encoder to a folder that loads without this package: in sentence-transformers, onnxruntime and others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.saving import save_adapter
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import saved_reranker_folder
from decoder2vec.errors import InputError, UnsupportedError, unknown_name
from decoder2vec.export.cross_encoder import export_cross_encoder
from decoder2vec.export.model_cards import base_model_name, peft_card
from decoder2vec.export.onnx import export_onnx
from decoder2vec.export.pruned import check_new_folder
from decoder2vec.export.sentence_transformers import export_sentence_transformers
from decoder2vec.export.transformers import export_transformers
from decoder2vec.progress import current_progress
from decoder2vec.reranker import Reranker
from decoder2vec.storage import atomic_folder, parse_json


def export(
    encoder: Encoder | Reranker | str | Path,
    format: str,
    out: str | Path,
    *,
    device: str | torch.device | None = None,
    dtype: str | None = None,
) -> str:
    """Write an encoder to a new folder that loads without this package, and check that its vectors are the same.

    The folder appears only if all of it was written and the check passed.

    Args:
        encoder: The encoder or reranker, or the folder of a saved one, which is then loaded in float32.
        format: "sentence-transformers" (model, pooling and head in one folder), "onnx" (the same as a graph that
            onnxruntime runs), "peft" (the LoRA matrices alone) or "transformers" (the language model with LoRA merged,
            without pooling); of a reranker "cross-encoder" (a CrossEncoder of sentence-transformers).
        out: Folder to write; it must be new or empty.
        device: Device to load a saved encoder on; by default the best one available. An `Encoder` stays where it is.
        dtype: Of the format onnx: "float32" (default), or "int8" for a quarter of the size and less exact vectors.

    Returns:
        One line that describes what was written and the largest difference found by the check.

    Raises:
        UnknownNameError: There is no such format.
        InputError: `out` is not empty, `encoder` is not the folder of a saved encoder, or the format has no dtype.
        MissingExtraError: The format onnx needs packages that are not installed.
        UnsupportedError: The format cannot hold this encoder; the message names the reason.
        BackboneError: The written folder cannot be loaded, or gives different vectors.

    Example:
        >>> import tempfile
        >>> import decoder2vec as d2v
        >>> encoder = d2v.Encoder.from_pretrained("tiny-llama", template="plain", device="cpu", dtype="float32")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(d2v.export(encoder, "transformers", f"{folder}/exported").split(";")[0])
        llama, causal
    """
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS)
    if dtype is not None and format != "onnx":
        raise InputError(f"The format {format} is written in float32; leave out dtype, or choose the format onnx.")
    target = Path(out)
    check_new_folder(target)
    if isinstance(encoder, str | Path):
        load = Reranker.load if saved_reranker_folder(encoder) else Encoder.load
        encoder = load(encoder, device=device, dtype="float32")
    if isinstance(encoder, Reranker) != (format == "cross-encoder"):
        what, formats = (
            ("a reranker", "cross-encoder")
            if isinstance(encoder, Reranker)
            else ("an encoder", "sentence-transformers")
        )
        raise InputError(f"This is {what}, which has no format {format}; choose {formats}.")
    description = FORMATS[format](encoder, target, **({"dtype": dtype} if dtype else {}))
    if isinstance(encoder, Encoder) and encoder.backbone.sentence_tokens:
        description += "; it reads whole texts only: sentence tokens are not exported"
    return description


def export_peft(encoder: Encoder, target: Path) -> str:
    """Write the LoRA matrices, the name of their base model and a model card; return a description."""
    adapter = encoder.backbone.adapter
    if not isinstance(adapter, Lora):
        raise UnsupportedError(
            "The format peft holds only LoRA, and this encoder has none; use the format sentence-transformers."
        )
    with current_progress().phase("writing"), atomic_folder(target) as folder:
        save_adapter(adapter, folder, encoder.backbone)
        config_file = folder / "adapter_config.json"
        config = parse_json(config_file.read_text(encoding="utf-8"))
        config["base_model_name_or_path"] = base_model_name(encoder)
        config_file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(peft_card(encoder), encoding="utf-8")
        encoder.write_gold_vectors(folder)
    return f"LoRA of rank {adapter.settings()['rank']} for {encoder.backbone.name}"


FORMATS: dict[str, Callable[..., str]] = {
    "sentence-transformers": export_sentence_transformers,
    "onnx": export_onnx,
    "peft": export_peft,
    "transformers": export_transformers,
    "cross-encoder": export_cross_encoder,
}
