"""Everything that trains and writes files: encoders, rerankers, bridges, learning curves, trajectories and choices.

Imported once by a `ForkServer`, as `writers` is. Every training writes a checkpoint at every step.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image

from decoder2vec import storage
from decoder2vec.bridge.bridge import Bridge
from decoder2vec.report.trajectory import TrajectoryResult
from decoder2vec.training import checkpoint
from decoder2vec.training.api import train
from decoder2vec.training.bridge import BridgeConfig, train_bridge
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives.distill import DistillConfig
from decoder2vec.training.plan import Plan
from decoder2vec.training.recipes.recipe import Recipe
from decoder2vec.training.teachers import Teacher
from decoder2vec.training.trajectory import Trajectory
from toys.bridge import toy_items
from toys.contract import FREEZE, TOY_OBJECTIVES, TOY_RECIPES
from toys.tasks import LABELLED, write_table
from toys.training import small_recipe, toy_data, toy_examples, toy_pairs
from toys.writers import (
    MODEL,
    TASKS,
    TEXTS,
    UNTRAINED,
    Content,
    Writer,
    command,
    read_encoder,
    read_reranker,
    rounded,
)

checkpoint._SAVE_EVERY = 0.0


# --- encoders and rerankers -----------------------------------------------------------------------------------------


def training(recipe: Recipe[Any, Any] | Plan, data: Any) -> Writer:
    """Training over an encoder that was trained otherwise."""
    earlier = small_recipe("lora", epochs=1)

    def run(folder: Path, recipe: Any, data: Any) -> Any:
        result = train(recipe, data, MODEL, folder / "encoder", overwrite=True, device="cpu", dtype="float32")
        return [result.results["mean"], rounded(result.encoder.encode(TEXTS[:3]))]

    def read(folder: Path) -> Content:
        if not (folder / "encoder").exists():
            return {}
        results = storage.read_json(folder / "encoder" / "results.json", "train again")
        return {"encoder": [read_encoder("encoder")(folder), results["mean"]]}

    return Writer(lambda folder: run(folder, recipe, data), read, lambda folder: run(folder, earlier, toy_data()))


def two_stages() -> Plan:
    """The second stage begins with the result of the first one, whose LoRA is merged into the model."""
    first, second = (Plan.of(small_recipe("lora", epochs=epochs, every=2)).stages[0] for epochs in (2, 1))
    return Plan("two", (replace(first, name="first"), replace(second, name="second")))


def train_reranker(folder: Path, epochs: int) -> Any:
    recipe = small_recipe("rerank", epochs=epochs, batch=24, every=1)
    options: dict[str, Any] = {"overwrite": True, "device": "cpu", "dtype": "float32"}
    result = train(recipe, TOY_RECIPES["rerank"].data, MODEL, folder / "reranker", **options)
    return rounded(result.reranker.score(TEXTS[0], TEXTS))


# --- bridges --------------------------------------------------------------------------------------------------------

ITEMS = toy_items(48)


def write_bridge(folder: Path, seed: int) -> Any:
    """Train a projector, then LoRA, each for two steps; the encoder is saved, too."""
    schedule = Schedule(epochs=1, batch=24, rate=5e-3, patience=10, clip=1.0)
    config = BridgeConfig(tokens=2, rank=2, training=schedule, tuning=schedule, seed=seed)
    result = train_bridge(UNTRAINED, ITEMS, folder / "bridge", config, overwrite=True, device="cpu", dtype="float32")
    return rounded(result.bridge.encode(ITEMS.vectors[:3]))


def read_bridge(folder: Path) -> Content:
    """Vectors of items by a saved bridge."""
    if not (folder / "bridge").exists():
        return {}
    bridge = Bridge.from_pretrained(folder / "bridge", device="cpu", dtype="float32")
    return {"bridge": rounded(bridge.encode(ITEMS.vectors[:3]))}


# --- curves, trajectories and choices -------------------------------------------------------------------------------

DATA = Path(tempfile.mkdtemp())  # elsewhere, since what is read is not to be damaged
PAIRS = toy_pairs()
EXAMPLES = write_table(DATA / "pairs.tsv", ("anchor", "positive"), [example[:2] for example in toy_examples()])
DEV = write_table(
    DATA / "dev.tsv", ("sentence1", "sentence2", "score"), zip(PAIRS.left, PAIRS.right, PAIRS.scores, strict=True)
)
TOPICS = write_table(DATA / "topics.tsv", ("label", "text"), LABELLED[::3])
CHECKPOINTS = DATA / "checkpoints"
shutil.copytree(MODEL, CHECKPOINTS / "step1")


def read_figure(file: Path) -> Content:
    """The size of a figure that can be decoded."""
    return {file.name: list(matplotlib.image.imread(file).shape)} if file.exists() else {}


def command_curve(folder: Path) -> None:
    """Two trainings of a few steps."""
    settings = [
        option for setting in ("training.epochs=1", "training.batch=12", "rank=2") for option in ("--set", setting)
    ]
    options = (
        "--recipes",
        "lora",
        "--seeds",
        0,
        "--grid",
        "training.rate=0.01",
        "--device",
        "cpu",
        "--dtype",
        "float32",
    )
    arguments = ("--data", EXAMPLES, "--dev", DEV, "--backbone", MODEL, "--out", folder / "curve")
    command("train", "--curve", "12,all", *arguments, *options, *settings)


def read_curve(folder: Path) -> Content:
    """The scores of the curve, as its figure shows them."""
    figure = read_figure(folder / "curve" / "curve.png")
    if not (file := folder / "curve" / "curve.json").exists():
        return figure
    document = storage.read_json(file, "train again")
    return {"curve.json": [[point["size"], point["dev"]] for point in document["points"]], **figure}


def run_trajectory(folder: Path) -> Any:
    """One checkpoint, before and after an adaptation of a few steps."""
    options: dict[str, Any] = {"adaptation": small_recipe("lora", epochs=1, batch=24), "training_data": toy_data()}
    options |= {"tasks": ("mine",), "limit": 20, "device": "cpu", "dtype": "float32"}
    return trajectory_scores(Trajectory(CHECKPOINTS).run(TASKS, folder / "trajectory", **options))


def trajectory_scores(result: TrajectoryResult) -> Any:
    return [[run.checkpoint, run.seed, run.scores["mine"].value] for run in result.runs]


def read_trajectory(folder: Path) -> Content:
    """The scores of all runs; nothing of a trajectory that is not finished."""
    if not (folder / "trajectory" / "trajectory.json").exists():
        return {}
    scores = trajectory_scores(TrajectoryResult.load(folder / "trajectory"))
    return {f"{name}, {seed}": score for name, seed, score in scores}


def command_choose(folder: Path, layers: str) -> None:
    """Probes of some layers of one model."""
    options = ("--layers", layers, "--seeds", 1, "--epochs", 1, "--device", "cpu", "--dtype", "float32")
    command("choose", MODEL, "--data", TOPICS, "--out", folder / "choice", *options)


def read_choice(folder: Path) -> Content:
    figure = read_figure(folder / "choice" / "choose.png")
    if not (file := folder / "choice" / "choose.json").exists():
        return figure
    document = storage.read_json(file, "choose again")
    return {"choose.json": [[row["layer"], row["valid"], row["test"]] for row in document["layers"]], **figure}


WRITERS: dict[str, Writer] = {
    "train lora": training(small_recipe("lora", every=2), toy_data()),
    "train soft prompt": training(small_recipe("soft_prompt", every=2), toy_data()),
    "train full": training(small_recipe("full", epochs=1, every=2), toy_data()),
    "train freeze": training(
        replace(FREEZE, pretrain="autoencoder", pretraining=replace(FREEZE.training, epochs=1)),
        replace(TOY_RECIPES["freeze"].data, texts=tuple(TEXTS)),
    ),
    "train distilled": training(
        small_recipe("lora", objective=DistillConfig(teachers=(Teacher("random:16"),))), TOY_OBJECTIVES["distill"].data
    ),
    "train stages": training(two_stages(), toy_data()),
    "train reranker": Writer(
        lambda folder: train_reranker(folder, 2), read_reranker, lambda folder: train_reranker(folder, 1)
    ),
    "train bridge": Writer(lambda folder: write_bridge(folder, 1), read_bridge, lambda folder: write_bridge(folder, 0)),
    "d2v train --curve": Writer(command_curve, read_curve),
    "trajectory": Writer(run_trajectory, read_trajectory),
    "d2v choose": Writer(
        lambda folder: command_choose(folder, "1,2"),
        read_choice,
        lambda folder: command_choose(folder, "3"),
        for_others=True,
    ),
}
