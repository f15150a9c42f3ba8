"""Where results go: looked at before any work is done, and written all at once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from decoder2vec.errors import InputError
from decoder2vec.places import check_writable, whole_file


def check_target(target: Path | None, *endings: str, sources: Iterable[Path | str | None] = ()) -> None:
    """Refuse a file that would be written over what is read, that cannot be written, or is named as another kind."""
    if target is None:
        return
    if target.is_dir():
        raise InputError(f"{target} is a folder; name a file for the result.")
    for source in (Path(name) for name in sources if name):
        if source.is_file() and target.exists() and target.samefile(source):
            raise InputError(f"{target} is read, and would be written over; choose another file for the result.")
    if endings and target.suffix.lower() not in endings:
        raise InputError(f"{target} must end in {' or '.join(endings)}: that is what is written.")
    check_writable(target)


def write_json(target: Path, document: Any, *, allow_nan: bool = True) -> None:
    """The document as a file, one that is there already replaced."""
    with whole_file(target) as temporary:
        temporary.write_text(json.dumps(document, indent=1, allow_nan=allow_nan) + "\n", encoding="utf-8")
