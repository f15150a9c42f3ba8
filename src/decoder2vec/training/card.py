"""The card of a trained encoder: what it is, what it learned from, how good it is and how to use it."""

from __future__ import annotations

from typing import Any

from decoder2vec.encoder import Encoder
from decoder2vec.training.plan import Stage


def write_card(encoder: Encoder, stage: Stage, results: dict[str, Any], record: dict[str, Any]) -> str:
    """The card as Markdown."""
    share = record["parameters"]
    is_pair_scorer = bool(getattr(encoder.head, "has_pair_similarity", False))
    rows = {
        "dimensions": encoder.dim,
        "readings": len(encoder.spec.readings),
        **stage.recipe.card_rows(),
        "recipe": stage.recipe.name,
        "trained parameters": f"{share['trained']:,} ({share['percent']} % of the model's {share['backbone']:,})",
        "fingerprint": encoder.fingerprint,
        "weights of the model": encoder.backbone.fingerprint,
        "seeds": f"{', '.join(str(seed['seed']) for seed in results['seeds'])} (kept: {results['best_seed']})",
        "seconds of training": results["seconds"],
    }
    lines = [
        f"# {stage.name}: an encoder made of {results['backbone']['name']}",
        "",
        stage.about or stage.recipe.about,
        "",
        "```python",
        "from decoder2vec import Encoder",
        "",
        'encoder = Encoder.load("this folder")',
        'encoder.score("A dog runs.", "A puppy is running.")   # 0 to 1',
        'vectors = encoder.encode(["A dog runs."])             # '
        + ("compare with encoder.similarity" if is_pair_scorer else "for any index"),
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
        *_stages(results.get("stages", [])),
        "## Data",
        "",
        *(f"- {kind}: {description}" for kind, description in results["data"].items()),
        *(f"- {note}" for note in results["notes"]),
        "",
        "## Made with",
        "",
        *(f"- {name} {version}" for name, version in results["versions"].items()),
        *([f"- `{results['command']}`"] if results["command"] else []),
    ]
    return "\n".join(lines) + "\n"


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
    if not rows:
        return ["No scored pairs were given; the best state was selected on held-out texts."]
    return [
        f"Mean over {len(results['seeds'])} seed(s), in points. Nothing was selected on test, which was scored once.",
        "",
        "| file | Spearman | Pearson |",
        "|---|---|---|",
        *(f"| {part}: {name} | {spearman} | {pearson} |" for part, name, spearman, pearson in rows),
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


def _length(stage: dict[str, Any]) -> str:
    """Steps take precedence over epochs."""
    unit = "steps" if stage["steps"] else "epochs"
    return f"{stage[unit]} {unit} of {stage['batch']}"


def _cell(metric: str, mean: dict[str, float], deviation: dict[str, float]) -> str:
    if metric not in mean:
        return ""
    return f"{mean[metric]:.2f}" + (f" ± {deviation[metric]:.2f}" if deviation else "")
