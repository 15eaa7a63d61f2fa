"""Audio tower of Gemma 4: two convolutions, and the conformer of the Universal Speech Model.

Reference: `Gemma4AudioModel` in Hugging Face transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from puna.audio.magnitudes import Magnitudes
from puna.audio.mel import HOP
from puna.audio.recording import Recording
from puna.audio.tower import AudioWindow
from puna.audio.usm import EPS, UniversalSpeechOptions, UniversalSpeechTower
from puna.gguf.metadata import table_rows
from puna.nn.layers import LayerNorm, Linear, unit_norm
from puna.nn.module import weight
from puna.ops import Array
from puna.vision.layers.attention import Slices
from puna.vision.layers.convolution import neighbours, results, rimmed

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Gemma4AudioOptions(UniversalSpeechOptions):
    output_size: int  # values of a state after the last layer


class Gemma4Audio(UniversalSpeechTower):
    begins: ClassVar[str] = "<|audio>"
    ends: ClassVar[str] = "<audio|>"

    options: Gemma4AudioOptions
    first_norm: LayerNorm = weight("a.conv1d.0.norm", "first_channels")
    second_norm: LayerNorm = weight("a.conv1d.1.norm", "second_channels")
    reduction: Linear = weight("a.input_projection", "hidden_size", "reduced_size")
    output: Linear = weight("a.pre_encode.out", "output_size", "hidden_size")
    projection: Linear = weight("mm.a.input_projection", "text_size", "output_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Gemma4AudioOptions:
        return Gemma4AudioOptions.read(
            file, text_size, output_size=table_rows(file, "a.pre_encode.out.weight")
        )

    def loaded(self) -> None:
        super().loaded()
        self._row_norm = unit_norm(self.ops, self.options.output_size, EPS)

    def prepare(self, recording: Recording) -> list[AudioWindow]:
        found = Magnitudes(recording, self.options.bands)
        begins = range(0, len(recording.samples) // HOP + 1, found.length)
        windows = [AudioWindow(found, begin, results(found.frames(begin), 4)) for begin in begins]
        return [window for window in windows if window.rows]

    def encode(self, window: AudioWindow, slice_rows: int) -> Slices[Array]:
        hidden = yield from self._reduced(window.features.window(window.begin), slice_rows)
        hidden = yield from self.conformed(hidden, slice_rows)
        return self.projection(self._row_norm(self.output(hidden)))

    def _reduced(self, frames: NDArray[np.float32], slice_rows: int) -> Slices[Array]:
        """Return the states [time, hidden] that the convolutions make of `frames` [time, bands]."""
        ops, (time, bands) = self.ops, frames.shape
        grid = ops.array(frames.reshape(-1, 1))
        for convolution, norm in ((self.first, self.first_norm), (self.second, self.second_norm)):
            seen, made = neighbours(time, 3, 2, 1, 1, width=bands), []
            for piece in convolution.over(rimmed(ops, [grid]), seen, slice_rows):
                made.append(ops.array(np.maximum(ops.numpy(norm(piece)), 0.0)))
                yield
            grid, time, bands = ops.concatenate(made), results(time, 2), results(bands, 2)
        reduced: Array = self.reduction(grid.reshape(time, -1))
        return reduced
