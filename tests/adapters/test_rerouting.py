"""Token prepending and key-value re-routing against plain loops over the blocks, one text at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers import AutoModel

from decoder2vec.activations.rerouting import reroute
from decoder2vec.adapters.rerouting import TokenPrepending, create_rerouting
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import TINY, tiny_folder
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnknownNameError, UnsupportedError
from decoder2vec.export.formats import FORMATS, export
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Tokeniser

TEXTS = ["the dogs run over the long road in the rain", "cats sleep", "a", "", "boats sail at night"]
TEMPLATE = 'This sentence: "{text}" means: "'
FIRST, LAST = 2, 3
ROTARY = ("tiny-llama", "tiny-qwen2", "tiny-mistral")
STATE_SPACE = ("tiny-mamba", "tiny-mamba2")


def encoder_of(model, template=TEMPLATE, pooling="mean"):
    readings = tuple(Reading(layer, pooling) for layer in range(model.n_layers + 1))
    return Encoder(model, EncoderSpec(model.name, readings, template))


def prompts_of(model, template=TEMPLATE):
    return Tokeniser(model, Template(template), 128)(TEXTS).prompts


def window_of(model):
    """Number of tokens that a token attends to, itself included."""
    return getattr(model.config, "sliding_window", None) or math.inf


@torch.no_grad()
def loop_over_blocks(family, ids, change_states):
    """[layer, token, width] states; `change_states(layer, states)` changes the input of the block of a layer."""
    model = AutoModel.from_pretrained(tiny_folder(family), dtype=torch.float32, attn_implementation="eager").eval()
    positions = torch.arange(len(ids))[None]
    distances = positions[0, :, None] - positions
    hidden = (distances < 0) | (distances >= window_of(model))
    mask = torch.zeros(1, 1, len(ids), len(ids)).masked_fill(hidden, -1e30)
    if family == "tiny-gpt2":
        blocks, inputs = model.h, {"attention_mask": mask}
        states = model.wte(torch.tensor([ids])) + model.wpe(positions)
    elif family == "tiny-mamba":
        blocks, inputs = model.layers, {}
        states = model.embeddings(torch.tensor([ids]))
    else:
        blocks, states = model.layers, model.embed_tokens(torch.tensor([ids]))
        inputs = {"attention_mask": mask, "position_embeddings": model.rotary_emb(states, positions)}
    layers = [states[0].clone()]
    for layer, block in enumerate(blocks, start=1):
        output = block(change_states(layer, states.clone()), **inputs)
        states = output[0] if isinstance(output, tuple) else output
        layers.append(states[0].clone())
    return torch.stack(layers)


@pytest.mark.parametrize("template", ["{text}", TEMPLATE, "First: {text} Again: {text}"])
@pytest.mark.parametrize("family", [*ROTARY, "tiny-gpt2", "tiny-mamba"])
def test_prepending_equals_a_loop_over_blocks(family, template, backbone, gap):
    model = backbone(family)
    vectors = encoder_of(reroute(model, f"prepend:{FIRST}-{LAST}"), template).encode(TEXTS)
    for row, prompt in zip(vectors, prompts_of(model, template), strict=True):
        at = prompt.start
        ids = [*prompt.ids[:at], model.tokenizer.bos_token_id, *prompt.ids[at:]]

        def copy_last_token(layer, states, at=at):
            if FIRST <= layer <= LAST:
                states[0, at] = states[0, -1]
            return states

        expected = loop_over_blocks(family, ids, copy_last_token)[:, at + 1 :].mean(dim=1)
        assert gap(row, expected.flatten()) < 1e-5


def rotate(states, cosine, sine):
    half = states.shape[-1] // 2
    return states * cosine + torch.cat([-states[..., half:], states[..., :half]], dim=-1) * sine


def attend(queries, keys, values, rerouted, window):
    """[head, token, width] attention of each token to itself, to those before it and, if re-routed, to the last.

    The last counts as the token in front of the first, for the window of the model.
    """
    keys, values = (states.repeat_interleave(len(queries) // len(states), dim=0) for states in (keys, values))
    attended = []
    for token in range(queries.shape[1]):
        seen = [other for other in range(token + 1) if token - other < window]
        seen += [queries.shape[1] - 1] if rerouted and token + 1 < window else []
        scores = (keys[:, seen] * queries[:, token, None]).sum(-1) / math.sqrt(queries.shape[-1])
        attended.append((scores.softmax(dim=1)[:, :, None] * values[:, seen]).sum(dim=1))
    return torch.stack(attended, dim=1)


@torch.no_grad()
def states_with_the_last_key_in_front(family, ids):
    """[layer, token, width] states, with attention computed token by token."""
    model = AutoModel.from_pretrained(tiny_folder(family), dtype=torch.float32).eval()
    width = model.config.hidden_size // model.config.num_attention_heads

    def heads(states):
        return states.unflatten(-1, (-1, width)).transpose(0, 1)

    positions = torch.arange(len(ids))
    if family == "tiny-gpt2":
        states = model.wte(torch.tensor(ids)) + model.wpe(positions)
    else:
        states = model.embed_tokens(torch.tensor(ids))
        cosine, sine = (angles[0] for angles in model.rotary_emb(states[None], positions[None]))
    layers = [states]
    for layer, block in enumerate(model.h if family == "tiny-gpt2" else model.layers, start=1):
        rerouted = FIRST <= layer <= LAST
        if family == "tiny-gpt2":
            parts = block.attn.c_attn(block.ln_1(states)).chunk(3, dim=-1)
            attended = attend(*map(heads, parts), rerouted, math.inf).transpose(0, 1).flatten(1)
            states = states + block.attn.c_proj(attended)
            states = states + block.mlp(block.ln_2(states))
        else:
            normed, attention = block.input_layernorm(states), block.self_attn
            queries, keys = (rotate(heads(part(normed)), cosine, sine) for part in (attention.q_proj, attention.k_proj))
            attended = attend(queries, keys, heads(attention.v_proj(normed)), rerouted, window_of(model))
            states = states + attention.o_proj(attended.transpose(0, 1).flatten(1))
            states = states + block.mlp(block.post_attention_layernorm(states))
        layers.append(states)
    return torch.stack(layers)


@pytest.mark.parametrize("template", ["{text}", TEMPLATE])
@pytest.mark.parametrize("family", [*ROTARY, "tiny-gpt2"])
def test_kv_rerouting_equals_attention_by_hand(family, template, backbone, gap):
    model = backbone(family)
    vectors = encoder_of(reroute(model, f"kv:{FIRST}-{LAST}"), template).encode(TEXTS)
    for row, prompt in zip(vectors, prompts_of(model, template), strict=True):
        expected = states_with_the_last_key_in_front(family, prompt.ids)[:, prompt.start :].mean(dim=1)
        assert gap(row, expected.flatten()) < 1e-5


@pytest.mark.parametrize("kind", ["prepend", "kv"])
@pytest.mark.parametrize("family", TINY)
def test_a_text_has_one_vector_on_every_family(family, kind, backbone, gap, tmp_path):
    model = backbone(family)
    if kind == "kv" and family in STATE_SPACE:
        with pytest.raises(UnsupportedError, match="has no keys and values"):
            reroute(model, "kv:2-3")
        return
    encoder = encoder_of(reroute(model, f"{kind}:2-3"))
    together = encoder.encode(TEXTS)
    assert gap(np.concatenate([encoder.encode([text]) for text in TEXTS]), together) < 1e-5
    loaded = Encoder.load(encoder.save(tmp_path / "encoder"), device="cpu", dtype="float32")
    assert loaded.fingerprint == encoder.fingerprint != encoder_of(model).fingerprint
    assert (loaded.encode(TEXTS) == together).all()
    plain = encoder_of(model).encode(TEXTS)
    assert gap(together, plain) > 1e-2, "re-routing changes them"
    assert (encoder_of(model).encode(TEXTS) == plain).all(), "and leaves the model as it was"


def test_ways_and_ranges_have_their_own_fingerprints(backbone):
    names = ("prepend:2-3", "kv:2-3", "kv:2-4", "kv:1-3")
    assert len({reroute(backbone("tiny-llama"), name).effective_fingerprint for name in names}) == len(names)


def test_layers_below_the_range_are_unchanged_by_kv(backbone, gap):
    model = backbone("tiny-llama")
    plain, rerouted = (encoder_of(m).encode(TEXTS) for m in (model, reroute(model, "kv:3-4")))
    below = 3 * model.dim
    assert gap(rerouted[:, :below], plain[:, :below]) < 1e-5
    assert gap(rerouted[:, below:], plain[:, below:]) > 1e-2


@pytest.mark.parametrize("kind", ["prepend", "kv"])
@pytest.mark.parametrize("family", ["tiny-gpt2", "tiny-llama", "tiny-gpt_neo", "tiny-bloom"])
def test_text_as_long_as_the_context_fits(family, kind, backbone):
    assert np.isfinite(encoder_of(reroute(backbone(family), f"{kind}:2-3")).encode(" cat" * 600)).all()


@pytest.mark.parametrize("kind", ["prepend", "kv"])
def test_encoder_is_made_by_the_name_of_its_attention(kind, backbone):
    name = f"causal+{kind}:2-3"
    options = {"template": TEMPLATE, "layer": 4, "pooling": "mean", "device": "cpu", "dtype": "float32"}
    encoder = Encoder.from_pretrained("tiny-llama", attention=name, **options)
    expected = encoder_of(reroute(backbone("tiny-llama"), f"{kind}:2-3")).encode(TEXTS)[:, -encoder.dim :]
    assert np.allclose(encoder.encode(TEXTS), expected, atol=1e-5)


@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"cross-encoder"}))  # which is for rerankers
def test_no_format_exports_an_encoder_with_rerouting(format, backbone, tmp_path):
    encoder = Encoder(reroute(backbone("tiny-llama"), "prepend:2-3"), EncoderSpec("tiny-llama", (Reading(4),)))
    with pytest.raises(UnsupportedError, match=r"token_prepending|has none"):
        export(encoder, format, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("prepend", "Re-routing needs a range of layers, such as prepend:2-8, not 'prepend'"),
        ("kv:3", "Re-routing needs a range of layers"),
        ("kv:0-3", "The model has layers 1 to 4 to re-route in, not 0-3"),
        ("prepend:3-2", "not 3-2"),
        ("kv:2-5", "not 2-5"),
    ],
)
def test_bad_range_of_layers_is_refused(name, message, backbone):
    with pytest.raises(InputError, match=message):
        create_rerouting(backbone("tiny-llama"), name)


def test_unknown_way_is_refused_with_the_nearest_name(backbone):
    with pytest.raises(UnknownNameError, match="prepend"):
        create_rerouting(backbone("tiny-llama"), "prepent:2-3")


def test_bidirectional_model_is_refused(own_cache):
    model = Backbone.load("tiny-llama", attention="bidirectional", device="cpu", dtype="float32")
    with pytest.raises(UnsupportedError, match="Re-routing is for causal attention"):
        reroute(model, "prepend:2-3")


def test_rerouting_without_effect_is_refused(backbone, monkeypatch):
    """The faulty variant: a family whose blocks are not reached by the hooks."""
    monkeypatch.setattr(TokenPrepending, "enabled", lambda self, batch=None: torch.no_grad())
    with pytest.raises(UnsupportedError, match="llama cannot be re-routed by prepend"):
        reroute(backbone("tiny-llama"), "prepend:2-3")
