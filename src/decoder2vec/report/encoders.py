"""Score the encoders of a report on a folder of tasks, with and without an instruction; a second run continues."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from decoder2vec.errors import InputError
from decoder2vec.evaluation.api import evaluate, instruction_prompts
from decoder2vec.report.figures import file_stems
from decoder2vec.report.result_files import Evaluation, find_results

_INSTRUCTED = "with the instruction"


@dataclass
class ScoredEncoders:
    """The evaluations of encoders, one file for each; `run` writes those that are missing."""

    names: Sequence[Path]
    """Folders or names of encoders and models, or files of finished evaluations."""
    data: str | os.PathLike[str]
    out: Path
    """Folder of the report; the evaluations are written to `evaluations` in it."""
    tasks: str | Sequence[str] | None = None
    instruction: str | None = None
    limit: int | None = None
    device: str | None = None
    files: list[Path] = field(default_factory=list)
    """The evaluations, in the order of `names`."""
    instructed: list[Path] = field(default_factory=list)
    """The same with the instruction."""

    def run(self, notify: Callable[[str], object]) -> ScoredEncoders:
        """Score every encoder and return this object."""
        if len(set(self.names)) < len(self.names):
            raise InputError("An encoder is given twice; give the one before training, then those after.")
        for name, stem in zip(self.names, file_stems([str(name) for name in self.names]), strict=True):
            if name.suffix == ".json":
                self.files.append(name)
                continue
            self.files.append(self._evaluate(name, f"{stem}.json", str(name), None, notify))
            if self.instruction:
                label = f"{name} {_INSTRUCTED}"
                file = self._evaluate(name, f"{stem}-instruction.json", label, self.instruction, notify)
                self.instructed.append(file)
        return self

    def formats(self) -> list[tuple[Evaluation, Evaluation]]:
        """Each encoder without and with the instruction."""
        plain = [file for file, name in zip(self.files, self.names, strict=True) if name.suffix != ".json"]
        pairs = zip(plain, self.instructed, strict=False)
        return [(find_results([one]).evaluations[0], find_results([other]).evaluations[0]) for one, other in pairs]

    def _evaluate(
        self, name: Path, file: str, label: str, instruction: str | None, notify: Callable[[str], object]
    ) -> Path:
        target = self.out / "evaluations" / file
        notify(f"{label}:")
        evaluate(
            str(name),
            os.fspath(self.data),
            tasks=self.tasks or "all",
            prompts=instruction_prompts(instruction) if instruction else None,
            json_file=target,
            limit=self.limit,
            name=label,
            device=self.device,
            notify=notify,
        )
        return target
