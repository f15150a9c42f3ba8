"""A trained code network as the head of an encoder: latents to vectors, scores of pairs, and explanations of scores."""

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
from torch.nn import functional

from decoder2vec.config import Reading
from decoder2vec.errors import InputError, UnsupportedError
from decoder2vec.heads.calibration import Calibration
from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.heads.pair import PairHead
from decoder2vec.storage import atomic_file, parse_json

Vectors = NDArray[np.float32]

_BATCH_ROWS = 1024
_MAX_COSINES = 1 << 25
"""Cosines held in memory at once when all vectors are compared with all."""


@dataclass(eq=False)
class LayerwiseHead:
    """A code network with a calibration of its scores and an optional projection to fewer dimensions."""

    net: CodeNet
    calibration: Calibration = field(default_factory=Calibration)
    projection: Tensor | None = None
    """[size, dim] projection of the vector, which then has no blocks; pairs are scored by cosine."""

    kind = "layerwise"

    def __post_init__(self) -> None:
        self.net.eval().requires_grad_(False)

    @torch.inference_mode()
    def __call__(self, vectors: Vectors) -> Vectors:
        """Turn [text, readings * dim] latents into [text, dim] vectors, batch by batch."""
        spec, device = self.net.spec, self.net.shift.device
        if vectors.shape[1] != (expected := len(spec.widths) * spec.dim):
            raise InputError(
                f"This head takes rows of {expected} values, {spec.dim} per reading, not {vectors.shape[1]}."
            )
        result = np.empty((len(vectors), self.dim), np.float32)
        for begin in range(0, len(vectors), _BATCH_ROWS):
            rows = torch.from_numpy(vectors[begin : begin + _BATCH_ROWS]).to(device)
            latents = rows.view(-1, len(spec.widths), spec.dim).transpose(0, 1)
            result[begin : begin + _BATCH_ROWS] = self.encode_latents(latents).cpu().numpy()
        return result

    @torch.inference_mode()
    def encode_latents(self, latents: Tensor) -> Tensor:
        """Turn [reading, text, dim] latents on the head's device into [text, dim] vectors, in one batch."""
        vectors: Tensor = self.net(latents)
        return vectors if self.projection is None else functional.normalize(vectors @ self.projection, dim=-1)

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return self.net.spec.size if self.projection is None else int(self.projection.shape[1])

    @property
    def has_pair_similarity(self) -> bool:
        """Whether pairs have a similarity other than the cosine of the vectors."""
        return self.projection is None and self.net.spec.head != "sum"

    @torch.inference_mode()
    def similarity(self, left: Tensor, right: Tensor) -> Tensor:
        """[n, m] scores of all stored vectors in `left` with all in `right`."""
        self._check_whole(left, right)
        left_blocks, right_blocks = self._split(left), self._split(right)
        step = max(1, _MAX_COSINES // (max(1, len(right)) * self.net.spec.blocks))
        rows = []
        for begin in range(0, len(left), step):
            cosines = _all_cosines([block[:, begin : begin + step] for block in left_blocks], right_blocks)
            rows.append(self._score(self.net.in_reading_order(cosines).permute(1, 2, 0)))
        return torch.cat(rows) if rows else torch.empty(0, len(right))

    @torch.inference_mode()
    def similarity_pairwise(self, left: Tensor, right: Tensor) -> Tensor:
        """[n] scores of stored vectors, row by row."""
        return self._score(self.pair_cosines(left, right))

    @torch.inference_mode()
    def pair_cosines(self, left: Tensor, right: Tensor) -> Tensor:
        """[pair, block] cosines of stored vectors; equal blocks have a cosine of exactly 1."""
        self._check_whole(left, right)
        # in float64, then rounded: a float32 sum of squares misses 1 in the last digit
        return self.net.cosines(self._split(left), self._split(right)).float()

    @torch.inference_mode()
    def contributions(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """[pair, block] cosines, and the contribution of each to the score."""
        cosines = self.pair_cosines(left, right)
        return cosines.cpu(), self._pair_head_on(cosines.device).contributions(cosines).cpu()

    def reduce_dim(self, vectors: Vectors, dim: int) -> LayerwiseHead:
        """Return the head with a projection to fewer dimensions, by truncated SVD.

        Args:
            vectors: [text, size] vectors of this head to fit the projection on, of at least `dim` texts.
            dim: The dimension of the new vectors.
        """
        if self.projection is not None or vectors.shape[1] != self.net.spec.size:
            raise InputError(f"Only whole vectors of {self.net.spec.size} dimensions can be reduced.")
        if not 1 <= dim < self.net.spec.size or len(vectors) < dim:
            raise InputError(
                f"Vectors of {self.net.spec.size} dimensions can be reduced to fewer, fitted on at least as many "
                f"texts; {dim} dimensions from {len(vectors)} texts is not possible."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # svd_lowrank starts from random directions
            _, _, axes = torch.svd_lowrank(torch.from_numpy(vectors), q=min(dim + 32, *vectors.shape), niter=4)
        return LayerwiseHead(self.net, self.calibration, axes[:, :dim].contiguous().to(self.net.shift.device))

    def to(self, device: str | torch.device) -> LayerwiseHead:
        """Move the weights to a device."""
        self.net.to(device)
        self.projection = None if self.projection is None else self.projection.to(device)
        return self

    def digest(self) -> str:
        """Hash of the architecture and of all values that change a vector or a score."""
        total = hashlib.sha256(json.dumps(asdict(self.net.spec)).encode())
        for name, tensor in sorted(self._tensors().items()):
            total.update(name.encode() + tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return total.hexdigest()[:16]

    def save(self, file: Path) -> None:
        """Write the head as safetensors."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self._tensors().items()}
        with atomic_file(file) as temporary:
            save_file(tensors, temporary, metadata={"kind": self.kind, "spec": json.dumps(asdict(self.net.spec))})

    @classmethod
    def load(cls, file: Path) -> LayerwiseHead:
        """Read a head that `save` wrote."""
        with safe_open(file, framework="pt") as handle:
            fields: dict[str, Any] = parse_json(handle.metadata()["spec"])
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        net = CodeNet(CodeSpec(**{**fields, "widths": tuple(fields["widths"])}))
        projection, knots = tensors.pop("cut", None), tensors.pop("calibration")
        net.load_state_dict({name.removeprefix("net."): tensor for name, tensor in tensors.items()})
        return cls(net, Calibration.from_tensor(knots), projection)

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {f"net.{name}": tensor for name, tensor in self.net.state_dict().items()}
        tensors["calibration"] = self.calibration.to_tensor()
        return tensors if self.projection is None else {**tensors, "cut": self.projection}

    def _split(self, vectors: Tensor) -> list[Tensor]:
        return self.net.split(vectors.to(_float64_device(self.net.shift.device)).double())

    def _check_whole(self, *batches: Tensor) -> None:
        for vectors in batches:
            if self.projection is not None or vectors.shape[-1] != self.net.spec.size:
                raise InputError(
                    f"This head compares whole vectors of {self.net.spec.size} dimensions, not {vectors.shape[-1]}: "
                    "a truncated vector has lost its blocks."
                )

    def _pair_head_on(self, device: torch.device) -> PairHead:
        return self.net.pair if device == self.net.shift.device else deepcopy(self.net.pair).to(device)

    def _score(self, cosines: Tensor) -> Tensor:
        """Scores from [..., block] cosines; the head "each" gives the mean over the blocks."""
        scores: Tensor = self._pair_head_on(cosines.device)(cosines)
        return (scores.mean(dim=-1) if self.net.spec.head == "each" else scores).float().cpu()


@dataclass(frozen=True)
class Explanation:
    """Which readings make two texts similar: cosine and contribution of each, and the resulting score."""

    score: float
    """Calibrated score between 0 and 1."""
    similarity: float
    """Score before calibration."""
    readings: tuple[Reading, ...]
    cosines: tuple[float, ...]
    contributions: tuple[float, ...]
    """Under the head "sum" they add up to the similarity, under "gated" to the similarity - 1; under "each" they are
    the scores of the layers; under "mlp": what the similarity would lose if the layer only repeated the others."""


def explain_pair(head: Any, readings: Sequence[Reading], vectors: Any) -> Explanation:
    """Explain the score of two texts.

    Args:
        head: The head of the encoder; must be a `LayerwiseHead` with one block per reading.
        readings: The readings of the encoder.
        vectors: [2, dim] embeddings of the two texts.
    """
    if not isinstance(head, LayerwiseHead) or head.projection is not None or head.net.spec.mixing != "none":
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


def _float64_device(device: torch.device) -> torch.device:
    """A device that can compute in float64: Apple's GPUs cannot."""
    return torch.device("cpu") if device.type == "mps" else device


def _all_cosines(left: list[Tensor], right: list[Tensor]) -> Tensor:
    """[block, n, m] cosines of all rows with all rows."""
    return torch.cat([a @ b.transpose(1, 2) for a, b in zip(left, right, strict=True)]).float()
