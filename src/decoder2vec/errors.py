"""The few exceptions a user can meet. Each carries one sentence that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Decoder2VecError(Exception):
    """Anything this package refuses to do; catch this one to catch them all."""


class InputError(Decoder2VecError, ValueError):
    """A text, name or number handed in cannot be used as it is."""


class DataFileError(Decoder2VecError, ValueError):
    """A file of texts or pairs cannot be read as asked."""


class BackboneError(Decoder2VecError, RuntimeError):
    """A language model could not be found, pulled, converted or loaded."""


class UnsupportedError(Decoder2VecError, RuntimeError):
    """A model family cannot do what was asked, for the reason given."""


class StoreError(Decoder2VecError, RuntimeError):
    """The latents store on disk is damaged or belongs to something else."""


class MissingExtraError(Decoder2VecError, ImportError):
    """An optional dependency is needed for this."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"This needs {package}: pip install 'decoder2vec[{extra}]'.")


class UnknownNameError(InputError):
    """A name that does not exist, whatever else is chosen."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """An error for a name that does not exist, with the nearest ones that do."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(names)}."
    return UnknownNameError(f"Unknown {kind} {name!r}. {hint}")
