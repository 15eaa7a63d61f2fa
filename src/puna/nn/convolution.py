"""Short causal convolutions of each channel over the last few inputs of its sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from puna.errors import ModelError
from puna.kvcache.cache import LayerState
from puna.nn.module import WeightSource
from puna.ops import Array, Backend


class GatedConvolution:
    """A short convolution between two gates; its state is `conv`, [taps - 1, channels]."""

    def __init__(self, ops: Backend, weight: Array, bias: Array | None) -> None:
        self.ops = ops
        self.weight = weight  # [taps, channels]
        self.bias = bias  # [channels]

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        kernels = source.values(f"{name}.weight", shape)  # [channels, taps]
        if kernels is None:
            return None
        taps_first = source.ops.array(np.ascontiguousarray(kernels.T))
        return cls(source.ops, taps_first, source.vector(f"{name}.bias", shape[0]))

    def __call__(self, projected: Array, state: LayerState) -> Array:
        """Map [rows, 3 * channels] to [rows, channels]; see `ops.short_conv`."""
        slots = state.slots
        return self.ops.short_conv(
            projected, self.weight, self.bias, state.states["conv"],
            slots.starts, slots.sources, slots.targets,
        )  # fmt: skip


class SiluConvolutions:
    """Short convolutions of several inputs, each followed by SiLU; one tensor holds their kernels in order.

    The shape is the channels of each input, then the taps. `convolution_states` describes their states.
    """

    def __init__(self, ops: Backend, parts: list[tuple[Array, Array | None]]) -> None:
        self.ops = ops
        self.parts = parts  # weight [taps, channels] and bias [channels] of each

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        *channels, taps = shape
        kernels = source.values(f"{name}.weight", (sum(channels), taps))
        if kernels is None:
            return None
        bias, parts, begin = source.vector(f"{name}.bias", sum(channels)), [], 0
        for count in channels:
            rows = slice(begin, begin + count)
            weight = source.ops.array(np.ascontiguousarray(kernels[rows].T))
            parts.append((weight, None if bias is None else bias[rows]))
            begin += count
        return cls(source.ops, parts)

    def __call__(self, inputs: Sequence[Array], state: LayerState) -> list[Array]:
        """Map inputs [rows, channels] to outputs of the same shapes."""
        slots = state.slots
        return [
            self.ops.short_conv(
                x, weight, bias, state.states[f"conv.{i}"],
                slots.starts, slots.sources, slots.targets, gated=False,
            )
            for i, (x, (weight, bias)) in enumerate(zip(inputs, self.parts, strict=True))
        ]  # fmt: skip


class SeparateConvolutions(SiluConvolutions):
    """Convolutions of queries, keys and values with one tensor each."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        *channels, taps = shape
        parts: list[tuple[Array, Array | None]] = []
        for kind, count in zip("qkv", channels, strict=True):
            kernels = source.values(f"{name}_{kind}.weight", (count, 1, taps))
            if kernels is None:
                raise ModelError(f"tensor '{name}_{kind}.weight' is missing")
            parts.append((source.ops.array(np.ascontiguousarray(kernels.reshape(count, taps).T)), None))
        return cls(source.ops, parts)


class TokenShift:
    """Mixtures of an input and the previous one, channel by channel: convolutions with two taps.

    The shape is the number of mixtures, then the channels. The file stores the share of the previous input.
    """

    def __init__(self, ops: Backend, weights: list[Array]) -> None:
        self.ops = ops
        self.weights = weights  # [2, channels] of each mixture

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        count, channels = shape
        shares = source.values(f"{name}.weight", (count, 1, 1, channels))
        if shares is None:
            return None
        shares = shares.reshape(shape)
        return cls(source.ops, [source.ops.array(np.stack([share, 1 - share])) for share in shares])

    def __call__(self, x: Array, state: LayerState, name: str) -> list[Array]:
        """Return each mixture of `x` [rows, channels] in its shape; the state `name` is [1, channels]."""
        slots = state.slots
        return [
            self.ops.short_conv(
                x, weight, None, state.states[name], slots.starts, slots.sources, slots.targets, gated=False,
                activated=False,
            )
            for weight in self.weights
        ]  # fmt: skip


class DilatedConvolution:
    """A convolution of each channel with taps some rows apart, followed by SiLU.

    The shape is the channels, the taps, and the distance between two. The state is [`reach` - 1, channels].
    """

    def __init__(self, ops: Backend, weight: Array) -> None:
        self.ops = ops
        self.weight = weight  # [reach, channels], zero between the taps

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        channels, taps, distance = shape
        kernels = source.values(f"{name}.weight", (channels, taps))
        if kernels is None:
            return None
        reach = cls.reach(taps, distance)
        spread = np.zeros((reach, channels), np.float32)
        spread[reach - 1 - (taps - 1) * distance :: distance] = kernels.T
        return cls(source.ops, source.ops.array(spread))

    @staticmethod
    def reach(taps: int, distance: int) -> int:
        """Return how many rows it reads: at least two, since a state cannot be empty."""
        return max((taps - 1) * distance + 1, 2)

    def __call__(self, x: Array, state: LayerState, name: str) -> Array:
        """Map [rows, channels] to the same shape; the state is called `name`."""
        slots = state.slots
        return self.ops.short_conv(
            x, self.weight, None, state.states[name], slots.starts, slots.sources, slots.targets, gated=False
        )


class RecentRows:
    """Sums of the last rows [rows, channels] of a sequence, weighted by `shares`, that of the latest last."""

    def __init__(self, ops: Backend, channels: int, shares: Sequence[float]) -> None:
        self.ops = ops
        self.weight = ops.array(np.repeat(np.array(shares, np.float32)[:, None], channels, axis=1))

    def __call__(self, x: Array, state: LayerState, name: str) -> Array:
        """Return the sum for each of `x`, zeros before the first; the state `name` is [n - 1, channels]."""
        slots = state.slots
        return self.ops.short_conv(
            x, self.weight, None, state.states[name], slots.starts, slots.sources, slots.targets, gated=False,
            activated=False,
        )  # fmt: skip


def convolution_states(taps: int, *channels: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the names and shapes of the states of `SiluConvolutions`."""
    return tuple((f"conv.{i}", (taps - 1, count)) for i, count in enumerate(channels))
