"""An encoder as a folder that sentence-transformers loads without any code of ours.

It is written in the dialect of the versions before 5.4, which newer ones read as well, and which is all that other
servers know: class paths under `sentence_transformers.models`, and a flag for each pooling.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError
from decoder2vec.export.cards import sentence_transformers_card
from decoder2vec.export.fresh_process import TOLERANCE, differences
from decoder2vec.export.plain_form import PlainForm, plain_form
from decoder2vec.export.tokenizer import check_tokenizer, write_tokenizer
from decoder2vec.export.transformers import model_to_save
from decoder2vec.heads.standardise import AffineHead
from decoder2vec.storage import atomic_folder

_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def export_sentence_transformers(encoder: Encoder, target: Path) -> str:
    """Write the folder, have sentence-transformers read it in a process of its own, and say how far it is off.

    A folder that gives other vectors than the encoder does not stay.
    """
    with atomic_folder(target) as folder:
        modules = write_folder(encoder, folder)
        check = check_folder(encoder, folder)
    return f"{' + '.join(modules)}; {check}"


def check_folder(encoder: Encoder, folder: Path) -> str:
    """Refuse a folder whose vectors are not the encoder's."""
    found = differences([(encoder, folder)])
    if found is None:
        return "not checked, since sentence-transformers is not installed"
    if not found[0] <= TOLERANCE:
        raise BackboneError(
            f"sentence-transformers reads what was written, but its vectors are off by {found[0]:.2g} where "
            f"{TOLERANCE:g} is allowed, so it was removed; please report this model family."
        )
    return f"read by sentence-transformers, the largest difference is {found[0]:.1e}"


def write_folder(encoder: Encoder, folder: Path) -> list[str]:
    """Write the folder unchecked; the names of its modules. What it cannot hold is refused before anything is."""
    form = plain_form(encoder)
    model = model_to_save(encoder)
    with quiet_transformers():
        model.save_pretrained(folder)
    write_tokenizer(encoder, folder)
    check_tokenizer(encoder, folder, form.prefix)
    modules = ["Transformer", "Pooling"]
    _write(folder / "1_Pooling" / "config.json", _pooling(encoder, form))
    if isinstance(encoder.head, AffineHead):
        modules.append("Dense")
        _write_dense(encoder.head, folder / "2_Dense")
    if encoder.spec.normalize:
        modules.append("Normalize")
    _write(folder / "modules.json", [_module(number, name) for number, name in enumerate(modules)])
    _write(folder / "sentence_bert_config.json", {"max_seq_length": encoder.max_seq_length, "do_lower_case": False})
    _write(folder / "config_sentence_transformers.json", _settings(encoder, form))
    (folder / "README.md").write_text(sentence_transformers_card(encoder, form, modules), encoding="utf-8")
    return modules


def _module(number: int, name: str) -> dict[str, Any]:
    path = f"{number}_{name}" if number else ""
    return {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}


def _pooling(encoder: Encoder, form: PlainForm) -> dict[str, Any]:
    chosen = form.reading.pooling
    return {
        "word_embedding_dimension": encoder.backbone.dim,
        **{flag: name == chosen for name, flag in _FLAGS.items()},
        "pooling_mode": chosen,
        "include_prompt": form.include_prompt,
    }


def _settings(encoder: Encoder, form: PlainForm) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "__version__": {"transformers": transformers.__version__, "pytorch": torch.__version__},
        "model_type": "SentenceTransformer",
        "prompts": form.prompts,
        "default_prompt_name": form.default,
        "similarity_fn_name": encoder.spec.similarity,
    }
    if encoder.spec.attention == "bidirectional":
        reason = "older versions ignore is_causal=False and would read the text in one direction only"
        settings["requirements"] = {"transformers": {"specifier": ">=5.2", "reason": reason}}
    return settings


def _write_dense(head: AffineHead, folder: Path) -> None:
    """(x - mean) * map as a linear layer."""
    matrix = (np.diag(head.map) if head.map.ndim == 1 else head.map).astype(np.float64)
    weight, bias = matrix.T, -head.mean.astype(np.float64) @ matrix
    _write(
        folder / "config.json",
        {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": True,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    # safetensors writes memory as it lies, whatever the strides
    tensors = {"linear.weight": weight, "linear.bias": bias}
    numbers = {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
    save_file(numbers, folder / "model.safetensors", metadata={"format": "pt"})


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
