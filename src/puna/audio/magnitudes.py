"""Log-mel spectrograms of magnitudes, as the audio towers of Gemma 3n and Gemma 4 were trained on.

References: `Gemma4AudioFeatureExtractor` and `Gemma3nAudioFeatureExtractor` in Hugging Face transformers.
Frames are 10 ms apart; each is a magnitude spectrum in bands that are evenly spaced on HTK's mel scale. A
frame that reaches beyond the recording's end is left out.
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

    Each window is read as a recording of its own: it does not hear the end of the one before. A frame has 20
    ms, and the first is centred on the first sample.
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


#: Samples of an emphasised frame, and of its spectrum after zeros are appended.
_EMPHASISED: Final = 512
_EMPHASISED_SPECTRUM: Final = 1024
#: The part of a sample that is taken from the next one, and from the first of a frame.
_EMPHASIS: Final = 0.97
#: The range of the bands in hertz, and the least magnitude of a band.
_LOWEST_HZ: Final = 125.0
_HIGHEST_HZ: Final = 7600.0
_LEAST: Final = 1e-5
#: Zeros complete a recording to a multiple of this many samples.
_MULTIPLE: Final = 128


class EmphasisedMagnitudes:
    """The spectrogram of a recording as `Magnitudes`, from frames of 32 ms whose high tones are emphasised.

    The first frame begins with the first sample. The emphasis of each frame is its own (Young et al., The HTK
    Book, 5.2).
    """

    length: Final = Magnitudes.length

    def __init__(self, recording: Recording, bands: int) -> None:
        self._recording = recording
        self._filters = htk_filters(bands, _EMPHASISED_SPECTRUM, _LOWEST_HZ, _HIGHEST_HZ)
        self._hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_EMPHASISED) / _EMPHASISED)

    def frames(self, begin: int) -> int:
        """Return the frames of the window from frame `begin` on; a recording has at least one."""
        heard = min(len(self._recording.samples) - begin * HOP, self.length * HOP)
        completed = -(-heard // _MULTIPLE) * _MULTIPLE
        return max((completed - _EMPHASISED - 1) // HOP + 1, 0 if begin else 1)

    def window(self, begin: int) -> NDArray[np.float32]:
        """Return the frames of the window from frame `begin` on: float32 [frames, bands]."""
        count = self.frames(begin)
        samples = self._recording.values(begin * HOP, (count - 1) * HOP + _EMPHASISED)
        frames = np.lib.stride_tricks.sliding_window_view(samples, _EMPHASISED)[::HOP].astype(np.float64)
        before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
        magnitudes = np.abs(np.fft.rfft((frames - _EMPHASIS * before) * self._hann, n=_EMPHASISED_SPECTRUM))
        return np.log(np.maximum(magnitudes @ self._filters, _LEAST)).astype(np.float32)
