"""Encoders of all sorts on tiny models, and their folders, read once by sentence-transformers in a fresh process."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.export.fresh_process import differences
from decoder2vec.export.sentence_transformers import write_folder
from toys.sentences import NOUNS, VERBS

SENTENCES = [f"The {noun} {verb}." for noun in NOUNS for verb in VERBS]


@pytest.fixture(scope="session", autouse=True)
def one_thread_everywhere():
    """Also in the processes that are started; the models are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def made_of(backbone):
    """made_of(model, **choices) -> an encoder that a plain folder can hold, unless the choices say otherwise."""

    def make(model="tiny-llama", attention=None, **choices):
        spec = spec_from_kwargs(str(model), {"template": "plain", "pooling": "mean", "normed": True, **choices})
        return Encoder(backbone(str(model), attention), spec)

    return make


@pytest.fixture(scope="session")
def with_lora(own_cache):
    """with_lora(model, **choices) -> an encoder with a LoRA that changes much, on weights that another shares."""

    def make(model="tiny-llama", **choices):
        bare = Backbone.load(model, device="cpu", dtype="float32")
        changed = [bare.with_adapter(_random_lora(bare, seed)) for seed in (0, 1)]
        spec = spec_from_kwargs(model, {"template": "plain", "normed": True, **choices})
        return Encoder(changed[0], spec)

    return make


def _random_lora(backbone, seed):
    lora = Lora.initialise(backbone, rank=4, alpha=8)
    generator = torch.Generator().manual_seed(seed)
    for parameter in lora.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return lora.requires_grad_(False)


@pytest.fixture(scope="session")
def odd_folder(tmp_path_factory):
    """odd_folder(model, tokenizer, **config) -> a copy of a tiny model with changes in its tokenizer's files."""

    def make(model, tokenizer=None, **config):
        folder = tmp_path_factory.mktemp("odd") / "model"
        shutil.copytree(tiny_folder(model), folder)
        for name, changes in (("tokenizer.json", tokenizer or {}), ("tokenizer_config.json", config)):
            content = json.loads((folder / name).read_text(encoding="utf-8"))
            (folder / name).write_text(json.dumps({**content, **changes}), encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def encoders(made_of, with_lora, odd_folder):
    """Everything that can be exported, by name."""
    chatty = {"chat_template": "{% for m in messages %}<bos>user: {{ m['content'] }}{% endfor %}"}
    unhelpful = {"padding_side": "left", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    return {
        "mean": made_of("tiny-llama"),
        "lasttoken": made_of("tiny-qwen3", pooling="lasttoken", similarity="dot"),
        "weightedmean": made_of("tiny-opt", pooling="weightedmean"),
        "max": made_of("tiny-gpt2", pooling="max"),
        "cls": made_of("tiny-gemma3_text", pooling="cls"),
        "cut": made_of("tiny-qwen3", layer=2),
        "cut to one block": made_of("tiny-gemma3_text", layer=1, pooling="lasttoken"),
        "lora": with_lora("tiny-llama", pooling="lasttoken"),
        "lora, cut": with_lora("tiny-gpt2", layer=3, pooling="mean"),
        "bidirectional": made_of("tiny-llama", attention="bidirectional"),
        "bidirectional, cut": made_of("tiny-qwen3", attention="bidirectional", layer=3, pooling="lasttoken"),
        "standardise": made_of("tiny-gpt2").with_head("standardise", SENTENCES),
        "whiten": made_of("tiny-opt", normalize=True).with_head("whiten", SENTENCES),
        "remove_top": made_of("tiny-llama", layer=2, pooling="lasttoken").with_head("remove_top", SENTENCES),
        "before the norm": made_of("tiny-llama", layer=3, pooling="lasttoken", normed=False, normalize=True),
        "before the norm, gemma": made_of("tiny-gemma3_text", pooling="cls", normed=False, normalize=True),
        "template": made_of("tiny-llama", template="instruct", pooling="lasttoken"),
        "template, mean": made_of("tiny-llama", template="Sentence:\n{text}", max_length=40),
        "template, cls": made_of("tiny-gpt2", template="Sentence:\n{text}", pooling="cls"),
        "prompts": made_of(
            "tiny-qwen3",
            template="About: {text}",
            pooling="lasttoken",
            prompts={"query": "Find. ", "passage": "Read. ", "other": "Else: {text}", "default": "D "},
        ),
        "short": made_of("tiny-opt", max_length=7),
        "chat model": made_of(odd_folder("tiny-gpt2", **chatty, **unhelpful)),
        "forgotten bos": made_of(odd_folder("tiny-gemma3_text", {"post_processor": None}), pooling="lasttoken"),
    }


@pytest.fixture(scope="session")
def folders(encoders, tmp_path_factory):
    """The folder of each."""
    home = tmp_path_factory.mktemp("folders")
    for name, encoder in encoders.items():
        (home / name).mkdir()
        write_folder(encoder, home / name)
    return {name: home / name for name in encoders}


@pytest.fixture(scope="session")
def broken(folders, tmp_path_factory):
    """broken(name, file, **changes) -> a copy of a folder with changes in one of its JSON files."""

    def make(name, file, **changes):
        folder = tmp_path_factory.mktemp("broken") / "folder"
        shutil.copytree(folders[name], folder)
        content = json.loads((folder / file).read_text(encoding="utf-8"))
        (folder / file).write_text(json.dumps({**content, **changes}), encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def off_by(encoders, folders, broken):
    """off_by[name] -> the largest difference, of good folders and of bad ones; one process reads them all."""
    pairs = {name: (encoder, folders[name]) for name, encoder in encoders.items()}
    for title, (name, file, changes) in BROKEN.items():
        pairs[title] = (encoders[name], broken(name, file, **changes))
    found = differences(list(pairs.values()))
    return dict(zip(pairs, found, strict=True))


BROKEN = {
    "bad: other pooling": ("mean", "1_Pooling/config.json", {"pooling_mode": "lasttoken"}),
    "bad: prompt pooled": ("template, mean", "1_Pooling/config.json", {"include_prompt": True}),
    "bad: read in one direction": ("bidirectional", "config.json", {"is_causal": True}),
    "bad: padding on the left": ("max", "tokenizer_config.json", {"padding_side": "left"}),
    "bad: token types": (
        "chat model",
        "tokenizer_config.json",
        {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
    ),
    "bad: no prompt": ("template", "config_sentence_transformers.json", {"default_prompt_name": None}),
    "bad: no prompt for queries": (
        "template",
        "config_sentence_transformers.json",
        {"prompts": {"default": "Instruct: Retrieve semantically similar text.\nQuery: "}},
    ),
    "bad: longer texts": ("short", "sentence_bert_config.json", {"max_seq_length": 20}),
    "bad: not linear": ("standardise", "2_Dense/config.json", {"activation_function": "torch.nn.Tanh"}),
    "bad: forgotten bos": ("forgotten bos", "tokenizer.json", {"post_processor": None}),
}
"""What must be noticed: (a good folder, one of its files, what is changed there)."""
