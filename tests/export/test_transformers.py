"""Exported transformers folders: stock classes load them, and states equal those of the adapted model."""

from __future__ import annotations

import json
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
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.errors import BackboneError, InputError, UnsupportedError
from decoder2vec.export import transformers as transformers_format
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
    """[text, token, width], zero at masked positions."""
    states = model(input_ids=IDS, attention_mask=mask, use_cache=False).last_hidden_state
    return states if mask is None else states * mask[..., None]


def adapted_states(encoder, mask=None):
    with encoder.backbone.adapter_enabled():
        return states_of(encoder.backbone.model, mask)


def stock(folder, kind=AutoModel):
    """(model, names of missing weights), loaded with the stock classes of transformers."""
    with quiet_transformers():
        model, report = kind.from_pretrained(folder, output_loading_info=True)
    return model.eval(), report["missing_keys"]


def config_of(folder):
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def with_attention(encoder, attention):
    encoder.backbone.set_attention(attention)
    return Encoder(encoder.backbone, encoder.spec)


@pytest.fixture(scope="session")
def encoder_of(with_lora, make_encoder, tmp_path_factory):
    """encoder_of(kind, family, attention): with a strong LoRA, with all weights trained, or untrained."""

    @cache
    def make(kind, family, attention):
        if kind == "plain":
            return make_encoder(family, attention)
        if kind == "lora":
            return with_attention(with_lora(family), attention)
        backbone = Backbone.load(family, device="cpu", dtype="float32")
        recipe = small_recipe("full", epochs=1, attention=attention, read=ReadSettings(pooling="mean"))
        out = tmp_path_factory.mktemp("full") / "encoder"
        return train(Plan.of(recipe, "toy"), toy_data(), backbone, out).encoder

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
def test_reloaded_states_equal_those_of_the_encoder(kind, family, attention, encoder_of, tmp_path, gap):
    encoder = encoder_of(kind, family, attention)
    description = export(encoder, "transformers", tmp_path / "out")
    assert description.startswith(f"{encoder.backbone.family}, {attention}; loaded again, the largest difference is ")
    model, missing = stock(tmp_path / "out")
    assert not missing
    for mask in (None, SHORTER):
        assert gap(states_of(model, mask), adapted_states(encoder, mask)) < 1e-5
    base, _ = stock(tiny_folder(family))
    base.config.is_causal = attention == "causal"
    assert (gap(states_of(base), states_of(model)) > 0.01) == (kind != "plain"), "the weights are the adapted ones"


@pytest.mark.parametrize("family", ["opt", "gemma2", "falcon", "mamba2"])
def test_lora_is_merged_and_the_encoder_is_not_changed(family, with_lora, tmp_path, gap):
    encoder = with_lora(f"tiny-{family}")
    before = {name: tensor.clone() for name, tensor in encoder.backbone.model.state_dict().items()}
    fingerprint, expected = encoder.fingerprint, adapted_states(encoder)
    export(encoder, "transformers", tmp_path / "out")
    assert gap(states_of(stock(tmp_path / "out")[0]), expected) < 1e-5
    assert encoder.fingerprint == fingerprint
    assert all(torch.equal(before[name], tensor) for name, tensor in encoder.backbone.model.state_dict().items())


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_direction_is_in_the_config_and_has_effect(attention, encoder_of, tmp_path):
    export(encoder_of("lora", "tiny-llama", attention), "transformers", tmp_path / "out")
    assert config_of(tmp_path / "out")["is_causal"] is (attention == "causal")
    model, _ = stock(tmp_path / "out")
    changed = IDS.clone()
    changed[:, -1] = 17
    for mask in (None, torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])):
        with torch.no_grad():
            states, changed_states = (
                model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, 1:-1]
                for ids in (IDS, changed)
            )
        assert bool((states - changed_states).abs().max() > 1e-3) == (attention == "bidirectional")


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


def test_new_process_without_this_package_gives_equal_states(encoder_of, tmp_path, gap, quick_python):
    encoder = encoder_of("lora", "tiny-llama", "bidirectional")
    export(encoder, "transformers", tmp_path / "out")
    quick_python.run(LOADED_ALONE, tmp_path / "out", tmp_path / "states.npy").check_returncode()
    batch = encoder.tokenizer(["The dog runs.", "no"], padding=True, return_tensors="pt")
    mask = batch["attention_mask"]
    with torch.no_grad(), encoder.backbone.adapter_enabled():
        expected = encoder.backbone.model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    assert mask.min() == 0 and gap(np.load(tmp_path / "states.npy"), expected * mask[..., None]) < 1e-5


# --- the language-model head ----------------------------------------------------------------------------------------

AFFINE_HEADS = {
    "untied": ("llama", {"tie_word_embeddings": False}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "tied, transposed layers": ("gpt2", {}),
    "with a bias": ("phi", {}),
    "inner model under another name than declared": (
        "llama4_text",
        {"num_local_experts": 2, "intermediate_size_mlp": 64, "head_dim": 8, "num_key_value_heads": 2},
    ),
}


@pytest.mark.parametrize(("family", "settings"), AFFINE_HEADS.values(), ids=AFFINE_HEADS)
def test_lm_head_is_kept(family, settings, with_lora, tmp_path, gap):
    source = built(family, tmp_path / "source", **settings)
    encoder = with_lora(str(tmp_path / "source"))
    export(encoder, "transformers", tmp_path / "out")
    model, missing = stock(tmp_path / "out", AutoModelForCausalLM)
    assert not missing
    head, source_head = model.get_output_embeddings(), source.get_output_embeddings()
    assert torch.equal(head.weight, source_head.weight)
    tied = [lm.get_output_embeddings().weight is lm.get_input_embeddings().weight for lm in (source, model)]
    assert tied[0] == tied[1]
    with torch.no_grad():
        logits = model(input_ids=IDS, use_cache=False).logits
        assert gap(logits, source_head(adapted_states(encoder))) < 1e-5


def test_model_without_lm_head_gets_none(with_lora, tmp_path, gap):
    source, _ = stock(tiny_folder("tiny-llama"), AutoModelForCausalLM)
    source.base_model.save_pretrained(tmp_path / "source")
    tiny_tokenizer(pad=True, bos=False).save_pretrained(tmp_path / "source")
    encoder = with_lora(str(tmp_path / "source"))
    export(encoder, "transformers", tmp_path / "out")
    assert config_of(tmp_path / "out")["architectures"] == ["LlamaModel"]
    model, missing = stock(tmp_path / "out")
    assert not missing and gap(states_of(model), adapted_states(encoder)) < 1e-5
    assert stock(tmp_path / "out", AutoModelForCausalLM)[1] == {"lm_head.weight"}


def test_trained_embeddings_stay_tied_to_the_lm_head(encoder_of, tmp_path):
    encoder = encoder_of("full", "tiny-gpt2", "causal")
    export(encoder, "transformers", tmp_path / "out")
    model, missing = stock(tmp_path / "out", AutoModelForCausalLM)
    assert not missing and torch.equal(model.lm_head.weight, encoder.backbone.model.wte.weight)
    assert not torch.equal(model.lm_head.weight, stock(tiny_folder("tiny-gpt2"))[0].wte.weight)


def test_model_with_fewer_layers_is_written_unchanged(tmp_path, gap):
    recipe = small_recipe("full", epochs=1, read=ReadSettings(layer=2, pooling="mean"))
    backbone = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    encoder = train(Plan.of(recipe, "toy"), toy_data(), backbone, tmp_path / "encoder").encoder
    export(tmp_path / "encoder", "transformers", tmp_path / "out", device="cpu")
    assert config_of(tmp_path / "out")["num_hidden_layers"] == 2
    assert gap(states_of(stock(tmp_path / "out")[0]), adapted_states(encoder)) < 1e-5


def test_family_without_language_model_is_written_bare(with_lora, tmp_path, gap):
    tokenizer = tiny_tokenizer(pad=True, bos=False)
    config = AutoConfig.for_model("clip_text_model", vocab_size=len(tokenizer), eos_token_id=0, **SIZES)
    AutoModel.from_config(config).save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    encoder = with_lora(str(tmp_path / "source"))
    export(encoder, "transformers", tmp_path / "out")
    assert gap(states_of(stock(tmp_path / "out")[0]), adapted_states(encoder)) < 1e-5


# --- tokenizer and errors -------------------------------------------------------------------------------------------


def test_tokenizer_is_copied(modified_model, tmp_path):
    chat_config = modified_model("tiny-llama", chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}")
    encoder = Encoder(Backbone.load(chat_config, device="cpu"), spec_from_kwargs(str(chat_config), {}))
    export(encoder, "transformers", tmp_path / "out")
    source, copied = (AutoTokenizer.from_pretrained(folder) for folder in (chat_config, tmp_path / "out"))
    for text in ("The dog runs.", "", "naïve 東京 <eos>"):
        assert source(text)["input_ids"] == copied(text)["input_ids"]
    assert copied.chat_template == source.chat_template is not None
    assert copied.pad_token_id == source.pad_token_id


def test_exported_folder_makes_an_encoder_again(encoder_of, tmp_path, gap):
    """Model and attention are in the folder; layer, pooling and template must be given again."""
    encoder = encoder_of("lora", "tiny-llama", "bidirectional")
    export(encoder, "transformers", tmp_path / "out")
    reading = {"template": "plain", "pooling": "mean", "normed": True}
    again = Encoder.from_pretrained(tmp_path / "out", **reading, device="cpu")
    expected = Encoder(encoder.backbone, spec_from_kwargs("tiny-llama", reading))
    texts = ["A dog runs.", "", "The long road goes over the green hills and down to the sea."]
    assert again.spec.attention == "bidirectional" and gap(again.encode(texts), expected.encode(texts)) < 1e-5


def test_soft_prompt_and_kv_prefix_are_refused(make_encoder, tmp_path):
    encoder = make_encoder()
    bare = encoder.backbone
    for adapter in (SoftPrompt.initialise(bare, 2), KeyValuePrefix.initialise(bare, 2)):
        with pytest.raises(UnsupportedError, match=f"A {adapter.kind} cannot be merged into the weights") as error:
            export(Encoder(bare.with_adapter(adapter), encoder.spec), "transformers", tmp_path / "out")
        assert str(error.value).count(". ") == 0
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_is_refused_and_not_touched(make_encoder, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    for target in (tmp_path / "out", tmp_path / "out" / "mine.txt"):
        with pytest.raises(InputError, match=r"(is not empty: it holds mine\.txt|is a file); choose another folder"):
            export(make_encoder(), "transformers", target)
    assert [file.name for file in tmp_path.rglob("*")] == ["out", "mine.txt"]
    (tmp_path / "empty").mkdir()
    export(make_encoder(), "transformers", tmp_path / "empty")


def test_folder_with_other_states_is_removed(make_encoder, tmp_path, monkeypatch):
    correct = transformers_format.write_model

    def wrong_weights(backbone, folder):
        correct(Backbone.load("tiny-llama", device="cpu").with_adapter(None), folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
        model.model.layers[0].mlp.up_proj.weight.data *= 1.1
        model.save_pretrained(folder)

    def wrong_attention(backbone, folder):
        correct(backbone, folder)
        config = config_of(folder)
        (folder / "config.json").write_text(json.dumps({**config, "is_causal": False}))

    for faulty, message in ((wrong_weights, "states of its model differ by"), (wrong_attention, "reads bidirectional")):
        monkeypatch.setattr(transformers_format, "write_model", faulty)
        with pytest.raises(BackboneError, match=f"The folder was removed: .*{message}"):
            export(make_encoder(), "transformers", tmp_path / "out")
        assert list(tmp_path.iterdir()) == []
