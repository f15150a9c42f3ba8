"""Plain sentences to learn from, and small models whose settings are not those of the tiny ones."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_tokenizer
from toys.sentences import NOUNS, VERBS
from toys.training import toy_data

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}


def sentences(count: int = 12) -> tuple[str, ...]:
    """Of four lengths, the longest over a sliding window, which is 16 tokens in the tiny models."""
    tails = ("", " near the sea", " and nobody knows why it does so", " where the long road goes over the green hills")
    nouns, verbs = (words * (count // len(words) + 1) for words in (NOUNS, VERBS))
    return tuple(f"The {nouns[number]} {verbs[number]}{tails[number % 4]}" for number in range(count))


def plain_data(texts: tuple[str, ...] = sentences(), **changes: object):
    """Nothing but texts."""
    return toy_data(**{"contrastive": None, "dev": (), "texts": texts, **changes})


def built(family: str, folder=None, **settings: object):
    """A random language model of the family, whose biases are not zero, and its folder if one is given."""
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    known = {"vocab_size": len(tokenizer), "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 2}
    with quiet_transformers(), torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **{**known, **SIZES, **settings})).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_()
        if folder is not None:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return model
