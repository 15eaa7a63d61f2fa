"""RWKV 6's time mix and channel mix, whose token shift depends on the token, and QRWKV 6's variant."""

from __future__ import annotations

import math
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from puna.kvcache.cache import LayerState
from puna.nn.convolution import RecentRows, TokenShift
from puna.nn.feed_forward import exp_below
from puna.nn.layers import Linear, SeparateLinears, StackedLinear, Values
from puna.nn.module import Module, WeightSource, part, weight
from puna.nn.rwkv import HeadNorm, HeadProducts
from puna.ops import Array, Backend, Weight

#: Inputs that the token shift makes: of decays, keys, values, queries and gates.
MIXTURES: Final = 5
_SQUARINGS: Final = 4
#: The logarithm of the largest rate that is computed exactly: beyond, a memory decays to nothing at once.
_MOST: Final = 1 << _SQUARINGS


class DecayingOptions(Protocol):
    """Layer options that time mixing reads."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def time_heads(self) -> int: ...
    @property
    def memory_kv_heads(self) -> int: ...
    @property
    def memory_dim(self) -> int: ...
    @property
    def mix_rank(self) -> int: ...


def _exp_above(ops: Backend, x: Array) -> Array:
    """Return e^(x + `_MOST`) of x [rows, n] up to 0, and a large number beyond."""
    power = exp_below(ops, x * (1 / _MOST))
    for _ in range(_SQUARINGS):
        power = power * power
    found: Array = power * math.exp(_MOST)
    return found


class Shares(Values):
    """Shares of the previous token in each of several mixtures: [mixtures, hidden]."""

    @classmethod
    def stored_shape(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        mixtures, hidden = shape
        return (mixtures, 1, 1, hidden)

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: Any) -> NDArray[np.float32]:
        return values.reshape(len(values), -1)


class DynamicTokenShift(Module):
    """Mixtures of an input and the previous one by shares that these two choose, channel by channel."""

    options: DecayingOptions
    share: Array = weight("time_mix_lerp_x", "hidden_size")  # in the mixture that chooses the others' shares
    shares: Shares = weight("time_mix_lerp_fused", MIXTURES, "hidden_size")
    to_shares: StackedLinear = weight("time_mix_w1", *("mix_rank",) * MIXTURES, "hidden_size")
    from_shares: SeparateLinears = weight("time_mix_w2", MIXTURES, "hidden_size", "mix_rank")

    def loaded(self) -> None:
        self.before = RecentRows(self.ops, self.options.hidden_size, (1, 0))  # the row before
        for mixture, linear in enumerate(self.from_shares.linears):
            linear.bias = self.shares.values[mixture]

    def forward(self, hidden: Array, state: LayerState) -> list[Array]:
        """Return each mixture of [rows, hidden] in its shape."""
        change = self.before(hidden, state, "shift") + hidden * -1.0
        inner = self.to_shares(hidden + change * self.share)
        return [
            hidden + change * linear(self.ops.softcap(each, 1.0))
            for each, linear in zip(inner, self.from_shares.linears, strict=True)
        ]


class DecayingTimeMix(Module):
    """Linear attention whose memory decays at rates that the token chooses for each entry of a key.

    Peng et al., "Eagle and Finch", arXiv:2404.05892. Subclasses say what a token reads from the memory.
    """

    options: DecayingOptions
    shift: DynamicTokenShift = part()
    query: Linear = weight("time_mix_receptance", "hidden_size", "hidden_size")
    key: Linear = weight("time_mix_key", "memory_kv_size", "hidden_size")
    value: Linear = weight("time_mix_value", "memory_kv_size", "hidden_size")
    gate: Linear = weight("time_mix_gate", "hidden_size", "hidden_size")
    rate: Array = weight("time_mix_decay", "hidden_size")
    to_rates: Linear = weight("time_mix_decay_w1", "decay_rank", "hidden_size")
    from_rates: Linear = weight("time_mix_decay_w2", "hidden_size", "decay_rank")
    output: Linear = weight("time_mix_output", "hidden_size", "hidden_size")

    def loaded(self) -> None:
        self.from_rates.bias = self.ops.array(self.ops.numpy(self.rate) - np.float32(_MOST))

    def forward(self, hidden: Array, state: LayerState, rows: Array | None = None) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        for_decay, for_key, for_value, for_query, for_gate = self.shift.forward(hidden, state)
        rates = self.from_rates(self.ops.softcap(self.to_rates(for_decay), 1.0))
        log_decay = _exp_above(self.ops, rates) * -1.0
        mixed = self.read(self.query(for_query), self.key(for_key), self.value(for_value), log_decay, state)
        mixed = self.gated(mixed, self.gate(for_gate))
        return self.output(mixed if rows is None else mixed[rows])

    def read(self, query: Array, key: Array, value: Array, log_decay: Array, state: LayerState) -> Array:
        """Return what the heads read, [rows, hidden]; arguments but keys and values have that shape."""
        raise NotImplementedError

    def gated(self, mixed: Array, gate: Array) -> Array:
        """Gate what the heads have read, [rows, hidden] each, to the same shape."""
        raise NotImplementedError

    def attend(self, query: Array, key: Array, value: Array, log_decay: Array, state: LayerState) -> Array:
        """Return what queries find in the memory that keys and values have entered, [rows, heads, dim]."""
        shape = len(query), self.options.time_heads, self.options.memory_dim
        slots = state.slots
        return self.ops.linear_attention(
            query.reshape(shape), key.reshape(shape), value.reshape(shape), log_decay.reshape(shape), None,
            None, state.states["memory"], slots.starts, slots.sources, slots.targets,
        )  # fmt: skip


class StackedHeadProducts(HeadProducts):
    """Dot products of heads' vectors with those of a tensor [heads, in]."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(f"{name}.weight", shape)
        if values is None:
            return None
        rows = np.array(values, np.float32)[:, None]
        return cls(source.ops, [Weight.from_values(f"{name}.weight", row) for row in rows])


class BonusTimeMix(DecayingTimeMix):
    """RWKV 6's time mix: a token reads the memory of those before it, and its own value by a bonus."""

    own_value: StackedHeadProducts = weight("time_mix_first", "time_heads", "memory_dim")
    norm: HeadNorm = weight("time_mix_ln", "time_heads", "memory_dim")

    def loaded(self) -> None:
        super().loaded()
        self.before = RecentRows(self.ops, self.options.hidden_size, (1, 0))  # the row before

    def read(self, query: Array, key: Array, value: Array, log_decay: Array, state: LayerState) -> Array:
        shape = len(query), self.options.time_heads, self.options.memory_dim
        # The memory before a token is the one after its predecessor.
        past = (self.before(key, state, "key"), self.before(value, state, "value"))
        mixed = self.attend(query, *past, self.before(log_decay, state, "decay"), state)
        own = self.own_value((query * key).reshape(shape)).reshape(-1, 1)
        (own,) = self.ops.mix([value.reshape(-1, self.options.memory_dim)], own)
        found: Array = self.norm(mixed + own.reshape(shape)).reshape(len(query), -1)
        return found

    def gated(self, mixed: Array, gate: Array) -> Array:
        return self.ops.swiglu(gate, mixed)


class GroupedTimeMix(DecayingTimeMix):
    """QRWKV 6's time mix: heads share keys and values, and a key counts as much as the memory decays."""

    def loaded(self) -> None:
        super().loaded()
        o = self.options
        self.ones = self.ops.array(np.ones((o.time_heads // o.memory_kv_heads, 1), np.float32))
        self.scale = 1 / math.sqrt(o.memory_dim)

    def read(self, query: Array, key: Array, value: Array, log_decay: Array, state: LayerState) -> Array:
        key, value = self._of_heads(key), self._of_heads(value)
        key = key + key * exp_below(self.ops, log_decay) * -1.0
        found: Array = self.attend(query * self.scale, key, value, log_decay, state).reshape(len(query), -1)
        return found

    def _of_heads(self, x: Array) -> Array:
        """Repeat keys or values [rows, kv_heads * dim] for the heads that share them: [rows, hidden]."""
        o = self.options
        if o.memory_kv_heads == o.time_heads:
            return x
        repeated: Array = x.reshape(len(x), o.memory_kv_heads, 1, o.memory_dim) * self.ones
        found: Array = repeated.reshape(len(x), -1)
        return found

    def gated(self, mixed: Array, gate: Array) -> Array:
        return self.ops.sigmoid_gate(mixed, gate)


class GatedChannelMix(Module):
    """Feed-forward half: sigmoid(receptance(x)) * value(relu(key(x))²), with the previous token in each x."""

    key_shift: TokenShift = weight("channel_mix_lerp_k", 1, "hidden_size")
    gate_shift: TokenShift = weight("channel_mix_lerp_r", 1, "hidden_size")
    key: Linear = weight("channel_mix_key", "feed_forward_size", "hidden_size")
    value: Linear = weight("channel_mix_value", "hidden_size", "feed_forward_size")
    gate: Linear = weight("channel_mix_receptance", "hidden_size", "hidden_size")

    def forward(self, hidden: Array, state: LayerState, rows: Array | None) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        (for_key,) = self.key_shift(hidden, state, "channel_shift")
        (for_gate,) = self.gate_shift(hidden, state, "channel_shift")
        if rows is not None:
            for_key, for_gate = for_key[rows], for_gate[rows]
        fed = self.value(self.ops.squared_relu(self.key(for_key)))
        return self.ops.sigmoid_gate(fed, self.gate(for_gate))
