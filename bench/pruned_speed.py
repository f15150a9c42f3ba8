"""Does a model cut to n of its L layers encode in n / L of the time? Each cut is written, loaded and timed in turn.

Memory is that of the weights: parameters counted on what was loaded, times the bytes of one.
Run: python bench/pruned_speed.py [model]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from corpus import of_length
from decoder2vec import Backbone, Encoder
from decoder2vec.analysis.pruning import share_of_layers
from decoder2vec.backbone.blocks import count_parameters
from decoder2vec.export.pruned import write_pruned
from measure import best_seconds, report

SHARES = (0.2, 0.4, 0.6, 0.8)
ROUNDS = 8
READ = {"template": "plain", "pooling": "weightedmean", "normed": True}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    texts = of_length(12, 12)
    whole = Backbone.load(name)
    encoders = {whole.n_layers: Encoder.from_pretrained(name, **READ)}
    with tempfile.TemporaryDirectory() as home:
        for depth in sorted({max(1, share_of_layers(whole.n_layers, share)) for share in SHARES}):
            write_pruned(whole, depth, Path(home) / str(depth))
            encoders[depth] = Encoder.from_pretrained(Path(home) / str(depth), **READ)
    seconds: dict[int, float] = {}
    for number in range(
        ROUNDS + 1
    ):  # in turn, so that a slow moment of the machine meets all of them; the first warms up
        for depth, encoder in encoders.items():
            taken = best_seconds(lambda encoder=encoder: encoder.encode(texts), 1)
            seconds[depth] = taken if number <= 1 else min(seconds[depth], taken)
    rows = []
    for depth in sorted(seconds):
        part, time = depth / whole.n_layers, seconds[depth] / seconds[whole.n_layers]
        weights = sum(p.numel() * p.element_size() for p in encoders[depth].backbone.model.parameters()) / 2**20
        count = f"{count_parameters(encoders[depth].backbone.model):,}"
        rows.append(
            (
                depth,
                f"{part:.3f}",
                f"{seconds[depth]:.3f}",
                f"{time:.3f}",
                f"{time / part - 1:+.1%}",
                count,
                round(weights),
            )
        )
    columns = ("layers", "of all", "seconds", "of the time", "off by", "parameters", "MB of weights")
    worst = max(abs(seconds[depth] / seconds[whole.n_layers] / (depth / whole.n_layers) - 1) for depth in seconds)
    report("pruned_speed", columns, rows, model=name, texts=len(texts), largest_deviation=round(worst, 3))


if __name__ == "__main__":
    main()
