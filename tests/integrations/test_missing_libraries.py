"""Without its library, an integration says what to install."""

from __future__ import annotations

import importlib
import sys

import pytest

from decoder2vec.errors import MissingExtraError


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index", "llama-index"),
        ("haystack", "haystack", "haystack"),
    ],
)
def test_missing_library_is_named_in_one_sentence(monkeypatch, module, library, extra):
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"decoder2vec.integrations.{module}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"pip install 'decoder2vec\[{extra}\]'"):
        importlib.import_module(f"decoder2vec.integrations.{module}")
