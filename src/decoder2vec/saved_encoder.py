"""The files of a saved encoder: writing its folder, and reading its description, head and adapters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from decoder2vec.adapters.saving import load_adapter, save_adapter
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.encoder_folder import (
    ADAPTER_FOLDER,
    BACKBONE_FOLDER,
    DESCRIPTION_FILE,
    HEAD_FILE,
    NAMED_ADAPTERS_FOLDER,
    SENTENCE_TOKENS_FOLDER,
    check_output_folder,
)
from decoder2vec.errors import BackboneError, EncoderError, InputError
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.heads.standardise import AffineHead
from decoder2vec.storage import atomic_folder, parse_json, real_path

AnyHead = AffineHead | LayerwiseHead


def write_encoder_folder(
    target: Path,
    description: dict[str, Any],
    backbone: Backbone,
    head: AnyHead | None,
    weights: Path | None,
    lora_dtype: str,
    extra_files: Mapping[str, bytes],
    write_gold_vectors: Callable[[Path], object],
) -> None:
    """Write everything next to the target, then put it in its place; a kill leaves the old encoder or the new one.

    Args:
        target: The folder.
        description: What `encoder.json` says.
        backbone: The model, whose adapters are written.
        head: The head, if there is one.
        weights: Folder of the backbone, if it is to be copied.
        lora_dtype: How the active adapter is stored, if it is a LoRA.
        extra_files: Further files to write, by name.
        write_gold_vectors: Writes the vectors of fixed texts into a folder.
    """
    target = real_path(target)  # a link to another disk stays a link
    check_output_folder(target)
    with atomic_folder(target, replace=True) as temporary:
        if head:
            head.save(temporary / HEAD_FILE)
        for name, content in extra_files.items():
            (temporary / name).write_bytes(content)
        if backbone.adapter:
            save_adapter(backbone.adapter, temporary / ADAPTER_FOLDER, backbone, lora_dtype)
        if backbone.sentence_tokens:
            save_adapter(backbone.sentence_tokens, temporary / SENTENCE_TOKENS_FOLDER, backbone)
        for name, adapter in backbone.adapters.items():
            save_adapter(adapter, temporary / NAMED_ADAPTERS_FOLDER / name, backbone)
        if weights:
            shutil.copytree(weights, temporary / BACKBONE_FOLDER)
        write_gold_vectors(temporary)
        files = sorted(file.relative_to(temporary).as_posix() for file in temporary.rglob("*") if file.is_file())
        description = {**description, "files": [DESCRIPTION_FILE, *files]}
        (temporary / DESCRIPTION_FILE).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")


def read_encoder_folder(folder: Path) -> tuple[dict[str, Any], AnyHead | None]:
    """The description and the head of a saved encoder."""
    try:
        description = parse_json((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
        kind = description["head"]
        for key in ("spec", "backbone_fingerprint"):
            description[key]
        if not isinstance(kind, str | None):
            raise TypeError(f"head is {kind!r}")
    except OSError as error:
        raise InputError(f"{folder} is not the folder of a saved encoder: it has no {DESCRIPTION_FILE}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EncoderError(f"{folder} is not a saved encoder: {error}") from error
    return description, _read_head(folder / HEAD_FILE, kind)


def _read_head(file: Path, kind: str | None) -> AnyHead | None:
    if kind is None:
        return None
    try:
        return LayerwiseHead.load(file) if kind == LayerwiseHead.kind else AffineHead.load(file, kind)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise EncoderError(f"The head in {file} cannot be read ({error}); train or save the encoder again.") from error


def restore_adapters(backbone: Backbone, folder: Path, expected_fingerprint: str) -> Backbone:
    """The backbone with the adapters of a saved encoder; raises an error if its weights have changed."""
    if backbone.fingerprint != expected_fingerprint:
        raise BackboneError(
            f"The weights of {backbone.name} are not those this encoder was made with "
            f"({backbone.fingerprint}, expected {expected_fingerprint})."
        )
    for adapter_folder in sorted((folder / NAMED_ADAPTERS_FOLDER).glob("*/")):
        backbone.adapters[adapter_folder.name] = load_adapter(adapter_folder, backbone)
    backbone = with_sentence_tokens(backbone, folder)
    active = folder / ADAPTER_FOLDER
    return backbone.with_adapter(load_adapter(active, backbone)) if active.is_dir() else backbone


def with_sentence_tokens(backbone: Backbone, folder: Path | None = None) -> Backbone:
    """The backbone with the sentence tokens that a folder has, if any.

    Args:
        backbone: The model.
        folder: Folder of a saved encoder; by default that of the model itself, which has them if it was pruned.
    """
    tokens = (folder or Path(backbone.name)) / SENTENCE_TOKENS_FOLDER
    return replace(backbone, sentence_tokens=load_adapter(tokens, backbone)) if tokens.is_dir() else backbone


def adapter_digests(backbone: Backbone) -> dict[str, str]:
    """The hash of each named adapter; that of the sentence tokens has a name that no adapter has."""
    digests = {name: adapter.digest() for name, adapter in backbone.adapters.items()}
    return digests | ({"<sentence tokens>": backbone.sentence_tokens.digest()} if backbone.sentence_tokens else {})
