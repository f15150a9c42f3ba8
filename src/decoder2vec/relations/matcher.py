"""`PairMatcher`: retrieve for each mention the k nearest others, and classify only these pairs.

The matcher comes first, then what it predicts, then its folder.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.config import DEFAULT_ENCODER, fingerprint
from decoder2vec.errors import EncoderError, InputError, StorageError
from decoder2vec.evaluation.baselines import load_encoder
from decoder2vec.evaluation.similarity import is_sparse
from decoder2vec.evaluation.vector_cache import VectorCache, token_counter
from decoder2vec.package import __version__
from decoder2vec.progress import current_progress
from decoder2vec.relations.candidates import Candidates, Floats, retrieve
from decoder2vec.relations.classifier import PairClassifier, RerankerClassifier, TrainReranker
from decoder2vec.relations.mentions import MARKERS, NONE, Mention, MentionSet, Pair, Relation
from decoder2vec.relations.metrics import RelationScores, accuracy, score_labels
from decoder2vec.relations.retriever import Retriever
from decoder2vec.relations.training import N_FOLDS, MatcherTraining, best_threshold
from decoder2vec.reranker import Reranker
from decoder2vec.storage import atomic_folder, cache_root, check_replaceable, parse_json, real_path
from decoder2vec.tensor_files import load_tensors, save_tensors

log = logging.getLogger(__name__)

MATCHER_FILE = "matcher.json"
WEIGHTS_FILE = "matcher.safetensors"
ENCODER_FOLDER = "encoder"
CLASSIFIER_FOLDER = "classifier"
MATCHER_FORMAT, RERANKER_MATCHER_FORMAT = 1, 2
"""Of matchers with a network on vectors, and of those with a reranker."""
_MAX_DIM = 8192
"""Longer vectors, such as counts of words, would give a classifier of millions of weights."""


class PairMatcher:
    """Finds relations between mentions, such as events of a document, claims and evidence, or duplicate records.

    Every mention is encoded once. Of all pairs within a document only those are classified whose tail is among the `k`
    mentions nearest to the head; every other pair has no relation.

    Args:
        encoder: An `Encoder` or anything with `encode`, or a name that `load_encoder` takes.
        k: Candidates for each mention.
        directed: Whether (a, b) and (b, a) may have different labels; False for duplicates and other symmetric
            relations.
        tune: Tune the retriever on the relations; otherwise it compares the vectors of the encoder as they are.
        train_classifier: Trains a reranker that reads both mentions of a pair, such as `RerankerTraining`; by default
            the classifier is a small network on their vectors, which is fast.
        seed: Seed of the training.
        encoder_options: Options of `load_encoder` such as layer and device, where `encoder` is a name.

    Example:
        >>> import decoder2vec as d2v
        >>> nouns = ["rain", "storm", "frost", "hail"]
        >>> texts = [f"The {noun} {what}." for noun in nouns for what in ("began", "broke the roof")]
        >>> mentions = [d2v.Mention(str(n), text, document=str(n // 2)) for n, text in enumerate(texts)]
        >>> relations = [d2v.Relation(str(n), str(n + 1), "causes") for n in range(0, len(texts), 2)]
        >>> matcher = d2v.PairMatcher("tiny-llama", k=1)
        >>> matcher.fit(mentions, relations).scores.recall_at_k
        1.0
        >>> [(found.head.id, found.label) for found in matcher.predict(mentions[:2]).relations]
        [('0', 'causes')]
    """

    def __init__(
        self,
        encoder: Any = DEFAULT_ENCODER,
        *,
        k: int = 5,
        directed: bool = True,
        tune: bool = True,
        train_classifier: TrainReranker | None = None,
        seed: int = 0,
        **encoder_options: Any,
    ) -> None:
        if k < 1:
            raise InputError(f"k is {k}; give 1 candidate or more for each mention.")
        self.k, self.directed, self.tune, self.seed = k, directed, tune, seed
        self.train_classifier = train_classifier
        named = isinstance(encoder, str | Path)
        changes = any(value is not None for name, value in encoder_options.items() if name not in ("device", "dtype"))
        self.encoder_name = _absolute_name(encoder) if named and not changes else None
        """Under which a saved matcher finds it again; None: it is saved with the matcher."""
        self.encoder = load_encoder(encoder, **encoder_options) if named else encoder
        if not callable(getattr(self.encoder, "encode", None)):
            raise InputError(f"A {type(encoder).__name__} has no `encode`; pass an encoder, a model name or a folder.")
        self.retriever = Retriever()
        self.classifier: PairClassifier | RerankerClassifier | None = None
        """None until `fit`."""
        self.threshold = 0.5
        """Probability of any relation from which a pair is related; chosen by F1 in the cross-validation."""
        dtype = str(getattr(getattr(self.encoder, "backbone", None), "dtype", ""))
        space = getattr(self.encoder, "fingerprint", None)
        self._cache = VectorCache(
            self.encoder.encode, fingerprint(space, "", "encode", dtype) if space else None, token_counter(self.encoder)
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels it was trained on, without NONE."""
        return self.classifier.labels[1:] if self.classifier else ()

    def fit(
        self, mentions: Iterable[Mention], relations: Iterable[Relation], tails: Iterable[Mention] | None = None
    ) -> RelationResult:
        """Train on known relations; pairs without one are taken for unrelated.

        The classifier learns from all related pairs, also those that were not retrieved, and from unrelated pairs that
        were: the mistakes of the retriever.

        Args:
            mentions: The mentions; with `tails`, those of the first table.
            relations: Relations between them.
            tails: Mentions of a second table; then heads are of the first table and tails of this one.

        Returns:
            Predictions for the same mentions by cross-validation: those of a document are made by a matcher that was
            trained on other documents. The threshold alone is chosen on all of them. A reranker is trained once, on
            four fifths of the documents, and predicts the last fifth.

        Raises:
            InputError: There is no relation, or too few; an id is unknown or occurs twice.
        """
        data = MentionSet.of(mentions, tails, self.directed)
        gold = data.gold(relations)
        if len(gold) < 2:
            raise InputError(
                f"There are {len(gold)} relations to learn from; give 2 or more, with another label than NONE."
            )
        vectors = self.encode(data)
        training = MatcherTraining(data, gold, vectors, self.k, tune=self.tune, seed=self.seed)
        if self.train_classifier is not None:
            return self._fit_reranker(training, self.train_classifier)
        with current_progress().phase("training", N_FOLDS + 1):
            candidates, probabilities = training.cross_validate()
            self.retriever, self.classifier, _ = training.fit()
            current_progress().advance(1)
        self.threshold = best_threshold(candidates, probabilities, self.classifier.labels, gold)
        return self._result(data, candidates, probabilities, gold)

    def _fit_reranker(self, training: MatcherTraining, train: TrainReranker) -> RelationResult:
        """Train a reranker on some documents, and predict and choose the threshold on the others."""
        data, held_out = training.data, training.hold_out()
        self.retriever, candidates, pairs, targets = training.examples(~held_out)
        texts = [mention.marked for mention in data.mentions]
        self.classifier = RerankerClassifier.fit(train, texts, pairs, targets, self.directed)
        candidates = candidates.select(held_out[candidates.pairs[:, 0]])
        probabilities = self._probabilities(data, training.vectors, candidates)
        gold = {pair: label for pair, label in training.gold.items() if held_out[pair[0]]}
        self.threshold = best_threshold(candidates, probabilities, self.classifier.labels, gold)
        return self._result(data, candidates, probabilities, gold, data.count_pairs(np.flatnonzero(held_out).tolist()))

    def _probabilities(self, data: MentionSet, vectors: Floats, candidates: Candidates) -> NDArray[np.float32]:
        """[candidates, labels] probabilities, NONE first."""
        if isinstance(self.classifier, RerankerClassifier):
            with current_progress().phase("classifying", len(candidates)):
                return self.classifier([mention.marked for mention in data.mentions], candidates.pairs)
        assert self.classifier is not None
        return self.classifier(vectors, candidates.pairs)

    def predict(
        self,
        mentions: Iterable[Mention],
        tails: Iterable[Mention] | None = None,
        *,
        known: Iterable[Relation] | None = None,
    ) -> RelationResult:
        """Find the relations between mentions.

        Args:
            mentions: The mentions; with `tails`, those of the first table.
            tails: Mentions of a second table.
            known: Relations that are known, to measure the predictions by.

        Raises:
            InputError: The matcher is not trained, or `known` has a label that it was not trained on.
        """
        if self.classifier is None:
            raise InputError("The matcher is not trained; call fit() first.")
        data = MentionSet.of(mentions, tails, self.directed)
        gold = None if known is None else data.gold(known)
        if unknown := sorted(set((gold or {}).values()) - set(self.labels)):
            raise InputError(
                f"The matcher has not seen the label {unknown[0]!r} in training, so it cannot be measured by it; it "
                f"knows {', '.join(self.labels)}."
            )
        vectors = self.encode(data)
        candidates = retrieve(*self.retriever(vectors), data, self.k)
        return self._result(data, candidates, self._probabilities(data, vectors, candidates), gold)

    def save(self, folder: str | Path) -> Path:
        """Save the matcher to a folder; one that is already there is replaced.

        An encoder that has a name is referenced by it, and any other is saved with the matcher.

        Raises:
            InputError: The matcher is not trained, or its encoder can neither be named nor saved.
        """
        if self.classifier is None:
            raise InputError("The matcher is not trained; call fit() before it is saved.")
        if self.encoder_name is None and not hasattr(self.encoder, "save"):
            raise InputError(
                f"A {type(self.encoder).__name__} cannot be saved; name the encoder instead of passing it."
            )
        target = Path(folder)
        check_matcher_folder(target)
        maps = {"head_map": self.retriever.head_map, "tail_map": self.retriever.tail_map}
        tensors = {f"retriever.{name}": tensor for name, tensor in maps.items() if tensor is not None}
        reads_pairs = isinstance(self.classifier, RerankerClassifier)
        if isinstance(self.classifier, PairClassifier):
            tensors |= {f"classifier.{name}": tensor for name, tensor in self.classifier.tensors().items()}
        description = {
            "decoder2vec": __version__,
            "format": RERANKER_MATCHER_FORMAT if reads_pairs else MATCHER_FORMAT,
            "encoder": self.encoder_name,
            "encoder_fingerprint": getattr(self.encoder, "fingerprint", None),
            **({"dim": self.classifier.dim} if isinstance(self.classifier, PairClassifier) else {}),
            "labels": self.labels,
            "k": self.k,
            "directed": self.directed,
            "tune": self.tune,
            "seed": self.seed,
            "threshold": self.threshold,
        }
        with atomic_folder(target, replace=True) as temporary:
            save_tensors(tensors, temporary / WEIGHTS_FILE, {})
            if isinstance(self.classifier, RerankerClassifier):
                reranker = self.classifier.reranker
                # the cache may be emptied, and what the folder held is replaced
                weights, temporary_folders = real_path(Path(reranker.backbone.name)), (cache_root(), target)
                copies = any(weights.is_relative_to(real_path(folder)) for folder in temporary_folders)
                reranker.save(temporary / CLASSIFIER_FOLDER, copy_backbone=copies)
            if self.encoder_name is None:
                self.encoder.save(temporary / ENCODER_FOLDER)
            (temporary / MATCHER_FILE).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
        return target

    @classmethod
    def from_pretrained(cls, folder: str | Path, **encoder_options: Any) -> PairMatcher:
        """Load a matcher that `save` wrote.

        Args:
            folder: The folder.
            encoder_options: Options of `load_encoder`, such as device.

        Raises:
            InputError: There is no matcher in the folder.
            EncoderError: It is damaged, or its encoder has changed.
        """
        path = Path(folder).expanduser()
        try:
            description = parse_json((path / MATCHER_FILE).read_text(encoding="utf-8"))
            if description["format"] not in (MATCHER_FORMAT, RERANKER_MATCHER_FORMAT):
                raise ValueError(f"it has format {description['format']!r}, which this version does not read")
            settings = {key: description[key] for key in ("k", "directed", "tune", "seed")}
            tensors, _ = load_tensors(path / WEIGHTS_FILE)
            groups = {
                group: {name.partition(".")[2]: each for name, each in tensors.items() if name.startswith(f"{group}.")}
                for group in ("retriever", "classifier")
            }
            classifier: PairClassifier | RerankerClassifier
            if description["format"] == MATCHER_FORMAT:
                classifier = PairClassifier.from_tensors(
                    description["labels"], description["dim"], groups["classifier"]
                )
            else:
                options = {name: encoder_options.get(name) for name in ("device", "dtype")}
                reranker = Reranker.load(path / CLASSIFIER_FOLDER, **options)
                classifier = RerankerClassifier(reranker, description["directed"])
            retriever, threshold = Retriever(**groups["retriever"]), float(description["threshold"])
            encoder, expected = description["encoder"] or path / ENCODER_FOLDER, description["encoder_fingerprint"]
        except OSError as error:
            raise InputError(f"{folder} is not the folder of a saved matcher: it has no {MATCHER_FILE}.") from error
        except (ValueError, KeyError, TypeError, RuntimeError, StorageError) as error:
            raise EncoderError(f"{folder} is not a saved matcher, or damaged: {error}") from error
        matcher = cls(encoder, **settings, **encoder_options)
        if getattr(matcher.encoder, "fingerprint", None) != expected:
            raise EncoderError(
                f"The encoder {encoder} is not the one that the matcher {folder} was trained with; train it again."
            )
        matcher.retriever, matcher.classifier, matcher.threshold = retriever, classifier, threshold
        matcher.encoder_name = description["encoder"]  # one in this folder is saved again with the matcher
        return matcher

    def encode(self, data: MentionSet) -> Floats:
        """[mentions, dim] vectors; each text is encoded once, and not again by the next run."""
        texts = [mention.marked for mention in data.mentions]
        with current_progress().phase("encoding", len(set(texts))):
            self._cache.fill(list(dict.fromkeys(texts)))
            vectors = self._cache.read(texts)
        if is_sparse(vectors) or vectors.shape[1] > _MAX_DIM:
            raise InputError(
                f"Vectors of {vectors.shape[1]:,} dimensions are too long for a classifier; choose another encoder."
            )
        _check_markers(data, vectors)
        return np.asarray(vectors, np.float32)

    def _result(
        self,
        data: MentionSet,
        candidates: Candidates,
        probabilities: NDArray[np.float32],
        gold: Mapping[Pair, str] | None,
        n_pairs: int | None = None,
    ) -> RelationResult:
        """The result; `n_pairs` are all that could be candidates, by default all pairs within documents."""
        assert self.classifier is not None
        labels = self.classifier.labels
        predictions = []
        for row, (head, tail) in enumerate(candidates.tuples()):
            by_label = dict(zip(labels, probabilities[row].tolist(), strict=True))
            label = max(self.labels, key=by_label.__getitem__) if 1 - by_label[NONE] >= self.threshold else NONE
            predictions.append(
                PredictedRelation(
                    data.mentions[head],
                    data.mentions[tail],
                    label,
                    by_label,
                    float(candidates.similarity[row]),
                    int(candidates.rank[row]),
                    None if gold is None else gold.get((head, tail), NONE),
                )
            )
        scores, missed = None, []
        if gold is not None:
            predicted = {
                pair: each.label
                for pair, each in zip(candidates.tuples(), predictions, strict=True)
                if each.label != NONE
            }
            n_pairs = data.n_pairs if n_pairs is None else n_pairs
            overall, by_label_scores = score_labels(gold, predicted)
            scores = RelationScores(
                overall,
                by_label_scores,
                accuracy(gold, predicted, n_pairs),
                self.k,
                candidates.recall(gold),
                len(candidates),
                n_pairs,
            )
            retrieved = set(candidates.tuples())
            missed = [
                Relation(data.mentions[head].id, data.mentions[tail].id, label)
                for (head, tail), label in gold.items()
                if (head, tail) not in retrieved
            ]
        return RelationResult(data, tuple(predictions), scores, tuple(missed), self.threshold)


def _check_markers(data: MentionSet, vectors: Floats) -> None:
    """Warn if mentions of one sentence have the same vector: then the encoder does not see the markers."""
    first_of: dict[str, int] = {}
    for index, mention in enumerate(data.mentions):
        first = first_of.setdefault(mention.text, index)
        if data.mentions[first].marked != mention.marked and np.array_equal(vectors[first], vectors[index]):
            log.warning(
                "The encoder gives mentions %r and %r of one sentence the same vector: its tokenizer drops the markers "
                "%s %s, or cuts the sentence before the mention; choose another encoder, or shorter texts.",
                data.mentions[first].id,
                mention.id,
                *MARKERS,
            )
            return


# --- predictions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictedRelation:
    """A candidate pair, what the classifier says of it, and why it is a candidate."""

    head: Mention
    tail: Mention
    label: str
    """The label; NONE for a pair that was classified and found not to be related."""
    probabilities: dict[str, float]
    """By label, NONE included."""
    similarity: float
    """Cosine by the retriever."""
    rank: int
    """Rank of the tail among the neighbours of the head, from 1."""
    known: str | None = None
    """The known label, NONE included; None if it is not known."""

    @property
    def probability(self) -> float:
        """Probability of the label."""
        return self.probabilities[self.label]

    def to_json(self) -> dict[str, Any]:
        """Return the relation as plain data, with mentions named by their ids."""
        return {
            "head": self.head.id,
            "tail": self.tail.id,
            **({"document": self.head.document} if self.head.document else {}),
            "label": self.label,
            "probability": round(self.probability, 4),
            "probabilities": {label: round(value, 4) for label, value in self.probabilities.items()},
            "similarity": round(self.similarity, 4),
            "rank": self.rank,
            **({"known": self.known} if self.known is not None else {}),
        }


@dataclass(frozen=True)
class RelationResult:
    """All candidates with their labels, and how good they are if relations are known."""

    mentions: MentionSet
    candidates: tuple[PredictedRelation, ...]
    """The pairs that were classified, NONE included."""
    scores: RelationScores | None
    not_retrieved: tuple[Relation, ...]
    """Known relations that were no candidates; they count against recall."""
    threshold: float

    @property
    def relations(self) -> list[PredictedRelation]:
        """The pairs predicted to be related, the most probable first."""
        related = [each for each in self.candidates if each.label != NONE]
        return sorted(related, key=lambda each: -each.probability)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "scores": self.scores and self.scores.to_json(),
            "threshold": self.threshold,
            "relations": [each.to_json() for each in self.relations],
            "not_retrieved": [asdict(relation) for relation in self.not_retrieved],
        }


# --- folder ---------------------------------------------------------------------------------------------------------


def check_matcher_folder(target: Path) -> None:
    """Raise an error if a path holds anything other than what `save` wrote, or cannot be written."""
    files = (MATCHER_FILE, WEIGHTS_FILE, f"{ENCODER_FOLDER}/*", f"{CLASSIFIER_FOLDER}/*")
    check_replaceable(target, files if (target / MATCHER_FILE).is_file() else ())


def _absolute_name(encoder: str | Path) -> str:
    """The name of an encoder, which is found from any working directory if it is that of a folder."""
    path = Path(encoder).expanduser()
    return str(path.resolve() if path.exists() else encoder)
