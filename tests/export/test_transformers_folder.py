"""Folders of transformers: its own classes load them, and states are those of the adapted model."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from decoder2vec.adapters.kv_prefix import KeyValuePrefix
from decoder2vec.adapters.soft_prompt import SoftPrompt
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.machine import quiet_transformers
from decoder2vec.backbone.tiny import tiny_folder, tiny_tokenizer
from decoder2vec.encoder import Encoder, spec_from
from decoder2vec.errors import BackboneError, InputError, UnsupportedError
from decoder2vec.export import transformers as transformers_folder
from decoder2vec.export.formats import export
from decoder2vec.training.api import train
from decoder2vec.training.plan import Plan
from decoder2vec.training.recipes.adapter import ReadSettings
from toys.texts import SIZES, built
from toys.training import small_recipe, toy_data

ATTENTIONS = ["causal", "bidirectional"]
IDS = torch.tensor([[30, 400, 95, 7, 88, 311], [5, 6, 300, 41, 41, 222]])
SHORTER = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])


@torch.no_grad()
def states_of(model, mask=None):
    """[text, token, width], and zero where a mask says that there is no token."""
    read = model(input_ids=IDS, attention_mask=mask, use_cache=False).last_hidden_state
    return read if mask is None else read * mask[..., None]


def adapted_states(encoder, mask=None):
    with encoder.backbone.adapter_enabled():
        return states_of(encoder.backbone.model, mask)


def stock(folder, kind=AutoModel):
    """(model, names of weights that the folder lacks) as anyone loads them."""
    with quiet_transformers():
        model, report = kind.from_pretrained(folder, output_loading_info=True)
    return model.eval(), report["missing_keys"]


def config_of(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def in_direction(encoder, attention):
    encoder.backbone.set_attention(attention)
    return Encoder(encoder.backbone, encoder.spec)


@pytest.fixture(scope="session")
def encoder_of(with_lora, made_of, tmp_path_factory):
    """encoder_of(kind, family, attention): with a LoRA that changes much, with all weights trained, or as it is."""

    @cache
    def make(kind, family, attention):
        if kind == "plain":
            return made_of(family, attention)
        if kind == "lora":
            return in_direction(with_lora(family), attention)
        backbone = Backbone.load(family, device="cpu", dtype="float32")
        recipe = small_recipe("full", epochs=1, attention=attention, read=ReadSettings(pooling="mean"))
        out = tmp_path_factory.mktemp("full") / "encoder"
        return train(Plan("toy", recipe=recipe), toy_data(), backbone, out).encoder

    return make


@pytest.mark.parametrize(
    ("kind", "family", "attention"),
    [
        ("lora", "tiny-llama", "causal"),
        ("lora", "tiny-llama", "bidirectional"),
        ("lora", "tiny-gpt2", "bidirectional"),
        ("full", "tiny-llama", "bidirectional"),
        ("full", "tiny-gpt2", "causal"),
        ("plain", "tiny-llama", "bidirectional"),
        ("plain", "tiny-gpt2", "causal"),
    ],
)
def test_transformers_reads_what_the_encoder_reads(kind, family, attention, encoder_of, tmp_path, gap):
    encoder = encoder_of(kind, family, attention)
    said = export(encoder, "transformers", tmp_path / "out")
    assert said.startswith(f"{encoder.backbone.family}, {attention}; loaded again, the largest difference is ")
    model, missing = stock(tmp_path / "out")
    assert not missing
    for mask in (None, SHORTER):
        assert gap(states_of(model, mask), adapted_states(encoder, mask)) < 1e-5
    base, _ = stock(tiny_folder(family))
    base.config.is_causal = attention == "causal"
    assert (gap(states_of(base), states_of(model)) > 0.01) == (kind != "plain"), "the weights are the adapted ones"


@pytest.mark.parametrize("family", ["opt", "gemma2", "falcon", "mamba2"])
def test_lora_is_merged_whatever_the_family_and_the_source_is_left_as_it_was(family, with_lora, tmp_path, gap):
    encoder = with_lora(f"tiny-{family}")
    before = {name: tensor.clone() for name, tensor in encoder.backbone.model.state_dict().items()}
    fingerprint, expected = encoder.fingerprint, adapted_states(encoder)
    export(encoder, "transformers", tmp_path / "out")
    assert gap(states_of(stock(tmp_path / "out")[0]), expected) < 1e-5
    assert encoder.fingerprint == fingerprint
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.backbone.model.state_dict().items())


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_direction_is_in_the_config_and_a_later_token_moves_an_earlier_one_or_not(attention, encoder_of, tmp_path):
    export(encoder_of("lora", "tiny-llama", attention), "transformers", tmp_path / "out")
    assert config_of(tmp_path / "out")["is_causal"] is (attention == "causal")
    model, _ = stock(tmp_path / "out")
    changed = IDS.clone()
    changed[:, -1] = 17
    for mask in (None, torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])):
        with torch.no_grad():
            one, other = (
                model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, 1:-1]
                for ids in (IDS, changed)
            )
        assert bool((one - other).abs().max() > 1e-3) == (attention == "bidirectional")


LOADED_ALONE = """
import sys, numpy, torch
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained(sys.argv[1]).eval()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
batch = tokenizer(["The dog runs.", "no"], padding=True, return_tensors="pt")
with torch.no_grad():
    states = model(**batch, use_cache=False).last_hidden_state * batch["attention_mask"][..., None]
numpy.save(sys.argv[2], states.numpy())
assert not [name for name in sys.modules if name.startswith("decoder2vec")]
"""


def test_a_fresh_process_without_this_package_reads_the_same(encoder_of, tmp_path, gap):
    encoder = encoder_of("lora", "tiny-llama", "bidirectional")
    export(encoder, "transformers", tmp_path / "out")
    words = [sys.executable, "-c", LOADED_ALONE, str(tmp_path / "out"), str(tmp_path / "states.npy")]
    subprocess.run(words, check=True, capture_output=True, timeout=120)
    batch = encoder.tokenizer(["The dog runs.", "no"], padding=True, return_tensors="pt")
    mask = batch["attention_mask"]
    with torch.no_grad(), encoder.backbone.adapter_enabled():
        own = encoder.backbone.model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    assert mask.min() == 0 and gap(np.load(tmp_path / "states.npy"), own * mask[..., None]) < 1e-5


# --- the language-model head ----------------------------------------------------------------------------------------

HEADS = {
    "of its own": ("llama", {"tie_word_embeddings": False}),
    "the embeddings": ("llama", {"tie_word_embeddings": True}),
    "the embeddings, transposed layers": ("gpt2", {}),
    "with a bias": ("phi", {}),
    "of a model that is kept under another name than it declares": (
        "llama4_text",
        {"num_local_experts": 2, "intermediate_size_mlp": 64, "head_dim": 8, "num_key_value_heads": 2},
    ),
}


@pytest.mark.parametrize(("family", "settings"), HEADS.values(), ids=HEADS)
def test_the_language_model_head_survives(family, settings, with_lora, tmp_path, gap):
    source = built(family, tmp_path / "source", **settings)
    encoder = with_lora(str(tmp_path / "source"))
    export(encoder, "transformers", tmp_path / "out")
    model, missing = stock(tmp_path / "out", AutoModelForCausalLM)
    assert not missing
    head, own = model.get_output_embeddings(), source.get_output_embeddings()
    assert torch.equal(head.weight, own.weight)
    tied = [one.get_output_embeddings().weight is one.get_input_embeddings().weight for one in (source, model)]
    assert tied[0] == tied[1]
    with torch.no_grad():
        found = model(input_ids=IDS, use_cache=False).logits
        assert gap(found, own(adapted_states(encoder))) < 1e-5


def test_a_folder_without_a_head_stays_without_one(with_lora, tmp_path, gap):
    source, _ = stock(tiny_folder("tiny-llama"), AutoModelForCausalLM)
    source.base_model.save_pretrained(tmp_path / "source")
    tiny_tokenizer(pad=True, bos=False).save_pretrained(tmp_path / "source")
    encoder = with_lora(str(tmp_path / "source"))
    export(encoder, "transformers", tmp_path / "out")
    assert config_of(tmp_path / "out")["architectures"] == ["LlamaModel"]
    model, missing = stock(tmp_path / "out")
    assert not missing and gap(states_of(model), adapted_states(encoder)) < 1e-5
    assert stock(tmp_path / "out", AutoModelForCausalLM)[1] == {"lm_head.weight"}


def test_embeddings_that_were_trained_are_the_head_where_they_were_before(encoder_of, tmp_path):
    encoder = encoder_of("full", "tiny-gpt2", "causal")
    export(encoder, "transformers", tmp_path / "out")
    model, missing = stock(tmp_path / "out", AutoModelForCausalLM)
    assert not missing and torch.equal(model.lm_head.weight, encoder.backbone.model.wte.weight)
    assert not torch.equal(model.lm_head.weight, stock(tiny_folder("tiny-gpt2"))[0].wte.weight)


def test_a_cut_model_is_written_as_it_is(tmp_path, gap):
    recipe = small_recipe("full", epochs=1, read=ReadSettings(layer=2, pooling="mean"))
    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    encoder = train(Plan("toy", recipe=recipe), toy_data(), backbone, tmp_path / "encoder").encoder
    export(tmp_path / "encoder", "transformers", tmp_path / "out", device="cpu")
    assert config_of(tmp_path / "out")["num_hidden_layers"] == 2
    assert gap(states_of(stock(tmp_path / "out")[0]), adapted_states(encoder)) < 1e-5


def test_a_family_that_has_no_language_model_is_written_alone(with_lora, tmp_path, gap):
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    config = AutoConfig.for_model("clip_text_model", vocab_size=len(tokenizer), eos_token_id=0, **SIZES)
    AutoModel.from_config(config).save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    encoder = with_lora(str(tmp_path / "source"))
    export(encoder, "transformers", tmp_path / "out")
    assert gap(states_of(stock(tmp_path / "out")[0]), adapted_states(encoder)) < 1e-5


# --- what comes along, and what is refused --------------------------------------------------------------------------


def test_the_tokenizer_comes_along(odd_folder, tmp_path):
    chatty = odd_folder("tiny-llama", chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}")
    encoder = Encoder(Backbone.load(chatty, device="cpu"), spec_from(str(chatty), {}))
    export(encoder, "transformers", tmp_path / "out")
    own, other = (AutoTokenizer.from_pretrained(folder) for folder in (chatty, tmp_path / "out"))
    for text in ("The dog runs.", "", "naïve 東京 <eos>"):
        assert own(text)["input_ids"] == other(text)["input_ids"]
    assert other.chat_template == own.chat_template is not None
    assert other.pad_token_id == own.pad_token_id


def test_what_is_exported_is_an_encoder_again(encoder_of, tmp_path, gap):
    """Of the model and its direction, that is: how texts are pooled has to be said anew."""
    encoder = encoder_of("lora", "tiny-llama", "bidirectional")
    export(encoder, "transformers", tmp_path / "out")
    choices = {"template": "plain", "pooling": "mean", "normed": True, "device": "cpu"}
    again = Encoder.from_pretrained(tmp_path / "out", **choices)
    own = Encoder(encoder.backbone, spec_from("tiny-llama", {key: choices[key] for key in list(choices)[:3]}))
    texts = ["A dog runs.", "", "The long road goes over the green hills and down to the sea."]
    assert again.spec.attention == "bidirectional" and gap(again.encode(texts), own.encode(texts)) < 1e-5


def test_a_prompt_or_a_prefix_is_refused_in_words(made_of, tmp_path):
    encoder = made_of()
    bare = encoder.backbone
    for adapter in (SoftPrompt.start(bare, 2), KeyValuePrefix.start(bare, 2)):
        with pytest.raises(UnsupportedError, match=f"A {adapter.kind} stands beside the weights") as error:
            export(Encoder(bare.with_adapter(adapter), encoder.spec), "transformers", tmp_path / "out")
        assert str(error.value).count(". ") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_already_is_refused_and_left_alone(made_of, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    for target in (tmp_path / "out", tmp_path / "out" / "mine.txt"):
        with pytest.raises(InputError, match="is there already; choose another folder"):
            export(made_of(), "transformers", target)
    assert [file.name for file in tmp_path.rglob("*")] == ["out", "mine.txt"]
    (tmp_path / "empty").mkdir()
    export(made_of(), "transformers", tmp_path / "empty")


def test_a_folder_that_reads_otherwise_is_noticed_and_removed(made_of, tmp_path, monkeypatch):
    plain = transformers_folder.write_model

    def wrong_numbers(backbone, folder):
        plain(Backbone.load("tiny-llama", device="cpu").with_adapter(None), folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
        model.model.layers[0].mlp.up_proj.weight.data *= 1.1
        model.save_pretrained(folder)

    def wrong_direction(backbone, folder):
        plain(backbone, folder)
        config = config_of(folder)
        (folder / "config.json").write_text(json.dumps({**config, "is_causal": False}))

    for wrong, said in ((wrong_numbers, "states of its model are off by"), (wrong_direction, "reads bidirectional")):
        monkeypatch.setattr(transformers_folder, "write_model", wrong)
        with pytest.raises(BackboneError, match=f"The folder was removed: .*{said}"):
            export(made_of(), "transformers", tmp_path / "out")
        assert list(tmp_path.iterdir()) == []
