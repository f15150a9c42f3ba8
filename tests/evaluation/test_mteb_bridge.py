"""The encoder protocol of mteb 2: batches in, one array out, each role with its own prompt."""

from __future__ import annotations

import builtins
import sys
from enum import StrEnum
from types import SimpleNamespace

import numpy as np
import pytest

from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import MissingExtraError
from decoder2vec.evaluation.mteb import MTEBEncoder

TEXTS = ["A man plays a guitar.", "Two dogs", "", "Bread needs time to rise.", "Two dogs"]
QUERY, DOCUMENT = "Find what this asks for: ", "A page of a book: "


class PromptType(StrEnum):
    """As mteb has it."""

    query = "query"
    document = "document"


def loader(texts, size=2):
    """What mteb hands over: batches of a data loader, which are dicts of lists."""
    return [{"text": texts[i : i + size], "id": list(range(i, i + size))} for i in range(0, len(texts), size)]


def make(backbone, **prompts):
    spec = EncoderSpec("tiny-llama", (Reading(2, "mean"),), prompts=tuple(prompts.items()))
    return Encoder(backbone("tiny-llama"), spec)


@pytest.fixture
def task():
    """What mteb says about a task along with the batches."""
    return {"task_metadata": SimpleNamespace(name="STSBenchmark"), "hf_split": "test", "hf_subset": "default"}


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_batches_give_what_encode_gives(backbone, task, size):
    encoder = make(backbone)
    found = MTEBEncoder(encoder).encode(loader(TEXTS, size), **task)
    assert isinstance(found, np.ndarray) and found.shape == (5, encoder.dim)
    assert np.allclose(found, np.stack([encoder.encode(text) for text in TEXTS]), atol=1e-5)


def test_a_loader_may_be_read_only_once(backbone, task):
    encoder = make(backbone)
    found = MTEBEncoder(encoder).encode((batch for batch in loader(TEXTS)), **task)
    assert np.allclose(found, encoder.encode(TEXTS), atol=1e-5)


def test_arguments_of_a_newer_mteb_do_not_hurt(backbone, task):
    encoder = make(backbone)
    found = MTEBEncoder(encoder).encode(loader(TEXTS), **task, batch_size=8, show_progress_bar=False, something_new=1)
    assert np.allclose(found, encoder.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("spelled", [lambda name: PromptType(name), str], ids=["enum", "string"])
@pytest.mark.parametrize(("role", "prompt"), [("query", QUERY), ("document", DOCUMENT)])
def test_each_role_gets_its_own_prompt(backbone, task, role, prompt, spelled):
    encoder = make(backbone, query=QUERY, document=DOCUMENT)
    found = MTEBEncoder(encoder).encode(loader(TEXTS), **task, prompt_type=spelled(role))
    expected = encoder.encode(TEXTS, prompt=prompt)
    assert np.allclose(found, expected, atol=1e-5)
    other = encoder.encode(TEXTS, prompt=DOCUMENT if role == "query" else QUERY)
    assert not np.allclose(found, other, atol=1e-2)
    assert not np.allclose(found, encoder.encode(TEXTS), atol=1e-2)


@pytest.mark.parametrize("name", ["document", "passage", "corpus"])
def test_documents_take_their_prompt_under_any_of_its_names(backbone, task, name):
    encoder = make(backbone, **{name: DOCUMENT})
    found = MTEBEncoder(encoder).encode(loader(TEXTS), **task, prompt_type=PromptType.document)
    assert np.allclose(found, encoder.encode(TEXTS, prompt=DOCUMENT), atol=1e-5)


def test_a_task_without_roles_gets_no_prompt(backbone, task):
    """STS, classification and clustering have neither queries nor documents; mteb's own wrapper calls plain encode."""
    encoder = make(backbone, query=QUERY, document=DOCUMENT)
    found = MTEBEncoder(encoder).encode(loader(TEXTS), **task, prompt_type=None)
    assert np.allclose(found, encoder.encode(TEXTS), atol=1e-5)


def test_similarities_are_the_encoders(backbone):
    encoder = make(backbone)
    as_mteb_model = MTEBEncoder(encoder)
    a, b = encoder.encode(TEXTS[:2]), encoder.encode(TEXTS[2:])
    expected = [[float(x @ y / np.linalg.norm(x) / np.linalg.norm(y)) for y in b] for x in a]
    assert np.allclose(np.asarray(as_mteb_model.similarity(a, b)), expected, atol=1e-5)
    assert np.allclose(
        np.asarray(as_mteb_model.similarity_pairwise(a, b[:2])), np.diag(np.array(expected)[:, :2]), atol=1e-5
    )


def test_without_mteb_the_extra_is_named(backbone, monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "mteb":
            raise ModuleNotFoundError("No module named 'mteb'", name="mteb")
        return real(name, *args, **kwargs)

    as_mteb_model = MTEBEncoder(make(backbone))  # making one and encoding need no mteb
    for module in [name for name in sys.modules if name.split(".")[0] == "mteb"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"mteb.*pip install 'decoder2vec\[mteb\]'"):
        _ = as_mteb_model.mteb_model_meta


def test_two_encoders_are_two_models_to_mteb(backbone, mteb):
    plain, prompted = make(backbone), make(backbone, query=QUERY)
    metas = [MTEBEncoder(encoder, "me/mine").mteb_model_meta for encoder in (plain, prompted)]
    assert [meta.revision for meta in metas] == [plain.fingerprint, prompted.fingerprint]
    assert metas[0].revision != metas[1].revision
    assert metas[0].name == "me/mine"
    assert (metas[0].embed_dim, metas[0].similarity_fn_name.value) == (32, "cosine")
    assert metas[0].adapted_from == "tiny-llama"
    assert metas[0].n_parameters == sum(weights.numel() for weights in plain.backbone.model.parameters())
    assert [meta.use_instructions for meta in metas] == [False, True]


def test_mteb_is_told_how_many_tokens_are_really_read(backbone, mteb):
    """The limit asked for is 512, but the model takes 256."""
    encoder = make(backbone)
    assert backbone("tiny-llama").model.config.max_position_embeddings == 256
    assert MTEBEncoder(encoder).mteb_model_meta.max_tokens == 256
