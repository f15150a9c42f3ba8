"""Encoders of single steps of a training, saved beside its result while it goes on: `<out>-steps/step-N`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from decoder2vec.encoder_folder import check_output_folder
from decoder2vec.errors import InputError
from decoder2vec.storage import check_replaceable, parse_json
from decoder2vec.training.distributed import barrier, is_main_process, one_process_first
from decoder2vec.training.recipes.recipe import TrainedModel

_STEP_FILE = "step.json"


@dataclass(frozen=True)
class StepFolders:
    """Where a training saves the models of its steps.

    Args:
        out: Folder of the result.
        key: Names the training, so that the steps of another one are not taken for its own.
        files: Further files of each folder, by name.
        copy_backbone: Whether the weights of the model must be saved with each.

    """

    out: Path
    key: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    copy_backbone: bool = False

    @property
    def folder(self) -> Path:
        """The folder of all steps."""
        return self.out.with_name(f"{self.out.name}-steps")

    def found(self) -> list[Path]:
        """The folders of the steps that are there."""
        return sorted(self.folder.glob("step-*"))

    def prepare(self, *, overwrite: bool) -> None:
        """Keep the steps of this training, which is then resumed, and delete those of another one.

        Raises:
            InputError: There are steps of another training and `overwrite` is False, or other files.

        """
        with one_process_first():
            check_replaceable(self.folder, ("step-*/*",))
            for folder in self.found():
                check_output_folder(folder)
            others = [folder for folder in self.found() if not self._is_own(folder)]
            if others and not overwrite:
                raise InputError(
                    f"{self.folder} holds steps of another training; choose another --out, or add --overwrite to "
                    "replace them."
                )
            for folder in others:
                shutil.rmtree(folder, ignore_errors=True)  # another machine may delete it, too

    def save(self, model: TrainedModel, has_own_weights: bool, step: int) -> None:
        """Save the model of a step; its folder appears at once."""
        if is_main_process():
            note = json.dumps({"step": step, "training": self.key}) + "\n"
            model.save(
                self.folder / f"step-{step}",
                copy_backbone=has_own_weights or self.copy_backbone,
                extra_files={**self.files, _STEP_FILE: note.encode()},
            )
        barrier()

    def _is_own(self, folder: Path) -> bool:
        try:
            return bool(parse_json((folder / _STEP_FILE).read_text(encoding="utf-8"))["training"] == self.key)
        except (OSError, ValueError, KeyError, TypeError):
            return False
