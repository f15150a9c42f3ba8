"""`export`: the formats by name, its errors and example, and the peft format."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys

import pytest
import torch
from peft import PeftModel
from transformers import AutoModel

from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnknownNameError, UnsupportedError
from decoder2vec.export import formats
from decoder2vec.export.formats import export


def test_unknown_format_and_used_folders_are_refused(make_encoder, tmp_path):
    with pytest.raises(UnknownNameError, match="sentence-transformers"):
        export(make_encoder(), "sentence_transformer", tmp_path / "out")
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InputError, match="choose another folder"):
        export(make_encoder(), "sentence-transformers", tmp_path)
    with pytest.raises(InputError, match="not the folder of a saved encoder"):
        export(tmp_path, "peft", tmp_path / "out")


def test_example_of_export_runs():
    assert doctest.testmod(formats) == (0, 4)


def test_encoder_and_saved_folder_export_the_same(make_encoder, tmp_path):
    encoder = make_encoder("tiny-llama")
    encoder.save(tmp_path / "saved")
    descriptions = [
        export(source, "transformers", tmp_path / name, device="cpu")
        for name, source in (("one", encoder), ("two", tmp_path / "saved"), ("three", str(tmp_path / "saved")))
    ]
    assert len(set(descriptions)) == 1 and descriptions[0].startswith("llama, causal; loaded again")
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "two", "three")]
    assert files[0] == files[1] == files[2]


def test_package_is_callable_like_the_function(make_encoder, tmp_path):
    import decoder2vec

    assert decoder2vec.export(encoder=make_encoder(), format="transformers", out=tmp_path / "out", device=None)
    assert isinstance(Encoder.from_pretrained(tmp_path / "out", device="cpu"), Encoder)


def test_importing_the_package_is_light():
    code = "import sys, decoder2vec.export as e; print(callable(e), 'torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "False"]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_peft_gives_the_vector_of_the_encoder(name, with_lora, tmp_path):
    encoder = with_lora(name, pooling="lasttoken")
    assert export(encoder, "peft", tmp_path / "out") == f"LoRA of rank 4 for {name}"
    base = AutoModel.from_pretrained(tiny_folder(name))
    ids = encoder.tokenizer("A dog runs.", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        before = base(input_ids=ids).last_hidden_state[0, -1].numpy()
        model = PeftModel.from_pretrained(base, tmp_path / "out")
        state = model(input_ids=ids).last_hidden_state[0, -1].numpy()
    expected = encoder.encode("A dog runs.")
    assert abs(state - expected).max() < 1e-4 < abs(before - expected).max()


def test_peft_card_says_where_the_base_is_and_its_example_runs(with_lora, tmp_path):
    export(with_lora("tiny-llama", attention="causal"), "peft", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] is None, "no hub has this model"
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "tiny_folder('tiny-llama')" in card and "base_model_relation" not in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.S)
    paths = {"the folder of the base model": str(tiny_folder("tiny-llama")), "this folder": str(tmp_path / "out")}
    for name, path in paths.items():
        code = code.replace(f'"{name}"', f'"{path}"')
    names = {}
    exec(code, names)
    assert isinstance(names["model"], PeftModel)


@pytest.mark.parametrize(
    ("name", "base", "said"),
    [
        ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", "`d2v pull smollm2-135m`"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "They belong to Qwen/Qwen3-0.6B."),
        ("/tmp/secret/path/merged-0a1b", None, "the folder or file 'merged-0a1b' with the fingerprint"),
        ("models/mine.gguf", None, "the folder or file 'mine.gguf' with the fingerprint"),
    ],
)
def test_peft_folder_names_a_base_that_anybody_finds(name, base, said, with_lora, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.gguf").touch()
    encoder = with_lora("tiny-llama")
    monkeypatch.setattr(encoder.backbone, "name", name)
    export(encoder, "peft", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == base and said in card and "/tmp/secret" not in card
    assert (f"base_model: {base}\n" in card) == bool(base)
    assert f'AutoModel.from_pretrained("{base or "the folder of the base model"}")' in card


def test_peft_refuses_an_encoder_without_lora(make_encoder, tmp_path):
    with pytest.raises(UnsupportedError, match="this encoder has none"):
        export(make_encoder(), "peft", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
