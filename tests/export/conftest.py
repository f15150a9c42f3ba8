"""Encoders on tiny models, and their exported folders, loaded once by sentence-transformers in a new process."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.tiny import tiny_folder
from decoder2vec.encoder import Encoder, spec_from_kwargs
from decoder2vec.export.reload_check import reload_differences
from decoder2vec.export.sentence_transformers import write_sentence_transformers
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.layerwise import LayerwiseHead
from toys.sentences import NOUNS, VERBS

SENTENCES = [f"The {noun} {verb}." for noun in NOUNS for verb in VERBS]


@pytest.fixture(scope="session", autouse=True)
def one_thread_everywhere():
    """One thread here and in started processes, since the models are tiny."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def make_encoder(backbone):
    """make_encoder(model, **choices) -> an encoder that sentence-transformers can express by default."""

    def make(model="tiny-llama", attention=None, **choices):
        spec = spec_from_kwargs(str(model), {"template": "plain", "pooling": "mean", "normed": True, **choices})
        return Encoder(backbone(str(model), attention), spec)

    return make


@pytest.fixture(scope="session")
def with_lora(own_cache):
    """with_lora(model, **choices) -> an encoder with a strong LoRA whose weights are shared with a second one."""

    def make(model="tiny-llama", **choices):
        bare = Backbone.load(model, device="cpu", dtype="float32")
        adapted = [bare.with_adapter(_random_lora(bare, seed)) for seed in (0, 1)]
        spec = spec_from_kwargs(model, {"template": "plain", "normed": True, **choices})
        return Encoder(adapted[0], spec)

    return make


def _random_lora(backbone, seed):
    lora = Lora.initialise(backbone, rank=4, alpha=8)
    generator = torch.Generator().manual_seed(seed)
    for parameter in lora.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    return lora.requires_grad_(False)


@pytest.fixture(scope="session")
def modified_model(tmp_path_factory):
    """modified_model(model, tokenizer, **config) -> a copy of a tiny model with changed tokenizer files."""

    def make(model, tokenizer=None, **config):
        folder = tmp_path_factory.mktemp("odd") / "model"
        shutil.copytree(tiny_folder(model), folder)
        for name, changes in (("tokenizer.json", tokenizer or {}), ("tokenizer_config.json", config)):
            content = json.loads((folder / name).read_text(encoding="utf-8"))
            (folder / name).write_text(json.dumps({**content, **changes}), encoding="utf-8")
        return folder

    return make


def with_codes(encoder, widths=8, project=None, **architecture):
    """The encoder with a random code network on its readings."""
    torch.manual_seed(0)
    count, dim = len(encoder.spec.readings), encoder.backbone.dim
    net = CodeNet(CodeSpec(dim, (widths,) * count if isinstance(widths, int) else widths, **architecture))
    for tensor in [*net.parameters(), net.shift, net.scale]:
        tensor.data = tensor.data + 0.3 * torch.randn(tensor.shape)
    head = LayerwiseHead(net)
    if project:
        head = head.reduce_dim(Encoder(encoder.backbone, encoder.spec, head).encode(SENTENCES), project)
    return Encoder(encoder.backbone, encoder.spec, head)


@pytest.fixture(scope="session")
def encoders(make_encoder, with_lora, modified_model):
    """Encoders that can be exported, by name."""
    chat_config = {"chat_template": "{% for m in messages %}<bos>user: {{ m['content'] }}{% endfor %}"}
    unusual_config = {"padding_side": "left", "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    return {
        "mean": make_encoder("tiny-llama"),
        "lasttoken": make_encoder("tiny-qwen3", pooling="lasttoken", similarity="dot"),
        "weightedmean": make_encoder("tiny-opt", pooling="weightedmean"),
        "max": make_encoder("tiny-gpt2", pooling="max"),
        "cls": make_encoder("tiny-gemma3_text", pooling="cls"),
        "cut": make_encoder("tiny-qwen3", layer=2),
        "cut to one block": make_encoder("tiny-gemma3_text", layer=1, pooling="lasttoken"),
        "lora": with_lora("tiny-llama", pooling="lasttoken"),
        "lora, cut": with_lora("tiny-gpt2", layer=3, pooling="mean"),
        "bidirectional": make_encoder("tiny-llama", attention="bidirectional"),
        "bidirectional, cut": make_encoder("tiny-qwen3", attention="bidirectional", layer=3, pooling="lasttoken"),
        "standardise": make_encoder("tiny-gpt2").with_head("standardise", SENTENCES),
        "whiten": make_encoder("tiny-opt", normalize=True).with_head("whiten", SENTENCES),
        "remove_top": make_encoder("tiny-llama", layer=2, pooling="lasttoken").with_head("remove_top", SENTENCES),
        "root mean square": make_encoder("tiny-llama", pooling="mean", normed=True, normalize="rms"),
        "before the norm": make_encoder("tiny-llama", layer=3, pooling="lasttoken", normed=False, normalize=True),
        "before the norm, gemma": make_encoder("tiny-gemma3_text", pooling="cls", normed=False, normalize=True),
        "template": make_encoder("tiny-llama", template="instruct", pooling="lasttoken"),
        "template, mean": make_encoder("tiny-llama", template="Sentence:\n{text}", max_length=40),
        "template, cls": make_encoder("tiny-gpt2", template="Sentence:\n{text}", pooling="cls"),
        "prompts": make_encoder(
            "tiny-qwen3",
            template="About: {text}",
            pooling="lasttoken",
            prompts={"query": "Find. ", "passage": "Read. ", "other": "Else: {text}", "default": "D "},
        ),
        "short": make_encoder("tiny-opt", max_length=7),
        "inner layer, mean": make_encoder("tiny-llama", layer=2, normed=False),
        "inner layer of LayerNorms": make_encoder("tiny-gpt2", layer=3, pooling="lasttoken", normed=False),
        "last layer before the norm": make_encoder("tiny-qwen3", pooling="weightedmean", normed=False, normalize=True),
        "last layer, sliding window": make_encoder("tiny-gemma3_text", pooling="max", normed=False),
        "gpt_neo before the norm": make_encoder("tiny-gpt_neo", normed=False),
        "embeddings": make_encoder("tiny-opt", layer=0, normed=False),
        "bidirectional, inner layer": make_encoder("tiny-llama", attention="bidirectional", layer=2, normed=False),
        "suffix": make_encoder("tiny-llama", template="prompteol", pooling="lasttoken"),
        "suffix, no prefix": make_encoder(
            "tiny-gpt2", template='{text}\nIn one word: "', pooling="mean", max_length=30
        ),
        "suffix, missing bos": make_encoder(
            modified_model("tiny-gemma3_text", {"post_processor": None}), template="prompteol", pooling="lasttoken"
        ),
        "suffix, prompts": make_encoder(
            "tiny-opt",
            template="prompteol_tight",
            pooling="lasttoken",
            prompts={"query": "Find. ", "café 😀": "\n\"'Read. "},
        ),
        "sweep winner": make_encoder(
            "tiny-qwen3", layer=3, template="prompteol", pooling="lasttoken", normed=False, normalize=True
        ).with_head("standardise", SENTENCES),
        "lora, suffix": with_lora("tiny-llama", layer=2, template="prompteol", pooling="lasttoken", normed=False),
        "two layers": make_encoder("tiny-llama", layer=[1, 4], normed=False).with_head("whiten", SENTENCES),
        "freeze": with_codes(make_encoder("tiny-llama", layer=[1, 2, 3, 4], pooling="lasttoken", normed=False)),
        "freeze, one layer": with_codes(make_encoder("tiny-gpt2", layer=[2], pooling="mean", normed=False)),
        "freeze, suffix": with_codes(
            make_encoder("tiny-qwen3", layer=[2, 3], template="prompteol", pooling="lasttoken", normed=False),
            widths=(8, 12),
            hidden=16,
            depth=2,
            shortcut=True,
            unit=True,
        ),
        "freeze, attention": with_codes(
            make_encoder("tiny-opt", layer=[1, 2, 4], normed=False), mixing="attention_codes", mixed_width=2, hidden=8
        ),
        "freeze, attention over latents": with_codes(
            make_encoder("tiny-opt", layer=[0, 2], pooling="max", normed=False),
            mixing="attention_latents",
            mixed_width=3,
        ),
        "freeze, unified": with_codes(
            make_encoder("tiny-llama", layer=[1, 2, 3], pooling="cls", normed=False),
            widths=(8, 0, 8),
            mixing="unified",
            mixed_width=6,
        ),
        "freeze, projected": with_codes(make_encoder("tiny-llama", layer=[2, 3], normed=False), project=4),
        "freeze, prefix": with_codes(
            make_encoder("tiny-llama", layer=[2, 4], template="Sentence:\n{text}", normed=False)
        ),
        "chat model": make_encoder(modified_model("tiny-gpt2", **chat_config, **unusual_config)),
        "missing bos": make_encoder(modified_model("tiny-gemma3_text", {"post_processor": None}), pooling="lasttoken"),
    }


@pytest.fixture(scope="session")
def folders(encoders, tmp_path_factory):
    """The exported folder of each encoder."""
    home = tmp_path_factory.mktemp("folders")
    for name, encoder in encoders.items():
        (home / name).mkdir()
        write_sentence_transformers(encoder, home / name)
    return {name: home / name for name in encoders}


@pytest.fixture(scope="session")
def broken_copy(folders, tmp_path_factory):
    """broken_copy(name, file, **changes) -> a copy of a folder with one JSON file changed."""

    def make(name, file, **changes):
        folder = tmp_path_factory.mktemp("broken") / "folder"
        shutil.copytree(folders[name], folder)
        content = json.loads((folder / file).read_text(encoding="utf-8"))
        (folder / file).write_text(json.dumps({**content, **changes}), encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="session")
def differences(encoders, folders, broken_copy):
    """differences[name] -> the largest difference, of good and bad folders; one process loads them all."""
    exports = {name: (encoder, folders[name]) for name, encoder in encoders.items()}
    for title, (name, file, changes) in BROKEN.items():
        exports[title] = (encoders[name], broken_copy(name, file, **changes))
    return dict(zip(exports, reload_differences(list(exports.values())), strict=True))


LAST_STATE = {"method": "forward", "method_output_name": "last_hidden_state"}
BROKEN = {
    "bad: other pooling": ("mean", "1_Pooling/config.json", {"pooling_mode": "lasttoken"}),
    "bad: prompt pooled": ("template, mean", "1_Pooling/config.json", {"include_prompt": True}),
    "bad: causal attention": ("bidirectional", "config.json", {"is_causal": True}),
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
    "bad: suffix forgotten": ("suffix", "sentence_bert_config.json", {"modality_config": {"text": LAST_STATE}}),
    "bad: suffix lost in long texts": (
        "suffix",
        "sentence_bert_config.json",
        {"processing_kwargs": {"chat_template": {"restore_suffix": False}}},
    ),
    "bad: final norm": ("inner layer, mean", "sentence_bert_config.json", {"modality_config": {"text": LAST_STATE}}),
    "bad: missing bos": ("missing bos", "tokenizer.json", {"post_processor": None}),
}
"""Changes that must be detected: (a good folder, one of its files, the changed entries)."""
