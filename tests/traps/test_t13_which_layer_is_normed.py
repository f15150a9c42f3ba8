"""T13: the last of transformers' hidden_states is after the final norm, and the others are not."""

import pytest
import torch
from torch import nn
from transformers import AutoModel

from decoder2vec.backbone.blocks import keep_first_blocks
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.config import Reading

NORMS = {
    **dict.fromkeys(["gpt2", "gpt_neo", "gptj", "falcon", "bloom"], "ln_f"),
    **dict.fromkeys(["mamba", "mamba2"], "norm_f"),
    "opt": "decoder.final_layer_norm",
    "gpt_neox": "final_layer_norm",
    "phi": "final_layernorm",
}


@torch.inference_mode()
def last_raw(name, ids):
    """Output of the last block: the output of the model with its final norm removed."""
    model = AutoModel.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()
    *path, leaf = NORMS.get(TINY[name], "norm").split(".")
    parent = model.get_submodule(".".join(path))
    assert isinstance(getattr(parent, leaf), nn.Module)
    setattr(parent, leaf, nn.Identity())
    return model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0].numpy()


@pytest.mark.parametrize("name", sorted(TINY))
def test_raw_and_normed_readings_are_distinct(
    name, backbone, texts, tokenise, encode_batch, single_states, pool_by_loop, gap
):
    """hidden_states[-1] taken for the raw last layer, the faulty variant, is far off in every family."""
    model = backbone(name)
    (prompt,) = tokenise(model, texts[:1])
    states = single_states(model, prompt.ids)
    raw = [pool_by_loop("mean", states[layer]) for layer in range(4)] + [
        pool_by_loop("mean", last_raw(name, prompt.ids))
    ]
    vectors = encode_batch(model, [prompt], [Reading(layer, "mean") for layer in range(5)])[0]
    for layer in range(5):
        assert gap(vectors[layer], raw[layer]) < 1e-5

    from_transformers = pool_by_loop("mean", states[-1])
    assert gap(encode_batch(model, [prompt], [Reading(4, "mean", True)])[0, 0], from_transformers) < 1e-5
    assert gap(vectors[4], from_transformers) > 0.05


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama", "tiny-opt", "tiny-gemma3_text", "tiny-mamba"])
def test_cut_model_gives_the_normed_reading(name, backbone, texts, tokenise, encode_batch, pool_by_loop, gap):
    """A cut model returns norm(layer k), not the raw layer k."""
    model = backbone(name)
    (prompt,) = tokenise(model, texts[:1])
    cut = AutoModel.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()
    keep_first_blocks(cut, 2)
    with torch.inference_mode():
        output = cut(input_ids=torch.tensor([prompt.ids]), use_cache=False).last_hidden_state[0]
    raw, normed = encode_batch(model, [prompt], [Reading(2, "mean"), Reading(2, "mean", True)])[0]
    assert gap(normed, pool_by_loop("mean", output)) < 1e-5
    assert gap(raw, pool_by_loop("mean", output)) > 0.05


@pytest.mark.parametrize("name", ["tiny-mamba", "tiny-mamba2"])
def test_hidden_states_of_state_space_models_are_shifted(name, backbone, texts, tokenise, encode_batch, gap):
    """Their hidden_states lack the embeddings, so index i is our layer i + 1; using i, the faulty variant, is wrong."""
    model = backbone(name)
    (prompt,) = tokenise(model, texts[:1])
    with torch.inference_mode():
        hidden_states = model.model(input_ids=torch.tensor([prompt.ids]), output_hidden_states=True).hidden_states
        embedded = model.model.get_input_embeddings()(torch.tensor([prompt.ids]))
    ours = encode_batch(model, [prompt], [Reading(layer, "lasttoken") for layer in range(5)])[0]
    assert gap(ours[0], embedded[0, -1]) < 1e-6
    for layer in range(1, 5):
        assert gap(ours[layer], hidden_states[layer - 1][0, -1]) < 1e-5
        assert gap(ours[layer], hidden_states[layer][0, -1]) > 1e-2
