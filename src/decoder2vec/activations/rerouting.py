"""Attach re-routing to a model, and verify from which layer on early tokens see the end of a text."""

from __future__ import annotations

import torch

from decoder2vec.activations.capture import Capture
from decoder2vec.adapters.rerouting import create_rerouting, parse_rerouting
from decoder2vec.backbone.attention import differs
from decoder2vec.backbone.backbone import Backbone
from decoder2vec.backbone.batch import TokenBatch
from decoder2vec.backbone.blocks import text_config
from decoder2vec.config import Reading
from decoder2vec.errors import UnsupportedError


def reroute(backbone: Backbone, name: str) -> Backbone:
    """The same model with a re-routing such as "prepend:2-8", after a check that it works; the weights are shared.

    It is checked in the named layers, and in the top layer alone, from which all layers below must be left out.

    Raises:
        InputError: The name has no range of layers, or one that the model does not have.
        UnknownNameError: There is no such re-routing method.
        UnsupportedError: The model cannot be re-routed in this way.
    """
    top = backbone.n_layers
    kind, first, _ = parse_rerouting(name, top)
    rerouted = backbone.with_adapter(create_rerouting(backbone, name))
    in_top_layer = backbone.with_adapter(create_rerouting(backbone, f"{kind}:{top}-{top}"))
    for attempt, expected in ((rerouted, first), (in_top_layer, top)):
        if (layer := _first_layer_that_sees_the_end(attempt)) != expected:
            raise UnsupportedError(
                f"{backbone.family} cannot be re-routed by {kind}: the first layer in which early tokens see the end "
                f"of a text is {layer or 'none'}, not {expected}."
            )
    return rerouted


@torch.inference_mode()
def _first_layer_that_sees_the_end(backbone: Backbone) -> int:
    """The lowest layer in which the state of a text's first token changes with the last token; 0 if no layer does."""
    vocabulary = text_config(backbone.model.config).vocab_size
    ids = torch.arange(7, 11).remainder(vocabulary).repeat(2, 1)
    ids[1, -1] = (ids[1, -1] + vocabulary // 2) % vocabulary
    batch = TokenBatch(ids, torch.ones_like(ids), start=torch.tensor([1, 1]), end=torch.tensor([4, 4]))
    capture = Capture(backbone, [Reading(layer, "cls") for layer in range(backbone.n_layers + 1)])
    states = capture(batch.to(backbone.device))
    return next((layer for layer, (one, other) in enumerate(states.unbind(1)) if differs(one[None], other[None])), 0)
