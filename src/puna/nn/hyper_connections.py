"""Hyper-connections: residuals of several streams, which each half of a layer reads as one and adds to.

Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2026. Streams differ by how much each contributes
to what a half reads, and by how much of its result each receives. They are also mixed with each other, by
matrices whose rows and columns sum to 1, except in the independent form of Hy 4 (`HYV4HyperConnection` in
Hugging Face transformers). In Qwen 3.8 Flash Next (`Qwen4ExpTextGatedResidual`), each value of each stream
contributes by a gate of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from puna.errors import ModelError
from puna.nn.layers import Linear, fixed_linear, linear_many, unit_norm
from puna.nn.mamba import GroupedRMSNorm
from puna.nn.module import Module, WeightSource, weight
from puna.ops import Array, Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray


class HyperConnectionOptions(Protocol):
    """Options of models and layers with several streams."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def streams(self) -> int: ...
    @property
    def stream_eps(self) -> float:
        """Added to every weight of a stream."""

    @property
    def stream_magnitude(self) -> float:
        """Largest weight of a half's result in a stream."""


class MixedStreamOptions(HyperConnectionOptions, Protocol):
    """Options of models whose streams are mixed."""

    @property
    def stream_gates(self) -> int:
        """Gates of each stream: for reading, for adding, and for its share of each stream."""

    @property
    def stream_rounds(self) -> int:
        """Rounds in which the matrix of shares is balanced."""


class StreamGates(Linear):
    """Linear from all streams to gates of each stream, before their sigmoid.

    The shape is the number of gates of a stream, of streams, and the hidden size. The tensors are named
    `<name>_fn`, [gates * streams, streams * hidden]; `<name>_scale`, a factor for each gate of a stream; and
    `<name>_base`, the biases.
    """

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        gates, streams, hidden = shape
        values = _values(source, f"{name}_fn.weight", (gates * streams, streams * hidden))
        scales = cls.scales(source, f"{name}_scale.weight", gates)
        biases = _values(source, f"{name}_base.weight", (gates * streams,))
        scaled = values * scales.repeat(streams)[:, None]
        rows = cls.rows_as_read(gates, streams)
        # Adapters of the tensor do not fit what is derived from it, which therefore has another name.
        return cls.of_values(source, name, scaled[rows], source.ops.array(biases[rows]))

    @classmethod
    def scales(cls, source: WeightSource, name: str, gates: int) -> NDArray[np.float32]:
        """Return the factor of each gate of a stream."""
        return _values(source, name, (gates,))

    @classmethod
    def rows_as_read(cls, gates: int, streams: int) -> NDArray[np.intp]:
        """Return the order of rows by which gates are read."""
        return np.arange(gates * streams)


class MixingGates(StreamGates):
    """Gates for reading, for adding, and for the share of each stream in each: one factor for all shares.

    The file has the shares by source, and `Backend.balance` takes them by result.
    """

    @classmethod
    def scales(cls, source: WeightSource, name: str, gates: int) -> NDArray[np.float32]:
        return _values(source, name, (3,))[[0, 1, *[2] * (gates - 2)]]

    @classmethod
    def rows_as_read(cls, gates: int, streams: int) -> NDArray[np.intp]:
        rows = super().rows_as_read(gates, streams).reshape(gates, streams)
        return np.concatenate([rows[:2], rows[2:].T]).reshape(-1)


def _values(source: WeightSource, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    found = source.values(name, shape)
    if found is None:
        raise ModelError(f"tensor '{name}' is missing")
    return found


def _adding(ops: Backend, streams: int, magnitude: float, eps: float) -> Linear:
    """Return the map from gates [rows, streams] to the mixture by which streams receive a result.

    Each stream is itself plus its weight, gate * `magnitude` + `eps`, times the result, which is the last
    part of the mixture.
    """
    values, offsets = np.zeros((streams, streams + 1, streams)), np.eye(streams, streams + 1)
    values[:, streams] = np.eye(streams) * magnitude
    offsets[:, streams] = eps
    return fixed_linear(ops, values.reshape(-1, streams), offsets.reshape(-1))


def _mean(streams: Sequence[Array]) -> Array:
    """Return the mean, [rows, hidden], of `streams` of that shape."""
    total, *others = streams
    for other in others:
        total = total + other
    mean: Array = total * (1 / len(streams))
    return mean


class StreamReader(Module):
    """Weighted sum of the streams, with weights for each row made from its streams."""

    options: HyperConnectionOptions
    gates: StreamGates

    def loaded(self) -> None:
        o = self.options
        self.norm = unit_norm(self.ops, o.streams * o.hidden_size, o.norm_eps)
        self.reading = fixed_linear(self.ops, np.eye(o.streams), np.full(o.streams, o.stream_eps))

    def all_gates(self, streams: list[Array]) -> Array:
        """Return the gates of `streams` [rows, hidden], between 0 and 1: [rows, gates * streams]."""
        return self.ops.sigmoid(self.gates(self.norm(self.ops.join(streams))))

    def sum(self, streams: list[Array], gates: Array) -> Array:
        """Return the sum [rows, hidden] of `streams` by their `gates` [rows, streams]."""
        return self.ops.mix(streams, self.reading(gates))[0]


class HyperConnection(StreamReader):
    """Weights by which half of a layer reads the streams, and by which its result is added to them."""

    def loaded(self) -> None:
        super().loaded()
        o = self.options
        self.adding = _adding(self.ops, o.streams, o.stream_magnitude, o.stream_eps)

    def read(self, streams: list[Array]) -> tuple[Array, Array]:
        """Return what the half reads [rows, hidden], and the mixture that `add` takes."""
        reading, adding = self.ops.split(self.all_gates(streams), 2)
        return self.sum(streams, reading), self.adding(adding)

    def add(self, streams: list[Array], result: Array, mixture: Array) -> list[Array]:
        """Return the streams after the half's `result` [rows, hidden]."""
        return self.ops.mix([*streams, result], mixture)


class MixerConnection(HyperConnection):
    gates: StreamGates = weight("hc_attn", 2, "streams", "hidden_size")


class FeedForwardConnection(HyperConnection):
    gates: StreamGates = weight("hc_ffn", 2, "streams", "hidden_size")


class MixedConnection(HyperConnection):
    """Weights by which half of a layer reads streams, mixes them with each other, and adds its result."""

    options: MixedStreamOptions

    def loaded(self) -> None:
        StreamReader.loaded(self)
        # The mixture has each stream's shares of all, and last its weight of the result.
        count = self.options.streams
        values = np.zeros((count, count + 1, count * count + count))
        values[:, :count, : count * count] = np.eye(count * count).reshape(count, count, -1)
        values[:, count, count * count :] = np.eye(count) * self.options.stream_magnitude
        width = values.shape[2]
        self.adding = fixed_linear(self.ops, values.reshape(-1, width), np.zeros(count * (count + 1)))

    def read(self, streams: list[Array]) -> tuple[Array, Array]:
        o, ops = self.options, self.ops
        found = self.gates(self.norm(ops.join(streams)))
        reading, adding, *shares = ops.split(found, o.stream_gates)
        balanced = ops.balance(ops.join(shares), o.stream_eps, o.stream_rounds)
        mixture = self.adding(ops.join([balanced, ops.sigmoid(adding)]))
        return self.sum(streams, ops.sigmoid(reading)), mixture


class MixedMixerConnection(MixedConnection):
    gates: MixingGates = weight("hc_attn", "stream_gates", "streams", "hidden_size")


class MixedFeedForwardConnection(MixedConnection):
    gates: MixingGates = weight("hc_ffn", "stream_gates", "streams", "hidden_size")


class OutputStreams(StreamReader):
    """Weighted sum of the streams after the last layer."""

    gates: StreamGates = weight("output_hc", 1, "streams", "hidden_size")

    def read(self, streams: list[Array]) -> Array:
        """Return the sum, [rows, hidden], of `streams` of that shape."""
        return self.sum(streams, self.all_gates(streams))


class StreamMean(Module):
    """Mean of the streams after the last layer."""

    def read(self, streams: list[Array]) -> Array:
        """Return the mean, [rows, hidden], of `streams` of that shape."""
        return _mean(streams)


class StreamNorm(GroupedRMSNorm):
    """RMS norm of each stream [rows, streams * hidden], whose weights are one vector.

    The shape is the number of streams, and the hidden size.
    """

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        streams, hidden = shape
        values = source.values(f"{name}.weight", (streams * hidden,))
        if values is None:
            return None
        return cls(source.ops, source.ops.array(np.array(values.reshape(shape))), options.norm_eps)


class GatedStreamOptions(Protocol):
    """Options of models and layers whose streams contribute value by value."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def streams(self) -> int: ...
    @property
    def streams_size(self) -> int:
        """Values of all streams of a row."""

    @property
    def stream_rank(self) -> int:
        """Size of the bottleneck that gates are made through."""


class GatedStreamMean(Module):
    """Mean of the normalised streams, each value multiplied by a gate made from all of them."""

    options: GatedStreamOptions
    norm: StreamNorm
    down: Linear
    up: Linear

    def __call__(self, joined: Array) -> Array:
        """Return the mean [rows, hidden] of the streams side by side [rows, streams * hidden]."""
        normed = self.norm(joined)
        return self.mean(normed, self.down(normed))

    def mean(self, normed: Array, down: Array) -> Array:
        """Return the mean [rows, hidden] of `normed` streams [rows, streams * hidden].

        `down` [rows, rank] is what the bottleneck's first half makes of them.
        """
        ops, count = self.ops, self.options.streams
        inner = down * (1 / count)
        gates = self.up(ops.sigmoid_gate(inner, inner))  # SiLU
        return _mean(ops.split(ops.sigmoid_gate(normed, gates), count))


class GatedConnection(GatedStreamMean):
    """Mean of the streams that half of a layer reads, and weights by which its result is added to them."""

    inject: Linear

    def loaded(self) -> None:
        self.adding = _adding(self.ops, self.options.streams, magnitude=2.0, eps=0.0)

    def read(self, streams: list[Array]) -> tuple[Array, Array]:
        """Return what the half reads [rows, hidden], and the mixture that `add` takes."""
        normed = self.norm(self.ops.join(streams))
        down, weights = linear_many(normed, self.down, self.inject)
        weights = self.ops.sigmoid(weights * (1 / self.options.streams))
        return self.mean(normed, down), self.adding(weights)

    def add(self, streams: list[Array], result: Array, mixture: Array) -> list[Array]:
        """Return the streams after the half's `result` [rows, hidden]."""
        return self.ops.mix([*streams, result], mixture)


class GatedMixerConnection(GatedConnection):
    norm: StreamNorm = weight("hc_attn_norm", "streams", "hidden_size")
    down: Linear = weight("hc_attn_down", "stream_rank", "streams_size")
    up: Linear = weight("hc_attn_up", "streams_size", "stream_rank")
    inject: Linear = weight("hc_attn_inject", "streams", "streams_size")


class GatedFeedForwardConnection(GatedConnection):
    norm: StreamNorm = weight("hc_ffn_norm", "streams", "hidden_size")
    down: Linear = weight("hc_ffn_down", "stream_rank", "streams_size")
    up: Linear = weight("hc_ffn_up", "streams_size", "stream_rank")
    inject: Linear = weight("hc_ffn_inject", "streams", "streams_size")


class OutputStreamMean(GatedStreamMean):
    """Mean of the streams after the last layer, which is the norm of the output, too."""

    norm: StreamNorm = weight("output_hc_norm", "streams", "hidden_size")
    down: Linear = weight("output_hc_down", "stream_rank", "streams_size")
    up: Linear = weight("output_hc_up", "streams_size", "stream_rank")
