"""The gated feed-forward network of nearly all current models."""

from __future__ import annotations

from typing import ClassVar, Protocol

from puna.nn.layers import Linear, linear_many
from puna.nn.module import Module, weight
from puna.ops import Array


class FeedForwardOptions(Protocol):
    """What the options of an architecture say about it."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def feed_forward_size(self) -> int: ...


class FeedForward(Module):
    """down(activation(gate(x), up(x))), Shazeer, arXiv:2002.05202."""

    options: FeedForwardOptions
    activation: ClassVar[str] = "swiglu"  # the operation

    gate: Linear = weight("ffn_gate", "feed_forward_size", "hidden_size")
    up: Linear = weight("ffn_up", "feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_down", "hidden_size", "feed_forward_size")

    def forward(self, hidden: Array) -> Array:
        gate, up = linear_many(hidden, self.gate, self.up)
        return self.down(getattr(self.ops, self.activation)(gate, up))
