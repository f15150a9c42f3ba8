"""A model without its upper layers, as a folder like that of any other model: blocks are gone, not skipped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.activations.extract import Extractor
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import blocks_share_weights, count_parameters, keep_first_blocks
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.config import Reading
from decoder2vec.errors import BackboneError, InputError, UnsupportedError
from decoder2vec.export.transformers import copy_tokenizer
from decoder2vec.storage import atomic_folder

NOTE = "pruning.json"
_TOLERANCE = 1e-3
_TEXTS = ("A", "A cat sleeps.", "The long road goes over the green hills and down to the sea, where nobody waits. " * 2)


@dataclass(frozen=True)
class Cut:
    """What was cut, counted on what was written."""

    layers: int
    layers_before: int
    parameters: int
    """Of all that an encoder loads: embeddings, blocks and final norm. The language-model head is not among it."""
    parameters_before: int
    embeddings: int
    """How many of them are the embeddings, which no cut makes fewer."""
    off: float
    """The largest difference of a vector from that of the whole model's layer, relative to its length."""

    @property
    def share(self) -> float:
        """The part of the parameters that is left."""
        return self.parameters / self.parameters_before

    def __str__(self) -> str:
        return (
            f"{self.layers} of {self.layers_before} layers, {self.parameters:,} of {self.parameters_before:,} "
            f"parameters ({100 * self.share:.1f} %), {self.embeddings:,} of them embeddings; "
            f"loaded again, the largest difference is {self.off:.1e}"
        )


def write_pruned(backbone: Backbone, depth: int, target: Path, note: Mapping[str, Any] | None = None) -> Cut:
    """Write the model with its first `depth` blocks, load it again and compare it with that layer of the whole model.

    What was cut is written beside it (pruning.json), after what `note` says. A folder that gives other vectors, or a
    family whose blocks cannot be taken away, leaves nothing behind.
    """
    check_new(target)
    if not 1 <= depth < backbone.n_layers:
        raise InputError(f"{backbone.name} has {backbone.n_layers} layers; keep 1 to {backbone.n_layers - 1} of them.")
    if blocks_share_weights(backbone.model):
        raise UnsupportedError(f"The blocks of {backbone.family} share weights, so none of them can be taken away.")
    if backbone.adapter is not None:
        raise UnsupportedError(
            f"A model is cut before it is adapted; take away the {backbone.adapter.kind} or merge it."
        )
    if ":" in backbone.attention:
        raise UnsupportedError(f"No config of transformers says {backbone.attention}; it would be lost.")
    with atomic_folder(target) as folder:
        try:
            _write_cut(backbone, depth, folder)
            cut = _proved(backbone, depth, folder)
        except (InputError, UnsupportedError, OSError):
            raise
        except Exception as error:  # families fail in many ways, and all mean the same here
            why = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnsupportedError(f"A {backbone.family} cannot be cut to {depth} layers: {why}") from error
        text = json.dumps({**(note or {}), "cut": asdict(cut)}, indent=1)
        (folder / NOTE).write_text(text + "\n", encoding="utf-8")
    return cut


def check_new(target: Path) -> None:
    """Refuse a place where something is already."""
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"{target} is there already; choose another folder.")


def _write_cut(backbone: Backbone, depth: int, folder: Path) -> None:
    """The weights come from the disk once more, in the format in which they lie there, and not from the backbone."""
    whole = _load_whole(backbone)
    keep_first_blocks(whole, depth)
    whole.config.is_causal = backbone.attention == "causal"
    with quiet_transformers():
        whole.save_pretrained(folder)
    copy_tokenizer(backbone, folder)


def _load_whole(backbone: Backbone) -> Any:
    """With the language-model head where there is one: training that predicts words needs it."""
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    source, settings = resolve_model_folder(backbone.name), {"dtype": "auto", "use_safetensors": True}
    with quiet_transformers():
        if type(backbone.model.config) in MODEL_FOR_CAUSAL_LM_MAPPING:
            whole, report = AutoModelForCausalLM.from_pretrained(source, output_loading_info=True, **settings)
            if not report["missing_keys"]:
                return whole
        return AutoModel.from_pretrained(source, **settings)


def _proved(backbone: Backbone, depth: int, folder: Path) -> Cut:
    again = Backbone.load(folder, device=backbone.device, dtype=backbone.dtype)
    if (again.n_layers, again.attention) != (depth, backbone.attention):
        raise BackboneError(f"the folder reads {again.attention} with {again.n_layers} layers.")
    own = Extractor(backbone, [Reading(depth, normed=True)])(_TEXTS)
    other = Extractor(again, [Reading(depth, normed=True)])(_TEXTS)
    off = float((np.linalg.norm(own - other, axis=-1) / np.linalg.norm(own, axis=-1)).max())
    if not off <= _TOLERANCE:
        raise BackboneError(f"its vectors are off by {off:.2g}.")
    embeddings = count_parameters(again.model.get_input_embeddings())  # type: ignore[operator]
    return Cut(
        depth,
        backbone.n_layers,
        count_parameters(again.model),
        count_parameters(backbone.model),
        embeddings,
        off,
    )
