"""Plain texts to train on, what a corpus objective should do with them, and small models with unusual settings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_folder, tiny_tokenizer
from toys.sentences import NOUNS, VERBS
from toys.training import SETTINGS, toy_data

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}


def sentences(count: int = 12) -> tuple[str, ...]:
    """Different sentences of four lengths, the longest beyond the sliding window of the tiny models (16 tokens)."""
    tails = ("", " near the sea", " and nobody knows why it does so", " where the long road goes over the green hills")
    nouns, verbs = (words * (count // len(words) + 1) for words in (NOUNS, VERBS))
    return tuple(f"The {nouns[index]} {verbs[index]}{tails[index % 4]}" for index in range(count))


def plain_data(texts: tuple[str, ...] = sentences(), **changes: object):
    """Training data of plain texts only."""
    return toy_data(**{"contrastive": None, "dev": (), "texts": texts, **changes})


def split_twelve(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """(training texts, held-out texts) that a corpus objective should make of twelve: every sixth is held out."""
    assert len(texts) == 12
    return [text for index, text in enumerate(texts) if index % 6], list(texts[::6])


def stock_model(family: str, *, causal: bool, model_class=AutoModelForCausalLM):
    """The tiny model of a family as transformers loads it, in float32."""
    with quiet_transformers():
        model = model_class.from_pretrained(tiny_folder(family), dtype=torch.float32).eval()
    model.config.is_causal = causal
    return model


@torch.no_grad()
def merge_into_stock(model, recipe: str, module, family: str):
    """Put what `full` or `lora` has trained into the weights of a stock model; other recipes change no weights."""
    body = model.base_model
    if recipe == "full":
        body.load_state_dict(module.state_dict())
    if recipe == "lora":
        state, scale = module.peft_state_dict(), SETTINGS["lora"]["alpha"] / SETTINGS["lora"]["rank"]
        for key in [key for key in state if "lora_A" in key]:
            layer = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            change = scale * state[key.replace("lora_A", "lora_B")] @ state[key]
            body.get_submodule(layer).weight += change.T if family == "tiny-gpt2" else change
    return model


def stock_prefix(module, n_texts: int, mask: torch.Tensor) -> dict[str, object]:
    """Arguments of a stock model that put the keys and values of a `kv_prefix` before texts with this mask."""
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(module.layers):
        cache.update(keys.expand(n_texts, -1, -1, -1), values.expand(n_texts, -1, -1, -1), layer)
    prefix_mask = torch.ones(n_texts, SETTINGS["kv_prefix"]["tokens"], dtype=torch.long)
    return {
        "past_key_values": cache,
        "position_ids": torch.arange(mask.shape[1])[None],
        "attention_mask": torch.cat([prefix_mask, mask], dim=1),
    }


def built(family: str, folder=None, **settings: object):
    """A random language model of a family with random biases; with a folder, it is also saved there."""
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    token_ids = {"vocab_size": len(tokenizer), "bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 2}
    with quiet_transformers(), torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **{**token_ids, **SIZES, **settings})
        model = AutoModelForCausalLM.from_config(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_()
        if folder is not None:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    return model
