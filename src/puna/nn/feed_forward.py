"""Feed-forward networks: the half of a layer that treats each token on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Protocol

import numpy as np

from puna.nn.layers import Linear, StackedLinear, linear_many
from puna.nn.module import Module, weight
from puna.ops import Array, Backend
from puna.ops.experts import ExpertNetworks, ExpertWeights

#: A sigmoid scaled by this factor is a step function, except for values too small to matter.
STEEP: Final = 2.0**20
#: Factors (1 + s), (1 + s²), ... that make up 1 / (1 - s) to float32's precision for s up to 1/2.
_FACTORS: Final = 5


def gelu_tanh(ops: Backend, x: Array) -> Array:
    """Return the tanh approximation of GELU, [rows, n]."""
    return ops.geglu(x, ops.array(np.ones(x.shape, np.float32)))


def relu(ops: Backend, x: Array) -> Array:
    """Return max(x, 0), [rows, n]."""
    found: Array = x * ops.sigmoid(x * STEEP)
    return found


def at_most(ops: Backend, x: Array, most: float) -> Array:
    """Return min(x, most), [rows, n]."""
    found: Array = x + relu(ops, x + -most) * -1
    return found


def clamp(ops: Backend, x: Array, most: float) -> Array:
    """Return x limited to the range from -most to most, [rows, n]."""
    found: Array = at_most(ops, x, most) + relu(ops, x * -1 + -most)
    return found


def exp_below(ops: Backend, x: Array) -> Array:
    """Return e^x of x [rows, n], which is at most 0."""
    # With s = sigmoid(x) <= 1/2, e^x is s / (1 - s) = s (1 + s) (1 + s²) (1 + s⁴) ...
    power = total = ops.sigmoid(x)
    for _ in range(_FACTORS):
        total, power = total + total * power, power * power
    return total


def _single_network(
    activation: str, up: Linear, down: Linear, gate: Linear | None = None
) -> ExpertNetworks | None:
    """Return a network as a layer's only expert; None if its linears do more than multiply."""
    if not all(each is None or (type(each) is Linear and each.low_rank is None) for each in (gate, up, down)):
        return None
    return ExpertNetworks(
        None if gate is None else ExpertWeights(gate.weight, 1),
        ExpertWeights(up.weight, 1),
        ExpertWeights(down.weight, 1),
        None if gate is None else _as_row(gate.bias),
        _as_row(up.bias),
        _as_row(down.bias),
        activation,
    )


def feed_forward(x: Array, activation: str, up: Linear, down: Linear, gate: Linear | None = None) -> Array:
    """Return down(activation(gate(x), up(x))), or without a gate down(activation(up(x))): [rows, out]."""
    ops = up.ops
    if len(x) >= ops.feed_forward_from:
        network = _single_network(activation, up, down, gate)
        if network is not None:
            return ops.feed_forward(x, network)
    activate = getattr(ops, activation)
    return down(activate(up(x)) if gate is None else activate(*linear_many(x, gate, up)))


def _as_row(bias: Array | None) -> Array | None:
    return None if bias is None else bias.reshape(1, -1)


class FeedForwardOptions(Protocol):
    """Options that feed-forward networks read."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def feed_forward_size(self) -> int: ...


class FeedForward(Module):
    """Gated feed-forward network: down(activation(gate(x), up(x))) (Shazeer, arXiv:2002.05202)."""

    options: FeedForwardOptions
    activation: ClassVar[str] = "swiglu"  # name of the operation

    gate: Linear = weight("ffn_gate", "feed_forward_size", "hidden_size")
    up: Linear = weight("ffn_up", "feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_down", "hidden_size", "feed_forward_size")

    def linears(self) -> Sequence[Linear]:
        """Return the linears of gates and ups."""
        return self.gate, self.up

    def project(self, hidden: Array) -> list[Array]:
        """Return the inputs of the activation: gates and ups, [rows, feed_forward_size] each."""
        return linear_many(hidden, *self.linears())

    def activated(self, gate: Array, up: Array) -> Array:
        """Combine gates and ups [rows, feed_forward_size] into the same shape."""
        activated: Array = getattr(self.ops, self.activation)(gate, up)
        return activated

    def forward(self, hidden: Array) -> Array:
        """Map [rows, hidden] to the same shape."""
        kind = type(self)
        if kind.project is FeedForward.project and kind.activated is FeedForward.activated:
            gate, up = self.linears()
            return feed_forward(hidden, self.activation, up, self.down, gate)
        return self.down(self.activated(*self.project(hidden)))


class LimitOptions(FeedForwardOptions, Protocol):
    @property
    def shared_limit(self) -> float:
        """The largest gate and up of the shared expert, and of layers without experts; 0: no limit."""


class LimitedFeedForward(FeedForward):
    """Gated network whose gates are at most a limit, and its ups between that and its negative."""

    options: LimitOptions

    def loaded(self) -> None:
        self.gate_limit = self.up_limit = self.options.shared_limit

    def activated(self, gate: Array, up: Array) -> Array:
        if self.up_limit:
            gate, up = at_most(self.ops, gate, self.gate_limit), clamp(self.ops, up, self.up_limit)
        return super().activated(gate, up)


class GeluFeedForward(FeedForward):
    """Gated network whose activation is the tanh approximation of GELU."""

    activation = "geglu"


class FusedFeedForward(FeedForward):
    """Gated network whose gate and up weights are one tensor, gates first."""

    gate = up = None  # type: ignore[assignment]
    joined: StackedLinear = weight("ffn_up", "feed_forward_size", "feed_forward_size", "hidden_size")

    def linears(self) -> Sequence[Linear]:
        return self.joined.linears


class ExactGeluFeedForward(FeedForward):
    """Gated network with exact GELU; `geglu` is the tanh approximation."""

    def activated(self, gate: Array, up: Array) -> Array:
        activated: Array = self.ops.gelu(gate) * up
        return activated


class FusedExactGeluFeedForward(ExactGeluFeedForward, FusedFeedForward):
    """Gated network with exact GELU and one tensor for gate and up."""


class PlainFeedForward(Module):
    """Feed-forward network without gates, as in the original transformer: down(gelu(up(x)))."""

    options: FeedForwardOptions
    activation: ClassVar[str] = "gelu"  # name of the operation

    up: Linear = weight("ffn_up", "feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_down", "hidden_size", "feed_forward_size")

    def forward(self, hidden: Array) -> Array:
        """Map [rows, hidden] to the same shape."""
        return feed_forward(hidden, self.activation, self.up, self.down)


class TanhGeluFeedForward(PlainFeedForward):
    """Feed-forward network without gates, with the tanh approximation of GELU."""

    def forward(self, hidden: Array) -> Array:
        return self.down(gelu_tanh(self.ops, self.up(hidden)))


class GeluOptions(FeedForwardOptions, Protocol):
    @property
    def exact_gelu(self) -> bool:
        """Whether GELU is exact, not its tanh approximation."""


def exact_or_tanh_gelu(options: GeluOptions) -> type[PlainFeedForward]:
    """Return the class of network without gates for `options`."""
    return PlainFeedForward if options.exact_gelu else TanhGeluFeedForward


class SquaredReluFeedForward(PlainFeedForward):
    """Feed-forward network without gates: down(relu(up(x))²) (So et al., arXiv:2109.08668)."""

    activation = "squared_relu"


class ReluFeedForward(PlainFeedForward):
    """Feed-forward network without gates: down(max(up(x), 0)) (Vaswani et al., arXiv:1706.03762)."""

    def forward(self, hidden: Array) -> Array:
        return self.down(relu(self.ops, self.up(hidden)))


class XieluOptions(FeedForwardOptions, Protocol):
    @property
    def xielu_positive(self) -> float: ...
    @property
    def xielu_negative(self) -> float: ...
    @property
    def xielu_slope(self) -> float: ...


class XieluFeedForward(PlainFeedForward):
    """Feed-forward network without gates: down(xIELU(up(x))) (Huang and Schlag, arXiv:2411.13010).

    xIELU(x) is positive * x² + slope * x above 0, and negative * (e^x - 1 - x) + slope * x below.
    """

    options: XieluOptions

    def forward(self, hidden: Array) -> Array:
        o, up = self.options, self.up(hidden)
        share = self.ops.sigmoid(up * STEEP)  # 1 above 0, 0 below
        below = up + up * share * -1.0
        curved = self.ops.squared_relu(up) * o.xielu_positive
        curved = curved + self._expm1(below) * o.xielu_negative + below * -o.xielu_negative
        return self.down(curved + up * o.xielu_slope)

    def _expm1(self, x: Array) -> Array:
        """Return `e^x - 1` of x [rows, n], which is at most 0."""
        ones = self.ops.sigmoid(x) + self.ops.sigmoid(x * -1.0)
        less: Array = exp_below(self.ops, x) + ones * -1.0
        return less
