"""The training of models with a tower, step by step: what demo-vision's and demo-audio's have in common."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from demo.muon import Muon


def optimisers(model: nn.Module, heads: nn.Module, tables: Collection[str]) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices, and AdamW for everything else.

    Parts of names in `tables` tell embeddings from the layers' matrices.
    """
    matrices, rest = [], []
    for name, parameter in model.named_parameters():
        is_table = any(part in name for part in tables)
        (rest if is_table or parameter.dim() < 2 else matrices).append(parameter)
    return [
        Muon(matrices, weight_decay=0.05),
        torch.optim.AdamW([*rest, *heads.parameters()], betas=(0.9, 0.95), weight_decay=0.0),
    ]


@dataclass
class Report:
    """The printed means over the last steps."""

    began: float = field(default_factory=time.monotonic)
    steps: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)

    def line(self, per_step: int, unit: str) -> str:
        """Return the means and the speed; a step trains on `per_step` of `unit`."""
        means = [f"{name} {value / self.steps:.3f}" for name, value in self.sums.items()]
        kinds = [f"{kind} {self.right[kind] / count:.2f}" for kind, count in sorted(self.total.items())]
        speed = self.steps * per_step / (time.monotonic() - self.began)
        spent = f"{speed:.1f} {unit}/s, {time.process_time():.0f} s"
        return f"{', '.join(means)}, {spent}; {'; '.join(kinds)}"


@dataclass
class TowerTraining:
    """The state that changes from step to step. `heads` teach the tower, and are discarded afterwards."""

    model: nn.Module
    heads: nn.Module
    updates: list[torch.optim.Optimizer]
    kept: float  # share of the averaged weights that a step keeps
    step: int = 0
    average: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def resume(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.heads.load_state_dict(saved["heads"])
        for optimiser, state in zip(self.updates, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.average, self.step = saved["average"], saved["step"]

    def save(self, path: Path) -> None:
        """Write a checkpoint, atomically replacing the last one."""
        state = {
            "step": self.step,
            "model": self.model.state_dict(),
            "heads": self.heads.state_dict(),
            "average": self.average,
            "optimisers": [optimiser.state_dict() for optimiser in self.updates],
        }
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)

    def update(self, loss: Tensor, rate: float) -> None:
        """Change the weights by the gradient of `loss`, and average them."""
        loss.backward()
        parameters = [*self.model.parameters(), *self.heads.parameters()]
        torch.nn.utils.clip_grad_norm_([p for p in parameters if p.grad is not None], 1.0)
        for optimiser in self.updates:
            optimiser.param_groups[0]["lr"] = rate
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                self.average[name].lerp_(p, 1 - min(self.kept, self.step / (self.step + 9)))
