"""Exported sentence-transformers folders: loaded in a new process they give the encoder's vectors."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import AutoModel, AutoTokenizer

from decoder2vec.encoder import Encoder
from decoder2vec.errors import BackboneError, UnsupportedError
from decoder2vec.export import reload_check, sentence_transformers
from decoder2vec.export.formats import export
from decoder2vec.export.reload_check import TOLERANCE
from decoder2vec.export.sentence_transformers import write_sentence_transformers
from decoder2vec.export.tokenizer import joins_punctuation


def content(folder, file):
    return json.loads((folder / file).read_text(encoding="utf-8"))


def test_every_folder_gives_the_vectors_of_its_encoder(differences, encoders):
    assert len(encoders) > 20
    assert {name: diff for name, diff in differences.items() if name in encoders and not diff < 1e-5} == {}


def test_every_broken_folder_is_detected(differences, encoders):
    bad = {name: diff for name, diff in differences.items() if name not in encoders}
    assert len(bad) == 13
    assert {name: diff for name, diff in bad.items() if diff <= TOLERANCE} == {}


def test_folder_has_the_format_of_older_versions(folders):
    """Other servers and older versions need class paths and a flag for each pooling besides its name."""
    modules = content(folders["whiten"], "modules.json")
    names = ("Transformer", "Pooling", "Dense", "Normalize")
    assert [module["type"] for module in modules] == [f"sentence_transformers.models.{name}" for name in names]
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Dense", "3_Normalize"]
    pooling = content(folders["weightedmean"], "1_Pooling/config.json")
    flags = {key: value for key, value in pooling.items() if key.startswith("pooling_mode_")}
    assert len(flags) == 6 and [key for key, value in flags.items() if value] == ["pooling_mode_weightedmean_tokens"]
    assert pooling["pooling_mode"] == "weightedmean" and pooling["word_embedding_dimension"] == 32
    assert content(folders["short"], "sentence_bert_config.json")["max_seq_length"] == 7
    assert content(folders["lasttoken"], "config_sentence_transformers.json")["similarity_fn_name"] == "dot"


def test_blocks_above_the_pooled_layer_are_removed(folders):
    assert content(folders["cut"], "config.json")["num_hidden_layers"] == 2
    assert not [name for name in load_file(folders["cut"] / "model.safetensors") if "layers.2." in name]


def test_bidirectional_config_requires_new_transformers(folders):
    assert content(folders["bidirectional"], "config.json")["is_causal"] is False
    needs = content(folders["bidirectional"], "config_sentence_transformers.json")["requirements"]
    assert needs["transformers"]["specifier"] == ">=5.21" and "direction" in needs["transformers"]["reason"]
    assert "requirements" not in content(folders["mean"], "config_sentence_transformers.json")


def test_lora_is_merged_on_a_copy(with_lora, tmp_path):
    encoder = with_lora("tiny-llama", pooling="lasttoken")
    before, fingerprint = encoder.encode(["A dog runs."]), encoder.fingerprint
    write_sentence_transformers(encoder, tmp_path)
    assert not [name for name in load_file(tmp_path / "model.safetensors") if "lora" in name or "base_layer" in name]
    assert (encoder.encode(["A dog runs."]) == before).all() and encoder.fingerprint == fingerprint
    bare = Encoder(encoder.backbone.with_adapter(None), encoder.spec).encode(["A dog runs."])
    assert abs(bare - before).max() > 0.1


def test_tokenizer_pads_right_without_the_chat_template(folders):
    for name in ("max", "chat model", "missing bos"):
        tokenizer = AutoTokenizer.from_pretrained(folders[name])
        batch = tokenizer(["A dog runs.", "no"], padding=True)
        assert set(batch) == {"input_ids", "attention_mask"}
        assert [row[0] for row in batch["attention_mask"]] == [1, 1] and batch["attention_mask"][1][-1] == 0
        assert "user: " not in (tokenizer.chat_template or "")
    assert AutoTokenizer.from_pretrained(folders["missing bos"])("no")["input_ids"][0] == 1


def test_queries_and_documents_get_the_template_as_prompt(folders):
    """Otherwise encode_query and encode_document of sentence-transformers would use no prompt."""
    settings = content(folders["prompts"], "config_sentence_transformers.json")
    assert settings["default_prompt_name"] == "default_"
    assert settings["prompts"] == {
        "query": "Find. About: ",
        "passage": "Read. About: ",
        "other": "Else: ",
        "default": "D About: ",
        "document": "Read. About: ",
        "default_": "About: ",
    }
    assert content(folders["mean"], "config_sentence_transformers.json")["default_prompt_name"] is None
    assert content(folders["template, mean"], "1_Pooling/config.json")["include_prompt"] is False


def test_files_contain_no_local_path(folders, own_cache):
    for folder in folders.values():
        for file in folder.rglob("*.*"):
            if file.suffix in (".json", ".md"):
                text = file.read_text(encoding="utf-8")
                assert own_cache not in text and str(folder.parent) not in text, file


def test_model_card_names_no_local_base_and_its_example_runs(folders):
    card = (folders["template"] / "README.md").read_text(encoding="utf-8")
    _, front, body = card.split("---\n", 2)
    for line in ("library_name: sentence-transformers", "pipeline_tag: sentence-similarity"):
        assert line in front.splitlines()
    assert "- sentence-transformers" in front and "Retrieve semantically similar text" in body
    assert "base_model" not in front, "no hub has this model"
    (code,) = re.findall(r"```python\n(.*?)```", body, re.S)
    names = {}
    exec(code.replace("this folder", str(folders["template"])), names)
    assert names["vectors"].shape == (2, 32)
    assert names["model"].max_seq_length == 256 and list(names["model"][0].modality_config) == ["text"]


def test_card_says_if_long_texts_can_differ(make_encoder, tmp_path, folders):
    """A tokenizer that joins a full stop and a quotation mark, as GPT-2's does, joins them in decoder2vec only."""
    sentence = "gets another vector than from decoder2vec"
    assert sentence not in (folders["suffix"] / "README.md").read_text(encoding="utf-8"), "this one joins nothing"
    encoder = make_encoder(template="prompteol", pooling="lasttoken")
    assert not joins_punctuation(encoder, '" means')
    merged = Tokenizer(models.BPE({**dict.fromkeys("dog", 0), ".": 1, '"': 2, '."': 3}, [(".", '"')]))
    backend = SimpleNamespace(tokenizer=SimpleNamespace(backend_tokenizer=merged))
    assert joins_punctuation(backend, '"') and not joins_punctuation(backend, "dog")


UNSUPPORTED = {
    "choose 'lasttoken', or nothing before {text}": {"template": "prompteol"},
    "repeats the text 2 times": {"template": "echo"},
    "let all prompts end alike": {"template": "prompteol", "pooling": "lasttoken", "prompts": {"a": "Read: {text}"}},
    "below the top one": {"layer": [2, 3]},
    "a single layer from 1 up": {"layer": 0},
    "Pooling has no 'sum'": {"pooling": "sum"},
    "on_overflow='chunk'": {"on_overflow": "chunk"},
    "on_overflow='error'": {"on_overflow": "error"},
    "weightedmean counts positions": {"template": "Sentence:\n{text}", "pooling": "weightedmean"},
    "not the same before 'dog'": {"template": "Sentence: {text}"},
    "cannot be excluded from 'max'": {"prompts": {"query": "Find: "}, "pooling": "max"},
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_unsupported_encoder_is_refused_with_the_reason(reason, make_encoder, tmp_path):
    with pytest.raises(UnsupportedError, match=re.escape(reason)) as error:
        export(make_encoder(**UNSUPPORTED[reason]), "sentence-transformers", tmp_path / "out")
    assert str(error.value).count(". ") == 0
    assert list(tmp_path.iterdir()) == []


def test_one_pooled_direction_suits_older_versions(folders, make_encoder, tmp_path):
    """A norm that only rescales changes no direction; other states before the norm need a newer setting."""
    assert "modality_config" not in content(folders["before the norm"], "sentence_bert_config.json")
    for number, choices in enumerate(
        [
            {"model": "tiny-gpt2", "pooling": "lasttoken", "normalize": True},  # its norm also centres
            {"pooling": "mean", "normalize": True},  # tokens are rescaled before they are averaged
            {"pooling": "lasttoken"},  # the length is part of the vector
        ]
    ):
        write_sentence_transformers(make_encoder(**choices, layer=2, normed=False), tmp_path / str(number))
        modalities = content(tmp_path / str(number), "sentence_bert_config.json")["modality_config"]
        assert modalities["text"]["method_output_name"] == ["hidden_states", 2]
        assert content(tmp_path / str(number), "config.json").get("num_hidden_layers", 3) == 3


def test_model_without_final_norm_is_exported(make_encoder, modified_model, tmp_path):
    """Old variants of OPT; normed and raw states of the last layer are the same there."""
    folder = modified_model("tiny-opt")
    config = content(folder, "config.json") | {"_remove_final_layer_norm": True}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    encoder = make_encoder(folder, normed=False)
    write_sentence_transformers(encoder, tmp_path)
    ids = encoder.tokenizer("A dog runs.", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        expected = AutoModel.from_pretrained(tmp_path)(input_ids=ids).last_hidden_state[0].mean(dim=0).numpy()
    assert abs(encoder.encode("A dog runs.") - expected).max() < 1e-5


def test_adapters_other_than_lora_are_refused(make_encoder, tmp_path):
    from decoder2vec.adapters.kv_prefix import KeyValuePrefix
    from decoder2vec.adapters.soft_prompt import SoftPrompt

    plain = make_encoder()
    for kind in (SoftPrompt, KeyValuePrefix):
        adapted = plain.backbone.with_adapter(kind.initialise(plain.backbone, 3))
        with pytest.raises(UnsupportedError, match=kind.kind):
            export(Encoder(adapted, plain.spec), "sentence-transformers", tmp_path / "out")


def test_bfloat16_is_refused(tmp_path):
    encoder = Encoder.from_pretrained("tiny-llama", template="plain", normed=True, device="cpu", dtype="bfloat16")
    with pytest.raises(UnsupportedError, match="dtype='float32'"):
        export(encoder, "sentence-transformers", tmp_path / "out")


def test_tokenizer_without_pad_and_eos_is_refused(make_encoder, modified_model, tmp_path):
    with pytest.raises(UnsupportedError, match="neither a pad token nor an EOS token"):
        write_sentence_transformers(make_encoder(modified_model("tiny-gpt2", eos_token=None)), tmp_path)


def test_tokenizer_that_changes_on_reload_is_refused(make_encoder, modified_model, tmp_path, monkeypatch):
    """The faulty variant: the BOS that we put before a text is missing in the written tokenizer."""
    monkeypatch.setattr("decoder2vec.export.tokenizer._add_bos", lambda tokenizer: None)
    with pytest.raises(UnsupportedError, match="tokenises 'no' as"):
        write_sentence_transformers(
            make_encoder(modified_model("tiny-gemma3_text", {"post_processor": None})), tmp_path
        )


def test_folder_with_other_vectors_is_removed(make_encoder, tmp_path, monkeypatch):
    for difference in (0.01, float("inf"), float("nan")):
        monkeypatch.setattr(sentence_transformers, "reload_differences", lambda exports, found=difference: [found])
        with pytest.raises(BackboneError, match="vectors differ by"):
            export(make_encoder(), "sentence-transformers", tmp_path / "out")
        assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_loaded_is_removed(make_encoder, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sentence_transformers.py").write_text("raise ImportError('is_causal needs more')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    with pytest.raises(BackboneError, match=r"cannot load the exported folder.*is_causal needs more"):
        export(make_encoder(), "sentence-transformers", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_folder_is_unchecked_without_sentence_transformers(make_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(reload_check, "find_spec", lambda name: None)
    description = export(make_encoder(), "sentence-transformers", tmp_path / "out")
    assert description == "Transformer + Pooling; not checked, since sentence-transformers is not installed"
    assert (tmp_path / "out" / "modules.json").is_file()
