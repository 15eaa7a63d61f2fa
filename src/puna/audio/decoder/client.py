"""The caller's side of decoding an audio file."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Final

from puna.audio.limits import AudioLimits, audio_limits
from puna.audio.recording import Recording
from puna.errors import AudioError
from puna.reading import FileKind, FileReader

_AUDIO: Final = FileKind(
    "audio files",
    Path(__file__).with_name("__main__.py"),
    ("numpy", "soundfile", "_soundfile", "_soundfile_data", "_cffi_backend", "cffi", "soxr"),
    AudioError,
    "send it in parts",
)


class Decoding:
    """The decoding of one WAV, FLAC, OGG or MP3 file, which errors call `name`."""

    def __init__(self, data: bytes, name: str, limits: AudioLimits | None = None) -> None:
        limits = limits or audio_limits()
        self._name = name
        self._reader = FileReader(
            _AUDIO, data, seconds=limits.seconds, memory_bytes=limits.memory_bytes, options=limits
        )

    def stop(self) -> None:
        """End the decoding, from any thread; whoever waits for the samples gets a ReaderError."""
        self._reader.stop()

    def samples(self) -> memoryview:
        """Return the samples in the file, as `Recording.data`. Blocks.

        Raises AudioError, also beyond the limits, and ReaderError.
        """
        try:
            found = BytesIO()  # which grows without another copy
            for piece in self._reader.pieces():
                found.write(piece)
            return found.getbuffer()
        except AudioError as error:
            raise AudioError(f"{self._name} {error}") from None


def decode(data: bytes, name: str, limits: AudioLimits | None = None) -> Recording:
    """Return the recording in an audio file; see `Decoding`."""
    return Recording.of_data(Decoding(data, name, limits).samples())
