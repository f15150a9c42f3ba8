"""Merge encoders of one base model into one: adapters of the same weights, or whole models trained from one base.

What is averaged is what was learned: of LoRA the updates of the weights, of soft prompts and prefixes their values, of
whole models the weights; and the embeddings of sentence tokens. Every encoder must read texts in the same way.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoder2vec.adapters.lora import Lora
from decoder2vec.adapters.merging import merge_adapters, truncate_rank
from decoder2vec.adapters.saving import load_adapter
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import Adapter
from decoder2vec.backbone.sources import Notify, resolve_model_folder
from decoder2vec.base_model import load_base_model
from decoder2vec.config import EncoderSpec, as_tuple
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import ADAPTER_FOLDER, BACKBONE_FOLDER, SENTENCE_TOKENS_FOLDER, encoder_path
from decoder2vec.errors import Decoder2VecError, InputError, unknown_name
from decoder2vec.export.transformers import write_model
from decoder2vec.maths.interpolation import METHODS, interpolate
from decoder2vec.saved_encoder import read_encoder_folder
from decoder2vec.storage import check_replaceable, parse_json, temporary_folder, versions
from decoder2vec.text.data_check import TRAINING_PAIRS_FILE, TRAINING_TEXTS_FILE, read_hashes

MERGE_FILE = "merge.json"
_RESULTS_FILE = "results.json"
"""Of a trained encoder; it names the model that training started from."""
_UNRELATED = 0.5
"""Weights of models of one base have a cosine close to 1, those of other models one close to 0."""

State = dict[str, Tensor]


def merge(
    encoders: Sequence[str | Path],
    out: str | Path,
    *,
    weights: Sequence[float] | None = None,
    method: str = "linear",
    rank: int | None = None,
    notify: Notify = lambda _: None,
) -> Encoder:
    """Average saved encoders of one base model, and save the result as an encoder.

    Layers, pooling, template and attention must be the same; the other settings are those of the first encoder.

    Args:
        encoders: Two or more saved encoders without heads: folders, or names of built-in encoders.
        out: Folder to write; it must be new or empty.
        weights: One for each encoder, 0 or more; scaled to a sum of 1. By default all are equal.
        method: "linear" (weighted mean), or "slerp" (spherical interpolation, for two encoders): between the changes of
            the base model, matrix by matrix; of soft prompts and prefixes between their values.
        rank: Cut the merged LoRA to this rank; by default its rank is the sum of all ranks, which is exact.
        notify: Called with messages for the user.

    Returns:
        The merged encoder, loaded from `out`.

    Raises:
        InputError: The encoders have no average, weights or rank cannot be used, or `out` is not empty.

    Example:
        >>> import tempfile
        >>> import decoder2vec as d2v
        >>> encoder = d2v.Encoder.from_pretrained("tiny-llama", device="cpu", dtype="float32")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saved = encoder.save(f"{folder}/encoder")
        ...     merged = d2v.merge([saved, saved], f"{folder}/merged")
        >>> float(merged.similarity(merged.encode("A cat sleeps."), encoder.encode("A cat sleeps."))) > 0.999
        True
    """
    target, encoders = Path(out), as_tuple(encoders)
    check_replaceable(target)
    if method not in METHODS:
        raise unknown_name("method", method, METHODS)
    if len(encoders) < 2 or (method == "slerp" and len(encoders) > 2):
        needed = "exactly two encoders" if method == "slerp" else "two encoders or more"
        raise InputError(f"Merging by {method} takes {needed}, not {len(encoders)}.")
    shares = _normalise(weights, len(encoders), notify)
    parents = [_Parent(encoder_path(folder)) for folder in encoders]
    _check_readings(parents)
    same_weights = len({parent.description["backbone_fingerprint"] for parent in parents}) == 1
    if same_weights and any(parent.has_adapter for parent in parents):
        return _save_merged_adapter(parents, shares, method, rank, target, notify)
    if rank is not None:
        raise InputError("A rank is that of LoRA, and here whole models are merged; leave it out.")
    return _save_merged_model(parents, shares, method, target, notify)


@dataclass(frozen=True)
class _Parent:
    """The folder of an encoder to merge."""

    folder: Path

    @cached_property
    def description(self) -> dict[str, Any]:
        """What `encoder.json` holds."""
        return read_encoder_folder(self.folder)[0]

    @cached_property
    def spec(self) -> EncoderSpec:
        return EncoderSpec.from_json(self.description["spec"])

    @property
    def has_adapter(self) -> bool:
        return (self.folder / ADAPTER_FOLDER).is_dir()

    @cached_property
    def base(self) -> dict[str, str] | None:
        """Name and fingerprint of the model that it was trained from; None if that is not recorded."""
        for name, key in ((MERGE_FILE, "base"), (_RESULTS_FILE, "backbone")):
            if (self.folder / name).is_file():
                try:
                    base = parse_json((self.folder / name).read_text(encoding="utf-8"))[key]
                    return base and {part: str(base[part]) for part in ("name", "fingerprint")}
                except (ValueError, KeyError, TypeError):  # damaged, or not written by this package
                    return None
        return None

    def hashes(self, name: str) -> NDArray[np.uint64] | None:
        """Hashes of the pairs or texts that it was trained on, if its folder has the file."""
        return read_hashes(self.folder / name)

    def load(self) -> Encoder:
        """On the CPU, and in float32: averages of 16 bits would be rounded twice."""
        return Encoder.load(self.folder, device="cpu", dtype="float32")


# --- checks ---------------------------------------------------------------------------------------------------------


def _normalise(weights: Sequence[float] | None, count: int, notify: Notify) -> list[float]:
    """Weights that sum to 1."""
    if weights is None:
        return [1 / count] * count
    if len(weights) != count:
        raise InputError(f"Give one weight for each encoder: {count}, not {len(weights)}.")
    total = math.fsum(weights)
    if not (min(weights) >= 0 and 0 < total < math.inf):  # also false for NaN
        raise InputError(f"Weights are 0 or more, and at least one is above 0, unlike {_listed(weights)}.")
    shares = [weight / total for weight in weights]
    if not math.isclose(total, 1, rel_tol=1e-6):
        notify(f"weights {_listed(weights)} do not sum to 1 and are scaled to {_listed(shares)}")
    return shares


def _listed(weights: Sequence[float]) -> str:
    return ", ".join(f"{weight:.4g}" for weight in weights)


def _check_readings(parents: Sequence[_Parent]) -> None:
    """Raise if an encoder has a head, or reads texts in another way than the first."""
    for parent in parents:
        if kind := parent.description["head"]:
            raise InputError(
                f"{parent.folder} has a {kind} head, which fits only the vectors it was made from, so it has no "
                "average; merge encoders without heads."
            )
    first = parents[0]
    for parent in parents[1:]:
        for name, what in (("readings", "layer or pooling"), ("template", "template"), ("attention", "attention")):
            ours, theirs = getattr(first.spec, name), getattr(parent.spec, name)
            if ours != theirs:
                raise InputError(
                    f"{first.folder} and {parent.folder} differ in {what} ({_readable(ours)}, {_readable(theirs)}); "
                    "only encoders that read texts in the same way can be merged."
                )


def _readable(value: Any) -> str:
    return " + ".join(map(str, value)) if isinstance(value, tuple) else repr(value)


# --- adapters -------------------------------------------------------------------------------------------------------


def _save_merged_adapter(
    parents: Sequence[_Parent], weights: Sequence[float], method: str, rank: int | None, target: Path, notify: Notify
) -> Encoder:
    """Merge adapters of the same weights."""
    encoder = parents[0].load()
    backbone = replace(encoder.backbone, adapter=None, adapters={}, sentence_tokens=None)
    adapters, tokens = (
        [load_adapter(p.folder / name, backbone) if (p.folder / name).is_dir() else None for p in parents]
        for name in (ADAPTER_FOLDER, SENTENCE_TOKENS_FOLDER)
    )
    adapter = merge_adapters(adapters, weights, method, backbone)
    backbone.sentence_tokens = _merge_sentence_tokens(tokens, weights, method, backbone, notify)
    note: dict[str, Any] = {"base": {"name": backbone.name, "fingerprint": backbone.fingerprint}}
    if rank is not None:
        adapter, note["cut"] = _cut_to_rank(adapter, rank, backbone, notify)
    if isinstance(adapter, Lora):
        note["rank"] = adapter.config.rank
        notify(f"the merged LoRA has rank {adapter.config.rank}")
    merged = Encoder(backbone.with_adapter(adapter), encoder.spec)
    copy_backbone = (parents[0].folder / BACKBONE_FOLDER).is_dir()
    merged.save(target, copy_backbone=copy_backbone, extra_files=_files(merged, parents, weights, method, note))
    return Encoder.load(target)


def _merge_sentence_tokens(
    tokens: Sequence[Adapter | None], weights: Sequence[float], method: str, backbone: Backbone, notify: Notify
) -> Adapter | None:
    """The average of those encoders that have sentence tokens: a model without them has none to average with."""
    existing = {row: each for row, each in enumerate(tokens) if each is not None and weights[row] > 0}
    if not existing:
        return None
    if len(existing) < len(tokens):
        verb = "has" if len(existing) == 1 else "have"
        notify(f"{len(existing)} of {len(tokens)} encoders {verb} sentence tokens; they are merged without the others")
    total = math.fsum(weights[row] for row in existing)
    shares = [weights[row] / total for row in existing]
    return merge_adapters(list(existing.values()), shares, method if len(existing) > 1 else "linear", backbone)


def _cut_to_rank(adapter: Adapter, rank: int, backbone: Backbone, notify: Notify) -> tuple[Lora, float]:
    """The LoRA of at most that rank, and the share of its norm that was cut off."""
    if not isinstance(adapter, Lora):
        raise InputError(f"A rank is that of LoRA, and these encoders have a {adapter.kind}; leave it out.")
    if rank < 1:
        raise InputError(f"The rank of LoRA is 1 or more, not {rank}.")
    if rank >= adapter.config.rank:
        return adapter, 0.0
    truncated, lost = truncate_rank(adapter, rank, backbone)
    notify(f"rank {rank} of {adapter.config.rank}: {lost:.1%} of the norm of the merged change is cut off")
    return truncated, lost


# --- whole models ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def _save_merged_model(
    parents: Sequence[_Parent], weights: Sequence[float], method: str, target: Path, notify: Notify
) -> Encoder:
    """Merge whole models; LoRA is merged into the weights of its model first."""
    encoders = [parent.load() for parent in parents]
    states = [_effective_state(encoder.backbone) for encoder in encoders]
    _check_models(parents, encoders, states)
    base = _base_state(parents, states[0]) if method == "slerp" else {}
    first = encoders[0]
    tokens = [encoder.backbone.sentence_tokens for encoder in encoders]
    sentence_tokens = _merge_sentence_tokens(tokens, weights, method, first.backbone, notify)
    merged = {name: _merge_weight(name, states, base, weights, method) for name in states[0]}
    first.backbone.model.load_state_dict(merged)
    first.backbone.model.to(_stored_dtype(encoders))
    with temporary_folder(target.absolute()) as folder:
        write_model(replace(first.backbone, adapter=None), folder)
        backbone = Backbone.load(folder, attention=first.spec.attention, device="cpu")
        backbone.sentence_tokens = sentence_tokens
        encoder = Encoder(backbone, first.spec)
        note = {"base": _common_base(parents)}
        encoder.save(target, copy_backbone=True, extra_files=_files(encoder, parents, weights, method, note))
    return Encoder.load(target)


def _effective_state(backbone: Backbone) -> State:
    """All weights that the model computes with."""
    state = backbone.model.state_dict()
    if isinstance(backbone.adapter, Lora):
        state |= {f"{path}.weight": weight for path, weight in backbone.adapter.merged_weights_by_path().items()}
    elif backbone.adapter is not None:
        raise InputError(
            f"An encoder has a {backbone.adapter.kind}, and not all encoders have the same weights; "
            "merge adapters that were trained on one model."
        )
    return state


def _check_models(parents: Sequence[_Parent], encoders: Sequence[Encoder], states: Sequence[State]) -> None:
    """Raise if weights cannot be averaged one by one, or if their average would mean nothing."""
    tokenizer = encoders[0].tokenizer.backend_tokenizer.to_str()
    for parent, encoder, state in zip(parents[1:], encoders[1:], states[1:], strict=True):
        pair = f"{parents[0].folder} and {parent.folder}"
        shapes, other_shapes = ({name: tensor.shape for name, tensor in s.items()} for s in (states[0], state))
        if shapes != other_shapes or tokenizer != encoder.tokenizer.backend_tokenizer.to_str():
            raise InputError(
                f"The models of {pair} differ in layers, sizes or tokenizer; merge those of one base model."
            )
        cosine = _cosine(states[0], state)
        if not cosine >= _UNRELATED:
            raise InputError(
                f"The weights of {pair} are unrelated (cosine {cosine:.2f}); merge models trained from one base."
            )


def _cosine(state: State, other: State) -> float:
    """Cosine of all matrices together; norms and biases are similar in unrelated models, too."""
    dot = first = second = 0.0
    for name, tensor in state.items():
        if tensor.ndim > 1 and tensor.is_floating_point():
            ours, theirs = tensor.flatten(), other[name].flatten()
            dot += float(ours @ theirs)
            first += float(ours @ ours)
            second += float(theirs @ theirs)
    return dot / math.sqrt(first * second) if first and second else 0.0


def _common_base(parents: Sequence[_Parent]) -> dict[str, str] | None:
    """The model that all encoders were trained from, as the first names it; None if that is not known."""
    fingerprints = {parent.base["fingerprint"] if parent.base else None for parent in parents}
    return parents[0].base if len(fingerprints) == 1 else None


def _base_state(parents: Sequence[_Parent], state: State) -> State:
    """The weights of the model that all encoders were trained from; raises if there is none."""
    if base := _common_base(parents):
        try:
            backbone, _ = load_base_model(base["name"], device="cpu", dtype="float32")
        except Decoder2VecError:
            backbone = None
        if backbone and backbone.fingerprint == base["fingerprint"]:
            weights = backbone.model.state_dict()
            if all(name in weights and weights[name].shape == tensor.shape for name, tensor in state.items()):
                return weights
    raise InputError(
        "slerp of whole models is between their changes of the model that they were trained from, and these encoders "
        "do not name one that is found here; use the method linear."
    )


def _merge_weight(name: str, states: Sequence[State], base: State, weights: Sequence[float], method: str) -> Tensor:
    """One weight of the merged model; what is no floating point number, such as a counter, is that of the first."""
    tensors = [state[name] for state in states]
    if not tensors[0].is_floating_point():
        return tensors[0]
    if not base:
        return interpolate(tensors, weights, method)
    return base[name] + interpolate([tensor - base[name] for tensor in tensors], weights, method)


def _stored_dtype(encoders: Sequence[Encoder]) -> torch.dtype:
    """The dtype of the weights on disk; the widest if they differ."""
    result: torch.dtype | None = None
    for encoder in encoders:
        file = resolve_model_folder(encoder.backbone.name) / "config.json"
        config = parse_json(file.read_text(encoding="utf-8"))
        dtype = getattr(torch, str(config.get("dtype", config.get("torch_dtype"))), torch.float32)
        result = dtype if result is None else torch.promote_types(result, dtype)
    return result or torch.float32


# --- what is written besides the encoder ----------------------------------------------------------------------------


def _files(
    encoder: Encoder, parents: Sequence[_Parent], weights: Sequence[float], method: str, note: dict[str, Any]
) -> dict[str, bytes]:
    """The record of the merge, the card, and the pairs that any of the encoders was trained on."""
    rows = [
        {"folder": str(parent.folder), "fingerprint": parent.description.get("fingerprint"), "weight": weight}
        for parent, weight in zip(parents, weights, strict=True)
    ]
    record = {"method": method, "encoders": rows, **note, "versions": versions()}
    files = {
        MERGE_FILE: (json.dumps(record, indent=1) + "\n").encode(),
        "README.md": _card(encoder, record).encode(),
    }
    for name in (TRAINING_PAIRS_FILE, TRAINING_TEXTS_FILE):
        if known := [hashes for parent in parents if (hashes := parent.hashes(name)) is not None]:
            buffer = io.BytesIO()
            np.save(buffer, np.unique(np.concatenate(known)))
            files[name] = buffer.getvalue()
    return files


def _card(encoder: Encoder, record: dict[str, Any]) -> str:
    base = record["base"]["name"] if record["base"] else encoder.backbone.family
    rows = {
        "method": record["method"],
        "dimensions": encoder.dim,
        "reads": " + ".join(map(str, encoder.spec.readings)),
        "template": repr(encoder.spec.template),
        "attention": encoder.spec.attention,
        "fingerprint": encoder.fingerprint,
    }
    if "rank" in record:
        rows["rank of the LoRA"] = record["rank"]
    if "cut" in record:
        rows["norm cut off with the rank"] = f"{record['cut']:.1%}"
    lines = [
        f"# A merge of {len(record['encoders'])} encoders made of {base}",
        "",
        "```python",
        "from decoder2vec import Encoder",
        "",
        'encoder = Encoder.load("this folder")',
        'vectors = encoder.encode(["A dog runs."])',
        "```",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        "",
        "## Merged from",
        "",
        "| weight | encoder | fingerprint |",
        "|---|---|---|",
        *(f"| {row['weight']:.4g} | {row['folder']} | {row['fingerprint']} |" for row in record["encoders"]),
        "",
        "## Made with",
        "",
        *(f"- {name} {version}" for name, version in record["versions"].items()),
    ]
    return "\n".join(lines) + "\n"
