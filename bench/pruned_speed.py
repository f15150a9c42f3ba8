"""Whether a model pruned to n of its L layers encodes in n / L of the time; each is written, loaded and timed.

Memory is that of the weights: parameters of the loaded model times bytes per parameter.
Run: python bench/pruned_speed.py [model]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from corpus import texts_of_length
from decoder2vec import Backbone, Encoder
from decoder2vec.analysis.pruning import share_of_layers
from decoder2vec.backbone.blocks import count_parameters
from decoder2vec.export.pruned import write_pruned
from measure import best_seconds, report

SHARES = (0.2, 0.4, 0.6, 0.8)
ROUNDS = 8
READING = {"template": "plain", "pooling": "weightedmean", "normed": True}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    texts = texts_of_length(12, 12)
    full = Backbone.load(name)
    encoders = {full.n_layers: Encoder.from_pretrained(name, **READING)}
    with tempfile.TemporaryDirectory() as folder:
        for depth in sorted({max(1, share_of_layers(full.n_layers, share)) for share in SHARES}):
            write_pruned(full, depth, Path(folder) / str(depth))
            encoders[depth] = Encoder.from_pretrained(Path(folder) / str(depth), **READING)
    seconds = dict.fromkeys(encoders, float("inf"))
    for round_ in range(ROUNDS + 1):  # in alternation, so that a busy moment of the machine affects all depths
        for depth, encoder in encoders.items():
            elapsed = best_seconds(lambda encoder=encoder: encoder.encode(texts), 1)
            if round_ > 0:  # the first round warms up
                seconds[depth] = min(seconds[depth], elapsed)
    rows, deviations = [], []
    for depth in sorted(seconds):
        layer_share, time_share = depth / full.n_layers, seconds[depth] / seconds[full.n_layers]
        deviations.append(time_share / layer_share - 1)
        model = encoders[depth].backbone.model
        megabytes = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
        rows.append(
            (
                depth,
                f"{layer_share:.3f}",
                f"{seconds[depth]:.3f}",
                f"{time_share:.3f}",
                f"{deviations[-1]:+.1%}",
                f"{count_parameters(model):,}",
                round(megabytes),
            )
        )
    columns = ("layers", "of all", "seconds", "of the time", "off by", "parameters", "MB of weights")
    largest = max(map(abs, deviations))
    report(
        "pruned_speed",
        columns,
        rows,
        model=name,
        dtype=full.dtype_name,
        texts=len(texts),
        largest_deviation=round(largest, 3),
    )


if __name__ == "__main__":
    main()
