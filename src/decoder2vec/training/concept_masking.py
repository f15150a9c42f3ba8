"""Whole concepts are hidden, not tokens by chance: a model learns a field from the words that the field is made of.

Kohli, Monis and Mamidi, domain-adaptive masking. At most a share of a batch's tokens is hidden; where more belong to
concepts, chance says which, and a concept is hidden as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.recipes.objective import Masking
from decoder2vec.text.concepts import ConceptSet
from decoder2vec.text.tokens import Prompt, token_positions
from decoder2vec.training.masking import Hidden, RandomMasking

Occurrence = list[int]
"""The places of a concept's tokens."""


class ConceptMasking(RandomMasking):
    """Hides occurrences of concepts in texts that it is shown beforehand."""

    def __init__(
        self,
        settings: Masking,
        backbone: Backbone,
        concepts: ConceptSet,
        texts: Sequence[str],
        prompts: Sequence[Prompt],
    ) -> None:
        super().__init__(settings, backbone)
        found = occurrences(concepts, texts, prompts, backbone)
        self.found = {
            tuple(prompt.ids): self._possible(prompt, own) for prompt, own in zip(prompts, found, strict=True)
        }
        self.spoken_for = {
            tuple(prompt.ids): {place for places in own for place in places}
            for prompt, own in zip(prompts, found, strict=True)
        }

    def _possible(self, prompt: Prompt, found: list[Occurrence]) -> list[Occurrence]:
        """Those of which every token can be hidden: a text's first token has none before it to be told from."""
        free = set(super().can_hide(prompt.ids))
        return [places for places in found if places and free.issuperset(places)]

    def can_hide(self, ids: Sequence[int]) -> list[int]:
        """Places of all tokens of concepts; of the others too, where chance fills up what concepts leave."""
        whole = [place for places in self.found.get(tuple(ids), []) for place in places]
        return sorted([*whole, *self._of_no_concept(ids)]) if self.settings.fill == "random" else whole

    def _of_no_concept(self, ids: Sequence[int]) -> list[int]:
        taken = self.spoken_for.get(tuple(ids), set())
        return [place for place in super().can_hide(ids) if place not in taken]

    def __call__(self, texts: Sequence[Sequence[int]], generator: torch.Generator | None = None) -> list[Hidden]:
        """Choose whole concepts up to the share of the batch; the smallest choice is one concept, or one token."""
        tokens = sum(len(RandomMasking.can_hide(self, ids)) for ids in texts)
        budget = max(1, int(self.settings.rate * tokens))
        listed = [(row, places) for row, ids in enumerate(texts) for places in self.found.get(tuple(ids), [])]
        chosen: list[tuple[int, Occurrence]] = []
        for number in torch.randperm(len(listed), generator=generator).tolist():
            row, places = listed[number]
            if len(places) <= budget or not chosen:
                chosen.append((row, places))
                budget -= len(places)
        if self.settings.fill == "random" and budget > 0:
            chosen += self._filling(texts, budget, generator)
        return self._hidden(texts, chosen, generator)

    def _filling(
        self, texts: Sequence[Sequence[int]], count: int, generator: torch.Generator | None
    ) -> list[tuple[int, Occurrence]]:
        """Single tokens by chance, of no concept: one that does not fit is not hidden in part."""
        free = [(row, place) for row, ids in enumerate(texts) for place in self._of_no_concept(ids)]
        order = torch.randperm(len(free), generator=generator).tolist()[:count]
        return [(free[number][0], [free[number][1]]) for number in order]

    def _hidden(
        self,
        texts: Sequence[Sequence[int]],
        chosen: list[tuple[int, Occurrence]],
        generator: torch.Generator | None,
    ) -> list[Hidden]:
        """The texts without them; how one is hidden is decided for all of its tokens together."""
        changed = [list(ids) for ids in texts]
        told: list[list[int]] = [[] for _ in texts]
        fates = torch.rand(len(chosen), generator=generator).tolist()
        for (row, places), fate in zip(chosen, fates, strict=True):
            others = torch.randint(self.words, (len(places),), generator=generator).tolist()
            for place, other in zip(places, others, strict=True):
                changed[row][place] = self.instead(fate, changed[row][place], other)
            told[row] += places
        return [Hidden(ids, sorted(places)) for ids, places in zip(changed, told, strict=True)]


def occurrences(
    concepts: ConceptSet, texts: Sequence[str], prompts: Sequence[Prompt], backbone: Backbone
) -> list[list[Occurrence]]:
    """The places of every concept's tokens in each text, by the tokenizer's own offsets.

    A text that was cut to fit has those that stand whole in what is left of it. Concepts that share a token are one.
    """
    return [_apart(places) for places in token_positions(texts, prompts, backbone, concepts.find)]


def _apart(found: list[Occurrence]) -> list[Occurrence]:
    own: list[Occurrence] = []
    for places in filter(None, found):
        if own and own[-1][-1] >= places[0]:
            places = sorted({*own.pop(), *places})
        own.append(places)
    return own
