"""A training step of FREEZE's code network: all layers in one batched product, against a Python loop over layers.

Run: python bench/layerwise_training.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from decoder2vec.heads.codes import CodeNet, CodeSpec
from decoder2vec.maths.losses import log_variance_loss
from measure import best_seconds, report

LAYERS, DIM, HIDDEN, WIDTHS, PAIRS = 30, 576, 288, (256, 512), 64


class LayerLoop(nn.Module):
    """The same encoders as one module per layer, as research code writes them."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, HIDDEN), nn.LayerNorm(HIDDEN), nn.GELU(), nn.Linear(HIDDEN, width))
            for width in widths
        )
        self.head = nn.Sequential(nn.Linear(len(widths), 64), nn.GELU(), nn.Linear(64, 1))

    def score(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return [pairs] scores of [layers, pairs, dim] latents."""
        cosines = [
            functional.cosine_similarity(encode(a), encode(b))
            for encode, a, b in zip(self.encoders, left, right, strict=True)
        ]
        return torch.sigmoid(self.head(torch.stack(cosines, dim=1))).squeeze(-1)


def step_seconds(model: nn.Module, device: torch.device, steps: int) -> float:
    """Return the seconds of one forward, backward and optimiser step."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    left, right = (torch.randn(LAYERS, PAIRS, DIM, device=device) for _ in range(2))
    target = torch.rand(PAIRS, device=device)

    def run_steps() -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            log_variance_loss(model.score(left, right), target).backward()
            optimizer.step()

    run_steps()  # warm up
    return best_seconds(run_steps, 4) / steps


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    half = LAYERS // 2
    widths = (WIDTHS[0],) * (LAYERS - half) + (WIDTHS[1],) * half
    steps = 50 if device.type == "cuda" else 4
    batched = step_seconds(CodeNet(CodeSpec(DIM, widths, HIDDEN, head="mlp")).to(device), device, steps)
    loop = step_seconds(LayerLoop(widths).to(device), device, steps)
    rows = [("batched", f"{1000 * batched:.2f}"), ("loop over layers", f"{1000 * loop:.2f}")]
    report("layerwise_training", ("way", "ms per step"), rows, ratio=round(loop / batched, 2), pairs=PAIRS)


if __name__ == "__main__":
    main()
