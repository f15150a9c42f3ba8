"""Decoders of four families with about the same number of parameters and random weights.

A Mamba block has no feed-forward part, so two of them stand for one block of a transformer, as in Mamba's paper. Sizes:
`15m` for the study, `tiny` for tests.
"""

from __future__ import annotations

import math
from typing import Any

import torch

FAMILIES = ("llama", "gpt2", "mamba", "mamba2")
VOCABULARY = {"tiny": 1024, "15m": 8192}
CONTEXT = {"tiny": 256, "15m": 1536}
"""Positions of GPT-2, which has a vector for each; they are counted among its parameters."""

_SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "15m": {
        "llama": {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 6, "num_attention_heads": 6},
        "gpt2": {"n_embd": 384, "n_inner": 1536, "n_layer": 6, "n_head": 6},
        "mamba": {"hidden_size": 384, "num_hidden_layers": 12, "state_size": 16},
        "mamba2": {"hidden_size": 384, "num_hidden_layers": 12, "state_size": 64, "num_heads": 12, "head_dim": 64},
    },
    "tiny": {
        "llama": {"hidden_size": 32, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 2},
        "gpt2": {"n_embd": 32, "n_inner": 64, "n_layer": 2, "n_head": 2},
        "mamba": {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 8},
        "mamba2": {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 16, "num_heads": 4, "head_dim": 16},
    },
}


def make_model(family: str, size: str, vocabulary: int, end: int) -> Any:
    """A decoder with random weights; output embeddings are the input embeddings, and nothing is dropped out.

    Args:
        family: One of `FAMILIES`.
        size: `15m` or `tiny`.
        vocabulary: Number of tokens.
        end: The end token.
    """
    import transformers

    common = {
        "vocab_size": vocabulary,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": None,  # with one, GPT-2 searches every batch for it
        "tie_word_embeddings": True,
        **_SHAPES[size][family],
    }
    if family == "llama":
        config: Any = transformers.LlamaConfig(max_position_embeddings=CONTEXT[size], **common)
        return transformers.LlamaForCausalLM(config)
    if family == "gpt2":
        config = transformers.GPT2Config(
            n_positions=CONTEXT[size], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common
        )
        return transformers.GPT2LMHeadModel(config)
    common["initializer_range"] = 0.02
    if family == "mamba":
        model: Any = transformers.MambaForCausalLM(transformers.MambaConfig(**common))
    else:
        model = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(n_groups=1, chunk_size=64, **common))
    _initialise_as_in_the_papers(model)
    return model


@torch.no_grad()
def _initialise_as_in_the_papers(model: Any) -> None:
    """Set what the code of Mamba's papers sets otherwise than transformers does.

    `rescale_prenorm_residual` of the configuration would divide the output weights again whenever a model is loaded.
    """
    for name, module in model.named_modules():
        if name.endswith(("in_proj", "x_proj")):
            module.reset_parameters()
        elif name.endswith("out_proj"):
            module.weight /= math.sqrt(model.config.num_hidden_layers)


def count_parameters(model: Any) -> int:
    """Number of weights; tied ones count once."""
    return sum(weight.numel() for weight in model.parameters())
