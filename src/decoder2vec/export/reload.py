"""Use exported folders where this package cannot be imported: `python reload.py REQUEST RESULT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(request_file: Path, vectors_file: Path) -> None:
    """Make the requested calls folder by folder and write the vectors of all calls in that order."""
    sys.modules["decoder2vec"] = None  # type: ignore[assignment]
    import numpy as np
    import sentence_transformers

    vectors = []
    for export in json.loads(request_file.read_text(encoding="utf-8")):
        load = getattr(sentence_transformers, export["class"])
        model = load(export["folder"], local_files_only=True, **export["options"])
        for method, texts, arguments in export["calls"]:
            vectors.append(getattr(model, method)(texts, show_progress_bar=False, **arguments))
    np.savez(vectors_file, *vectors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
