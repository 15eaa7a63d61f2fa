"""Mixtures of experts: a router sends each token through a few of many feed-forward networks."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from puna.errors import ModelError
from puna.nn.feed_forward import FeedForward, LimitedFeedForward, at_most, clamp
from puna.nn.layers import Linear
from puna.nn.low_rank import ExpertLowRank
from puna.nn.module import Module, WeightSource, part, weight
from puna.ops import Array, Backend, ExpertNetworks, ExpertWeights, Routing


class RoutingOptions(Protocol):
    """Options that layers with experts read."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def expert_count(self) -> int: ...
    @property
    def expert_feed_forward_size(self) -> int: ...
    @property
    def shared_feed_forward_size(self) -> int: ...
    @property
    def routing(self) -> Routing: ...


class ExpertLinear:
    """One linear per expert: weights [experts, out, in], bias [experts, out] or None.

    Files store one tensor `blk.0.ffn_up_exps`; older files one per expert, `blk.0.ffn_up.7`; some files gate
    and up together as `blk.0.ffn_gate_up_exps`, the gate's rows first.
    """

    alternating: ClassVar[bool] = False  # whether rows of gate and up alternate in `ffn_gate_up_exps`

    def __init__(self, ops: Backend, weights: ExpertWeights, bias: Array | None = None) -> None:
        self.ops = ops
        self.weights = weights
        self.bias = bias
        self.low_rank: ExpertLowRank | None = None  # added by adapters

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        found = (
            _stacked(source, name, shape)
            or _single(source, name, shape)
            or _joined(source, name, shape, cls.within_joined(name, shape[1]))
        )
        if found is None:
            return None
        weights, bias = found
        source.ops.pack(weights.weight)
        ops = source.ops.host if weights.on_host else source.ops
        own = None if bias is None else ops.array(np.ascontiguousarray(bias))
        return cls(source.ops, weights, own)

    @classmethod
    def within_joined(cls, name: str, width: int) -> tuple[str, slice] | None:
        """Return the tensor that joins gate and up, and the rows of `name` in it; None for other tensors."""
        parts = (
            (slice(0, None, 2), slice(1, None, 2)) if cls.alternating else (slice(width), slice(width, None))
        )
        for end, rows in zip(("gate_exps", "up_exps"), parts, strict=True):
            if name.endswith(f"_{end}"):
                return f"{name.removesuffix(end)}gate_up_exps", rows
        return None

    def __call__(self, x: Array, chosen: Array, rows: int, each: NDArray[np.integer]) -> Array:
        """Map [T, in] to [T, out], each row by its `chosen` expert; these are rows `each` [T] of `rows`."""
        y = self.ops.expert_linear(x, chosen, self.weights, self.bias)
        return y if self.low_rank is None else self.low_rank.added(x, y, chosen, rows, each)


class AlternatingExpertLinear(ExpertLinear):
    """Expert linears whose joined tensor alternates rows of gate and up."""

    alternating = True


def _stacked(
    source: WeightSource, name: str, shape: tuple[int, ...]
) -> tuple[ExpertWeights, NDArray[np.float32] | None] | None:
    weights = source.experts(f"{name}.weight", shape)
    if weights is None:
        return None
    return weights, source.values(f"{name}.bias", shape[:2])


def _single(source: WeightSource, name: str, shape: tuple[int, ...]) -> tuple[ExpertWeights, None] | None:
    names = [f"{name.removesuffix('_exps')}.{expert}.weight" for expert in range(shape[0])]
    found = {part: source.matrix(part, shape[1:]) for part in names}
    parts = [part for part in found.values() if part is not None]
    if not parts:
        return None
    for missing, matrix in found.items():
        if matrix is None:
            raise ModelError(f"tensor '{missing}' is missing")
    try:
        return ExpertWeights.stack(f"{name}.weight", parts), None
    except ValueError as error:
        raise ModelError(str(error)) from None


def _joined(
    source: WeightSource, name: str, shape: tuple[int, ...], place: tuple[str, slice] | None
) -> tuple[ExpertWeights, NDArray[np.float32] | None] | None:
    if place is None:
        return None
    joined, rows = place
    found = _stacked(source, joined, (shape[0], 2 * shape[1], shape[2]))
    if found is None:
        return None
    weights, bias = found
    return weights.rows(f"{name}.weight", rows), None if bias is None else bias[:, rows]


class SelectionBias:
    """A bias added to the scores when experts are chosen, but not when they are weighted: float32 [experts].

    It balances the experts' load (Wang et al., arXiv:2408.15664). Some files omit the suffix `.bias`.
    """

    def __init__(self, values: Array) -> None:
        self.values = values

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        for full_name in (f"{name}.bias", name):
            if (values := source.vector(full_name, shape[0])) is not None:
                return cls(values)
        return None


class MixtureOfExperts(Module):
    """Feed-forward network of experts, chosen as `options.routing` says."""

    options: RoutingOptions
    activation: ClassVar[str] = "swiglu"
    scale_inputs: ClassVar[bool] = False
    gate_limit: float = 0.0  # see `ExpertNetworks`
    up_limit: float = 0.0

    router: Linear = weight("ffn_gate_inp", "expert_count", "hidden_size")
    selection_bias: SelectionBias | None = weight("exp_probs_b", "expert_count", optional=True)
    gate: ExpertLinear | None = weight(
        "ffn_gate_exps", "expert_count", "expert_feed_forward_size", "hidden_size"
    )
    up: ExpertLinear = weight("ffn_up_exps", "expert_count", "expert_feed_forward_size", "hidden_size")
    down: ExpertLinear = weight("ffn_down_exps", "expert_count", "hidden_size", "expert_feed_forward_size")

    def loaded(self) -> None:
        gate = (None, None) if self.gate is None else (self.gate.weights, self.gate.bias)
        self.experts = ExpertNetworks(
            gate[0],
            self.up.weights,
            self.down.weights,
            gate[1],
            self.up.bias,
            self.down.bias,
            activation=self.activation,
            scale_inputs=self.scale_inputs,
            gate_limit=self.gate_limit,
            up_limit=self.up_limit,
        )

    def forward(self, hidden: Array) -> Array:
        """Map [rows, hidden] to the same shape."""
        return self.through(hidden, *self.choose(hidden))

    def choose(self, hidden: Array) -> tuple[Array, Array]:
        """Return the experts of each row of [rows, hidden] and their shares, [rows, used] each."""
        bias = None if self.selection_bias is None else self.selection_bias.values
        return self.ops.route(self.router(hidden), self.options.routing, bias)

    def activated(self, *inner: Array) -> Array:
        """Combine gates, if there are any, and ups [T, width] into the same shape."""
        if self.up_limit:
            gate, up = inner
            inner = at_most(self.ops, gate, self.gate_limit), clamp(self.ops, up, self.up_limit)
        activated: Array = getattr(self.ops, self.activation)(*inner)
        return activated

    def through(self, hidden: Array, chosen: Array, shares: Array) -> Array:
        """Return the weighted sum of the `chosen` experts: [rows, in] to [rows, out]; see `ops.experts`."""
        changed = self._changed(len(hidden))
        if not len(changed):
            return self.ops.experts(hidden, chosen, shares, self.experts)
        if len(changed) == len(hidden):
            return self.linear_by_linear(hidden, chosen, shares, changed, len(hidden))
        same = np.setdiff1d(np.arange(len(hidden)), changed)

        def of(rows: NDArray[np.integer]) -> tuple[Array, Array, Array]:
            at = self.ops.array(rows)
            return hidden[at], chosen[at], shares[at]

        found = [
            self.ops.experts(*of(same), self.experts),
            self.linear_by_linear(*of(changed), changed, len(hidden)),
        ]
        order = np.concatenate([same, changed]).argsort()
        merged: Array = self.ops.concatenate(found)[self.ops.array(order)]
        return merged

    def _changed(self, rows: int) -> NDArray[np.integer]:
        """Return which of `rows` rows adapters change here."""
        found = [
            linear.low_rank.changed(rows)
            for linear in (self.gate, self.up, self.down)
            if linear is not None and linear.low_rank is not None
        ]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    def linear_by_linear(
        self, hidden: Array, chosen: Array, shares: Array, each: NDArray[np.integer], rows: int
    ) -> Array:
        """Compute `through` linear by linear so that adapters can add to them: rows `each` of `rows`."""
        used = chosen.shape[1]
        x = hidden[self.ops.array(np.repeat(np.arange(len(hidden)), used))]
        at, share, each = chosen.reshape(-1), shares.reshape(-1, 1), np.repeat(each, used)
        if self.scale_inputs:
            x = x * share
        inner = [linear(x, at, rows, each) for linear in (self.gate, self.up) if linear is not None]
        found = self.down(self.activated(*inner), at, rows, each)
        if not self.scale_inputs:
            found = found * share
        of_token = found.reshape(len(hidden), used, -1)
        total: Array = of_token[:, 0]
        for i in range(1, used):
            total = total + of_token[:, i]
        return total


class LimitedOptions(RoutingOptions, Protocol):
    """Options of layers whose experts limit what their activation is given."""

    @property
    def expert_limit(self) -> float: ...


class LimitedExperts(MixtureOfExperts):
    """Experts whose gates are at most `options.expert_limit`, and their ups between it and its negative."""

    options: LimitedOptions

    def loaded(self) -> None:
        self.gate_limit = self.up_limit = self.options.expert_limit
        super().loaded()


class PlainExperts(MixtureOfExperts):
    """Experts without gates, as in the original transformer: down(gelu(up(x)))."""

    activation = "gelu"
    gate = None


class SquaredReluExperts(PlainExperts):
    """Experts that compute down(relu(up(x))²)."""

    activation = "squared_relu"


class ReluExperts(MixtureOfExperts):
    """Experts that compute down(max(gate(x), 0) * up(x)) (Shazeer, arXiv:2002.05202)."""

    activation = "reglu"


class SharedExpert(FeedForward):
    """The expert applied to every token."""

    gate: Linear = weight("ffn_gate_shexp", "shared_feed_forward_size", "hidden_size")
    up: Linear = weight("ffn_up_shexp", "shared_feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_down_shexp", "hidden_size", "shared_feed_forward_size")


class GatedSharedExpert(SharedExpert):
    """A shared expert whose output each token scales by a gate."""

    expert_gate: Linear = weight("ffn_gate_inp_shexp", 1, "hidden_size")

    def forward(self, hidden: Array) -> Array:
        return self.ops.sigmoid_gate(super().forward(hidden), self.expert_gate(hidden))


class LimitedSharedExpert(LimitedFeedForward, SharedExpert):
    """A shared expert with a limit."""


class SharedAndRouted(Module):
    """Sum of the outputs of the shared expert and the routed experts."""

    routed: MixtureOfExperts = part()
    shared: SharedExpert = part()

    def forward(self, hidden: Array) -> Array:
        """Map [rows, hidden] to the same shape."""
        total: Array = self.shared.forward(hidden) + self.routed.forward(hidden)
        return total


class SharedAndLimited(SharedAndRouted):
    """Sum of the outputs of the shared expert and of routed experts with a limit."""

    routed: LimitedExperts = part()


class LimitedSharedAndRouted(SharedAndLimited):
    """Sum of the outputs of shared and routed experts that both have a limit."""

    shared: LimitedSharedExpert = part()


class GatedSharedAndRouted(SharedAndRouted):
    """Sum of the outputs of a gated shared expert and the routed experts."""

    shared: GatedSharedExpert = part()


def dense_or_shared(options: RoutingOptions) -> type[FeedForward | MixtureOfExperts | SharedAndRouted]:
    """Return the feed-forward class for `options`: dense, experts, or experts with a shared one."""
    if options.expert_count and options.shared_feed_forward_size:
        return SharedAndRouted
    return dense_or_experts(options)


def dense_or_experts(options: RoutingOptions) -> type[FeedForward | MixtureOfExperts]:
    """Return the feed-forward class for `options`: dense or experts."""
    return MixtureOfExperts if options.expert_count else FeedForward
