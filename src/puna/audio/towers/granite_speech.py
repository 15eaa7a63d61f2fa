"""Audio tower of Granite Speech: a conformer and a Q-Former that reads its states in short windows.

Reference: `GraniteSpeechForConditionalGeneration` in Hugging Face transformers. The conformer is that of
Gulati et al., arXiv:2005.08100, with attention within blocks and the relative positions of Shaw et al.,
arXiv:1803.02155. The Q-Former is that of Li et al., arXiv:2301.12597.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from puna.audio.conformer import BlockConformerLayer, BlockConformerOptions
from puna.audio.mel import HOP, HtkFeatures
from puna.audio.options import AudioOptions
from puna.audio.recording import Recording
from puna.audio.tower import AudioTower, AudioWindow
from puna.errors import UnsupportedModelError, shown
from puna.gguf.metadata import invalid, required, table_rows
from puna.nn.layers import LayerNorm, Linear, linear_many
from puna.nn.module import Module, blocks, part, weight
from puna.ops import Array, Weight
from puna.vision.layers.attention import Groups, PatchKeys, Slices, pieces
from puna.vision.layers.layers import Table, VisionLayerOptions

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Frames of the spectrogram that make a state.
_FRAMES: Final = 2
#: States that are read at once: two minutes. Attention does not leave its block, but convolutions do, so a
#: longer recording is heard slightly otherwise at the cuts.
_MOST_STATES: Final = 6000
#: Shorter recordings are completed with silence: a transform must not reach beyond the reflected samples.
_LEAST_SAMPLES: Final = 320
#: The epsilon of the Q-Former's norms, which no key carries.
_QUERY_EPS: Final = 1e-12
#: Bounds beyond which a file is damaged.
_MAX_KERNEL: Final = 1 << 8
_MAX_CONTEXT: Final = 1 << 12
_MAX_WINDOW: Final = 1 << 10

_PROJECTOR_LAYER: Final = re.compile(r"a\.proj_blk\.(\d{1,3})\.")

_FLOAT_BYTES: Final = 4
#: Copies per state alive at once: the states before and after a step, and between attention and convolution.
_ROWS_ALIVE: Final = 4


@dataclass(frozen=True, kw_only=True)
class GraniteConformerOptions(BlockConformerOptions):
    distances: int  # vectors of relative positions


@dataclass(frozen=True, kw_only=True)
class QFormerOptions:
    size: int  # values of a query
    state_size: int  # values of a state that it reads
    text_size: int
    feed_forward_size: int
    heads: int
    window: int  # states that become `queries` rows
    queries: int
    norm_eps: float
    count: int  # layers

    @property
    def layers(self) -> tuple[QFormerOptions, ...]:
        return (self,) * self.count


@dataclass(frozen=True, kw_only=True)
class GraniteSpeechOptions(AudioOptions):
    layers: tuple[GraniteConformerOptions, ...]
    classes: int  # of sounds, which states are sorted into half-way
    projector: QFormerOptions

    @property
    def length(self) -> int:
        """States that are read at once: whole blocks and whole windows."""
        step = math.lcm(self.layers[0].context, self.projector.window)
        return max(_MOST_STATES // step, 1) * step


class LearnedQueries(Table):
    """Learned queries [queries, size], stored as [1, queries, size]."""

    @classmethod
    def stored_shape(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        return 1, *shape

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: object) -> NDArray[np.float32]:
        only: NDArray[np.float32] = values[0]
        return only


class GraniteConformerLayer(BlockConformerLayer):
    """Distances have vectors of their own (Shaw et al.), which all heads share."""

    options: GraniteConformerOptions
    positions: Table = weight("attn_rel_pos_emb", "distances", "head_dim")

    def loaded(self) -> None:
        o = self.options
        middle = o.distances // 2
        near = self.ops.numpy(self.positions.values)[middle - o.context + 1 : middle + o.context]
        self._near = Weight.from_values("attn_rel_pos_emb", np.ascontiguousarray(near))
        self.ops.pack(self._near)

    def codes(self) -> NDArray[np.float32]:
        return np.eye(self.options.context, dtype=np.float32)

    def asked(self, queries: Array, begin: int) -> list[Array]:
        o, ops = self.options, self.ops
        products = ops.linear(queries, self._near)
        row = np.arange(len(queries))[:, None]
        column = begin + row // o.heads + o.context - 1 - np.arange(o.context)
        flat = row * products.shape[1] + column
        return [queries, products.reshape(-1, 1)[ops.array(flat.reshape(-1))].reshape(-1, o.context)]


class QFormerLayer(Module):
    """Attention among the queries of a window, then to its states, then a feed-forward network."""

    options: QFormerOptions
    own_query: Linear = weight("self_attn_q", "size", "size")
    own_key: Linear = weight("self_attn_k", "size", "size")
    own_value: Linear = weight("self_attn_v", "size", "size")
    own_output: Linear = weight("self_attn_out", "size", "size")
    own_norm: LayerNorm = weight("self_attn_norm", "size")
    query: Linear = weight("cross_attn_q", "size", "size")
    key: Linear = weight("cross_attn_k", "size", "state_size")
    value: Linear = weight("cross_attn_v", "size", "state_size")
    output: Linear = weight("cross_attn_out", "size", "size")
    norm: LayerNorm = weight("cross_attn_norm", "size")
    up: Linear = weight("ffn_up", "feed_forward_size", "size")
    down: Linear = weight("ffn_down", "size", "feed_forward_size")
    last_norm: LayerNorm = weight("ffn_norm", "size")

    def forward(self, rows: Array, states: Array, keys: PatchKeys, own: Groups, across: Groups) -> Array:
        """Map queries [windows * queries, size] to the same shape, given [windows * window, state_size]."""
        query, key, value = linear_many(rows, self.own_query, self.own_key, self.own_value)
        rows = self.own_norm(rows + self.own_output(self._attend(query, key, value, keys, own)))
        key, value = linear_many(states, self.key, self.value)
        rows = self.norm(rows + self.output(self._attend(self.query(rows), key, value, keys, across)))
        return self.last_norm(rows + self.down(self.ops.gelu(self.up(rows))))

    def _attend(self, query: Array, key: Array, value: Array, keys: PatchKeys, groups: Groups) -> Array:
        o = self.options
        query, key, value = (each.reshape(len(each), o.heads, -1) for each in (query, key, value))
        keys.put(0, key, value)
        return keys.attend(query, 0, groups, (o.size // o.heads) ** -0.5)


class QFormer(Module):
    options: QFormerOptions
    queries: LearnedQueries = weight("proj_query", "queries", "size")
    query_norm: LayerNorm = weight("proj_norm", "size")
    layers: Sequence[QFormerLayer] = blocks("proj_blk")
    projection: Linear = weight("proj_linear", "text_size", "size")

    def loaded(self) -> None:
        self._start = self.query_norm(self.queries.values)

    def forward(self, states: Array, slice_rows: int) -> Slices[Array]:
        """Map states [states, state_size] to rows [windows * queries, text_size].

        Zeros complete the last window.
        """
        o, ops = self.options, self.ops
        count = -(-len(states) // o.window)
        if missing := count * o.window - len(states):
            states = ops.concatenate([states, ops.array(np.zeros((missing, o.state_size), np.float32))])
        many, found = min(count, max(slice_rows // o.window, 1)), []
        keys = PatchKeys(ops, o.heads, o.size // o.heads)
        try:
            keys.reserve(many * max(o.window, o.queries))
            for begin, end in pieces(count, many):
                found.append(self._read(states[begin * o.window : end * o.window], end - begin, keys))
                yield
        finally:
            keys.release()
        return ops.concatenate(found)

    def _read(self, states: Array, windows: int, keys: PatchKeys) -> Array:
        o, ops = self.options, self.ops
        rows = self._start[ops.array(np.tile(np.arange(o.queries), windows))]
        starts = np.arange(windows, dtype=np.int32).repeat(o.queries) * np.int32(o.window)
        across = Groups(ops.array(starts), ops.array(np.full(len(starts), o.window, np.int32)))
        own = Groups.of(ops, [o.queries] * windows)
        for layer in self.layers:
            rows = layer.forward(rows, states, keys, own, across)
        return self.projection(rows)


class GraniteSpeechAudio(AudioTower):
    options: GraniteSpeechOptions
    input: Linear = weight("a.input_projection", "hidden_size", "bands")
    layers: Sequence[GraniteConformerLayer] = blocks("a.blk")
    classes: Linear = weight("a.enc_ctc_out", "classes", "hidden_size")
    classified: Linear = weight("a.enc_ctc_out_mid", "hidden_size", "classes")
    projector: QFormer = part("a", options="projector")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> GraniteSpeechOptions:
        if (layers := file.get("audio.feature_layer")) is not None:
            raise UnsupportedModelError(
                f"{file.path}: 'clip.audio.feature_layer' is {shown(layers)}: towers that join the states of "
                "several layers are not supported"
            )
        read = AudioOptions.read(file, text_size)
        if read.bands % _FRAMES:
            raise invalid(file, "audio.num_mel_bins", f"is {read.bands}, and {_FRAMES} frames share it")
        layer = _conformer_layer(file, read.layers[0])
        return GraniteSpeechOptions(
            **vars(read) | {"layers": (layer,) * len(read.layers)},
            classes=table_rows(file, "a.enc_ctc_out.weight"),
            projector=_q_former(file, read.hidden_size, text_size),
        )

    def loaded(self) -> None:
        layer = self.options.layers[0]
        self.keys = PatchKeys(self.ops, layer.heads, layer.head_dim + layer.context, layer.head_dim)

    def prepare(self, recording: Recording) -> list[AudioWindow]:
        o = self.options
        samples = max(len(recording.samples), _LEAST_SAMPLES)
        states = (samples // HOP + 1) // _FRAMES
        features = HtkFeatures(recording, o.bands // _FRAMES, _FRAMES * min(states, o.length), least=samples)
        return [
            AudioWindow(features, _FRAMES * begin, self._rows(end - begin))
            for begin, end in pieces(states, o.length)
        ]

    def _rows(self, states: int) -> int:
        projector = self.options.projector
        return -(-states // projector.window) * projector.queries

    def encode(self, window: AudioWindow, slice_rows: int) -> Slices[Array]:
        features = window.features
        states = min(features.length, features.all_frames - window.begin) // _FRAMES
        frames = features.window(window.begin)[: _FRAMES * states].reshape(states, -1)
        found = []
        for begin, end in pieces(states, slice_rows):
            found.append(self.input(self.ops.array(frames[begin:end])))
            yield
        hidden = self.ops.concatenate(found)
        self.keys.reserve(min(self.options.layers[0].context, states))
        for number, layer in enumerate(self.layers, 1):
            hidden = yield from layer.forward(hidden, self.keys, slice_rows)
            if number == len(self.layers) // 2:
                hidden = hidden + self.classified(self._softmax(self.classes(hidden)))
        return (yield from self.projector.forward(hidden, slice_rows))

    def _softmax(self, logits: Array) -> Array:
        """Return the softmax of rows, on the host: no operation computes it, and there are few classes."""
        values = self.ops.numpy(logits)
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        return self.ops.array(powers / powers.sum(axis=1, keepdims=True))

    def memory_bytes(self, slice_rows: int) -> int:
        o = self.options
        layer, rows = o.layers[0], min(slice_rows, o.length)
        row = 3 * layer.feed_forward_size + 2 * layer.channels
        scores = layer.heads * (2 * layer.distances + 4 * layer.context)
        block = layer.context * (layer.heads * layer.context + 2 * layer.inner_size)
        alive = o.length * (o.hidden_size * _ROWS_ALIVE + 2 * layer.channels + o.bands)
        return _FLOAT_BYTES * (alive + rows * (row + scores) + 2 * block)


def _conformer_layer(file: GGUFFile, layer: VisionLayerOptions) -> GraniteConformerOptions:
    """Return the options of a layer. Raises `ModelError`."""
    inner = table_rows(file, "a.blk.0.attn_q.weight")
    if inner % layer.heads:
        raise invalid(
            file, "audio.attention.head_count", f"is {layer.heads}, which does not divide {inner} values"
        )
    reach, context = (_bounded(file, f"audio.{key}", _MAX_CONTEXT) for key in ("max_pos_emb", "chunk_size"))
    if context > reach:
        raise invalid(file, "audio.chunk_size", f"is {context}, but positions reach only {reach}")
    return GraniteConformerOptions(
        **vars(layer),
        inner_size=inner,
        channels=table_rows(file, "a.blk.0.conv_dw.weight"),
        kernel=_bounded(file, "audio.conv_kernel_size", _MAX_KERNEL),
        context=context,
        distances=2 * reach + 1,
    )


def _q_former(file: GGUFFile, state_size: int, text_size: int) -> QFormerOptions:
    """Return the options of the Q-Former. Raises `ModelError`."""
    window = _bounded(file, "audio.projector.window_size", _MAX_WINDOW)
    rate = required(file, "audio.projector.downsample_rate")
    if window % rate:
        key = "audio.projector.downsample_rate"
        raise invalid(file, key, f"is {rate}, which does not divide a window of {window}")
    size = table_rows(file, "a.proj_linear.weight") and file.tensors["a.proj_linear.weight"].shape[-1]
    heads = required(file, "audio.projector.head_count")
    if size % heads:
        key = "audio.projector.head_count"
        raise invalid(file, key, f"is {heads}, which does not divide {size} values")
    layers = (_PROJECTOR_LAYER.match(name) for name in file.tensors)
    return QFormerOptions(
        size=size,
        state_size=state_size,
        text_size=text_size,
        feed_forward_size=table_rows(file, "a.proj_blk.0.ffn_up.weight"),
        heads=heads,
        window=window,
        queries=window // rate,
        norm_eps=_QUERY_EPS,
        count=max((int(found[1]) + 1 for found in layers if found), default=1),
    )


def _bounded(file: GGUFFile, key: str, most: int) -> int:
    if (value := required(file, key)) > most:
        raise invalid(file, key, f"is {value}, and at most {most} make sense")
    return value
