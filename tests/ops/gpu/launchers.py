"""Launchers of kernels as operations on the CPU's tensors, wherever the kernels run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Launchers:
    """The launchers of some modules, given and giving tensors on the CPU; what they change is copied back."""

    name = "gpu"

    def __init__(self, device: torch.device, *modules: Any) -> None:
        self.device = device
        self.modules = modules

    def __getattr__(self, name: str) -> Callable[..., Any]:
        launch = next(getattr(module, name) for module in self.modules if hasattr(module, name))

        def call(*args: Any, **named: Any) -> Any:
            there, named_there = self._sent(args), {key: self._sent(value) for key, value in named.items()}
            result = launch(*there, **named_there)
            for here, sent in zip(args, there, strict=True):
                if isinstance(here, Tensor) and sent is not here:
                    here.copy_(sent)
            return _brought(result)

        return call

    def _sent(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self.device)
        return type(value)(map(self._sent, value)) if isinstance(value, (list, tuple)) else value


def _brought(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    return type(value)(map(_brought, value)) if isinstance(value, Sequence) else value
