"""The exceptions a user can meet, one class for each cause. Each message is one sentence that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Decoder2VecError(Exception):
    """Base of all errors of this package."""


class InputError(Decoder2VecError, ValueError):
    """The caller passed a text, name, number or combination of options that cannot be used."""


class TextError(InputError):
    """One text of a list cannot be used.

    Args:
        index: Its index in the caller's list.
        text: The text.
        reason: Why, and what to do, to follow "Text 3".
    """

    def __init__(self, index: int, text: str, reason: str) -> None:
        super().__init__(f"Text {index} {reason}")
        self.text, self.reason = text, reason


class UnknownNameError(InputError):
    """A name does not exist, whatever else is chosen."""


class DataFileError(Decoder2VecError, ValueError):
    """A data file is missing, malformed or of the wrong kind."""


class UnsupportedError(Decoder2VecError, RuntimeError):
    """A model family, encoder or machine cannot do what was requested."""


class DivergedError(Decoder2VecError, ArithmeticError):
    """Training produced a loss or dev score that is not finite."""


class OtherProcessError(Decoder2VecError, RuntimeError):
    """Another process of the same training has failed, and says why."""


class StorageError(Decoder2VecError, RuntimeError):
    """A file cannot be written (full disk, permissions, lock), or stored data is damaged or of something else."""


class BackboneError(Decoder2VecError, RuntimeError):
    """A language model cannot be found, downloaded, converted or loaded."""


class EncoderError(Decoder2VecError, RuntimeError):
    """A saved encoder is broken, a server of vectors fails, or an encoder returns vectors that are not finite."""


class MissingExtraError(Decoder2VecError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"This needs {package}: pip install 'decoder2vec[{extra}]'.")


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """An error for a name that does not exist, with the nearest names that do."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(names)}."
    return UnknownNameError(f"Unknown {kind} {name!r}. {hint}")
