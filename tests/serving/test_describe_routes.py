"""/describe over HTTP, compared with the bridge itself."""

from __future__ import annotations

import httpx
import numpy as np
import pytest
import torch

from decoder2vec.backbone.backbone import Backbone
from decoder2vec.bridge.bridge import Bridge
from decoder2vec.bridge.projector import Projector
from decoder2vec.errors import InputError
from decoder2vec.serving.app import ServerConfig, create_app

TEXTS = ["cats sleep", "stocks fell sharply on Monday"]


def bridge_of(dim):
    model = Backbone.load("tiny-gpt2", device="cpu", dtype="float32")
    torch.manual_seed(0)
    vectors = np.random.default_rng(0).normal(size=(50, dim))
    return Bridge(model, Projector.initialise(model, vectors, 2).requires_grad_(False), "Description:")


def test_descriptions_are_those_of_the_bridge(serving, offline):
    bridge = bridge_of(offline.dim)
    expected = bridge.describe(offline.encode(TEXTS))
    blind = bridge.describe(bridge.blank[None])[0]
    assert expected[0] != expected[1]
    with serving(bridge=bridge) as url, httpx.Client(base_url=url, timeout=30) as client:
        for text, description in zip(TEXTS, expected, strict=True):
            answer = client.post("/describe", json={"text": text})
            assert answer.status_code == 200, answer.text
            assert answer.json() == {"description": description, "without_vector": blind}
        assert client.post("/describe", json={"text": ""}).status_code == 400
        assert client.post("/describe", json={}).status_code == 400


def test_without_a_bridge_it_is_a_404(client):
    answer = client.post("/describe", json={"text": "cats sleep"})
    assert answer.status_code == 404 and "--describe BRIDGE" in answer.json()["error"]["message"]


def test_a_bridge_that_cannot_describe_is_refused(encoder):
    with pytest.raises(InputError, match="takes vectors of 5 dimensions"):
        create_app(ServerConfig(encoder, bridge=bridge_of(5)))
    projector = bridge_of(encoder.dim).projector
    with pytest.raises(InputError, match="is trained by contrastive"):
        create_app(ServerConfig(encoder, bridge=Bridge(encoder, projector)))
