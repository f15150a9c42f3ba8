"""Train a bridge: the projector alone in front of an untouched model, then, if wanted, together with LoRA.

A contrastive bridge learns to put an item where its caption is; the vectors of the captions are computed once, by the
encoder as it is, so that items share an index with documents. A describing bridge learns to continue with the caption.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.bridge.bridge import (
    DEFAULT_PROMPT,
    DESCRIPTION_TOKENS,
    OBJECTIVES,
    Bridge,
    check_base,
    check_bridge_folder,
    is_bridge_folder,
)
from decoder2vec.bridge.control import COLUMNS, BlindControl, blind_control, item_ranks
from decoder2vec.bridge.projector import KINDS, Projector
from decoder2vec.bridge.vectors import CaptionedVectors
from decoder2vec.config import DEFAULT_ENCODER, fingerprint, key_settings, to_table
from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import saved_encoder_folder
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.maths.losses import info_nce
from decoder2vec.package import __version__
from decoder2vec.progress import current_progress
from decoder2vec.search.index import Index, open_store
from decoder2vec.storage import check_replaceable, parse_json, versions
from decoder2vec.training.loop import History, OnProgress, Rows, Schedule, TrainingTask, fit

DEFAULT_MODEL = "smollm2-135m"
"""The language model of descriptions."""
_RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class BridgeConfig:
    """What a bridge is and how it is trained."""

    objective: str = "contrastive"
    """"contrastive": items are found by text; "lm": vectors are described in words."""
    tokens: int = 8
    """Soft tokens for each vector."""
    kind: str = "mlp"
    """"linear" or "mlp"."""
    prompt: str | None = None
    """Text after the soft tokens; by default "Description:" for descriptions and none for items."""
    rank: int = 0
    """Rank of LoRA in a second stage; 0: the model stays as it is. If the encoder has LoRA, a copy of it is trained."""
    alpha: float = 0.0
    """Scale of LoRA; 0: twice the rank."""
    caption_tokens: int = DESCRIPTION_TOKENS
    """Tokens of a caption, at most, that a description is learned from."""
    temperature: float = 0.05
    """Of the contrastive loss."""
    training: Schedule = field(default_factory=lambda: Schedule(epochs=10, batch=64, rate=1e-3, patience=3, clip=1.0))
    """Of the projector alone."""
    tuning: Schedule = field(default_factory=lambda: Schedule(epochs=2, batch=64, rate=2e-4, patience=3, clip=1.0))
    """Of projector and LoRA."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("objective", OBJECTIVES), ("kind", KINDS)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        if self.rank < 0 or self.caption_tokens < 1 or not 0 < self.temperature < float("inf"):
            raise InputError("rank must be 0 or more, caption_tokens 1 or more, and temperature above 0.")
        if self.training.save_every or self.tuning.save_every:
            raise InputError("A bridge is saved at its end only; leave out save_every.")
        if self.training.partial_vocabulary or self.tuning.partial_vocabulary:
            raise InputError("A bridge trains no embeddings of words; leave out partial_vocabulary.")


@dataclass(frozen=True)
class BridgeResult:
    """A trained bridge, and what it was measured by."""

    bridge: Bridge
    control: BlindControl
    """Scores on held-out items with real, zeroed and shuffled vectors; without texts if nothing was trained."""
    results: dict[str, Any]
    """As in results.json: configuration, data, stages and the control."""
    trained: bool = True
    """False if the folder held the same bridge already."""


def train_bridge(
    model: Encoder | Backbone | str | Path | None,
    data: CaptionedVectors,
    out: str | Path,
    config: BridgeConfig | None = None,
    *,
    test: CaptionedVectors | None = None,
    index: str | Path | None = None,
    overwrite: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    on_progress: OnProgress = lambda _: None,
    notify: Callable[[str], object] = lambda _: None,
    command: str = "",
) -> BridgeResult:
    """Train a bridge and save it; if the process stops, the same call goes on where it stopped.

    A tenth of the items is held out to choose the best state by, another tenth for the blind control.

    Args:
        model: An encoder (for search) or a language model (for descriptions), or its name; by default
            smollm2-135m-general and smollm2-135m.
        data: Vectors with captions.
        out: Folder for the bridge.
        config: What it is and how it is trained.
        test: Items for the blind control instead of a tenth of the data.
        index: Where the items will be indexed; checked before training, and not changed.
        overwrite: Replace another bridge that is there already.
        device: Device of a model that is loaded by name; by default the best one available.
        dtype: Its dtype; by default float32 with LoRA, else the one that suits the device.
        on_progress: Called after every step.
        notify: Called with messages for the user.
        command: Recorded in the results.

    Raises:
        InputError: The folder holds another bridge, data and model do not fit, or the index is of another encoder.
    """
    config, target = config or BridgeConfig(), Path(out)
    check_bridge_folder(target)
    work = target.with_name(f"{target.name}.unfinished")
    check_replaceable(work, ("*.safetensors", "log-*.jsonl"))
    base, name = _load_base(model, config, device, dtype)
    if index is not None:
        _check_index(index, base)
    key = _run_key(base, data, test, config)
    if is_bridge_folder(target):
        results = _read_results(target)
        if results.get("key") == key:
            bridge = Bridge.from_pretrained(target, device=device, dtype=dtype)
            return BridgeResult(bridge, BlindControl.from_json(results["control"]), results, trained=False)
        if not overwrite:
            raise InputError(f"{target} holds another bridge; choose another folder, or add --overwrite.")
    train, dev, held_out = data.split(config.seed)
    if test is None:
        test = held_out
    elif test.vectors.shape[1] != data.vectors.shape[1]:
        raise InputError(f"{test.name} has vectors of {test.vectors.shape[1]} dimensions, not {data.vectors.shape[1]}.")
    notify(f"{len(train)} items to train on, {len(dev)} to choose by, {len(test)} for the control")
    training = _BridgeTraining(base, name, train, dev, config)
    bridge, stages = training.run(work, key, on_progress)
    control = blind_control(bridge, test, max_tokens=config.caption_tokens, seed=config.seed)
    results = {
        "decoder2vec": __version__,
        "key": key,
        "config": to_table(config),
        "model": {"name": name or bridge.backbone.name, "fingerprint": base.fingerprint},
        "data": {"name": data.name, "dim": train.vectors.shape[1], "train": len(train), "dev": len(dev)},
        "stages": stages,
        "control": control.to_json(),
        "versions": versions(),
        "command": command,
    }
    with current_progress().phase("saving"):
        logs = {file.name: file.read_bytes() for file in sorted(work.glob("log-*.jsonl"))}
        card = write_bridge_card(bridge, control, results).encode()
        bridge.save(target, {_RESULTS_FILE: (json.dumps(results, indent=1) + "\n").encode(), "README.md": card, **logs})
        shutil.rmtree(work, ignore_errors=True)
    return BridgeResult(bridge, control, results)


class _BridgeTraining:
    """One training: stages, their modules, losses and dev metrics."""

    def __init__(
        self,
        base: Encoder | Backbone,
        name: str | None,
        train: CaptionedVectors,
        dev: CaptionedVectors,
        config: BridgeConfig,
    ) -> None:
        self.config, self.dev = config, dev
        self.prompt = (DEFAULT_PROMPT if config.objective == "lm" else "") if config.prompt is None else config.prompt
        self.base, self.name = base, name
        self.backbone = base.backbone if isinstance(base, Encoder) else base
        torch.manual_seed(config.seed)
        self.projector = Projector.initialise(self.backbone, train.vectors, config.tokens, config.kind)
        self.vectors = torch.from_numpy(train.vectors).to(self.backbone.device)
        self.bridge = self._bridge(None)
        if isinstance(base, Encoder):
            captions = list(train.captions)
            with current_progress().phase("encoding", len(captions)):
                self.captions = torch.from_numpy(base.encode_document(captions)).to(self.backbone.device)
            self.names = torch.from_numpy(np.unique(captions, return_inverse=True)[1]).to(self.backbone.device)
        else:
            self.targets = self.bridge.caption_ids(train.captions, config.caption_tokens)

    def run(self, work: Path, key: str, on_progress: OnProgress) -> tuple[Bridge, list[dict[str, Any]]]:
        """Train all stages; returns the bridge and what is recorded of each stage."""
        stages = [self._fit("projector", self.projector, self.config.training, work, key, on_progress)]
        if self.config.rank:
            lora = self._new_lora()
            self.bridge = self._bridge(lora)
            module = nn.ModuleDict({"projector": self.projector, "lora": lora})
            stages.append(self._fit("lora", module, self.config.tuning, work, key, on_progress))
            lora.requires_grad_(False)
        self.projector.requires_grad_(False)
        return self.bridge, stages

    def _bridge(self, lora: Lora | None) -> Bridge:
        return Bridge(self.base, self.projector, self.prompt, lora, self.name)

    def _new_lora(self) -> Lora:
        """LoRA for the items: a copy of the encoder's own, so that texts are still encoded as before, or a new one."""
        torch.manual_seed(self.config.seed)
        adapter = self.backbone.adapter
        if isinstance(adapter, Lora):
            lora = Lora(self.backbone, adapter.config)
            lora.load_state_dict(adapter.state_dict())
        else:
            lora = Lora.initialise(self.backbone, self.config.rank, self.config.alpha or 2 * self.config.rank)
        return lora.to(self.backbone.device)

    def _fit(
        self, stage: str, module: nn.Module, schedule: Schedule, work: Path, key: str, on_progress: OnProgress
    ) -> dict[str, Any]:
        is_lm = self.config.objective == "lm"
        task = TrainingTask(
            stage,
            len(self.vectors),
            self._caption_loss if is_lm else self._contrastive_loss,
            self._likelihood if is_lm else self._reciprocal_rank,
            schedule,
            step_context=self.bridge.backbone.adapter_enabled,
        )
        history = fit(
            module,
            task,
            self.config.seed,
            checkpoint=work / f"{key}-{stage}.safetensors",
            log=work / f"log-{stage}.jsonl",
            on_progress=on_progress,
        )
        trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        return _stage_record(stage, history, trained, "likelihood" if is_lm else "reciprocal rank")

    def _contrastive_loss(self, rows: Rows) -> Tensor:
        index = torch.from_numpy(rows).to(self.vectors.device)
        names = self.names[index]
        return info_nce(
            self.bridge.item_vectors(self.vectors[index]),
            self.captions[index],
            temperature=self.config.temperature,
            symmetric=True,
            masked=names[:, None] == names[None, :],  # another item with the same caption is no negative
        )

    def _caption_loss(self, rows: Rows) -> Tensor:
        vectors = self.vectors[torch.from_numpy(rows).to(self.vectors.device)]
        states, ids = self.bridge.target_states(vectors, [self.targets[row] for row in rows])
        return self.bridge.head.cross_entropy(states, ids) / len(ids)

    def _reciprocal_rank(self) -> float:
        return float(100 * (1 / item_ranks(self.bridge, self.dev.vectors, self.dev.captions)).mean())

    def _likelihood(self) -> float:
        losses, counts = self.bridge.caption_losses(self.dev.vectors, self.dev.captions, self.config.caption_tokens)
        return float(-losses.sum() / counts.sum())


def _stage_record(stage: str, history: History, trained: int, metric: str) -> dict[str, Any]:
    return {
        "stage": stage,
        "trained_parameters": trained,
        "metric": metric,
        "start": round(history.start, 4),
        "best": round(history.best_score, 4),
        "scores": [round(score, 4) for score in history.scores],
        "losses": [round(loss, 4) for loss in history.losses],
    }


def _load_base(
    model: Encoder | Backbone | str | Path | None, config: BridgeConfig, device: str | None, dtype: str | None
) -> tuple[Encoder | Backbone, str | None]:
    """The model, and the name under which it can be loaded again, if it has one."""
    is_lm = config.objective == "lm"
    base: Encoder | Backbone
    name: str | None = None
    if isinstance(model, Encoder | Backbone):
        base = model.backbone.with_adapter(None) if is_lm and isinstance(model, Encoder) else model
        name = base.name if isinstance(base, Backbone) else None
    else:
        name = str(model or (DEFAULT_MODEL if is_lm else DEFAULT_ENCODER))
        name = str(Path(name).expanduser().resolve()) if Path(name).expanduser().exists() else name
        dtype = dtype or ("float32" if config.rank else None)  # updates are smaller than what 16 bits of a weight show
        if is_lm and (folder := saved_encoder_folder(name)):
            model_name = parse_json((folder / "encoder.json").read_text(encoding="utf-8"))["spec"]["backbone"]
            raise InputError(f"{name} is an encoder, which writes no texts; give its language model, {model_name}.")
        if is_lm:
            base = Backbone.load(name, attention="causal", device=device, dtype=dtype)
        else:
            base = Encoder.from_pretrained(name, device=device, dtype=dtype)
    if not is_lm and not isinstance(base, Encoder):
        raise InputError("A contrastive bridge leads to an encoder; give an Encoder instead of a Backbone.")
    check_base(base)
    # a model that is no saved encoder has settings which its name does not tell
    return base, name if is_lm or (name and saved_encoder_folder(name)) else None


def _check_index(location: str | Path, encoder: Encoder | Backbone) -> None:
    """Raise if items of a bridge to this encoder cannot be added at a location, where an index may be or not."""
    if Index.exists(location):
        with closing(Index.open(location, encoder)) as index:
            if index.header.chunking.late:
                raise InputError(
                    f"The chunks of {location} are encoded together (--late), and vectors of items do not mix with "
                    "them; choose another index."
                )
    else:
        open_store(location).check_new()


def _run_key(
    base: Encoder | Backbone, data: CaptionedVectors, test: CaptionedVectors | None, config: BridgeConfig
) -> str:
    """Names everything that a run depends on: a checkpoint of another key is not resumed."""
    backbone = base.backbone if isinstance(base, Encoder) else base
    identity = base.fingerprint, backbone.dtype_name, data.digest(), test.digest() if test else None
    return fingerprint("bridge", *identity, key_settings(config))


def _read_results(folder: Path) -> dict[str, Any]:
    try:
        results = parse_json((folder / _RESULTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return results if isinstance(results, dict) else {}


def write_bridge_card(bridge: Bridge, control: BlindControl, results: dict[str, Any]) -> str:
    """The card of a bridge as Markdown: what it is, how to use it, and the blind control."""
    data, is_lm = results["data"], bridge.objective == "lm"
    use = (
        ["texts = bridge.describe(vectors)"]
        if is_lm
        else [
            'index = d2v.Index.create("items", bridge.encoder)',
            "index.add(vectors=vectors, through=bridge)",
            'index.search("what you look for", mode="dense")',
        ]
    )
    rows = {
        "model": results["model"]["name"],
        "vectors": f"{data['dim']} dimensions, as {bridge.projector.tokens} soft tokens ({bridge.projector.kind})",
        "trained on": f"{data['train']:,} items of {data['name']}",
        **{
            f"stage {each['stage']}": f"{each['trained_parameters']:,} parameters, {each['metric']} on dev "
            f"{each['start']} -> {each['best']}"
            for each in results["stages"]
        },
        "fingerprint": bridge.fingerprint,
    }
    verdict = "Real vectors are better than both." if control.uses_vectors else _NOT_USED
    lines = [
        f"# A bridge from {data['dim']}-dimensional vectors to {results['model']['name']}",
        "",
        "```python",
        "import decoder2vec as d2v",
        "",
        'bridge = d2v.Bridge.from_pretrained("this-folder")',
        *use,
        "```",
        "",
        *_table(("", ""), list(rows.items())),
        "",
        "## Blind control",
        "",
        f"{control.items:,} held-out items with their own vectors, with the mean vector instead (zeroed) and with "
        f"those of other items (shuffled); 95 % bootstrap intervals. {verdict}",
        "",
        *_table(COLUMNS, control.rows()),
        "",
        "## Made with",
        "",
        *(f"- {name} {version}" for name, version in results["versions"].items()),
        *([f"- `{results['command']}`"] if results["command"] else []),
    ]
    return "\n".join(lines) + "\n"


_NOT_USED = "Real vectors are not better than both, so the bridge has learned nothing from them."


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(map(str, line)) + " |" for line in lines]
