"""The card of a trained encoder: what it is, what it learned from, how good it is and how to use it."""

from __future__ import annotations

from typing import Any

from decoder2vec.encoder import Encoder
from decoder2vec.recipes.freeze import Freeze
from decoder2vec.training.plan import Plan


def write_card(encoder: Encoder, plan: Plan, results: dict[str, Any], record: dict[str, Any]) -> str:
    """The card as Markdown."""
    share = record["parameters"]
    lines = [
        f"# {plan.name}: an encoder made of {results['backbone']['name']}",
        "",
        plan.about or _ABOUT.get(plan.recipe_name, f"Trained with the recipe {plan.recipe_name}."),
        "",
        "```python",
        "from decoder2vec import Encoder",
        "",
        'encoder = Encoder.load("this folder")',
        'encoder.score("A dog runs.", "A puppy is running.")   # 0 to 1',
        'vectors = encoder.encode(["A dog runs."])             # '
        + ("an index can hold them" if not _is_pair_scorer(encoder) else "read by encoder.similarity"),
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| dimensions | {encoder.dim} |",
        f"| readings | {len(encoder.spec.readings)} |",
        *([f"| head | {plan.recipe.head} |"] if isinstance(plan.recipe, Freeze) else []),
        f"| recipe | {plan.recipe_name} |",
        f"| trained numbers | {share['trained']:,} ({share['percent']} % of the model's {share['backbone']:,}) |",
        f"| fingerprint | {encoder.fingerprint} |",
        f"| weights of the model | {encoder.backbone.fingerprint} |",
        f"| seeds | {', '.join(str(seed['seed']) for seed in results['seeds'])} (kept: {results['best_seed']}) |",
        f"| seconds of training | {results['seconds']} |",
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
        *(f"- {what}: {which}" for what, which in results["data"].items()),
        *(f"- {note}" for note in results["notes"]),
        "",
        "## Made with",
        "",
        *(f"- {name} {version}" for name, version in results["versions"].items()),
        *([f"- `{results['command']}`"] if results["command"] else []),
    ]
    return "\n".join(lines) + "\n"


_ABOUT = {
    "freeze": "Trained with the FREEZE recipe: the model is frozen, small encoders read its layers.",
    "soft_prompt": "The model is frozen; a few trained vectors stand beside each text.",
    "kv_prefix": "The model is frozen; trained keys and values stand before each text in every layer.",
    "lora": "Low-rank changes of the model's weights were trained.",
    "full": "All weights of the model were trained.",
}


def _scores(results: dict[str, Any]) -> list[str]:
    rows = score_rows(results)
    if not rows:
        return ["No scored pairs were given; the best state was chosen on texts that were set aside."]
    return [
        f"Mean over {len(results['seeds'])} seed(s), in points. Nothing was chosen on test, which was scored once.",
        "",
        "| file | Spearman | Pearson |",
        "|---|---|---|",
        *(f"| {part}: {name} | {first} | {second} |" for part, name, first, second in rows),
    ]


def _stages(stages: list[dict[str, Any]]) -> list[str]:
    """One after the other, where there were several."""
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
            f"| {number} {one['name']} | {one['recipe']} | {one['objective']} | {_length(one)} | {one['rate']:g} | "
            f"{one['key']} |"
            for number, one in enumerate(stages, 1)
        ),
        "",
    ]


def _length(stage: dict[str, Any]) -> str:
    """Steps count before epochs."""
    what = "steps" if stage["steps"] else "epochs"
    return f"{stage[what]} {what} of {stage['batch']}"


def _is_pair_scorer(encoder: Encoder) -> bool:
    return bool(getattr(encoder.head, "has_pair_similarity", False))


def score_rows(results: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """(dev or test, file, Spearman, Pearson) for people; a single seed has no spread."""
    rows = []
    for part in ("dev", "test"):
        for name, mean in results["mean"][part].items():
            spread = results["sd"][part][name] if len(results["seeds"]) > 1 else {}
            rows.append((part, name, _cell("spearman", mean, spread), _cell("pearson", mean, spread)))
    return rows


def _cell(metric: str, mean: dict[str, float], spread: dict[str, float]) -> str:
    if metric not in mean:
        return ""
    return f"{mean[metric]:.2f}" + (f" ± {spread[metric]:.2f}" if spread else "")
