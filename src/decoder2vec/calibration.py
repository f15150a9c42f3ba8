"""Calibrate an encoder: from labelled pairs to the probability that two texts belong together."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decoder2vec.encoder import Encoder
from decoder2vec.encoder_folder import (
    BUILTIN_ENCODERS,
    check_output_folder,
    is_encoder_folder,
    saved_encoder_folder,
    write_probabilities,
)
from decoder2vec.errors import InputError
from decoder2vec.heads.layerwise import LayerwiseHead
from decoder2vec.matching.match import MatchConfig, score_sides
from decoder2vec.matching.section_scores import TextSimilarity
from decoder2vec.matching.sides import Side, SideDocument
from decoder2vec.maths.probability import CurveQuality, Floats, ProbabilityCurve, cross_validate
from decoder2vec.maths.similarity import pairwise_similarity
from decoder2vec.progress import current_progress
from decoder2vec.search.index import Index, open_with_header
from decoder2vec.search.store import encoder_folder, without_password
from decoder2vec.storage import atomic_folder
from decoder2vec.text.files import PAIR_COLUMNS, ScoredPairs, read_pairs, read_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCORES = ("similarity", "search", "match")
"""Scores that get a probability: of two texts, of a query and a document, and of a matching."""
_MATCHED_AT_ONCE = 200
"""Pairs whose texts are matched as two lists; all with all, so many more would take long."""


@dataclass(frozen=True)
class CalibratedScore:
    """One kind of score: its curve, and how good its probabilities are."""

    curve: ProbabilityCurve
    quality: CurveQuality
    scores: Floats
    """[pairs] scores of the labelled pairs."""
    probabilities: Floats
    """[pairs] probabilities of the labelled pairs, each by a curve that was not fitted on it."""


@dataclass(frozen=True)
class CalibrationResult:
    """What `calibrate` found."""

    scores: dict[str, CalibratedScore]
    """By the name of the score: similarity, search, match. One that does not rise with the label is left out."""
    labels: NDArray[np.bool_]
    """[pairs] whether each labelled pair is positive."""
    folder: Path | None
    """The saved encoder with the probabilities; None if nothing was written."""


def calibrate(
    encoder: Encoder | str | Path,
    data: str | Path | ScoredPairs,
    *,
    out: str | Path | None = None,
    positive_from: float | None = None,
    columns: Sequence[str] | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> CalibrationResult:
    """Fit the probability that a pair is positive, for similarities, search results and matches.

    A saved encoder keeps the curves, and so does an index that is made with it: `d2v similarity`, `d2v search` and
    `d2v match` then print a probability with its 95 % interval. It holds for pairs like the labelled ones: where
    positive pairs are rarer than there, the probabilities are too high.

    Args:
        encoder: The folder of a saved encoder or an index, which is completed; or an `Encoder`, a model or a built-in
            encoder, which is left as it is.
        data: Labelled pairs, or a .tsv, .csv or .jsonl file of them: two texts and 1 (positive) or 0.
        out: Folder for a copy of the encoder with the probabilities; needed for a model or a built-in encoder.
        positive_from: Pairs with this score or more are positive; needed where there are more than two scores.
        columns: Names of the columns of the file; by default sentence1, sentence2, and score or label.
        device: cuda, mps or cpu; by default the best one available.
        dtype: Dtype of the weights; by default the one that suits the device.

    Returns:
        The curves with their quality. An `Encoder` that was passed has them in `probabilities`, too.

    Raises:
        InputError: There are too few pairs of a label, or similarities do not rise with the label.

    Example:
        >>> import decoder2vec as d2v
        >>> from decoder2vec import ScoredPairs
        >>> words = ["bread", "pumps", "songs", "maps", "goats"]
        >>> left = [f"We sell {word}." for word in words] * 2
        >>> right = [f"They sell {word}." for word in words] + ["Rain fell on the hills all night."] * 5
        >>> encoder = d2v.Encoder.from_pretrained("tiny-llama", layer=0, pooling="mean", template="plain")
        >>> result = d2v.calibrate(encoder, ScoredPairs("toy", left, right, [1.0] * 5 + [0.0] * 5))
        >>> result.scores["similarity"].curve.slope > 0
        True
    """
    pairs = data if isinstance(data, ScoredPairs) else read_pairs(data, columns or _columns_of(data))
    labels = positive_labels(pairs, positive_from)
    source = _saved_folder(encoder)
    target = _target_folder(encoder, source, out)
    progress = current_progress()
    progress.expect("encoding", 3 * len(pairs))
    model = encoder
    if not isinstance(model, Encoder):
        model = Encoder.from_pretrained(source or model, device=device, dtype=dtype)
    with progress.phase("encoding"):
        raw = _raw_scores(model, pairs)
    calibrated = {name: _calibrate_score(scores, labels) for name, scores in raw.items()}
    useful = {name: score for name, score in calibrated.items() if score.curve.slope > 0}
    if "similarity" not in useful:
        raise InputError(
            f"{pairs.name}: positive pairs are not more similar than negative ones for this encoder, so there is "
            "nothing to calibrate; check the labels, or train the encoder on such pairs."
        )
    model.probabilities = {name: score.curve for name, score in useful.items()}
    if target:
        _save(model, source, target)
    return CalibrationResult(useful, labels, target)


def positive_labels(pairs: ScoredPairs, positive_from: float | None = None) -> NDArray[np.bool_]:
    """Return which pairs are positive: those with the higher of two scores, or from a given score on."""
    scores = np.asarray(pairs.scores)
    values = np.unique(scores)
    if positive_from is None and len(values) > 2:
        raise InputError(
            f"{pairs.name} has scores from {values[0]:g} to {values[-1]:g}; say from which score on a pair is positive "
            f"with --positive-from, such as {values[len(values) // 2]:g}."
        )
    pairs.check_scores()
    return scores >= (values[-1] if positive_from is None else positive_from)


def _columns_of(file: str | Path) -> Sequence[str]:
    """The columns of labelled pairs: a label is a score, too."""
    _, first_row = next(read_rows(file), (0, dict[str, Any]()))
    *texts, score = PAIR_COLUMNS
    return (*texts, "label") if "label" in first_row and score not in first_row else PAIR_COLUMNS


def _raw_scores(encoder: Encoder, pairs: ScoredPairs) -> dict[str, Floats]:
    """The scores that users of the encoder will see, for each labelled pair."""
    similarity = TextSimilarity(encoder)
    similarities = similarity.of_pairs(pairs.left, pairs.right)
    searched = similarities
    if encoder.prompts or isinstance(encoder.head, LayerwiseHead):  # a search has prompts, and no head for pairs
        left, right = encoder.encode_query(pairs.left), encoder.encode_document(pairs.right)
        searched = pairwise_similarity(encoder.similarity_fn_name, left, right).double().numpy()
    return {"similarity": similarities, "search": searched, "match": _match_scores(similarity, pairs)}


def _match_scores(similarity: TextSimilarity, pairs: ScoredPairs) -> Floats:
    """Scores of the pairs in lists of a few hundred texts, as `match` gives them."""
    parts = []
    for start in range(0, len(pairs), _MATCHED_AT_ONCE):
        rows = slice(start, start + _MATCHED_AT_ONCE)
        sides = [list(dict.fromkeys(texts[rows])) for texts in (pairs.left, pairs.right)]
        left, right = (Side("", [SideDocument(text, text) for text in texts]) for texts in sides)
        scores = score_sides(left, right, similarity).fused(MatchConfig()).for_left
        row_of, column_of = ({text: row for row, text in enumerate(texts)} for texts in sides)
        cells = zip(pairs.left[rows], pairs.right[rows], strict=True)
        parts.append([float(scores[row_of[a], column_of[b]]) for a, b in cells])
    return np.concatenate(parts)


def _calibrate_score(scores: Floats, labels: NDArray[np.bool_]) -> CalibratedScore:
    curve = ProbabilityCurve.fit(scores, labels)
    quality, probabilities = cross_validate(scores, labels)
    return CalibratedScore(curve, quality, scores, probabilities)


def _saved_folder(encoder: Encoder | str | Path) -> Path | None:
    """The folder in which an encoder is saved, on its own or in an index; None if it is not."""
    if isinstance(encoder, Encoder):
        return None
    if not Index.exists(encoder):
        return saved_encoder_folder(encoder)
    folder = encoder_folder(open_with_header(encoder)[0])
    if not is_encoder_folder(folder):
        raise InputError(f"The encoder of {without_password(encoder)} is not known on this machine.")
    return folder


def _target_folder(encoder: Encoder | str | Path, source: Path | None, out: str | Path | None) -> Path | None:
    """Where the encoder with its probabilities is written; checked before the work."""
    if out is not None:
        check_output_folder(Path(out))
        return Path(out)
    if not isinstance(encoder, Encoder) and (source is None or source.parent == BUILTIN_ENCODERS):
        raise InputError(f"{encoder} is not the folder of a saved encoder; name a folder for the result with --out.")
    return source


def _save(model: Encoder, source: Path | None, target: Path) -> None:
    if source is None:
        model.save(target)
    elif source.resolve() != target.resolve():
        with atomic_folder(target, replace=True) as temporary:  # an exact copy, with its cards and its 8-bit adapter
            shutil.copytree(source, temporary, dirs_exist_ok=True)
            write_probabilities(temporary, model.probabilities)
    else:
        is_in_index = Index.exists(target.parent)  # which has a checksum of every file
        with open_with_header(target.parent)[0].write_lock() if is_in_index else nullcontext():
            write_probabilities(target, model.probabilities)
