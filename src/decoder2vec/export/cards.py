"""The cards of exported folders: what they are, and how to use them."""

from __future__ import annotations

from pathlib import Path

from decoder2vec.encoder import Encoder
from decoder2vec.export.plain_form import PlainForm
from decoder2vec.version import __version__


def base_model(encoder: Encoder) -> str | None:
    """The name of the model that the encoder is made of; None if it is known by a place on a disk only."""
    name = encoder.backbone.name
    return None if Path(name).is_absolute() else name


def sentence_transformers_card(encoder: Encoder, form: PlainForm, modules: list[str]) -> str:
    """The card of a sentence-transformers folder."""
    front = {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity"}
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction", "dense", "decoder2vec"]
    prompts = [f"| prompt {name!r} | {text!r} |" for name, text in form.prompts.items() if text]
    lines = [
        *_front_matter(encoder, front, tags, "finetune"),
        *_title(encoder),
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        'model = SentenceTransformer("this folder")',
        'vectors = model.encode(["A dog runs.", "A puppy is running."])',
        "print(model.similarity(vectors, vectors))",
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| modules | {' + '.join(modules)} |",
        f"| dimensions | {encoder.dim} |",
        f"| longest text | {encoder.max_seq_length} tokens |",
        f"| similarity | {encoder.spec.similarity} |",
        *_how_it_reads(encoder),
        *prompts,
    ]
    if not form.include_prompt:
        lines += ["", "Prompts are not pooled, so an empty text behind one has no vector."]
    return "\n".join(lines) + "\n"


def peft_card(encoder: Encoder) -> str:
    """The card of a peft folder."""
    base = base_model(encoder) or "the folder of the base model"
    lines = [
        *_front_matter(encoder, {"library_name": "peft"}, ["lora", "feature-extraction", "decoder2vec"], "adapter"),
        *_title(encoder),
        f"These are the LoRA matrices alone; they belong to {base}.",
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
        *_how_it_reads(encoder),
        f"| template | {encoder.spec.template!r} |",
    ]
    return "\n".join(lines) + "\n"


def _front_matter(encoder: Encoder, front: dict[str, str], tags: list[str], relation: str) -> list[str]:
    if base := base_model(encoder):
        front = {**front, "base_model": base, "base_model_relation": relation}
    return ["---", *(f"{key}: {value}" for key, value in front.items()), "tags:", *(f"- {tag}" for tag in tags), "---"]


def _title(encoder: Encoder) -> list[str]:
    name = base_model(encoder) or Path(encoder.backbone.name).name
    return ["", f"# A text encoder made of {name}", "", f"Exported by decoder2vec {__version__}.", ""]


def _how_it_reads(encoder: Encoder) -> list[str]:
    return [
        *(f"| reads | {reading} |" for reading in encoder.spec.readings[:3]),
        f"| attention | {encoder.spec.attention} |",
        f"| fingerprint | {encoder.fingerprint} |",
    ]
