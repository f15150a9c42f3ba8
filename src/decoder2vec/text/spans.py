"""From stretches of a text to the tokens they are made of, by the tokenizer's own offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from decoder2vec.backbone.load import Backbone
from decoder2vec.text.tokens import Prompt

Span = tuple[int, int]
"""First character and the one behind the last."""


def token_places(
    texts: Sequence[str], prompts: Sequence[Prompt], backbone: Backbone, spans: Callable[[str], Iterable[Span]]
) -> list[list[list[int]]]:
    """For each plain text the places in its prompt of the tokens that every span touches.

    A text that was cut to fit has those spans that stand whole in what is left of it. A span of which the tokenizer
    keeps nothing has no tokens.
    """
    backend = backbone.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    shift = int(backbone.bos_to_add is not None)
    found: list[list[list[int]]] = []
    for text, prompt, encoding in zip(texts, prompts, backend.encode_batch(list(texts)), strict=True):
        offsets, kept = encoding.offsets, _alike(prompt.ids[shift:], encoding.ids)
        lost = min((begin for begin, end in offsets[kept:] if begin < end), default=len(text))
        holders = _holders(len(text), offsets[:kept], shift)
        found.append([_together(holders[slice(*span)]) for span in spans(text) if span[1] <= lost])
    return found


def _alike(ids: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens are the same up to the first that is not: where a text was cut, or EOS added to what is left."""
    return next((n for n, (one, other) in enumerate(zip(ids, others, strict=False)) if one != other), len(ids))


def _holders(size: int, offsets: Sequence[Span], shift: int) -> list[list[int]]:
    """For each character the places of the tokens that it is a part of."""
    found: list[list[int]] = [[] for _ in range(size)]
    for place, span in enumerate(offsets):
        for character in range(*span):
            found[character].append(place + shift)
    return found


def _together(places: Iterable[list[int]]) -> list[int]:
    return sorted({place for some in places for place in some})
