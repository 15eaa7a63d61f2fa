"""Hearing of Gemma 4 12B, without layers of its own: each row is 40 ms of samples, normed and projected.

Reference: `Gemma4UnifiedMultimodalEmbedder` in Hugging Face transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from puna.audio.mel import HOP
from puna.audio.options import AudioOptions
from puna.audio.recording import Recording
from puna.audio.tower import AudioTower, AudioWindow
from puna.errors import ModelError
from puna.gguf.metadata import positive
from puna.nn.layers import Linear, unit_norm
from puna.nn.module import weight
from puna.ops import Array
from puna.vision.layers.attention import PatchKeys, Slices, pieces

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Rows of a window: half a minute of a published model.
_ROWS: Final = 750
_MAX_SAMPLES: Final = 1 << 14
_FLOAT_BYTES: Final = 4


class Samples:
    """The samples of a recording, `count` for each row, made a window at a time."""

    def __init__(self, recording: Recording, count: int) -> None:
        self._recording = recording
        self._count = count
        self.length = -(-_ROWS * count // HOP)

    def window(self, begin: int, rows: int) -> NDArray[np.float32]:
        """Return `rows` rows from row `begin` on: float32 [rows, count], with zeros after the end."""
        return self._recording.values(begin * self._count, rows * self._count).reshape(rows, -1)


class Gemma4UnifiedAudio(AudioTower):
    begins: ClassVar[str] = "<|audio>"
    ends: ClassVar[str] = "<audio|>"

    options: AudioOptions
    projection: Linear = weight("mm.a.input_projection", "text_size", "hidden_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> AudioOptions:
        tensor = file.tensors.get("mm.a.input_projection.weight")
        shape = tensor.shape if tensor else ()
        samples = shape[1] if len(shape) == 2 else 0
        if not 0 < samples <= _MAX_SAMPLES:
            raise ModelError(
                f"{file.path}: tensor 'mm.a.input_projection.weight' has the shape {list(shape)}, and should "
                f"have columns for 1 to {_MAX_SAMPLES} samples"
            )
        return AudioOptions(
            bands=samples,
            hidden_size=samples,
            text_size=text_size,
            norm_eps=positive(file, "audio.attention.layer_norm_epsilon", 1e-6),
            layers=(),
        )

    def loaded(self) -> None:
        self.keys = PatchKeys(self.ops, 1, 1)  # nothing attends
        self._norm = unit_norm(self.ops, self.options.hidden_size, self.options.norm_eps)

    def prepare(self, recording: Recording) -> list[AudioWindow]:
        size = self.options.hidden_size
        found, rows = Samples(recording, size), -(-len(recording.samples) // size)
        return [AudioWindow(found, begin, min(_ROWS, rows - begin)) for begin in range(0, rows, _ROWS)]

    def encode(self, window: AudioWindow, slice_rows: int) -> Slices[Array]:
        samples, found = window.features.window(window.begin, window.rows), []
        for begin, end in pieces(window.rows, slice_rows):
            found.append(self.projection(self._norm(self.ops.array(samples[begin:end]))))
            yield
        return self.ops.concatenate(found)

    def memory_bytes(self, slice_rows: int) -> int:
        return _FLOAT_BYTES * _ROWS * (2 * self.options.hidden_size + 2 * self.options.text_size)
