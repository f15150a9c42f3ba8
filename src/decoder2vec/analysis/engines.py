"""Compare an encoder with another engine that should give the same vectors, and find out what it does differently.

Differences between engines have few causes. Each is tried on our side: the encoder is run without its template, with
another pooling, and so on, until its vectors are those of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.extract import without_truncation_warnings
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import Decoder2VecError, UnsupportedError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.gold import GOLD_TEXTS, TOLERANCES, differences
from decoder2vec.heads.standardise import AffineHead
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.maths.similarity import normalise
from decoder2vec.text.batches import collate
from decoder2vec.text.template import SLOT, Template
from decoder2vec.text.tokens import Prompt, Tokeniser

FloatArray = NDArray[np.float32]

_EXACT = 1e-3
"""Vectors this close, relative to their length, are the same."""
_LIKELY = 0.25
"""The largest distance that rounding to few bits explains."""
_PRECISIONS = ((3e-3, "float16"), (3e-2, "bfloat16"), (_LIKELY, "8 bits or fewer"))
"""Distance up to which a precision explains it -> the precision."""
_PROBES = 8
"""Short texts on which explanations are tried."""
_LIMITS = (64, 128, 256, 384, 512, 768, 1024, 2048)
_POOLING_NAMES = {
    "mean": "pools the mean",
    "lasttoken": "reads the last token",
    "cls": "reads the first token",
    "weightedmean": "pools the mean weighted by position",
    "max": "pools the maximum",
    "sum": "pools the sum",
}


@dataclass(frozen=True)
class TextComparison:
    """One text in both engines."""

    text: str
    cosine: float | None
    """None if the engine refuses the text, or its vectors have another dimension."""
    difference: float | None
    """Relative to our vector, as `differences` of gold vectors measures it; None as above."""


@dataclass(frozen=True)
class EngineComparison:
    """The result of a comparison."""

    texts: list[TextComparison]
    agrees: bool
    diagnosis: str
    """What the engine does differently, in a sentence or two."""


def compare_engines(
    encoder: Encoder | str | Path, engine: Any, *, device: str | None = None, dtype: str | None = None
) -> EngineComparison:
    """Compare an encoder with another engine on 16 texts.

    Args:
        encoder: The encoder, or the folder of a saved one.
        engine: A server (`http://host/v1#model` of OpenAI's API, as llama.cpp and vLLM have it; `http://host/embed` of
            TEI), a folder of sentence-transformers, ONNX or this package, or an object with `encode`.
        device: Device of the encoder and of a folder; by default the best one available.
        dtype: Dtype of the encoder; by default the one that suits the device.

    Returns:
        The texts with their differences, whether all agree, and what explains it if not.

    Raises:
        EncoderError: The server cannot be reached, or does not answer with vectors.

    Example:
        >>> import decoder2vec as d2v
        >>> mean, last = (d2v.Encoder.from_pretrained("tiny-llama", pooling=name) for name in ("mean", "lasttoken"))
        >>> d2v.compare_engines(last, mean).diagnosis
        'It pools the mean; this encoder reads the last token.'
    """
    if not isinstance(encoder, Encoder):
        encoder = Encoder.load(encoder, device=device, dtype=dtype)
    if isinstance(engine, str | Path):
        engine = load_encoder(engine, device=device)
    texts = list(GOLD_TEXTS)
    with without_truncation_warnings():
        expected = encoder.encode(texts, show_progress_bar=False)
        vectors = _encode_each(engine, texts)
        dtype = encoder.backbone.dtype_name
        rows = [_compare_text(text, vectors.get(text), ours, dtype) for text, ours in zip(texts, expected, strict=True)]
        tolerance = TOLERANCES[dtype]
        agrees = all(row.difference is not None and row.difference <= tolerance for row in rows)
        diagnosis = "All texts have the same vectors." if agrees else _diagnose(encoder, vectors)
    if refused := [text for text in texts if text not in vectors]:
        diagnosis = f"{diagnosis} It refuses {len(refused)} of {len(texts)} texts, such as {refused[0][:40]!r}.".strip()
    return EngineComparison(rows, agrees, diagnosis)


def _encode_each(engine: Any, texts: list[str]) -> dict[str, FloatArray]:
    """The engine's vectors by text; a text that it refuses, as servers do with an empty one, has none."""
    try:
        return dict(zip(texts, np.asarray(engine.encode(texts), np.float32), strict=True))
    except Decoder2VecError:
        pass
    vectors = {}
    for text in texts:
        try:
            vectors[text] = np.asarray(engine.encode([text]), np.float32)[0]
        except Decoder2VecError:
            if not vectors:  # the first text is an ordinary word: the engine does not work
                raise
    return vectors


def _compare_text(text: str, vector: FloatArray | None, expected: FloatArray, dtype: str) -> TextComparison:
    if vector is None or vector.shape != expected.shape:
        return TextComparison(text, None, None)
    norms = max(float(np.linalg.norm(vector) * np.linalg.norm(expected)), 1e-12)
    difference = float(differences(vector[None], expected[None], dtype)[0])
    return TextComparison(text, float(vector @ expected) / norms, difference)


# --- explanations ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Explanation:
    """A way to run the encoder that may be the engine's, and a sentence for each change."""

    template: str
    reading: Reading | None = None
    """Instead of the encoder's own readings."""
    pooling: str | None = None
    """Instead of that of the encoder's own readings."""
    tokens: str = ""
    """A change of the tokens: one of `_TOKEN_CHANGES`."""
    attention: str | None = None
    adapter: bool = True
    head: bool = True
    normalize: bool | str = False
    changes: tuple[str, ...] = ()

    def prompts(self, encoder: Encoder, texts: Sequence[str], limit: int, cut_suffix: bool = False) -> list[Prompt]:
        """The tokens of the texts; `cut_suffix` truncates the whole prompt, not the text in it."""
        context = encoder.backbone.context_length or 10**6
        tokeniser = Tokeniser(encoder.backbone, Template(self.template), context if cut_suffix else min(limit, context))
        prompts = [_change_tokens(prompt, self.tokens, encoder.backbone) for prompt in tokeniser(texts).prompts]
        return [Prompt(p.ids[:limit], min(p.start, limit - 1), len(p.ids[:limit])) for p in prompts]

    def vectors(self, encoder: Encoder, latents: FloatArray) -> FloatArray:
        """[text, dim] vectors from [text, reading, dim] latents."""
        flat = latents.reshape(len(latents), -1)
        vectors = encoder.head(flat) if encoder.head is not None and self.head else flat
        return normalise(np.asarray(vectors, np.float32), self.normalize)

    def readings(self, encoder: Encoder) -> list[Reading]:
        """The readings that are taken."""
        own = [replace(reading, template="") for reading in encoder.spec.readings]
        if self.reading:
            return [self.reading]
        return [replace(reading, pooling=self.pooling) for reading in own] if self.pooling else own


_TOKEN_CHANGES = {
    "no bos": "It leaves out the BOS token.",
    "bos": "It puts a BOS token in front, which this encoder does not.",
    "two bos": "It puts the BOS token in front twice.",
    "no eos": "It leaves out the EOS token at the end.",
    "eos": "It appends an EOS token, which this encoder does not.",
    "prefix": "It pools the prompt before the text, too.",
}


def _change_tokens(prompt: Prompt, change: str, backbone: Backbone) -> Prompt:
    ids, start = prompt.ids, prompt.start
    bos, eos = backbone.tokenizer.bos_token_id, backbone.tokenizer.eos_token_id
    if change == "no bos":
        ids, start = ids[1:], max(0, start - 1)
    elif change in ("bos", "two bos"):
        ids, start = [bos, *ids], start + 1 if start else 0
    elif change == "no eos":
        ids = ids[:-1]
    elif change == "eos":
        ids = [*ids, eos]
    elif change == "prefix":
        start = 0
    return Prompt(ids, min(start, len(ids) - 1), len(ids)) if ids else prompt


def _possible_token_changes(encoder: Encoder, template: str) -> list[str]:
    (prompt,) = _Explanation(template).prompts(encoder, ["A dog"], encoder.max_seq_length)
    bos, eos = encoder.tokenizer.bos_token_id, encoder.tokenizer.eos_token_id
    changes = [""]
    if bos is not None:
        changes += ["no bos", "two bos"] if prompt.ids[0] == bos else ["bos"]
    if eos is not None:
        changes.append("no eos" if prompt.ids[-1] == eos else "eos")
    return [*changes, "prefix"] if prompt.start else changes


def _passes(encoder: Encoder) -> Iterator[_Explanation]:
    """Explanations that need a forward pass of their own: templates, tokens, attention, adapter."""
    own = Template.of(encoder.spec.readings[0].template or encoder.spec.template)
    templates = {own.string: ""}
    for name, prompt in encoder.prompts.items():
        templates.setdefault(own.with_prefix(prompt).string, f"It puts the prompt {name!r} before each text.")
    templates.setdefault(SLOT, f"It leaves out the template {own.string!r}.")
    for template, sentence in templates.items():
        for tokens in _possible_token_changes(encoder, template):
            changes = tuple(filter(None, (sentence, _TOKEN_CHANGES.get(tokens, ""))))
            yield _Explanation(template, tokens=tokens, normalize=encoder.spec.normalize, changes=changes)
    base = _Explanation(own.string, normalize=encoder.spec.normalize)
    if encoder.backbone.adapter is not None:
        sentence = f"It runs the model without this encoder's adapter ({encoder.backbone.adapter.kind})."
        yield replace(base, adapter=False, changes=(sentence,))
    if encoder.spec.attention in ("causal", "bidirectional"):
        other = "bidirectional" if encoder.spec.attention == "causal" else "causal"
        sentence = f"Its attention is {other}; that of this encoder is {encoder.spec.attention}."
        yield replace(base, attention=other, changes=(sentence,))


def _variants(encoder: Encoder, start: _Explanation) -> Iterator[_Explanation]:
    """What can be read of the same forward pass: other poolings, layers and norms, no head, another length."""
    own = encoder.spec.readings[0]
    ways = [start]
    poolings = sorted(POOLINGS, key=lambda name: name == "sum")  # of the direction of the mean, and rarer
    if len(encoder.spec.readings) == 1:
        layers = range(encoder.backbone.n_layers + 1)
        readings = [
            Reading(layer, pooling, n) for layer, pooling, n in product(layers, poolings, (own.normed, not own.normed))
        ]
        ways += [
            replace(start, reading=reading, changes=start.changes + _reading_changes(own, reading))
            for reading in readings
        ]
    else:
        ways += [
            replace(start, pooling=name, changes=(*start.changes, _pooling_change(own, name)))
            for name in poolings
            if name != own.pooling
        ]
    heads = (True,) if encoder.head is None else (True, False)
    for way, head, length in product(ways, heads, dict.fromkeys((encoder.spec.normalize, False, True))):
        changes = way.changes
        if not head:
            changes = (*changes, f"It leaves out the head ({encoder.head.kind if encoder.head else ''}).")
        if length != encoder.spec.normalize:
            verb = "scales vectors to length 1" if length else "does not normalise vectors"
            changes = (*changes, f"It {verb}.")
        yield replace(way, head=head, normalize=length, changes=changes)


def _reading_changes(own: Reading, other: Reading) -> tuple[str, ...]:
    changes = []
    if other.pooling != own.pooling:
        changes.append(_pooling_change(own, other.pooling))
    if other.layer != own.layer:
        norm = " after the final norm" if other.normed else ""
        changes.append(f"It reads layer {other.layer}{norm}; this encoder reads layer {own.layer}.")
    elif other.normed != own.normed:
        verb = "applies the final norm, which this encoder does not" if other.normed else "leaves out the final norm"
        changes.append(f"It {verb}.")
    return tuple(changes)


def _pooling_change(own: Reading, pooling: str) -> str:
    return f"It {_POOLING_NAMES[pooling]}; this encoder {_POOLING_NAMES[own.pooling]}."


@contextmanager
def _running(encoder: Encoder, explanation: _Explanation) -> Iterator[Backbone]:
    """The backbone as the explanation has it; its attention is switched back at the end."""
    backbone, attention = encoder.backbone, encoder.backbone.attention
    if not explanation.adapter:
        backbone = backbone.with_adapter(None)
    try:
        if explanation.attention:
            backbone.set_attention(explanation.attention)
        yield backbone
    finally:
        if explanation.attention:
            backbone.set_attention(attention)


@torch.inference_mode()
def _latents(backbone: Backbone, readings: list[Reading], prompts: list[Prompt]) -> FloatArray:
    batch = collate(prompts, backbone.pad_token_id).to(backbone.device)
    return np.asarray(Capture(backbone, readings)(batch).float().cpu().numpy())


# --- diagnosis ------------------------------------------------------------------------------------------------------


def _diagnose(encoder: Encoder, vectors: dict[str, FloatArray]) -> str:
    """Find the explanation with the fewest changes, and then what it leaves unexplained; "" if that is nothing."""
    dim = len(next(iter(vectors.values())))
    if dim < encoder.dim and _are_first_dimensions(encoder, vectors, dim):
        return f"It returns the first {dim} of {encoder.dim} dimensions."
    probes = [text for text in vectors if 2 <= len(text) <= 100 and text == text.strip()][:_PROBES]
    targets = np.stack([vectors[text] for text in probes])
    explanation, distance = _explain(encoder, probes, targets)
    if explanation is None or distance > _LIKELY:
        nearest = f" The nearest explanation leaves a distance of {distance:.2g}." if explanation else ""
        size = f"It gives {dim} dimensions, this encoder {encoder.dim}. " if dim != encoder.dim else ""
        return f"{size}No explanation fits: it seems to run other weights, or another model.{nearest}"
    sentences = list(explanation.changes)
    if distance > _EXACT:
        sentences.append(_rounding(targets, distance))
    rest = {text: vector for text, vector in vectors.items() if text not in probes}
    return " ".join([*sentences, *_explain_rest(encoder, explanation, rest, max(3 * distance, _EXACT))])


def _are_first_dimensions(encoder: Encoder, vectors: dict[str, FloatArray], dim: int) -> bool:
    ours = encoder.encode(list(vectors), show_progress_bar=False)[:, :dim]
    theirs = np.stack(list(vectors.values()))
    return bool(np.median(_distances(normalise(theirs, True), normalise(ours, True))) <= _EXACT)


def _explain(encoder: Encoder, texts: list[str], targets: FloatArray) -> tuple[_Explanation | None, float]:
    """The explanation with the fewest changes among the nearest, and its largest relative distance."""
    candidates: list[tuple[float, _Explanation]] = []
    for start in _passes(encoder):
        ways = list(_variants(encoder, start))
        readings = list(dict.fromkeys(reading for way in ways for reading in way.readings(encoder)))
        prompts = start.prompts(encoder, texts, encoder.max_seq_length)
        try:
            with _running(encoder, start) as backbone:
                latents = _latents(backbone, readings, prompts)
        except UnsupportedError:  # this family has no such attention
            continue
        column = {reading: index for index, reading in enumerate(readings)}
        for way in ways:
            if encoder.head is not None and way.head and not isinstance(encoder.head, AffineHead) and way.reading:
                continue
            computed = way.vectors(encoder, latents[:, [column[reading] for reading in way.readings(encoder)]])
            if computed.shape == targets.shape:
                candidates.append((float(_distances(computed, targets).max()), way))
    if not candidates:
        return None, float("inf")
    nearest = min(distance for distance, _ in candidates)
    good = [candidate for candidate in candidates if candidate[0] <= max(3 * nearest, _EXACT)]
    distance, explanation = min(good, key=lambda candidate: (len(candidate[1].changes), candidate[0]))
    return explanation, distance


def _distances(vectors: FloatArray, targets: FloatArray) -> FloatArray:
    """[text] distances, relative to the length of the target."""
    norms = np.maximum(np.linalg.norm(targets, axis=-1), 1e-12)
    relative = np.linalg.norm(vectors - targets, axis=-1) / norms
    return np.where(np.isfinite(relative), relative, np.inf).astype(np.float32)


def _rounding(targets: FloatArray, distance: float) -> str:
    if np.array_equal(targets, targets.astype(np.float16)):
        return "Its numbers are rounded to float16."
    precision = next(name for limit, name in _PRECISIONS if distance <= limit)
    return f"The vectors differ by up to {distance:.1e} of their length, as a computation in {precision} does."


def _explain_rest(
    encoder: Encoder, explanation: _Explanation, vectors: dict[str, FloatArray], tolerance: float
) -> list[str]:
    """Sentences about texts that the explanation of the short ones does not explain: long, with spaces, empty."""
    sentences, unexplained = [], []
    for text, target in vectors.items():
        limit = encoder.max_seq_length
        if _fits(encoder, explanation, text, target, limit, tolerance):
            continue
        if text != text.strip() and _fits(encoder, explanation, text.strip(), target, limit, tolerance):
            sentences.append("It strips the white space around a text.")
        elif truncation := _find_limit(encoder, explanation, text, target, tolerance):
            sentences.append(truncation)
        else:
            unexplained.append(text)
    if unexplained:
        shown = ", ".join(repr(text[:40]) for text in unexplained[:3])
        sentences.append(f"It reads {len(unexplained)} text(s) in another way that is not explained: {shown}.")
    return list(dict.fromkeys(sentences))


def _fits(
    encoder: Encoder,
    explanation: _Explanation,
    text: str,
    target: FloatArray,
    limit: int,
    tolerance: float,
    cut_suffix: bool = False,
) -> bool:
    prompts = explanation.prompts(encoder, [text], limit, cut_suffix)
    with _running(encoder, explanation) as backbone:
        latents = _latents(backbone, explanation.readings(encoder), prompts)
    computed = explanation.vectors(encoder, latents)
    return computed.shape[1:] == target.shape and float(_distances(computed, target[None])[0]) <= tolerance


def _find_limit(
    encoder: Encoder, explanation: _Explanation, text: str, target: FloatArray, tolerance: float
) -> str | None:
    """A sentence about the length at which a long text is truncated; None if no length explains the vector."""
    own, context = encoder.max_seq_length, encoder.backbone.context_length or 10**6
    length = len(explanation.prompts(encoder, [text], context)[0].ids)
    if length <= min(_LIMITS):
        return None
    limits = [own, *range(own - 2, own + 3), *_LIMITS, context]
    for limit in dict.fromkeys(min(limit, length) for limit in limits if limit > 2):
        if limit <= context and _fits(encoder, explanation, text, target, limit, tolerance):
            cut = f"It truncates texts at {limit} tokens" if limit < length else "It does not truncate this long text"
            return f"{cut}; this encoder at {own}."
        if _fits(encoder, explanation, text, target, limit, tolerance, cut_suffix=True):
            return f"It truncates the whole prompt at {limit} tokens, so that the end of the template is lost."
    return None
