"""Audio tower of LFM2-Audio: NeMo's FastConformer, whose states attend to a whole window.

Reference: liquid-audio of Liquid AI. The encoder is also `ParakeetEncoder` in Hugging Face transformers:
convolutions of each channel by itself keep an eighth of the frames (Rekesh et al., arXiv:2305.05084), and
positions are relative to each other as in Transformer-XL (Dai et al., arXiv:1901.02860).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from puna.audio.conformer import BlockConformerLayer, BlockConformerOptions, tap_count
from puna.audio.normalised import NormalisedFeatures
from puna.audio.options import AudioOptions
from puna.audio.recording import Recording
from puna.audio.tower import AudioTower, AudioWindow
from puna.errors import ModelError
from puna.gguf.metadata import invalid, table_rows
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import blocks, weight
from puna.ops import Array, Rope, Weight
from puna.vision.layers.attention import PatchKeys, Slices, pieces
from puna.vision.layers.convolution import (
    BandLinear,
    Convolution,
    DepthwiseConvolution,
    Pointwise,
    neighbours,
    results,
    rimmed,
)
from puna.vision.layers.layers import Table

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Frames of the spectrogram that make a state.
_FRAMES: Final = 8
#: States that are read at once: two minutes.
_MOST_STATES: Final = 1500

_FLOAT_BYTES: Final = 4
#: Copies per state alive at once: the states before and after a step, and between attention and convolution.
_ROWS_ALIVE: Final = 4


class FastConformerLayer(BlockConformerLayer):
    """Distances have vectors of sines and cosines, which each head maps to values of its own."""

    content_bias: Table = weight("pos_bias_u", "heads", "head_dim")
    distance_bias: Table = weight("pos_bias_v", "heads", "head_dim")
    distance: Table = weight("linear_pos", "inner_size", "hidden_size")
    taps_bias: Array = weight("conv_dw.bias", "channels")

    def loaded(self) -> None:
        o, ops = self.options, self.ops
        self.offset = self.offset + self.taps_bias * self.scale
        by_head = ops.numpy(self.distance.values).reshape(o.heads, o.head_dim, o.hidden_size)
        self._by_head = [
            Weight.from_values("linear_pos", np.ascontiguousarray(head.T, np.float32)) for head in by_head
        ]
        for each in self._by_head:
            ops.pack(each)
        self._rope = Rope.build(o.hidden_size)

    def codes(self) -> NDArray[np.float32]:
        return _codes(self.options.context, self.options.hidden_size)

    def asked(self, queries: Array, begin: int) -> list[Array]:
        # The vector of distance i - j is that of distance 0 rotated by j - i. Its product with a query is
        # that of the query rotated by i and the vector rotated by j, the code of place j.
        o, ops = self.options, self.ops
        queries = queries.reshape(-1, o.heads, o.head_dim)
        products = ops.linear_heads(queries + self.distance_bias.values, self._by_head)
        ops.rope_(products, ops.array(np.arange(begin, begin + len(products), dtype=np.int32)), self._rope)
        contents = queries + self.content_bias.values
        return [contents.reshape(-1, o.head_dim), products.reshape(-1, o.hidden_size)]


@lru_cache(maxsize=2)
def _codes(places: int, width: int) -> NDArray[np.float32]:
    """Return the vector of distance 0, pairs of sine and cosine, rotated by each place: [places, width]."""
    angles = np.arange(places)[:, None] * Rope.build(width).frequencies.astype(np.float64)
    return np.stack([-np.sin(angles), np.cos(angles)], axis=2).astype(np.float32).reshape(places, width)


@dataclass(frozen=True, kw_only=True)
class Lfm2AudioOptions(AudioOptions):
    layers: tuple[BlockConformerOptions, ...]
    channels: int  # of the convolutions before the layers
    inner_size: int  # of the projector

    @property
    def reduced_size(self) -> int:
        return self.channels * results(self.bands, _FRAMES)


class Lfm2Audio(AudioTower):
    #: Embeddings of the sounds that the model says, under the names that llama.cpp's converter gives them.
    unread: ClassVar[tuple[str, ...]] = (
        "a.position_embd.weight", "a.position_embd_norm.weight", "a.embd_to_logits.weight",
    )  # fmt: skip

    options: Lfm2AudioOptions
    first: Convolution = weight("a.conv1d.0", "channels", 1, 3, 3)
    second: DepthwiseConvolution = weight("a.conv1d.2", "channels", 3)
    second_bias: Array = weight("a.conv1d.2.bias", "channels")
    second_mix: Pointwise = weight("a.conv1d.3", "channels", "channels")
    third: DepthwiseConvolution = weight("a.conv1d.5", "channels", 3)
    third_bias: Array = weight("a.conv1d.5.bias", "channels")
    third_mix: Pointwise = weight("a.conv1d.6", "channels", "channels")
    reduction: BandLinear = weight("a.pre_encode.out", "hidden_size", "reduced_size")
    layers: Sequence[FastConformerLayer] = blocks("a.blk")
    norm: LayerNorm = weight("mm.a.mlp.0", "hidden_size")
    up: Linear = weight("mm.a.mlp.1", "inner_size", "hidden_size")
    down: Linear = weight("mm.a.mlp.3", "text_size", "inner_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Lfm2AudioOptions:
        read = AudioOptions.read(file, text_size)
        if (hidden := read.hidden_size) % 2:
            raise invalid(file, "audio.embedding_length", f"is {hidden}, and distances need an even number")
        if not (kernel := tap_count(file)) % 2:
            raise ModelError(
                f"{file.path}: tensor 'a.blk.0.conv_dw.weight' has {kernel} values for each channel, and "
                "should have an odd number"
            )
        own = vars(read.layers[0]) | {"feed_forward_size": table_rows(file, "a.blk.0.ffn_up.weight")}
        layer = BlockConformerOptions(
            **own,
            inner_size=hidden,
            channels=table_rows(file, "a.blk.0.conv_dw.weight"),
            kernel=kernel,
            context=_MOST_STATES,
        )
        return Lfm2AudioOptions(
            **vars(read) | {"layers": (layer,) * len(read.layers)},
            channels=table_rows(file, "a.conv1d.0.weight"),
            inner_size=table_rows(file, "mm.a.mlp.1.weight"),
        )

    def loaded(self) -> None:
        layer = self.options.layers[0]
        self.keys = PatchKeys(self.ops, layer.heads, layer.head_dim + layer.hidden_size, layer.head_dim)

    def prepare(self, recording: Recording) -> list[AudioWindow]:
        features = NormalisedFeatures(recording, self.options.bands, _FRAMES * _MOST_STATES)
        return [
            AudioWindow(features, _FRAMES * begin, end - begin)
            for begin, end in pieces(results(features.frames, _FRAMES), _MOST_STATES)
        ]

    def encode(self, window: AudioWindow, slice_rows: int) -> Slices[Array]:
        hidden = yield from self._reduced(window.features.window(window.begin), slice_rows)
        self.keys.reserve(len(hidden))
        for layer in self.layers:
            hidden = yield from layer.forward(hidden, self.keys, slice_rows)
        found = []
        for begin, end in pieces(len(hidden), slice_rows):
            found.append(self.down(self.ops.gelu(self.up(self.norm(hidden[begin:end])))))
            yield
        return self.ops.concatenate(found)

    def _reduced(self, frames: NDArray[np.float32], slice_rows: int) -> Slices[Array]:
        """Return the states [states, hidden] that the convolutions make of `frames` [frames, bands]."""
        found = []
        for begin, end in pieces(results(len(frames), _FRAMES), max(slice_rows // _FRAMES, 1)):
            # A state also depends on the frames of the one before.
            before = min(begin, 1)
            states = self._convolved(frames[_FRAMES * (begin - before) : _FRAMES * end])
            found.append(states[before:])
            yield
        return self.ops.concatenate(found)

    def _convolved(self, frames: NDArray[np.float32]) -> Array:
        """Return the states [states, hidden] of `frames` [frames, bands] by themselves."""
        ops, (time, bands) = self.ops, frames.shape
        grid = ops.array(np.ascontiguousarray(frames).reshape(-1, 1))
        seen = neighbours(time, 3, 2, 1, 1, width=bands)
        (grid,) = self.first.over(rimmed(ops, [grid]), seen, len(seen))
        for convolution, bias, mix in (
            (self.second, self.second_bias, self.second_mix),
            (self.third, self.third_bias, self.third_mix),
        ):
            time, bands = results(time, 2), results(bands, 2)
            seen = neighbours(time, 3, 2, 1, 1, width=bands)
            (grid,) = convolution.over(ops, rimmed(ops, [self._positive(grid)]), seen, len(seen))
            grid = mix(grid + bias)
        reduced: Array = self.reduction(self._positive(grid).reshape(results(time, 2), -1))
        return reduced

    def _positive(self, x: Array) -> Array:
        """Return the ReLU of `x`, on the host: no operation computes it."""
        return self.ops.array(np.maximum(self.ops.numpy(x), 0.0))

    def memory_bytes(self, slice_rows: int) -> int:
        o, layer = self.options, self.options.layers[0]
        rows, context = min(slice_rows, layer.context), layer.context
        frames = slice_rows + 2 * _FRAMES
        convolved = results(frames, 2) * results(o.bands, 2) * (4 * o.channels + 2 * 9)
        # Queries and keys of a window are both kept.
        distances = 2 * context * layer.heads * (2 * layer.head_dim + o.hidden_size)
        alive = context * (o.hidden_size * _ROWS_ALIVE + 2 * layer.channels + _FRAMES * o.bands) + distances
        row = 3 * layer.feed_forward_size + 2 * layer.channels
        return _FLOAT_BYTES * (max(convolved, rows * row) + alive)
