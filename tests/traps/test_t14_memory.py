"""T14: every layer's every token kept, caches, an LM head, and blocks that nobody asked for."""

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
EVERYTHING = [Reading(layer, name, normed) for layer in range(5) for name in POOLINGS for normed in (False, True)]


class OnProgress:
    """Counts the blocks that run, and how many of their outputs are alive when the last one is done."""

    def __init__(self, blocks):
        self.calls, self.kwargs, self.outputs, self.alive = [], [], [], 0
        for number, block in enumerate(blocks):
            block.register_forward_pre_hook(self.before(number), with_kwargs=True)
            block.register_forward_hook(self.after)

    def before(self, number):
        def hook(_, args, kwargs):
            self.calls.append(number)
            self.kwargs.append(kwargs)

        return hook

    def after(self, _, args, output):
        self.outputs.append(weakref.ref(output[0] if isinstance(output, tuple) else output))
        self.alive = max(self.alive, sum(each() is not None for each in self.outputs))


@pytest.fixture
def watched(prompts_of):
    """watched(family) -> a backbone of one's own, a padded batch, and a watch over its blocks."""

    def make(family):
        model = Backbone.load(family, device="cpu", dtype="float32")
        return (
            model,
            collate(prompts_of(model, ["A long one", "Short", ""]), model.pad_token_id),
            OnProgress(model.blocks),
        )

    return make


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_states_of_a_layer_are_gone_when_the_next_but_one_is_computed(family, watched):
    """All 60 readings leave [batch, reading, dim]; output_hidden_states, the faulty way, keeps every block's output."""
    model, batch, on_progress = watched(family)
    found = Capture(model, EVERYTHING)(batch)
    assert found.shape == (3, len(EVERYTHING), model.dim)
    assert found.untyped_storage().nbytes() == found.numel() * 4
    assert on_progress.alive <= 2
    assert all(each() is None for each in on_progress.outputs)

    model, batch, on_progress = watched(family)
    kept = model.model(input_ids=batch.ids, use_cache=False, output_hidden_states=True).hidden_states
    assert len(kept) == 5
    assert on_progress.alive >= 4


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama", "tiny-mamba"])
@pytest.mark.parametrize("last", [0, 2, 4])
@torch.inference_mode()
def test_model_stops_after_the_last_layer_wanted(family, last, watched):
    """A forward that is left to run, the faulty way, computes all four blocks."""
    model, batch, on_progress = watched(family)
    Capture(model, [Reading(0), Reading(last)])(batch)
    assert len(on_progress.outputs) == last
    assert on_progress.calls == list(range(max(last, 1)))[: len(on_progress.calls)]

    on_progress.outputs.clear()
    model.model(input_ids=batch.ids, use_cache=False)
    assert len(on_progress.outputs) == 4


def hooks_of(model):
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("broken", [False, True])
@torch.inference_mode()
def test_no_hook_stays_behind_even_after_an_error(broken, texts, prompts_of):
    """Hooks that outlive a call, the faulty way, read the next batch with this batch's spans."""
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    batch = collate(prompts_of(model, texts), model.pad_token_id)
    capture = Capture(model, EVERYTHING)
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

    capture._register_hooks(lambda layer, states: None)  # the faulty variant: hooked, and never removed
    assert hooks_of(model.model) > before


@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama", "tiny-qwen3", "tiny-gpt_neox"])
@torch.inference_mode()
def test_no_key_value_cache_is_built(family, watched):
    """Left to its default, the faulty way, the model hands every block a cache to fill."""
    model, batch, on_progress = watched(family)
    Capture(model, [Reading(4)])(batch)
    assert len(on_progress.kwargs) == 4
    assert not any(kwargs.get("past_key_values") is not None for kwargs in on_progress.kwargs)

    output = model.model(input_ids=batch.ids)
    assert output.past_key_values is not None and len(output.past_key_values) == 4


@pytest.mark.parametrize("name", sorted(TINY))
def test_no_language_model_head_is_loaded(name, backbone):
    """No weight has the vocabulary's width but the embeddings; the causal LM class, the faulty way, has a head."""
    model = backbone(name).model
    size = model.config.vocab_size

    def heads(of):
        return [key for key, each in of.named_modules() if getattr(each, "out_features", None) == size]

    assert heads(model) == []
    assert model.get_output_embeddings() is None
    assert heads(AutoModelForCausalLM.from_pretrained(tiny_folder(name))) != []


def test_nothing_is_trainable_and_no_graph_is_kept(texts):
    """Vectors come without a graph behind them."""
    from decoder2vec.encoder import Encoder

    encoder = Encoder.from_pretrained("tiny-gpt2", template="plain", pooling="mean", device="cpu")
    assert not any(weight.requires_grad for weight in encoder.backbone.model.parameters())
    assert not encoder.encode(texts, convert_to_tensor=True).requires_grad
