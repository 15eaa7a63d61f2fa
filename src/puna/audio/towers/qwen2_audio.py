"""Audio towers of Qwen2-Audio and Qwen2.5-Omni: Whisper's encoder, of whose states each two become a row.

References: `Qwen2AudioForConditionalGeneration` and `Qwen2_5OmniAudioEncoder` in Hugging Face transformers.
The second reads windows of two seconds, and nothing after the end of the recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from puna.audio.mel import HOP, Features
from puna.audio.recording import Recording
from puna.audio.tower import AudioWindow
from puna.audio.towers.whisper import WhisperTower
from puna.audio.whisper import WhisperEncoderOptions
from puna.errors import ModelError
from puna.nn.layers import Linear
from puna.nn.module import weight
from puna.ops import Array
from puna.vision.layers.attention import Slices

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: States of a row.
_STATES: Final = 2
#: Frames of a window of Qwen2.5-Omni. No key carries them; all published models have the same.
_OMNI_FRAMES: Final = 200


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
        states = yield from self.encoder.states(self._frames(window), count, slice_rows)
        pairs = states[: _STATES * rows].reshape(rows, _STATES, self.options.hidden_size)
        mean = (pairs[:, 0] + pairs[:, 1]) * (1 / _STATES)
        return self.projection(self.encoder.last_norm(mean))

    def _frames(self, window: AudioWindow) -> NDArray[np.float32]:
        """Return the frames that the convolutions read: [frames, bands]."""
        frames: NDArray[np.float32] = window.features.window(window.begin)
        return frames


@dataclass(frozen=True, kw_only=True)
class Qwen25OmniAudioOptions(WhisperEncoderOptions):
    @property
    def frames(self) -> int:
        return _OMNI_FRAMES


class Qwen25OmniAudio(Qwen2Audio):
    options: Qwen25OmniAudioOptions

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Qwen25OmniAudioOptions:
        options = Qwen25OmniAudioOptions.read(file, text_size)
        if options.positions < _OMNI_FRAMES // 2:
            raise ModelError(
                f"{file.path}: tensor 'a.position_embd.weight' has {options.positions} rows, and "
                f"{_OMNI_FRAMES // 2} are needed"
            )
        return options

    def prepare(self, recording: Recording) -> list[AudioWindow]:
        # Silence follows the end, so that the last frames are not completed with reflections.
        least = len(recording.samples) + _OMNI_FRAMES * HOP
        features = Features(recording, self.options.bands, _OMNI_FRAMES, least=least)
        found = [
            AudioWindow(features, begin, self._states(features, begin) // _STATES)
            for begin in range(0, features.frames, _OMNI_FRAMES)
        ]
        return [window for window in found if window.rows]

    def _frames(self, window: AudioWindow) -> NDArray[np.float32]:
        return super()._frames(window)[: window.features.frames - window.begin]
