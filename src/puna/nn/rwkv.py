"""RWKV 7's time mix and channel mix, which shift in each token's predecessor."""

from __future__ import annotations

import math
from typing import Any, Final, Protocol, Self

import numpy as np

from puna.kvcache.cache import LayerState
from puna.nn.convolution import TokenShift
from puna.nn.latent_attention import HeadLinear
from puna.nn.layers import Linear, RMSNorm, Unused
from puna.nn.module import Module, WeightSource, part, weight
from puna.ops import Array, Backend, Weight

#: Logarithm of the smallest factor by which one step may decay the memory.
_FASTEST_DECAY: Final = -math.exp(-0.5)
#: Epsilon of the norm of each head's output, independent of the layer's.
_HEAD_NORM_EPS: Final = 64e-5
#: Epsilon of the squared length of a removal key.
_LENGTH_EPS: Final = 1e-24


class TimeMixOptions(Protocol):
    """Layer options that time mixing reads."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def time_heads(self) -> int: ...
    @property
    def memory_dim(self) -> int: ...
    @property
    def gate_rank(self) -> int: ...


class HeadProducts(HeadLinear):
    """Dot product of each head's vector with a learned one; the shape is [heads, in]."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        flat = source.vector(f"{name}.weight", math.prod(shape))
        if flat is None:
            return None
        rows = source.ops.numpy(flat).reshape(shape[0], 1, shape[1])
        return cls(source.ops, [Weight.from_values(f"{name}.weight", row) for row in rows])


class HeadNorm:
    """Layer norm of each head's output; the shape is [heads, head_dim]."""

    def __init__(self, ops: Backend, weight: Array, bias: Array | None) -> None:
        self.ops = ops
        self.weight = weight
        self.bias = bias

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        weight = source.vector(f"{name}.weight", math.prod(shape))
        if weight is None:
            return None
        bias = source.vector(f"{name}.bias", math.prod(shape))
        return cls(source.ops, weight.reshape(shape), None if bias is None else bias.reshape(shape))

    def __call__(self, x: Array) -> Array:
        """Map [rows, heads, dim] to the same shape."""
        return self.ops.layer_norm(x, self.weight, self.bias, _HEAD_NORM_EPS)


class Gate(Module):
    """Low-rank gate that a time mix's output is multiplied by."""

    to_gates: Linear = weight("time_mix_g1", "gate_rank", "hidden_size")
    from_gates: Linear = weight("time_mix_g2", "hidden_size", "gate_rank")

    def forward(self, hidden: Array) -> Array:
        """Map [rows, hidden] to the same shape."""
        return self.from_gates(self.ops.sigmoid(self.to_gates(hidden)))


def gate_kind(options: TimeMixOptions) -> type[Gate] | None:
    return Gate if options.gate_rank else None


class TimeMix(Module):
    """Linear attention by the generalised delta rule (Peng et al., arXiv:2503.14456).

    Each key entry decays at a rate chosen by the token. The value that a head's memory holds for the removal
    key is removed in proportion to the token's in-context learning rates. A bonus for the token's own value
    is added to the output.
    """

    options: TimeMixOptions
    shift: TokenShift = weight("time_mix_lerp_fused", "shifted_inputs", "hidden_size")
    query: Linear = weight("time_mix_receptance", "hidden_size", "hidden_size")
    key: Linear = weight("time_mix_key", "hidden_size", "hidden_size")
    value: Linear = weight("time_mix_value", "hidden_size", "hidden_size")
    decay_bias: Array = weight("time_mix_w0", "hidden_size")
    to_decays: Linear = weight("time_mix_w1", "decay_rank", "hidden_size")
    from_decays: Linear = weight("time_mix_w2", "hidden_size", "decay_rank")
    rate_bias: Array = weight("time_mix_a0", "hidden_size")
    to_rates: Linear = weight("time_mix_a1", "rate_rank", "hidden_size")
    from_rates: Linear = weight("time_mix_a2", "hidden_size", "rate_rank")
    removal_scale: Array = weight("time_mix_k_k", "hidden_size")  # removal key = key * this
    rated: Array = weight("time_mix_k_a", "hidden_size")  # share of a key that is scaled by its rate
    own_value: HeadProducts = weight("time_mix_r_k", "time_heads", "memory_dim")
    norm: HeadNorm | None = weight("time_mix_ln", "time_heads", "memory_dim", optional=True)
    gate: Gate | None = part(choose=gate_kind)
    output: Linear = weight("time_mix_output", "hidden_size", "hidden_size")

    def loaded(self) -> None:
        dim = self.options.memory_dim
        # x / |x|: an RMS norm with these weights.
        ones = self.ops.array(np.full(dim, 1 / math.sqrt(dim), np.float32))
        self.unit = RMSNorm(self.ops, ones, _LENGTH_EPS / dim)
        self.unrated = self.ops.array(1 - self.ops.numpy(self.rated))
        self.from_decays.bias, self.from_rates.bias = self.decay_bias, self.rate_bias

    def forward(self, hidden: Array, first: Array | None, state: LayerState) -> tuple[Array, Array]:
        """Return the output [rows, hidden] and the first layer's values [rows, hidden].

        `first` holds those values, and is None in the first layer.
        """
        o, sigmoid = self.options, self.ops.sigmoid
        heads = len(hidden), o.time_heads, o.memory_dim
        for_query, for_decay, for_key, for_value, for_rate, *for_gate = self.shift(hidden, state, "shift")
        query, key = self.query(for_query), self.key(for_key)
        value, first = self.with_first(self.value(for_value), for_value, first)
        decay = sigmoid(self.from_decays(self.ops.softcap(self.to_decays(for_decay), 1.0))) * _FASTEST_DECAY
        rate = sigmoid(self.from_rates(self.to_rates(for_rate)))
        probe = self.unit((key * self.removal_scale).reshape(heads))
        key = key * self.unrated + key * self.rated * rate
        slots = state.slots
        mixed = self.ops.linear_attention(
            query.reshape(heads), key.reshape(heads), value.reshape(heads), decay.reshape(heads), None, None,
            state.states["memory"], slots.starts, slots.sources, slots.targets,
            removal=(probe, probe * rate.reshape(heads)),
        )  # fmt: skip
        if self.norm is not None:
            mixed = self.norm(mixed)
        own = self.own_value((query * key).reshape(heads)).reshape(-1, 1)
        (own,) = self.ops.mix([value.reshape(-1, o.memory_dim)], own)
        mixed = mixed.reshape(hidden.shape) + own.reshape(hidden.shape)
        if self.gate is not None:
            mixed = mixed * self.gate.forward(for_gate[0])
        return self.output(mixed), first

    def with_first(self, value: Array, hidden: Array, first: Array | None) -> tuple[Array, Array]:
        """Return the values [rows, hidden] that this layer uses, and those of the first layer."""
        raise NotImplementedError


class FirstTimeMix(TimeMix):
    """Time mix of the first layer; files may hold its value-mixing tensors, which are not used."""

    share_bias: Unused | None = weight("time_mix_v0", "hidden_size", optional=True)
    to_shares: Unused | None = weight("time_mix_v1", "rate_rank", "hidden_size", optional=True)
    from_shares: Unused | None = weight("time_mix_v2", "hidden_size", "rate_rank", optional=True)

    def with_first(self, value: Array, hidden: Array, first: Array | None) -> tuple[Array, Array]:
        return value, value


class LaterTimeMix(TimeMix):
    """Time mix of later layers, which blend in the first layer's values by a share that the token chooses."""

    share_bias: Array = weight("time_mix_v0", "hidden_size")
    to_shares: Linear = weight("time_mix_v1", "share_rank", "hidden_size")
    from_shares: Linear = weight("time_mix_v2", "hidden_size", "share_rank")

    def loaded(self) -> None:
        super().loaded()
        self.from_shares.bias = self.share_bias

    def with_first(self, value: Array, hidden: Array, first: Array | None) -> tuple[Array, Array]:
        assert first is not None, "the first layer comes first"
        share = self.from_shares(self.to_shares(hidden))
        return value + self.ops.sigmoid_gate(first + value * -1.0, share), first


class ChannelMix(Module):
    """Feed-forward half: value(relu(key(x))²), where x mixes in the previous token."""

    shift: TokenShift = weight("channel_mix_lerp_k", 1, "hidden_size")
    key: Linear = weight("channel_mix_key", "feed_forward_size", "hidden_size")
    value: Linear = weight("channel_mix_value", "hidden_size", "feed_forward_size")

    def forward(self, hidden: Array, state: LayerState, rows: Array | None) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        (shifted,) = self.shift(hidden, state, "channel_shift")
        return self.value(self.ops.squared_relu(self.key(shifted if rows is None else shifted[rows])))
