"""Reports: figures, tables and one HTML page system for training runs, comparisons and matchings."""

from __future__ import annotations

import sys

from decoder2vec.package import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
