"""The gated feed-forward network of nearly all current models."""

from __future__ import annotations

from typing import ClassVar, Final, Protocol

import torch

from puna import ops
from puna.nn.layers import Linear, linear_many
from puna.nn.module import Module, weight


class FeedForwardOptions(Protocol):
    """What the options of an architecture say about it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def feed_forward_size(self) -> int: ...


_ACTIVATIONS: Final = {"swiglu": ops.swiglu, "geglu": ops.geglu}


class FeedForward(Module):
    """down(activation(gate(x), up(x))), Shazeer, arXiv:2002.05202."""

    options: FeedForwardOptions
    activation: ClassVar[str] = "swiglu"

    gate: Linear = weight("ffn_gate", "feed_forward_size", "hidden_size")
    up: Linear = weight("ffn_up", "feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_down", "hidden_size", "feed_forward_size")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = linear_many(hidden, self.gate, self.up)
        return self.down(_ACTIVATIONS[self.activation](gate, up))
