"""Punctuation and capitals are taken away, and the model shall write the text as it was, behind the cleared one.

The form of Min, Lee, Lee and Lee, who train an encoder and a decoder: here the cleared text is read in both directions,
and what is written behind it sees all of it and what was written before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from decoder2vec.backbone.direction import check_prefix_attention
from decoder2vec.backbone.lm_head import LanguageHead
from decoder2vec.backbone.masks import prefix_attention
from decoder2vec.errors import InputError
from decoder2vec.maths.restoration import RestorationScore, score
from decoder2vec.recipes.adapting import Adapting
from decoder2vec.text.batches import plan
from decoder2vec.text.punctuation import attached_words, clear
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.data import TrainingData
from decoder2vec.training.lessons.lesson import Classroom, Loss
from decoder2vec.training.lessons.parts import TokenStates, sum_over
from decoder2vec.training.lessons.punctuation import ClearedLesson
from decoder2vec.training.loop import Rows

_WRITTEN = 50
"""Of the texts that are set aside so many at most are written out, token by token, for the report."""
_LONGER = 16
"""By so many tokens more than the truth a text may grow before the model is stopped."""


class PunctuationWritingLesson(ClearedLesson):
    """Plain texts with their marks and capitals, by the cross-entropy of their tokens."""

    def __init__(self, recipe: Adapting, data: TrainingData) -> None:
        super().__init__(recipe, data, copies=2)
        if recipe.attention != "bidirectional":
            raise InputError("punctuation_lm reads cleared texts in both directions; set attention to bidirectional.")
        self._ready: tuple[Classroom, _Writing] | None = None

    def loss(self, room: Classroom) -> Loss:
        """The mean over all tokens that are written."""
        check_prefix_attention(room.backbone.model)
        writing = self._held_in(room)
        sheets = [writing.sheet(text) for text in self.learned]

        def loss(rows: Rows) -> Tensor:
            return writing.mean([sheets[row] for row in rows])

        return loss

    def own_score(self, room: Classroom) -> Callable[[], float]:
        """How well texts that were set aside are written."""
        writing = self._held_in(room)
        sheets = [writing.sheet(text) for text in self.apart]
        return lambda: -float(writing.mean(sheets))

    def report(self, room: Classroom) -> dict[str, Any]:
        """Precision, recall and F1 of texts that were set aside and are written by the likeliest token, one by one."""
        found = self._written(room, self.apart[:_WRITTEN])
        parts = {name: round(getattr(found, name), 4) for name in ("precision", "recall", "f1")}
        return {"restoration": parts | {"problems": found.problems, "texts of another length": found.mismatched}}

    def _written(self, room: Classroom, texts: Sequence[str]) -> RestorationScore:
        writing = self._held_in(room)
        decode = room.backbone.tokenizer.decode
        output = [decode(ids, skip_special_tokens=True) for ids in writing.written([writing.sheet(t) for t in texts])]
        source = [clear(text).split() for text in texts]
        return score(source, [attached_words(text) for text in output], [attached_words(text) for text in texts])

    def _held_in(self, room: Classroom) -> _Writing:
        """Made once for a room, since a trained copy has a head of its own."""
        if self._ready is None or self._ready[0] is not room:
            self._ready = room, _Writing(room)
        return self._ready[1]


@dataclass(frozen=True)
class _Sheet:
    """A cleared text, and what is to be written behind it."""

    read: list[int]
    """Ends with the token after which writing begins."""
    written: list[int]
    """Ends with that token again, if all of it fits."""

    @property
    def prompt(self) -> Prompt:
        """All but the last token, from which nothing is told."""
        ids = [*self.read, *self.written[:-1]]
        return Prompt(ids, 0, len(ids))


class _Writing:
    """Sheets to what writing them costs, and to what the model writes on them."""

    def __init__(self, room: Classroom) -> None:
        self.room, self.states, self.head = room, TokenStates(room), LanguageHead(room.backbone)
        tokenizer = room.backbone.tokenizer
        self.edge = room.backbone.token_for_nothing if tokenizer.eos_token_id is None else int(tokenizer.eos_token_id)

    def sheet(self, text: str) -> _Sheet:
        """Of a text with its marks; it is read up to half of the model's context, and written up to its end."""
        limit = self.room.backbone.context_length
        ids = self.room.prompts[self.room.place[clear(text)]].ids
        read = [*(ids if limit is None else ids[: limit // 2]), self.edge]
        written = self.room.backbone.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return _Sheet(read, [*written, self.edge][: self._room(read, len(written) + 1)])

    def mean(self, sheets: Sequence[_Sheet]) -> Tensor:
        """The cross-entropy of a token that is written, on average."""
        costs = [len(sheet.prompt.ids) for sheet in sheets]
        total = sum_over(self.room, costs, lambda some: self._loss([sheets[one] for one in some]))
        return total / max(1, sum(len(sheet.written) for sheet in sheets))

    def _loss(self, sheets: Sequence[_Sheet]) -> Tensor:
        logits = self._logits(sheets)
        truth = torch.tensor([token for sheet in sheets for token in sheet.written], device=logits.device)
        return functional.cross_entropy(logits.float(), truth, reduction="sum")

    def _logits(self, sheets: Sequence[_Sheet]) -> Tensor:
        """[token, word] before each token that is written, of all sheets in a row."""
        backbone = self.room.backbone
        with prefix_attention(backbone.blocks, torch.tensor([len(sheet.read) for sheet in sheets])):
            states = self.states([sheet.prompt for sheet in sheets])
        parts = [row[len(sheet.read) - 1 : len(sheet.prompt.ids)] for row, sheet in zip(states, sheets, strict=True)]
        return self.head(torch.cat(parts))

    def written(self, sheets: Sequence[_Sheet]) -> list[list[int]]:
        """What the model writes on each sheet, always the likeliest token, up to the last one.

        The truth serves as a draft: as far as the model would write the same it is read in one pass, and from the first
        token on that it would not, the draft is put right and read again. What comes out does not depend on the draft.
        """
        drafts, open_ones = list(sheets), set(range(len(sheets)))
        most = [self._room(sheet.read, len(sheet.written) + _LONGER) for sheet in sheets]
        path = self.room.path
        while open_ones:
            numbers = sorted(open_ones)
            for places in plan([len(drafts[number].prompt.ids) for number in numbers], path.fits, path.overhead):
                some = [numbers[place] for place in places]
                told = self._logits([drafts[number] for number in some]).argmax(dim=1).cpu()
                parts = torch.split(told, [len(drafts[number].written) for number in some])
                for number, likeliest in zip(some, parts, strict=True):
                    drafts[number], finished = self._put_right(drafts[number], likeliest.tolist(), most[number])
                    open_ones -= {number} if finished else set()
        return [[token for token in draft.written if token != self.edge] for draft in drafts]

    def _put_right(self, draft: _Sheet, likeliest: list[int], most: int) -> tuple[_Sheet, bool]:
        """The draft up to its first wrong token, that token put right, and the rest as it was; is it finished?"""
        same = next(
            (n for n, pair in enumerate(zip(likeliest, draft.written, strict=True)) if pair[0] != pair[1]), None
        )
        right = draft.written if same is None else [*draft.written[:same], likeliest[same]]
        if right[-1] == self.edge or len(right) >= most:
            return _Sheet(draft.read, right), True
        rest = [] if same is None else draft.written[same + 1 :]
        return _Sheet(draft.read, [*right, *(rest or [self.edge])][:most]), False

    def _room(self, read: Sequence[int], tokens: int) -> int:
        """How many of so many tokens can be written before the model's context ends."""
        limit = self.room.backbone.context_length
        return tokens if limit is None else min(tokens, limit - len(read) + 1)
