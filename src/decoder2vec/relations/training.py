"""The training of a matcher: the pairs it learns from, cross-validation over documents, and the threshold."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from decoder2vec.errors import InputError
from decoder2vec.progress import current_progress
from decoder2vec.relations.candidates import Candidates, Floats, Indices, retrieve
from decoder2vec.relations.classifier import PairClassifier
from decoder2vec.relations.mentions import NONE, MentionSet, Pair
from decoder2vec.relations.retriever import Retriever

log = logging.getLogger(__name__)

N_FOLDS = 5
_NEAR = 30
"""Nearest others of a mention against which the retriever is tuned."""


class MatcherTraining:
    """Trains retriever and classifier on all heads, or on some of them so that the others can be predicted.

    Args:
        data: The mentions.
        gold: The related pairs with their labels.
        vectors: [mentions, dim] vectors of the encoder.
        k: Candidates for each mention.
        tune: Tune the retriever on the related pairs.
        seed: Seed of everything.
    """

    def __init__(
        self, data: MentionSet, gold: Mapping[Pair, str], vectors: Floats, k: int, *, tune: bool = True, seed: int = 0
    ) -> None:
        self.data, self.gold, self.vectors = data, gold, vectors
        self.k, self.tune, self.seed = k, tune, seed
        self._near = retrieve(*Retriever()(vectors), data, _NEAR).tuples() if tune else []

    def fit(self, used: NDArray[np.bool_] | None = None) -> tuple[Retriever, PairClassifier, Candidates]:
        """Train on the pairs whose head is used, by default all; return the candidates of all heads, too."""
        retriever, candidates, pairs, targets = self.examples(used)
        classifier = PairClassifier(sorted(set(self.gold.values())), self.vectors.shape[1], self.data.directed)
        return retriever, classifier.fit(self.vectors, pairs, targets, self.seed), candidates

    def examples(self, used: NDArray[np.bool_] | None = None) -> tuple[Retriever, Candidates, Indices, list[str]]:
        """The retriever, the candidates of all heads, and the pairs with their labels that a classifier learns from."""
        used = np.ones(len(self.data.mentions), bool) if used is None else used
        positives = [pair for pair in self.gold if used[pair[0]]]
        if not positives:
            raise InputError(
                f"All {len(self.gold)} relations are in one document, so there is nothing to learn for the others; "
                "give relations of more documents."
            )
        retriever = Retriever()
        if self.tune:
            near = [pair for pair in self._near if used[pair[0]] and pair not in self.gold]
            pairs = _to_array(positives), _to_array(near)
            retriever = Retriever.fit(self.vectors, *pairs, directed=self.data.directed, seed=self.seed)
        candidates = retrieve(*retriever(self.vectors), self.data, self.k)
        # the mistakes of the retriever are the negatives of the classifier
        negatives = [pair for pair in candidates.tuples() if used[pair[0]] and pair not in self.gold]
        training_pairs = sorted({*positives, *negatives})
        targets = [self.gold.get(pair, NONE) for pair in training_pairs]
        return retriever, candidates, _to_array(training_pairs), targets

    def hold_out(self) -> NDArray[np.bool_]:
        """[mentions] whether a head is of the fold that is held out: the first with relations, if others have some."""
        folds = split_folds(self.data, self.seed)
        of_relations = {int(folds[head]) for head, _ in self.gold}
        if len(of_relations) < 2:
            raise InputError(
                f"All {len(self.gold)} relations are in one document or fold, so none can be held out to measure by; "
                "give relations of more documents."
            )
        held_out = folds == min(of_relations)
        held_out[len(self.data.heads) :] = False
        return np.asarray(held_out)

    def cross_validate(self) -> tuple[Candidates, NDArray[np.float32]]:
        """The candidates of all heads and their probabilities, by models that were trained on others."""
        folds = split_folds(self.data, self.seed)
        parts, probabilities = [], []
        for fold in range(folds.max() + 1):
            _, classifier, candidates = self.fit(folds != fold)
            parts.append(candidates.select(folds[candidates.pairs[:, 0]] == fold))
            probabilities.append(classifier(self.vectors, parts[-1].pairs))
            current_progress().advance(1)
        return Candidates.concatenate(parts), np.concatenate(probabilities)


def split_folds(data: MentionSet, seed: int = 0) -> NDArray[np.intp]:
    """[mentions] the fold of each head: that of its document, or, if there is one document only, its own."""
    parts = [heads for heads, _ in data.by_document()]
    if len(parts) == 1:
        log.warning(
            "All mentions are of one document, so the cross-validation holds out mentions of it; scores on other "
            "documents can be lower."
        )
        parts = [[head] for head in parts[0]]
    folds = np.zeros(len(data.mentions), np.intp)
    for position, part in enumerate(np.random.default_rng(seed).permutation(len(parts))):
        folds[parts[part]] = position % min(N_FOLDS, len(parts))
    return folds


def best_threshold(
    candidates: Candidates, probabilities: NDArray[np.float32], labels: Sequence[str], gold: Mapping[Pair, str]
) -> float:
    """The probability of any relation from which on pairs are related, so that F1 is best; at equal F1 the highest.

    Args:
        candidates: The pairs.
        probabilities: [pairs, labels] probabilities, NONE first.
        labels: The labels, NONE first.
        gold: The related pairs with their labels, also those that are no candidates.
    """
    if not len(candidates):
        return 0.5  # as good as any
    related = 1 - probabilities[:, 0].astype(np.float64)
    order = np.argsort(-related, kind="stable")
    predicted = [labels[1 + int(best)] for best in probabilities[:, 1:].argmax(axis=1)]
    pairs = candidates.tuples()
    correct = np.cumsum([gold.get(pairs[row]) == predicted[row] for row in order])
    f1 = 2 * correct / (np.arange(1, len(order) + 1) + len(gold))
    ends = np.append(np.diff(related[order]) != 0, True)  # equal probabilities are never split
    best = int(np.argmax(np.where(ends, f1, -1.0)))
    following = related[order[best + 1]] if best + 1 < len(order) else 0.0
    return float((related[order[best]] + following) / 2)


def _to_array(pairs: Iterable[Pair]) -> Indices:
    return np.array(list(pairs), np.intp).reshape(-1, 2)
