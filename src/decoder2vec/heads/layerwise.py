"""A trained layerwise network as the head of an encoder: latents in, one vector out, scores for pairs of vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from decoder2vec.config import Reading
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.pair import PairHead
from decoder2vec.storage import atomic_file

Vectors = NDArray[np.float32]

_ROWS = 1024
_CELLS = 1 << 25
"""Cosines held at once when all vectors are compared with all."""


@dataclass(eq=False)
class LayerwiseHead:
    """A network, a way to turn its scores into 0-1, and an optional cut of the vector to fewer dimensions."""

    net: CodeNet
    calibration: Calibration = field(default_factory=Calibration)
    cut: Tensor | None = None
    """[size, dim] projection; the vector has no blocks then, and pairs are scored by cosine."""

    kind = "layerwise"

    def __post_init__(self) -> None:
        self.net.eval().requires_grad_(False)

    @torch.inference_mode()
    def __call__(self, vectors: Vectors) -> Vectors:
        """[text, readings * dim] latents to [text, dim] vectors, some rows at a time."""
        spec, device = self.net.spec, self.net.shift.device
        if vectors.shape[1] != (wanted := len(spec.widths) * spec.dim):
            raise InputError(f"This head reads rows of {wanted} numbers, not {vectors.shape[1]}: {spec.dim} a reading.")
        result = np.empty((len(vectors), self.dim), np.float32)
        for begin in range(0, len(vectors), _ROWS):
            rows = torch.from_numpy(vectors[begin : begin + _ROWS]).to(device)
            latents = rows.view(-1, len(spec.widths), spec.dim).transpose(0, 1)
            result[begin : begin + _ROWS] = self.vectors(latents).cpu().numpy()
        return result

    @torch.inference_mode()
    def vectors(self, latents: Tensor) -> Tensor:
        """[reading, text, dim] latents on the head's device to [text, dim] vectors, all at once."""
        whole: Tensor = self.net(latents)
        return whole if self.cut is None else torch.nn.functional.normalize(whole @ self.cut, dim=-1)

    @property
    def dim(self) -> int:
        """Width of what comes out."""
        return self.net.spec.size if self.cut is None else int(self.cut.shape[1])

    @property
    def pairwise(self) -> bool:
        """Has it a score of its own for pairs, other than the cosine of the vectors?"""
        return self.cut is None and self.net.spec.head != "sum"

    @torch.inference_mode()
    def similarity(self, left: Tensor, right: Tensor) -> Tensor:
        """[n, m] scores of stored vectors, all with all."""
        self._check(left, right)
        a, b = self._split(left), self._split(right)
        at_once = max(1, _CELLS // (max(1, len(right)) * self.net.spec.blocks))
        rows = []
        for begin in range(0, len(left), at_once):
            cosines = _all_cosines([block[:, begin : begin + at_once] for block in a], b)
            rows.append(self._score(self.net.in_order(cosines).permute(1, 2, 0)))
        return torch.cat(rows) if rows else torch.empty(0, len(right))

    @torch.inference_mode()
    def similarity_pairwise(self, left: Tensor, right: Tensor) -> Tensor:
        """[n] scores of stored vectors, row by row."""
        return self._score(self.pair_cosines(left, right))

    @torch.inference_mode()
    def pair_cosines(self, left: Tensor, right: Tensor) -> Tensor:
        """[pair, block] cosines of stored vectors; equal blocks have a cosine of exactly 1."""
        self._check(left, right)
        # in float64, then rounded: a float32 sum of squares misses 1 in the last digit
        return self.net.cosines(self._split(left), self._split(right)).float()

    @torch.inference_mode()
    def contributions(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """[pair, block] cosines, and what each adds to or takes from the score."""
        cosines = self.pair_cosines(left, right)
        return cosines.cpu(), self._pair_on(cosines.device).contributions(cosines).cpu()

    def shortened(self, vectors: Vectors, dim: int) -> LayerwiseHead:
        """The same head with vectors of `dim` dimensions: those that keep most of the dot products of these."""
        if self.cut is not None or vectors.shape[1] != self.net.spec.size:
            raise InputError(f"Only whole vectors of {self.net.spec.size} dimensions can be cut.")
        if not 1 <= dim < self.net.spec.size or len(vectors) < dim:
            raise InputError(
                f"Vectors of {self.net.spec.size} dimensions can be cut to fewer, fitted on at least as many texts; "
                f"{dim} dimensions from {len(vectors)} texts is not possible."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # it starts from random directions
            _, _, axes = torch.svd_lowrank(torch.from_numpy(vectors), q=min(dim + 32, *vectors.shape), niter=4)
        return LayerwiseHead(self.net, self.calibration, axes[:, :dim].contiguous().to(self.net.shift.device))

    def to(self, device: str | torch.device) -> LayerwiseHead:
        """Move the weights."""
        self.net.to(device)
        self.cut = None if self.cut is None else self.cut.to(device)
        return self

    def digest(self) -> str:
        """Hash of the shape and of every number that changes a vector or a score."""
        total = hashlib.sha256(json.dumps(asdict(self.net.spec)).encode())
        for name, tensor in sorted(self._tensors().items()):
            total.update(name.encode() + tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return total.hexdigest()[:16]

    def save(self, file: Path) -> None:
        """Write as safetensors."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self._tensors().items()}
        with atomic_file(file) as temporary:
            save_file(tensors, temporary, metadata={"kind": self.kind, "spec": json.dumps(asdict(self.net.spec))})

    @classmethod
    def load(cls, file: Path) -> LayerwiseHead:
        """Read what `save` wrote."""
        with safe_open(file, framework="pt") as handle:
            fields: dict[str, Any] = json.loads(handle.metadata()["spec"])
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        net = CodeNet(CodeSpec(**{**fields, "widths": tuple(fields["widths"])}))
        cut, knots = tensors.pop("cut", None), tensors.pop("calibration")
        net.load_state_dict({name.removeprefix("net."): tensor for name, tensor in tensors.items()})
        return cls(net, Calibration.from_tensor(knots), cut)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"net.{name}": tensor for name, tensor in self.net.state_dict().items()}
        tensors["calibration"] = self.calibration.to_tensor()
        return tensors if self.cut is None else {**tensors, "cut": self.cut}

    def _split(self, vectors: Tensor) -> list[Tensor]:
        return self.net.split(vectors.to(_exact(self.net.shift.device)).double())

    def _check(self, *vectors: Tensor) -> None:
        for each in vectors:
            if self.cut is not None or each.shape[-1] != self.net.spec.size:
                raise InputError(
                    f"This head reads whole vectors of {self.net.spec.size} dimensions, not {each.shape[-1]}: "
                    "a cut vector has lost its blocks."
                )

    def _pair_on(self, device: torch.device) -> PairHead:
        return self.net.pair if device == self.net.shift.device else deepcopy(self.net.pair).to(device)

    def _score(self, cosines: Tensor) -> Tensor:
        """Scores from [..., block] cosines; those of the head "each" become their mean."""
        scores: Tensor = self._pair_on(cosines.device)(cosines)
        return (scores.mean(dim=-1) if self.net.spec.head == "each" else scores).float().cpu()


def _exact(device: torch.device) -> torch.device:
    """Where float64 can be computed: Apple's GPUs have none."""
    return torch.device("cpu") if device.type == "mps" else device


def _all_cosines(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Cosines of all rows with all rows: [block, n, m]."""
    return torch.cat([a @ b.transpose(1, 2) for a, b in zip(left, right, strict=True)]).float()


@dataclass(frozen=True)
class Explanation:
    """One row per reading, and what they make together."""

    score: float
    """Between 0 and 1."""
    similarity: float
    """Before calibration."""
    readings: tuple[Reading, ...]
    cosines: tuple[float, ...]
    contributions: tuple[float, ...]
    """Under the head "sum" they add up to the similarity, under "gated" to the similarity - 1; under "each" they are
    the layers' own scores; under "mlp": what the similarity would lose if the layer only repeated the others."""


def explain_pair(head: Any, readings: Sequence[Reading], vectors: Any) -> Explanation:
    """The explanation of two embeddings of a layerwise encoder."""
    if not isinstance(head, LayerwiseHead) or head.cut is not None or head.net.spec.mixing != "none":
        raise UnsupportedError(
            "Only an encoder with a block for each layer can explain a pair; train one: `d2v train`."
        )
    left, right = torch.from_numpy(vectors[:1]), torch.from_numpy(vectors[1:])
    cosines, contributions = head.contributions(left, right)
    similarity = head.similarity_pairwise(left, right)
    return Explanation(
        float(head.calibration(similarity)[0]),
        float(similarity[0]),
        tuple(readings),
        tuple(cosines[0].tolist()),
        tuple(contributions[0].tolist()),
    )
