"""What adaptation cost on tasks it was not for, from evaluations that are there: no model is loaded.

The encoders of results/evaluation that were made from SmolLM2-135M are compared with the same model before training,
read in three ways: its last token of plain text, its last token under the prompt that LoRA and soft prompts are trained
under, and the best layer and prompt of a sweep. STS and MRPC are left out of the mean ratio of change: the triplets and
the scored pairs that were trained on are of that kind, and FREEZE has seen pairs of MRPC. DATA is a folder of tasks as
for `d2v eval`; the scores of constant predictions are computed from its labels.

Run: python experiments/trajectory/cost.py --data DATA --out results/trajectory/cost.json
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from decoder2vec.evaluation.tasks.layout import find_tasks
from decoder2vec.report.changes import describe_change, draw_changes, measure_changes
from decoder2vec.report.result_files import Evaluation, find_results
from decoder2vec.storage import write_json

RESULTS = Path(__file__).parents[2] / "results" / "evaluation"
BEFORE = ("untrained", "prompteol", "training_free")
AFTER = {
    "lora": "LoRA",
    "soft_prompt_16": "SPT",
    "kv_prefix_10": "SPT v2",
    "freeze": "FREEZE",
    "distilled_frozen": "distilled heads",
    "smollm2-135m-general": "distilled LoRA",
}
TRAINED_ON = ("sts", "mrpc")


def load(stem: str, name: str, constants: dict[str, float]) -> Evaluation:
    """The evaluation of a file under a short name, with the scores of constant predictions."""
    (evaluation,) = find_results([RESULTS / f"{stem}.json"]).evaluations
    tasks = {task: replace(score, constant=constants[task]) for task, score in evaluation.tasks.items()}
    return replace(evaluation, name=name, tasks=tasks)


def main() -> None:
    """Write the changes by reading before training, and a figure of those from the best of the sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/trajectory/cost.json"))
    parser.add_argument("--figure", type=Path, help="A PNG; an SVG is written beside it.")
    arguments = parser.parse_args()
    constants = {task.name: task.constant_score() for task in find_tasks(arguments.data)}
    document = {}
    for before in BEFORE:
        evaluations = [load(before, before, constants), *(load(*names, constants) for names in AFTER.items())]
        changes = measure_changes(evaluations, TRAINED_ON)
        if arguments.figure and before == BEFORE[-1]:
            draw_changes(changes, arguments.figure)
        document[before] = [change.to_json() for change in changes]
        for change in changes:
            sys.stdout.write(f"{before} -> {describe_change(change)}\n")
    command = "python experiments/trajectory/cost.py --data DATA --out results/trajectory/cost.json"
    write_json(arguments.out, {"command": command, "before": document}, allow_nan=False)


if __name__ == "__main__":
    main()
