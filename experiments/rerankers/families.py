"""Llama, GPT-2, Mamba and Mamba-2 of equal size, pre-trained from scratch and trained as rerankers on the same texts.

    python experiments/rerankers/families.py groups POOL groups.json.gz --pairs 60000     # a CPU, minutes
    python experiments/rerankers/families.py tokens POOL OUT                              # a CPU, minutes
    python experiments/rerankers/families.py pretrain OUT --seconds 120
    python experiments/rerankers/families.py rerank OUT groups.json.gz DATA runs.json RESULTS --seconds 60
    python experiments/rerankers/families.py speed RESULTS
    python experiments/rerankers/families.py compare RESULTS families.json

POOL has texts-*.tsv.gz and pairs-*.tsv.gz, DATA the folders scifact and quora-mini in BEIR's layout, and runs.json
BM25's rankings for them (`bm25_runs.py`). `--families mamba` does one family alone. OUT gets a folder for each family
and RESULTS a file for each, with its command; a family that is done is not done again. `--size tiny` takes seconds on a
CPU. No step needs the kernels of mamba-ssm: see `state_space.py`. Only `groups` needs bm25s.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bm25_groups import Groups, make_groups, read_pairs
from family_evaluation import TASKS, compare, evaluate_task, measure_speed
from family_models import FAMILIES, VOCABULARY, count_parameters, make_model
from family_training import LENGTH, TEMPLATE, PairPrompts, draw_batches, pretrain_model, train_reranker
from state_space import best_scan, fast_mixers
from transformers import AutoModel, AutoTokenizer

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.reranker import Reranker, RerankerSpec
from decoder2vec.storage import atomic_folder, read_json, versions, write_json

sys.path.append(str(Path(__file__).parents[1]))
from pretraining import pack, read_texts, train_tokenizer

TOLERANCE = 0.05
"""Families may differ by this share of their parameters."""


def say(*words: object) -> None:
    """Print at once, also into a file."""
    print(*words, flush=True)


def device_name() -> str:
    """The device, in words."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def provenance() -> dict[str, Any]:
    """The command of this run, the device and the versions of libraries."""
    return {"command": shlex.join(["python", *sys.argv]), "device": device_name(), "versions": versions()}


def write_groups(arguments: argparse.Namespace) -> None:
    """Mine the groups that all families are trained on."""
    groups = make_groups(read_pairs(arguments.pool, arguments.pairs))
    groups.save(arguments.file)
    size = arguments.file.stat().st_size / 1e6
    say(f"{len(groups.rows):,} groups of {len(groups.texts):,} texts, {size:.1f} MB: {arguments.file}")


def write_tokens(arguments: argparse.Namespace) -> None:
    """Train the tokenizer and write the tokens that all families are pre-trained on."""
    texts = read_texts(arguments.pool, arguments.texts)
    tokenizer = train_tokenizer(texts, VOCABULARY[arguments.size])
    texts += [
        TEMPLATE.format(document=document, query=query)
        for pairs in read_pairs(arguments.pool, arguments.pairs).values()
        for query, document in pairs
    ]  # after the texts, so that the held-out sequences are texts
    sequences = pack(texts, tokenizer, LENGTH).numpy().astype(np.uint16)
    sizes = {family: count_parameters(new_model(family, arguments.size, tokenizer)) for family in FAMILIES}
    say(f"{len(texts):,} texts, {sequences.size:,} tokens; parameters: {sizes}")
    if max(sizes.values()) > (1 + TOLERANCE) * min(sizes.values()):
        raise SystemExit(f"The families differ by more than {TOLERANCE:.0%} of their parameters.")
    with atomic_folder(arguments.out / "tokens", replace=True) as folder:
        tokenizer.save_pretrained(folder)
        np.savez_compressed(folder / "sequences.npz", ids=sequences)
        write_json(folder / "about.json", {"size": arguments.size, "texts": len(texts), "parameters": sizes})


def new_model(family: str, size: str, tokenizer: Any) -> Any:
    """A model with random weights for this tokenizer."""
    return make_model(family, size, len(tokenizer), tokenizer.eos_token_id)


def pretrain(arguments: argparse.Namespace) -> None:
    """Pre-train the families, each for the same seconds on the same tokens in the same order."""
    tokens, device = arguments.out / "tokens", arguments.device
    about, tokenizer = read_json(tokens / "about.json", "run `tokens` first"), AutoTokenizer.from_pretrained(tokens)
    sequences = torch.from_numpy(np.load(tokens / "sequences.npz")["ids"].astype(np.int64)).to(device)
    for family in arguments.families:
        if (arguments.out / family).exists():
            say(family, "is pre-trained already")
            continue
        torch.manual_seed(arguments.seed)
        model = new_model(family, about["size"], tokenizer).to(device)
        with fast_mixers():
            options = {"seconds": arguments.seconds, "batch": arguments.batch, "rate": arguments.rate}
            summary = pretrain_model(model, sequences, seed=arguments.seed, **options)
        if family == "mamba":
            summary["scan"] = best_scan(device)[0]
        summary = {"parameters": count_parameters(model), **options, **summary, **provenance()}
        with atomic_folder(arguments.out / family) as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            write_json(folder / "pretraining.json", summary)
        shown = ("parameters", "tokens", "tokens_per_second", "held_out_loss", "held_out_loss_by_tokens")
        say(family, {key: summary[key] for key in shown})


def rerank(arguments: argparse.Namespace) -> None:
    """Train every family as a reranker on the same groups, and rerank BM25's best documents."""
    runs = read_json(arguments.runs, "make it with `bm25_runs.py`")
    missing = [family for family in arguments.families if not (arguments.out / f"{family}-reranker").exists()]
    with fast_mixers():
        if missing:
            train_rerankers(missing, arguments)
        for family in arguments.families:
            file, trained = arguments.results / f"{family}.json", arguments.out / f"{family}-reranker"
            document = read_json(file, "delete it") if file.exists() else {}
            document["pretraining"] = read_json(arguments.out / family / "pretraining.json", "run `pretrain` first")
            document["reranking"] = read_json(trained / "training.json", "delete the folder")
            tasks = document.setdefault("tasks", {})
            reranker = load_reranker(trained, arguments.device)
            for task, (every, depth) in TASKS.items():
                if task not in tasks:
                    run = limited(runs[task], arguments.limit)
                    tasks[task] = evaluate_task(reranker, arguments.data / task, run, every, depth)
                    write_json(file, document)
                say(family, task, {key: value for key, value in tasks[task].items() if key != "by_query"})


def train_rerankers(families: list[str], arguments: argparse.Namespace) -> None:
    """Train families on the same groups in the same order; each goes to a folder of OUT with its linear score."""
    groups, tokenizer = Groups.load(arguments.groups), AutoTokenizer.from_pretrained(arguments.out / "tokens")
    prompts = PairPrompts.of(tokenizer, groups.texts)
    options = {"seconds": arguments.seconds, "rate": arguments.rate, "max_groups": len(groups.rows)}
    for family in families:
        model = AutoModel.from_pretrained(arguments.out / family, dtype=torch.float32).to(arguments.device)
        batches = draw_batches(groups, prompts, arguments.batch, arguments.seed, tokenizer.pad_token_id)
        head, summary = train_reranker(model, batches, seed=arguments.seed, **options)
        say(family, summary)
        with atomic_folder(arguments.out / f"{family}-reranker") as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            np.save(folder / "score.npy", head.cpu().numpy())
            write_json(folder / "training.json", {**options, "batch": arguments.batch, **summary, **provenance()})


def load_reranker(folder: Path, device: str) -> Reranker:
    """The reranker in a folder that `train_rerankers` wrote."""
    backbone = Backbone.load(folder, device=device, dtype="float32")
    spec = RerankerSpec(str(folder), "linear", TEMPLATE, max_length=LENGTH)
    return Reranker(backbone, spec, torch.from_numpy(np.load(folder / "score.npy")))


def limited(run: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """A run with at most `limit` queries."""
    return {**run, "run": dict(list(run["run"].items())[:limit])}


def speed(arguments: argparse.Namespace) -> None:
    """Measure training and inference of every family, which should be alone on the device."""
    for family in arguments.families:
        file = arguments.results / f"{family}.json"
        document = read_json(file, "delete it") if file.exists() else {}
        document["speed"] = measure_speed(
            family, arguments.size, VOCABULARY[arguments.size], arguments.device, arguments.lengths,
            batch=arguments.batch, seconds=arguments.seconds,
        ) | provenance()  # fmt: skip
        write_json(file, document)
        say(family, document["speed"])


def write_comparison(arguments: argparse.Namespace) -> None:
    """Put the results of all families into one file, without the values of single queries."""
    files = {family: arguments.results / f"{family}.json" for family in FAMILIES}
    by_family = {family: read_json(file, "") for family, file in files.items() if file.exists()}
    result = {"families": by_family, "differences": compare({f: d for f, d in by_family.items() if "tasks" in d})}
    for document in by_family.values():
        for task in document.get("tasks", {}).values():
            del task["by_query"]
    write_json(arguments.file, result)
    for family, document in by_family.items():
        for task, report in document.get("tasks", {}).items():
            say(f"{family:8} {task:12}", report["mean"])
    for task, differences in result["differences"].items():
        for name, gap in differences.items():
            say(f"{task:12} {name:24} {gap['value']:+.1f} ({gap['low']:+.1f} to {gap['high']:+.1f})")


def parse_arguments() -> argparse.Namespace:
    """The arguments of a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(required=True)

    def step(name: str, function: Any, *paths: str, **options: Any) -> None:
        command = steps.add_parser(name, help=function.__doc__)
        command.set_defaults(function=function)
        for path in paths:
            command.add_argument(path, type=Path)
        for option, default in options.items():
            command.add_argument(f"--{option}", default=default, type=type(default) if default is not None else int)
        if name in ("pretrain", "rerank", "speed"):
            command.add_argument("--families", default=list(FAMILIES), type=lambda names: names.split(","))
            command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        if name == "speed":
            command.add_argument("--lengths", default=[512, 1536], type=lambda text: [int(n) for n in text.split(",")])

    step("groups", write_groups, "pool", "file", pairs=60_000)
    step("tokens", write_tokens, "pool", "out", size="15m", texts=None, pairs=0)
    step("pretrain", pretrain, "out", seconds=120.0, batch=128, rate=1e-3, seed=0)
    step(
        "rerank",
        rerank,
        "out",
        "groups",
        "data",
        "runs",
        "results",
        seconds=60.0,
        batch=32,
        rate=3e-4,
        seed=0,
        limit=None,
    )
    step("speed", speed, "results", size="15m", batch=32, seconds=2.0)
    step("compare", write_comparison, "results", "file")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = parse_arguments()
    chosen.function(chosen)
