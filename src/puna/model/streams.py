"""Decoders whose layers pass several residual streams to each other (`puna.nn.hyper_connections`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from puna.batch import BatchArrays
from puna.gguf.metadata import invalid, positive, required
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.options import TextOptions
from puna.nn.hyper_connections import OutputStreams
from puna.nn.module import part
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: More streams, and rounds of balancing their mixtures, than any model has.
_MAX_STREAMS: Final = 64
_MAX_ROUNDS: Final = 1000


@dataclass(frozen=True, kw_only=True)
class StreamsOptions(TextOptions):
    streams: int


@dataclass(frozen=True, kw_only=True)
class HyperConnectedOptions(StreamsOptions):
    stream_eps: float


def read_streams(file: GGUFFile) -> int:
    """Return the number of streams. Raises `ModelError`."""
    streams = required(file, "hyper_connection.count")
    if streams > _MAX_STREAMS:
        raise invalid(file, "hyper_connection.count", f"is {streams}, more than {_MAX_STREAMS}")
    return streams


def read_hyper_connections(file: GGUFFile) -> dict[str, Any]:
    """Return the number of streams and the least of their weights, by option. Raises `ModelError`."""
    return {"streams": read_streams(file), "stream_eps": positive(file, "hyper_connection.epsilon", 1e-6)}


def read_rounds(file: GGUFFile) -> int:
    """Return the number of rounds in which mixtures are balanced. Raises `ModelError`."""
    key = "hyper_connection.sinkhorn_iterations"
    rounds = required(file, key)
    if rounds > _MAX_ROUNDS:
        raise invalid(file, key, f"is {rounds}, more than {_MAX_ROUNDS}")
    return rounds


class StreamsDecoder(Decoder):
    """Decoder that carries its streams, arrays [rows, hidden], from layer to layer; all begin alike."""

    options: StreamsOptions

    def embed(self, batch: BatchArrays) -> list[Array]:
        return super().embed(batch) * self.options.streams

    def run(self, carried: list[Array], batch: BatchArrays, cache: Cache) -> list[Array]:
        last = self.options.block_count - 1
        for layer, rope in zip(self.layers, self.layer_ropes(cache.context), strict=True):
            rows = batch.outputs if layer.index == last and not batch.keeps_all else None
            carried = layer.forward(carried, batch, cache, rope, rows)  # type: ignore[assignment, arg-type]
        return carried


class HyperConnectedDecoder(StreamsDecoder):
    """Decoder whose streams end as one, by hyper-connections."""

    options: HyperConnectedOptions
    output_streams: OutputStreams = part()

    def finish(self, carried: list[Array], batch: BatchArrays) -> Array:
        return super().finish([self.output_streams.read(carried)], batch)
