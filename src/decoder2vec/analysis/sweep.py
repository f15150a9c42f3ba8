"""The rows of a sweep: one way to read the model each. They are read again from disk, where no model is at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import EncodingStats, Extractor
from decoder2vec.activations.store import Store, text_key
from decoder2vec.backbone.attention import ATTENTIONS
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.config import DEFAULT_MAX_LENGTH, EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import UnsupportedError, unknown_name
from decoder2vec.heads.standardise import AFFINE_HEADS, AffineHead
from decoder2vec.maths.metrics import pairwise_cos_sim, pearson, spearman
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.text.files import ScoredPairs
from decoder2vec.text.template import Template


@dataclass(frozen=True)
class SweepRow:
    """One way to read the model, and how well it did on the pairs."""

    template: str
    attention: str
    layer: int
    normed: bool
    pooling: str
    head: str
    spearman: float
    pearson: float


def curve(rows: Sequence[SweepRow], **fixed: Any) -> dict[int, float]:
    """Spearman by layer of the rows that agree with `fixed`; raw layers only."""
    chosen = [row for row in rows if not row.normed and all(getattr(row, k) == v for k, v in fixed.items())]
    return {row.layer: row.spearman for row in sorted(chosen, key=lambda row: row.layer)}


def best_by(rows: Sequence[SweepRow], *names: str) -> list[SweepRow]:
    """The best row for each different combination of the named fields, best first."""
    best: dict[tuple[Any, ...], SweepRow] = {}
    for row in sorted(rows, key=lambda row: -row.spearman):
        best.setdefault(tuple(getattr(row, name) for name in names), row)
    return list(best.values())


@dataclass(frozen=True)
class SweepPlan:
    """What is tried. Everything here multiplies, but only templates and directions cost a pass over the texts."""

    templates: tuple[str, ...] = ("plain", "prompteol", "prompteol_tight", "echo")
    poolings: tuple[str, ...] = ("lasttoken", "mean", "weightedmean", "max", "cls", "sum")
    attentions: tuple[str, ...] = ("causal", "bidirectional")
    heads: tuple[str, ...] = ("none", "standardise")
    layers: tuple[int, ...] = ()
    """Empty: all of them, and the last one also behind the final norm."""
    max_length: int = DEFAULT_MAX_LENGTH

    def check(self) -> None:
        """Refuse names that do not exist now, not hours later."""
        for template in self.templates:
            Template.of(template)
        for kind, names, known in (
            ("attention", self.attentions, ATTENTIONS),
            ("pooling", self.poolings, POOLINGS),
            ("head", self.heads, ("none", *AFFINE_HEADS)),
        ):
            for name in names:
                if name not in known:
                    raise unknown_name(kind, name, known)

    def readings(self, backbone: Backbone) -> list[Reading]:
        """Every reading of one pass."""
        layers = [backbone.resolve_layer(layer) for layer in self.layers] or list(range(backbone.n_layers + 1))
        places = [(layer, False) for layer in layers]
        if backbone.n_layers in layers:
            places.append((backbone.n_layers, True))
        return [Reading(layer, pooling, normed) for layer, normed in places for pooling in self.poolings]


@dataclass
class Sweep:
    """All rows, best first, and what was left out."""

    model: str
    backbone: Backbone
    data: ScoredPairs
    plan: SweepPlan
    rows: list[SweepRow] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    stats: EncodingStats = field(default_factory=EncodingStats)
    seconds: float = 0.0

    @property
    def winner(self) -> SweepRow:
        """The best row on the data given; no other file has a say."""
        return self.rows[0]

    def encoder(self) -> Encoder:
        """The winner as a ready encoder; a head is fitted on the sentences of the sweep's own data."""
        best = self.winner
        self.backbone.set_attention(best.attention)
        spec = EncoderSpec(
            backbone=self.model,
            readings=(Reading(best.layer, best.pooling, best.normed),),
            template=Template.of(best.template).string,
            attention=best.attention,
            max_length=self.plan.max_length,
        )
        encoder = Encoder(self.backbone, spec)
        return encoder if best.head == "none" else encoder.with_head(best.head, self.data.texts())

    def to_json(self) -> dict[str, Any]:
        """Everything but the weights."""
        return {
            "model": self.model,
            "weights": self.backbone.effective_fingerprint,
            "dtype": str(self.backbone.dtype).removeprefix("torch."),
            "data": {"name": self.data.name, "pairs": len(self.data), "texts": len(self.data.texts())},
            "plan": asdict(self.plan),
            "winner": asdict(self.winner),
            "skipped": self.skipped,
            "seconds": round(self.seconds, 1),
            "tokens": self.stats.tokens,
            "tokens_per_second": round(self.stats.tokens_per_second),
            "rows": [asdict(row) for row in self.rows],
        }


OnProgress = Callable[[str, int], object]
"""Called with what is being read and the number of texts just finished."""


def run_sweep(
    model: str,
    data: ScoredPairs,
    plan: SweepPlan | None = None,
    *,
    backbone: Backbone | None = None,
    on_progress: OnProgress = lambda _what, _count: None,
) -> Sweep:
    """Score every combination of the plan on the pairs; what the family cannot do is skipped and said."""
    plan = plan or SweepPlan()
    plan.check()
    started = time.perf_counter()
    backbone = backbone or Backbone.load(model)
    result = Sweep(model, backbone, data, plan)
    for attention in plan.attentions:
        try:
            backbone.set_attention(attention)
        except UnsupportedError as reason:
            result.skipped.append(str(reason))
            continue
        for template in plan.templates:
            result.rows += _score_pass(result, template, on_progress)
    if not result.rows:
        raise UnsupportedError(f"Nothing could be read: {' '.join(result.skipped)}")
    result.rows.sort(key=lambda row: -row.spearman)
    result.seconds = time.perf_counter() - started
    return result


def _score_pass(sweep: Sweep, template: str, on_progress: OnProgress) -> Iterator[SweepRow]:
    """One extraction, then every layer, pooling and head from the store."""
    backbone = sweep.backbone
    readings = sweep.plan.readings(backbone)
    extractor = Extractor(backbone, readings, Template.of(template), sweep.plan.max_length)
    store = Store(extractor.space())
    texts = sweep.data.texts()
    what = f"{template}, {backbone.attention}"
    extractor.fill(store, texts, lambda count: on_progress(what, count))
    sweep.stats += extractor.stats
    keys = [text_key(text) for text in texts]
    place = {text: row for row, text in enumerate(texts)}
    left = np.array([place[text] for text in sweep.data.left])
    right = np.array([place[text] for text in sweep.data.right])

    def score(number: int, reading: Reading) -> list[SweepRow]:
        vectors = store.read(keys, [number])[:, 0]
        fixed = (template, backbone.attention, reading.layer, reading.normed, reading.pooling)
        return [
            SweepRow(*fixed, head, *_correlations(_apply(head, vectors), left, right, sweep.data.scores))
            for head in sweep.plan.heads
        ]

    with ThreadPoolExecutor() as workers:  # numpy lets go of the interpreter while it works
        for rows in workers.map(score, *zip(*enumerate(extractor.capture.readings), strict=True)):
            yield from rows


def _apply(head: str, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors behind a head fitted on them; a reading that is the same for every text stays what it is: useless."""
    constant = not np.ptp(vectors, axis=0).any()
    return vectors if head == "none" or constant else AffineHead.fit(head, vectors)(vectors)


def _correlations(
    vectors: NDArray[np.float32], left: NDArray[np.intp], right: NDArray[np.intp], scores: Sequence[float]
) -> tuple[float, float]:
    predicted, truth = pairwise_cos_sim(vectors[left], vectors[right]), np.asarray(scores)
    return round(100 * spearman(predicted, truth), 2), round(100 * pearson(predicted, truth), 2)
