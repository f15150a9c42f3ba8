"""Training of what adapts a model: soft prompts, prefixes, LoRA, or all weights, on vectors of whole texts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from decoder2vec.activations.extract import Progress, check_texts
from decoder2vec.backbone.attention import parse_attention
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.training_modes import CompiledBlocks, gradient_checkpointing
from decoder2vec.config import EncoderSpec, Reading, fingerprint, to_table
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError
from decoder2vec.export.transformers import write_model
from decoder2vec.maths.metrics import METRICS, pairwise_cos_sim
from decoder2vec.recipes.adapting import Adapting
from decoder2vec.text.files import ScoredPairs
from decoder2vec.text.template import Template
from decoder2vec.text.tokens import Prompt, Tokeniser
from decoder2vec.training.data import TrainingData
from decoder2vec.training.examples import random_pairs, stop_pairs
from decoder2vec.training.lessons.lesson import Classroom, Lesson
from decoder2vec.training.lessons.registry import LESSONS
from decoder2vec.training.loop import OnProgress, Task, fit
from decoder2vec.training.paths import Path as VectorPath
from decoder2vec.training.paths import pick_path
from decoder2vec.training.processes import is_first, wait_for_all
from decoder2vec.training.result import Result

_FORMAT = 1
_SCORED_AT_ONCE = 4096


@dataclass(kw_only=True)
class Adapted(Result):
    """A seed of a recipe that adapts the model."""

    encoder: Encoder
    trained: int
    """How many numbers were trained."""


class AdapterTraining:
    """One recipe on one model and one set of data; texts are tokenised when it is made, seeds run one by one."""

    def __init__(
        self, recipe: Adapting, data: TrainingData, backbone: Backbone, progress: Progress = lambda _: None
    ) -> None:
        self.recipe, self.data, self.backbone = recipe, data, backbone
        self.reading, self.lesson = reading_and_lesson(recipe, data, backbone)
        texts = list(dict.fromkeys([*self.lesson.texts, *(text for pairs in data.dev for text in pairs.texts())]))
        self.place = {text: number for number, text in enumerate(check_texts(texts))}
        self.prompts, self.truncated = self._tokenise(texts)
        progress(len(texts))

    def prepare(self, seed: int) -> tuple[Classroom, nn.Module, Task]:
        """The adapted model, what is trained of it and beside it, and what the loop is to do with that."""
        torch.manual_seed(seed)
        adapted, module = self.recipe.attach(self.backbone, self.reading.layer)
        path = pick_path(self.recipe, adapted, self.prompts, self.reading)
        room = Classroom(adapted, path, self.prompts, self.place)
        if beside := self.lesson.trained_too(room):
            module = nn.ModuleList([module, beside])
        return room, module, self._task(room)

    def run(self, seed: int, *, work: Path | None = None, on_progress: OnProgress = lambda _: None) -> Adapted:
        """Train one seed; `work` is the folder for checkpoints."""
        started = time.perf_counter()
        room, module, task = self.prepare(seed)
        adapted = room.backbone
        checkpoint = work / f"{self._key(seed)}.safetensors" if work else None
        log = work / f"log-{seed}.jsonl" if work else None
        history = fit(module, task, seed, checkpoint=checkpoint, log=log, on_progress=on_progress)
        count = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        module.requires_grad_(False)
        if adapted.model is not self.backbone.model:
            adapted.fingerprint = self._key(seed)  # a trained copy is not the model it was copied from
        result = Adapted(
            seed=seed, encoder=Encoder(adapted, self._spec()), trained=count, notes={"training": asdict(history)}
        )
        with torch.no_grad(), adapted.adapter_enabled(), self._autocast(adapted):
            result.notes |= self.lesson.report(room)
        if not self.data.dev:
            result.own_score = history.best_score
        if self.truncated:
            result.notes["texts cut"] = self.truncated
        result.seconds = time.perf_counter() - started
        self._finish(result)
        return result

    def saved_alone(self, result: Adapted, work: Path) -> tuple[Encoder, bool]:
        """The encoder, and whether its weights must come along: those of a trained copy are written first."""
        trained = result.encoder.backbone
        if trained.model is self.backbone.model:
            return result.encoder, False
        folder = work / "model"
        if is_first():
            trained.model.to(self.backbone.dtype)
            write_model(trained, folder)
        wait_for_all()
        device = str(self.backbone.device)
        own = Backbone.load(folder, attention=self.recipe.attention, device=device, dtype=self.backbone.dtype)
        return Encoder(own, self._spec()), True

    def _tokenise(self, texts: list[str]) -> tuple[list[Prompt], int]:
        read = self.recipe.read
        context, own = self.backbone.context_length, self.recipe.extra_tokens
        if read.on_overflow == "chunk":
            raise InputError("A text is trained on as a whole; set on_overflow to truncate or error.")
        if context is not None and own >= context:
            raise InputError(f"{own} trained tokens leave no room for a text: the model takes {context} in all.")
        room = read.max_length if context is None else min(read.max_length, context - own)
        found = Tokeniser(self.backbone, Template.of(read.template), room, read.on_overflow)(texts)
        return found.prompts, len(found.overlong)

    def _spec(self) -> EncoderSpec:
        read = self.recipe.read
        template = Template.of(read.template).string
        return EncoderSpec(
            self.backbone.name, (self.reading,), template, self.recipe.attention, read.max_length, read.on_overflow
        )

    def _task(self, room: Classroom) -> Task:
        adapted, path = room.backbone, room.path
        compiled = CompiledBlocks(adapted) if self.recipe.compile_blocks else None

        @contextmanager
        def adapter_enabled() -> Iterator[None]:
            with adapted.adapter_enabled(), self._autocast(adapted):
                yield

        @contextmanager
        def around() -> Iterator[None]:
            with ExitStack() as stack:
                stack.enter_context(adapter_enabled())
                stack.enter_context(self.lesson.around(room))
                if compiled:
                    stack.enter_context(compiled.enabled())
                if self.recipe.checkpoint_blocks:
                    stack.enter_context(gradient_checkpointing(adapted))
                yield

        with adapter_enabled():
            loss = self.lesson.loss(room)
            own = self.lesson.own_score(room)

        @torch.no_grad()
        def score() -> float:
            with adapter_enabled():
                return own() if own else float(np.mean([self._dev_score(path, pairs) for pairs in self.data.dev]))

        lesson = self.lesson
        return Task(lesson.stage, len(lesson), loss, score, self.recipe.training, lesson.batches, around)

    def _dev_score(self, path: VectorPath, pairs: ScoredPairs) -> float:
        texts = pairs.texts()
        rows = [self.place[text] for text in texts]
        parts = [path(rows[begin : begin + _SCORED_AT_ONCE]) for begin in range(0, len(rows), _SCORED_AT_ONCE)]
        found = torch.cat(parts).float().cpu()
        if not torch.isfinite(found).all():
            return math.nan  # a correlation would be 0, better than many a beginning
        vectors = dict(zip(texts, found.numpy(), strict=True))
        left, right = (np.stack([vectors[text] for text in side]) for side in (pairs.left, pairs.right))
        return 100 * METRICS[self.recipe.choose_by](pairwise_cos_sim(left, right), np.asarray(pairs.scores))

    def _finish(self, result: Adapted) -> None:
        """Score dev, and test for the first time, with the encoder itself."""
        for files, scores in ((self.data.dev, result.dev), (self.data.test, result.test)):
            for pairs in files:
                found = _cosines(result.encoder, list(zip(pairs.left, pairs.right, strict=True)))
                truth = np.asarray(pairs.scores)
                scores[pairs.name] = {name: round(100 * metric(found, truth), 2) for name, metric in METRICS.items()}
        texts = self.data.dev[0].texts() if self.data.dev else self.lesson.texts[:1000]
        for name, some in (("full stop", stop_pairs(texts)), ("random pairs", random_pairs(texts))):
            if some:
                result.checks[name] = round(float(_cosines(result.encoder, some).mean()), 4)

    def _autocast(self, adapted: Backbone) -> torch.autocast:
        """Weights that are trained in float32 compute in the format in which the model was given."""
        given = self.backbone.dtype
        return torch.autocast(adapted.device.type, given, enabled=adapted.dtype != given)

    def _key(self, seed: int) -> str:
        """Everything that a run depends on."""
        data = [list(self.place), [vars(pairs) for pairs in self.data.dev], *self.lesson.identity()]
        recipe = [type(self.recipe).__name__, to_table(self.recipe)]
        return fingerprint(_FORMAT, self.backbone.effective_fingerprint, str(self.backbone.dtype), recipe, data, seed)


def reading_and_lesson(recipe: Adapting, data: TrainingData, backbone: Backbone) -> tuple[Reading, Lesson]:
    """What is read of the model, which then attends as the recipe asks, and what is learned."""
    if recipe.attention != backbone.attention:
        backbone.set_attention(recipe.attention)
    reading = recipe.read.reading(backbone)
    if reading.layer == 0:
        raise InputError("Layer 0 is the embeddings, which nothing here trains; read a layer above it.")
    if reading.layer <= parse_attention(recipe.attention)[1]:
        raise InputError(f"Layer {reading.layer} looks one way only with {recipe.attention}; read a layer above that.")
    return reading, LESSONS[recipe.objective.name](recipe, data)


def _cosines(encoder: Encoder, pairs: list[tuple[str, str]]) -> Any:
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    vectors = dict(zip(texts, encoder.encode(texts, show_progress_bar=False), strict=True))
    return pairwise_cos_sim(np.stack([vectors[a] for a, _ in pairs]), np.stack([vectors[b] for _, b in pairs]))
