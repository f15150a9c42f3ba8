"""Contrastive learning that a teacher guides: it mines hard negatives, rejects false ones and sets the margins.

The teacher's vectors are those of a distillation, computed once and cached on disk. After NV-Retriever (negatives are
less similar than a share of the positive's similarity), GISTEmbed (so are the texts of the batch that count as
negatives) and E5 (a KL divergence to the teacher's similarities beside InfoNCE).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decoder2vec.errors import InputError
from decoder2vec.maths.losses import margin_kl, matryoshka_loss
from decoder2vec.progress import current_progress
from decoder2vec.training.context import InputSpec, TrainingContext
from decoder2vec.training.contrastive_examples import ContrastiveExamples
from decoder2vec.training.data import TrainingData
from decoder2vec.training.loop import Rows
from decoder2vec.training.mining import check_mining, mine_by_vectors
from decoder2vec.training.objectives.contrastive import ContrastiveConfig, ContrastiveObjective, encode_examples
from decoder2vec.training.objectives.objective import Loss
from decoder2vec.training.teachers import Teacher, TeacherVectors, share_teachers


@dataclass(frozen=True)
class GuidedConfig(ContrastiveConfig):
    """InfoNCE with negatives that a teacher chooses, and the teacher's margins."""

    name: str = "guided_info_nce"
    teachers: tuple[Teacher, ...] = ()
    """[{name = "all-minilm-l6-v2"}]; of several, the similarities are averaged by their weights."""
    mined: int = 1
    """Hard negatives that are mined for each example among the positives of its source, beside those of the file."""
    skip: int = 0
    """Leave out this many of the texts that are most similar to an anchor."""
    margin: float = 0.95
    """A text is no negative of an anchor if the teacher gives it more than this share of the positive's similarity."""
    distill: float = 1.0
    """Weight of the KL divergence to the teacher's similarities, beside InfoNCE."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mining(max(self.mined, 1), self.margin, self.skip)
        if self.mined < 0 or not 0 <= self.distill < math.inf:
            raise InputError("mined and distill must be numbers of 0 or more.")


class GuidedObjective(ContrastiveObjective):
    """Pairs, triplets, labelled texts or records, by InfoNCE and a teacher's similarities."""

    names = ("guided_info_nce",)
    config_class = GuidedConfig
    needs = "positive_pairs"
    stage = "pairs"
    config: GuidedConfig

    def __init__(self, config: GuidedConfig, data: TrainingData, spec: InputSpec) -> None:
        super().__init__(config, data, spec)
        if not config.teachers:
            raise InputError(
                'guided_info_nce needs a teacher; give --teacher NAME, or objective.teachers=[{name="..."}].'
            )

    @cached_property
    def guides(self) -> tuple[GuideVectors, GuideVectors]:
        """Vectors of the anchors and of all positives and negatives, computed at first use."""
        examples, teachers = self.examples, self.config.teachers
        mentioned = np.concatenate([examples.positives, examples.negatives.ravel()])
        anchors, candidates = np.unique(examples.anchors), np.unique(mentioned[mentioned >= 0])
        anchor_texts, candidate_texts = ([self.texts[index] for index in used] for used in (anchors, candidates))
        queries: list[TeacherVectors] = []
        documents: list[TeacherVectors] = []
        with share_teachers():
            for teacher in teachers:
                queries.append(TeacherVectors(teacher, anchor_texts, queries=True))
                documents.append(TeacherVectors(teacher, candidate_texts))
                teacher.release()
        return GuideVectors(teachers, anchors, queries), GuideVectors(teachers, candidates, documents)

    @cached_property
    def mined_examples(self) -> ContrastiveExamples:
        """The examples with negatives mined by the teachers, on a GPU if there is one."""
        if not self.config.mined:
            return self.examples
        queries, documents = self.guides
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with current_progress().phase("mining negatives"):
            mined = mine_by_vectors(
                partial(queries, device=device),
                partial(documents, device=device),
                self.examples,
                count=self.config.mined,
                margin=self.config.margin,
                skip=self.config.skip,
            )
        return replace(self.examples, negatives=np.hstack([self.examples.negatives, mined]))

    def loss(self, context: TrainingContext) -> Loss:
        """InfoNCE without false negatives, and the KL divergence to the teacher's similarities."""
        config, examples = self.config, self.mined_examples
        text_rows = context.rows(examples.texts)

        def loss(rows: Rows) -> Tensor:
            vectors = encode_examples(context, text_rows, examples, rows)
            candidates = examples.candidates(rows)
            similarities = self._similarities(examples.anchors[rows], candidates, context.device)
            limits = config.margin * similarities.diagonal()[:, None]
            known = torch.from_numpy(examples.known_positives(rows)).to(context.device)
            total = config.info_nce(*vectors, masked=known | (similarities >= limits))
            if config.distill:
                missing = torch.from_numpy(candidates < 0).to(context.device).expand_as(similarities)
                kl = partial(margin_kl, teacher=similarities, temperature=config.temperature, masked=missing)
                total = total + config.distill * (matryoshka_loss(kl, config.dims) if config.dims else kl)(*vectors)
            return total

        return loss

    def _similarities(self, anchors: Rows, candidates: Rows, device: torch.device) -> Tensor:
        """[anchors, candidates] similarities of the teachers; those of missing candidates mean nothing."""
        queries, documents = self.guides
        present = np.where(candidates < 0, candidates[0], candidates)
        with torch.autocast(device.type, enabled=False):  # autocast would multiply the vectors in 16 bits
            return queries(anchors, device) @ documents(present, device).T

    def resume_key(self) -> list[Any]:
        """Indices of all examples, and the teachers."""
        return [*super().resume_key(), self.guides[0].fingerprints]

    def report(self, context: TrainingContext) -> dict[str, Any]:
        """The teachers, and how many negatives they found."""
        teachers = [
            {"name": teacher.name, "fingerprint": fingerprint}
            for teacher, fingerprint in zip(self.config.teachers, self.guides[0].fingerprints, strict=True)
        ]
        found = self.mined_examples.negatives[:, self.examples.negatives.shape[1] :] >= 0
        mined = {"negatives": int(found.sum()), "examples without": int((~found.any(axis=1)).sum())}
        return {"teachers": teachers, "mined": mined}


class GuideVectors:
    """Vectors of some texts whose inner products are the weighted mean of the cosines of all teachers.

    Args:
        teachers: The teachers.
        used: Sorted indices of the texts.
        vectors: Vectors of each teacher for these texts.

    """

    def __init__(self, teachers: Sequence[Teacher], used: Rows, vectors: Sequence[TeacherVectors]) -> None:
        total = sum(teacher.weight for teacher in teachers)
        self._scales = [math.sqrt(teacher.weight / total) for teacher in teachers]
        self._used, self._vectors = used, vectors
        self.fingerprints = [of_teacher.fingerprint for of_teacher in vectors]

    def __call__(self, texts: Rows, device: torch.device) -> Tensor:
        """[texts, dim] vectors of length 1 of some indices of texts."""
        unique, inverse = np.unique(texts, return_inverse=True)  # each is read from disk once
        rows = np.searchsorted(self._used, unique)
        parts = [scale * part.batch(rows) for scale, part in zip(self._scales, self._vectors, strict=True)]
        return torch.cat(parts, dim=1)[torch.from_numpy(inverse)].to(device)
