"""The reranker: a decoder that reads a document and a query together and scores how well the one answers the other.

`Reranker` comes first, then the three ways to get a score, then the folder in which a reranker is saved.
"""

from __future__ import annotations

import json
import logging
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax
from torch import Tensor

from decoder2vec.activations.capture import Capture
from decoder2vec.activations.extract import EncodingStats, Extractor, check_texts
from decoder2vec.activations.shared_beginning import SharedBeginning
from decoder2vec.adapters.saving import load_adapter, round_adapter, save_adapter
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.backbone.machine import any_shape_attention
from decoder2vec.backbone.sources import resolve_model_folder
from decoder2vec.config import DEFAULT_MAX_LENGTH, Reading, fingerprint, from_table
from decoder2vec.encoder_folder import (
    ADAPTER_FOLDER,
    BACKBONE_FOLDER,
    HEAD_FILE,
    RERANKER_FILE,
    check_output_folder,
    saved_encoder_folder,
    saved_reranker_folder,
)
from decoder2vec.errors import BackboneError, EncoderError, InputError, StorageError, unknown_name
from decoder2vec.gold import GoldVectors
from decoder2vec.package import __version__
from decoder2vec.progress import Progress, current_progress
from decoder2vec.storage import atomic_folder, parse_json, real_path
from decoder2vec.tensor_files import load_tensors, save_tensors
from decoder2vec.text.batches import collate, plan_batches
from decoder2vec.text.pair_template import PairTemplate, PairTokeniser
from decoder2vec.text.tokens import Prompt

log = logging.getLogger(__name__)

RERANKER_FORMAT = 1
TRAINING_FREE = ("likelihood", "yes_no")
"""Methods that need no training."""
_PAIRS_PER_CHUNK = 4096
"""Pairs that are tokenised and held in memory at a time."""
_ANSWERS = (" yes", " no")
GOLD_QUERIES = ("Who plays the guitar?", "When does the train to Cologne leave?", "code that computes an average")
"""Every saved reranker has their scores with the texts of `gold.py`."""


@dataclass(frozen=True)
class RerankerSpec:
    """Everything that defines a reranker apart from its weights: saved in `reranker.json`."""

    backbone: str
    method: str = "likelihood"
    """Where the score comes from: "linear", a trained linear layer on the state of the closing token; "likelihood", the
    mean log-likelihood of the query's tokens given the document; "yes_no", the logit of "yes" minus that of "no"."""
    template: str = ""
    """The prompt, with {document} and {query}; by default the one that suits the method."""
    attention: str = "causal"
    max_length: int = DEFAULT_MAX_LENGTH
    """Maximum number of tokens of a prompt. Of a longer one the document is cut, never the query."""
    labels: tuple[str, ...] = ()
    """Labels of pairs, for a classifier: the head has a row for each. Empty: the reranker gives one score."""

    def __post_init__(self) -> None:
        if self.method not in _METHODS:
            raise unknown_name("method", self.method, _METHODS)
        if self.labels and (self.method != "linear" or len(set(self.labels)) < max(2, len(self.labels))):
            raise InputError("Two different labels or more are needed, and the method is linear.")
        template = PairTemplate.of(self.template or _METHODS[self.method].template)
        object.__setattr__(self, "template", template.string)
        if self.method == "likelihood" and not template.ends_with_query:
            raise InputError("The likelihood is that of the end of the prompt: end the template with {query}.")

    def settings(self) -> dict[str, Any]:
        """Everything but the backbone, as plain data; without labels as earlier versions wrote it."""
        settings = {key: value for key, value in asdict(self).items() if key != "backbone"}
        labels = settings.pop("labels")
        return {**settings, "labels": list(labels)} if labels else settings


class Reranker:
    """Scores documents for a query, one pass of a decoder for each; slower than an encoder, and more accurate.

    Args:
        backbone: The language model.
        spec: Method, template and limits.
        head: [dim] weights of the linear score, or [labels, dim] where the spec has labels; for the method "linear"
            only.

    Example:
        >>> import decoder2vec as d2v
        >>> reranker = d2v.Reranker.from_pretrained("tiny-mamba", method="likelihood")
        >>> documents = ["A cat sleeps.", "Stocks fell on Monday."]
        >>> reranker.score("Where is the cat?", documents).shape
        (2,)
        >>> [hit["corpus_id"] for hit in reranker.rank("Where is the cat?", documents, top_k=1)]
        [0]
    """

    def __init__(self, backbone: Backbone, spec: RerankerSpec, head: Tensor | None = None) -> None:
        if (spec.method == "linear") != (head is not None):
            raise InputError('The method "linear" needs a trained head, and the others have none.')
        shape = (len(spec.labels), backbone.dim) if spec.labels else (backbone.dim,)
        if head is not None and head.shape != shape:
            raise InputError(f"The head of this reranker has the shape {shape}, not {tuple(head.shape)}.")
        self.backbone = backbone
        self.spec = replace(spec, attention=backbone.attention)
        self.head = None if head is None else head.detach().float().cpu()
        self.stats = EncodingStats()
        """Pairs, tokens and seconds of everything scored so far."""
        self._method = _METHODS[spec.method](self)
        self._tokeniser = PairTokeniser(
            backbone, PairTemplate(spec.template), self.max_seq_length, self._method.closing, bool(spec.labels)
        )
        self._tokeniser([""], [""])  # a limit that the template alone exceeds is an error now, not at first use

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        method: str | None = None,
        template: str | None = None,
        max_length: int | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
    ) -> Reranker:
        """Load a saved reranker, or any decoder as a reranker that needs no training.

        Args:
            name: `smollm2-135m-reranker`, which ships with this package, or the folder of a saved reranker, which has
                its own settings; or a model: a built-in name, a folder, a .gguf file or a hub id. `likelihood:MODEL`
                and `yes_no:MODEL` name the method, too.
            method: "likelihood" (default), the mean log-likelihood of the query given the document, or "yes_no", the
                logit of "yes" minus that of "no" when the model is asked whether the document is relevant.
            template: The name of a template, or a string that contains {document} and {query}; by default the one that
                suits the method.
            max_length: Maximum number of tokens of a prompt; 512 by default. Longer documents are cut.
            device: Device such as "cuda" or "cpu"; by default the best one available.
            dtype: Dtype such as "float32", "bfloat16" or "int8"; by default the one that suits the device.

        Returns:
            The reranker.

        Raises:
            InputError: A saved reranker is given settings, or the method needs training.
        """
        prefix, colon, model = str(name).partition(":")
        if colon and prefix in TRAINING_FREE and method is None:
            name, method = model, prefix
        options = {"method": method, "template": template, "max_length": max_length}
        options = {key: value for key, value in options.items() if value is not None}
        if saved_reranker_folder(name):
            if options:
                raise InputError(f"{name} is a saved reranker with its own settings; leave out {', '.join(options)}.")
            return cls.load(name, device=device, dtype=dtype)
        if saved_encoder_folder(name):
            raise InputError(
                f"{name} is an encoder, which scores pairs by its vectors; give the name of a model or a reranker, or "
                "use PairReranker."
            )
        if method == "linear":
            raise InputError("A linear score must be trained: d2v train --recipe rerank.")
        spec = RerankerSpec(str(name), **options)  # type: ignore[arg-type]
        return cls(Backbone.load(name, device=device, dtype=dtype), spec)

    def score(self, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
        """Score documents for a query.

        Args:
            query: The query.
            documents: The documents.

        Returns:
            [documents] scores in the order of the documents; higher is better. `unit_scores` maps them to 0-1.

        Raises:
            InputError: The query alone is longer than `max_length`.
        """
        if not isinstance(query, str):
            raise InputError(f"score() takes one query, a text, not {type(query).__name__}; score_pairs() takes many.")
        return self.score_pairs([query] * len(documents), documents)

    def score_pairs(self, queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
        """Score pairs, in batches of similar length; on a CPU a document of many queries is computed once for all.

        Args:
            queries: The query of each pair.
            documents: The document of each pair.

        Returns:
            [pairs] scores; higher is better.

        Raises:
            InputError: The reranker has labels, so that no score says which pair is better.
        """
        self.check_ranks()
        return self._score(queries, documents)

    def classify_pairs(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float32]:
        """Return the probability of each label for ordered pairs; (a, b) and (b, a) may have different labels.

        Args:
            first: The first text of each pair, which is read first.
            second: The second text of each pair.

        Returns:
            [pairs, labels] probabilities, in the order of `labels`.

        Raises:
            InputError: The reranker has no labels.
        """
        if not self.labels:
            raise InputError("This reranker gives one score; train labels with d2v train --set objective.name=labels.")
        return np.asarray(softmax(self._score(second, first), axis=1), np.float32)

    def check_ranks(self) -> None:
        """Raise if the reranker has labels, and so no score by which documents could be sorted."""
        if self.labels:
            raise InputError(
                f"This reranker sorts nothing: it gives pairs the labels {', '.join(self.labels)}; use "
                "classify_pairs() or d2v relate."
            )

    def _score(self, queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
        """[pairs] scores, or [pairs, labels] logits."""
        if len(queries) != len(documents):
            raise InputError(f"{len(queries)} queries and {len(documents)} documents are no pairs; give equally many.")
        check_texts(list(dict.fromkeys(queries)))
        check_texts(documents)
        scores = np.empty((len(queries), *self.score_shape), np.float32)
        n_cut = 0
        first_row: dict[str, int] = {}
        for row, document in enumerate(documents):
            first_row.setdefault(document, row)
        order = sorted(range(len(documents)), key=lambda row: first_row[documents[row]])  # equal ones in one chunk
        for begin in range(0, len(order), _PAIRS_PER_CHUNK):
            rows = order[begin : begin + _PAIRS_PER_CHUNK]
            texts = [documents[row] for row in rows]
            prompts, cut = self._tokeniser([queries[row] for row in rows], texts)
            n_cut += len(cut)
            scores[rows] = self._method(prompts, texts)
        if n_cut:
            log.warning("%d document(s) were cut to fit into %d tokens.", n_cut, self.max_seq_length)
        if not np.isfinite(scores).all():
            raise EncoderError("The model gives scores that are not finite; load it with dtype='float32'.")
        return scores

    def rerank(self, query: str, texts: Sequence[str]) -> Sequence[float]:
        """Return a score for each text, in the order of the texts: the protocol of `Index.search` and the others."""
        return [float(score) for score in self.score(query, texts)]

    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, return_documents: bool = False
    ) -> list[dict[str, Any]]:
        """Sort documents by their scores, with the arguments and results of sentence-transformers' CrossEncoder.

        Args:
            query: The query.
            documents: The documents.
            top_k: Return this many; all by default.
            return_documents: Add the documents to the results as "text".

        Returns:
            Position ("corpus_id") and "score" of each document, best first.
        """
        scores = self.score(query, documents)
        order = np.argsort(-scores, kind="stable")[:top_k]
        hits: list[dict[str, Any]] = [{"corpus_id": int(index), "score": float(scores[index])} for index in order]
        return [{**hit, "text": documents[hit["corpus_id"]]} for hit in hits] if return_documents else hits

    def score_last_states(self, states: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Return the scores of [prompts, dim] states of the last tokens, after the final norm.

        Raises:
            InputError: The method reads more than the last token.
        """
        if not isinstance(self._method, _LastTokenMethod):
            raise InputError(f"The method {self.spec.method} reads more than the last token.")
        return self._method.score_last(np.asarray(states, np.float32))

    def unit_scores(self, scores: NDArray[np.floating[Any]] | Sequence[float]) -> NDArray[np.float64]:
        """Return scores mapped to 0-1 in the same order.

        Likelihoods become the mean probability of a token, the others the logistic function of the score.
        """
        values = np.asarray(scores, np.float64)
        return np.asarray(np.exp(values) if self.spec.method == "likelihood" else expit(values))

    def save(
        self,
        folder: str | Path,
        *,
        copy_backbone: bool = False,
        lora_dtype: str = "float32",
        extra_files: Mapping[str, bytes] | None = None,
    ) -> Path:
        """Save the reranker to a folder; one that is already there is replaced.

        The backbone is referenced by name and fingerprint, not copied. The folder has the scores of some pairs, by
        which it can be checked later.

        Args:
            folder: The folder to write.
            copy_backbone: Copy the weights of the backbone too, for a folder that is self-contained.
            lora_dtype: How a LoRA is stored: "float32", "bfloat16" for half the size or "int8" for a quarter, which
                only this package reads. The saved reranker is then the rounded one, which differs slightly from this.
            extra_files: Further files to write, by name: the model card and the record of a training run.

        Returns:
            The path of the folder.
        """
        target = real_path(Path(folder))
        backbone = self.backbone.with_adapter(round_adapter(self.backbone.adapter, self.backbone, lora_dtype))
        saved = Reranker(backbone, self.spec, self.head)
        check_output_folder(target)
        weights = resolve_model_folder(backbone.name)
        copies = copy_backbone or real_path(weights).is_relative_to(target)  # saved over itself: keep its weights
        with atomic_folder(target, replace=True) as temporary:
            if self.head is not None:
                save_tensors({"weight": self.head}, temporary / HEAD_FILE, {})
            for name, content in (extra_files or {}).items():
                (temporary / name).write_bytes(content)
            if backbone.adapter:
                save_adapter(backbone.adapter, temporary / ADAPTER_FOLDER, backbone, lora_dtype)
            if copies:
                shutil.copytree(weights, temporary / BACKBONE_FOLDER)
            saved.write_gold_scores(temporary)
            files = sorted(file.relative_to(temporary).as_posix() for file in temporary.rglob("*") if file.is_file())
            description = {
                "decoder2vec": __version__,
                "format": RERANKER_FORMAT,
                "fingerprint": saved.fingerprint,
                "backbone_fingerprint": backbone.fingerprint,
                "spec": {"backbone": backbone.name, **self.spec.settings()},
                "files": [RERANKER_FILE, *files],
            }
            (temporary / RERANKER_FILE).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        return Path(folder)

    save_pretrained = save

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
    ) -> Reranker:
        """Load a reranker that `save` wrote.

        Args:
            folder: The folder of the reranker, or the name of one that ships with this package.
            device: Device such as "cuda" or "cpu"; by default the best one available.
            dtype: Dtype such as "float32", "bfloat16" or "int8"; by default the one that suits the device.

        Raises:
            BackboneError: The weights of the backbone have changed since the reranker was saved.
            EncoderError: The folder is damaged, or of a later version.
        """
        path = saved_reranker_folder(folder) or Path(folder).expanduser()
        spec, description = _read_description(path)
        head = _read_head(path / HEAD_FILE) if spec.method == "linear" else None
        copied = path / BACKBONE_FOLDER
        source = copied if copied.is_dir() else spec.backbone
        backbone = Backbone.load(source, attention=spec.attention, device=device, dtype=dtype)
        if backbone.fingerprint != description["backbone_fingerprint"]:
            raise BackboneError(f"The weights of {backbone.name} are not those that the reranker {path} was made with.")
        if (adapter := path / ADAPTER_FOLDER).is_dir():
            backbone = backbone.with_adapter(load_adapter(adapter, backbone))
        reranker = cls(backbone, spec, head)
        if description["fingerprint"] not in (cls(variant, spec, head).fingerprint for variant in backbone.variants()):
            raise EncoderError(
                f"The reranker in {path} is not the one that was saved: its adapter, head or settings were changed or "
                "are missing; copy the whole folder again, or save the reranker again."
            )
        return reranker

    def to(self, device: str | torch.device) -> Reranker:
        """Move the weights to a device, and return the reranker."""
        self.backbone.to(device)
        return Reranker(self.backbone, self.spec, self.head)

    def write_gold_scores(self, folder: Path) -> None:
        """Write the scores of fixed pairs into a folder, by which later versions and other programs can be checked."""
        level = log.level
        log.setLevel(logging.ERROR)  # some of these documents are too long on purpose
        try:
            with Progress():  # these pairs are not the caller's work
                gold = GoldVectors.compute(self.gold_scores, self.backbone.dtype_name)
        except EncoderError:
            return
        finally:
            log.setLevel(level)
        gold.write(folder, {**self.spec.settings(), "queries": list(GOLD_QUERIES)})

    def gold_scores(self, documents: Sequence[str]) -> NDArray[np.float32]:
        """[documents, queries] scores of documents for `GOLD_QUERIES`; with labels [documents, queries * labels]."""
        scores = [self._score([query] * len(documents), documents) for query in GOLD_QUERIES]
        return np.stack(scores, axis=1).reshape(len(documents), -1)

    @property
    def fingerprint(self) -> str:
        """Identifies the scores: rerankers with equal fingerprints give the same."""
        head = None if self.head is None else self.head.tolist()
        return fingerprint(self.backbone.effective_fingerprint, self.spec.settings(), head)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a classifier of pairs; empty for a reranker with one score."""
        return self.spec.labels

    @property
    def score_shape(self) -> tuple[int, ...]:
        """The shape of what is computed of a pair: one score, or a logit of each label."""
        return (len(self.labels),) if self.labels else ()

    @property
    def closing_token_ids(self) -> list[int]:
        """Tokens that end every prompt."""
        return self._method.closing

    @property
    def max_seq_length(self) -> int:
        """Maximum number of tokens of a prompt."""
        return min(self.spec.max_length, self.backbone.context_length or self.spec.max_length)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.backbone.device

    def __repr__(self) -> str:
        labels = f", {len(self.labels)} labels" if self.labels else ""
        return f"Reranker({self.backbone.name}: {self.spec.method}, {self.spec.template!r}{labels})"


# --- methods --------------------------------------------------------------------------------------------------------


class _Method(ABC):
    """Prompts to scores."""

    template: str
    """Name of the template that suits it."""

    def __init__(self, reranker: Reranker) -> None:
        self.reranker, self.backbone = reranker, reranker.backbone
        self._shared = SharedBeginning(self.backbone)

    @property
    def closing(self) -> list[int]:
        """Tokens that end every prompt."""
        return []

    def __call__(self, prompts: list[Prompt], documents: Sequence[str]) -> NDArray[np.float32]:
        """[prompts] scores; a document of several prompts is computed once, where that pays."""
        scores = np.empty((len(prompts), *self.reranker.score_shape), np.float32)
        alone = dict.fromkeys(range(len(prompts)))
        groups = self._shared.groups(prompts, documents, [self.first_read(prompt) for prompt in prompts])
        for endings in self._shared.states(prompts, groups):
            scores[endings.rows] = self.score_states(endings.states, endings.prompts)
            current_progress().advance(len(endings.rows))
            self.reranker.stats += EncodingStats(len(endings.rows), endings.n_tokens)
            for row in endings.rows:
                del alone[row]
        if alone:
            scores[list(alone)] = self.score_prompts([prompts[row] for row in alone])
        return scores

    @abstractmethod
    def first_read(self, prompt: Prompt) -> int:
        """The first token of a prompt whose state is read."""

    @abstractmethod
    def score_states(self, states: Tensor, prompts: list[Prompt]) -> NDArray[np.float32]:
        """[prompts] scores from [prompt, token, dim] states after the final norm."""

    @abstractmethod
    def score_prompts(self, prompts: list[Prompt]) -> NDArray[np.float32]:
        """[prompts] scores of whole prompts."""


class _LastTokenMethod(_Method):
    """A score of the last token's state."""

    @abstractmethod
    def score_last(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """[prompts] scores from [prompts, dim] states of their last tokens, after the final norm."""

    def first_read(self, prompt: Prompt) -> int:
        return prompt.end - 1

    def score_states(self, states: Tensor, prompts: list[Prompt]) -> NDArray[np.float32]:
        last = states[torch.arange(len(prompts)), [prompt.end - 1 for prompt in prompts]]
        return self.score_last(last.float().cpu().numpy())

    def score_prompts(self, prompts: list[Prompt]) -> NDArray[np.float32]:
        extractor = Extractor(self.backbone, [Reading(-1, "lasttoken", True)], max_length=self.reranker.max_seq_length)
        # only the last token is read, so that prompts may share all that comes before it
        states = extractor.encode_prompts([Prompt(prompt.ids, prompt.end - 1, prompt.end) for prompt in prompts])
        self.reranker.stats += extractor.stats
        return self.score_last(states[:, 0])


class _Linear(_LastTokenMethod):
    """A trained linear score of the closing token's state, or one for each label."""

    template = "doc_query"

    @property
    def closing(self) -> list[int]:
        return [self.backbone.closing_token_id]

    def score_last(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        assert self.reranker.head is not None
        return np.asarray(states @ self.reranker.head.numpy().T, np.float32)


class _LanguageModelMethod(_Method):
    """A score from the probabilities of tokens."""

    _lm_head: LMHead | None = None

    @property
    def lm_head(self) -> LMHead:
        """The language-model head, loaded at first use."""
        if self._lm_head is None:
            self._lm_head = LMHead(self.backbone)
        return self._lm_head


class _YesNo(_LanguageModelMethod, _LastTokenMethod):
    """The logit of "yes" minus that of "no" after the prompt."""

    template = "yes_no"

    def __init__(self, reranker: Reranker) -> None:
        super().__init__(reranker)
        yes, no = (list(self.backbone.token_ids(answer)) for answer in _ANSWERS)
        n_common = next((i for i, (a, b) in enumerate(zip(yes, no, strict=False)) if a != b), None)
        if n_common is None:
            raise InputError(f"The tokenizer of {self.backbone.name} does not tell yes from no; use another method.")
        self._common, self._answers = yes[:n_common], [yes[n_common], no[n_common]]

    @property
    def closing(self) -> list[int]:
        """What the tokens of both answers begin with: nothing where each is one token."""
        return self._common

    @torch.inference_mode()
    def score_last(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        last = torch.from_numpy(states).to(self.backbone.device, self.backbone.dtype)
        logits = torch.cat([self.lm_head(chunk)[:, self._answers].float() for chunk in torch.split(last, 256)])
        return np.asarray((logits[:, 0] - logits[:, 1]).cpu().numpy())


class _Likelihood(_LanguageModelMethod):
    """The mean log-likelihood of the query's tokens given what precedes them."""

    template = "question"

    def first_read(self, prompt: Prompt) -> int:
        return max(1, prompt.start) - 1

    @torch.inference_mode()
    def score_prompts(self, prompts: list[Prompt]) -> NDArray[np.float32]:
        backbone, lengths = self.backbone, [len(prompt.ids) for prompt in prompts]
        capture = Capture(backbone, [Reading(-1, "lasttoken", True)])
        scores = np.empty(len(prompts), np.float32)
        for rows in plan_batches(lengths, backbone.token_budget(), backbone.batch_overhead):
            with backbone.lock:
                scores[rows] = self._score_batch(capture, [prompts[row] for row in rows])
            current_progress().advance(len(rows))
            self.reranker.stats += EncodingStats(len(rows), sum(lengths[row] for row in rows))
        return scores

    def _score_batch(self, capture: Capture, prompts: list[Prompt]) -> NDArray[np.float32]:
        backbone = self.backbone
        batch = backbone.adapt(collate(prompts, backbone.pad_token_id).to(backbone.device))
        with backbone.adapter_enabled(batch), any_shape_attention(backbone.device):
            states = backbone.model(**capture.model_inputs(batch), use_cache=False).last_hidden_state
        return self.score_states(states, prompts)

    @torch.inference_mode()
    def score_states(self, states: Tensor, prompts: list[Prompt]) -> NDArray[np.float32]:
        positions = [range(max(1, prompt.start), prompt.end) for prompt in prompts]  # the first token has no prediction
        rows = torch.tensor([row for row, span in enumerate(positions) for _ in span])
        tokens = torch.tensor([position for span in positions for position in span])
        before = states[rows.to(states.device), tokens.to(states.device) - 1]
        ids = torch.tensor([prompts[row].ids[token] for row, token in zip(rows, tokens, strict=True)])
        values = self.lm_head.log_likelihoods(before, ids.to(states.device)).cpu()
        sums = torch.zeros(len(prompts)).index_add_(0, rows, values)
        return np.asarray(sums / torch.tensor([max(1, len(span)) for span in positions]))


_METHODS: dict[str, type[_Method]] = {"linear": _Linear, "likelihood": _Likelihood, "yes_no": _YesNo}


# --- loading --------------------------------------------------------------------------------------------------------


def _read_description(folder: Path) -> tuple[RerankerSpec, dict[str, Any]]:
    """The spec and the whole description of a saved reranker."""
    try:
        description = parse_json((folder / RERANKER_FILE).read_text(encoding="utf-8"))
        if description["format"] != RERANKER_FORMAT:
            raise ValueError(f"it has format {description['format']!r}, and this version reads {RERANKER_FORMAT}")
        for key in ("fingerprint", "backbone_fingerprint"):
            description[key]  # a missing one is an error here
        return from_table(RerankerSpec, description["spec"]), description
    except OSError as error:
        raise InputError(f"{folder} is not the folder of a saved reranker: it has no {RERANKER_FILE}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise EncoderError(f"{folder} is not a saved reranker: {error}") from error


def _read_head(file: Path) -> Tensor:
    try:
        return load_tensors(file)[0]["weight"]
    except (StorageError, KeyError) as error:
        raise EncoderError(f"The head in {file} cannot be read ({error}); train or save the reranker again.") from error
