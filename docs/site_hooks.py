"""Changes to pages when the documentation site is built (`make site`)."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page without links to tests, which are files of the repository and not of the site; their text stays."""
    return re.sub(r"\[([^\]]+)\]\(\.\./tests/[^)]+\)", r"\1", markdown)
