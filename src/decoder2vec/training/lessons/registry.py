"""Lessons by the name of the objective."""

from __future__ import annotations

from decoder2vec.maths.losses import PAIR_LOSSES
from decoder2vec.training.lessons.contrast import ContrastLesson
from decoder2vec.training.lessons.dropout import DropoutLesson
from decoder2vec.training.lessons.lesson import Lesson
from decoder2vec.training.lessons.masked import MaskedLesson
from decoder2vec.training.lessons.punctuation import PunctuationLesson
from decoder2vec.training.lessons.punctuation_lm import PunctuationWritingLesson
from decoder2vec.training.lessons.scores import ScoreLesson

LESSONS: dict[str, type[Lesson]] = {
    "info_nce": ContrastLesson,
    **dict.fromkeys(PAIR_LOSSES, ScoreLesson),
    "simcse": DropoutLesson,
    "mntp": MaskedLesson,
    "punctuation": PunctuationLesson,
    "punctuation_lm": PunctuationWritingLesson,
}
