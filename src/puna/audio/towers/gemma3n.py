"""Audio tower of Gemma 3n: two convolutions that hear ahead, and the conformer of the Universal Speech Model.

Reference: `Gemma3nModel` in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from puna.audio.conformer import Taps
from puna.audio.magnitudes import EmphasisedMagnitudes
from puna.audio.mel import HOP
from puna.audio.recording import Recording
from puna.audio.tower import AudioWindow
from puna.audio.usm import (
    EPS,
    ConformerAttention,
    ConformerLayer,
    LightConvolution,
    UniversalSpeechOptions,
    UniversalSpeechTower,
)
from puna.batch import Image, Input
from puna.gguf.metadata import table_rows
from puna.nn.layers import Linear, RMSNorm, unit_norm
from puna.nn.module import blocks, part, weight
from puna.ops import Array
from puna.vision.layers.attention import Slices
from puna.vision.layers.convolution import neighbours, results, rimmed
from puna.vision.layers.layers import Table
from puna.vision.tower import kept_together, marker, rows_of, text

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

#: Rows of a window, states of a row and the epsilon of norms between convolutions. No key carries them; the
#: published models have the same.
_ROWS: Final = 188
_STATES: Final = 4
_GROUP_EPS: Final = 1e-3


@dataclass(frozen=True, kw_only=True)
class Gemma3nAudioOptions(UniversalSpeechOptions):
    words: int  # size of the tower's own vocabulary


class Gemma3nAttention(ConformerAttention):
    seen: ClassVar[int] = 13
    key_scale: ClassVar[float] = 1.0

    norm: RMSNorm = weight("ln1", "hidden_size")
    distance: Linear = weight("linear_pos", "hidden_size", "hidden_size")
    post_norm: RMSNorm = weight("ln2", "hidden_size")

    def positive_scales(self) -> Array:
        return self.ops.array(np.logaddexp(self.ops.numpy(self.scales), np.float32(0)))


class ColumnTaps(Taps):
    """Taps stored as a convolution of one channel in: [channels, 1, taps]."""

    @classmethod
    def stored_shape(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        channels, taps = shape
        return channels, 1, taps

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: object) -> NDArray[np.float32]:
        return values[:, 0].T


class Gemma3nConvolution(LightConvolution):
    taps: ColumnTaps = weight("conv_dw", "hidden_size", "taps")


class Gemma3nConformerLayer(ConformerLayer):
    attention: Gemma3nAttention = part()
    convolution: Gemma3nConvolution = part()
    norm: RMSNorm = weight("layer_pre_norm", "hidden_size")


class Gemma3nAudio(UniversalSpeechTower):
    """Reads each window as a recording of its own, with a fixed number of rows; the last ones are silence."""

    options: Gemma3nAudioOptions
    first_scales: Array = weight("a.conv1d.0.norm", "first_channels")
    second_scales: Array = weight("a.conv1d.1.norm", "second_channels")
    # llama.cpp's converter gives it the first name by mistake, as its table says.
    reduction: Linear = weight("a.pre_encode.out|a.input_projection", "hidden_size", "reduced_size")
    layers: Sequence[Gemma3nConformerLayer] = blocks("a.blk")
    said: Table = weight("mm.a.embedding", "words", "hidden_size")
    word_norm: RMSNorm = weight("mm.a.hard_emb_norm", "hidden_size")
    row_norm: RMSNorm = weight("mm.a.soft_emb_norm", "hidden_size")
    projection: Linear = weight("mm.a.input_projection", "text_size", "hidden_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Gemma3nAudioOptions:
        return Gemma3nAudioOptions.read(file, text_size, words=table_rows(file, "mm.a.embedding.weight"))

    def loaded(self) -> None:
        super().loaded()
        self._unit_norm = unit_norm(self.ops, self.options.text_size, EPS)
        # Both the end token and silence are from the tower's vocabulary, not the text model's.
        words = self._unit_norm(self.projection(self.word_norm(self.said.values)))
        self._end_row, self._silence = words[:1], words[-1:]

    def use(self, tokenizer: Tokenizer) -> None:
        self._before = [*text(tokenizer, "\n\n"), Input(marker(tokenizer, "<start_of_audio>", "recordings"))]
        self._after = text(tokenizer, "\n\n")

    def prepare(self, recording: Recording) -> list[AudioWindow]:
        found = EmphasisedMagnitudes(recording, self.options.bands)
        begins = range(0, -(-len(recording.samples) // HOP), found.length)
        return [AudioWindow(found, begin, _ROWS + 1) for begin in begins if found.frames(begin)]

    def place(self, windows: Sequence[Image]) -> list[Input]:
        found = []
        for window in windows:
            found += [*self._before, *rows_of(window), *self._after]
        return kept_together(found, one_batch=False)

    def encode(self, window: AudioWindow, slice_rows: int) -> Slices[Array]:
        ops = self.ops
        hidden = yield from self._reduced(window.features.window(window.begin), slice_rows)
        hidden = yield from self.conformed(hidden, slice_rows)
        heard = hidden[ops.array(np.arange(0, len(hidden), _STATES))]
        rows = self._unit_norm(self.projection(self.row_norm(heard)))
        silence = [self._silence] * (_ROWS - len(rows))
        return ops.concatenate([rows, *silence, self._end_row])

    def _reduced(self, frames: NDArray[np.float32], slice_rows: int) -> Slices[Array]:
        """Return the states [time, hidden] that the convolutions make of `frames` [time, bands]."""
        ops, (time, bands) = self.ops, frames.shape
        grid = ops.array(frames.reshape(-1, 1))
        for convolution, scales in ((self.first, self.first_scales), (self.second, self.second_scales)):
            seen, made = neighbours(time, 3, 2, 0, 2, width=bands, beside=(1, 1)), []
            for piece in convolution.over(rimmed(ops, [grid]), seen, slice_rows):
                made.append(ops.numpy(piece))
                yield
            time, bands = results(time, 2), results(bands, 2)
            places = np.concatenate(made).reshape(time, bands, -1)
            scaled = _normed_so_far(places) * ops.numpy(scales)
            grid = ops.array(np.maximum(scaled, 0.0).astype(np.float32).reshape(time * bands, -1))
        reduced: Array = self.reduction(grid.reshape(time, -1))
        return reduced


def _normed_so_far(places: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return [time, bands, channels] normed by the mean and deviation of all values up to each time.

    The deviations of earlier values are those from the mean of their own time.
    """
    time = len(places)
    counts = places[0].size * np.arange(1, time + 1)
    means = places.sum(axis=(1, 2), dtype=np.float64).cumsum() / counts
    centred = places - means[:, None, None]
    variances = (centred**2).sum(axis=(1, 2)).cumsum() / counts
    found: NDArray[np.float64] = centred / np.sqrt(variances + _GROUP_EPS)[:, None, None]
    return found
