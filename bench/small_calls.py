"""One text at a time: CPU milliseconds of `Encoder.encode` against the bare forward pass of the same model and tokens.

The bare pass is the call of the model in transformers on tokens that are there already, with the LoRA of the encoder
merged into its weights. Both have one thread, in alternation; the fastest call of each text counts. Tokenising,
template and pooling are measured alone.

Run: python bench/small_calls.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from corpus import sentences
from decoder2vec import Encoder
from decoder2vec.config import DEFAULT_ENCODER
from decoder2vec.maths.pooling import Pooler
from decoder2vec.text.batches import collate
from measure import report

Prepare = Callable[[str], AbstractContextManager[object]]

TEXTS = 12
ROUNDS = 5
ENCODERS = {DEFAULT_ENCODER: {}, "smollm2-135m": {}, "smollm2-135m, plain": {"template": "plain", "pooling": "mean"}}


def fastest_calls(methods: dict[str, Callable[[int], object]], prepare: Prepare) -> dict[str, float]:
    """CPU milliseconds of each method: the fastest call for each text, averaged over texts.

    `prepare` gives the context of a method, which is entered before the clock starts.
    """
    best: dict[tuple[str, int], float] = {}
    for _ in range(ROUNDS):
        for text in range(TEXTS):
            for method, run in methods.items():
                with torch.inference_mode(), prepare(method):
                    started = time.process_time()
                    run(text)
                    seconds = time.process_time() - started
                best[method, text] = min(best.get((method, text), seconds), seconds)
    return {method: 1000 * sum(best[method, text] for text in range(TEXTS)) / TEXTS for method in methods}


def measure(name: str, options: dict[str, str]) -> tuple[object, ...]:
    encoder = Encoder.from_pretrained(name.partition(",")[0], device="cpu", dtype="float32", **options)
    backbone, texts = encoder.backbone, sentences(TEXTS)
    tokenise = encoder._reader(None, None).extractors[0][1].tokeniser
    batches = [collate(tokenise([text]).prompts, backbone.pad_token_id) for text in texts]
    depth = max(reading.layer for reading in encoder.spec.readings)
    assert depth == backbone.n_layers, "the bare pass computes all layers"
    states: list[Tensor] = [torch.randn(*batch.ids.shape, backbone.dim) for batch in batches]

    def pool(text: int) -> Tensor:
        batch = batches[text]
        return Pooler(batch.start, batch.end, batch.width, (encoder.spec.readings[0].pooling,))(states[text])

    times = fastest_calls(
        {
            "bare": lambda text: backbone.model(input_ids=batches[text].ids, use_cache=False),
            "encode": lambda text: encoder.encode([texts[text]]),
            "tokenise": lambda text: collate(tokenise([texts[text]]).prompts, backbone.pad_token_id),
            "pool": pool,
        },
        lambda method: backbone.adapter_enabled() if method == "bare" else nullcontext(),
    )
    tokens = sum(batch.ids.numel() for batch in batches) / TEXTS
    share = (times["tokenise"] + times["pool"]) / times["encode"]
    ratio = times["encode"] / times["bare"]
    return (name, f"{tokens:.0f}", f"{times['bare']:.1f}", f"{times['encode']:.1f}", f"{ratio:.2f}x", f"{share:.1%}")


def main() -> None:
    torch.set_num_threads(1)
    rows = [measure(name, options) for name, options in ENCODERS.items()]
    columns = ("encoder", "tokens", "bare pass, ms", "encode, ms", "ratio", "tokenising, template and pooling")
    report("small_calls", columns, rows, dtype="float32", texts=TEXTS, rounds=ROUNDS)


if __name__ == "__main__":
    main()
