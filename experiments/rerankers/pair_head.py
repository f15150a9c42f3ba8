"""The pair head of `d2v index --tune --pairs` as a reranker: learned weights of the dimensions of an encoder's vectors.

It is fitted on pairs of the pool: those that belong together have the score 1, each query with one of BM25's best other
documents of its source the score 0. The plain cosine of the same vectors is measured beside it.

Run: export PYTHONPATH=experiments/general
     python experiments/rerankers/pair_head.py POOL DATA OUT.json --runs RUNS.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from bm25_groups import Groups, make_groups, read_pairs
from bm25_runs import Cosines, read_candidates
from numpy.typing import NDArray
from study import Results

from decoder2vec.encoder import Encoder
from decoder2vec.search.rerank import WeightedCosineReranker
from decoder2vec.text.files import ScoredPairs


@dataclass
class WeightedCosines(Cosines):
    """Sorts by cosines with learned weights, as `WeightedCosineReranker` does; vectors of documents are kept."""

    weights: NDArray[np.float64] = field(kw_only=True)

    def rerank(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """The weighted cosine of each text with the query."""
        of_query, of_texts = self.unit_vectors(query, texts)
        return of_texts @ (of_query * self.weights)


def scored_pairs(groups: Groups) -> ScoredPairs:
    """Each query with its positive and with its first negative."""
    queries, positives, negatives = ([groups.texts[row] for row in groups.rows[:, column]] for column in range(3))
    scores = [1.0] * len(positives) + [0.0] * len(negatives)
    return ScoredPairs("pool", [*queries, *queries], [*positives, *negatives], scores)


def main() -> None:
    """Read the options, fit the head and measure it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", type=Path)
    parser.add_argument("data", type=Path, help="folder that has retrieval/TASK in BEIR's layout")
    parser.add_argument("out", type=Path, help="file of the results, new or of this script")
    parser.add_argument("--runs", type=Path, required=True, help="file that bm25_runs.py wrote")
    parser.add_argument("--encoder", default="smollm2-135m-general")
    parser.add_argument("--pairs", type=int, default=500, help="queries of the pool to fit on")
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a text")
    arguments = parser.parse_args()
    # negatives are BM25's best among 20,000 documents, of whose queries the head sees some
    pairs = scored_pairs(make_groups(read_pairs(arguments.pool, 20_000), hard=1, random=0).first(arguments.pairs))
    saved = Encoder.from_pretrained(arguments.encoder)
    encoder = Encoder(saved.backbone, replace(saved.spec, max_length=arguments.max_length), saved.head)
    started = time.perf_counter()
    head = WeightedCosineReranker.fit(encoder, pairs)
    training = {"pairs": len(pairs), "seconds": time.perf_counter() - started}
    print(training, f"weights {head.weights.min():.2f} to {head.weights.max():.2f}", flush=True)
    reference = f"cosine:{arguments.encoder}"
    results = Results(arguments.out, read_candidates(arguments.runs, arguments.data), reference=reference)
    cosines, settings = Cosines(encoder), {"max_length": arguments.max_length}
    weighted = WeightedCosines(encoder, cosines.vectors, weights=head.weights)
    results.add(reference, settings, {}, cosines)
    results.add(f"pair head:{arguments.encoder}", settings, training, weighted)


if __name__ == "__main__":
    main()
