"""Train a decoder to unshuffle sentences (DEPTH), and measure what its vectors know before and after.

    python experiments/depth/study.py DATA WORK results/depth --seconds 150        # a GPU

DATA is laid out for `d2v eval` and holds `pool`. The arms: `untrained` (causal, mean of the tokens), `bidirectional`
(the same under bidirectional attention), `mntp` (masked tokens, the control), `pointer` and `lm` (unshuffle with a
pointer, and with generated labels). Those that are trained get the same texts and the same seconds: a few steps are
timed first, and the learning rate falls to zero in the steps that fit.

Scores of each arm:

- sentence position: five consecutive sentences, one of which was moved to the front; which one (chance 20)?
- coherence: five consecutive sentences, one of which but the first may come from another text; is that so (chance 50)?
  Both are asked of paragraphs of Wikipedia, abstracts and textbooks (the pool has next to no stories), by a classifier
  with one hidden layer on frozen vectors of sentences: read alone, together (late chunking), or by sentence tokens.
  Classifiers train and test on different texts, and no sentence of either is trained on before.
- all tasks of DATA, STS among them; retrieval by chunks that are read alone and together (experiments/chunks).

Every arm is a file in the output folder, with `summary.json` beside it: differences to the untrained model, with 95 %
bootstrap intervals for the probes. If the process stops, the same command goes on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import runpy
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

import decoder2vec as d2v
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.maths.bootstrap import difference, mean_scorer, resample
from decoder2vec.storage import versions, write_json
from decoder2vec.text.sentences import split_sentences
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Schedule
from decoder2vec.training.objectives.mntp import MNTPConfig
from decoder2vec.training.objectives.unshuffle import UnshuffleConfig
from decoder2vec.training.recipes import recipe_class
from decoder2vec.training.recipes.adapter import AdapterRecipe, ReadSettings
from decoder2vec.training.recipes.recipe import Trainer

OBJECTIVES = {"mntp": MNTPConfig(), "pointer": UnshuffleConfig(), "lm": UnshuffleConfig(head="lm")}
ARMS = ("untrained", "bidirectional", *OBJECTIVES)
PROBED = {"wikipedia": ("wikipedia",), "abstracts": ("science", "abstracts"), "textbooks": ("openstax",)}
"""Sources of the pool that the probes are made of."""
TRAINED = {"wikipedia", "science", "abstracts", "openstax", "trials", "medquad"}
SENTENCES = 5
MIN_WORDS = 4
"""Of every sentence of a probe."""
PILOT_STEPS, WARM_UP_STEPS = 30, 10
SEEDS = 3
"""Classifiers of each probe, whose answers are averaged."""


def main() -> None:
    """Score all arms, training those that need it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path, help="folder for encoders and probes")
    parser.add_argument("out", type=Path, help="folder for results")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    parser.add_argument("--seconds", type=float, default=150, help="of training, for each arm that is trained")
    parser.add_argument("--steps", type=int, default=0, help="train this many steps instead")
    parser.add_argument("--recipe", default="lora", choices=["lora", "full"])
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--batch", type=int, default=256, help="texts of a batch")
    parser.add_argument("--texts", type=int, default=150_000, help="texts to train on")
    parser.add_argument("--probe-texts", type=int, default=5000, help="texts of each source of the probes, at most")
    parser.add_argument("--limit", type=int, help="texts or queries of each task, at most")
    parser.add_argument("--tasks", default="all")
    parser.add_argument("--documents", type=int, default=250, help="abstracts of the retrieval by chunks")
    parser.add_argument("--queries", type=int, default=100, help="queries of the retrieval by chunks")
    parser.add_argument("--pages", type=int, default=10, help="long documents of each of three sources")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    pool = read_pool(args.data / "pool")
    probes, used = make_probes(pool, args.probe_texts)
    texts = training_texts(pool, used, args.texts)
    del pool
    print(
        f"{len(texts):,} texts to train on; probes of {', '.join(f'{k} {len(p.texts):,}' for k, p in probes.items())}"
    )
    for arm in args.arms:
        score_arm(arm, texts, probes, args)
        summarise(args.out, args.work)


# --- texts and probes ------------------------------------------------------------------------------------------------


class Document(NamedTuple):
    """A text of the pool."""

    source: str
    text: str
    sentences: list[str]


class Probe(NamedTuple):
    """Texts of five sentences with labels; the first part is for training."""

    texts: list[list[str]]
    labels: NDArray[np.int64]
    n_train: int
    n_classes: int


def read_pool(folder: Path) -> list[Document]:
    """Different texts of three sentences or more, in a random order that is always the same."""
    texts = {}
    for file in sorted(folder.glob("*.tsv.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                source, *_, text = line.rstrip("\n").split("\t")
                if source in TRAINED and text.count(". ") > 1:
                    texts.setdefault(text, source)
    documents = [Document(source, text, split_sentences(text)) for text, source in texts.items()]
    documents = [document for document in documents if len(document.sentences) > 2]
    random.Random(0).shuffle(documents)
    return documents


def make_probes(pool: list[Document], count: int) -> tuple[dict[str, Probe], set[str]]:
    """Both probes of each kind of text by name, and all sentences that occur in them."""
    probes, used = {}, set()
    for kind, sources in PROBED.items():
        rng = random.Random(kind)
        chosen: list[list[str]] = []
        first_sentences: set[str] = set()  # the pool may hold a text and the beginning of it
        for document in pool:
            sentences = document.sentences[:SENTENCES]
            usable = len(sentences) == SENTENCES and all(len(each.split()) >= MIN_WORDS for each in sentences)
            if document.source in sources and usable and not first_sentences & set(sentences):
                chosen.append(sentences)
                first_sentences.update(sentences)
            if len(chosen) == count:
                break
        used |= first_sentences
        n_train = len(chosen) * 4 // 5
        probes[f"position/{kind}"] = position_probe(chosen, n_train, rng)
        probes[f"coherence/{kind}"] = coherence_probe(chosen, n_train, rng)
    return probes, used


def position_probe(texts: list[list[str]], n_train: int, rng: random.Random) -> Probe:
    """One sentence is moved to the front; the label is where it was."""
    labels = [rng.randrange(SENTENCES) for _ in texts]
    moved = [[text[n], *text[:n], *text[n + 1 :]] for text, n in zip(texts, labels, strict=True)]
    return Probe(moved, np.array(labels), n_train, SENTENCES)


def coherence_probe(texts: list[list[str]], n_train: int, rng: random.Random) -> Probe:
    """In half of the texts a sentence other than the first is replaced by one of another text of the same part."""
    labels, result = [], []
    for index, text in enumerate(texts):
        replaced = rng.randrange(2)
        labels.append(replaced)
        n = rng.randrange(1, SENTENCES)
        part = range(n_train) if index < n_train else range(n_train, len(texts))
        shift = rng.randrange(1, len(part))
        other = texts[part[(part.index(index) + shift) % len(part)]]
        result.append([*text[:n], rng.choice(other), *text[n + 1 :]] if replaced else text)
    return Probe(result, np.array(labels), n_train, 2)


def training_texts(pool: list[Document], used: set[str], count: int) -> tuple[str, ...]:
    """Texts none of whose sentences occurs in a probe."""
    free = (document.text for document in pool if used.isdisjoint(document.sentences))
    return tuple(text for _, text in zip(range(count), free, strict=False))


# --- arms ------------------------------------------------------------------------------------------------------------


def score_arm(arm: str, texts: tuple[str, ...], probes: dict[str, Probe], args: argparse.Namespace) -> None:
    """Train the arm if it is not trained yet, and write its scores, each as soon as it is known."""
    file = args.out / f"{arm}.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    results |= {"arm": arm, "model": args.model, "command": shlex.join(["python", *sys.argv])}
    encoder = make_encoder(arm, texts, results, args)
    results |= {"encoder": repr(encoder), "fingerprint": encoder.fingerprint, "versions": versions()}
    write_json(file, results)
    for name, probe in probes.items():
        if name in results.setdefault("probes", {}):
            continue
        results["probes"][name] = score_probe(encoder, probe, args.work / f"{arm}-{name.replace('/', '-')}")
        write_json(file, results)
        report(arm, name, results["probes"][name])
    if "late" not in results:
        results["late"] = dict(late_chunks(encoder, args))
        write_json(file, results)
        report(arm, "late", results["late"])
    if "tasks" not in results:
        tasks_file = args.work / f"{arm}-tasks.json"
        document = d2v.evaluate(
            encoder, args.data, tasks=args.tasks, limit=args.limit, name=arm, json_file=tasks_file, notify=print
        )
        results["tasks"] = {name: task["score"] for name, task in document["tasks"].items()}
        results["summary"] = document["summary"]
        write_json(file, results)
        report(arm, "tasks", results["summary"])


def report(arm: str, name: str, scores: Any) -> None:
    """Print scores on one line."""
    print(f"{time.strftime('%H:%M:%S')} {arm:14} {name:24} {scores}", flush=True)


def make_encoder(arm: str, texts: tuple[str, ...], results: dict[str, Any], args: argparse.Namespace) -> d2v.Encoder:
    """The encoder of an arm: the model itself, or trained in as many steps as fit the seconds."""
    if arm not in OBJECTIVES:
        attention = "bidirectional" if arm == "bidirectional" else "causal"
        return d2v.Encoder.from_pretrained(
            args.model, template="plain", pooling="mean", normed=True, attention=attention
        )
    schedule = Schedule(batch=args.batch, rate=args.rate, steps=args.steps, patience=1000, clip=1.0)
    recipe: AdapterRecipe = recipe_class(args.recipe)(  # type: ignore[assignment]
        attention="bidirectional",
        read=ReadSettings(pooling="mean"),
        objective=OBJECTIVES[arm],
        training=schedule,
    )
    n_steps = args.steps or results.get("training", {}).get("steps")
    if not n_steps:
        per_step = seconds_per_step(recipe, texts[: 12 * args.batch], args.model)
        n_steps = max(PILOT_STEPS, int(args.seconds / per_step))
        print(f"{arm}: {per_step:.3f} s a step, {n_steps} steps", flush=True)
    results["training"] = {"steps": n_steps, "recipe": args.recipe, "rate": args.rate, "batch": args.batch}
    write_json(args.out / f"{arm}.json", results)
    recipe = replace(recipe, training=replace(schedule, steps=n_steps, evaluate_every=max(1, n_steps // 4)))
    data = TrainingData(None, (), texts=texts)
    trained = d2v.train(recipe, data, args.model, args.work / f"{args.recipe}-{arm}", overwrite=True)
    notes = trained.results["seeds"][0]["notes"]
    history = notes["training"]
    results["training"] |= {
        "texts": len(texts),
        "seconds": trained.results["seconds"],
        "losses": history["losses"],
        "held_out_losses": [-score for score in (history["start"], *history["scores"])],
        **({"order": notes["order"]} if "order" in notes else {}),
    }
    report(arm, "training", results["training"])
    return trained.encoder


def seconds_per_step(recipe: AdapterRecipe, texts: tuple[str, ...], model: str) -> float:
    """Seconds of a training step, measured after the first steps."""
    schedule = replace(recipe.training, steps=PILOT_STEPS, evaluate_every=PILOT_STEPS)
    trainer = Trainer(replace(recipe, training=schedule), TrainingData(None, (), texts=texts), Backbone.load(model))
    times: dict[int, float] = {}

    def note_time(state: Any) -> None:
        if state.step in (WARM_UP_STEPS, PILOT_STEPS - 1):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times[state.step] = time.perf_counter()

    trainer.run(0, on_progress=note_time)
    return (times[PILOT_STEPS - 1] - times[WARM_UP_STEPS]) / (PILOT_STEPS - 1 - WARM_UP_STEPS)


# --- scores ----------------------------------------------------------------------------------------------------------


def score_probe(encoder: d2v.Encoder, probe: Probe, hits_file: Path) -> dict[str, Any]:
    """Accuracy in percent by how sentences are read; which answers are right is written to a file."""
    scores: dict[str, Any] = {"train": probe.n_train, "test": len(probe.texts) - probe.n_train}
    all_hits = {}
    for reading in ("alone", "together", "tokens"):
        if reading == "tokens" and encoder.backbone.sentence_tokens is None:
            continue
        vectors = sentence_vectors(encoder, probe.texts, reading)
        features = position_features(vectors) if probe.n_classes == SENTENCES else vectors.reshape(len(vectors), -1)
        hits = classify(features, probe, encoder.device)
        all_hits[reading] = hits
        scores[reading] = round(100 * float(hits.mean()), 2)
    np.savez_compressed(hits_file.with_suffix(".npz"), **all_hits)
    return scores


def sentence_vectors(encoder: d2v.Encoder, texts: list[list[str]], reading: str) -> NDArray[np.float32]:
    """[text, sentence, dim] vectors of sentences."""
    if reading == "alone":
        vectors = encoder.encode([sentence for text in texts for sentence in text])
        return vectors.reshape(len(texts), SENTENCES, -1)
    joined = [" ".join(text) for text in texts]
    spans = []
    for text in texts:
        ends = np.cumsum([len(sentence) + 1 for sentence in text]) - 1
        spans.append([(int(end) - len(sentence), int(end)) for end, sentence in zip(ends, text, strict=True)])
    return np.stack(encoder.encode_chunks(joined, spans, sentence_tokens=reading == "tokens"))


def position_features(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The first sentence, and its differences to the others, as in DiscoEval."""
    first = vectors[:, :1]
    return np.concatenate([first, first - vectors[:, 1:]], axis=1).reshape(len(vectors), -1)


def classify(features: NDArray[np.float32], probe: Probe, device: torch.device) -> NDArray[np.float32]:
    """[test text] share of the classifiers that are right, each trained from another seed."""
    inputs = torch.from_numpy(features).to(device)
    labels = torch.from_numpy(probe.labels).to(device)
    mean, deviation = inputs[: probe.n_train].mean(dim=0), inputs[: probe.n_train].std(dim=0)
    inputs = (inputs - mean) / deviation.clamp(min=1e-6)
    n_fit = probe.n_train * 9 // 10
    parts = [slice(n_fit), slice(n_fit, probe.n_train), slice(probe.n_train, None)]
    fit, dev, test = ((inputs[part], labels[part]) for part in parts)
    hits = [train_classifier(fit, dev, test, probe.n_classes, seed) for seed in range(SEEDS)]
    return torch.stack(hits).mean(dim=0).cpu().numpy()


Examples = tuple[torch.Tensor, torch.Tensor]


def train_classifier(fit: Examples, dev: Examples, test: Examples, n_classes: int, seed: int) -> torch.Tensor:
    """[test text] 1 where the classifier of the epoch that is best on dev is right."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Dropout(0.2), nn.Linear(fit[0].shape[1], 512), nn.ReLU(), nn.Dropout(0.5))
    net.append(nn.Linear(512, n_classes)).to(fit[0].device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.1)
    best, best_hits = -1.0, torch.empty(0)
    for _ in range(30):
        net.train()
        for rows in torch.randperm(len(fit[0])).split(128):
            optimizer.zero_grad(set_to_none=True)
            rows = rows.to(fit[0].device)
            functional.cross_entropy(net(fit[0][rows]), fit[1][rows]).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            accuracy = float((net(dev[0]).argmax(dim=1) == dev[1]).float().mean())
            if accuracy > best:
                best, best_hits = accuracy, (net(test[0]).argmax(dim=1) == test[1]).float()
    return best_hits


def late_chunks(encoder: d2v.Encoder, args: argparse.Namespace) -> Iterator[tuple[str, dict[str, float]]]:
    """nDCG@10 of documents, and of chunks where they are judged, by chunks that are read alone and together."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "chunks" / "evaluate.py"))
    scifact = args.data / "retrieval" / "scifact"
    for name, collection in (
        ("scifact", script["read_scifact"](scifact, args.queries, args.documents)),
        ("long", script["read_pages"](args.data / "pool", args.pages, encoder)),
    ):
        for way in ("early", f"late-{encoder.max_seq_length}"):
            scores = script["evaluate"](encoder, collection, way)
            kept = {key: round(value, 2) for key, value in scores.items() if key.endswith("@10")}
            yield f"{name}/{way.partition('-')[0]}", kept


def summarise(out: Path, work: Path) -> None:
    """Write how the probes of each arm differ from the untrained model's, with 95 % bootstrap intervals."""
    results = {file.stem: json.loads(file.read_text()) for file in sorted(out.glob("*.json")) if file.stem in ARMS}
    if "untrained" not in results:
        return
    start = results["untrained"]
    summary: dict[str, Any] = {"versions": start["versions"]}
    for arm, result in results.items():
        row: dict[str, Any] = {"command": result["command"], "probes": {}}
        for name in result.get("probes", {}):
            stem = name.replace("/", "-")
            hits, before = (np.load(work / f"{which}-{stem}.npz") for which in (arm, "untrained"))
            row["probes"][name] = {
                reading: asdict(mean_difference(hits[reading], before["alone" if reading == "alone" else "together"]))
                for reading in hits.files
            }
        row |= {key: result[key] for key in ("summary", "late", "training") if key in result}
        summary[arm] = row
    write_json(out / "summary.json", summary)


def mean_difference(after: NDArray[np.float32], before: NDArray[np.float32]) -> Any:
    """The difference of two means over the same texts, in points, with its 95 % bootstrap interval."""
    values = 100 * np.stack([after, before]).astype(np.float64)
    (mean, mean_before), samples = resample(mean_scorer(values), values.shape[1])
    return difference(mean - mean_before, samples[0] - samples[1])


if __name__ == "__main__":
    main()
