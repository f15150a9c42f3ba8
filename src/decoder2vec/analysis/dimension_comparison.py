"""Curves of intrinsic dimension against each other: whose area is larger, and is that more than chance?"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoder2vec.errors import DataFileError
from decoder2vec.maths.intrinsic_dimension import half_sample_interval


def read_curves(file: Path) -> list[dict[str, Any]]:
    """The curves in a file that `d2v analyze id` wrote: one, or several that were compared."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        curves = document.get("encoders", [document])
        for curve in curves:
            needed = {"encoder", "texts", "plan", "area", "layers", "area_samples"}
            if missing := needed - curve.keys():
                raise DataFileError(f"{file} has no {', '.join(sorted(missing))}; give a file of `d2v analyze id`.")
    except FileNotFoundError:
        raise DataFileError(f"There is no file {file}.") from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        if isinstance(error, DataFileError):
            raise
        raise DataFileError(f"{file} cannot be read as a result of `d2v analyze id`: {error}.") from None
    return [{**curve, "label": file.stem} for curve in curves] if len(curves) == 1 else list(curves)


def label(curve: dict[str, Any]) -> str:
    """What a curve is called beside others: the file it came from, if it was alone there, else its encoder."""
    return str(curve.get("label", curve["encoder"]))


def differences(curves: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Area of every curve but the first, less that of the first.

    Where texts and plan are the same, so were the random halves of the texts, and the difference has an interval.
    TwoNN depends on the number of points: `comparable` says whether that and the plan are the same.
    """
    return [_difference(curves[0], other) for other in curves[1:]]


def _difference(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    same_texts = first["texts"]["fingerprint"] == other["texts"]["fingerprint"]
    same_plan = first["plan"] == other["plan"]
    areas = first["area"]["unit"], other["area"]["unit"]
    result: dict[str, Any] = {
        "encoder": label(other),
        "less": label(first),
        "area_unit": None if None in areas else round(areas[1] - areas[0], 4),
        "area_unit_95": None,
        "comparable": same_plan and first["texts"]["count"] == other["texts"]["count"],
    }
    if same_texts and same_plan and first["area_samples"] and other["area_samples"]:
        low, high = half_sample_interval(areas[1] - areas[0], _unit_samples(other) - _unit_samples(first))
        result["area_unit_95"] = [round(low, 4), round(high, 4)]
    return result


def _unit_samples(curve: dict[str, Any]) -> Any:
    """Areas over a depth of 1, so that a model cut short is not smaller for that alone."""
    layers = curve["area"]["layers"]
    return np.array(curve["area_samples"]) * layers / max(1, layers - 1)


def area_said(curve: dict[str, Any]) -> str:
    """The area in words."""
    value, bounds = curve["area"]["unit"], curve["area"]["unit_95"]
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.2f}" + (f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else "")
