"""What counts as a token that has moved, by hand: some dimensions of a large model are far larger than the others."""

from __future__ import annotations

import pytest
import torch

from decoder2vec.backbone.attention import _moved

STATE = torch.tensor([[8000.0, 1.0, -2.0, 0.5, 0.0]])


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ([0.0, 0.0, 0.0, 0.0, 0.0], False),
        ([0.0, 0.001, 0.0, 0.0, 0.0], True),  # a thousandth of a small one is no rounding, small beside 8000 as it is
        ([0.008, 0.0, 0.0, 0.0, 0.0], False),  # a millionth of the huge one is, large beside the others as it is
        ([0.8, 0.0, 0.0, 0.0, 0.0], True),
        ([0.0, 0.0, 0.0, 0.0, 1e-6], False),  # one that is near zero by chance is measured by the others
        ([0.0, 0.0, 0.0, 0.0, 1e-3], True),
    ],
)
def test_each_dimension_is_its_own_scale(change, moved):
    after = torch.cat([STATE + torch.tensor([change]), STATE])
    assert _moved(STATE.repeat(2, 1), after).tolist() == [moved, False], "text by text"
