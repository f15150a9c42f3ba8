"""Reports: figures, tables and one HTML page system for training runs, comparisons and matchings.

The package is callable: `decoder2vec.report(paths)` is `decoder2vec.report.api.report(paths)`, whether or not a module
of the package was imported before. Its public functions are imported on first use.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoder2vec.report.api import match_report as match_report
    from decoder2vec.report.api import report as report

_PUBLIC = ("match_report", "report")


class _Report(ModuleType):
    """The package, callable like its main function: both have the name `decoder2vec.report`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from decoder2vec.report import api

        return api.report(*args, **kwargs)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from decoder2vec.report import api

    return getattr(api, name)


sys.modules[__name__].__class__ = _Report
