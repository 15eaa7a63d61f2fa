"""The half of a layer in which every token is on its own."""

from __future__ import annotations

from typing import ClassVar, Final, Protocol

import numpy as np

from puna.nn.layers import Linear, StackedLinear, linear_many
from puna.nn.module import Module, weight
from puna.ops import Array, Backend

#: A gate as many times as steep as a sigmoid is 0 or 1, but where numbers are too small to matter.
STEEP: Final = 2.0**20


def gelu_tanh(ops: Backend, x: Array) -> Array:
    """GELU by its approximation with tanh: [rows, n] to the same."""
    return ops.geglu(x, ops.array(np.ones(x.shape, np.float32)))


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

    def project(self, hidden: Array) -> list[Array]:
        """What the activation combines: gates and ups, [rows, feed_forward_size] each."""
        return linear_many(hidden, self.gate, self.up)

    def activated(self, gate: Array, up: Array) -> Array:
        """[rows, feed_forward_size] each, to the same."""
        activated: Array = getattr(self.ops, self.activation)(gate, up)
        return activated

    def forward(self, hidden: Array) -> Array:
        """[rows, hidden] to the same."""
        return self.down(self.activated(*self.project(hidden)))


class GeluFeedForward(FeedForward):
    activation = "geglu"


class FusedFeedForward(FeedForward):
    """With the weights of gates and ups in one tensor, gates first."""

    gate = up = None  # type: ignore[assignment]
    joined: StackedLinear = weight("ffn_up", "feed_forward_size", "feed_forward_size", "hidden_size")

    def project(self, hidden: Array) -> list[Array]:
        return self.joined(hidden)


class ExactGeluFeedForward(FeedForward):
    """With the GELU itself, where `geglu` is the approximation by a hyperbolic tangent."""

    def activated(self, gate: Array, up: Array) -> Array:
        activated: Array = self.ops.gelu(gate) * up
        return activated


class FusedExactGeluFeedForward(ExactGeluFeedForward, FusedFeedForward):
    """With both."""


class PlainFeedForward(Module):
    """down(gelu(up(x))), without gates, as in the first transformers."""

    options: FeedForwardOptions
    up: Linear = weight("ffn_up", "feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_down", "hidden_size", "feed_forward_size")

    def forward(self, hidden: Array) -> Array:
        """[rows, hidden] to the same."""
        return self.down(self.ops.gelu(self.up(hidden)))


class TanhGeluFeedForward(PlainFeedForward):
    """With GELU's approximation by a hyperbolic tangent."""

    def forward(self, hidden: Array) -> Array:
        return self.down(gelu_tanh(self.ops, self.up(hidden)))


class SquaredReluFeedForward(PlainFeedForward):
    """down(relu(up(x))²), without gates (So et al., arXiv:2109.08668)."""

    def forward(self, hidden: Array) -> Array:
        return self.down(self.ops.squared_relu(self.up(hidden)))


class ReluFeedForward(PlainFeedForward):
    """down(max(up(x), 0)), without gates, as in the first transformer (arXiv:1706.03762)."""

    def forward(self, hidden: Array) -> Array:
        up = self.up(hidden)
        return self.down(up * self.ops.sigmoid(up * STEEP))
