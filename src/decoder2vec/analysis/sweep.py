"""Sweep over the ways to read a model: score every layer, pooling, template, attention and head on scored pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder2vec.activations.extract import EncodingStats, Extractor
from decoder2vec.activations.rerouting import reroute
from decoder2vec.activations.store import Store, text_keys
from decoder2vec.adapters.rerouting import parse_rerouting
from decoder2vec.analysis.selection import Selection, measure_selection
from decoder2vec.backbone.attention import ATTENTIONS
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.threads import map_on_cores
from decoder2vec.config import DEFAULT_MAX_LENGTH, EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnsupportedError, unknown_name
from decoder2vec.heads.standardise import AFFINE_HEADS, AffineHead
from decoder2vec.maths.metrics import pairwise_cos_sim, pearson, spearman
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.progress import current_progress
from decoder2vec.text.files import ScoredPairs
from decoder2vec.text.template import Template

Fill = Callable[[Extractor, Store, Sequence[str], str], None]
"""Computes the latents of texts that a store lacks, under an attention of the sweep."""
_COMPARING = "comparing the best readings"
_SCORING_COST = 1e-4
"""Work of scoring one vector of a text, in texts that a model encodes."""


@dataclass(frozen=True)
class SweepPlan:
    """What a sweep tries: all combinations. Only each template and attention costs a pass over the texts."""

    templates: tuple[str, ...] = ("plain", "prompteol", "prompteol_tight", "echo")
    poolings: tuple[str, ...] = ("lasttoken", "mean", "weightedmean", "max", "cls", "sum")
    attentions: tuple[str, ...] = ("causal", "bidirectional")
    """Also causal with re-routing, such as "causal+prepend:2-8" (see `reroutings_to_try`)."""
    heads: tuple[str, ...] = ("none", "standardise")
    layers: tuple[int, ...] = ()
    """Empty: all layers, and the last one also after the final norm."""
    max_length: int = DEFAULT_MAX_LENGTH

    @classmethod
    def quick(cls) -> SweepPlan:
        """The readings that win most often, in two passes over the texts: a choice that few pairs can decide."""
        return cls(("plain", "prompteol"), ("lasttoken", "mean"), ("causal",))

    def check(self, n_layers: int) -> None:
        """Refuse unknown names, and re-routing in layers that the model does not have, before the model runs."""
        for template in self.templates:
            Template.of(template)
        for attention in self.attentions:
            if rerouting := attention.partition("+")[2]:
                parse_rerouting(rerouting, n_layers)
        for kind, names, known in (
            ("attention", [name.partition("+")[0] for name in self.attentions], ATTENTIONS),
            ("pooling", self.poolings, POOLINGS),
            ("head", self.heads, ("none", *AFFINE_HEADS)),
        ):
            for name in names:
                if name not in known:
                    raise unknown_name(kind, name, known)
        for kind in ("templates", "attentions", "poolings", "heads"):
            if not getattr(self, kind):
                raise InputError(f"The sweep has no {kind} to try; name one or more, or leave {kind} out.")

    def readings(self, backbone: Backbone) -> list[Reading]:
        """The readings of one pass: every layer with every pooling."""
        layers = [backbone.resolve_layer(layer) for layer in self.layers] or list(range(backbone.n_layers + 1))
        states = [(layer, False) for layer in layers]
        if backbone.n_layers in layers:
            states.append((backbone.n_layers, True))
        return [Reading(layer, pooling, normed) for layer, normed in states for pooling in self.poolings]


@dataclass(frozen=True)
class SweepRow:
    """One way to read the model, and its correlations x 100 on the pairs."""

    template: str
    attention: str
    layer: int
    normed: bool
    pooling: str
    head: str
    spearman: float
    pearson: float


@dataclass
class Sweep:
    """The result of a sweep."""

    model: str
    backbone: Backbone
    data: ScoredPairs
    """The pairs that the rows are scored on."""
    plan: SweepPlan
    rows: list[SweepRow] = field(default_factory=list)
    """One for each combination, best first."""
    skipped: list[str] = field(default_factory=list)
    """Reasons for attentions that the model does not support, and for readings whose vectors are not finite."""
    stats: EncodingStats = field(default_factory=EncodingStats)
    selection: Selection | None = None
    """How much the choice of the winner can be trusted; its indices are those of `rows`."""
    seconds: float = 0.0
    test: dict[str, Any] | None = None
    """Scores of the winner on test pairs, if there were any."""

    @property
    def winner(self) -> SweepRow:
        """The best row on `data`; test pairs have no influence."""
        return self.rows[0]

    def encoder(self) -> Encoder:
        """The winner as an encoder. A head is fitted on the texts of `data`, from their latents in the store."""
        best = self.winner
        backbone = _with_attention(self.backbone, best.attention)
        reading = Reading(best.layer, best.pooling, best.normed)
        spec = EncoderSpec(
            backbone=self.model,
            readings=(reading,),
            template=Template.of(best.template).string,
            attention=backbone.attention,
            max_length=self.plan.max_length,
        )
        if best.head == "none":
            return Encoder(backbone, spec)
        extractor = _extractor(self.plan, backbone, best.template)
        store, texts = Store(extractor.space()), self.data.texts()
        extractor.fill(store, texts)  # computes nothing, unless the store was emptied since
        vectors = store.read(text_keys(texts), [extractor.capture.readings.index(reading)])[:, 0]
        return Encoder(backbone, spec, AffineHead.fit(best.head, vectors))

    def to_json(self) -> dict[str, Any]:
        """A plain dict for JSON."""
        return {
            "model": self.model,
            "weights": self.backbone.effective_fingerprint,
            "dtype": str(self.backbone.dtype).removeprefix("torch."),
            "data": {"name": self.data.name, "pairs": len(self.data), "texts": len(self.data.texts())},
            "plan": asdict(self.plan),
            "winner": asdict(self.winner),
            "selection": self.selection and self.selection.to_json(),
            "skipped": self.skipped,
            "seconds": round(self.seconds, 1),
            "tokens": self.stats.tokens,
            "tokens_per_second": round(self.stats.tokens_per_second),
            "rows": [asdict(row) for row in self.rows],
        }


def run_sweep(
    model: str,
    data: ScoredPairs,
    plan: SweepPlan | None = None,
    *,
    backbone: Backbone | None = None,
    fill: Fill | None = None,
) -> Sweep:
    """Score every combination of the plan.

    Attentions that the model does not support, and readings whose vectors are not finite, are skipped with the reason.

    Args:
        model: Name of the model, which the winning encoder is saved with.
        data: Pairs to score on.
        plan: What to try.
        backbone: The loaded model; by default it is loaded by its name. Its attention is switched.
        fill: Computes the latents that a store lacks, such as `RayLatents`; by default this process does.
    """
    plan = plan or SweepPlan()
    started = time.perf_counter()
    backbone = backbone or Backbone.load(model)
    plan.check(backbone.n_layers)
    sweep = Sweep(model, backbone, data, plan)
    progress = current_progress()
    for attention in plan.attentions:
        for template in plan.templates:
            progress.expect("encoding", len(data.texts()), stage=_pass_name(template, attention))
            n_vectors = len(plan.readings(backbone)) * len(plan.heads) * len(data.texts())
            progress.expect("scoring", _SCORING_COST * n_vectors, stage=_pass_name(template, attention))
    progress.expect(_COMPARING)
    rows, similarities = [], []
    for attention in plan.attentions:
        try:
            switched = _with_attention(backbone, attention)
        except UnsupportedError as reason:
            sweep.skipped.append(str(reason))
            for template in plan.templates:
                progress.drop(_pass_name(template, attention))
            continue
        for template in plan.templates:
            with progress.stage(_pass_name(template, attention)):
                for row, cosines in _score_pass(sweep, switched, attention, template, fill):
                    rows.append(row)
                    similarities.append(cosines)
    if not rows:
        raise UnsupportedError(f"No reading of the sweep can be scored: {' '.join(sweep.skipped)}")
    order = sorted(range(len(rows)), key=lambda index: -rows[index].spearman)
    sweep.rows = [rows[index] for index in order]
    # in the order of the passes, since a tie must not be broken by the scores on all pairs
    with progress.phase(_COMPARING):
        selection = measure_selection(np.stack(similarities), data.scores, order[0])
    row_of = {reading: row for row, reading in enumerate(order)}
    sweep.selection = replace(selection, tied=tuple(sorted(row_of[reading] for reading in selection.tied)))
    sweep.seconds = time.perf_counter() - started
    return sweep


def reroutings_to_try(names: Sequence[str], n_layers: int) -> list[str]:
    """The attentions that a sweep tries for ways of re-routing.

    Args:
        names: "prepend" (the first quarter and the first half of the layers), "kv" (each third of the layers), or
            either with a range, such as "prepend:2-8".
        n_layers: Number of layers of the model.

    Returns:
        Names such as "causal+prepend:2-8".
    """
    second, third = min(2, n_layers), -(-n_layers // 3)
    ranges = {
        "prepend": [(second, max(second, n_layers // part)) for part in (4, 2)],
        "kv": [(first, min(first + third - 1, n_layers)) for first in range(1, n_layers + 1, third)],
    }
    attentions: list[str] = []
    for name in names:
        if ":" not in name and name not in ranges:
            raise unknown_name("re-routing method", name, ranges)
        with_ranges = [name] if ":" in name else [f"{name}:{first}-{last}" for first, last in ranges[name]]
        attentions += [f"causal+{rerouting}" for rerouting in with_ranges]
    return list(dict.fromkeys(attentions))


def _with_attention(backbone: Backbone, attention: str) -> Backbone:
    """Switch the model's attention; with re-routing after a plus sign, return the same model re-routed."""
    direction, _, rerouting = attention.partition("+")
    backbone.set_attention(direction)
    return reroute(backbone, rerouting) if rerouting else backbone


def _pass_name(template: str, attention: str) -> str:
    """The name of one pass over all texts."""
    return f"{template}, {attention}"


def _extractor(plan: SweepPlan, backbone: Backbone, template: str) -> Extractor:
    """What reads the texts in one pass."""
    return Extractor(backbone, plan.readings(backbone), Template.of(template), plan.max_length)


def _score_pass(
    sweep: Sweep, backbone: Backbone, attention: str, template: str, fill: Fill | None
) -> Iterator[tuple[SweepRow, NDArray[np.floating[Any]]]]:
    """Run the texts through the model once, then score every layer, pooling and head from the latents store.

    Yields:
        Each row with its [pairs] cosines.
    """
    extractor = _extractor(sweep.plan, backbone, template)
    store = Store(extractor.space())
    texts = sweep.data.texts()
    progress = current_progress()
    with progress.phase("encoding"):
        if fill is None:
            extractor.fill(store, texts)
        else:
            fill(extractor, store, texts, attention)
    sweep.stats += extractor.stats
    keys = text_keys(texts)
    row_of = {text: row for row, text in enumerate(texts)}
    left = np.array([row_of[text] for text in sweep.data.left])
    right = np.array([row_of[text] for text in sweep.data.right])

    gold = np.asarray(sweep.data.scores)

    def score(numbered: tuple[int, Reading]) -> list[tuple[SweepRow, NDArray[np.floating[Any]]]]:
        index, reading = numbered
        vectors = store.read(keys, [index])[:, 0]
        scored = []
        for head in sweep.plan.heads:
            after_head = _apply_head(head, vectors)
            if not np.isfinite(after_head).all():
                continue
            cosines = pairwise_cos_sim(after_head[left], after_head[right])
            scores = (round(100 * metric(cosines, gold), 2) for metric in (spearman, pearson))
            row = SweepRow(template, attention, reading.layer, reading.normed, reading.pooling, head, *scores)
            scored.append((row, cosines))
        return scored

    def advance() -> None:
        progress.advance(_SCORING_COST * len(sweep.plan.heads) * len(texts))

    captured = extractor.capture.readings
    with progress.phase("scoring"):
        scored_readings = map_on_cores(score, list(enumerate(captured)), advance)
    infinite: list[Reading] = []
    for reading, scored in zip(captured, scored_readings, strict=True):
        if len(scored) < len(sweep.plan.heads):
            infinite.append(reading)
        yield from scored
    if infinite:
        share = f"{len(infinite)} of {len(captured)} readings of {_pass_name(template, attention)}"
        sweep.skipped.append(
            f"{share} give vectors that are not finite, first {infinite[0]}; run `d2v doctor` on the model."
        )


def _apply_head(head: str, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors after a head fitted on them; a reading that is equal for all texts cannot be fitted and is unchanged."""
    constant = not np.ptp(vectors, axis=0).any()
    return vectors if head == "none" or constant else AffineHead.fit(head, vectors)(vectors)


def layer_curve(rows: Sequence[SweepRow], **settings: Any) -> dict[int, float]:
    """Layer -> Spearman of the rows with these settings, without normed states."""
    chosen = [
        row for row in rows if not row.normed and all(getattr(row, name) == value for name, value in settings.items())
    ]
    return {row.layer: row.spearman for row in sorted(chosen, key=lambda row: row.layer)}


def best_by(rows: Sequence[SweepRow], *names: str) -> list[SweepRow]:
    """The best row for each combination of values of the named fields, best first."""
    best: dict[tuple[Any, ...], SweepRow] = {}
    for row in sorted(rows, key=lambda row: -row.spearman):
        best.setdefault(tuple(getattr(row, name) for name in names), row)
    return list(best.values())
