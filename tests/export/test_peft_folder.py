"""LoRA for peft: loaded by it on the base model, the states are those that the encoder reads."""

import json
import re

import pytest
import torch
from peft import PeftModel
from transformers import AutoModel

from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.errors import UnsupportedError
from decoder2vec.export.formats import export


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2"])
def test_peft_reads_what_the_encoder_reads(name, with_lora, tmp_path):
    encoder = with_lora(name, pooling="lasttoken")
    assert export(encoder, "peft", tmp_path / "out") == f"LoRA of rank 4 for {name}"
    base = AutoModel.from_pretrained(tiny_folder(name))
    ids = encoder.tokenizer("A dog runs.", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        before = base(input_ids=ids).last_hidden_state[0, -1].numpy()
        model = PeftModel.from_pretrained(base, tmp_path / "out")
        found = model(input_ids=ids).last_hidden_state[0, -1].numpy()
    expected = encoder.encode("A dog runs.")
    assert abs(found - expected).max() < 1e-4 < abs(before - expected).max()


def test_the_base_model_is_named_and_the_example_runs(with_lora, tmp_path):
    export(with_lora("tiny-llama", attention="causal"), "peft", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text(encoding="utf-8"))
    assert config["base_model_name_or_path"] == "tiny-llama"
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "they belong to tiny-llama" in card and "base_model_relation: adapter" in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.S)
    places = {"tiny-llama": str(tiny_folder("tiny-llama")), "this folder": str(tmp_path / "out")}
    for name, place in places.items():
        code = code.replace(f'"{name}"', f'"{place}"')
    names = {}
    exec(code, names)
    assert isinstance(names["model"], PeftModel)


def test_an_encoder_without_lora_is_refused(made_of, tmp_path):
    with pytest.raises(UnsupportedError, match="this encoder has none"):
        export(made_of(), "peft", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
