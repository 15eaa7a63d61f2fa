"""Conformer of the Universal Speech Model, as in Gemma 3n and Gemma 4: it attends to the half second before.

Zhang et al., arXiv:2303.01037. The conformer is that of Gulati et al. (arXiv:2005.08100), with positions
relative to each other as in Transformer-XL (Dai et al., arXiv:1901.02860). Fields have the names of Gemma 4's
tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from puna.audio.conformer import Taps, silu, tap_count
from puna.audio.magnitudes import Magnitudes
from puna.audio.options import AudioOptions
from puna.audio.tower import AudioTower
from puna.gguf.metadata import invalid, table_rows
from puna.nn.layers import Linear, RMSNorm
from puna.nn.module import Module, blocks, part, weight
from puna.ops import Array, Weight
from puna.vision.layers.attention import Groups, PatchKeys, Slices, pieces
from puna.vision.layers.clamped import ClampedLinear
from puna.vision.layers.convolution import Convolution, results
from puna.vision.layers.layers import VisionLayerOptions

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: No key carries this number, nor the epsilon, nor the longest wavelength of the sines that encode distances,
#: in radians; all published models have the same.
_SOFTCAP: Final = 50.0
EPS: Final = 1e-6  # files state another, which the references do not use
_LONGEST: Final = 10_000
#: Scores by distance take this many values at the end of a key: the next power of two.
_SLOTS: Final = 16

_FLOAT_BYTES: Final = 4
#: Copies per state alive at once: the states, queries with their slots, keys, values, results of two passes.
_ROWS_ALIVE: Final = 7


@dataclass(frozen=True, kw_only=True)
class ConformerOptions(VisionLayerOptions):
    """Options of a layer."""

    taps: int  # states that the convolution reads: one and those before it

    @property
    def doubled_size(self) -> int:
        return 2 * self.hidden_size


class HalfFeedForward(Module):
    """Feed-forward network of whose result half is added to its input."""

    options: ConformerOptions
    norm: RMSNorm = weight("ffn_norm", "hidden_size")
    up: ClampedLinear = weight("ffn_up", "feed_forward_size", "hidden_size")
    down: ClampedLinear = weight("ffn_down", "hidden_size", "feed_forward_size")
    post_norm: RMSNorm = weight("ffn_post_norm", "hidden_size")

    def forward(self, hidden: Array) -> Array:
        inner = self.down(silu(self.ops, self.up(self.norm(hidden))))
        total: Array = hidden + self.post_norm(inner) * 0.5
        return total


class LastFeedForward(HalfFeedForward):
    norm: RMSNorm = weight("ffn_norm_1", "hidden_size")
    up: ClampedLinear = weight("ffn_up_1", "feed_forward_size", "hidden_size")
    down: ClampedLinear = weight("ffn_down_1", "hidden_size", "feed_forward_size")
    post_norm: RMSNorm = weight("ffn_post_norm_1", "hidden_size")


class ConformerAttention(Module):
    """Attention to the nearest states before, by content and by distance.

    A score is q k + q r, where r encodes the distance. The second product is part of the first: a key ends
    with a one in the slot of its place modulo `_SLOTS`, and the query with its scores by distance, each in
    the slot of the key at that distance.
    """

    #: States that one attends to: itself and those before it. No key carries the number.
    seen: ClassVar[int] = 12
    #: Factor of keys.
    key_scale: ClassVar[float] = math.log(1 + math.e) / math.log(2)

    options: ConformerOptions
    norm: RMSNorm = weight("attn_pre_norm", "hidden_size")
    query: ClampedLinear = weight("attn_q", "hidden_size", "hidden_size")
    key: ClampedLinear = weight("attn_k", "hidden_size", "hidden_size")
    value: ClampedLinear = weight("attn_v", "hidden_size", "hidden_size")
    distance: Linear = weight("attn_k_rel", "hidden_size", "hidden_size")
    scales: Array = weight("per_dim_scale", "head_dim")
    output: ClampedLinear = weight("attn_out", "hidden_size", "hidden_size")
    post_norm: RMSNorm = weight("attn_post_norm", "hidden_size")

    def loaded(self) -> None:
        o, ops = self.options, self.ops
        self._query_scale = self.positive_scales() * (o.head_dim**-0.5 / math.log(2))
        encoded = ops.numpy(self.distance(ops.array(_distances(self.seen, o.hidden_size))))
        by_head = np.zeros((o.heads, _SLOTS, o.head_dim), np.float32)
        by_head[:, : self.seen] = encoded.reshape(self.seen, o.heads, o.head_dim).transpose(1, 0, 2)
        self._by_distance = [Weight.from_values("distances", each) for each in by_head]
        for each in self._by_distance:
            ops.pack(each)

    def positive_scales(self) -> Array:
        """Return the factors of a query's values, which files have after their softplus."""
        return self.scales

    def project(self, hidden: Array, begin: int) -> list[Array]:
        """Return queries and keys [rows, heads, head_dim + slots], and values, of states from `begin` on."""
        o, ops, rows = self.options, self.ops, len(hidden)
        x, shape = self.norm(hidden), (rows, o.heads, o.head_dim)
        query = self.query(x).reshape(shape) * self._query_scale
        scores = ops.linear_heads(query, self._by_distance).reshape(-1, 1)
        places = begin + np.arange(rows)
        # Slot s of a query is for the key `(place - s) % _SLOTS` states before it.
        distances = (places[:, None] - np.arange(_SLOTS)) % _SLOTS
        heads = np.arange(rows * o.heads).reshape(rows, o.heads, 1) * _SLOTS
        by_slot = scores[ops.array((heads + distances[:, None]).reshape(-1))]
        slots = np.zeros((rows, o.heads, _SLOTS), np.float32)
        slots[np.arange(rows), :, places % _SLOTS] = 1.0
        key = self.key(x).reshape(shape) * self.key_scale
        return [
            ops.join([query, by_slot.reshape(rows, o.heads, _SLOTS)]),
            ops.join([key, ops.array(slots)]),
            self.value(x).reshape(shape),
        ]


def _distances(count: int, width: int) -> NDArray[np.float32]:
    """Return the encodings of distances 0 to `count` - 1: sines, then cosines, [count, width]."""
    half = width // 2
    rates = np.exp(-math.log(_LONGEST) / max(half - 1, 1) * np.arange(half))
    angles = np.arange(count)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


class LightConvolution(Module):
    """Gated convolution over the states before, of each channel by itself.

    The two norms have each other's names in files.
    """

    options: ConformerOptions
    norm: RMSNorm = weight("conv_norm", "hidden_size")
    begin: ClampedLinear = weight("conv_pw1", "doubled_size", "hidden_size")
    taps: Taps = weight("conv_dw", "hidden_size", "taps")
    inner_norm: RMSNorm = weight("norm_conv", "hidden_size")
    end: ClampedLinear = weight("conv_pw2", "hidden_size", "hidden_size")

    def gated(self, hidden: Array) -> Array:
        """Return what the convolution reads of states [rows, hidden]."""
        values, gate = self.ops.split(self.begin(self.norm(hidden)), 2)
        return self.ops.sigmoid_gate(values, gate)

    def convolved(self, gated: Array, begin: int, end: int) -> Array:
        """Return the results of states [begin, end).

        `gated` are all states, after `taps` - 1 rows of zeros.
        """
        return self.end(silu(self.ops, self.inner_norm(self.taps(gated, begin, end))))


class ConformerLayer(Module):
    options: ConformerOptions
    first: HalfFeedForward = part()
    attention: ConformerAttention = part()
    convolution: LightConvolution = part()
    last: LastFeedForward = part()
    norm: RMSNorm = weight("ln2", "hidden_size")

    def forward(self, hidden: Array, keys: PatchKeys, groups: Groups, slice_rows: int) -> Slices[Array]:
        """Map [states, hidden] to the same shape."""
        ops, o, ranges = self.ops, self.options, list(pieces(len(hidden), slice_rows))
        halves, queries = [], []
        for begin, end in ranges:
            half = self.first.forward(hidden[begin:end])
            query, key, value = self.attention.project(half, begin)
            keys.put(begin, key, value)
            halves.append(half)
            queries.append(query)
            yield
        attended, gated = [], [ops.array(np.zeros((o.taps - 1, o.hidden_size), np.float32))]
        for (begin, _), half, query in zip(ranges, halves, queries, strict=True):
            found = self.attention.output(keys.attend(query, begin, groups, 1.0, _SOFTCAP))
            attended.append(half + self.attention.post_norm(found))
            gated.append(self.convolution.gated(attended[-1]))
            yield
        read, made = ops.concatenate(gated), []
        for (begin, end), half in zip(ranges, attended, strict=True):
            convolved = half + self.convolution.convolved(read, begin, end)
            made.append(self.norm(self.last.forward(convolved)))
            yield
        return ops.concatenate(made)


@dataclass(frozen=True, kw_only=True)
class UniversalSpeechOptions(AudioOptions):
    layers: tuple[ConformerOptions, ...]
    first_channels: int
    second_channels: int

    @property
    def reduced_bands(self) -> int:
        """Bands after both convolutions."""
        return results(self.bands, 4)

    @property
    def reduced_size(self) -> int:
        return self.reduced_bands * self.second_channels

    @classmethod
    def read(cls, file: GGUFFile, text_size: int, **more: Any) -> Self:
        options = super().read(
            file,
            text_size,
            first_channels=table_rows(file, "a.conv1d.0.weight"),
            second_channels=table_rows(file, "a.conv1d.1.weight"),
            **more,
        )
        if (hidden := options.hidden_size) % 2:
            raise invalid(file, "audio.embedding_length", f"is {hidden}, and distances need an even number")
        taps = tap_count(file)
        layers = (ConformerOptions(**{**vars(layer), "norm_eps": EPS}, taps=taps) for layer in options.layers)
        return replace(options, norm_eps=EPS, layers=tuple(layers))


class UniversalSpeechTower(AudioTower):
    """Base of towers with this conformer after two convolutions, which keep one state of four frames."""

    options: UniversalSpeechOptions
    first: Convolution = weight("a.conv1d.0", "first_channels", 1, 3, 3)
    second: Convolution = weight("a.conv1d.1", "second_channels", "first_channels", 3, 3)
    layers: Sequence[ConformerLayer] = blocks("a.blk")

    def loaded(self) -> None:
        layer = self.options.layers[0]
        self.keys = PatchKeys(self.ops, layer.heads, layer.head_dim + _SLOTS, layer.head_dim)

    def conformed(self, hidden: Array, slice_rows: int) -> Slices[Array]:
        """Map states [states, hidden] to those after the last layer."""
        self.keys.reserve(len(hidden))
        places = np.arange(len(hidden), dtype=np.int32)
        starts = np.maximum(places - (self.layers[0].attention.seen - 1), 0)
        groups = Groups(self.ops.array(starts), self.ops.array(places - starts + 1))
        for layer in self.layers:
            hidden = yield from layer.forward(hidden, self.keys, groups, slice_rows)
        return hidden

    def memory_bytes(self, slice_rows: int) -> int:
        o, layer = self.options, self.options.layers[0]
        places = results(Magnitudes.length, 2) * results(o.bands, 2)
        convolved = 2 * places * o.first_channels + min(slice_rows, places) * 10 * o.first_channels
        indices = 9 * places * 2  # of eight bytes each
        rows = results(Magnitudes.length, 4)
        alive = rows * (_ROWS_ALIVE * o.hidden_size + 3 * _SLOTS * layer.heads)
        working = min(slice_rows, rows) * 3 * layer.feed_forward_size
        return _FLOAT_BYTES * (max(convolved + indices, alive + working) + Magnitudes.length * o.bands)
