"""The card of a trained encoder: what it is, what it learned from, how good it is and how to use it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError
from decoder2vec.evaluation.baselines import model_folder
from decoder2vec.reranker import Reranker
from decoder2vec.storage import parse_json
from decoder2vec.training.plan import Stage
from decoder2vec.training.results import Improvement, is_untrained, label_lines

_UNTRAINED = "The model that training started from: training made it worse on dev, so the change was not kept."


def write_card(model: Encoder | Reranker, stage: Stage, results: dict[str, Any], record: dict[str, Any]) -> str:
    """The card as Markdown."""
    share, stages = record["parameters"], results.get("stages", [])
    untrained = is_untrained(results)
    kind = "a reranker" if isinstance(model, Reranker) else "an encoder"
    rows = {
        **_model_rows(model),
        **({} if untrained else stage.recipe.card_rows()),
        "recipe": f"{stage.recipe.name}{' (its change was not kept)' if untrained else ''}",
        **_teacher_row(stages[:-1] if untrained else stages),
        "trained parameters": f"{share['trained']:,} ({share['percent']} % of the encoder's {share['all']:,})",
        "fingerprint": model.fingerprint,
        "weights of the model": model.backbone.fingerprint,
        "seeds": f"{', '.join(str(seed['seed']) for seed in results['seeds'])} (kept: {results['best_seed']})",
        "seconds of training": results["seconds"],
    }
    lines = [
        f"# {results.get('plan', stage.name)}: {kind} made of {results['backbone']['name']}",
        "",
        _UNTRAINED if untrained else stage.about or stage.recipe.about,
        "",
        "```python",
        *_usage(model),
        "```",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows.items()),
        "",
        "## Scores",
        "",
        *_scores(results),
        "",
        *(f"- {name}: mean score {value}" for name, value in results["mean"]["checks"].items()),
        "",
        *_stages(stages),
        "## Data",
        "",
        *_earlier_data(stages),
        *(f"- {kind}: {description}" for kind, description in results["data"].items()),
        *(f"- {note}" for note in results["notes"]),
        "",
        *_overlap(results.get("overlap", {})),
        "## Made with",
        "",
        *(f"- {name} {version}" for name, version in results["versions"].items()),
        *([f"- `{results['command']}`"] if results["command"] else []),
    ]
    return "\n".join(lines) + "\n"


def _model_rows(model: Encoder | Reranker) -> dict[str, Any]:
    """What the model is, for the card's table."""
    if isinstance(model, Reranker):
        template = json.dumps(model.spec.template, ensure_ascii=False)
        labels = {"labels": ", ".join(model.labels)} if model.labels else {}
        return {"template": template, "tokens of a pair": model.spec.max_length, **labels}
    return {"dimensions": model.dim, "readings": len(model.spec.readings)}


def _usage(model: Encoder | Reranker) -> list[str]:
    """How to use the model, in Python."""
    if isinstance(model, Reranker):
        return [
            "from decoder2vec import Reranker",
            "",
            'reranker = Reranker.load("this folder")',
            "probabilities = reranker.classify_pairs(first_texts, second_texts)   # a column for each label"
            if model.labels
            else 'scores = reranker.score("a query", ["a document", "another one"])   # higher is better',
        ]
    is_pair_scorer = bool(getattr(model.head, "has_pair_similarity", False))
    return [
        "from decoder2vec import Encoder",
        "",
        'encoder = Encoder.load("this folder")',
        'encoder.score("A dog runs.", "A puppy is running.")   # 0 to 1',
        'vectors = encoder.encode(["A dog runs."])             # '
        + ("compare with encoder.similarity" if is_pair_scorer else "for any index"),
    ]


def score_rows(results: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """(dev or test, file, Spearman, Pearson) of all files; with several seeds, mean ± standard deviation."""
    rows = []
    for part in ("dev", "test"):
        for name, mean in results["mean"][part].items():
            deviation = results["sd"][part][name] if len(results["seeds"]) > 1 else {}
            rows.append((part, name, _cell("spearman", mean, deviation), _cell("pearson", mean, deviation)))
    return rows


def _scores(results: dict[str, Any]) -> list[str]:
    rows = score_rows(results)
    if lines := [line for seed in results["seeds"] for line in label_lines(seed)]:
        return [f"- {line}" for line in lines]
    if not rows:
        return ["No scored pairs were given; the best state was selected on held-out texts."]
    improvement = Improvement.of(results)
    return [
        f"Mean over {len(results['seeds'])} seed(s), in points. Nothing was selected on test, which was scored once.",
        "",
        "| file | Spearman | Pearson |",
        "|---|---|---|",
        *(f"| {part}: {name} | {spearman} | {pearson} |" for part, name, spearman, pearson in rows),
        *(["", f"Best seed against the model before training: {improvement}."] if improvement else []),
    ]


def _stages(stages: list[dict[str, Any]]) -> list[str]:
    """A table of the stages, where there were several."""
    if len(stages) < 2:
        return []
    return [
        "## Stages",
        "",
        "Each was trained on the model that the one before it made; this encoder is the last.",
        "",
        "| stage | recipe | objective | length | rate | key |",
        "|---|---|---|---|---|---|",
        *(
            f"| {number} {stage['name']} | {stage['recipe']} | {stage['objective']} | {_length(stage)} | "
            f"{stage['rate']:g} | {stage['key']} |"
            for number, stage in enumerate(stages, 1)
        ),
        "",
    ]


def _teacher_row(stages: list[dict[str, Any]]) -> dict[str, str]:
    """Every teacher of the stages with its licence; a folder by its name only."""
    teachers = {teacher["name"]: teacher["licence"] for stage in stages for teacher in stage.get("teachers", [])}
    shown = [f"{Path(name).name} (licence: {licence})" for name, licence in teachers.items()]
    return {"teachers" if len(shown) > 1 else "teacher": ", ".join(shown)} if shown else {}


def _earlier_data(stages: list[dict[str, Any]]) -> list[str]:
    """What the stages before the last learned from."""
    return [
        f"- stage {stage['name']}, {kind}: {description}"
        for stage in stages[:-1]
        for kind, description in stage.get("data", {}).items()
    ]


def _overlap(overlap: dict[str, dict[str, int]]) -> list[str]:
    """How many texts of each evaluation file or task were trained on."""
    if not overlap:
        return []
    return [
        "## Overlap",
        "",
        "Texts of the evaluation data that training has seen, whatever their case and punctuation. Near duplicates are",
        "not detected.",
        "",
        "| file or task | texts | also trained on |",
        "|---|---|---|",
        *(f"| {name} | {counts['texts']:,} | {counts['shared']:,} |" for name, counts in overlap.items()),
        "",
    ]


def find_licence(name: str) -> str:
    """The licence that the folder of a model states in its card or its configuration, else "unknown"."""
    try:
        folder = model_folder(name)
    except BackboneError:
        return "unknown"
    front_matter = re.match(r"---\n(.*?)\n---", _read(folder / "README.md"), re.DOTALL)
    stated = re.search(r"^license:[ \t]*(\S.*)$", front_matter[1], re.MULTILINE) if front_matter else None
    if stated:
        return stated[1].strip().strip("\"'")
    try:
        return str(parse_json(_read(folder / "config.json"))["license"])
    except (ValueError, KeyError, TypeError):
        return "unknown"


def _read(file: Path) -> str:
    """The text of a file; empty where there is none."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _length(stage: dict[str, Any]) -> str:
    """Steps take precedence over epochs."""
    unit = "steps" if stage["steps"] else "epochs"
    return f"{stage[unit]} {unit} of {stage['batch']}"


def _cell(metric: str, mean: dict[str, float], deviation: dict[str, float]) -> str:
    if metric not in mean:
        return ""
    return f"{mean[metric]:.2f}" + (f" ± {deviation[metric]:.2f}" if deviation else "")
