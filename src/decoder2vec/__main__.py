"""`python -m decoder2vec` is the command `d2v`."""

from __future__ import annotations

from decoder2vec.cli import main

if __name__ == "__main__":
    main()
