"""Muon (Jordan et al., 2024): momentum with orthogonalised matrices, in batches of 32-bit floats.

The version in torch computes in bfloat16, which is slow on processors without such instructions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

_A, _B, _C = 3.4445, -4.7750, 2.0315  # of the quintic iteration


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return matrices [count, rows, columns], rows <= columns, with their singular values near 1."""
    x = matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=_B, alpha=_C), x, beta=_A)
    return x


class Muon(torch.optim.Optimizer):
    """Optimiser for matrices, and convolutions seen as matrices, with steps as large as AdamW's."""

    def __init__(self, parameters: Iterable[Tensor], weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(list(parameters), {"lr": 0.0, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is None:
                    continue
                kept = self.state[p].setdefault("momentum", torch.zeros_like(p))
                kept.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(kept, group["momentum"])
                flat = update.flatten(1)
                flat = flat if flat.shape[0] <= flat.shape[1] else flat.mT
                alike[flat.shape[0], flat.shape[1]].append((p, flat))
            for (rows, columns), pairs in alike.items():
                updates = orthogonal(torch.stack([flat for _, flat in pairs]))
                scale = 0.2 * max(rows, columns) ** 0.5
                for (p, _), update in zip(pairs, updates, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    flat = update if p.shape[0] == rows else update.mT
                    p.add_(flat.reshape(p.shape), alpha=-group["lr"] * scale)
