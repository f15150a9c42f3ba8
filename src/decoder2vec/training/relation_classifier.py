"""Train a reranker with labels as the classifier of a `PairMatcher`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from decoder2vec.config import fingerprint
from decoder2vec.errors import InputError
from decoder2vec.reranker import Reranker
from decoder2vec.storage import cache_root
from decoder2vec.training.api import train
from decoder2vec.training.data import TrainingData
from decoder2vec.training.labelled_pairs import LabelledPairs

_MIN_PAIRS = 20
_SETTINGS = ("objective.name=labels", "template=pair")


@dataclass(frozen=True)
class RerankerTraining:
    """Trains a model that reads both mentions of a pair, for `PairMatcher(train_classifier=...)`.

    An interrupted training goes on when it is called with the same pairs again, and a finished one is not repeated.

    Args:
        backbone: The model: built-in name, folder, .gguf file or hub id.
        settings: `key=value` over the recipe `rerank`, such as `training.epochs=1`.
        device: cuda, mps or cpu; by default the best one available.
        dtype: By default the one that suits the device.
        seed: Seed of the training.

    Example:
        >>> import decoder2vec as d2v
        >>> matcher = d2v.PairMatcher("tiny-llama", train_classifier=d2v.RerankerTraining("tiny-gpt2"))
    """

    backbone: str | Path = "smollm2-135m"
    settings: tuple[str, ...] = ()
    device: str | None = None
    dtype: str | None = None
    seed: int = 0

    def __call__(self, first: Sequence[str], second: Sequence[str], labels: Sequence[str]) -> Reranker:
        """Train on ordered pairs with their labels; every tenth of each label is set aside to select the best state.

        Raises:
            InputError: There are fewer than 20 pairs.
        """
        if len(labels) < _MIN_PAIRS:
            raise InputError(
                f"There are {len(labels)} pairs to train a reranker on, and {_MIN_PAIRS} are the least; give more "
                "relations, or leave the classifier out."
            )
        pairs = LabelledPairs(tuple(first), tuple(second), tuple(labels))
        learned, dev = pairs.split_dev()
        data = TrainingData(None, (), labelled=learned, labelled_dev=dev)
        folder = (
            cache_root() / "relations" / fingerprint(str(self.backbone), list(self.settings), self.seed, vars(pairs))
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        result = train(
            "rerank",
            data,
            self.backbone,
            folder,
            settings=[*_SETTINGS, *self.settings],
            seeds=(self.seed,),
            overwrite=True,
            device=self.device,
            dtype=self.dtype,
        )
        return result.reranker
