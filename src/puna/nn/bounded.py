"""Gated networks that limit what SiLU returns, and the ups it multiplies, as in Step 3.5 and Ling 3.

`LimitedExperts` limit what SiLU is given instead.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Protocol

from puna.nn.experts import MixtureOfExperts, RoutingOptions, SharedAndRouted, SharedExpert
from puna.nn.feed_forward import LimitedFeedForward
from puna.nn.module import part


class BoundedNetworkOptions(RoutingOptions, Protocol):
    """Options of layers with such limits, where 0 means none."""

    @property
    def feed_forward_size(self) -> int: ...
    @property
    def expert_limit(self) -> float:
        """Limit of routed experts."""

    @property
    def shared_limit(self) -> float:
        """Limit of the shared expert, or of a layer without experts."""


class BoundedFeedForward(LimitedFeedForward):
    """Network whose activated gates are at most `shared_limit`, and ups between it and its negative."""

    def loaded(self) -> None:
        super().loaded()
        if self.up_limit:
            self.gate_limit = inverse_silu(self.up_limit)


class BoundedSharedExpert(BoundedFeedForward, SharedExpert):
    """The expert applied to every token, with the same limits."""


class BoundedExperts(MixtureOfExperts):
    """Routed experts with the same limits, `expert_limit`."""

    options: BoundedNetworkOptions

    def loaded(self) -> None:
        if most := self.options.expert_limit:
            self.gate_limit, self.up_limit = inverse_silu(most), most
        super().loaded()


class SharedAndBounded(SharedAndRouted):
    """Sum of the outputs of the shared expert and the routed experts, all with limits."""

    routed: BoundedExperts = part()
    shared: BoundedSharedExpert = part()


def bounded_kind(options: RoutingOptions) -> type[BoundedFeedForward | SharedAndBounded]:
    """Return the feed-forward class for `options`: dense, or experts with a shared one."""
    return SharedAndBounded if options.expert_count else BoundedFeedForward


@cache
def inverse_silu(y: float) -> float:
    """Return the x above 0 with silu(x) = y above 0. SiLU grows from there on, and is negative below 0."""
    x = y + 0.3  # slightly above the root, where SiLU is so straight that Newton's method converges
    for _ in range(50):
        share = 1 / (1 + math.exp(-x))
        x -= (x * share - y) / (share * (1 + x * (1 - share)))
    return x
