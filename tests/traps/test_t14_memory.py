"""T14: memory and time for states of all layers, caches, an LM head, hooks left behind, and unneeded blocks."""

import weakref

import pytest
import torch
from transformers import AutoModelForCausalLM

from decoder2vec.activations.capture import Capture
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.config import Reading
from decoder2vec.maths.pooling import POOLINGS
from decoder2vec.text.batches import collate

FAMILIES = ["tiny-gpt2", "tiny-llama", "tiny-qwen3", "tiny-gpt_neox", "tiny-mamba"]
ALL_READINGS = [Reading(layer, name, normed) for layer in range(5) for name in POOLINGS for normed in (False, True)]


class BlockMonitor:
    """Records which blocks run, and how many of their outputs are alive at the same time."""

    def __init__(self, blocks):
        self.calls, self.kwargs, self.outputs, self.alive = [], [], [], 0
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(self.before(index), with_kwargs=True)
            block.register_forward_hook(self.after)

    def before(self, index):
        def hook(_, args, kwargs):
            self.calls.append(index)
            self.kwargs.append(kwargs)

        return hook

    def after(self, _, args, output):
        self.outputs.append(weakref.ref(output[0] if isinstance(output, tuple) else output))
        self.alive = max(self.alive, sum(output() is not None for output in self.outputs))


@pytest.fixture
def monitored(tokenise):
    """monitored(family) -> a new backbone, a padded batch, and a monitor of its blocks."""

    def make(family):
        model = Backbone.load(family, device="cpu", dtype="float32")
        return (
            model,
            collate(tokenise(model, ["A long one", "Short", ""]), model.pad_token_id),
            BlockMonitor(model.blocks),
        )

    return make


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_states_of_a_layer_are_released_early(family, monitored):
    """Two outputs are alive at most; with output_hidden_states, the faulty variant, those of every block are."""
    model, batch, monitor = monitored(family)
    vectors = Capture(model, ALL_READINGS)(batch)
    assert vectors.shape == (3, len(ALL_READINGS), model.dim)
    assert vectors.untyped_storage().nbytes() == vectors.numel() * 4
    assert monitor.alive <= 2
    assert all(output() is None for output in monitor.outputs)

    model, batch, monitor = monitored(family)
    hidden_states = model.model(input_ids=batch.ids, use_cache=False, output_hidden_states=True).hidden_states
    assert len(hidden_states) == 5
    assert monitor.alive >= 4


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama", "tiny-mamba"])
@pytest.mark.parametrize("last", [0, 2, 4])
@torch.inference_mode()
def test_model_stops_after_the_last_requested_layer(family, last, monitored):
    """A full forward pass, the faulty variant, computes all four blocks."""
    model, batch, monitor = monitored(family)
    Capture(model, [Reading(0), Reading(last)])(batch)
    assert len(monitor.outputs) == last
    assert monitor.calls == list(range(max(last, 1)))[: len(monitor.calls)]

    monitor.outputs.clear()
    model.model(input_ids=batch.ids, use_cache=False)
    assert len(monitor.outputs) == 4


def hooks_of(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("broken", [False, True])
@torch.inference_mode()
def test_hooks_are_removed_even_after_an_error(broken, texts, tokenise):
    """Hooks that outlive a call would pool the next batch with the spans of this one."""
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    batch = collate(tokenise(model, texts), model.pad_token_id)
    capture = Capture(model, ALL_READINGS)
    before = hooks_of(model.model)

    def fail(*_, **__):
        raise RuntimeError("out of something")

    if broken:
        model.blocks[2].mlp.forward = fail
        with pytest.raises(RuntimeError, match="out of something"):
            capture(batch)
    else:
        capture(batch)
    assert hooks_of(model.model) == before

    capture._register_hooks(lambda layer, states: None)  # the faulty variant: never removed
    assert hooks_of(model.model) > before


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama", "tiny-qwen3", "tiny-gpt_neox"])
@torch.inference_mode()
def test_no_key_value_cache_is_built(family, monitored):
    """By default, the faulty variant, the model fills a cache in every block."""
    model, batch, monitor = monitored(family)
    Capture(model, [Reading(4)])(batch)
    assert len(monitor.kwargs) == 4
    assert not any(kwargs.get("past_key_values") is not None for kwargs in monitor.kwargs)

    output = model.model(input_ids=batch.ids)
    assert output.past_key_values is not None and len(output.past_key_values) == 4


@pytest.mark.parametrize("name", sorted(TINY))
def test_no_language_model_head_is_loaded(name, backbone):
    """Only the embeddings have the size of the vocabulary; the causal LM class, the faulty variant, has a head."""
    model = backbone(name).model
    size = model.config.vocab_size

    def heads(module):
        return [name for name, child in module.named_modules() if getattr(child, "out_features", None) == size]

    assert heads(model) == []
    assert model.get_output_embeddings() is None
    assert heads(AutoModelForCausalLM.from_pretrained(tiny_folder(name))) != []


def test_encoding_keeps_no_autograd_graph(texts):
    """No weight requires a gradient, and no vector does."""
    from decoder2vec.encoder import Encoder

    encoder = Encoder.from_pretrained("tiny-gpt2", template="plain", pooling="mean", device="cpu")
    assert not any(weight.requires_grad for weight in encoder.backbone.model.parameters())
    assert not encoder.encode(texts, convert_to_tensor=True).requires_grad
