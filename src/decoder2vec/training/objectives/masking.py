"""Which tokens of a text are masked, and what replaces them: random tokens, or whole concepts of a field.

Concept masking follows Kohli, Monis and Mamidi (domain-adaptive masking): at most a share of a batch's tokens is
masked; where more tokens belong to concepts, a random choice decides, and a concept is masked as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.errors import InputError, unknown_name
from decoder2vec.text.concepts import ConceptSet
from decoder2vec.text.tokens import Prompt, token_positions

STYLES = ("mask", "bert")
FILLS = ("none", "random")
_DEFAULT_MASK = "_"
"""Decoders have no mask token; an underscore serves as well as any."""
_BERT_MASKED, _BERT_RANDOM = 0.8, 0.1
"""Of the chosen tokens, the shares replaced by the mask token and by a random token; the rest is unchanged."""


@dataclass(frozen=True)
class MaskingConfig:
    """Which tokens are masked: the table `objective.masking`."""

    rate: float = 0.2
    """Share of the tokens that is chosen; with concepts, the largest share."""
    style: str = "mask"
    """mask: every chosen token is masked; bert: 80 % masked, 10 % replaced by a random token, 10 % unchanged."""
    fill: str = "none"
    """With concepts (`concepts` of the data), where they are too few: none stops there, random adds random tokens."""
    token: str = ""
    """The mask token; by default the tokenizer's own, or an underscore."""

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise InputError(f"The share of masked tokens lies between 0 and 1, not at {self.rate:g}.")
        for kind, name, known in (("style of masking", self.style, STYLES), ("fill", self.fill, FILLS)):
            if name not in known:
                raise unknown_name(kind, name, known)


@dataclass(frozen=True)
class MaskedText:
    """Token ids with some tokens replaced."""

    ids: list[int]
    positions: list[int]
    """Which tokens are to be predicted."""


class RandomMasking:
    """Chooses every token with the same probability, and at least one of each text."""

    def __init__(self, config: MaskingConfig, backbone: Backbone) -> None:
        self.config = config
        self.mask_id = mask_token_id(config.token, backbone.tokenizer)
        # some tokenizers have tokens the model lacks
        self.vocabulary = min(len(backbone.tokenizer), backbone.vocabulary_size)
        if self.mask_id >= backbone.vocabulary_size:
            token = backbone.tokenizer.convert_ids_to_tokens(self.mask_id)
            raise InputError(f"The model does not know the mask token {token!r} of its tokenizer; name another one.")
        self.special = frozenset(backbone.tokenizer.all_special_ids)

    def maskable(self, ids: Sequence[int]) -> list[int]:
        """Positions of tokens that belong to the text and have a token before them to be predicted from."""
        return [position for position, token in enumerate(ids) if position and token not in self.special]

    def __call__(self, texts: Sequence[Sequence[int]], generator: torch.Generator | None = None) -> list[MaskedText]:
        """Choose and replace tokens, with torch's global random numbers or those of a generator."""
        return [self._mask(ids, generator) for ids in texts]

    def _mask(self, ids: Sequence[int], generator: torch.Generator | None) -> MaskedText:
        candidates = self.maskable(ids)
        draws = torch.rand(len(candidates), generator=generator)
        positions = [
            position for position, draw in zip(candidates, draws.tolist(), strict=True) if draw < self.config.rate
        ]
        if not positions and candidates:
            positions = [candidates[int(draws.argmin())]]
        masked = list(ids)
        draws = torch.rand(len(positions), generator=generator)
        random_tokens = torch.randint(self.vocabulary, (len(positions),), generator=generator)
        for position, draw, token in zip(positions, draws.tolist(), random_tokens.tolist(), strict=True):
            masked[position] = self.replacement(draw, masked[position], token)
        return MaskedText(masked, positions)

    def replacement(self, draw: float, token: int, random_token: int) -> int:
        """What replaces a chosen token, by a random number between 0 and 1."""
        if draw < _BERT_MASKED or self.config.style == "mask":
            return self.mask_id
        return random_token if draw < _BERT_MASKED + _BERT_RANDOM else token


Occurrence = list[int]
"""Positions of the tokens of a concept."""


class ConceptMasking(RandomMasking):
    """Masks whole occurrences of concepts in texts that are known beforehand."""

    def __init__(
        self,
        config: MaskingConfig,
        backbone: Backbone,
        concepts: ConceptSet,
        texts: Sequence[str],
        prompts: Sequence[Prompt],
    ) -> None:
        super().__init__(config, backbone)
        occurrences = find_occurrences(concepts, texts, prompts, backbone)
        self.occurrences: dict[tuple[int, ...], list[Occurrence]] = {}
        """By the token ids of a text: concepts that can be masked."""
        self.concept_positions: dict[tuple[int, ...], set[int]] = {}
        """By the token ids of a text: positions of all concepts, also of one that cannot be masked."""
        for prompt, in_text in zip(prompts, occurrences, strict=True):
            self.occurrences[tuple(prompt.ids)] = self._maskable_occurrences(prompt, in_text)
            self.concept_positions[tuple(prompt.ids)] = {position for positions in in_text for position in positions}

    def _maskable_occurrences(self, prompt: Prompt, occurrences: list[Occurrence]) -> list[Occurrence]:
        """Those of which every token can be masked: a text's first token cannot be predicted."""
        candidates = set(super().maskable(prompt.ids))
        return [positions for positions in occurrences if positions and candidates.issuperset(positions)]

    def maskable(self, ids: Sequence[int]) -> list[int]:
        """Positions of all concept tokens; of the others, too, where random tokens fill up."""
        concept_tokens = [position for positions in self.occurrences.get(tuple(ids), []) for position in positions]
        if self.config.fill == "random":
            return sorted([*concept_tokens, *self._outside_concepts(ids)])
        return concept_tokens

    def _outside_concepts(self, ids: Sequence[int]) -> list[int]:
        taken = self.concept_positions.get(tuple(ids), set())
        return [position for position in super().maskable(ids) if position not in taken]

    def __call__(self, texts: Sequence[Sequence[int]], generator: torch.Generator | None = None) -> list[MaskedText]:
        """Choose whole concepts up to the share of the batch; at least one concept, or one token."""
        tokens = sum(len(RandomMasking.maskable(self, ids)) for ids in texts)
        budget = max(1, int(self.config.rate * tokens))
        candidates = [
            (row, positions) for row, ids in enumerate(texts) for positions in self.occurrences.get(tuple(ids), [])
        ]
        chosen: list[tuple[int, Occurrence]] = []
        for index in torch.randperm(len(candidates), generator=generator).tolist():
            row, positions = candidates[index]
            if len(positions) <= budget or not chosen:
                chosen.append((row, positions))
                budget -= len(positions)
        if self.config.fill == "random" and budget > 0:
            chosen += self._random_tokens(texts, budget, generator)
        return self._replace(texts, chosen, generator)

    def _random_tokens(
        self, texts: Sequence[Sequence[int]], count: int, generator: torch.Generator | None
    ) -> list[tuple[int, Occurrence]]:
        """Single random tokens outside concepts: a concept that does not fit is not masked in part."""
        candidates = [(row, position) for row, ids in enumerate(texts) for position in self._outside_concepts(ids)]
        order = torch.randperm(len(candidates), generator=generator).tolist()[:count]
        return [(candidates[index][0], [candidates[index][1]]) for index in order]

    def _replace(
        self,
        texts: Sequence[Sequence[int]],
        chosen: list[tuple[int, Occurrence]],
        generator: torch.Generator | None,
    ) -> list[MaskedText]:
        """Replace the chosen tokens; the tokens of one concept are all masked, all random or all unchanged."""
        masked = [list(ids) for ids in texts]
        positions_of: list[list[int]] = [[] for _ in texts]
        draws = torch.rand(len(chosen), generator=generator).tolist()
        for (row, positions), draw in zip(chosen, draws, strict=True):
            random_tokens = torch.randint(self.vocabulary, (len(positions),), generator=generator).tolist()
            for position, token in zip(positions, random_tokens, strict=True):
                masked[row][position] = self.replacement(draw, masked[row][position], token)
            positions_of[row] += positions
        return [MaskedText(ids, sorted(positions)) for ids, positions in zip(masked, positions_of, strict=True)]


def find_occurrences(
    concepts: ConceptSet, texts: Sequence[str], prompts: Sequence[Prompt], backbone: Backbone
) -> list[list[Occurrence]]:
    """Token positions of every concept in each text, by the tokenizer's own offsets.

    Of a truncated text, concepts count that are whole in what is left. Concepts that share a token are joined.
    """
    return [_join_overlapping(positions) for positions in token_positions(texts, prompts, backbone, concepts.find)]


def _join_overlapping(occurrences: list[Occurrence]) -> list[Occurrence]:
    joined: list[Occurrence] = []
    for positions in filter(None, occurrences):
        if joined and joined[-1][-1] >= positions[0]:
            positions = sorted({*joined.pop(), *positions})
        joined.append(positions)
    return joined


def mask_token_id(requested: str, tokenizer: Any) -> int:
    """The id of the mask token: the requested one, the tokenizer's own, or an underscore."""
    if not requested and tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    token = requested or _DEFAULT_MASK
    ids = tokenizer(token, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise InputError(f"{token!r} is {len(ids)} tokens here; name a mask token that is a single one.")
    return int(ids[0])
