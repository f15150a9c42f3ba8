"""Evaluate `d2v match` on a noisy set: rankings, scores across lists, and whether the reasons are about the work.

    python experiments/matching/noisy_set.py noisy/
    python experiments/matching/evaluate_noisy.py noisy/ ENCODER OUT.json

Average precision is that of all pairs of jobs and resumes in one list by their scores, which is high only if scores
compare between jobs. A term or sentence is noise if it is not from the text that the noise was put around. What the
filter of boilerplate costs is the share of words of the original texts that are no terms of their documents: of the
clean set of all families, and of the noisy set; what it gains, the share of words of the noise.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score

from decoder2vec import Encoder
from decoder2vec.matching.evaluation import FITS, LabelledSet, per_query_metrics, read_labelled_set
from decoder2vec.matching.match import MatchConfig, match_sides
from decoder2vec.matching.section_scores import SectionedSide, full_text
from decoder2vec.matching.terms import stemmed_words
from decoder2vec.storage import versions

MAX_EXAMPLES = 20
"""Lost words that are listed."""


class CountingEncoder:
    """An encoder that encodes every text once and counts the words that it read."""

    def __init__(self, encoder: Any) -> None:
        self._encoder, self._vectors, self.n_words = encoder, dict[str, Any](), 0

    def encode(self, texts: list[str], **_: Any) -> Any:
        """Return the vectors of the texts."""
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        self.n_words += sum(len(text.split()) for text in new)
        if new:
            self._vectors.update(zip(new, np.asarray(self._encoder.encode(new, show_progress_bar=True)), strict=True))
        return np.stack([self._vectors[text] for text in texts])


def main() -> None:
    """Evaluate, print and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("encoder")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    output = evaluate(read_labelled_set(args.folder), Encoder.from_pretrained(args.encoder))
    filtered = {"clean": filtered_words(read_labelled_set()), "noisy": filtered_words(read_labelled_set(args.folder))}
    output = {"encoder": args.encoder, **output, "filtered_words": filtered, "versions": versions()}
    print(json.dumps(output))
    args.out.write_text(json.dumps(output, indent=1) + "\n", encoding="utf-8")


def evaluate(labelled: LabelledSet, encoder: Any) -> dict[str, Any]:
    """Return the metrics of a noisy set."""
    counting, started = CountingEncoder(encoder), time.perf_counter()
    matching = match_sides(labelled.jobs, labelled.resumes, counting)
    seconds, n_words = time.perf_counter() - started, counting.n_words
    everything = match_sides(labelled.jobs, labelled.resumes, counting, MatchConfig(top=len(labelled.resumes), pairs=0))
    scores = np.zeros(labelled.grades.shape)
    for ranking in everything.for_left:
        for entry in ranking:
            scores[entry.left, entry.right] = entry.score
    fits = labelled.grades == FITS
    rankings = per_query_metrics(scores, labelled.grades)
    return {
        "jobs": len(labelled.jobs),
        "resumes": len(labelled.resumes),
        "words": sum(
            len(document.text.split()) for side in (labelled.jobs, labelled.resumes) for document in side.documents
        ),
        "encoded_words": n_words,
        "seconds": round(seconds, 1),
        **{name: round(100 * float(values.mean()), 1) for name, values in rankings.items()},
        "average_precision_of_all_pairs": round(100 * float(average_precision_score(fits.ravel(), scores.ravel())), 1),
        "median_score": {
            "fits": round(float(np.median(scores[fits])), 3),
            "others": round(float(np.median(scores[~fits])), 3),
        },
        **noise_shares(matching, labelled),
    }


def noise_shares(matching: Any, labelled: LabelledSet) -> dict[str, Any]:
    """Return the share of terms and sentence pairs that are noise, in percent, and how many there are."""
    counts: dict[str, list[bool]] = {"missing": [], "matched": [], "sentence_pairs": []}
    for (i, j), reasons in matching.reasons.items():
        left, right = labelled.jobs.documents[i].fields["content"], labelled.resumes.documents[j].fields["content"]
        stems = set(stemmed_words([left])[0])
        for kind in ("missing", "matched"):
            terms = stemmed_words(list(getattr(reasons.terms, kind)))
            counts[kind] += [not set(term) <= stems for term in terms]
        counts["sentence_pairs"] += [pair.left not in left or pair.right not in right for pair in reasons.pairs]
    return {
        f"noise_in_{kind}": {"percent": round(100 * float(np.mean(values)), 1), "of": len(values)}
        for kind, values in counts.items()
    }


def filtered_words(labelled: LabelledSet) -> dict[str, Any]:
    """Return the shares of distinct words (stems) of each document that are no terms of it, in percent."""
    content: Counter[str] = Counter()
    noise: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    n_noise_removed = 0
    for side in (labelled.jobs, labelled.resumes):
        for document, terms in zip(side.documents, SectionedSide.of(side).stems, strict=True):
            text = full_text(document)
            original = "\n".join(filter(None, [document.title, document.fields.get("content", text)]))
            words, original_words = (
                {word for word in stems if not word.isdigit()} for stems in stemmed_words([text, original])
            )
            content.update(original_words)
            lost.update(original_words - terms)
            noise.update(words - original_words)
            n_noise_removed += len(words - original_words - terms)
    return {
        "content_words": content.total(),
        "content_lost_percent": round(100 * lost.total() / content.total(), 1),
        "most_often_lost": dict(lost.most_common(MAX_EXAMPLES)),
        "noise_words": noise.total(),
        "noise_removed_percent": round(100 * n_noise_removed / noise.total(), 1) if noise else None,
    }


if __name__ == "__main__":
    main()
