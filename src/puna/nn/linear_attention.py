"""Linear attention, whose memory does not grow with the context: gated delta networks, Kimi's included."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache
from puna.nn.convolution import SeparateConvolutions, SiluConvolutions
from puna.nn.layers import Linear, RMSNorm, StackedLinear, linear_many
from puna.nn.mamba import HeadValues
from puna.nn.module import Module, weight
from puna.ops import Array, Rope


class DeltaOptions(Protocol):
    """Layer options that gated delta networks read."""

    @property
    def key_heads(self) -> int: ...
    @property
    def value_heads(self) -> int: ...
    @property
    def memory_dim(self) -> int: ...
    @property
    def tiled_heads(self) -> bool: ...


class GatedDeltaNetwork(Module):
    """Linear attention by the delta rule after a short convolution (Yang et al., arXiv:2412.06464).

    Each value head's memory decays, and forgets the value stored for a key before it stores the new one. The
    output is normalised and gated.
    """

    options: DeltaOptions
    joined: StackedLinear = weight(
        "attn_qkv", "delta_key_size", "delta_key_size", "delta_value_size", "hidden_size"
    )
    gate: Linear = weight("attn_gate", "delta_value_size", "hidden_size")
    beta: Linear = weight("ssm_beta", "value_heads", "hidden_size")
    alpha: Linear = weight("ssm_alpha", "value_heads", "hidden_size")
    step_bias: Array = weight("ssm_dt|ssm_dt.bias", "value_heads")
    decay: Array = weight("ssm_a", "value_heads")  # below 0
    convolutions: SiluConvolutions = weight(
        "ssm_conv1d", "delta_key_size", "delta_key_size", "delta_value_size", "taps"
    )
    norm: RMSNorm = weight("ssm_norm", "memory_dim")
    output: Linear = weight("ssm_out", "hidden_size", "delta_value_size")

    def loaded(self) -> None:
        dim = self.options.memory_dim
        ones = np.ones(dim, np.float32)
        # x / |x|, for queries also / sqrt(dim): RMS norms with these weights.
        self.key_norm = RMSNorm(self.ops, self.ops.array(ones / np.float32(math.sqrt(dim))), 1e-6 / dim)
        self.query_norm = RMSNorm(self.ops, self.ops.array(ones / np.float32(dim)), 1e-6 / dim)
        self.alpha.bias = self.step_bias

    def project(self, hidden: Array) -> list[Array]:
        """Return queries, keys, values, gates [rows, heads * dim] and betas, alphas [rows, heads]."""
        return linear_many(hidden, *self.joined.linears, self.gate, self.beta, self.alpha)

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        o, count, state = self.options, len(hidden), cache.state(self.index)
        *inputs, gate, beta, alpha = self.project(hidden)
        query, key, value = self.convolutions(inputs, state)
        slots = state.slots
        mixed = self.ops.linear_attention(
            self.query_norm(query.reshape(count, o.key_heads, o.memory_dim)),
            self.key_norm(key.reshape(count, o.key_heads, o.memory_dim)),
            value.reshape(count, o.value_heads, o.memory_dim),
            self.decays(alpha), self.ops.sigmoid(beta), None, state.states["memory"],
            slots.starts, slots.sources, slots.targets, delta=True, tiled=o.tiled_heads,
        )  # fmt: skip
        mixed = self.gated(self.norm(mixed).reshape(count, -1), gate)
        return self.output(mixed if rows is None else mixed[rows])

    def decays(self, alpha: Array) -> Array:
        """Return log decays of the memories: [rows, heads], or per key entry [rows, heads, dim]."""
        return self.ops.softplus(alpha, self.decay)

    def gated(self, mixed: Array, gate: Array) -> Array:
        """Gate the output: [rows, heads * dim] each, to the same shape."""
        return self.ops.swiglu(gate, mixed)


class EntrywiseDeltaNetwork(GatedDeltaNetwork):
    """Gated delta network with a decay for each key entry, and other names of its tensors."""

    joined = decay = None  # type: ignore[assignment]
    query: Linear = weight("attn_q", "delta_key_size", "hidden_size")
    key: Linear = weight("attn_k", "delta_key_size", "hidden_size")
    value: Linear = weight("attn_v", "delta_value_size", "hidden_size")
    step_bias: Array = weight("ssm_dt|ssm_dt.bias", "delta_key_size")
    decay_of_heads: HeadValues = weight("ssm_a", "value_heads")
    convolutions: SeparateConvolutions = weight(
        "ssm_conv1d", "delta_key_size", "delta_key_size", "delta_value_size", "taps"
    )
    output: Linear = weight("attn_output", "hidden_size", "delta_value_size")

    def loaded(self) -> None:
        rates = np.repeat(self.ops.numpy(self.head_rates()), self.options.memory_dim)
        self.rates = self.ops.array(rates)  # of each key entry
        super().loaded()

    def head_rates(self) -> Array:
        """Return the factor of each head's log decays [heads], which is below 0 if they have no bound."""
        return self.decay_of_heads.values

    def decays(self, alpha: Array) -> Array:
        of_keys: Array = self.log_decays(alpha).reshape(len(alpha), self.options.value_heads, -1)
        return of_keys

    def log_decays(self, alpha: Array) -> Array:
        """Return the log decays of key entries, below 0: [rows, delta_key_size], as `alpha`."""
        return self.ops.softplus(alpha, self.rates)

    def gated(self, mixed: Array, gate: Array) -> Array:
        return self.ops.sigmoid_gate(mixed, gate)


class KimiDeltaAttention(EntrywiseDeltaNetwork):
    """Such a network whose decays and gates pass through a bottleneck as short as a key.

    Kimi Team, arXiv:2510.26692.
    """

    gate = alpha = None  # type: ignore[assignment]
    to_decays: Linear = weight("ssm_f_a", "memory_dim", "hidden_size")
    from_decays: Linear = weight("ssm_f_b", "delta_key_size", "memory_dim")
    to_gates: Linear = weight("ssm_g_a", "memory_dim", "hidden_size")
    from_gates: Linear = weight("ssm_g_b", "delta_value_size", "memory_dim")

    def loaded(self) -> None:
        self.alpha = self.from_decays
        super().loaded()

    def project(self, hidden: Array) -> list[Array]:
        *inputs, beta, decays, gates = linear_many(
            hidden, self.query, self.key, self.value, self.beta, self.to_decays, self.to_gates
        )
        return [*inputs, self.from_gates(gates), beta, self.from_decays(decays)]


class BoundedOptions(DeltaOptions, Protocol):
    @property
    def decay_bound(self) -> float:
        """The lowest log decay, below 0."""


class BoundedDeltaNetwork(EntrywiseDeltaNetwork):
    """Such a network whose log decays are between a bound and 0 (Ling 3)."""

    options: BoundedOptions
    gate: Linear = weight("ssm_g_a", "delta_value_size", "hidden_size")
    alpha: Linear = weight("ssm_f_a", "delta_key_size", "hidden_size")

    def project(self, hidden: Array) -> list[Array]:
        return linear_many(hidden, self.query, self.key, self.value, self.gate, self.beta, self.alpha)

    def log_decays(self, alpha: Array) -> Array:
        found: Array = self.ops.sigmoid(alpha * self.rates) * self.options.decay_bound
        return found
