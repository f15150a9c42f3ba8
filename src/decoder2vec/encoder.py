"""The encoder: a decoder that turns texts into vectors, with saving and loading."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from decoder2vec.activations.chunks import SentenceVectors, read_chunks
from decoder2vec.activations.extract import (
    EncodingStats,
    Reader,
    check_texts,
    to_text_list,
    without_truncation_warnings,
)
from decoder2vec.activations.rerouting import reroute
from decoder2vec.activations.sentence_tokens import read_sentence_tokens
from decoder2vec.adapters.saving import load_adapter, round_adapter
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.backbone.threads import THREADS
from decoder2vec.config import DOCUMENT_PROMPTS, EncoderSpec, Reading, fingerprint
from decoder2vec.encoder_folder import (
    ADAPTER_FOLDER,
    BACKBONE_FOLDER,
    encoder_path,
    probabilities_json,
    read_probabilities,
    saved_encoder_folder,
)
from decoder2vec.errors import EncoderError, InputError, UnsupportedError, unknown_name
from decoder2vec.gold import GoldVectors
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.layerwise import Explanation, LayerwiseHead, explain_pair
from decoder2vec.heads.standardise import AffineHead
from decoder2vec.maths.probability import ProbabilityCurve
from decoder2vec.maths.similarity import (
    PRECISIONS,
    SIMILARITIES,
    as_float_rows,
    check_finite,
    normalise,
    pairwise_similarity,
    quantise,
    similarity_matrix,
)
from decoder2vec.package import __version__
from decoder2vec.progress import Progress
from decoder2vec.saved_encoder import (
    AnyHead,
    adapter_digests,
    read_encoder_folder,
    restore_adapters,
    with_sentence_tokens,
    write_encoder_folder,
)
from decoder2vec.storage import real_path
from decoder2vec.text.sentences import sentence_spans
from decoder2vec.text.template import Template

log = logging.getLogger(__name__)

_TOKENS_PER_TEXT = 64  # `batch_size` counts texts, but batches are cut by tokens: this many per text


class Encoder:
    """A text encoder made from a decoder-only language model.

    Create one with `from_pretrained`, save it with `save`.

    Args:
        backbone: The language model.
        spec: Everything that defines the encoder apart from weights: layers, pooling, template, limits, prompts.
        head: What follows pooling: an affine map fitted on unlabelled texts, a trained layerwise head, or nothing.
        exact: Compute every text alone on one thread, so that its vector is the same to the last bit whatever is
            encoded with it. Without this, vectors of length 1 differ by up to 1e-6 between batches.

    Example:
        >>> import decoder2vec as d2v
        >>> encoder = d2v.Encoder.from_pretrained("tiny-llama", layer=3, pooling="mean")
        >>> vectors = encoder.encode(["A cat sleeps.", "A kitten is napping.", "Stocks fell."])
        >>> vectors.shape, encoder.similarity(vectors, vectors).shape
        ((3, 32), torch.Size([3, 3]))
        >>> d2v.Encoder.load(encoder.save("my-encoder")).fingerprint == encoder.fingerprint
        True
    """

    def __init__(
        self, backbone: Backbone, spec: EncoderSpec, head: AnyHead | None = None, *, exact: bool = False
    ) -> None:
        if spec.similarity not in SIMILARITIES:
            raise unknown_name("similarity", spec.similarity, SIMILARITIES)
        readings = tuple(replace(reading, layer=backbone.resolve_layer(reading.layer)) for reading in spec.readings)
        self.backbone = backbone
        self.spec = replace(spec, readings=readings, attention=backbone.attention)
        self.head = head.to(backbone.device) if isinstance(head, LayerwiseHead) else head
        self.probabilities: dict[str, ProbabilityCurve] = {}
        """Probabilities of positive pairs by their "similarity", "search" and "match" scores, fitted by `calibrate`."""
        self.exact = exact
        self.stats = EncodingStats()
        """Texts, tokens and seconds of everything encoded so far."""
        self._reader(None, None)  # a wrong pooling, template or length limit raises an error now, not at first use

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        layer: int | Sequence[int] | None = None,
        pooling: str | None = None,
        normed: bool | None = None,
        template: str | None = None,
        attention: str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        exact: bool = False,
        **kwargs: Any,
    ) -> Encoder:
        """Load any decoder as an encoder, or load a saved encoder.

        The defaults, the last token of the last layer under the "prompteol" template, are a good start for most
        decoders; `d2v sweep` finds the best settings for one on your own pairs.

        Args:
            name: A built-in model, a model folder, a .gguf file, a hub id, the folder of a saved encoder, or the
                built-in encoder "smollm2-135m-general". A saved encoder has its own settings and takes only `device`,
                `dtype` and `exact`.
            layer: The layer to read: 0 = embeddings, i = after block i, negative from the top; -1 by default. Several
                layers are concatenated.
            pooling: "lasttoken" (default), "mean", "weightedmean", "max", "cls" or "sum".
            normed: Apply the model's final norm to the layer; False by default.
            template: The name of a template, or a string that contains {text}; "prompteol" by default.
            attention: "causal", "bidirectional", or "bidirectional:12" for bidirectional above layer 12; the model's
                own by default. "causal+prepend:2-8" and "causal+kv:2-8" re-route the last token's state to all tokens
                in layers 2 to 8, by token prepending or as a key and value.
            device: Device such as "cuda" or "cpu"; by default the best one available.
            dtype: Dtype such as "float32", "bfloat16" or "int8"; by default the one that suits the device.
            exact: Compute every text alone, so that its vector is the same to the last bit whatever is encoded with it.
            **kwargs: Further fields of `EncoderSpec`: max_length, on_overflow, normalize, similarity, prompts.

        Returns:
            The encoder.
        """
        kwargs |= {"layer": layer, "pooling": pooling, "normed": normed, "template": template, "attention": attention}
        kwargs = {key: value for key, value in kwargs.items() if value is not None}
        if folder := saved_encoder_folder(name):
            if kwargs:
                raise InputError(
                    f"{name} is a saved encoder with its own settings; leave out {', '.join(kwargs)}, or name a model."
                )
            return cls.load(folder, device=device, dtype=dtype, exact=exact)
        direction, _, rerouting = kwargs.pop("attention", "").partition("+")
        backbone = with_sentence_tokens(Backbone.load(name, attention=direction or None, device=device, dtype=dtype))
        backbone = reroute(backbone, rerouting) if rerouting else backbone
        return cls(backbone, spec_from_kwargs(str(name), kwargs), exact=exact)

    def encode(
        self,
        inputs: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: str | torch.device | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute embeddings of texts, with the arguments of sentence-transformers.

        Args:
            inputs: A text or a list of texts.
            prompt_name: The name of one of `prompts` to put in front of every text.
            prompt: A prompt to put in front of every text; it is never pooled. A prompt that contains {text} replaces
                the template. It takes precedence over `prompt_name`.
            batch_size: Texts per batch, counted as 64 tokens each; by default what suits the device.
            show_progress_bar: Show a progress bar; by default only if the log level is INFO or lower.
            output_value: Only "sentence_embedding" is supported.
            precision: "float32", "int8", "uint8", "binary" or "ubinary".
            convert_to_numpy: Return a NumPy array; False returns a tensor.
            convert_to_tensor: Return a tensor on the encoder's device; overrides `convert_to_numpy`.
            device: Move the encoder to this device first.
            normalize_embeddings: Scale the embeddings to unit length.
            truncate_dim: Keep only the first dimensions; applied before normalisation.
            **kwargs: None are accepted; an unknown argument is an error.

        Returns:
            [dim] for a string, [n, dim] for a list of n texts, [0, dim] for an empty list.
        """
        if kwargs:
            raise InputError(f"encode() has no argument {', '.join(map(repr, kwargs))}.")
        if output_value != "sentence_embedding":
            raise InputError(f"output_value {output_value!r} is not supported; only 'sentence_embedding' is.")
        for name, number in (("batch_size", batch_size), ("truncate_dim", truncate_dim)):
            if number is not None and number < 1:
                raise InputError(f"{name} must be 1 or more, not {number}.")
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, PRECISIONS)
        if device is not None:
            self.to(device)
        texts = [inputs] if isinstance(inputs, str) else to_text_list(inputs)
        prompt = resolve_prompt(self.prompts, prompt_name, prompt)
        vectors = self._compute_vectors(texts, prompt, batch_size, show_progress_bar)
        if truncate_dim is not None:
            vectors = vectors[:, :truncate_dim]
        vectors = normalise(vectors, normalize_embeddings or self.spec.normalize)
        result = quantise(vectors, precision) if len(vectors) else vectors
        result = result[0] if isinstance(inputs, str) else result
        if convert_to_tensor or not convert_to_numpy:
            return torch.from_numpy(np.ascontiguousarray(result)).to(self.device)
        return result

    def encode_query(self, inputs: str | Sequence[str], **kwargs: Any) -> Any:
        """Call `encode` with the prompt named "query", if there is one.

        Args:
            inputs: A query or a list of queries.
            **kwargs: Arguments of `encode`; an explicit `prompt` or `prompt_name` takes precedence.
        """
        return self.encode(inputs, **self._with_default_prompt(kwargs, "query"))

    def encode_document(self, inputs: str | Sequence[str], **kwargs: Any) -> Any:
        """Call `encode` with the first existing prompt of "document", "passage" and "corpus".

        Args:
            inputs: A document or a list of documents.
            **kwargs: Arguments of `encode`; an explicit `prompt` or `prompt_name` takes precedence.
        """
        return self.encode(inputs, **self._with_default_prompt(kwargs, *DOCUMENT_PROMPTS))

    def encode_chunks(
        self,
        text: str | Sequence[str],
        spans: Sequence[Any],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        window: int | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = False,
        sentence_tokens: bool = False,
    ) -> Any:
        """Compute an embedding for each chunk of a text from states that have seen the rest of the text.

        The text is read once ("late chunking"), instead of each chunk alone. A text that is longer than `window` is
        read in windows that overlap, so that every chunk has context on both sides. A span of the whole text gives the
        embedding of `encode`.

        Args:
            text: A text or a list of texts.
            spans: Begin and end of each chunk in characters; for a list of texts, a list of spans for each. Chunks may
                overlap. One that is longer than a window is treated as `on_overflow` says.
            prompt_name: The name of one of `prompts`, as in `encode`.
            prompt: A prompt in front of the text, as in `encode`; it is read once for a window.
            window: Tokens that are read at once, prompt and template included; by default `max_seq_length`.
            batch_size: Texts per batch, counted as 64 tokens each; by default what suits the device.
            show_progress_bar: Show a progress bar; by default only if the log level is INFO or lower.
            normalize_embeddings: Scale the embeddings to unit length.
            sentence_tokens: Read the tokens that stand for chunks, if the model was trained with them (`unshuffle`).

        Returns:
            [m, dim] for a text with m spans; a list of these for a list of texts.

        Raises:
            InputError: A span is empty or outside its text.
            UnsupportedError: The encoder pools its soft prompt, or only the BOS token, which all chunks share.
        """
        texts, all_spans = ([text], [spans]) if isinstance(text, str) else (to_text_list(text), spans)
        reader = self._reader(resolve_prompt(self.prompts, prompt_name, prompt), batch_size)
        hidden = log.getEffectiveLevel() > logging.INFO if show_progress_bar is None else not show_progress_bar
        with tqdm(desc="Windows", disable=hidden) as bar, THREADS.fixed_to_one() if self.exact else nullcontext():
            read = read_sentence_tokens if sentence_tokens else read_chunks
            latents = read(reader, texts, all_spans, window, bar.update)
            vectors = self._apply_head(latents.reshape(len(latents), len(self.spec.readings) * self.backbone.dim))
        self.stats += reader.stats
        chunk_texts = [text[begin:end] for text, chunks in zip(texts, all_spans, strict=True) for begin, end in chunks]
        check_finite(vectors, chunk_texts)
        vectors = normalise(vectors, normalize_embeddings or self.spec.normalize)
        ends = np.cumsum([len(chunks) for chunks in all_spans], dtype=int)
        return vectors if isinstance(text, str) else np.split(vectors, ends[:-1]) if texts else []

    def encode_sentences(self, text: str | Sequence[str], **kwargs: Any) -> Any:
        """Compute an embedding for each sentence of a text in one pass, from states that have seen the other sentences.

        Args:
            text: A text or a list of texts.
            **kwargs: Arguments of `encode_chunks`; sentence tokens are read where the model has them.

        Returns:
            `SentenceVectors` with [m, dim] vectors and the m spans in characters; a list of these for a list of texts.
        """
        kwargs.setdefault("sentence_tokens", self.backbone.sentence_tokens is not None)
        texts = [text] if isinstance(text, str) else list(check_texts(to_text_list(text)))
        spans = [sentence_spans(each) for each in texts]
        results = [*map(SentenceVectors, self.encode_chunks(texts, spans, **kwargs), spans)]
        return results[0] if isinstance(text, str) else results

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Compute the similarity of all embeddings with all others.

        Args:
            embeddings1: [n, dim] embeddings, or [dim] for one.
            embeddings2: [m, dim] embeddings, or [dim] for one.

        Returns:
            [n, m] similarities.
        """
        if pair_head := self._pair_head():
            return pair_head.similarity(as_float_rows(embeddings1), as_float_rows(embeddings2))
        return similarity_matrix(self.spec.similarity, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Tensor:
        """Compute the similarity of embeddings row by row.

        Args:
            embeddings1: [n, dim] embeddings, or [dim] for one.
            embeddings2: [n, dim] embeddings, or [dim] for one.

        Returns:
            [n] similarities.
        """
        if pair_head := self._pair_head():
            return pair_head.similarity_pairwise(as_float_rows(embeddings1), as_float_rows(embeddings2))
        return pairwise_similarity(self.spec.similarity, embeddings1, embeddings2)

    def score(self, texts1: str | Sequence[str], texts2: str | Sequence[str], **kwargs: Any) -> Any:
        """Score pairs of texts between 0 and 1, on the scale of the scores that the encoder was trained on.

        Equal texts score exactly 1 (except under the paper's own "mlp" head).

        Args:
            texts1: A text, or a list of texts.
            texts2: A text, or a list of as many texts.
            **kwargs: Arguments of `encode`.

        Returns:
            A float for two strings, [n] scores for two lists of n texts.
        """
        single = isinstance(texts1, str)
        if single != isinstance(texts2, str) or (not single and len(texts1) != len(texts2)):
            raise InputError("score() takes two texts, or two lists of the same length.")
        left, right = ([texts1], [texts2]) if single else (to_text_list(texts1), to_text_list(texts2))
        row_of = {text: row for row, text in enumerate(dict.fromkeys([*left, *right]))}  # equal texts are encoded once
        vectors = self.encode(list(row_of), **kwargs)
        raw = self.similarity_pairwise(vectors[[row_of[t] for t in left]], vectors[[row_of[t] for t in right]])
        scores = (self.head.calibration if isinstance(self.head, LayerwiseHead) else Calibration())(raw).numpy()
        return float(scores[0]) if single else scores

    def explain(self, text1: str, text2: str) -> Explanation:
        """Explain the score of two texts: cosine and contribution of each layer of a trained layerwise encoder.

        Args:
            text1: The first text.
            text2: The second text.
        """
        return explain_pair(self.head, self.spec.readings, self.encode([text1, text2]))

    def with_head(self, kind: str, texts: Sequence[str], **kwargs: Any) -> Encoder:
        """Return a new encoder with an affine head fitted on unlabelled texts; the weights are shared.

        Args:
            kind: "standardise", "whiten", "remove_top", or "rotate" for vectors that will be cut with `truncate_dim`.
            texts: Texts like those to be encoded; thousands are better than hundreds.
            **kwargs: prompt_name, prompt, batch_size, show_progress_bar or device, as in `encode`.
        """
        if isinstance(self.head, LayerwiseHead):
            raise UnsupportedError("This encoder has a trained head, which another would replace; fit one on a model.")
        if wrong := kwargs.keys() - {"prompt_name", "prompt", "batch_size", "show_progress_bar", "device"}:
            raise InputError(f"A head is fitted on plain vectors; leave out {', '.join(sorted(wrong))}.")
        bare = Encoder(self.backbone, replace(self.spec, normalize=False), exact=self.exact)
        vectors = bare.encode(list(dict.fromkeys(check_texts(texts))), **kwargs)
        return Encoder(self.backbone, self.spec, AffineHead.fit(kind, vectors), exact=self.exact)

    def add_adapter(self, name: str, folder: str | Path) -> None:
        """Load the adapter of another encoder of the same backbone and keep it under a name; `save` includes it.

        Args:
            name: Name of the adapter: letters, digits, - and _.
            folder: The saved encoder that has the adapter: its folder, or the name of a built-in encoder.
        """
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):  # it becomes the name of a folder
            raise InputError(f"An adapter's name has letters, digits, - and _ only, unlike {name!r}.")
        source = encoder_path(folder)
        self.backbone.adapters[name] = load_adapter(source / ADAPTER_FOLDER, self.backbone)

    def with_adapter(self, name: str) -> Encoder:
        """Return a new encoder with the named adapter active; the weights are shared, so switching is free.

        Args:
            name: The name given to `add_adapter`.
        """
        if name not in self.backbone.adapters:
            raise unknown_name("adapter", name, self.backbone.adapters or ["(this encoder has no named adapters)"])
        backbone = self.backbone.with_adapter(self.backbone.adapters[name])
        return Encoder(backbone, self.spec, self.head, exact=self.exact)

    def save(
        self,
        folder: str | Path,
        *,
        copy_backbone: bool = False,
        lora_dtype: str = "float32",
        extra_files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Save the encoder to a folder; an encoder that is already there is replaced.

        The backbone is referenced by name and fingerprint, not copied: built-in and hub models are found again
        anywhere. The folder has gold vectors, from which `d2v doctor` sees whether the encoder still gives the same.

        Args:
            folder: The folder to write.
            copy_backbone: Copy the weights of the backbone too, for a folder that is self-contained.
            lora_dtype: How the active adapter is stored, if it is a LoRA: "float32", "bfloat16" for half the size or
                "int8" for a quarter, which only this package reads. The saved encoder is then the rounded one, which
                differs slightly from this.
            extra_files: Further files to write, by name: the model card and the record of a training run.

        Returns:
            The path of the folder.
        """
        target = Path(folder)
        backbone = self.backbone.with_adapter(round_adapter(self.backbone.adapter, self.backbone, lora_dtype))
        encoder = Encoder(backbone, self.spec, self.head)
        source = resolve_model_folder(backbone.name)
        inside = real_path(source).is_relative_to(real_path(target))  # saved over itself: keep its weights
        description = {
            "decoder2vec": __version__,
            "fingerprint": encoder.fingerprint,
            "backbone_fingerprint": backbone.fingerprint,
            "dim": self.dim,
            "spec": replace(self.spec, backbone=backbone.name).to_json(),
            "head": self.head.kind if self.head else None,
            "adapters": adapter_digests(backbone),
            **probabilities_json(self.probabilities),
        }
        write_encoder_folder(
            target,
            description,
            backbone,
            self.head,
            source if copy_backbone or inside else None,
            lora_dtype,
            extra_files or {},
            encoder.write_gold_vectors,
        )
        return target

    save_pretrained = save

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        exact: bool = False,
    ) -> Encoder:
        """Load an encoder that `save` wrote.

        Args:
            folder: The folder of the encoder, or the name of a built-in encoder.
            device: Device such as "cuda" or "cpu"; by default the best one available.
            dtype: Dtype such as "float32", "bfloat16" or "int8"; by default the one that suits the device.
            exact: Compute every text alone, so that its vector is the same to the last bit whatever is encoded with it.

        Raises:
            BackboneError: The weights of the backbone have changed since the encoder was saved.
            EncoderError: The folder is damaged.
        """
        path = encoder_path(folder)
        description, head = read_encoder_folder(path)
        spec = EncoderSpec.from_json(description["spec"])
        source = copied if (copied := path / BACKBONE_FOLDER).is_dir() else spec.backbone
        backbone = Backbone.load(source, attention=spec.attention, device=device, dtype=dtype)
        backbone = restore_adapters(backbone, path, description["backbone_fingerprint"])
        encoder = cls(backbone, spec, head, exact=exact)
        _check_fingerprint(encoder, description, path)
        encoder.probabilities = read_probabilities(description, path)
        return encoder

    def to(self, device: str | torch.device) -> Encoder:
        """Move the weights to a device, and return the encoder."""
        self.backbone.to(device)
        if isinstance(self.head, LayerwiseHead):
            self.head.to(self.device)
        return self

    def write_gold_vectors(self, folder: Path, leave_out: Container[str] = ()) -> None:
        """Write the vectors of 16 texts into a folder, by which later versions and other programs can be checked.

        Args:
            folder: Folder of a saved encoder or an export.
            leave_out: Texts that the program which reads the folder cannot encode in the same way.
        """
        try:
            encode = partial(self.encode, show_progress_bar=False)
            with without_truncation_warnings(), Progress():  # these texts are not the caller's work
                gold = GoldVectors.compute(encode, self.backbone.dtype_name, leave_out)
        except EncoderError:
            log.warning("The encoder gives vectors that are not finite, so %s has no gold vectors.", folder.name)
            return
        gold.write(folder, {key: value for key, value in self.spec.to_json().items() if key != "backbone"})

    @property
    def fingerprint(self) -> str:
        """Identifies the embedding space: encoders with equal fingerprints give comparable vectors."""
        settings = {key: value for key, value in self.spec.to_json().items() if key != "backbone"}
        return fingerprint(self.backbone.effective_fingerprint, settings, self.head.digest() if self.head else None)

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return self.head.dim if self.head else len(self.spec.readings) * self.backbone.dim

    def get_embedding_dimension(self) -> int:
        """Return the dimension of the embeddings."""
        return self.dim

    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def max_seq_length(self) -> int:
        """Maximum number of tokens of a prompt."""
        return min(self.spec.max_length, self.backbone.context_length or self.spec.max_length)

    @property
    def similarity_fn_name(self) -> str:
        """Name of the similarity function: cosine, dot, euclidean or manhattan."""
        return self.spec.similarity

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by name."""
        return dict(self.spec.prompts)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the backbone."""
        return self.backbone.tokenizer

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.backbone.device

    def __repr__(self) -> str:
        readings = " + ".join(map(str, self.spec.readings[:3])) + (" + ..." if len(self.spec.readings) > 3 else "")
        more = "".join(f", {part}" for part in (self.head and self.head.kind, self.backbone.dtype_reason) if part)
        return f"Encoder({self.backbone.name}: {readings}, {self.spec.template!r}, {self.spec.attention}{more})"

    def _compute_vectors(
        self, texts: list[str], prompt: str, batch_size: int | None, show_progress_bar: bool | None
    ) -> NDArray[np.float32]:
        if not texts:
            return np.empty((0, self.dim), np.float32)
        reader = self._reader(prompt, batch_size)
        if show_progress_bar is None:
            show_progress_bar = log.getEffectiveLevel() <= logging.INFO
        vectors = np.empty((len(texts), self.dim), np.float32)
        bar = tqdm(total=len(texts) * reader.n_passes, desc="Texts", disable=not show_progress_bar)
        with bar, THREADS.fixed_to_one() if self.exact else nullcontext():
            for begin in range(0, len(texts), reader.texts_per_chunk):
                chunk = slice(begin, begin + reader.texts_per_chunk)
                latents = reader(texts[chunk], bar.update).reshape(len(texts[chunk]), -1)
                vectors[chunk] = self._apply_head(latents)
        self.stats += reader.stats
        check_finite(vectors, texts)
        return vectors

    def _apply_head(self, latents: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.head is None:
            return latents
        # the last bits of a matrix product depend on its number of rows
        one_by_one = self.exact and len(latents) > 1
        return np.concatenate([self.head(row[None]) for row in latents]) if one_by_one else self.head(latents)

    def _reader(self, prompt: str | None, batch_size: int | None) -> Reader:
        budget = 1 if self.exact else batch_size and batch_size * _TOKENS_PER_TEXT  # of 1: every text is a batch
        return Reader.from_spec(self.backbone, self.spec, budget, prompt or "")

    def _pair_head(self) -> LayerwiseHead | None:
        return self.head if isinstance(self.head, LayerwiseHead) and self.head.has_pair_similarity else None

    def _with_default_prompt(self, kwargs: Mapping[str, Any], *names: str) -> dict[str, Any]:
        """Arguments of `encode` with the first of `names` that is a prompt, unless the caller chose a prompt."""
        chosen = kwargs.get("prompt") is not None or kwargs.get("prompt_name") is not None
        default = next((name for name in names if name in self.prompts), None)
        return dict(kwargs) if chosen or default is None else {**kwargs, "prompt_name": default}


def _check_fingerprint(encoder: Encoder, description: Mapping[str, Any], folder: Path) -> None:
    """Raise EncoderError if settings, adapter or head are not those that were saved, such as after one was deleted."""
    saved, saved_adapters = description.get("fingerprint"), description.get("adapters")  # None: not recorded by 0.1
    encoders = (Encoder(backbone, encoder.spec, encoder.head) for backbone in encoder.backbone.variants())
    is_same = any(saved in (None, variant.fingerprint) for variant in encoders)
    if is_same and saved_adapters in (None, adapter_digests(encoder.backbone)):
        return
    raise EncoderError(
        f"The encoder in {folder} is not the one that was saved: its adapter, head or settings were changed or are "
        "missing; copy the whole folder again, or save the encoder again."
    )


# --- arguments ------------------------------------------------------------------------------------------------------


def spec_from_kwargs(name: str, kwargs: dict[str, Any]) -> EncoderSpec:
    """Return the `EncoderSpec` for keyword arguments of `Encoder.from_pretrained`.

    Args:
        name: Name of the backbone.
        kwargs: layer, pooling, normed, template and further fields of `EncoderSpec`; consumed.
    """
    layer = kwargs.pop("layer", -1)
    layers: list[Any] = [layer] if np.ndim(layer) == 0 else list(layer)
    pooling, normed = kwargs.pop("pooling", "lasttoken"), kwargs.pop("normed", False)
    template = Template.of(kwargs.pop("template", "prompteol")).string
    prompts = tuple(dict(kwargs.pop("prompts", {})).items())
    if unknown := kwargs.keys() - EncoderSpec.__dataclass_fields__:
        raise unknown_name("setting", unknown.pop(), EncoderSpec.__dataclass_fields__)
    readings = tuple(Reading(operator.index(layer), pooling, normed) for layer in layers)
    return EncoderSpec(name, readings, template, prompts=prompts, **kwargs)


def resolve_prompt(prompts: Mapping[str, str], name: str | None, prompt: str | None) -> str:
    """The prompt given as a string or by name; empty if there is neither."""
    if prompt is None and name is not None:
        if name not in prompts:
            raise unknown_name("prompt", name, prompts or ["(this encoder has no prompts)"])
        prompt = prompts[name]
    return prompt or ""
