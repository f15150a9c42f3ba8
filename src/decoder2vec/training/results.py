"""Results of training: scores and sanity checks of each seed, and their summary over seeds."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoder2vec.maths.metrics import METRICS
from decoder2vec.text.augmentation import full_stop_pairs
from decoder2vec.text.files import ScoredPairs

PAPER_EXAMPLES: tuple[tuple[str, str, float, float], ...] = (
    ("Not 'hiding the ball' on Russia: Obama", "Obama says he's not 'hiding the ball' on Russia", 0.88, 0.21),
    (
        "Taiwan's economy grows 2.27% in April-June quarter",
        "China's economic growth rebounds to 7.8% in latest quarter",
        0.20,
        0.90,
    ),
    ("A man is laughing with a woman", "A man and a woman laughing.", 0.96, 0.26),
    ("Supreme Court to Hear Voting Rights Act Case", "Supreme Court to hear corporate human rights case", 0.28, 0.99),
    ("Hassan Rouhani wins Iran's presidential election", "Maduro wins Venezuelan presidential vote", 0.04, 0.82),
    ("Hawaii passes gay marriage bill", "US Senate passes gay workers bill", 0.20, 0.76),
    ("You will want to clean the area first.", "You will also want to remove the seeds.", 0.0, 0.56),
    ("A brown dog is jumping.", "A brown dog is jumping", 1.0, 0.47),
)
"""The examples of the FREEZE paper: two texts, the human score, and the score of the paper's final model."""

_SAMPLE = 200

TextPairs = Sequence[tuple[str, str]]
Scores = dict[str, dict[str, float]]
"""Points by file and metric."""


@dataclass(kw_only=True)
class SeedResult:
    """Scores of one seed, and how they came about."""

    seed: int
    dev: Scores = field(default_factory=dict)
    test: Scores = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    """Mean scores of pairs with a known answer: equal texts, with and without full stop, random pairs."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Training histories, reconstruction errors, the cost of a truncation."""
    seconds: float = 0.0
    untrained: dict[str, Scores] = field(default_factory=dict)
    """Scores of the model before training under the same reading, by dev and test; empty without dev pairs or such a
    reading."""
    dev_metric: float | None = None
    """The objective's own dev metric, by which a seed is selected where there are no dev pairs."""
    n_trained: int = 0
    """Number of trained parameters."""
    model: Any = None
    """The trained context, from which the recipe exports an encoder."""

    def selection_score(self, metric: str) -> float:
        """The score by which a seed is selected."""
        if self.dev_metric is not None:
            return self.dev_metric
        return mean_score(self.dev, metric)

    def to_json(self) -> dict[str, Any]:
        """For the results file."""
        names = ("seed", "dev", "test", "checks", "notes")
        document = {name: getattr(self, name) for name in names} | {"seconds": round(self.seconds, 2)}
        if self.untrained:
            document["untrained"] = self.untrained
        return document if self.dev_metric is None else document | {"dev_metric": round(self.dev_metric, 4)}


def mean_score(scores: Mapping[str, Mapping[str, float]], metric: str) -> float:
    """Mean of a metric over files."""
    return float(np.mean([of_file[metric] for of_file in scores.values()]))


def correlations(files: Sequence[ScoredPairs], similarity: Callable[[TextPairs], Any]) -> Scores:
    """Every correlation of a similarity with human scores, by file and metric, in points."""
    scores = {}
    for pairs in files:
        predicted = similarity(list(zip(pairs.left, pairs.right, strict=True)))
        truth = np.asarray(pairs.scores)
        scores[pairs.name] = {name: round(100 * metric(predicted, truth), 2) for name, metric in METRICS.items()}
    return scores


def sanity_checks(
    texts: Sequence[str], similarity: Callable[[TextPairs], Any], *, equal: bool = False
) -> dict[str, Any]:
    """Mean similarity of texts with and without their full stop, of random pairs and, if wanted, of equal texts."""
    pairs = {"full stop": full_stop_sample(texts), "random pairs": random_pairs(texts)}
    if equal:
        pairs = {"equal texts": [(text, text) for text in texts[:_SAMPLE]], **pairs}
    return {name: round(float(similarity(sample).mean()), 4) for name, sample in pairs.items() if sample}


def full_stop_sample(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Some texts, each with itself without its full stop."""
    return full_stop_pairs(texts)[:_SAMPLE]


def random_pairs(texts: Sequence[str], seed: int = 0) -> list[tuple[str, str]]:
    """Random pairs of different texts."""
    rng = random.Random(seed)
    return [(a, b) for a, b in ((rng.choice(texts), rng.choice(texts)) for _ in range(5 * _SAMPLE)) if a != b]


def sanity_texts(texts: Sequence[str]) -> list[str]:
    """Texts of the sanity checks and paper examples that are not among the given texts."""
    examples = [text for left, right, *_ in PAPER_EXAMPLES for text in (left, right)]
    return examples + [text for _, text in full_stop_sample(texts)]


def summarise(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of the scores over seeds, given as JSON documents."""

    def deviation(values: Sequence[float]) -> float:
        return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0

    return {"seeds": list(seeds), "mean": _statistic(seeds, np.mean), "sd": _statistic(seeds, deviation)}


def _statistic(seeds: Sequence[dict[str, Any]], statistic: Callable[..., Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for part in ("dev", "test"):
        names = seeds[0][part]
        result[part] = {
            name: {
                metric: round(float(statistic([seed[part][name][metric] for seed in seeds])), 2)
                for metric in ("spearman", "pearson")
            }
            for name in names
        }
        if len(names) > 1:
            means = [np.mean([scores["spearman"] for scores in seed[part].values()]) for seed in seeds]
            result[part]["all files"] = {"spearman": round(float(statistic(means)), 2)}
    result["checks"] = {
        name: round(float(statistic([seed["checks"][name] for seed in seeds])), 4) for name in seeds[0]["checks"]
    }
    return result


def best_seed(results: dict[str, Any]) -> dict[str, Any]:
    """The entry of a results file for the seed that was saved."""
    return next(seed for seed in results["seeds"] if seed["seed"] == results["best_seed"])


def is_untrained(results: dict[str, Any]) -> bool:
    """Whether the saved encoder is the model before training, since that was better on dev."""
    return "untrained kept" in best_seed(results)["notes"]


@dataclass(frozen=True)
class Improvement:
    """Dev scores of the saved encoder and of the model before training under the same reading, in points."""

    dev: float
    start: float
    """Of the model before training."""
    changes: tuple[float, ...] = ()
    """Trained score minus that before training of every dev and test file."""
    start_name: str = "untrained"
    """What the model before training is: in a later stage of a plan it may be the result of an earlier one."""

    @classmethod
    def of(cls, results: dict[str, Any]) -> Improvement | None:
        """From a results file: its best seed; None if the model before training was not scored."""
        seed, start = best_seed(results), results.get("start", {})
        metric, before = _selection_metric(results), start.get("scores") or seed.get("untrained")
        if not isinstance(before, dict):  # a number in results of an earlier version
            return None
        changes = tuple(
            scores[metric] - before[part][name][metric]
            for part in ("dev", "test")
            for name, scores in seed[part].items()
        )
        dev, untrained = (mean_score(scores, metric) for scores in (seed["dev"], before["dev"]))
        return cls(dev, untrained, changes, start.get("name", "untrained"))

    @property
    def is_worse(self) -> bool:
        """Whether training lowered the score by more than rounding does."""
        return round(self.dev - self.start, 1) < 0

    def __str__(self) -> str:
        difference = self.dev - self.start
        verdict = f"training made it worse by {-difference:.1f}" if self.is_worse else f"+{abs(difference):.1f}"
        return f"dev {self.dev:.1f}, {self.start_name} {self.start:.1f}: {verdict}{self.files}"

    @property
    def headline(self) -> str:
        """The score and what training changed, for the head of a report."""
        difference = self.dev - self.start
        verdict = f"{-difference:.1f} below" if self.is_worse else f"+{abs(difference):.1f} over"
        verdict += f" {self.start_name}"
        return f"{self.dev:.1f} on dev, {verdict}{self.files}"

    @property
    def files(self) -> str:
        """On how many of several files training helped; empty for a single file."""
        better = sum(round(change, 1) > 0 for change in self.changes)
        return f"; better on {better} of {len(self.changes)} files" if len(self.changes) > 1 else ""


def headline(results: dict[str, Any]) -> str:
    """The dev score of the saved encoder, against the untrained model where that was scored; else on held-out texts."""
    improvement = Improvement.of(results)
    if improvement and is_untrained(results):
        start = "start of this stage" if len(results.get("stages", [])) > 1 else "untrained model"
        return f"{improvement.dev:.1f} on dev: the {start} was better and was kept"
    if improvement:
        return improvement.headline
    seed = best_seed(results)
    if lines := _ranking_lines(seed) or label_lines(seed):
        return "; ".join(lines)
    if scores := seed["dev"]:
        return f"{mean_score(scores, _selection_metric(results)):.1f} on dev"
    return "; ".join(_held_out_quality(seed))


def _ranking_lines(seed: dict[str, Any]) -> list[str]:
    """How well a reranker ranks each file, against the untrained model where that was measured."""
    ranking = seed["notes"].get("ranking", {})
    lines = []
    for name, trained in ranking.get("trained", {}).items():
        line = f"nDCG@10 {trained['ndcg@10']:.1f}, MRR@10 {trained['mrr@10']:.1f} on {name}"
        if before := ranking.get("likelihood", {}).get(name):
            line += f" (untrained, by likelihood: {before['ndcg@10']:.1f}, {before['mrr@10']:.1f})"
        lines.append(line)
    return lines


def label_lines(seed: dict[str, Any]) -> list[str]:
    """How well a classifier of pairs gives each part of the data its labels."""
    lines = []
    for part, measured in seed["notes"].get("labels", {}).items():
        by_label = ", ".join(f"{label} {f1:.1f}" for label, f1 in measured["f1"].items())
        lines.append(
            f"macro F1 {measured['macro f1']:.1f}, accuracy {measured['accuracy']:.1f} on {part} (F1: {by_label})"
        )
    return lines


def _held_out_quality(seed: dict[str, Any]) -> list[str]:
    """What is known of a seed without dev pairs: its metric on held-out texts, and the cosines to teachers."""
    history = seed["notes"].get("training", {})
    if "dev_metric" not in seed or "metric" not in history or seed["dev"] or label_lines(seed):
        return []
    name, sign = history["metric"]["name"], -1 if history["metric"]["lower_is_better"] else 1
    sentences = [f"{name} {sign * seed['dev_metric']:.2f}, at the start {sign * history['start']:.2f}"]
    return sentences + [
        f"mean cosine {teacher['cosine']:.3f} to the vectors of {teacher['name']} on held-out texts"
        for teacher in seed["notes"].get("teachers", [])
        if "cosine" in teacher
    ]


def _selection_metric(results: dict[str, Any]) -> str:
    """The correlation by which states and seeds were selected."""
    config = results["config"]
    return str(config[config["recipe"]]["choose_by"])


def result_notes(seeds: Sequence[dict[str, Any]]) -> list[str]:
    """What a user should know of the seeds: training without improvement, the effect of keep, and what is restored."""
    notes = [
        f"seed {seed['seed']}: no state of {stage} was better than the start, which was kept"
        for seed in seeds
        for stage, history in seed["notes"].items()
        if isinstance(history, dict) and history.get("best") == -1 and history.get("scores")
    ]
    notes += [
        f"seed {seed['seed']}: dev {kept['dev_trained']:.2f} as trained, {kept['dev_kept']:.2f} with "
        f"{100 * kept['share']:g} % of the change kept"
        for seed in seeds
        if (kept := seed["notes"].get("keep"))
    ]
    notes += [
        f"seed {seed['seed']}: dev {kept['dev_trained']:.2f} as trained, {kept['dev_untrained']:.2f} untrained; "
        "the untrained model was kept"
        for seed in seeds
        if (kept := seed["notes"].get("untrained kept"))
    ]
    notes += [f"seed {seed['seed']}: {line}" for seed in seeds for line in (*_ranking_lines(seed), *label_lines(seed))]
    notes += [f"seed {seed['seed']}: {quality}" for seed in seeds for quality in _held_out_quality(seed)]
    line = "seed {}: punctuation and capitals restored with F1 {f1:.1%}, precision {precision:.1%}, recall {recall:.1%}"
    restored = [(seed["seed"], seed["notes"].get("restoration")) for seed in seeds]
    notes += [line.format(number, **rates) for number, rates in restored if rates]
    line = "seed {}: the next sentence found in {accuracy:.1f} % of {steps} steps, by chance in {chance:.1f} %"
    orders = [(seed["seed"], seed["notes"].get("order")) for seed in seeds]
    return notes + [line.format(number, **order) for number, order in orders if order and order["steps"]]
