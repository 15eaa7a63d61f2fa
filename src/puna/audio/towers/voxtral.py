"""Audio tower of Voxtral: Whisper's encoder, and a projector that joins neighbouring states to one row.

Reference: `VoxtralForConditionalGeneration` in Hugging Face transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from puna.audio.recording import Recording
from puna.audio.tower import AudioWindow
from puna.audio.towers.whisper import JoiningOptions, WhisperTower
from puna.gguf.metadata import invalid
from puna.nn.layers import Linear
from puna.nn.module import weight
from puna.ops import Array
from puna.vision.layers.attention import Slices

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class VoxtralAudio(WhisperTower):
    begins: ClassVar[str] = "[BEGIN_AUDIO]"

    options: JoiningOptions
    first: Linear = weight("mm.a.mlp.1", "text_size", "joined_size")
    second: Linear = weight("mm.a.mlp.2", "text_size", "text_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> JoiningOptions:
        options = JoiningOptions.of_stack(file, text_size, 4)
        if options.positions % options.joined:
            raise invalid(
                file, "audio.projector.stack_factor", f"is {options.joined}, which does not divide the "
                f"{options.positions} states of a window"
            )  # fmt: skip
        return options

    def prepare(self, recording: Recording) -> list[AudioWindow]:
        o = self.options
        features = self.whole_windows(recording)
        return [
            AudioWindow(features, begin, o.positions // o.joined)
            for begin in range(0, features.all_frames, o.frames)
        ]

    def encode(self, window: AudioWindow, slice_rows: int) -> Slices[Array]:
        states = yield from self.encoder.encode(window.features.window(window.begin), slice_rows)
        rows = states.reshape(window.rows, self.options.joined_size)
        return self.second(self.ops.gelu(self.first(rows)))
