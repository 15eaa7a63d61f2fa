"""Log-mel spectrograms of magnitudes, as Gemma 4's audio tower was trained on.

Reference: `Gemma4AudioFeatureExtractor` in Hugging Face transformers. Frames are 10 ms apart; each is the
magnitude spectrum of 20 ms in bands that are evenly spaced on HTK's mel scale. The first one is centred on
the first sample. A frame that reaches beyond the recording's end is left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from puna.audio.mel import FRAME_RATE, HOP, htk_filters
from puna.audio.recording import Recording

_LENGTH: Final = 320  # samples of a frame
_SPECTRUM: Final = 512  # samples after zeros are appended
#: Added to the magnitude of a band.
_FLOOR: Final = 1e-3
_WINDOW_SECONDS: Final = 30


class Magnitudes:
    """The spectrogram of a recording in `bands` bands, made a window of 30 seconds at a time.

    Each window is read as a recording of its own: it does not hear the end of the one before.
    """

    #: Frames of a window.
    length: Final = _WINDOW_SECONDS * FRAME_RATE

    def __init__(self, recording: Recording, bands: int) -> None:
        self._recording = recording
        self._filters = htk_filters(bands, _SPECTRUM)
        self._hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_LENGTH) / _LENGTH)

    def frames(self, begin: int) -> int:
        """Return the frames of the window from frame `begin` on that the recording fills."""
        heard = min(len(self._recording.samples) - begin * HOP, self.length * HOP)
        return max(-(-heard // HOP) - 1, 0)

    def window(self, begin: int) -> NDArray[np.float32]:
        """Return the frames of the window from frame `begin` on: float32 [frames, bands]."""
        count = self.frames(begin)
        before = _LENGTH // 2
        samples = self._recording.values(begin * HOP, (count - 1) * HOP + _LENGTH - before)
        padded = np.concatenate([np.zeros(before, np.float32), samples])
        frames = np.lib.stride_tricks.sliding_window_view(padded, _LENGTH)[::HOP]
        magnitudes = np.abs(np.fft.rfft(frames * self._hann, n=_SPECTRUM))
        return np.log(magnitudes @ self._filters + _FLOOR).astype(np.float32)
