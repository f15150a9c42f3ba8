"""Small tasks as mteb defines them, with data in memory, so that nothing is downloaded."""

from __future__ import annotations

import numpy as np

from toys.sentences import NOUNS, VERBS

SENTENCES = [f"The {noun} {verb}." for noun in NOUNS for verb in VERBS]
LABELS = [number for number, _ in enumerate(NOUNS) for _ in VERBS]
_PAIRS = [(a, b) for a in range(0, len(SENTENCES), 4) for b in range(1, len(SENTENCES), 11)]
LEFT = [SENTENCES[a] for a, _ in _PAIRS]
RIGHT = [SENTENCES[b] for _, b in _PAIRS]
SAME_NOUN = [int(LABELS[a] == LABELS[b]) for a, b in _PAIRS]
SCORES = [5.0 * same + (a * 7 + b * 3) % 4 / 4 for same, (a, b) in zip(SAME_NOUN, _PAIRS, strict=True)]

DOCUMENTS = {f"d{n}": (NOUNS[label], text) for n, (label, text) in enumerate(zip(LABELS, SENTENCES, strict=True))}
"""Id -> title and text, which mteb joins."""
QUERIES = {f"q{n}": f"What does the {noun} do when it {VERBS[n % len(VERBS)]}?" for n, noun in enumerate(NOUNS)}
RELEVANT = {f"q{n}": {f"d{d}": 1 for d, label in enumerate(LABELS) if label == n} for n, _ in enumerate(NOUNS)}
_RNG = np.random.default_rng(0)
CANDIDATES = {query: [f"d{d}" for d in _RNG.permutation(len(SENTENCES))[:12]] for query in QUERIES}


def local_tasks():
    """Name -> task: STS, PairClassification, Classification, Clustering, Retrieval, Reranking."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskClassification, AbsTaskPairClassification, AbsTaskRetrieval, AbsTaskSTS
    from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData

    pairs = {"sentence1": LEFT, "sentence2": RIGHT}
    texts = {"text": SENTENCES, "label": LABELS}
    sets = [
        {"sentences": SENTENCES[begin:], "labels": [str(label) for label in LABELS[begin:]]} for begin in (0, 3, 10)
    ]
    search = {
        "queries": Dataset.from_list([{"id": name, "text": text} for name, text in QUERIES.items()]),
        "corpus": Dataset.from_list([{"id": n, "title": a, "text": b} for n, (a, b) in DOCUMENTS.items()]),
        "relevant_docs": RELEVANT,
    }
    return {
        "STS": task_of("STS", AbsTaskSTS, "cosine_spearman", {"test": Dataset.from_dict({**pairs, "score": SCORES})}),
        "PairClassification": task_of(
            "PairClassification",
            AbsTaskPairClassification,
            "max_ap",
            {"test": Dataset.from_dict({**pairs, "labels": SAME_NOUN})},
        ),
        "Classification": task_of(
            "Classification",
            AbsTaskClassification,
            "accuracy",
            DatasetDict({"train": Dataset.from_dict(texts), "test": Dataset.from_dict(texts)}),
            samples_per_label=2,
            n_experiments=3,
        ),
        "Clustering": task_of("Clustering", AbsTaskClusteringLegacy, "v_measure", {"test": Dataset.from_list(sets)}),
        "Retrieval": task_of(
            "Retrieval",
            AbsTaskRetrieval,
            "ndcg_at_10",
            {"default": {"test": RetrievalSplitData(**search, top_ranked=None)}},
        ),
        "Reranking": task_of(
            "Reranking",
            AbsTaskRetrieval,
            "map_at_1000",
            {"default": {"test": RetrievalSplitData(**search, top_ranked=CANDIDATES)}},
        ),
    }


def task_of(kind, parent, main_score, data, **settings):
    """One task of mteb, whose `load_data` returns the data given here."""
    from mteb.abstasks.task_metadata import TaskMetadata

    metadata = TaskMetadata(
        name=f"Local{kind}",
        description=f"A small {kind} task.",
        reference="https://example.org",
        dataset={"path": "local", "revision": "1"},
        type=kind,
        category="t2t",
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=main_score,
        date=("2024-01-01", "2024-01-02"),
        domains=["Written"],
        task_subtypes=[],
        license="mit",
        annotations_creators="derived",
        dialect=[],
        sample_creation="created",
        bibtex_citation="",
    )

    def load_data(self, *_, **__):
        self.dataset, self.data_loaded = data, True

    return type(f"Local{kind}", (parent,), {"metadata": metadata, "load_data": load_data, **settings})()
