"""Tokens per second of MNTP and SimCSE steps on plain sentences, against the same steps in plain transformers + peft.

The plain loops pad a batch to its longest text, mask 20 % of its tokens and run the LM head on every state; ours sorts
by length and runs the head only on the states before masked tokens. Each method runs in a process of its own, twice,
in alternation; the faster run counts. Tokens are counted without padding. On a shared machine use --cpu, which measures
CPU seconds of one thread.
Run: python bench/text_objectives.py [--backbone smollm2-135m] [--texts 24] [--cpu]
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
from torch.nn import functional

from corpus import sentences
from measure import best_seconds, fastest_runs, peak_megabytes, report, select_clock, speed_column

METHODS = ("mntp", "mntp, peft", "mntp, all logits", "simcse", "simcse, peft")


def our_step(objective, backbone, texts):
    """Return a step of the training loop with all training texts in one batch, and the number of its tokens."""
    from decoder2vec.training.data import TrainingData
    from decoder2vec.training.objectives import objective_config
    from decoder2vec.training.objectives.objective import training_task
    from decoder2vec.training.recipes.adapter import ReadSettings
    from decoder2vec.training.recipes.lora import LoraRecipe
    from decoder2vec.training.recipes.recipe import Trainer

    config = objective_config({"name": objective})
    recipe = LoraRecipe(attention="bidirectional", read=ReadSettings(pooling="mean"), objective=config)
    corpus = Trainer(recipe, TrainingData(None, (), texts=tuple(texts)), backbone).corpus
    rows = np.arange(len(corpus.objective))
    tokens = sum(len(corpus.prompts[row].ids) for row in rows)
    torch.manual_seed(0)
    task = training_task(corpus.objective, recipe.attach(corpus), recipe.training, recipe.choose_by)

    def step():
        with task.step_context():
            task.loss(rows).backward()

    return step, tokens


def plain_step(objective, backbone, texts):
    """Return the same step with the classes of transformers and peft's LoRA, and the number of its tokens."""
    import peft
    from transformers import AutoModelForCausalLM

    from decoder2vec.backbone.sources import resolve_model_folder

    model = AutoModelForCausalLM.from_pretrained(resolve_model_folder(backbone.name), dtype=backbone.dtype)
    model.config.is_causal = False
    config = peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    tokenizer = backbone.tokenizer
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    tokens = int(batch["attention_mask"].sum())
    mask_id = tokenizer("_", add_special_tokens=False)["input_ids"][0]

    def mntp():
        masked = (torch.rand(batch["input_ids"].shape) < 0.2) & (batch["attention_mask"] > 0)
        masked[:, 0] = False
        ids = batch["input_ids"].masked_fill(masked, mask_id)
        labels = batch["input_ids"].masked_fill(~masked, -100)
        logits = model(input_ids=ids, attention_mask=batch["attention_mask"]).logits
        functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten()).backward()

    def simcse():
        for layer in model.get_base_model().model.layers:
            layer.self_attn.attention_dropout = 0.3
        model.train()
        ids, mask = (batch[name].repeat(2, 1) for name in ("input_ids", "attention_mask"))
        states = model.get_base_model().model(input_ids=ids, attention_mask=mask).last_hidden_state
        vectors = functional.normalize((states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True), dim=1)
        first, second = vectors.chunk(2)
        functional.cross_entropy(first @ second.T / 0.05, torch.arange(len(first))).backward()

    return (mntp if objective == "mntp" else simcse), tokens


def all_logits_step(backbone, texts):
    """Return our MNTP step with the LM head on every state, to see what running it on masked tokens alone saves."""
    from decoder2vec.backbone.lm_head import LMHead

    compute_logits = LMHead.__call__

    def logits_of_all_tokens(head, states):
        # as many states as there are tokens: five for each masked one, since 20 % are masked
        return compute_logits(head, states.repeat_interleave(5, dim=0))[::5]

    LMHead.__call__ = logits_of_all_tokens
    return our_step("mntp", backbone, texts)


def measure(method: str, backbone_name: str, n_texts: int, cpu: bool) -> None:
    """Measure one method in this process and print the result as JSON."""
    from decoder2vec.backbone.backbone import Backbone

    backbone = Backbone.load(backbone_name)
    texts = sentences(n_texts + 2)  # the training loop holds out two for dev
    objective = method.split(",")[0]
    if method.endswith("peft"):
        step, tokens = plain_step(objective, backbone, texts)
    elif method.endswith("logits"):
        step, tokens = all_logits_step(backbone, texts)
    else:
        step, tokens = our_step(objective, backbone, texts)
    clock = select_clock(cpu)
    step()  # warm up
    print(json.dumps({"seconds": best_seconds(step, 2, clock), "tokens": tokens, "peak": peak_megabytes()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--method", choices=METHODS)
    args = parser.parse_args()
    if args.method:
        measure(args.method, args.backbone, args.texts, args.cpu)
        return
    options = ["--backbone", args.backbone, "--texts", str(args.texts), *["--cpu"] * args.cpu]
    runs = fastest_runs(__file__, METHODS, *options)
    rows = [(method, f"{run['tokens'] / run['seconds']:.1f}", f"{run['peak']:.0f}") for method, run in runs.items()]
    columns = ("way", speed_column(args.cpu), "peak MB of the process")
    report("text_objectives", columns, rows, backbone=args.backbone, texts=args.texts)


if __name__ == "__main__":
    main()
