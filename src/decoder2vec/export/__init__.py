"""Write encoders in the formats of sentence-transformers, ONNX, peft and transformers."""

from __future__ import annotations

import sys

from decoder2vec.package import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
