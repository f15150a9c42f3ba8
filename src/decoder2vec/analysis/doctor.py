"""Proofs, on the user's own model, that it is read correctly. Each check measures something and says what it allows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.attention import attention_mismatch
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, UnsupportedError
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.text.batches import collate
from decoder2vec.text.template import TEMPLATES, Template
from decoder2vec.text.tokens import Prompt, Tokeniser

_TEXTS = (
    "A man is playing a guitar.",
    "Two dogs",
    "",
    "The committee will meet again on Thursday 14 March to decide about the budget for next year.",
    " \t ",
    "naïve café 😀 مرحبا",
)


@dataclass(frozen=True)
class Check:
    """One proof: what was asked, whether it holds, and the number behind it."""

    name: str
    passed: bool
    detail: str


def run_doctor(backbone: Backbone) -> Iterator[Check]:
    """Run every check, one after the other; a check that cannot run has failed."""
    for name, check in _CHECKS.items():
        try:
            passed, detail = check(backbone)
        except (Decoder2VecError, RuntimeError, ValueError, IndexError, KeyError, TypeError) as error:
            passed, detail = False, f"{type(error).__name__}: {error}"
        yield Check(name, passed, detail)


def _everything(backbone: Backbone) -> list[Reading]:
    layers = range(backbone.n_layers + 1)
    return [Reading(layer, pooling) for layer in layers for pooling in POOLINGS]


def _tolerance(backbone: Backbone) -> float:
    """Relative to the largest value of a vector; 16-bit models change with the batch, and that is stated."""
    return 5e-4 if backbone.dtype == torch.float32 else 5e-2


def _same(backbone: Backbone, found: Tensor, expected: Tensor) -> tuple[bool, str]:
    """Compare [..., dim] vectors, each relative to its own largest value."""
    found, expected = found.float().cpu(), expected.float().cpu()
    scale = expected.abs().amax(dim=-1, keepdim=True).clamp(min=1e-6)
    worst = float(((found - expected).abs() / scale).max())
    allowed = _tolerance(backbone)
    return worst <= allowed, f"largest difference {worst:.1e}, allowed {allowed:.0e}"


def _prompts(backbone: Backbone, template: str = "plain") -> list[Prompt]:
    limit = min(128, backbone.context_length or 128)
    return Tokeniser(backbone, Template.of(template), limit)(_TEXTS).prompts


@torch.inference_mode()
def _read(backbone: Backbone, prompts: list[Prompt], side: str = "right") -> Tensor:
    batch = collate(prompts, backbone.pad_token_id, side=side).to(backbone.device)
    return Capture(backbone, _everything(backbone))(batch)


def _batch_size(backbone: Backbone) -> tuple[bool, str]:
    prompts = _prompts(backbone)
    alone = torch.cat([_read(backbone, [prompt]) for prompt in prompts])
    return _same(backbone, _read(backbone, prompts), alone)


def _batch_order(backbone: Backbone) -> tuple[bool, str]:
    prompts = _prompts(backbone)
    return _same(backbone, _read(backbone, prompts[::-1]).flip(0), _read(backbone, prompts))


def _padding_side(backbone: Backbone) -> tuple[bool, str]:
    prompts = _prompts(backbone)
    return _same(backbone, _read(backbone, prompts, side="left"), _read(backbone, prompts))


@torch.inference_mode()
def _last_token(backbone: Backbone) -> tuple[bool, str]:
    """The last real token of a padded row equals the last position of the same text run alone."""
    prompts = _prompts(backbone, "prompteol")
    batch = collate(prompts, backbone.pad_token_id).to(backbone.device)
    found = Capture(backbone, [Reading(backbone.n_layers, "lasttoken", normed=True)])(batch)[:, 0]
    expected = [_plain_forward(backbone, prompt).last_hidden_state[0, -1] for prompt in prompts]
    return _same(backbone, found, torch.stack(expected))


@torch.inference_mode()
def _layer_bookkeeping(backbone: Backbone) -> tuple[bool, str]:
    """Hooks see what a plain forward pass reports: every layer raw, the last one behind the final norm."""
    prompt = max(_prompts(backbone), key=lambda prompt: len(prompt.ids))
    states = _plain_forward(backbone, prompt, output_hidden_states=True).hidden_states
    top = backbone.n_layers
    if torch.equal(backbone.final_norm(states[-2]), states[-1]):  # state-space models list what each block returns
        model: Any = backbone.model
        first = model.get_input_embeddings()(torch.tensor([prompt.ids], device=backbone.device))
        states = (first, *states[:-2], states[-1])
    readings = [Reading(layer, "mean", normed=layer == top) for layer in range(top + 1)]
    found = Capture(backbone, readings)(collate([prompt], backbone.pad_token_id).to(backbone.device))[0]
    if len(states) != top + 1:
        return False, f"the model reports {len(states)} states for {top} blocks"
    return _same(backbone, found, torch.stack([state[0].float().mean(dim=0) for state in states]))


def _plain_forward(backbone: Backbone, prompt: Prompt, **kwargs: bool) -> Any:
    ids = torch.tensor([prompt.ids], device=backbone.device)
    return backbone.model(input_ids=ids, use_cache=False, **kwargs)


def _direction(backbone: Backbone) -> tuple[bool, str]:
    """A later token moves an earlier one, in every block, where attention is bidirectional, and nowhere else."""
    before = backbone.attention
    if fault := attention_mismatch(backbone.model, before):
        return False, f"read as {before}, but {fault}"
    try:
        backbone.set_attention("bidirectional")
    except UnsupportedError as reason:
        return True, f"{before}; {reason}"
    finally:
        backbone.set_attention(before)
    return True, f"{before}, padded and unpadded; can be switched to bidirectional"


def _finite(backbone: Backbone) -> tuple[bool, str]:
    count = int((~torch.isfinite(_read(backbone, _prompts(backbone)))).sum())
    return count == 0, "every value of every layer is finite" if not count else f"{count} values are not finite"


def _deterministic(backbone: Backbone) -> tuple[bool, str]:
    first, second = (_read(backbone, _prompts(backbone)) for _ in range(2))
    same = bool(torch.equal(first, second))
    return same, "two passes agree to the last bit" if same else "two passes differ: is dropout on?"


def _suffix_kept(backbone: Backbone) -> tuple[bool, str]:
    """A text far too long keeps the template's suffix, so the last token stays the one that is meant."""
    limit = min(64, backbone.context_length or 64)
    tokeniser = Tokeniser(backbone, Template.of("prompteol"), limit)
    long = tokeniser(["word " * 500]).prompts[0]
    text = backbone.tokenizer.decode(long.ids)
    suffix = TEMPLATES["prompteol"].split("{text}")[1]
    return text.rstrip().endswith(suffix.rstrip()) and len(long.ids) <= limit, f"{len(long.ids)} of {limit} tokens used"


def _save_load(backbone: Backbone) -> tuple[bool, str]:
    reading = Reading(backbone.n_layers // 2, "mean")
    spec = EncoderSpec(backbone.name, (reading,), attention=backbone.attention)
    encoder = Encoder(backbone, spec).with_head("standardise", [text for text in _TEXTS if text.strip()])
    with tempfile.TemporaryDirectory() as scratch:
        folder = encoder.save(Path(scratch) / "encoder")
        again = Encoder.load(folder, device=backbone.device, dtype=backbone.dtype)
        same = np.array_equal(encoder.encode(list(_TEXTS)), again.encode(list(_TEXTS)))
    if again.fingerprint != encoder.fingerprint:
        return False, "the fingerprint changed"
    return same, "same vectors, same fingerprint" if same else "vectors changed"


_CHECKS: dict[str, Callable[[Backbone], tuple[bool, str]]] = {
    "finite values": _finite,
    "determinism": _deterministic,
    "batch size does not matter": _batch_size,
    "batch order does not matter": _batch_order,
    "padding side does not matter": _padding_side,
    "last token is the last real one": _last_token,
    "layers are what they say": _layer_bookkeeping,
    "attention direction": _direction,
    "suffix survives truncation": _suffix_kept,
    "save and load": _save_load,
}
