"""Whisper's encoder: two convolutions over time and a transformer (Radford et al., arXiv:2212.04356).

It is an audio tower: it turns a window of a log-mel spectrogram into states that the decoder attends to. Each
is of two frames. Tensors are named as in llama.cpp's files of audio towers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from puna.audio.options import PlacedAudioOptions
from puna.errors import shown
from puna.gguf.metadata import flag, invalid, required
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import Module, WeightSource, blocks, weight
from puna.ops import Array
from puna.vision.layers.attention import Groups, PatchKeys, Slices, pieces
from puna.vision.layers.convolution import rimmed
from puna.vision.layers.layers import ExactLayer, Patches, Table, kept_as, through

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Neighbouring frames that a convolution reads.
_KERNEL: Final = 3

_FLOAT_BYTES: Final = 4
#: Copies per state alive at once: the states, queries, keys, values, results of a layer and of its half.
ROWS_ALIVE: Final = 6


@dataclass(frozen=True, kw_only=True)
class WhisperEncoderOptions(PlacedAudioOptions):
    """Options of an encoder, which has a position vector for each state of a window."""

    multilingual: bool = True  # whether the decoder knows other languages than English
    alignment_heads: tuple[tuple[int, int], ...] = ()  # of the decoder: layers and heads

    @property
    def frames(self) -> int:
        """Frames of a window."""
        return 2 * self.positions

    @classmethod
    def of_whisper(cls, file: GGUFFile, text_size: int) -> Self:
        """Read the options from a file of Whisper, whose decoder reads states of `text_size` values.

        Raises as `read`.
        """
        options = cls.read(
            file,
            text_size,
            multilingual=flag(file, "multilingual", True),
            alignment_heads=_alignment_heads(file),
        )
        if (hidden := options.hidden_size) != text_size:
            raise invalid(
                file, "audio.embedding_length", f"is {hidden}, but the decoder reads {text_size} values"
            )
        return options


def _alignment_heads(file: GGUFFile) -> tuple[tuple[int, int], ...]:
    """Return the decoder's heads that follow the speech: pairs of layer and head.

    In files that do not say, they are those of the later half of layers, as in `whisper/model.py`. An empty
    list says that there are none.
    """
    key = "alignment_heads"
    layers, heads = required(file, "block_count"), required(file, "attention.head_count")
    given: Any = file.get(key)
    if given is None:
        return tuple((layer, head) for layer in range(layers // 2, layers) for head in range(heads))
    if isinstance(given, int | float | str) or len(given) % 2 or len(given) > 2 * layers * heads:
        raise invalid(file, key, "should be pairs of a layer and a head")
    pairs = tuple(zip(given[::2], given[1::2], strict=True))
    for layer, head in pairs:
        if not (type(layer) is type(head) is int and 0 <= layer < layers and 0 <= head < heads):
            raise invalid(file, key, f"has head {shown(head)} of layer {shown(layer)}, which does not exist")
    return pairs


class FrameConvolution(Linear):
    """Convolution over time with weights [out, in, 3]: a linear of three frames, one after another."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(f"{name}.weight", (*shape, _KERNEL))
        if values is None:
            return None
        turned = np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(shape[0], -1)
        return cls.of_values(source, name, turned, source.vector(f"{name}.bias", shape[0]))


class WhisperEncoder(Module):
    """Audio tower that reads one window at a time."""

    options: WhisperEncoderOptions
    first: FrameConvolution = weight("a.conv1d.1", "hidden_size", "bands")
    second: FrameConvolution = weight("a.conv1d.2", "hidden_size", "hidden_size")
    positions: Table = weight("a.position_embd", "positions", "hidden_size")
    layers: Sequence[ExactLayer] = blocks("a.blk")
    last_norm: LayerNorm = weight("a.post_ln", "hidden_size")

    #: Inputs of a window that must share a batch.
    largest_group: Final = 1

    def loaded(self) -> None:
        layer = self.options.layers[0]
        self.keys = PatchKeys(self.ops, layer.heads, layer.head_dim, kind=kept_as(self.layers))

    def encode(self, features: NDArray[np.float32], slice_rows: int) -> Slices[Array]:
        """Return states [positions, hidden] of a window of `features` [frames, bands].

        At most `slice_rows` frames are read between two yields.
        """
        hidden = yield from self.states(features, self.options.positions, slice_rows)
        return self.last_norm(hidden)

    def states(self, features: NDArray[np.float32], count: int, slice_rows: int) -> Slices[Array]:
        """Return the first `count` states as `encode` does, before the last norm; they hear no later ones.

        `features` may have fewer frames than a window.
        """
        ops = self.ops
        padded = np.pad(features, ((1, 1), (0, 0)))
        read = np.lib.stride_tricks.sliding_window_view(padded, _KERNEL, axis=0).transpose(0, 2, 1)
        found = []
        for begin, end in pieces(len(features), slice_rows):
            part = np.ascontiguousarray(read[begin:end]).reshape(end - begin, -1)
            found.append(ops.gelu(self.first(ops.array(part))))
            yield
        frames = rimmed(ops, found)  # the last row is silence on both sides
        around = 2 * np.arange(count)[:, None] + np.arange(-1, 2)
        around[around < 0] = len(features)
        found = []
        for begin, end in pieces(count, slice_rows):
            part = frames[ops.array(around[begin:end].reshape(-1))].reshape(end - begin, -1)
            found.append(ops.gelu(self.second(part)))
            yield
        hidden = ops.concatenate(found) + self.positions.values[:count]
        self.keys.reserve(count)
        groups = [Groups.of(ops, [count])] * len(self.layers)
        return (yield from through(self.layers, hidden, Patches(self.keys, groups, slice_rows)))

    def memory_bytes(self, slice_rows: int) -> int:
        """Return the memory that reading a window takes at once, besides the weights."""
        o = self.options
        row = o.layers[0].feed_forward_size * 3 + _KERNEL * o.hidden_size
        states = o.frames // 2
        alive = o.frames * (2 * o.hidden_size + o.bands) + states * o.hidden_size * ROWS_ALIVE
        return _FLOAT_BYTES * (alive + min(slice_rows, states) * row)
