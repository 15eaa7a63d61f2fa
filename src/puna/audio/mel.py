"""Log-mel spectrograms of recordings, as Whisper was trained on (Radford et al., arXiv:2212.04356).

Reference: `WhisperFeatureExtractor` in transformers. Frames are 10 ms apart; each is the power spectrum of 25
ms in bands that are evenly spaced on Slaney's mel scale. Values more than 80 dB below the recording's largest
are raised to that. Others train on HTK's scale.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from puna.audio.recording import SAMPLE_RATE, Recording

#: Samples between two frames, and samples of a frame.
HOP: Final = 160
_LENGTH: Final = 400
#: Frames of a second.
FRAME_RATE: Final = SAMPLE_RATE // HOP

#: Slaney's scale is linear up to this frequency in hertz, and logarithmic above.
_BEND_HZ: Final = 1000.0
_BEND_MEL: Final = 15.0
_MELS_PER_E: Final = 27.0 / np.log(6.4)
#: HTK's scale: mels of a natural logarithm, and the frequency in hertz at which it bends.
_HTK_MELS: Final = 2595.0 / np.log(10)
_HTK_BEND_HZ: Final = 700.0
#: The least power of a band.
_FLOOR: Final = 1e-10
_RANGE: Final = 8.0  # decades


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    logarithmic = _BEND_HZ * np.exp((mels - _BEND_MEL) / _MELS_PER_E)
    return np.where(mels >= _BEND_MEL, logarithmic, mels * (_BEND_HZ / _BEND_MEL))


@lru_cache(maxsize=4)
def mel_filters(bands: int, points: int = _LENGTH) -> NDArray[np.float64]:
    """Return the weights of frequencies in each band: float64 [points / 2 + 1, bands].

    Triangles of equal area between neighbouring centres (Slaney, Auditory Toolbox, 1998).
    """
    top = _BEND_MEL + _MELS_PER_E * np.log(SAMPLE_RATE / 2 / _BEND_HZ)
    edges = _hertz(np.linspace(0.0, top, bands + 2))
    return _triangles(edges, points) * (2.0 / (edges[2:] - edges[:-2]))


@lru_cache(maxsize=4)
def htk_filters(
    bands: int, points: int, lowest_hz: float = 0.0, highest_hz: float = SAMPLE_RATE / 2
) -> NDArray[np.float64]:
    """Return the weights of frequencies in each band of HTK's scale: float64 [points / 2 + 1, bands].

    Triangles of equal height between neighbouring centres, as in torchaudio's `melscale_fbanks`.
    """
    lowest, highest = (_HTK_MELS * np.log1p(hertz / _HTK_BEND_HZ) for hertz in (lowest_hz, highest_hz))
    mels = np.linspace(lowest, highest, bands + 2)
    return _triangles(_HTK_BEND_HZ * np.expm1(mels / _HTK_MELS), points)


def _triangles(edges: NDArray[np.float64], points: int) -> NDArray[np.float64]:
    """Return triangles of height 1 over the frequencies of a transform: [points / 2 + 1, edges - 2]."""
    frequencies = np.linspace(0.0, SAMPLE_RATE / 2, points // 2 + 1)[:, None]
    rising = (frequencies - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - frequencies) / np.diff(edges)[1:]
    return np.maximum(np.minimum(rising, falling), 0.0)


class Features:
    """The log-mel spectrogram of a recording in `bands` bands, made a window of `length` frames at a time.

    It is completed with silence to `least` samples, by default those of a window.
    """

    #: Points of the Fourier transform of a frame.
    points: ClassVar[int] = _LENGTH
    #: Frames around the end of the samples that count.
    beyond: ClassVar[int] = 0

    def __init__(self, recording: Recording, bands: int, length: int, least: int | None = None) -> None:
        self._recording = recording
        self._filters = self.filters(bands)
        self._hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_LENGTH) / _LENGTH)
        self.frames = -(-len(recording.samples) // HOP)  # that begin before the silence
        self.length = length
        self._samples = max(len(recording.samples), length * HOP if least is None else least)
        self._least = self._peak() - _RANGE

    @property
    def all_frames(self) -> int:
        """Frames of the recording and of the silence after it."""
        return self._samples // HOP + self.beyond

    @classmethod
    def filters(cls, bands: int) -> NDArray[np.float64]:
        """Return the weights of frequencies in each band: float64 [points / 2 + 1, bands]."""
        return mel_filters(bands)

    def window(self, begin: int) -> NDArray[np.float32]:
        """Return frames [begin, begin + length): float32 [length, bands], with zeros after the last."""
        found = np.zeros((self.length, self._filters.shape[1]), np.float32)
        end = min(begin + self.length, self.all_frames)
        found[: end - begin] = (np.maximum(self._logarithms(begin, end), self._least) + 4.0) / 4.0
        return found

    def _peak(self) -> float:
        """Return the largest logarithm of the recording."""
        return max(
            float(self._logarithms(begin, min(begin + self.length, self.all_frames)).max())
            for begin in range(0, self.all_frames, self.length)
        )

    def _logarithms(self, begin: int, end: int) -> NDArray[np.float64]:
        """Return the decimal logarithms of the bands' powers in frames [begin, end): [frames, bands]."""
        first = begin * HOP - _LENGTH // 2
        places = np.arange(first, (end - 1) * HOP + _LENGTH // 2)
        # Frames at both ends of the recording are completed with its reflection.
        places = np.abs(places)
        places = np.where(places < self._samples, places, 2 * (self._samples - 1) - places)
        origin = int(places.min())
        samples = self._recording.values(origin, int(places.max()) + 1 - origin)[places - origin]
        frames = np.lib.stride_tricks.sliding_window_view(samples, _LENGTH)[::HOP]
        power = np.abs(np.fft.rfft(frames * self._hann, self.points)) ** 2
        found: NDArray[np.float64] = np.log10(np.maximum(power @ self._filters, _FLOOR))
        return found


class HtkFeatures(Features):
    """The spectrogram of a recording in HTK's bands, with a frame around the end of its samples.

    Reference: torchaudio's `MelSpectrogram` with a transform of 512 points.
    """

    points: ClassVar[int] = 512
    beyond: ClassVar[int] = 1

    @classmethod
    def filters(cls, bands: int) -> NDArray[np.float64]:
        return htk_filters(bands, cls.points)
