"""Every choice that makes an encoder, as frozen dataclasses that turn into JSON and into a stable fingerprint."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from decoder2vec.errors import InputError

DEFAULT_MAX_LENGTH = 512


@dataclass(frozen=True, order=True)
class Reading:
    """One vector read from the model: which layer, how its tokens are pooled, before or after the final norm."""

    layer: int
    """0 = embeddings, i = after block i; negative numbers count from the top."""
    pooling: str = "mean"
    normed: bool = False
    """True applies the model's final norm first, as Hugging Face does to the last layer only."""
    template: str = ""
    """The prompt this is read under; empty: the encoder's own."""

    def __str__(self) -> str:
        prompt = f" of {self.template!r}" if self.template else ""
        return f"layer {self.layer}{' normed' if self.normed else ''}, {self.pooling}{prompt}"

    def to_json(self) -> dict[str, Any]:
        """A plain dict; what is not said in it is the default."""
        return {key: value for key, value in asdict(self).items() if key != "template" or value}


@dataclass(frozen=True)
class EncoderSpec:
    """All that an encoder is, apart from its weights: saved as `encoder.json`."""

    backbone: str
    readings: tuple[Reading, ...]
    """Several readings are concatenated."""
    template: str = "{text}"
    attention: str = "causal"
    max_length: int = DEFAULT_MAX_LENGTH
    on_overflow: str = "truncate"
    normalize: bool = False
    similarity: str = "cosine"
    prompts: tuple[tuple[str, str], ...] = ()
    """Named instructions, chosen by `prompt_name`; `query` and `document` serve encode_query / encode_document."""

    def to_json(self) -> dict[str, Any]:
        """A plain dict for JSON."""
        readings = [reading.to_json() for reading in self.readings]
        return {**asdict(self), "readings": readings, "prompts": dict(self.prompts)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EncoderSpec:
        """The inverse of `to_json`; an unknown field is an error, since it would change vectors unseen."""
        fields = dict(data)
        try:
            readings = tuple(Reading(**reading) for reading in fields.pop("readings"))
            prompts = tuple(dict(fields.pop("prompts", {})).items())
            return cls(readings=readings, prompts=prompts, **fields)
        except (TypeError, KeyError) as error:
            raise InputError(f"This is not an encoder description of this version: {error}.") from error


def fingerprint(*parts: Any) -> str:
    """A short hash that changes when any part does; parts are anything JSON can say."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
