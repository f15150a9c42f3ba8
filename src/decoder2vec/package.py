"""The version of the package, and subpackages that are also public functions."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__version__ = "0.2.0"


class CallablePackage(ModuleType):
    """A subpackage with the name of a public function.

    Importing any module of `decoder2vec.export` binds `decoder2vec.export` to the package, and the function of that
    name must still be callable: the package forwards the call.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the public function of the package's name."""
        package, _, name = self.__name__.rpartition(".")
        return sys.modules[package].__getattr__(name)(*args, **kwargs)
