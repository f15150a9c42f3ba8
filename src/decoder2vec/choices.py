"""The description of an encoder from what a user chose, with defaults for the rest."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from decoder2vec.errors import unknown_name
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
