"""Prune the vocabulary of a model to the tokens that texts use, and plan that without the model's weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoder2vec.activations.extract import Extractor
from decoder2vec.analysis.layer_embeddings import Document, load_texts, sample_texts, write_documents
from decoder2vec.backbone.backbone import Backbone, load_tokenizer
from decoder2vec.backbone.blocks import count_parameters
from decoder2vec.backbone.machine import FOUR_BIT, INT8, quiet_transformers
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import BACKBONE_FOLDER, SENTENCE_TOKENS_FOLDER, saved_encoder_folder
from decoder2vec.errors import BackboneError, InputError
from decoder2vec.export.pruned import PRUNING_FILE, check_new_folder, write_sentence_tokens
from decoder2vec.export.pruned_vocabulary import (
    VocabularySummary,
    config_token_ids,
    prune_encoder,
    write_pruned_vocabulary,
)
from decoder2vec.progress import current_progress
from decoder2vec.saved_encoder import read_encoder_folder, with_sentence_tokens
from decoder2vec.storage import atomic_folder, check_output_file, temporary_folder, versions
from decoder2vec.text.sentences import split_sentences
from decoder2vec.text.template import TEMPLATES, Template
from decoder2vec.text.vocabulary import TextTokens, TokenCounts, Vocabulary, encode_texts

_COMPARED_TEXTS = 64
"""Texts whose vectors are compared before and after."""
_TOLERANCE = 1e-6
"""The largest allowed difference between vectors, relative to their norm; it is 0 on the machines that we know."""
_HELD_OUT_STEP = 10
"""Every tenth text is held out where no other texts are given."""
_TOKENISING = "tokenising"

Texts = str | Path | Sequence[str]
"""A .txt file, any data file, or a list of texts."""


@dataclass(frozen=True)
class VocabularyPruning:
    """The result of `prune_vocabulary`."""

    out: Path
    """Folder of the pruned model or encoder."""
    kept: list[int]
    """Old ids of the kept tokens, in the order of the new ones."""
    summary: VocabularySummary


def prune_vocabulary(
    model: str | Path,
    out: str | Path,
    texts: Texts,
    *,
    size: int | None = None,
    held_out: Texts | None = None,
    template: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> VocabularyPruning:
    """Remove the tokens that texts do not use from a model or an encoder.

    Texts all of whose tokens are kept are tokenised as before, and get the same vectors. In other texts, the tokens
    that are missing are replaced by smaller ones, down to bytes. From an encoder comes an encoder, with its adapters,
    its head and a copy of the pruned model.

    Example:
        >>> import tempfile
        >>> import decoder2vec as d2v
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = d2v.prune_vocabulary("tiny-llama", f"{folder}/small", ["A cat sleeps.", "A dog runs."])
        >>> result.summary.tokens_before, result.summary.texts_changed, result.summary.off
        (512, 0, 0.0)

    Args:
        model: Built-in name, model folder, .gguf file, hub id, or a saved encoder.
        out: New folder for the pruned model or encoder.
        texts: The texts that must keep their tokens.
        size: Keep at most this many tokens, the most frequent ones; the texts that change are counted.
        held_out: Other texts, to count how many of them change.
        template: Template in which the texts are read; by default "plain", or the encoder's own.
        device: cuda, mps or cpu; by default the best one available.
        dtype: Dtype such as "float32" or "bfloat16"; by default the one that suits the device.
        notify: Called with one-line messages.

    Raises:
        InputError: `out` is not empty, or `size` is too small.
        UnsupportedError: The tokenizer is not a BPE tokenizer.
    """
    check_new_folder(target := Path(out))
    if dtype in (FOUR_BIT, INT8):
        raise InputError(f"Pruning compares the model with whole weights; give another dtype than {dtype}.")
    chosen, _ = load_texts(texts, notify=notify)
    others = load_texts(held_out, notify=notify)[0] if held_out is not None else []
    progress = current_progress()
    progress.expect("loading the model")
    progress.expect(_TOKENISING, len(chosen))
    progress.expect("saving")
    encoder, backbone = _load(model, device, dtype, notify)
    templates = _templates(template, encoder.spec if encoder else None)
    vocabulary = Vocabulary(backbone.tokenizer)
    with progress.phase(_TOKENISING, len(templates) * (3 * len(chosen) + 2 * len(others))):
        counts = _count(vocabulary, chosen, templates, sentences=backbone.sentence_tokens is not None)
        needed = vocabulary.rows_needed(counts, config_token_ids(resolve_model_folder(backbone.name)))
        kept = vocabulary.select(needed, backbone.vocabulary_size, size)
        tokenizer = vocabulary.pruned_tokenizer(kept)
        change = _compare_tokens(backbone.tokenizer, tokenizer, kept, chosen, templates)
        held_out_change = _compare_tokens(backbone.tokenizer, tokenizer, kept, others, templates)
    same = [text for text, changed in zip(chosen, change.changed, strict=True) if not changed]
    with progress.phase("saving"), temporary_folder(target) as scratch:
        write_pruned_vocabulary(backbone, kept, tokenizer, scratch / "model")
        reloaded = Backbone.load(scratch / "model", device=backbone.device, dtype=backbone.dtype)
        summary = VocabularySummary(
            reloaded.vocabulary_size,
            backbone.vocabulary_size,
            count_parameters(reloaded.model),
            count_parameters(backbone.model),
            len(chosen),
            int(change.changed.sum()),
            len(others),
            int(held_out_change.changed.sum()),
            held_out_change.growth,
            _vector_difference(backbone, reloaded, sample_texts(same, _COMPARED_TEXTS), templates),
        )
        if not encoder:
            write_sentence_tokens(backbone, reloaded, scratch / "model")
        _finish(scratch / "model", target, encoder, summary, {"model": str(model), "weights": backbone.fingerprint})
    return VocabularyPruning(target, kept, summary)


def _load(
    model: str | Path, device: str | None, dtype: str | None, notify: Callable[[str], None]
) -> tuple[Encoder | None, Backbone]:
    """The encoder, if it is one, and the language model."""
    if folder := saved_encoder_folder(model):
        encoder = Encoder.load(folder, device=device, dtype=dtype)
        return encoder, encoder.backbone
    return None, with_sentence_tokens(Backbone.load(model, device=device, dtype=dtype, notify=notify))


def _finish(
    model: Path, target: Path, encoder: Encoder | None, summary: VocabularySummary, note: dict[str, Any]
) -> None:
    """Put the written model in its place, or an encoder that uses it, with pruning.json."""
    text = json.dumps({**note, "vocabulary": asdict(summary), "versions": versions()}, indent=1) + "\n"
    if encoder:
        prune_encoder(encoder, model, target, {PRUNING_FILE: text.encode()})
        return
    with atomic_folder(target) as folder:
        for file in model.iterdir():
            file.rename(folder / file.name)
        (folder / PRUNING_FILE).write_text(text, encoding="utf-8")


def _templates(template: str | None, spec: EncoderSpec | None) -> list[Template]:
    """The template that is asked for, or all that an encoder uses, with each of its prompts; else the plain one."""
    if template is not None:
        return [Template.of(template)]
    if spec is None:
        return [Template.of("plain")]
    names = dict.fromkeys(reading.template or spec.template for reading in spec.readings)
    prompts = ["", *(prompt for _, prompt in spec.prompts)]
    prefixed = [Template.of(name).with_prefix(prompt) for name in names for prompt in prompts]
    return list(dict.fromkeys(prefixed))


def _count(
    vocabulary: Vocabulary, texts: Sequence[str], templates: Sequence[Template], *, sentences: bool
) -> TokenCounts:
    """Count the tokens of all texts; the words of the named templates are counted once, with the first text.

    With `sentences`, those that sentences get alone are counted, too: within a text most begin with a space.
    """
    plain = Template.of("plain")
    counts = vocabulary.count(texts, templates)
    if sentences:
        parts = [(row, part) for row, text in enumerate(texts) for part in split_sentences(text)]
        counts = counts.plus(vocabulary.count([part for _, part in parts], [plain]), [row for row, _ in parts])
    prompts = [Template.of(name).render("")[0] for name in TEMPLATES]
    return counts.plus(vocabulary.count(prompts, [plain]), [0] * len(prompts))


@dataclass(frozen=True)
class _TokenChange:
    changed: NDArray[np.bool_]
    """[text] whether it gets other tokens in any of the templates."""
    growth: float
    """Number of tokens, divided by that before."""


def _compare_tokens(
    old: Any, new: Any, kept: Sequence[int], texts: Sequence[str], templates: Sequence[Template]
) -> _TokenChange:
    """Tokenise texts with both tokenizers.

    Raises:
        BackboneError: A text gets other tokens although all its tokens are kept.
    """
    changed = np.zeros(len(texts), bool)
    is_kept, old_ids = set(kept), np.array(kept)
    before = after = 0
    for template in templates:
        pairs = zip(encode_texts(old, texts, template), encode_texts(new, texts, template), strict=True)
        rows = ((a, b) for old_batch, new_batch in pairs for a, b in zip(old_batch, new_batch, strict=True))
        for index, (old_row, new_row) in enumerate(rows):
            before, after = before + len(old_row), after + len(new_row)
            if old_ids[new_row].tolist() == old_row:
                continue
            if is_kept.issuperset(old_row):
                raise BackboneError(f"The pruned tokenizer changes a text whose tokens it has: {texts[index][:80]!r}.")
            changed[index] = True
    return _TokenChange(changed, after / before if before else 1.0)


def _vector_difference(
    backbone: Backbone, reloaded: Backbone, texts: Sequence[str], templates: Sequence[Template]
) -> float:
    """The largest difference between vectors of the last layer before and after, relative to their norm."""
    if not texts:
        return 0.0
    reading, plain = Reading(backbone.n_layers, normed=True), backbone.with_adapter(None)
    expected, vectors = (Extractor(model, [reading], templates[0])(texts) for model in (plain, reloaded))
    difference = float((np.linalg.norm(expected - vectors, axis=-1) / np.linalg.norm(expected, axis=-1)).max())
    if not difference <= _TOLERANCE:
        raise BackboneError(f"The vectors of the pruned model differ by {difference:.2g}; please report this family.")
    return difference


def measure_vocabulary(
    model: str | Path,
    texts: Texts | None,
    *,
    held_out: Texts | None = None,
    out: str | Path | None = None,
    template: str | None = None,
    limit: int | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Document:
    """Measure which tokens texts use, and what pruning the others would save; no weights are loaded.

    Example:
        >>> import decoder2vec as d2v
        >>> document = d2v.measure_vocabulary("tiny-llama", [f"Item {n} costs {n % 5} coins." for n in range(20)])
        >>> document["rows"], document["by_texts"][-1]["held_out_covered"]
        (512, 1.0)

    Args:
        model: Built-in name, model folder, .gguf file, hub id, or a saved encoder; a folder needs no weights.
        texts: The texts that must keep their tokens.
        held_out: Other texts, to measure how many of them would change; by default every tenth text is held out.
        out: Write the returned document here (.json).
        template: Template in which the texts are read; by default "plain", or the encoder's own.
        limit: Use at most this many texts, evenly spaced.
        notify: Called with one-line messages.

    Returns:
        Rows and parameters of the model; `by_texts`: rows kept and share of held-out texts that keep their tokens, by
        the number of texts; `by_size`: the same and what is saved, by the number of tokens kept.
    """
    target = Path(out) if out is not None else None
    sources = [source for source in (texts, held_out) if isinstance(source, str | Path)]
    check_output_file(target, ".json", sources=sources)
    chosen, file = load_texts(texts, limit, notify)
    if held_out is not None:
        others, other_file = load_texts(held_out, notify=notify)
    else:
        others, other_file = (chosen[::_HELD_OUT_STEP], file) if len(chosen) > 1 else ([], None)
        chosen = [text for index, text in enumerate(chosen) if index % _HELD_OUT_STEP] or chosen
    folder, spec = _model_folder(model)
    sentences = ((saved_encoder_folder(model) or folder) / SENTENCE_TOKENS_FOLDER).is_dir()
    templates = _templates(template, spec)
    vocabulary = Vocabulary(load_tokenizer(folder))
    with current_progress().phase(_TOKENISING, len(templates) * len(chosen) + len(others)):
        counts = _count(vocabulary, chosen, templates, sentences=sentences)
        tokens = vocabulary.read(others, templates[0])
    n_rows, n_parameters, width = _sizes(folder)
    document: Document = {
        "model": str(model),
        "rows": n_rows,
        "parameters": n_parameters,
        "parameters_per_row": width,
        "texts": {"count": len(chosen), "file": file},
        "held_out": {"count": len(others), "file": other_file},
        "templates": [template.string for template in templates],
        **_curves(vocabulary, counts, tokens, config_token_ids(folder), (n_rows, n_parameters, width)),
    }
    return write_documents(target, [document])


def _curves(
    vocabulary: Vocabulary, counts: TokenCounts, held_out: TextTokens, ids: set[int], sizes: tuple[int, int, int]
) -> Document:
    """Rows by number of texts, and what is saved by number of rows."""
    n_rows, n_parameters, width = sizes
    by_text, by_row = vocabulary.texts_needed(counts, ids), vocabulary.rows_needed(counts, ids)
    text_of_token, row_of_token = (vocabulary.by_id(needed) for needed in (by_text, by_row))
    text_of_held_out, row_of_held_out = held_out.largest(text_of_token), held_out.largest(row_of_token)
    first_texts = np.array(list(by_text.values()))
    used = counts.counts / counts.counts.sum()
    minimum, total = min(by_row.values()), len(by_row)
    by_texts = [
        {
            "texts": n_texts,
            "rows": int((first_texts <= n_texts).sum()),
            "held_out_covered": _share(text_of_held_out <= n_texts),
        }
        for n_texts in _steps(counts.n_texts, 10)
    ]
    by_size = [
        {
            "rows": rows,
            "tokens_covered": round(float(used[row_of_token <= rows].sum()), 6),
            "held_out_covered": _share(row_of_held_out <= rows),
            "parameters": n_parameters - width * (n_rows - rows),
            "parameters_saved": round(width * (n_rows - rows) / n_parameters, 4),
        }
        for rows in _steps(total, 1000)
        if rows >= minimum
    ]
    return {"rows_always_kept": minimum, "rows_used": total, "by_texts": by_texts, "by_size": by_size}


def _share(flags: NDArray[np.bool_]) -> float | None:
    return round(float(flags.mean()), 6) if len(flags) else None


def _steps(last: int, first: int) -> list[int]:
    """`first`, 2, 5 and 10 times that, and so on, up to `last`, which is included."""
    steps = (first * factor * 10**power for power in range(12) for factor in (1, 2, 5))
    return [*(step for step in islice(steps, 36) if step < last), last]


def _model_folder(name: str | Path) -> tuple[Path, EncoderSpec | None]:
    """The folder with config and tokenizer of a model, or of an encoder's model, and the encoder's settings."""
    if encoder_folder := saved_encoder_folder(name):
        spec = EncoderSpec.from_json(read_encoder_folder(encoder_folder)[0]["spec"])
        copied = encoder_folder / BACKBONE_FOLDER
        return copied if copied.is_dir() else resolve_model_folder(spec.backbone), spec
    folder = Path(name).expanduser()
    return folder if (folder / "config.json").is_file() else resolve_model_folder(name), None


def _sizes(folder: Path) -> tuple[int, int, int]:
    """Rows of the embeddings, parameters without the language-model head, and parameters of a row; from the config."""
    from transformers import AutoConfig, AutoModel

    with quiet_transformers(), torch.device("meta"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model = AutoModel.from_config(config, trust_remote_code=False)
    rows, width = model.get_input_embeddings().weight.shape
    return rows, count_parameters(model), width
