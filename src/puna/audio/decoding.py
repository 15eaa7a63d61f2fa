"""Decoding of audio files within limits, to samples of one channel at 16,000 Hz.

A small file can hold hours of silence, and headers can claim anything: samples are counted as they come.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from soundfile import LibsndfileError, SoundFile
from soxr import ResampleStream

from puna.audio.formats import SUPPORTED, check_format
from puna.audio.limits import AudioLimits
from puna.audio.recording import MAX_SECONDS, SAMPLE_RATE
from puna.errors import AudioError

#: Supported formats, by libsndfile's names. It reads twenty more, which are rarely sent and would expose more
#: code to untrusted input.
_FORMATS: Final = frozenset({"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3"})

#: Values decoded at a time, of all channels together.
_VALUES: Final = 1 << 18
#: A lossy format may end up to this much before the length in its header, which counts its last frame whole.
_SHORTER_S: Final = 0.5
#: Largest sample, where full scale is 1: later computations overflow with much larger ones.
_LARGEST: Final = 1 << 24


def decode(data: bytes, limits: AudioLimits) -> Iterator[NDArray[np.float32]]:
    """Yield the samples of a WAV, FLAC, OGG or MP3 file, from about -1 to 1, in pieces of a second or more.

    Channels are averaged, and other rates are converted to 16,000 Hz.

    Raises AudioError for data that is not audio, is damaged, of another format or beyond `limits`; its
    message begins with what the file does or has. Raises MemoryError.
    """
    if not data:
        raise AudioError("is empty: it has no bytes")
    if len(data) > limits.file_bytes:
        raise AudioError(
            f"has {len(data)} bytes, and at most {limits.file_bytes} are accepted (PUNA_MAX_AUDIO_MB)"
        )
    check_format(data)
    try:
        file = _StraightFile(io.BytesIO(data))
    except LibsndfileError as error:
        raise AudioError("is damaged and cannot be decoded: it has no valid header") from error
    with file:
        _check(file, limits)
        count = 0
        try:
            for piece in _resampled(_mono(file, limits), file.samplerate):
                count += len(piece)
                if len(piece):
                    yield piece
        except LibsndfileError as error:
            raise AudioError(f"is damaged and cannot be decoded: {error.error_string}") from error
        if not count:
            raise AudioError("has no samples")


class _StraightFile(SoundFile):  # type: ignore[misc]  # its package has no types
    """A file read from its beginning to its end. Otherwise, a seek follows each read."""

    def seekable(self) -> bool:
        return False


def _check(file: SoundFile, limits: AudioLimits) -> None:
    """Refuse a file by what its header says. Raises AudioError."""
    if file.format not in _FORMATS:
        raise AudioError(f"is {file.format}, which is not supported; {SUPPORTED}")
    if not 1 <= file.channels <= limits.channels:
        raise AudioError(f"has {file.channels} channels, and at most {limits.channels} are decoded")
    if not limits.lowest_rate <= file.samplerate <= limits.highest_rate:
        raise AudioError(
            f"has {file.samplerate} samples a second, and {limits.lowest_rate} to {limits.highest_rate} are "
            "decoded"
        )
    if _has_length(file) and file.frames > 60 * limits.minutes * file.samplerate:
        raise _too_long(limits)


def _has_length(file: SoundFile) -> bool:
    """Whether the length is known; a stream has the largest number there is."""
    return bool(0 <= file.frames < 2**62)


def _too_long(limits: AudioLimits) -> AudioError:
    return AudioError(
        f"is longer than {limits.minutes} minute{'s' * (limits.minutes != 1)}: send it in parts "
        f"(PUNA_MAX_AUDIO_MINUTES, at most {MAX_SECONDS // 60})"
    )


def _mono(file: SoundFile, limits: AudioLimits) -> Iterator[NDArray[np.float32]]:
    """Yield the averages of all channels, at the file's own rate."""
    most = 60 * limits.minutes * file.samplerate
    block = np.empty((_VALUES // file.channels, file.channels), np.float32)
    weights = np.full(file.channels, 1 / file.channels, np.float32)
    count = 0
    while len(read := file.read(out=block)):
        count += len(read)
        if count > most:
            raise _too_long(limits)
        samples = np.einsum("fc,c->f", read, weights)  # BLAS would need memory of its own
        if not (np.abs(samples) <= _LARGEST).all():
            raise AudioError(f"has samples that are not numbers, or beyond {_LARGEST:,} times full scale")
        yield samples
    missing = file.frames - count if _has_length(file) else 0
    if missing > _SHORTER_S * file.samplerate:
        raise AudioError(
            f"is cut short or damaged: {count / file.samplerate:.1f} of "
            f"{file.frames / file.samplerate:.1f} s can be decoded"
        )


def _resampled(pieces: Iterator[NDArray[np.float32]], rate: int) -> Iterator[NDArray[np.float32]]:
    if rate == SAMPLE_RATE:
        yield from pieces
        return
    stream: Any = ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")
    for piece in pieces:
        yield stream.resample_chunk(piece)
    yield stream.resample_chunk(np.empty(0, np.float32), last=True)
