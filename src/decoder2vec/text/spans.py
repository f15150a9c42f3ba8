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

    A text that was cut to fit has those spans that stand whole in what is left of it.
    """
    backend = backbone.tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    shift = int(backbone.bos_to_add is not None)
    found: list[list[list[int]]] = []
    for text, prompt, encoding in zip(texts, prompts, backend.encode_batch(list(texts)), strict=True):
        count = len(prompt.ids) - shift
        offsets = encoding.offsets[:count]
        same = prompt.ids[shift:] == encoding.ids[:count]  # where a cut changed the last token, nothing is looked for
        reach = max((end for _, end in offsets), default=0)
        wanted = [span for span in spans(text) if span[1] <= reach] if same else []
        found.append([_touching(span, offsets, shift) for span in wanted])
    return found


def _touching(span: Span, offsets: Sequence[Span], shift: int) -> list[int]:
    first, last = span
    return [place + shift for place, (begin, end) in enumerate(offsets) if begin < last and end > first]
