"""Write a model whose embeddings have only the tokens that are needed, with a tokenizer that has only those."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from decoder2vec.adapters.saving import load_adapter, save_adapter
from decoder2vec.adapters.sentence_tokens import SentenceTokens
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.blocks import text_config
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError
from decoder2vec.export.pruned import load_full_model
from decoder2vec.storage import parse_json, temporary_folder

_TOKEN_ID_ENDINGS = ("token_id", "token_ids", "token_index")
"""How settings that hold token ids are called in configs."""
_TOKEN_ID_LISTS = ("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "forced_decoder_ids")
"""Settings of generation that hold token ids."""


@dataclass(frozen=True)
class VocabularySummary:
    """Tokens and parameters before and after pruning the vocabulary, counted on the written model."""

    tokens: int
    """Rows of the embeddings."""
    tokens_before: int
    parameters: int
    """Parameters of embeddings, blocks and final norm, which an encoder loads; the language-model head is excluded."""
    parameters_before: int
    texts: int
    """Number of texts that the vocabulary was made from."""
    texts_changed: int
    """How many of them get other tokens than before: none unless the size was limited."""
    held_out: int
    """Number of held-out texts."""
    held_out_changed: int
    """How many of them get other tokens: smaller pieces, or bytes."""
    held_out_growth: float
    """Tokens of the held-out texts, divided by those before; 1 if there are none."""
    off: float
    """The largest difference between vectors of texts that get the same tokens."""

    @property
    def share(self) -> float:
        """The fraction of the parameters that is kept."""
        return self.parameters / self.parameters_before

    def __str__(self) -> str:
        held_out = ""
        if self.held_out:
            held_out = (
                f"; of {self.held_out:,} held-out texts {self.held_out_changed:,} fall back to smaller pieces, "
                f"{100 * (self.held_out_growth - 1):.2f} % more tokens in all"
            )
        return (
            f"{self.tokens:,} of {self.tokens_before:,} tokens, {self.parameters:,} of {self.parameters_before:,} "
            f"parameters ({100 * self.share:.1f} %); {self.texts - self.texts_changed:,} of {self.texts:,} texts keep "
            f"their tokens{held_out}; loaded again, the largest difference of vectors is {self.off:.1e}"
        )


def config_token_ids(folder: Path) -> set[int]:
    """Return the ids of tokens that the configs of a model folder name, such as BOS and EOS."""
    files = [file for name in ("config.json", "generation_config.json") if (file := folder / name).is_file()]
    return {id for file in files for id in _named_ids(parse_json(file.read_text(encoding="utf-8")))}


def write_pruned_vocabulary(backbone: Backbone, kept: Sequence[int], tokenizer: Any, folder: Path) -> None:
    """Write the model with the embeddings of some tokens, and the tokenizer for them; adapters are left out.

    Args:
        backbone: The model.
        kept: Old ids of the tokens, in the order of the new ones; the last ones may have no embedding.
        tokenizer: The tokenizer that gives the new ids.
        folder: An empty folder.

    Raises:
        UnsupportedError: The attention of the model cannot be written.
    """
    if ":" in backbone.attention:
        raise UnsupportedError(
            f"A config of transformers cannot express the attention {backbone.attention}; it would be lost."
        )
    model = load_full_model(backbone)
    keep_tokens(model, kept)
    model.config.is_causal = backbone.attention == "causal"
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def keep_tokens(model: Any, kept: Sequence[int]) -> None:
    """Reduce the embeddings and the language-model head of a model to some tokens, in place, and renumber its configs.

    Args:
        model: A model of transformers, with or without a language-model head.
        kept: Old ids of the tokens, in the order of the new ones.
    """
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    rows = torch.tensor([id for id in kept if id < len(embeddings.weight)])
    is_tied = head is not None and head.weight is embeddings.weight
    new_ids = {old: new for new, old in enumerate(kept)}
    for setting, name, value in list(_token_settings(model)):
        setattr(setting, name, _with_new_ids(value, new_ids))
    embeddings.weight = nn.Parameter(embeddings.weight[rows], requires_grad=False)
    embeddings.num_embeddings = len(rows)
    if getattr(embeddings, "padding_idx", None) is not None:
        embeddings.padding_idx = new_ids.get(embeddings.padding_idx)
    if head is not None:
        head.weight = embeddings.weight if is_tied else nn.Parameter(head.weight[rows], requires_grad=False)
        head.out_features = len(rows)
        if getattr(head, "bias", None) is not None:
            head.bias = nn.Parameter(head.bias[rows], requires_grad=False)
    text_config(model.config).vocab_size = len(rows)


def prune_encoder(encoder: Encoder, model: Path, target: Path, files: Mapping[str, bytes]) -> Encoder:
    """Save an encoder with another model, which must differ in its vocabulary only, and return it.

    Args:
        encoder: The encoder; its adapters, sentence tokens, head, readings and calibration are kept.
        model: Folder of the new model, which is copied.
        target: Folder of the new encoder.
        files: Further files to write, by name.
    """
    old = encoder.backbone
    new = Backbone.load(model, attention=old.attention, device=old.device, dtype=old.dtype)
    with temporary_folder(target) as scratch:
        named = {name: _moved(adapter, new, scratch / name) for name, adapter in old.adapters.items()}
        active = _moved(old.adapter, new, scratch / "active adapter") if old.adapter else None
    tokens = old.sentence_tokens.moved_to(new) if isinstance(old.sentence_tokens, SentenceTokens) else None
    new = replace(new, adapter=active, adapters=named, sentence_tokens=tokens)
    pruned = Encoder(new, encoder.spec, encoder.head)
    pruned.probabilities = encoder.probabilities
    pruned.save(target, copy_backbone=True, extra_files=files)
    return pruned


def _moved(adapter: Any, backbone: Backbone, folder: Path) -> Any:
    """The adapter on another model."""
    save_adapter(adapter, folder, backbone)
    return load_adapter(folder, backbone)


def _token_settings(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """(config, name, value) of every setting that holds token ids."""
    configs = [model.config, text_config(model.config), getattr(model, "generation_config", None)]
    for config in {id(config): config for config in configs if config is not None}.values():
        for name, value in vars(config).items():
            if value is not None and (name.endswith(_TOKEN_ID_ENDINGS) or name in _TOKEN_ID_LISTS):
                yield config, name, value


def _named_ids(config: Mapping[str, Any]) -> Iterator[int]:
    """Token ids in a config and in the configs inside it."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _named_ids(value)
        elif name.endswith(_TOKEN_ID_ENDINGS):
            yield from (id for id in (value if isinstance(value, list) else [value]) if isinstance(id, int))


def _with_new_ids(value: Any, new_ids: Mapping[int, int]) -> Any:
    """The value of a setting with new ids; None where there is no such token, and lists without it."""
    if isinstance(value, list | tuple):
        return [new for part in value if (new := _with_new_ids(part, new_ids)) is not None]
    return new_ids.get(value) if isinstance(value, int) and value >= 0 else value
