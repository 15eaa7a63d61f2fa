"""Hyper-connections: residuals of several streams, which each half of a layer reads as one and adds to.

Xie et al., "mHC: Manifold-Constrained Hyper-Connections", 2026. Streams differ by how much each contributes
to what a half reads, and by how much of its result each receives. They are also mixed with each other, by
matrices whose rows and columns sum to 1, except in the independent form of Hy 4 (`HYV4HyperConnection` in
Hugging Face transformers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from puna.errors import ModelError
from puna.nn.layers import Linear, unit_norm
from puna.nn.module import Module, WeightSource, weight
from puna.ops import Array, Backend, Weight

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


def _mixture(ops: Backend, values: NDArray[Any], offsets: NDArray[Any]) -> Linear:
    """Return the map from gates [rows, gates] to a mixture: `values` [entries, gates] plus `offsets`."""
    fixed = Weight.from_values("hyper_connections", values.astype(np.float32))
    ops.pack(fixed)
    return Linear(ops, fixed, ops.array(offsets.astype(np.float32)))


class StreamReader(Module):
    """Weighted sum of the streams, with weights for each row made from its streams."""

    options: HyperConnectionOptions
    gates: StreamGates

    def loaded(self) -> None:
        o = self.options
        self.norm = unit_norm(self.ops, o.streams * o.hidden_size, o.norm_eps)
        self.reading = _mixture(self.ops, np.eye(o.streams), np.full(o.streams, o.stream_eps))

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
        # Each stream is itself plus its weight times the result, which is the last part of the mixture.
        count, o = self.options.streams, self.options
        values, offsets = np.zeros((count, count + 1, count)), np.eye(count, count + 1)
        values[:, count] = np.eye(count) * o.stream_magnitude
        offsets[:, count] = o.stream_eps
        self.adding = _mixture(self.ops, values.reshape(-1, count), offsets.reshape(-1))

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
    """The same of streams that are mixed with each other, each with its share of all."""

    options: MixedStreamOptions

    def loaded(self) -> None:
        StreamReader.loaded(self)
        # The mixture has each stream's shares of all, and last its weight of the result.
        count = self.options.streams
        values = np.zeros((count, count + 1, count * count + count))
        values[:, :count, : count * count] = np.eye(count * count).reshape(count, count, -1)
        values[:, count, count * count :] = np.eye(count) * self.options.stream_magnitude
        width = values.shape[2]
        self.adding = _mixture(self.ops, values.reshape(-1, width), np.zeros(count * (count + 1)))

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
        total = streams[0]
        for each in streams[1:]:
            total = total + each
        mean: Array = total * (1 / len(streams))
        return mean
