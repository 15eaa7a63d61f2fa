"""Log-mel spectrograms with bands of mean 0 and deviation 1, as NVIDIA's NeMo makes them for FastConformers.

Reference: `ParakeetFeatureExtractor` in Hugging Face transformers. High tones are emphasised. Frames are 10
ms apart, the first centred on the first sample; each is the power spectrum of 25 ms in bands that are evenly
spaced on Slaney's mel scale.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from puna.audio.mel import HOP, mel_filters
from puna.audio.recording import Recording

_LENGTH: Final = 400  # samples of a frame
_SPECTRUM: Final = 512  # samples after zeros are added on both sides
#: The part of a sample that is taken from the next one.
_EMPHASIS: Final = 0.97
#: Added to the power of a band, and to its deviation.
_FLOOR: Final = 2.0**-24
_LEAST_DEVIATION: Final = 1e-5
#: Shorter recordings are completed with silence: a deviation takes two frames.
_LEAST_SAMPLES: Final = 2 * HOP


class NormalisedFeatures:
    """The spectrogram of a recording in `bands` bands, made a window of at most `most` frames at a time."""

    def __init__(self, recording: Recording, bands: int, most: int) -> None:
        self._recording = recording
        self._filters = mel_filters(bands, _SPECTRUM)
        self._hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_LENGTH) / (_LENGTH - 1))
        self._samples = max(len(recording.samples), _LEAST_SAMPLES)
        self._heard = self._samples // HOP
        self.length = min(most, self.frames)
        self._mean, self._deviation = self._moments()

    @property
    def frames(self) -> int:
        """Frames of the recording; the last one, which reaches beyond it, is silent."""
        return self._heard + 1

    def window(self, begin: int) -> NDArray[np.float32]:
        """Return the frames of the window from frame `begin` on: float32 [frames, bands]."""
        end = min(begin + self.length, self.frames)
        found = np.zeros((end - begin, self._filters.shape[1]), np.float32)
        heard = min(end, self._heard)
        if heard > begin:
            found[: heard - begin] = (self._logarithms(begin, heard) - self._mean) / self._deviation
        return found

    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean and the deviation of each band, to divide by, over all frames."""
        bands, count = self._filters.shape[1], self._heard
        total, squares = np.zeros(bands), np.zeros(bands)
        parts = [(begin, min(begin + self.length, count)) for begin in range(0, count, self.length)]
        for part in parts:
            total += self._logarithms(*part).sum(axis=0)
        mean = total / count
        for part in parts:
            squares += ((self._logarithms(*part) - mean) ** 2).sum(axis=0)
        return mean, np.sqrt(squares / (count - 1)) + _LEAST_DEVIATION

    def _logarithms(self, begin: int, end: int) -> NDArray[np.float64]:
        """Return the natural logarithms of the bands' powers in frames [begin, end): [frames, bands]."""
        first = begin * HOP - _LENGTH // 2
        count = (end - begin - 1) * HOP + _LENGTH
        missing = max(1 - first, 0)
        # One more, which the first sample is emphasised by.
        samples = self._recording.values(max(first - 1, 0), count + 1 - missing).astype(np.float64)
        samples = np.concatenate([np.zeros(missing), samples])
        emphasised = samples[1:] - _EMPHASIS * samples[:-1]
        emphasised[max(self._samples - first, 0) :] = 0.0
        frames = np.lib.stride_tricks.sliding_window_view(emphasised, _LENGTH)[::HOP]
        power = np.abs(np.fft.rfft(frames * self._hann, n=_SPECTRUM)) ** 2
        found: NDArray[np.float64] = np.log(power @ self._filters + _FLOOR)
        return found
