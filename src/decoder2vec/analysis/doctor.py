"""Checks that the states of a user's model are read correctly. Each reports what it measured and the tolerance."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.extract import without_truncation_warnings
from decoder2vec.backbone.attention import attention_mismatch
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import is_encoder_folder, saved_encoder_folder, saved_reranker_folder
from decoder2vec.errors import Decoder2VecError, UnsupportedError
from decoder2vec.evaluation.baselines import is_sentence_transformers_folder, load_encoder
from decoder2vec.evaluation.onnx_encoder import onnx_file
from decoder2vec.gold import GOLD_FILE, GoldVectors
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.reranker import Reranker
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
    """The result of one check."""

    name: str
    passed: bool
    detail: str
    """What was measured, or why the check could not run."""


def doctor(
    model: str | Path,
    *,
    attention: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> list[Check]:
    """Check that a model is read correctly: batches, padding, layers, attention direction, saving and loading.

    Example:
        >>> import decoder2vec as d2v
        >>> [check.name for check in d2v.doctor("tiny-llama") if not check.passed]
        []

    Args:
        model: Built-in name, model folder, .gguf file, hub id, saved encoder or reranker, or export for
            sentence-transformers or onnxruntime. Gold vectors of an encoder or export and gold scores of a reranker are
            computed again. `run_checks` takes a loaded model.
        attention: causal or bidirectional; by default what the model's config says.
        device: cuda, mps or cpu; by default the best one available.
        dtype: float32, bfloat16 or int8; by default chosen by the device.
        notify: Called with one-line messages, among them the size of the model and its memory.

    Returns:
        The results of all checks, failed ones included.
    """
    if reranker_folder := saved_reranker_folder(model):
        reranker = Reranker.load(reranker_folder, device=device, dtype=dtype)
        notify(f"{model}: {reranker}, {reranker.backbone.dtype_name}, {reranker.device}")
        return [*run_checks(reranker.backbone.with_adapter(None)), _gold_scores_check(reranker, reranker_folder)]
    folder = saved_encoder_folder(model) or _exported_folder(model)
    if folder and onnx_file(folder):  # it has no layers to look at
        return [_gold_check(lambda: load_encoder(folder, device=device), folder)]
    if folder and is_encoder_folder(folder):
        encoder = Encoder.from_pretrained(folder, attention=attention, device=device, dtype=dtype)
        backbone = encoder.backbone.with_adapter(None)
    else:
        backbone = Backbone.load(model, attention=attention, device=device, dtype=dtype, notify=notify)
        encoder = None
    size = f"{backbone.n_layers} layers x {backbone.dim}"
    reason = f" ({backbone.dtype_reason})" if backbone.dtype_reason else ""
    memory = f"{backbone.weight_bytes / 2**20:,.0f} MB of weights"
    notify(f"{model}: {backbone.family}, {size}, {backbone.dtype_name}{reason}, {memory}, {backbone.device}")
    checks = list(run_checks(backbone))
    if folder:
        checks.append(_gold_check(lambda: encoder or load_encoder(folder, device=device), folder))
    return checks


def _exported_folder(model: str | Path) -> Path | None:
    """The folder of an export that pools by itself, with gold vectors: for sentence-transformers or onnxruntime."""
    folder = Path(model).expanduser()
    pools = is_sentence_transformers_folder(folder) or onnx_file(folder)
    return folder if pools and (folder / GOLD_FILE).is_file() else None


def run_checks(backbone: Backbone) -> Iterator[Check]:
    """Run the checks one after the other. A check that raises an error has failed."""
    for name, check in _CHECKS.items():
        yield _run_check(name, partial(check, backbone))


def _run_check(name: str, check: Callable[[], tuple[bool, str]]) -> Check:
    try:
        passed, detail = check()
    except (Decoder2VecError, RuntimeError, ValueError, IndexError, KeyError, TypeError) as error:
        passed, detail = False, f"{type(error).__name__}: {error}"
    return Check(name, passed, detail)


def _gold_check(load: Callable[[], Any], folder: Path) -> Check:
    """Check that an encoder gives the vectors that it gave when its folder was written."""

    def check() -> tuple[bool, str]:
        gold = GoldVectors.read(folder)
        if gold is None:
            return True, "this folder has none, since an earlier version wrote it; save the encoder again to add them"
        encoder = load()
        dtype = encoder.backbone.dtype_name if isinstance(encoder, Encoder) else "float32"
        with without_truncation_warnings():
            vectors = encoder.encode(gold.texts, show_progress_bar=False)
        largest, tolerance = gold.compare(vectors, getattr(encoder, "dtype", dtype))
        return largest <= tolerance, f"largest difference {largest:.1e}, allowed {tolerance:.0e}"

    return _run_check("gold vectors", check)


def _gold_scores_check(reranker: Reranker, folder: Path) -> Check:
    """Check that a reranker gives the scores that it gave when its folder was written."""

    def check() -> tuple[bool, str]:
        gold = GoldVectors.read(folder.expanduser())
        if gold is None:
            return True, "this folder has none; save the reranker again to add them"
        largest, tolerance = gold.compare(reranker.gold_scores(gold.texts), reranker.backbone.dtype_name)
        return largest <= tolerance, f"largest difference {largest:.1e}, allowed {tolerance:.0e}"

    return _run_check("gold scores", check)


def _check_finite(backbone: Backbone) -> tuple[bool, str]:
    count = int((~torch.isfinite(_read_states(backbone, _prompts(backbone)))).sum())
    return count == 0, "every value of every layer is finite" if not count else f"{count} values are not finite"


def _check_determinism(backbone: Backbone) -> tuple[bool, str]:
    first, second = (_read_states(backbone, _prompts(backbone)) for _ in range(2))
    equal = bool(torch.equal(first, second))
    return equal, "two passes are bit-identical" if equal else "two passes differ: is dropout on?"


def _check_batch_size(backbone: Backbone) -> tuple[bool, str]:
    prompts = _prompts(backbone)
    one_by_one = torch.cat([_read_states(backbone, [prompt]) for prompt in prompts])
    return _compare(backbone, _read_states(backbone, prompts), one_by_one)


def _check_batch_order(backbone: Backbone) -> tuple[bool, str]:
    prompts = _prompts(backbone)
    return _compare(backbone, _read_states(backbone, prompts[::-1]).flip(0), _read_states(backbone, prompts))


def _check_padding_side(backbone: Backbone) -> tuple[bool, str]:
    prompts = _prompts(backbone)
    return _compare(backbone, _read_states(backbone, prompts, side="left"), _read_states(backbone, prompts))


@torch.inference_mode()
def _check_last_token(backbone: Backbone) -> tuple[bool, str]:
    """The last token of a padded row equals the last position of the same text without padding."""
    prompts = _prompts(backbone, "prompteol")
    batch = collate(prompts, backbone.pad_token_id).to(backbone.device)
    states = Capture(backbone, [Reading(backbone.n_layers, "lasttoken", normed=True)])(batch)[:, 0]
    expected = [_plain_forward(backbone, prompt).last_hidden_state[0, -1] for prompt in prompts]
    return _compare(backbone, states, torch.stack(expected))


@torch.inference_mode()
def _check_layers(backbone: Backbone) -> tuple[bool, str]:
    """Hooks see the hidden states of a plain forward pass: every layer raw, the last one after the final norm."""
    prompt = max(_prompts(backbone), key=lambda prompt: len(prompt.ids))
    hidden_states = _plain_forward(backbone, prompt, output_hidden_states=True).hidden_states
    last = backbone.n_layers
    if torch.equal(backbone.final_norm(hidden_states[-2]), hidden_states[-1]):
        # state-space models list the output of each block, without the embeddings
        model: Any = backbone.model
        embeddings = model.get_input_embeddings()(torch.tensor([prompt.ids], device=backbone.device))
        hidden_states = (embeddings, *hidden_states[:-2], hidden_states[-1])
    readings = [Reading(layer, "mean", normed=layer == last) for layer in range(last + 1)]
    states = Capture(backbone, readings)(collate([prompt], backbone.pad_token_id).to(backbone.device))[0]
    if len(hidden_states) != last + 1:
        return False, f"the model returns {len(hidden_states)} hidden states for {last} blocks"
    return _compare(backbone, states, torch.stack([state[0].float().mean(dim=0) for state in hidden_states]))


def _check_direction(backbone: Backbone) -> tuple[bool, str]:
    """A later token changes an earlier one, in every block, if and only if attention is bidirectional."""
    attention = backbone.attention
    if fault := attention_mismatch(backbone.model, attention):
        return False, f"read as {attention}, but {fault}"
    try:
        backbone.set_attention("bidirectional")
    except UnsupportedError as reason:
        return True, f"{attention}; {reason}"
    finally:
        backbone.set_attention(attention)
    return True, f"{attention}, padded and unpadded; can be switched to bidirectional"


def _check_truncation(backbone: Backbone) -> tuple[bool, str]:
    """Truncating a long text keeps the template's suffix, so that the last token is still the template's."""
    limit = min(64, backbone.context_length or 64)
    tokeniser = Tokeniser(backbone, Template.of("prompteol"), limit)
    prompt = tokeniser(["word " * 500]).prompts[0]
    text = backbone.tokenizer.decode(prompt.ids)
    suffix = TEMPLATES["prompteol"].split("{text}")[1]
    passed = text.rstrip().endswith(suffix.rstrip()) and len(prompt.ids) <= limit
    return passed, f"{len(prompt.ids)} of {limit} tokens used"


def _check_save_load(backbone: Backbone) -> tuple[bool, str]:
    reading = Reading(backbone.n_layers // 2, "mean")
    spec = EncoderSpec(backbone.name, (reading,), attention=backbone.attention)
    encoder = Encoder(backbone, spec).with_head("standardise", [text for text in _TEXTS if text.strip()])
    with tempfile.TemporaryDirectory() as scratch:
        folder = encoder.save(Path(scratch) / "encoder")
        loaded = Encoder.load(folder, device=backbone.device, dtype=backbone.dtype_name)
        equal = np.array_equal(encoder.encode(list(_TEXTS)), loaded.encode(list(_TEXTS)))
    if loaded.fingerprint != encoder.fingerprint:
        return False, "the fingerprint changed"
    return equal, "same vectors, same fingerprint" if equal else "vectors changed"


_CHECKS: dict[str, Callable[[Backbone], tuple[bool, str]]] = {
    "finite values": _check_finite,
    "determinism": _check_determinism,
    "batch size does not matter": _check_batch_size,
    "batch order does not matter": _check_batch_order,
    "padding side does not matter": _check_padding_side,
    "last token is not padding": _check_last_token,
    "layers match a plain forward pass": _check_layers,
    "attention direction": _check_direction,
    "suffix survives truncation": _check_truncation,
    "save and load": _check_save_load,
}


def _prompts(backbone: Backbone, template: str = "plain") -> list[Prompt]:
    limit = min(128, backbone.context_length or 128)
    return Tokeniser(backbone, Template.of(template), limit)(_TEXTS).prompts


@torch.inference_mode()
def _read_states(backbone: Backbone, prompts: list[Prompt], side: str = "right") -> Tensor:
    """[prompts, readings, dim] states of all layers and poolings."""
    readings = [Reading(layer, pooling) for layer in range(backbone.n_layers + 1) for pooling in POOLINGS]
    batch = collate(prompts, backbone.pad_token_id, side=side).to(backbone.device)
    return Capture(backbone, readings)(batch)


def _plain_forward(backbone: Backbone, prompt: Prompt, **kwargs: bool) -> Any:
    """The model's own output for one prompt without padding."""
    ids = torch.tensor([prompt.ids], device=backbone.device)
    return backbone.model(input_ids=ids, use_cache=False, **kwargs)


def _compare(backbone: Backbone, actual: Tensor, expected: Tensor) -> tuple[bool, str]:
    """Compare [..., dim] vectors, each relative to its largest value."""
    actual, expected = actual.float().cpu(), expected.float().cpu()
    scale = expected.abs().amax(dim=-1, keepdim=True).clamp(min=1e-6)
    largest = float(((actual - expected).abs() / scale).max())
    is_exact = backbone.dtype == torch.float32 and not backbone.int8
    tolerance = 5e-4 if is_exact else 5e-2  # states in 16 or 8 bits change with the batch
    return largest <= tolerance, f"largest difference {largest:.1e}, allowed {tolerance:.0e}"
