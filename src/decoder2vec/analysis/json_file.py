"""JSON files that other verbs left, read for a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from decoder2vec.errors import DataFileError


def load_json(file: Path, cure: str) -> Any:
    """What a file holds; one that cannot be read is an error that names it and the cure."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataFileError(f"Cannot read {file}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise DataFileError(f"{file} holds no JSON ({error}); {cure}, or leave it out.") from None
