"""Audio tower of Qwen2-Audio: Whisper's encoder, of whose states each two are averaged and projected.

Reference: `Qwen2AudioForConditionalGeneration` in Hugging Face transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from puna.audio.mel import Features
from puna.audio.recording import Recording
from puna.audio.tower import AudioWindow
from puna.audio.towers.whisper import WhisperTower
from puna.audio.whisper import WhisperEncoderOptions
from puna.nn.layers import Linear
from puna.nn.module import weight
from puna.ops import Array
from puna.vision.layers.attention import Slices

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: States of a row.
_STATES: Final = 2


class Qwen2Audio(WhisperTower):
    begins: ClassVar[str] = "<|audio_bos|>"
    ends: ClassVar[str] = "<|audio_eos|>"

    options: WhisperEncoderOptions
    projection: Linear = weight("mm.a.fc", "text_size", "hidden_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> WhisperEncoderOptions:
        return WhisperEncoderOptions.read(file, text_size)

    def prepare(self, recording: Recording) -> list[AudioWindow]:
        o = self.options
        features = self.whole_windows(recording)
        found = [
            AudioWindow(features, begin, self._states(features, begin) // _STATES)
            for begin in range(0, features.all_frames, o.frames)
        ]
        return [window for window in found if window.rows]

    def _states(self, features: Features, begin: int) -> int:
        """Return the states of the window from frame `begin` on that hear the recording."""
        heard = min(max(features.frames - begin, 0), self.options.frames)
        return (heard + 1) // 2

    def encode(self, window: AudioWindow, slice_rows: int) -> Slices[Array]:
        count, rows = self._states(window.features, window.begin), window.rows
        frames = window.features.window(window.begin)
        states = yield from self.encoder.states(frames, count, slice_rows)
        pairs = states[: _STATES * rows].reshape(rows, _STATES, self.options.hidden_size)
        mean = (pairs[:, 0] + pairs[:, 1]) * (1 / _STATES)
        return self.projection(self.encoder.last_norm(mean))
