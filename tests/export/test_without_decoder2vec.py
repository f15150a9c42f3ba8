"""Exported folders in a process that cannot import decoder2vec: vectors of ordinary, empty and long texts are equal."""

from __future__ import annotations

import json

import numpy as np
import pytest

ENCODERS = (
    *("mean", "max", "lora", "bidirectional", "standardise", "whiten", "root mean square"),
    *("inner layer, mean", "last layer before the norm", "embeddings", "suffix", "suffix, no prefix", "sweep winner"),
    *("two layers", "freeze", "freeze, suffix", "freeze, projected"),
)
NEEDS_TRUST = ("two layers", "freeze", "freeze, suffix", "freeze, projected")

TEXTS = [
    "A dog runs.",
    "",
    'She said: "no"',
    "the long road goes over the green hills and down to the sea where nobody waits " * 20,
    "Ein Café – 中文!",
]

SCRIPT = """
import importlib.abc, json, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "decoder2vec":
            raise ImportError("decoder2vec is not installed here")

sys.meta_path.insert(0, Blocker())
import numpy as np
from sentence_transformers import SentenceTransformer

texts, folders, out = json.loads(sys.argv[1])
vectors = {}
for name, (folder, options) in folders.items():
    model = SentenceTransformer(folder, device="cpu", **options)
    vectors[name] = model.encode(texts)
    vectors[name + " one by one"] = np.stack([model.encode(text) for text in texts])
np.savez(out, **vectors)
assert not [name for name in sys.modules if name.split(".")[0] == "decoder2vec"]
"""


@pytest.fixture(scope="module")
def vectors(folders, tmp_path_factory, quick_python):
    """Vectors of the folders by name, computed in one process without decoder2vec."""
    scratch = tmp_path_factory.mktemp("vectors")
    trusted = {"trust_remote_code": True}
    requested = {name: (str(folders[name]), trusted if name in NEEDS_TRUST else {}) for name in ENCODERS}
    environment = {"PATH": "", "HOME": str(scratch), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    request = json.dumps([TEXTS, requested, str(scratch / "out.npz")])
    quick_python.run(SCRIPT, request, env=environment, imported=["sentence_transformers"]).check_returncode()
    with np.load(scratch / "out.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_equal_without_decoder2vec(name, vectors, encoders):
    expected = encoders[name].encode(TEXTS)
    for found in (vectors[name], vectors[f"{name} one by one"]):
        assert (np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)).max() < 1e-4


def test_only_our_own_module_needs_trust(folders):
    for name, folder in folders.items():
        types = [module["type"] for module in json.loads((folder / "modules.json").read_text(encoding="utf-8"))]
        own = [type_ for type_ in types if not type_.startswith("sentence_transformers.")]
        assert own == (["layerwise_pooling.LayerwisePooling"] if (folder / "layerwise_pooling.py").exists() else [])
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert bool(own) == ("trust_remote_code=True" in card) == name.startswith(("freeze", "two layers"))
