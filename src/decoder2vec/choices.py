"""What a user hands to an encoder, put into shape: its choices with defaults for the rest, and its texts."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from decoder2vec.errors import InputError, unknown_name
from decoder2vec.spec import EncoderSpec, Reading
from decoder2vec.text.template import Template


def spec_from(name: str, choices: dict[str, Any]) -> EncoderSpec:
    """An `EncoderSpec` from the keyword arguments of `Encoder.from_pretrained`."""
    layer = choices.pop("layer", -1)
    layers: list[Any] = [layer] if np.ndim(layer) == 0 else list(layer)
    reading = (choices.pop("pooling", "lasttoken"), choices.pop("normed", False))
    template = Template.of(choices.pop("template", "prompteol")).string
    prompts = tuple(dict(choices.pop("prompts", {})).items())
    if unknown := choices.keys() - EncoderSpec.__dataclass_fields__:
        raise unknown_name("choice", unknown.pop(), EncoderSpec.__dataclass_fields__)
    readings = tuple(Reading(operator.index(number), *reading) for number in layers)
    return EncoderSpec(name, readings, template, prompts=prompts, **choices)


def as_list(inputs: Any) -> list[str]:
    """Texts as a list; what is no collection of texts is refused."""
    if isinstance(inputs, bytes | bytearray | Mapping) or not hasattr(inputs, "__iter__"):
        raise InputError(f"encode() takes a text or a list of texts, not {type(inputs).__name__}.")
    return list(inputs)


def choose_prompt(prompts: Mapping[str, str], name: str | None, prompt: str | None) -> str:
    """The instruction that is asked for, by name or as it is; nothing if none is."""
    if prompt is None and name is not None:
        if name not in prompts:
            raise unknown_name("prompt", name, prompts or ["(this encoder has no prompts)"])
        prompt = prompts[name]
    return prompt or ""
