"""Whisper's decoder, which writes what its encoder (`puna.audio.whisper`) hears (arXiv:2212.04356).

The first input of an answer has the states of a window of a recording as its payload. Their keys and values
are computed once, in all layers, and cached like an image's. Reference: `WhisperDecoder` in transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from puna.batch import BatchArrays
from puna.gguf.metadata import check_positions, table_rows
from puna.kvcache.cache import Cache
from puna.model.base import TextModel
from puna.model.layer_cache import ImageKeys
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.encoder_decoder import EncoderDecoderLayer
from puna.nn.feed_forward import PlainFeedForward
from puna.nn.layers import Embedding, LayerNorm, Linear
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreLayerNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class WhisperLayerOptions(LayerOptions):
    cross_layer: int  # number of the cache layer with the recording's keys and values


@dataclass(frozen=True, kw_only=True)
class WhisperOptions(TextOptions):
    """Options of Whisper; `layers` describe the cache: the decoder's layers, then the recording's."""

    decoder: tuple[WhisperLayerOptions, ...]
    positions: int  # number of position vectors: the longest text


class Layer(EncoderDecoderLayer, PreLayerNormLayer):
    options: WhisperLayerOptions
    cross_norm: LayerNorm = weight("cross_attn_norm", "hidden_size")  # type: ignore[assignment]
    feed_forward: PlainFeedForward = part()  # type: ignore[assignment]


class Whisper(TextModel):
    undivided: ClassVar[str] = "its layers attend to a recording that is read in one place"

    options: WhisperOptions
    token_embedding: Embedding = weight("token_embd", "vocab_size", "hidden_size")
    position_embedding: Embedding = weight("position_embd", "positions", "hidden_size")
    layers: Sequence[Layer] = blocks("blk", options="decoder")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")
    output: Linear = weight("output", "vocab_size", "hidden_size", tied_to="token_embd")

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        if windows := [payload.states for _, payload in batch.payloads]:
            heard = np.repeat([row for row, _ in batch.payloads], [len(states) for states in windows])
            with self.row_scales.standing_for(heard):
                states = self.ops.concatenate(windows)
                for layer in self.layers:
                    layer.cross.remember(states, cache.layer(layer.options.cross_layer))
        hidden = self.token_embedding(batch.tokens) + self.position_embedding(batch.positions.reshape(-1))
        for layer in self.layers:
            rows = batch.outputs if layer is self.layers[-1] else None
            hidden = layer.forward(hidden, batch, cache, None, rows)
        return self.output_norm(hidden)

    def logits(self, hidden: Array) -> Array:
        return self.output(hidden)

    @classmethod
    def read_options(cls, file: GGUFFile) -> WhisperOptions:
        text = TextOptions.read(file, TextDefaults(rotates=False))
        positions, count = table_rows(file, "position_embd.weight"), len(text.layers)
        check_positions(file, positions)
        decoder = tuple(
            WhisperLayerOptions(**vars(layer), cross_layer=count + i) for i, layer in enumerate(text.layers)
        )
        heard = ImageKeys(table_rows(file, "a.position_embd.weight"), 1)
        sources = tuple(dataclasses.replace(layer, remembers=heard) for layer in decoder)
        known = dict(vars(text)) | {"layers": decoder + sources}
        return WhisperOptions(**known, decoder=decoder, positions=positions)
