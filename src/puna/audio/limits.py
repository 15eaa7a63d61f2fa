"""Limits of audio files."""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

from puna.audio.recording import MAX_SECONDS
from puna.config import env_int
from puna.errors import AudioError

#: Processor time to decode a file, however short it is, and for each minute that it may have.
_BASE_S: Final = 10.0
_S_PER_MINUTE: Final = 0.5


class AudioLimits(msgspec.Struct, frozen=True):
    """Limits of one file; it is decoded in pieces, so that memory does not depend on its length.

    Those of a chat's recordings together are the same length, and their number.
    """

    count: int = 16  # recordings in the request of a chat
    file_bytes: int = 128 << 20
    minutes: int = MAX_SECONDS // 60  # and no more
    channels: int = 8
    lowest_rate: int = 4_000  # in Hz
    highest_rate: int = 192_000
    memory_bytes: int = 256 << 20

    @property
    def seconds(self) -> float:
        """The processor time that decoding may take."""
        return _BASE_S + _S_PER_MINUTE * self.minutes

    @classmethod
    def from_env(cls) -> AudioLimits:
        """Read the limits from the environment; invalid values are ignored with a warning."""
        return cls(
            count=env_int("MAX_RECORDINGS", cls().count, least=1),
            file_bytes=env_int("MAX_AUDIO_MB", cls().file_bytes >> 20, least=1) << 20,
            minutes=min(env_int("MAX_AUDIO_MINUTES", cls().minutes, least=1), cls().minutes),
        )

    def check_count(self, count: int) -> None:
        """Raise `AudioError` for more recordings than a request may have."""
        if count > self.count:
            raise AudioError(
                f"the request has {count} recordings, and at most {self.count} are allowed "
                "(PUNA_MAX_RECORDINGS)"
            )


@cache
def audio_limits() -> AudioLimits:
    """Return the limits of this process."""
    return AudioLimits.from_env()
