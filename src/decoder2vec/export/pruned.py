"""Write a model without its upper layers as a model folder of its own; the blocks are removed, not skipped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.activations.extract import Extractor
from decoder2vec.adapters.saving import save_adapter
from decoder2vec.adapters.sentence_tokens import SentenceTokens
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import blocks_share_weights, count_parameters, keep_first_blocks
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.config import Reading
from decoder2vec.encoder_folder import SENTENCE_TOKENS_FOLDER
from decoder2vec.errors import BackboneError, InputError, MissingExtraError, StorageError, UnsupportedError
from decoder2vec.export.transformers import copy_tokenizer
from decoder2vec.storage import atomic_folder, check_replaceable, disk_errors_name

PRUNING_FILE = "pruning.json"
_TOLERANCE = 1e-3
"""The largest allowed difference between vectors of the pruned model and of that layer, relative to their norm."""
_PROBE_TEXTS = (
    "A",
    "A cat sleeps.",
    "The long road goes over the green hills and down to the sea, where nobody waits. " * 2,
)


@dataclass(frozen=True)
class PruningSummary:
    """Layers and parameters before and after pruning, counted on the written model."""

    layers: int
    layers_before: int
    parameters: int
    """Parameters of embeddings, blocks and final norm, which an encoder loads; the language-model head is excluded."""
    parameters_before: int
    embeddings: int
    """How many of the parameters are the embeddings, which pruning never reduces."""
    off: float
    """The largest difference between vectors of the pruned model and of that layer, relative to their norm."""

    @property
    def share(self) -> float:
        """The fraction of the parameters that is kept."""
        return self.parameters / self.parameters_before

    def __str__(self) -> str:
        return (
            f"{self.layers} of {self.layers_before} layers, {self.parameters:,} of {self.parameters_before:,} "
            f"parameters ({100 * self.share:.1f} %), {self.embeddings:,} of them embeddings; "
            f"loaded again, the largest difference is {self.off:.1e}"
        )


def write_pruned(backbone: Backbone, depth: int, target: Path, note: Mapping[str, Any] | None = None) -> PruningSummary:
    """Write the model with its first `depth` blocks, load it again and compare it with that layer of the full model.

    A summary is written to pruning.json in the folder, and sentence tokens beside the model. The folder appears only if
    the comparison passed.

    Args:
        backbone: The model to prune, without an adapter.
        depth: Number of blocks to keep, from 1 to one less than the model has.
        target: Folder to write; it must be new or empty.
        note: Further entries for pruning.json.

    Returns:
        What was kept, counted on the written model.

    Raises:
        InputError: `target` is not empty or `depth` is out of range.
        UnsupportedError: Blocks of this model cannot be removed.
    """
    check_new_folder(target)
    if not 1 <= depth < backbone.n_layers:
        raise InputError(f"{backbone.name} has {backbone.n_layers} layers; keep 1 to {backbone.n_layers - 1} of them.")
    if blocks_share_weights(backbone.model):
        raise UnsupportedError(f"The blocks of {backbone.family} share weights, so none of them can be removed.")
    if backbone.adapter is not None:
        raise UnsupportedError(f"Prune the model before adapting it; remove the {backbone.adapter.kind} or merge it.")
    if ":" in backbone.attention:
        raise UnsupportedError(
            f"A config of transformers cannot express the attention {backbone.attention}; it would be lost."
        )
    with atomic_folder(target) as folder:
        try:
            with disk_errors_name(target):
                _write_first_blocks(backbone, depth, folder)
            reloaded = Backbone.load(folder, device=backbone.device, dtype=backbone.dtype)
            summary = _compare_reloaded(backbone, reloaded, depth)
            with disk_errors_name(target):
                write_sentence_tokens(backbone, reloaded, folder)
        except (InputError, UnsupportedError, StorageError, MissingExtraError, OSError):
            raise
        except Exception as error:  # model families fail in many ways; all mean that this one cannot be pruned
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnsupportedError(f"A {backbone.family} cannot be cut to {depth} layers: {reason}") from error
        text = json.dumps({**(note or {}), "cut": asdict(summary)}, indent=1)
        (folder / PRUNING_FILE).write_text(text + "\n", encoding="utf-8")
    return summary


def write_sentence_tokens(backbone: Backbone, pruned: Backbone, folder: Path) -> None:
    """Write the sentence tokens of a model, if it has any, into the folder of the model that was pruned from it."""
    if isinstance(tokens := backbone.sentence_tokens, SentenceTokens):
        save_adapter(tokens.moved_to(pruned), folder / SENTENCE_TOKENS_FOLDER, pruned)


def check_new_folder(target: Path) -> None:
    """Raise InputError if `target` is a file or a folder that is not empty."""
    check_replaceable(target)


def _write_first_blocks(backbone: Backbone, depth: int, folder: Path) -> None:
    """Write the first blocks with the weights and dtype of the files on disk, not those of the loaded backbone."""
    model = load_full_model(backbone)
    keep_first_blocks(model, depth)
    model.config.is_causal = backbone.attention == "causal"
    with quiet_transformers():
        model.save_pretrained(folder)
    copy_tokenizer(backbone, folder)


def load_full_model(backbone: Backbone) -> Any:
    """Load the model with its language-model head if it has one: training that predicts tokens needs it."""
    from transformers import AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    source, settings = resolve_model_folder(backbone.name), {"dtype": "auto", "use_safetensors": True}
    with quiet_transformers():
        if type(backbone.model.config) in MODEL_FOR_CAUSAL_LM_MAPPING:
            model, report = AutoModelForCausalLM.from_pretrained(
                source, output_loading_info=True, trust_remote_code=False, **settings
            )
            if not report["missing_keys"]:
                return model
        return AutoModel.from_pretrained(source, trust_remote_code=False, **settings)


def _compare_reloaded(backbone: Backbone, reloaded: Backbone, depth: int) -> PruningSummary:
    """Compare vectors of the written model with layer `depth` of the backbone and return the summary."""
    if (reloaded.n_layers, reloaded.attention) != (depth, backbone.attention):
        raise BackboneError(f"the written model has {reloaded.n_layers} layers and reads {reloaded.attention}.")
    expected = Extractor(backbone, [Reading(depth, normed=True)])(_PROBE_TEXTS)
    vectors = Extractor(reloaded, [Reading(depth, normed=True)])(_PROBE_TEXTS)
    difference = float((np.linalg.norm(expected - vectors, axis=-1) / np.linalg.norm(expected, axis=-1)).max())
    if not difference <= _TOLERANCE:
        raise BackboneError(f"its vectors differ by {difference:.2g}.")
    return PruningSummary(
        layers=depth,
        layers_before=backbone.n_layers,
        parameters=count_parameters(reloaded.model),
        parameters_before=count_parameters(backbone.model),
        embeddings=count_parameters(reloaded.model.get_input_embeddings()),  # type: ignore[operator]
        off=difference,
    )
