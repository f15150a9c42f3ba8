"""Key-value prefixes against peft's prefix tuning and against a cache of transformers."""

from __future__ import annotations

import pytest
import torch
from peft import PrefixTuningConfig, get_peft_model
from transformers import AutoModel, DynamicCache

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.backbone.kv_cache import compute_key_values, read_only_cache
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.config import Reading
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.text.batches import collate

TOKENS = 3


@pytest.fixture
def prefix_on(backbone, randomised):
    def attach(family):
        torch.manual_seed(0)
        return backbone(family), randomised(KeyValuePrefix.initialise(backbone(family), TOKENS))

    return attach


@torch.no_grad()
def last_states(model, prefix, prompts):
    """[text, dim] state of the last token of each text, in one padded batch."""
    capture = Capture(model.with_adapter(prefix), [Reading(-1, "lasttoken", True)])
    return capture(collate(prompts, model.pad_token_id))[:, 0]


def rotate_keys(keys, model, offset):
    """[head, token, width] keys moved by `offset` positions with the model's rotary embedding."""
    positions = torch.full((1, keys.shape[1]), offset)
    cosine, sine = model.model.rotary_emb(keys, positions)
    # some families rotate only the first dimensions
    keys, unrotated = keys.split([cosine.shape[-1], keys.shape[-1] - cosine.shape[-1]], dim=-1)
    half = keys.shape[-1] // 2
    rotated = torch.cat([-keys[..., half:], keys[..., :half]], dim=-1)
    return torch.cat([keys * cosine + rotated * sine, unrotated], dim=-1)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen3", "tiny-gpt_neox"])
def test_prefix_equals_peft(family, prefix_on, prompts_of):
    """With peft the text starts at position k, here at 0. With rotary embeddings only distances count, so moving our
    keys by k positions makes up for it; values have no position."""
    model, prefix = prefix_on(family)
    plain = AutoModel.from_pretrained(tiny_folder(family)).eval()
    settings = PrefixTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=TOKENS)
    peft_model = get_peft_model(plain, settings).eval()
    rows = []
    for layer in prefix.layers:
        keys, values = layer
        rows += [rotate_keys(keys, model, TOKENS), values]
    table = torch.stack(rows).permute(2, 0, 1, 3).flatten(1)  # [token, layer and kind, head, width]
    encoder = peft_model.prompt_encoder["default"]
    assert encoder.embedding.weight.shape == table.shape
    encoder.embedding.weight.data.copy_(table)
    prompts = prompts_of(model)
    vectors = last_states(model, prefix, prompts)
    for row, prompt in zip(vectors, prompts, strict=True):
        ids = torch.tensor([prompt.ids])
        with torch.no_grad():
            expected = peft_model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0, -1]
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "family", ["tiny-gpt2", "tiny-opt", "tiny-bloom", "tiny-mistral", "tiny-gemma2", "tiny-falcon"]
)
def test_prefix_equals_a_transformers_cache(family, prefix_on, prompts_of):
    model, prefix = prefix_on(family)
    prompts = prompts_of(model)
    vectors = last_states(model, prefix, prompts)
    for row, prompt in zip(vectors, prompts, strict=True):
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(prefix.layers):
            cache.update(keys[None], values[None], layer)
        ids = torch.tensor([prompt.ids])
        inputs = {"input_ids": ids, "attention_mask": torch.ones(1, TOKENS + ids.shape[1], dtype=torch.long)}
        if family != "tiny-bloom":  # ALiBi has no position ids
            inputs["position_ids"] = torch.arange(ids.shape[1])[None]
        with torch.no_grad():
            expected = model.model(**inputs, past_key_values=cache, use_cache=True).last_hidden_state[0, -1]
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


def test_prefix_from_a_text_has_its_keys_and_values(backbone):
    """A longer prefix repeats them."""
    model = backbone("tiny-llama")
    ids = model.tokenizer("the cats sleep often", add_special_tokens=False)["input_ids"]
    prefix = KeyValuePrefix.initialise(model, len(ids), "the cats sleep often")
    for layer, pair in zip(prefix.layers, compute_key_values(model, input_ids=torch.tensor([ids])), strict=True):
        assert torch.equal(layer, torch.cat(pair))
    longer = KeyValuePrefix.initialise(model, 2 * len(ids) + 1, "the cats sleep often")
    assert torch.equal(longer.layers[0][:, :, len(ids) : 2 * len(ids)], prefix.layers[0])
    assert torch.equal(longer.layers[3][:, :, -1], prefix.layers[3][:, :, 0])


def test_random_prefix_has_the_spread_of_each_layer(backbone):
    model = backbone("tiny-llama")
    ids = model.tokenizer("A text of some words.", add_special_tokens=False)["input_ids"]
    torch.manual_seed(0)
    prefix = KeyValuePrefix.initialise(model, 200)
    for layer, pair in zip(prefix.layers, compute_key_values(model, input_ids=torch.tensor([ids])), strict=True):
        deviation = torch.cat(pair).std(dim=2)
        torch.testing.assert_close(layer.detach().std(dim=2), deviation, rtol=0.25, atol=0.02)


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-gpt2"])
def test_only_layers_up_to_the_depth_have_a_prefix(family, backbone, batch_of):
    model = backbone(family)
    prefix = KeyValuePrefix.initialise(model, TOKENS, depth=2)
    assert len(prefix.layers) == 2
    vectors = Capture(model.with_adapter(prefix), [Reading(2, "mean")])(batch_of(model))
    vectors.sum().backward()
    assert all(layer.grad.abs().max() > 0 for layer in prefix.layers)
    assert all(parameter.grad is None for parameter in model.model.parameters())


def test_read_only_cache_does_not_grow(backbone):
    model = backbone("tiny-llama")
    pairs = compute_key_values(model, input_ids=torch.tensor([[5, 6]]))
    cache, ids = read_only_cache(pairs), torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        first, second = (model.model(input_ids=ids, past_key_values=cache, use_cache=True)[0] for _ in range(2))
    assert torch.equal(first, second) and cache.get_seq_length() == 2


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-gpt_neo", "tiny-llama", "tiny-mistral", "tiny-bloom"])
def test_text_as_long_as_the_context_fits_after_a_prefix(family, prefix_on):
    model, prefix = prefix_on(family)
    from decoder2vec.config import EncoderSpec
    from decoder2vec.encoder import Encoder

    encoder = Encoder(model.with_adapter(prefix), EncoderSpec(model.name, (Reading(-1, "lasttoken"),), max_length=256))
    assert torch.isfinite(torch.from_numpy(encoder.encode(" cat" * 600))).all()


@pytest.mark.parametrize("tokens", [0, -1, 256, 1000])
def test_prefix_of_invalid_length_is_refused(tokens, backbone):
    with pytest.raises(InputError, match=rf"A prefix has 1 to 255 tokens on this model, not {tokens}\."):
        KeyValuePrefix.initialise(backbone("tiny-llama"), tokens)


@pytest.mark.parametrize("family", ["tiny-mamba", "tiny-mamba2"])
def test_family_without_keys_and_values_is_refused(family, backbone):
    with pytest.raises(UnsupportedError, match="has no keys and values, so none can be put in front of a text"):
        KeyValuePrefix.initialise(backbone(family), TOKENS)
