"""Embeddings of n-grams, which one layer adds to the residual's streams (Qwen 3.8 Flash Next).

The reference is `Qwen4ExpTextPLELayer` in Hugging Face transformers. The table is large, but only a few rows
per token are read. The tokens before a batch's first are a state, like the inputs of a convolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

import numpy as np

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache
from puna.nn.convolution import DilatedConvolution
from puna.nn.hyper_connections import StreamNorm
from puna.nn.layers import Embedding, Linear, fixed_linear, linear_many
from puna.nn.module import Module, WeightSource, weight
from puna.ops import Array

#: Names of the states.
_TOKENS: Final = "ngrams.tokens"
_INPUTS: Final = "ngrams.inputs"
#: Smallest magnitude of a product whose root becomes a gate.
_FLOOR: Final = 1e-6


@dataclass(frozen=True)
class Ngrams:
    """A table of n-grams, and how they are hashed to its rows; see `Backend.ngram_rows`."""

    table_rows: int
    row_size: int
    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    boundary: int
    image_token: int  # stands for each row of an image
    taps: int  # of the convolution, as many rows apart as the longest n-gram has tokens

    @property
    def longest(self) -> int:
        return len(self.multipliers)

    @property
    def width(self) -> int:
        """Values of all rows of a token."""
        return len(self.sizes) * self.row_size

    def states(self, streams_size: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return the names and shapes of the states, given the values of all streams of a row."""
        reach = DilatedConvolution.reach(self.taps, self.longest)
        return (_TOKENS, (self.longest - 1,)), (_INPUTS, (reach - 1, streams_size))


class NgramOptions(Protocol):
    """Layer options that n-grams read."""

    @property
    def ngrams(self) -> Ngrams | None: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def streams(self) -> int: ...
    @property
    def streams_size(self) -> int: ...


class NgramTable(Embedding):
    """Table of a layer, whose tensor is named as if it were for the whole model."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        return super().from_source(source, name.rpartition(".")[2], shape, options)


class NgramInput(Module):
    """Input of a layer's streams: a value made from n-grams, gated for each stream, and its convolution."""

    options: NgramOptions
    table: NgramTable = weight("per_layer_token_embd", "ngram_rows", "ngram_row_size")
    key: Linear = weight("ple_key", "streams_size", "ngram_width")
    value: Linear = weight("ple_value", "hidden_size", "ngram_width")
    key_norm: StreamNorm = weight("ple_norm_key", "streams", "hidden_size")
    query_norm: StreamNorm = weight("ple_norm_query", "streams", "hidden_size")
    input_norm: StreamNorm = weight("ple_norm_conv", "streams", "hidden_size")
    convolution: DilatedConvolution = weight("ple_conv1d", "streams_size", "ngram_taps", "ngram_longest")

    def loaded(self) -> None:
        o, found = self.options, self.options.ngrams
        assert found is not None
        self._ngrams = found
        self._multipliers, self._sizes, self._offsets = (
            self.ops.array(np.array(each, np.int64))
            for each in (found.multipliers, found.sizes, found.offsets)
        )
        # Products of keys and queries, summed stream by stream.
        sums = np.eye(o.streams).repeat(o.hidden_size, axis=1) / math.sqrt(o.hidden_size)
        self._sums = fixed_linear(self.ops, sums)

    def forward(self, streams: list[Array], batch: BatchArrays, cache: Cache) -> list[Array]:
        """Return the streams [rows, hidden] with the layer's input added."""
        ops, state = self.ops, cache.state(self.index)
        slots = state.slots
        rows = ops.ngram_rows(
            self._tokens(batch), self._multipliers, self._sizes, self._offsets, self._ngrams.boundary,
            state.states[_TOKENS], slots.starts, slots.sources, slots.targets,
        )  # fmt: skip
        embedded = self.table(rows.reshape(-1)).reshape(len(rows), -1)
        key, value = linear_many(embedded, self.key, self.value)
        products = self._sums(self.key_norm(key) * self.query_norm(ops.join(streams)))
        gated = ops.mix([value], ops.sigmoid(ops.signed_root(products, _FLOOR)))
        convolved = self.convolution(self.input_norm(ops.join(gated)), state, _INPUTS)
        added = ops.split(convolved, self.options.streams)
        return [stream + (own + more) for stream, own, more in zip(streams, gated, added, strict=True)]

    def _tokens(self, batch: BatchArrays) -> Array:
        """Return the tokens of a batch, with one for each row of an image."""
        if not batch.payloads:
            return batch.tokens
        tokens = self.ops.numpy(batch.tokens).copy()
        for row, payload in batch.payloads:
            tokens[row : row + len(payload)] = self._ngrams.image_token
        return self.ops.array(tokens)
