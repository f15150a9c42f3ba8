"""The model cards (README.md) of exported folders: what the model is, and how to use it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from decoder2vec.backbone.sources import BUILTIN_MODELS
from decoder2vec.backbone.tiny import TINY
from decoder2vec.encoder import Encoder
from decoder2vec.export.sentence_transformers_config import SentenceTransformersConfig
from decoder2vec.export.tokenizer import joins_punctuation
from decoder2vec.package import __version__

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_ONNX_TAGS = ["onnx", "sentence-similarity", "feature-extraction", "decoder2vec"]
_UNKNOWN_BASE = "the folder of the base model"


def base_model_name(encoder: Encoder) -> str | None:
    """Return the hub id of the encoder's base model, or None if it is not known: a folder, a file, a tiny model."""
    name = encoder.backbone.name
    if name in BUILTIN_MODELS:
        return BUILTIN_MODELS[name].hub_id or None
    return name if _HUB_ID.fullmatch(name) and not Path(name).exists() else None


def sentence_transformers_card(
    encoder: Encoder,
    config: SentenceTransformersConfig,
    modules: list[str],
    requirements: Mapping[str, Mapping[str, str]],
) -> str:
    """Return the model card of a sentence-transformers folder with these modules."""
    trust = ", trust_remote_code=True" if config.needs_own_module else ""
    metadata = {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction", "dense", "decoder2vec"]
    prompt_rows = [f"| prompt {name!r} | {text!r} |" for name, text in config.prompts.items() if text]
    lines = [
        *_front_matter(encoder, metadata, tags, "finetune"),
        *_title(encoder),
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("this folder"{trust})',
        'vectors = model.encode(["A dog runs.", "A puppy is running."])',
        "print(model.similarity(vectors, vectors))",
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| modules | {' + '.join(modules)} |",
        f"| dimensions | {encoder.dim} |",
        f"| maximum length | {encoder.max_seq_length} tokens |",
        f"| similarity | {encoder.spec.similarity} |",
        *_reading_rows(encoder),
        *prompt_rows,
        *([f"| after the text | {config.suffix!r} |"] if config.suffix else []),
        *(f"| needs | {package} {needed['specifier']} |" for package, needed in requirements.items()),
    ]
    if config.suffix and joins_punctuation(encoder, config.suffix):
        lines += [
            "",
            f"A text over {encoder.max_seq_length} tokens that is cut right after punctuation gets another vector than "
            "from decoder2vec, which joins punctuation and the text after it into one token there, too.",
        ]
    if config.needs_own_module:
        lines += ["", "The module `layerwise_pooling.py` pools several layers; trust_remote_code=True runs this file."]
    if not config.include_prompt:
        lines += ["", "Prompts are not pooled, so an empty text with a prompt has no vector."]
    return "\n".join([*lines, *_whole_texts_only(encoder)]) + "\n"


def onnx_card(encoder: Encoder, config: SentenceTransformersConfig, file: str) -> str:
    """Return the model card of an ONNX folder with the model `onnx/{file}`."""
    texts = '["A dog runs.", "A puppy is running."]'
    if config.uses_chat_template or config.default_prompt:
        around = f"{config.default_prompt!r} before and {config.suffix!r} after it"
        texts = f"[{config.default_prompt!r} + text + {config.suffix!r} for text in {texts}]"
    else:
        around = "nothing around it"
    lines = [
        *_front_matter(encoder, {"library_name": "onnx", "pipeline_tag": "feature-extraction"}, _ONNX_TAGS, "finetune"),
        *_title(encoder),
        "```python",
        "import numpy as np",
        "import onnxruntime",
        "from tokenizers import Tokenizer",
        "",
        f'session = onnxruntime.InferenceSession("this folder/onnx/{file}")',
        'tokenizer = Tokenizer.from_file("this folder/tokenizer.json")',
        f"tokenizer.enable_truncation({encoder.max_seq_length})",
        "tokenizer.enable_padding()",
        f"texts = {texts}",
        "tokens = tokenizer.encode_batch(texts)",
        "inputs = {",
        '    "input_ids": np.array([text.ids for text in tokens], np.int64),',
        '    "attention_mask": np.array([text.attention_mask for text in tokens], np.int64),',
        "}",
        'vectors = session.run(["sentence_embedding"], inputs)[0]',
        "```",
        "",
        "Pooling, head and normalisation are inside the graph. Batches may be padded on either side. `gold.json` has "
        "the vectors of some texts, to check a program by.",
        "",
        "| | |",
        "|---|---|",
        f"| dimensions | {encoder.dim} |",
        f"| maximum length | {encoder.max_seq_length} tokens |",
        f"| similarity | {encoder.spec.similarity} |",
        f"| a text is read with | {around} |",
        *_reading_rows(encoder),
        *_whole_texts_only(encoder),
    ]
    return "\n".join(lines) + "\n"


def peft_card(encoder: Encoder) -> str:
    """Return the model card of a peft folder."""
    base = base_model_name(encoder)
    lines = [
        *_front_matter(encoder, {"library_name": "peft"}, ["lora", "feature-extraction", "decoder2vec"], "adapter"),
        *_title(encoder),
        "This folder holds only the LoRA matrices. "
        + (f"They belong to {base}." if base else _how_to_get_base_model(encoder)),
        "",
        "```python",
        "from peft import PeftModel",
        "from transformers import AutoModel",
        "",
        f'model = PeftModel.from_pretrained(AutoModel.from_pretrained("{base or _UNKNOWN_BASE}"), "this folder")',
        "```",
        "",
        *([_how_to_get_base_model(encoder), ""] if base and encoder.backbone.name in BUILTIN_MODELS else []),
        "| | |",
        "|---|---|",
        *_reading_rows(encoder),
        f"| template | {encoder.spec.template!r} |",
        *_whole_texts_only(encoder),
    ]
    return "\n".join(lines) + "\n"


def _whole_texts_only(encoder: Encoder) -> list[str]:
    """A paragraph for encoders with sentence tokens."""
    if not encoder.backbone.sentence_tokens:
        return []
    return ["", "This folder reads whole texts only: the sentence tokens of the encoder stay with decoder2vec."]


def _how_to_get_base_model(encoder: Encoder) -> str:
    name, fingerprint = encoder.backbone.name, encoder.backbone.fingerprint
    if name in BUILTIN_MODELS:
        return (
            f"The LoRA was trained on a 4-bit copy of this model, so vectors differ slightly with the hub's weights. "
            f"For equal vectors, load the folder that `pip install decoder2vec` and `d2v pull {name}` print."
        )
    if name in TINY:
        return (
            f"Their base model {name} is a random test model: `pip install decoder2vec`, then "
            f"`from decoder2vec.backbone.tiny import tiny_folder; tiny_folder({name!r})` returns its folder."
        )
    return (
        f"Their base model is not on a hub: it is the folder or file {Path(name).name!r} with the fingerprint "
        f"{fingerprint} of decoder2vec. The format transformers (`d2v export --format transformers`) writes the whole "
        "model instead."
    )


def _front_matter(encoder: Encoder, metadata: dict[str, str], tags: list[str], relation: str) -> list[str]:
    if base := base_model_name(encoder):
        metadata = {**metadata, "base_model": base, "base_model_relation": relation}
    fields = [f"{key}: {value}" for key, value in metadata.items()]
    return ["---", *fields, "tags:", *(f"- {tag}" for tag in tags), "---"]


def _title(encoder: Encoder) -> list[str]:
    name = base_model_name(encoder) or Path(encoder.backbone.name).name
    return ["", f"# A text encoder made from {name}", "", f"Exported by decoder2vec {__version__}.", ""]


def _reading_rows(encoder: Encoder) -> list[str]:
    return [
        *(f"| reads | {reading} |" for reading in encoder.spec.readings[:3]),
        f"| attention | {encoder.spec.attention} |",
        f"| fingerprint | {encoder.fingerprint} |",
    ]
