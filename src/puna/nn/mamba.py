"""Mamba 1 and 2: state-space mixers, whose memory does not grow with the context."""

from __future__ import annotations

from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache
from puna.nn.convolution import SiluConvolutions
from puna.nn.layers import Linear, RMSNorm, StackedLinear, Values
from puna.nn.module import Module, WeightSource, weight
from puna.ops import Array, Backend, Rope

#: Epsilon of the norms of Mamba 1's selected inputs, independent of the layer's.
_INPUT_EPS: Final = 1e-6


class MambaOptions(Protocol):
    """Layer options that Mamba 2 reads."""

    @property
    def mamba_heads(self) -> int: ...
    @property
    def mamba_head_dim(self) -> int: ...
    @property
    def mamba_groups(self) -> int: ...
    @property
    def mamba_state_dim(self) -> int: ...


class HeadValues(Values):
    """One value per head: float32 [heads], stored as a matrix of one column."""

    suffixes = ("",)

    @classmethod
    def stored_shape(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape, 1)

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: Any) -> NDArray[np.float32]:
        return values.reshape(-1)


class GroupedRMSNorm:
    """An RMS norm of each group of columns; its weights are [groups, columns per group]."""

    def __init__(self, ops: Backend, weight: Array, eps: float) -> None:
        self.ops = ops
        self.weight = weight
        self.eps = eps

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(f"{name}.weight", shape)
        if values is None:
            return None
        return cls(source.ops, source.ops.array(np.array(values, np.float32)), options.norm_eps)

    def __call__(self, x: Array) -> Array:
        """Map [rows, columns] to the same shape."""
        grouped = x.reshape(len(x), *self.weight.shape)
        normed: Array = self.ops.rms_norm(grouped, self.weight, self.eps).reshape(x.shape)
        return normed


class Mamba2(Module):
    """A state space as linear attention after a short convolution (Dao and Gu, arXiv:2405.21060).

    The token chooses a step for each head, by which the memory decays and the token's value is added. The
    heads of a group share keys and queries. The output is gated and normalised.
    """

    options: MambaOptions
    inputs: StackedLinear = weight(  # gates, values, keys, queries, steps
        "ssm_in", "mamba_size", "mamba_size", "mamba_key_size", "mamba_key_size", "mamba_heads", "hidden_size"
    )
    step_bias: Array = weight("ssm_dt.bias|ssm_dt", "mamba_heads")
    convolutions: SiluConvolutions = weight(
        "ssm_conv1d", "mamba_size", "mamba_key_size", "mamba_key_size", "taps"
    )
    decay: HeadValues = weight("ssm_a", "mamba_heads")  # below 0
    skip: HeadValues = weight("ssm_d", "mamba_heads")  # share of a value that bypasses the memory
    norm: GroupedRMSNorm | None = weight("ssm_norm", "mamba_groups", "mamba_group_size", optional=True)
    output: Linear = weight("ssm_out", "hidden_size", "mamba_size")

    def loaded(self) -> None:
        step = self.inputs.linears[-1]
        step.bias = self.step_bias if step.bias is None else step.bias + self.step_bias
        self.ones = self.ops.array(np.ones(self.options.mamba_heads, np.float32))

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        o, count, state = self.options, len(hidden), cache.state(self.index)
        gate, *inputs, step = self.inputs(hidden)
        value, key, query = self.convolutions(inputs, state)
        slots = state.slots
        mixed = self.ops.linear_attention(
            query.reshape(count, o.mamba_groups, o.mamba_state_dim),
            key.reshape(count, o.mamba_groups, o.mamba_state_dim),
            value.reshape(count, o.mamba_heads, o.mamba_head_dim),
            self.ops.softplus(step, self.decay.values), self.ops.softplus(step, self.ones), self.skip.values,
            state.states["memory"], slots.starts, slots.sources, slots.targets,
        )  # fmt: skip
        mixed = self.ops.swiglu(gate, mixed.reshape(count, -1))
        if self.norm is not None:
            mixed = self.norm(mixed)
        return self.output(mixed if rows is None else mixed[rows])


class ScanOptions(Protocol):
    """Layer options that Mamba 1 reads."""

    @property
    def normed_inputs(self) -> bool: ...


class Rates(Values):
    """Decay rate of each entry of a channel's state: [entries, channels], stored as [channels, entries]."""

    suffixes = ("",)

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: Any) -> NDArray[np.float32]:
        return values.T


class Mamba(Module):
    """A selective state space after a short convolution (Gu and Dao, arXiv:2312.00752).

    Each channel has its own state, and the token chooses each channel's step.
    """

    options: ScanOptions
    inputs: StackedLinear = weight("ssm_in", "mamba_size", "mamba_size", "hidden_size")  # values, gates
    convolutions: SiluConvolutions = weight("ssm_conv1d", "mamba_size", "taps")
    selection: StackedLinear = weight("ssm_x", "step_rank", "entries", "entries", "mamba_size")
    step: Linear = weight("ssm_dt", "mamba_size", "step_rank")
    rates: Rates = weight("ssm_a", "mamba_size", "entries")  # below 0
    skip: Array = weight("ssm_d", "mamba_size")
    output: Linear = weight("ssm_out", "hidden_size", "mamba_size")

    def loaded(self) -> None:
        size = len(self.skip)
        self.ones = self.ops.array(np.ones(size, np.float32))

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        state = cache.state(self.index)
        value, gate = self.inputs(hidden)
        (value,) = self.convolutions([value], state)
        step, key, query = self.select(value)
        slots = state.slots
        mixed = self.ops.selective_scan(
            value, self.ops.softplus(self.step(step), self.ones), self.rates.values, key, query, self.skip,
            state.states["memory"], slots.starts, slots.sources, slots.targets,
        )  # fmt: skip
        mixed = self.ops.swiglu(gate, mixed)
        return self.output(mixed if rows is None else mixed[rows])

    def select(self, value: Array) -> list[Array]:
        """Return steps [rows, rank], keys and queries [rows, entries] selected by `value` [rows, size]."""
        chosen = self.selection(value)
        if self.options.normed_inputs:
            chosen = [self.ops.rms_norm(x, self.ones[: x.shape[1]], _INPUT_EPS) for x in chosen]
        return chosen


class NormedMamba(Mamba):
    """A selective state space with norms of the selected steps, keys and queries (Jamba)."""

    step_norm: RMSNorm = weight("ssm_dt_norm", "step_rank")
    key_norm: RMSNorm = weight("ssm_b_norm", "entries")
    query_norm: RMSNorm = weight("ssm_c_norm", "entries")

    def select(self, value: Array) -> list[Array]:
        step, key, query = self.selection(value)
        return [self.step_norm(step), self.key_norm(key), self.query_norm(query)]
