"""Audio towers of Qwen3-ASR and Qwen3-Omni: convolutions read each second by itself, layers eight at a time.

References: `Qwen3ASREncoder` and `Qwen3OmniMoeAudioEncoder` in Hugging Face transformers. They differ in
recordings of less than a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from puna.audio.mel import Features
from puna.audio.options import PlacedAudioOptions
from puna.audio.recording import Recording
from puna.audio.tower import AudioTower, AudioWindow
from puna.audio.whisper import ROWS_ALIVE
from puna.errors import ModelError
from puna.gguf.metadata import table_rows
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import blocks, weight
from puna.ops import Array
from puna.vision.layers.attention import Groups, PatchKeys, Slices
from puna.vision.layers.convolution import BandLinear, Convolution, neighbours, results, rimmed
from puna.vision.layers.layers import ExactLayer, Patches, Table, kept_as, through

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Frames that the convolutions read apart from others, and frames whose states attend to each other. No key
#: carries them; all published models have the same.
CHUNK: Final = 100
WINDOW: Final = 800

_FLOAT_BYTES: Final = 4


def _reduced(size: int) -> int:
    """Return the results along an axis of all three convolutions."""
    return results(size, 8)


@dataclass(frozen=True, kw_only=True)
class Qwen3AudioOptions(PlacedAudioOptions):
    channels: int  # of the convolutions

    @property
    def reduced_size(self) -> int:
        """Values of a place in time after the convolutions."""
        return self.channels * _reduced(self.bands)


class Qwen3Audio(AudioTower):
    begins: ClassVar[str] = "<|audio_start|>"
    ends: ClassVar[str] = "<|audio_end|>"

    #: Samples to which silence completes shorter recordings.
    least_samples: ClassVar[int] = 8000

    options: Qwen3AudioOptions
    first: Convolution = weight("a.conv2d.1", "channels", 1, 3, 3)
    second: Convolution = weight("a.conv2d.2", "channels", "channels", 3, 3)
    third: Convolution = weight("a.conv2d.3", "channels", "channels", 3, 3)
    reduction: BandLinear = weight("a.conv_out", "hidden_size", "reduced_size")
    positions: Table = weight("a.position_embd", "positions", "hidden_size")
    layers: Sequence[ExactLayer] = blocks("a.blk")
    last_norm: LayerNorm = weight("a.post_ln", "hidden_size")
    inner: Linear = weight("mm.a.mlp.1", "hidden_size", "hidden_size")
    outer: Linear = weight("mm.a.mlp.2", "text_size", "hidden_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Qwen3AudioOptions:
        options = Qwen3AudioOptions.read(file, text_size, channels=table_rows(file, "a.conv2d.1.weight"))
        if options.positions < _reduced(CHUNK):
            raise ModelError(
                f"{file.path}: tensor 'a.position_embd.weight' has {options.positions} rows, and "
                f"{_reduced(CHUNK)} are needed"
            )
        return options

    def loaded(self) -> None:
        layer = self.options.layers[0]
        self.keys = PatchKeys(self.ops, layer.heads, layer.head_dim, kind=kept_as(self.layers))

    def prepare(self, recording: Recording) -> list[AudioWindow]:
        least = max(len(recording.samples), self.least_samples)
        features = Features(recording, self.options.bands, WINDOW, least=least)
        return [
            AudioWindow(features, begin, sum(self._counts(features, begin)))
            for begin in range(0, features.all_frames, WINDOW)
        ]

    @staticmethod
    def _counts(features: Features, begin: int) -> list[int]:
        """Return the states of each chunk of the window from frame `begin` on."""
        end = min(begin + WINDOW, features.all_frames)
        return [_reduced(min(CHUNK, end - place)) for place in range(begin, end, CHUNK)]

    def encode(self, window: AudioWindow, slice_rows: int) -> Slices[Array]:
        frames, found = window.features.window(window.begin), []
        length = self._chunk(window.features)
        for number, count in enumerate(self._counts(window.features, window.begin)):
            chunk = frames[number * CHUNK : number * CHUNK + length]
            found.append((yield from self._convolved(chunk, slice_rows))[:count])
        hidden = self.ops.concatenate(found)
        self.keys.reserve(window.rows)
        groups = [Groups.of(self.ops, [window.rows])] * len(self.layers)
        hidden = yield from through(self.layers, hidden, Patches(self.keys, groups, slice_rows))
        return self.outer(self.ops.gelu(self.inner(self.last_norm(hidden))))

    @staticmethod
    def _chunk(features: Features) -> int:
        """Return the frames of each chunk; zeros complete the last one."""
        return CHUNK

    def _convolved(self, chunk: Any, slice_rows: int) -> Slices[Array]:
        """Return the states [time, hidden] of a chunk of features, float32 [frames, bands]."""
        ops = self.ops
        time, bands = chunk.shape
        grid = ops.array(np.ascontiguousarray(chunk.T).reshape(-1, 1))
        for convolution in (self.first, self.second, self.third):
            seen, made = neighbours(bands, 3, 2, 1, 1, width=time), []
            for piece in convolution.over(rimmed(ops, [grid]), seen, slice_rows):
                made.append(ops.gelu(piece))
                yield
            grid, bands, time = ops.concatenate(made), results(bands, 2), results(time, 2)
        by_time = np.arange(bands * time).reshape(bands, time).T.reshape(-1)
        rows = grid[ops.array(np.ascontiguousarray(by_time))].reshape(time, -1)
        placed: Array = self.reduction(rows) + self.positions.values[:time]
        return placed

    def memory_bytes(self, slice_rows: int) -> int:
        o = self.options
        places = results(o.bands, 2) * results(CHUNK, 2)
        convolved = 2 * places * o.channels + min(slice_rows, places) * 10 * o.channels
        rows = WINDOW // CHUNK * _reduced(CHUNK)
        row = o.layers[0].feed_forward_size * 3
        alive = rows * o.hidden_size * ROWS_ALIVE + min(slice_rows, rows) * row
        return _FLOAT_BYTES * (max(convolved, alive) + WINDOW * o.bands)


class Qwen3OmniAudio(Qwen3Audio):
    least_samples: ClassVar[int] = 400  # a frame, for its reflections

    @staticmethod
    def _chunk(features: Features) -> int:
        return min(CHUNK, features.all_frames)
