"""The model cards (README.md) of exported folders: what the model is, and how to use it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from decoder2vec.encoder import Encoder
from decoder2vec.export.sentence_transformers_config import SentenceTransformersConfig
from decoder2vec.package import __version__


def base_model_name(encoder: Encoder) -> str | None:
    """Return the name of the encoder's base model, or None if it is only known by a path on this disk."""
    name = encoder.backbone.name
    return None if Path(name).is_absolute() else name


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
    if config.needs_own_module:
        lines += ["", "The module `layerwise_pooling.py` pools several layers; trust_remote_code=True runs this file."]
    if not config.include_prompt:
        lines += ["", "Prompts are not pooled, so an empty text with a prompt has no vector."]
    return "\n".join(lines) + "\n"


def peft_card(encoder: Encoder) -> str:
    """Return the model card of a peft folder."""
    base = base_model_name(encoder) or "the folder of the base model"
    lines = [
        *_front_matter(encoder, {"library_name": "peft"}, ["lora", "feature-extraction", "decoder2vec"], "adapter"),
        *_title(encoder),
        f"This folder holds only the LoRA matrices; they belong to {base}.",
        "",
        "```python",
        "from peft import PeftModel",
        "from transformers import AutoModel",
        "",
        f'model = PeftModel.from_pretrained(AutoModel.from_pretrained("{base}"), "this folder")',
        "```",
        "",
        "| | |",
        "|---|---|",
        *_reading_rows(encoder),
        f"| template | {encoder.spec.template!r} |",
    ]
    return "\n".join(lines) + "\n"


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
