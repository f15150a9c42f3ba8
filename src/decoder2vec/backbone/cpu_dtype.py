"""The dtype of a model on a CPU: 16 bits where they are measured to be faster, and to give the same vectors.

Processors with matrix units for bfloat16 compute a layer several times as fast in it, others up to 300 times as slowly;
only a measurement tells them apart. The choice is remembered for a model on a processor.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from decoder2vec.backbone.blocks import find_blocks, text_config
from decoder2vec.backbone.fingerprint import folder_fingerprint
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.threads import THREADS
from decoder2vec.config import fingerprint
from decoder2vec.errors import StorageError
from decoder2vec.storage import cache_root, parse_json, write_json

MIN_WIDTH = 256
"""Narrower models are fast enough in float32, and not measured."""
MIN_GAIN = 1.2
"""How many times as fast as float32 bfloat16 must be."""
MIN_COSINE = 0.999
"""Cosine that vectors of a probe must have in both dtypes."""
_ROWS = 32
_TOKENS = 128
"""With fewer, most of the time goes to reading the weights."""


def load_in_fastest_dtype(
    load: Callable[[torch.dtype], nn.Module], read_probe: Callable[[], Sequence[int]], folder: Path
) -> tuple[nn.Module, str]:
    """Load a model in float32 or bfloat16, whichever this CPU computes faster.

    Args:
        load: Loads the model in a dtype.
        read_probe: Gives the tokens of a text, to compare its vectors.
        folder: The model, for which the choice is remembered.

    Returns:
        The model, and a sentence that says why it has its dtype; empty if it is too small to matter.
    """
    if _width(folder) < MIN_WIDTH:
        return load(torch.float32), ""
    note = cache_root() / "dtypes" / f"{fingerprint(folder_fingerprint(folder), _processor(), torch.__version__)}.json"
    if known := _read_note(note):
        return load(known[0]), known[1]
    model = load(torch.float32)
    gain = layer_gain(model)
    if gain < MIN_GAIN:
        reason = f"a layer in bfloat16 has {gain:.2g} times the speed of float32 on this processor"
        _write_note(note, torch.float32, reason)
        return model, reason
    token_ids = read_probe()
    exact, seconds = _run_probe(model, token_ids)
    del model  # one copy in memory is enough
    model = load(torch.bfloat16)
    rounded, seconds_16 = _run_probe(model, token_ids)
    gain, cosine = seconds / seconds_16, float(F.cosine_similarity(exact, rounded).min())
    reason = f"bfloat16 has {gain:.2g} times the speed of float32 on this processor, and vectors of cosine {cosine:.4f}"
    chosen = torch.bfloat16 if gain >= MIN_GAIN and cosine >= MIN_COSINE else torch.float32
    _write_note(note, chosen, reason)
    return model if chosen == torch.bfloat16 else load(chosen), reason


def layer_gain(model: nn.Module) -> float:
    """How many times as fast as in float32 the largest layer of the blocks is in bfloat16."""
    weights = [weight for weight in find_blocks(model)[1].parameters() if weight.ndim == 2]
    weight = max(weights, key=Tensor.numel).detach()
    inputs = torch.ones(_ROWS, weight.shape[1])
    rounded = weight.bfloat16()
    return fastest_seconds(lambda: F.linear(inputs, weight)) / fastest_seconds(
        lambda: F.linear(inputs.bfloat16(), rounded)
    )


def _width(folder: Path) -> int:
    """Width of a model; 0 if it cannot be read, about which loading the model has more to say."""
    from transformers import AutoConfig

    try:
        with quiet_transformers():
            return int(text_config(AutoConfig.from_pretrained(folder, trust_remote_code=False)).hidden_size)
    except Exception:  # a wrong config fails in as many ways as there are families
        return 0


def _run_probe(model: nn.Module, token_ids: Sequence[int]) -> tuple[Tensor, float]:
    """The mean and the last of the states of some tokens, in float32, and the seconds that they take."""
    known = [id for id in token_ids if id < len(model.get_input_embeddings().weight)]  # type: ignore[operator]
    ids = torch.tensor([((known or [0]) * _TOKENS)[:_TOKENS]])
    with torch.inference_mode():
        states = model(input_ids=ids, use_cache=False).last_hidden_state[0].float()
        seconds = fastest_seconds(lambda: model(input_ids=ids, use_cache=False), repeats=2)
    return torch.stack([states.mean(0), states[-1]]), seconds


def fastest_seconds(function: Callable[[], object], repeats: int = 3) -> float:
    """The shortest of a few runs of one thread: several would wait for each other beside other processes.

    The first run, in which memory is taken and kernels are made, does not count.
    """
    times = []
    with THREADS.fixed_to_one(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says what kernels a processor does not have
        function()
        for _ in range(repeats):
            started = perf_counter()
            function()
            times.append(perf_counter() - started)
    return min(times)


def _processor() -> str:
    """What the system says of the first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU ")))


def _read_note(note: Path) -> tuple[torch.dtype, str] | None:
    try:
        content = parse_json(note.read_text(encoding="utf-8"))
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[content["dtype"]], str(content["reason"])
    except (OSError, ValueError, LookupError, TypeError):  # none, or damaged: measured again
        return None


def _write_note(note: Path, dtype: torch.dtype, reason: str) -> None:
    with suppress(OSError, StorageError):  # a cache that cannot be written costs a measurement next time
        write_json(note, {"dtype": str(dtype).removeprefix("torch."), "reason": reason})
