"""Training of bridges: what is trained and what stays untouched, resuming, and the blind control."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from decoder2vec.adapters.lora import Lora
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.bridge.bridge import Bridge
from decoder2vec.bridge.control import blind_control, control_vectors, item_ranks
from decoder2vec.bridge.projector import Projector
from decoder2vec.bridge.vectors import CaptionedVectors
from decoder2vec.config import EncoderSpec, Reading
from decoder2vec.encoder import Encoder
from decoder2vec.errors import InputError, UnknownNameError
from decoder2vec.maths.losses import info_nce
from decoder2vec.training.bridge import BridgeConfig, _BridgeTraining, train_bridge
from decoder2vec.training.loop import Schedule
from toys.bridge import toy_items
from toys.training import perturbed

ITEMS = toy_items(120)
FAST = Schedule(epochs=2, batch=32, rate=5e-3, patience=10, clip=1.0)
SMALL = BridgeConfig(tokens=2, training=FAST, tuning=FAST)


def encoder_of(model):
    return Encoder(model, EncoderSpec(model.name, (Reading(-1, "mean", True),), "{text}"))


def base_of(objective, model):
    return model if objective == "lm" else encoder_of(model)


def weights_of(model):
    return {name: tensor.clone() for name, tensor in model.model.state_dict().items()}


@pytest.mark.parametrize("objective", ["contrastive", "lm"])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_model_stays_as_it_was_bit_for_bit(objective, rank, backbone, tmp_path):
    model = backbone("tiny-llama")
    before = weights_of(model)
    base = base_of(objective, model)
    texts = encoder_of(model).encode(ITEMS.captions[:5])
    result = train_bridge(base, ITEMS, tmp_path / "bridge", replace(SMALL, objective=objective, rank=rank))
    after = weights_of(model)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert np.array_equal(encoder_of(model).encode(ITEMS.captions[:5]), texts)
    assert [stage["stage"] for stage in result.results["stages"]] == ["projector", "lora"][: 2 if rank else 1]
    assert (result.bridge.lora is not None) == bool(rank)
    assert result.results["stages"][-1]["best"] >= result.results["stages"][0]["start"]
    loaded = Bridge.from_pretrained(tmp_path / "bridge", device="cpu", dtype="float32")
    assert loaded.fingerprint == result.bridge.fingerprint
    assert not (tmp_path / "bridge.unfinished").exists()
    assert "real - shuffled" in (tmp_path / "bridge" / "README.md").read_text()


def test_real_vectors_beat_shuffled_ones_only_where_captions_follow_from_them(backbone, tmp_path):
    encoder = encoder_of(backbone("tiny-llama"))
    config = replace(SMALL, training=replace(FAST, epochs=30, batch=64, rate=1e-2))
    # all captions occur in training: a random tiny model does not generalise to new ones
    test = toy_items(60, seed=5)
    learned = train_bridge(encoder, toy_items(300), tmp_path / "learned", config, test=test)
    gains = learned.control.differences["reciprocal rank"]
    assert learned.control.uses_vectors and gains["shuffled"].low > 5 and gains["zeroed"].low > 5
    independent = toy_items(60, seed=5, independent=True)
    blind = train_bridge(encoder, toy_items(300, independent=True), tmp_path / "blind", config, test=independent)
    assert blind.control.differences["reciprocal rank"]["shuffled"].low <= 0
    assert not blind.control.uses_vectors
    assert "has learned nothing" in (tmp_path / "blind" / "README.md").read_text()


def test_descriptions_follow_from_the_vectors(backbone, tmp_path):
    config = replace(SMALL, objective="lm", rank=4, training=replace(FAST, epochs=10), tuning=replace(FAST, epochs=25))
    test = toy_items(40, seed=5)
    result = train_bridge(backbone("tiny-llama"), toy_items(300), tmp_path / "bridge", config, test=test)
    assert result.control.differences["likelihood"]["shuffled"].low > 0.1
    assert result.control.differences["likelihood"]["zeroed"].low > 0.1
    assert set(result.control.scores) == {"likelihood", "BLEU", "ROUGE-L", "token F1"}
    assert len(result.control.texts["real"]) == len(set(result.control.texts["zeroed"])) * 40


@pytest.mark.parametrize("objective", ["contrastive", "lm"])
def test_an_interrupted_training_goes_on(objective, backbone, tmp_path):
    config = replace(SMALL, objective=objective, rank=2)
    base = base_of(objective, backbone("tiny-llama"))
    whole = train_bridge(base, ITEMS, tmp_path / "whole", config)

    class Interrupt:
        def __init__(self, stage, step):
            self.stage, self.step = stage, step

        def __call__(self, state):
            if (state.stage, state.step) == (self.stage, self.step):
                raise KeyboardInterrupt

    for stage, step in (("projector", 2), ("lora", 1)):
        with pytest.raises(KeyboardInterrupt):
            train_bridge(base, ITEMS, tmp_path / "again", config, on_progress=Interrupt(stage, step))
        assert list((tmp_path / "again.unfinished").glob("*.safetensors"))
        assert not (tmp_path / "again").exists()
    steps = []
    again = train_bridge(base, ITEMS, tmp_path / "again", config, on_progress=steps.append)
    assert steps[0].stage == "projector" and sum(state.stage == "projector" for state in steps) == 1, "only its end"
    assert again.bridge.projector.digest() == whole.bridge.projector.digest()
    assert again.bridge.lora.digest() == whole.bridge.lora.digest()
    assert again.results["control"] == whole.results["control"]


def test_the_same_training_is_not_done_twice(backbone, tmp_path):
    encoder = encoder_of(backbone("tiny-llama"))
    first = train_bridge(encoder, ITEMS, tmp_path / "bridge", SMALL)
    second = train_bridge(encoder, ITEMS, tmp_path / "bridge", SMALL, device="cpu", dtype="float32")
    assert first.trained and not second.trained and second.results == json.loads(json.dumps(first.results))
    assert second.control.rows() == first.control.rows() and second.control.to_json() == first.control.to_json()
    with pytest.raises(InputError, match="holds another bridge"):
        train_bridge(encoder, ITEMS, tmp_path / "bridge", replace(SMALL, seed=1))
    assert train_bridge(encoder, ITEMS, tmp_path / "bridge", replace(SMALL, seed=1), overwrite=True).trained


def test_the_contrastive_loss_is_info_nce_without_false_negatives(backbone):
    encoder = encoder_of(backbone("tiny-llama"))
    items = CaptionedVectors(ITEMS.vectors[:6], ["a b", "c d", "a b", "e f", "c d", "g h"])
    training = _BridgeTraining(encoder, None, items, items, SMALL)
    loss = training._contrastive_loss(np.arange(6))
    left = training.bridge.item_vectors(items.vectors)
    right = torch.from_numpy(encoder.encode_document(items.captions))
    cosines = torch.nn.functional.cosine_similarity(left[:, None], right[None], dim=2).double() / 0.05
    total = 0.0
    for row in range(6):
        others = [at for at in range(6) if at == row or items.captions[at] != items.captions[row]]
        position = others.index(row)
        total -= torch.log_softmax(cosines[row, others], 0)[position] / 12
        total -= torch.log_softmax(cosines[others, row], 0)[position] / 12
    assert loss.item() == pytest.approx(total.item(), rel=1e-4)
    assert loss.item() != pytest.approx(info_nce(left, right, symmetric=True).item(), rel=1e-3)


def test_an_encoder_with_lora_is_bridged_after_it_was_used(backbone, tmp_path):
    """Merged weights that were cached in inference mode must not stop gradients."""
    model = backbone("tiny-llama")
    lora = perturbed(Lora.initialise(model, 2, 4)).requires_grad_(False)
    encoder = encoder_of(model.with_adapter(lora))
    before, digest = encoder.encode(ITEMS.captions[:4]), lora.digest()
    result = train_bridge(encoder, ITEMS, tmp_path / "bridge", replace(SMALL, rank=8))
    assert result.bridge.lora.config == lora.config and result.bridge.lora is not lora
    assert result.results["stages"][1]["losses"]
    assert lora.digest() == digest and np.array_equal(encoder.encode(ITEMS.captions[:4]), before)


def test_names_of_models_are_kept(own_cache, tmp_path):
    described = train_bridge("tiny-llama", ITEMS, tmp_path / "lm", replace(SMALL, objective="lm"), device="cpu")
    assert json.loads((tmp_path / "lm" / "bridge.json").read_text())["base"] == "tiny-llama"
    assert described.bridge.prompt == "Description:"
    train_bridge("tiny-llama", ITEMS, tmp_path / "model", SMALL, device="cpu", dtype="float32")
    assert (tmp_path / "model" / "encoder" / "encoder.json").is_file(), "a model as an encoder has settings of its own"
    saved = Encoder.from_pretrained("tiny-llama", pooling="mean", device="cpu").save(tmp_path / "enc")
    named = train_bridge(saved, ITEMS, tmp_path / "named", SMALL, device="cpu")
    assert named.bridge.base_name == str(Path(saved).resolve())
    assert not (tmp_path / "named" / "encoder").exists()
    with pytest.raises(InputError, match="is an encoder, which writes no texts; give its language model, tiny-llama"):
        train_bridge(saved, ITEMS, tmp_path / "other", replace(SMALL, objective="lm"))


def test_wrong_settings_are_one_sentence(backbone, tmp_path):
    with pytest.raises(UnknownNameError, match="contrastiv"):
        BridgeConfig("contrastiv")
    with pytest.raises(UnknownNameError, match="lin"):
        BridgeConfig(kind="lin")
    with pytest.raises(InputError, match="trains no embeddings of words"):
        BridgeConfig(tuning=Schedule(partial_vocabulary=True))
    with pytest.raises(InputError, match="rank must be 0 or more"):
        BridgeConfig(rank=-1)
    with pytest.raises(InputError, match="leads to an encoder"):
        train_bridge(backbone("tiny-llama"), ITEMS, tmp_path / "bridge", SMALL)
    with pytest.raises(InputError, match="has vectors of 4 dimensions, not 12"):
        test = CaptionedVectors(ITEMS.vectors[:9, :4], ITEMS.captions[:9])
        train_bridge(encoder_of(backbone("tiny-llama")), ITEMS, tmp_path / "bridge", SMALL, test=test)


# --- the blind control ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bridge(own_cache):
    model = Backbone.load("tiny-llama", device="cpu", dtype="float32")
    torch.manual_seed(0)
    return Bridge(encoder_of(model), Projector.initialise(model, ITEMS.vectors, 2).requires_grad_(False))


def test_zeroed_vectors_are_zeros_to_the_projector_and_nobody_keeps_their_own(bridge):
    inputs = control_vectors(bridge, ITEMS.vectors, seed=3)
    assert inputs["real"] is ITEMS.vectors
    projector = bridge.projector
    assert torch.equal((torch.from_numpy(inputs["zeroed"]) - projector.mean) / projector.scale, torch.zeros(120, 12))
    assert not (inputs["shuffled"] == ITEMS.vectors).all(axis=1).any()
    assert sorted(map(tuple, inputs["shuffled"].tolist())) == sorted(map(tuple, ITEMS.vectors.tolist()))


def test_ranks_equal_a_plain_loop(bridge):
    captions = ITEMS.captions[:20]
    ranks = item_ranks(bridge, ITEMS.vectors[:20], captions)
    texts, items = bridge.encoder.encode(captions), bridge.encode(ITEMS.vectors[:20])
    for row, caption in enumerate(captions):
        scores = [float(bridge.encoder.similarity(texts[row], item)) for item in items]
        better = [at for at in range(20) if captions[at] != caption and scores[at] > scores[row]]
        assert ranks[row] == 1 + len(better)


def test_equal_vectors_rank_in_the_middle(bridge):
    """Without input, no rank is better than chance, whatever the order of the items."""
    captions = [f"caption {row}" for row in range(11)]
    assert item_ranks(bridge, np.tile(bridge.blank, (11, 1)), captions).mean() == pytest.approx(6, abs=0.6)


def test_intervals_and_differences_belong_to_the_scores(bridge):
    control = blind_control(bridge, ITEMS, seed=1)
    assert control.items == 120 and control.texts == {}
    for name, arms in control.scores.items():
        assert list(arms) == ["real", "zeroed", "shuffled"]
        for arm in ("zeroed", "shuffled"):
            assert control.differences[name][arm].value == pytest.approx(arms["real"].value - arms[arm].value)
        assert all(each.low <= each.value <= each.high for each in arms.values())
    ranks = item_ranks(bridge, ITEMS.vectors, ITEMS.captions)
    assert control.scores["reciprocal rank"]["real"].value == pytest.approx(100 * np.mean(1 / ranks))
    assert blind_control(bridge, ITEMS, seed=1).to_json() == control.to_json()
    assert [row[0] for row in control.rows()] == ["reciprocal rank", "recall@1", "recall@10"]
