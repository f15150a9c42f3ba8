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

from decoder2vec.backbone.attention import check_prefix_lm_attention, parse_attention, prefix_lm_attention
from decoder2vec.backbone.lm_head import LMHead
from decoder2vec.errors import InputError
from decoder2vec.recipes.adapting import Adapting
from decoder2vec.text.batches import plan_batches
from decoder2vec.text.punctuation import RestorationScore, aligned_words, score_restoration, strip_punctuation
from decoder2vec.text.tokens import Prompt
from decoder2vec.training.data import TrainingData
from decoder2vec.training.lessons.lesson import Classroom, Loss
from decoder2vec.training.lessons.parts import TokenStates, sum_over
from decoder2vec.training.lessons.punctuation import ClearedLesson
from decoder2vec.training.loop import Rows

_WRITTEN = 50
"""Of the texts that are set aside so many at most are written out, token by token, for the report."""
_TOGETHER = 5
"""So many texts are written at a time."""
_READ_AT_MOST = 100_000
"""After so many tokens no further texts are begun: a model that disagrees with every draft would take hours."""
_NONE_FITS = "No text fits twice, once cleared and once as it was."
_LONGER = 16
"""By so many tokens more than the truth a text may grow before the model is stopped."""


class PunctuationWritingLesson(ClearedLesson):
    """Plain texts with their marks and capitals, by the cross-entropy of their tokens."""

    def __init__(self, recipe: Adapting, data: TrainingData) -> None:
        super().__init__(recipe, data, copies=2)
        if parse_attention(recipe.attention) != ("bidirectional", 0):
            raise InputError("punctuation_lm reads cleared texts in both directions; set attention to bidirectional.")
        if all(strip_punctuation(text) == text for text in self.learned):
            raise InputError("No mark and no capital occurs in these texts, so there is nothing to learn.")
        self._ready: tuple[Classroom, _Writing, _Sheets, _Sheets] | None = None

    def loss(self, room: Classroom) -> Loss:
        """The mean over all tokens that are written."""
        check_prefix_lm_attention(room.backbone.model)
        writing, sheets, _ = self._held_in(room)
        spare = next((sheet for sheet in sheets if sheet), None)
        if spare is None:
            raise InputError(f"{_NONE_FITS} Give shorter sentences, or raise read.max_length.")

        def loss(rows: Rows) -> Tensor:
            return writing.mean([sheet for row in rows if (sheet := sheets[row])] or [spare])

        return loss

    def own_score(self, room: Classroom) -> Callable[[], float]:
        """How well texts that were set aside are written."""
        writing, _, apart = self._held_in(room)
        sheets = list(filter(None, apart))
        if not sheets:
            raise InputError(f"Of the texts that were set aside: {_NONE_FITS} Give more of them.")
        return lambda: -float(writing.mean(sheets))

    def report(self, room: Classroom) -> dict[str, Any]:
        """Precision, recall and F1 of texts that were set aside and are written by the likeliest token, one by one."""
        writing, learned, apart = self._held_in(room)
        known = [(text, sheet) for text, sheet in zip(self.apart, apart, strict=True) if sheet][:_WRITTEN]
        written = writing.written([sheet for _, sheet in known])
        found = self._score(room, [text for text, _ in known[: len(written)]], written)
        sizes = {
            "texts": len(written),
            "problems": found.problems,
            "texts of another length": found.mismatched,
            "texts too long": [*learned, *apart].count(None),
        }
        return {"restoration": found.rates() | sizes}

    def _score(self, room: Classroom, texts: Sequence[str], written: Sequence[list[int]]) -> RestorationScore:
        decode = room.backbone.tokenizer.decode
        output = [decode(ids, skip_special_tokens=True) for ids in written]
        words = [
            aligned_words(text) if strip_punctuation(text) else [] for text in output
        ]  # it may write nothing but marks
        return score_restoration(
            [strip_punctuation(text).split() for text in texts], words, [aligned_words(text) for text in texts]
        )

    def _held_in(self, room: Classroom) -> tuple[_Writing, _Sheets, _Sheets]:
        """Made once for a room, since a trained copy has a head of its own."""
        if self._ready is None or self._ready[0] is not room:
            writing = _Writing(room)
            self._ready = room, writing, writing.sheets(self.learned), writing.sheets(self.apart)
        return self._ready[1:]


@dataclass(frozen=True)
class _Sheet:
    """A cleared text, and what is to be written behind it."""

    read: list[int]
    """Ends with the token after which writing begins."""
    written: list[int]
    """Ends with that token again."""

    @property
    def prompt(self) -> Prompt:
        """All but the last token, from which nothing is told."""
        ids = [*self.read, *self.written[:-1]]
        return Prompt(ids, 0, len(ids))


_Sheets = list[_Sheet | None]


class _Writing:
    """Sheets to what writing them costs, and to what the model writes on them."""

    def __init__(self, room: Classroom) -> None:
        self.room, self.states, self.head = room, TokenStates(room), LMHead(room.backbone)
        tokenizer = room.backbone.tokenizer
        self.edge = room.backbone.empty_text_token_id if tokenizer.eos_token_id is None else int(tokenizer.eos_token_id)
        self.encode = tokenizer.backend_tokenizer.encode

    def sheets(self, texts: Sequence[str]) -> _Sheets:
        """Of texts with their marks; none of a text that would be cut: nobody can write what was not read."""
        return [self._sheet(text) for text in texts]

    def _sheet(self, text: str) -> _Sheet | None:
        prompt = self.room.prompts[self.room.place[strip_punctuation(text)]]
        read = [*prompt.ids, self.edge]
        written = [token for token in self.encode(text, add_special_tokens=False).ids if token != self.edge]
        limit, bos = self.room.backbone.context_length, self.room.backbone.missing_bos_token_id
        cut = len(self.encode(strip_punctuation(text)).ids) + (bos is not None) > len(prompt.ids)
        too_long = limit is not None and len(read) + len(written) > limit
        return None if cut or too_long else _Sheet(read, [*written, self.edge])

    def mean(self, sheets: Sequence[_Sheet]) -> Tensor:
        """The cross-entropy of a token that is written, on average."""
        costs = [len(sheet.prompt.ids) for sheet in sheets]
        total = sum_over(self.room, costs, lambda some: self._loss([sheets[one] for one in some]))
        return total / sum(len(sheet.written) for sheet in sheets)

    def _loss(self, sheets: Sequence[_Sheet]) -> Tensor:
        states = self._states_before(sheets)
        truth = torch.tensor([token for sheet in sheets for token in sheet.written], device=states.device)
        return self.head.cross_entropy(states, truth)

    def _states_before(self, sheets: Sequence[_Sheet]) -> Tensor:
        """[token, width] before each token that is written, of all sheets in a row."""
        with prefix_lm_attention(self.room.backbone.blocks, torch.tensor([len(sheet.read) for sheet in sheets])):
            states = self.states([sheet.prompt for sheet in sheets])
        return torch.cat(
            [row[len(sheet.read) - 1 :][: len(sheet.written)] for row, sheet in zip(states, sheets, strict=True)]
        )

    def written(self, sheets: Sequence[_Sheet]) -> list[list[int]]:
        """What the model writes on each sheet, or on the first ones where that takes too long."""
        found: list[list[int]] = []
        left = _READ_AT_MOST
        while left > 0 and len(found) < len(sheets):
            drafts = [_Draft(sheet, self._most(sheet)) for sheet in sheets[len(found) :][:_TOGETHER]]
            left -= self._write(drafts)
            found += [draft.agreed_text(self.edge) for draft in drafts]
        return found

    def _write(self, drafts: Sequence[_Draft]) -> int:
        """Always the likeliest token, up to the last one; returns how many tokens were read for it.

        The truth serves as a draft: as far as the model would write the same it is read in one pass, and from the first
        token on that it would not, the draft is put right and read again. What comes out does not depend on the draft.
        """
        path, read = self.room.path, 0
        while waiting := [draft for draft in drafts if not draft.finished(self.edge)]:
            sizes = [len(draft.sheet.prompt.ids) for draft in waiting]
            read += sum(sizes)
            for places in plan_batches(sizes, path.fits, path.overhead):
                some = [waiting[place] for place in places]
                told = self.head.predict(self._states_before([draft.sheet for draft in some])).tolist()
                for draft in some:
                    size = len(draft.sheet.written)
                    draft.put_right(told[:size], self._is_mark, self.edge)
                    told = told[size:]
        return read

    def _most(self, sheet: _Sheet) -> int:
        """How many tokens the model may write before it is stopped."""
        limit = self.room.backbone.context_length
        longer = len(sheet.written) + _LONGER
        return longer if limit is None else min(longer, limit - len(sheet.read))

    def _is_mark(self, token: int) -> bool:
        return not strip_punctuation(self.room.backbone.tokenizer.decode([token]))


class _Draft:
    """What the model has written for certain, and a guess at the rest."""

    def __init__(self, sheet: _Sheet, most: int) -> None:
        self.sheet, self.most, self.agreed = sheet, most, 0

    def finished(self, edge: int) -> bool:
        """The last token was written, or as many as may be."""
        return self.agreed > 0 and (self.sheet.written[self.agreed - 1] == edge or self.agreed >= self.most)

    def agreed_text(self, edge: int) -> list[int]:
        """All that was written, less the end."""
        return [token for token in self.sheet.written[: self.agreed] if token != edge]

    def put_right(self, told: Sequence[int], is_mark: Callable[[int], bool], edge: int) -> None:
        """Agree to what the model says as far as it could see; the rest of the draft is kept where it seems to belong.

        What was agreed stays, so each pass brings one token more, however numbers are rounded.
        """
        old = self.sheet.written
        place = next((n for n in range(self.agreed, len(old)) if told[n] != old[n]), len(old) - 1)
        new, rest = told[place], old[place + 1 :]
        if new != old[place]:
            if rest and rest[0] == new:  # the model leaves a token out
                rest = rest[1:]
            elif is_mark(new) and not is_mark(old[place]):  # it puts one in
                rest = old[place:]
        self.agreed = place + 1
        self.sheet = _Sheet(self.sheet.read, [*old[:place], new, *(rest or [edge])][: self.most])
