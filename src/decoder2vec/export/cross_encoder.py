"""Write a reranker as a folder that the `CrossEncoder` of sentence-transformers loads without this package.

A chat template renders document and query as the reranker's prompt. The score is a last-token pooling and a dense
layer, also that of yes and no, which is linear in the state. A likelihood cannot be expressed.
"""

from __future__ import annotations

import copy
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.errors import BackboneError, UnsupportedError
from decoder2vec.export.reload_check import call_in_new_process
from decoder2vec.export.tokenizer import special_tokens, write_tokenizer
from decoder2vec.progress import current_progress
from decoder2vec.reranker import GOLD_QUERIES, Reranker
from decoder2vec.storage import atomic_folder
from decoder2vec.text.pair_template import DOCUMENT, QUERY

TOLERANCE = 1e-4
"""The largest allowed difference between two scores, relative to the largest of ours."""
_DOCUMENTS = (
    "A man plays the guitar on the stage.",
    "The train leaves at noon, and the bus an hour later, from the square in front of the old town hall.",
    "  naïve café 😀 中文  ",
    "def mean(x):\n    return sum(x) / len(x)",
    "no",
)
_MODULES = {
    "Transformer": "sentence_transformers.base.modules.transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling",
    "Dense": "sentence_transformers.base.modules.dense",
}


def export_cross_encoder(reranker: Reranker, target: Path) -> str:
    """Write the folder, compare its scores with the reranker's in a new process, and return a description.

    If the scores differ, the folder is removed and BackboneError raised.
    """
    _check_expressible(reranker)
    with atomic_folder(target) as folder:
        with current_progress().phase("writing"):
            _write(reranker, folder)
        with current_progress().phase("checking"):
            check = _check_scores(reranker, folder)
    return f"{' + '.join(_MODULES)}; {check}; a pair over {reranker.max_seq_length} tokens is not cut there"


def _check_expressible(reranker: Reranker) -> None:
    backbone = reranker.backbone
    reason = ""
    if reranker.spec.method == "likelihood":
        reason = "has no likelihood of a query; train a linear score with `d2v train --recipe rerank`"
    elif reranker.labels:
        reason = "is written for one score, and this reranker has labels; use classify_pairs()"
    elif backbone.attention != "causal":
        reason = f"cannot be told to use {backbone.attention} attention; use causal attention"
    elif backbone.adapter is not None and not isinstance(backbone.adapter, Lora):
        reason = f"has no {backbone.adapter.kind}; train LoRA or all weights"
    if reason:
        raise UnsupportedError(f"A CrossEncoder of sentence-transformers {reason}.")


def _write(reranker: Reranker, folder: Path) -> None:
    """Write the model, the tokenizer with the template, and the modules that follow the model."""
    backbone = reranker.backbone
    weight, bias = _linear_score(reranker)
    with quiet_transformers():
        _merged_model(reranker).save_pretrained(folder)
    write_tokenizer(backbone, folder, backbone.context_length, _chat_template(reranker))
    output = {"method": "forward", "method_output_name": "last_hidden_state"}
    settings = {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": output, "message": {**output, "format": "flat"}},
        "module_output_name": "token_embeddings",
    }
    _write_json(folder / "sentence_bert_config.json", settings)
    reason = "older versions have no settings for the prompt around a pair"
    model_config = {
        "__version__": {"transformers": transformers.__version__, "pytorch": torch.__version__},
        "model_type": "CrossEncoder",
        "activation_fn": "torch.nn.modules.linear.Identity",
        "prompts": {},
        "default_prompt_name": None,
        "requirements": {"sentence-transformers": {"specifier": ">=6.2", "reason": reason}},
    }
    _write_json(folder / "config_sentence_transformers.json", model_config)
    entries = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"{package}.{name}"}
        for i, (name, package) in enumerate(_MODULES.items())
    ]
    _write_json(folder / "modules.json", entries)
    _write_json(
        folder / "1_Pooling" / "config.json", {"embedding_dimension": backbone.dim, "pooling_mode": "lasttoken"}
    )
    dense = {
        "in_features": backbone.dim,
        "out_features": 1,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
        "module_input_name": "sentence_embedding",
        "module_output_name": "scores",
    }
    _write_json(folder / "2_Dense" / "config.json", dense)
    tensors = {"linear.weight": weight[None].contiguous(), "linear.bias": bias[None].contiguous()}
    save_file(tensors, folder / "2_Dense" / "model.safetensors", metadata={"format": "pt"})
    (folder / "README.md").write_text(_card(reranker), encoding="utf-8")


def _linear_score(reranker: Reranker) -> tuple[Tensor, Tensor]:
    """[dim] weights and the bias of the score of a state.

    Raises UnsupportedError if the score is not linear, as in families that cap their logits.
    """
    if reranker.head is not None:
        return reranker.head, torch.tensor(0.0)
    dim = reranker.backbone.dim
    at_zero, *at_units = reranker.score_last_states(np.concatenate([np.zeros((1, dim)), np.eye(dim)]))
    weight, bias = np.array(at_units) - at_zero, at_zero
    states = 30 * np.random.default_rng(0).normal(size=(8, dim))  # as large as states are, where caps take effect
    scores = reranker.score_last_states(states)
    if np.abs(states @ weight + bias - scores).max() > TOLERANCE * np.abs(scores).max():
        raise UnsupportedError(
            f"{reranker.backbone.family} caps its logits, which a CrossEncoder cannot express; train a linear score "
            "with `d2v train --recipe rerank`."
        )
    return torch.from_numpy(weight).float(), torch.tensor(float(bias))


def _merged_model(reranker: Reranker) -> Any:
    """A copy of the model on the CPU with LoRA merged."""
    backbone = reranker.backbone
    model: Any = copy.deepcopy(backbone.model).cpu()
    if isinstance(backbone.adapter, Lora):
        for path, weight in backbone.adapter.merged_weights_by_path().items():
            model.get_submodule(path).weight.copy_(weight)
    return model


def _chat_template(reranker: Reranker) -> str:
    """A Jinja template that renders the messages "document" and "query" as the reranker's prompt.

    Rendered prompts get no special tokens from the tokenizer, so they are part of the template.
    """
    backbone = reranker.backbone
    before, _ = special_tokens(backbone)
    string = before + reranker.spec.template + backbone.tokenizer.decode(reranker.closing_token_ids)
    first, second = sorted((DOCUMENT, QUERY), key=string.index)
    head, rest = string.split(first)
    middle, tail = rest.split(second)
    parts = [_literal(head), _message(first), _literal(middle), _message(second), _literal(tail)]
    return "".join(parts)


def _literal(text: str) -> str:
    return f"{{{{ {text!a} }}}}" if text else ""


def _message(slot: str) -> str:
    return f"{{{{ (messages | selectattr('role', 'equalto', '{slot.strip('{}')}') | first).content }}}}"


def _check_scores(reranker: Reranker, folder: Path) -> str:
    """Describe the largest difference from the reranker's scores; raise BackboneError if it is too large."""
    if find_spec("sentence_transformers") is None:
        return "not checked, since sentence-transformers is not installed"
    pairs = [(query, document) for query in GOLD_QUERIES for document in _DOCUMENTS]
    options = {"device": str(reranker.device), "trust_remote_code": False}
    calls = [("predict", pairs, {}), ("predict", pairs[:3], {"batch_size": 1})]
    request = {"class": "CrossEncoder", "folder": str(folder), "options": options, "calls": calls}
    expected = reranker.score_pairs(*zip(*pairs, strict=True))
    found = call_in_new_process([request])
    largest = float(np.abs(expected).max())
    difference = max(float(np.abs(scores - expected[: len(scores)]).max()) / largest for scores in found)
    if not difference <= TOLERANCE:
        raise BackboneError(
            f"sentence-transformers loads the exported folder, but its scores differ by {difference:.2g} where "
            f"{TOLERANCE:g} is allowed, so it was removed; please report this model family."
        )
    return f"read by sentence-transformers, the largest difference is {difference:.1e}"


def _card(reranker: Reranker) -> str:
    return f"""---
library_name: sentence-transformers
tags:
- cross-encoder
- reranker
pipeline_tag: text-ranking
---
# Reranker of {Path(reranker.backbone.name).name}

```python
from sentence_transformers import CrossEncoder

model = CrossEncoder("this folder")
print(model.rank("how high is the tower in Paris", ["The Eiffel Tower is 330 metres tall.", "Bread rises."]))
```

It needs sentence-transformers 6.2 or later. Scores equal those of decoder2vec for pairs of up to
{reranker.max_seq_length} tokens. Of longer pairs decoder2vec cuts the document, which a CrossEncoder cannot.
"""


def _write_json(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
