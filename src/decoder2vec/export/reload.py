"""`python -m decoder2vec.export.reload REQUEST RESULT`: exported folders, read by sentence-transformers alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(request: Path, result: Path) -> None:
    """Encode what the request asks for, folder by folder, and write the vectors in that order."""
    import numpy as np
    from sentence_transformers import SentenceTransformer

    vectors = []
    for wanted in json.loads(request.read_text(encoding="utf-8")):
        model = SentenceTransformer(wanted["folder"], device=wanted["device"], local_files_only=True)
        for method, texts, arguments in wanted["calls"]:
            vectors.append(getattr(model, method)(texts, show_progress_bar=False, **arguments))
    np.savez(result, *vectors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
