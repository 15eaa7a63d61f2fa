"""Recordings as models hear them: one channel, 16,000 samples a second, 16 bits each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from puna.errors import AudioError

#: Samples a second.
SAMPLE_RATE: Final = 16_000
#: The longest recording of one request, in seconds. Its samples fit into one message between processes.
MAX_SECONDS: Final = 7200


@dataclass(frozen=True, eq=False)
class Recording:
    """The samples of a recording, int16 [samples]."""

    samples: NDArray[np.int16]

    @property
    def seconds(self) -> float:
        return len(self.samples) / SAMPLE_RATE

    @property
    def data(self) -> memoryview:
        """Samples as little-endian int16; a view of them where the machine has that order."""
        return np.ascontiguousarray(self.samples, "<i2").data.cast("B")

    @classmethod
    def of_data(cls, data: bytes | memoryview) -> Self:
        """Return the recording with samples `data`, a view of them if possible.

        Raises `AudioError` for half a sample, and as `of`.
        """
        if len(data) % 2:
            raise AudioError(f"a recording of 16-bit samples has {len(data)} bytes, which is not even")
        return cls._checked(np.frombuffer(data, "<i2").astype(np.int16, copy=False))

    @classmethod
    def of(cls, values: NDArray[np.floating]) -> Self:
        """Return the recording with these values from -1 to 1, float [samples]; others are clipped.

        Raises `AudioError` for another shape, values that are not finite, no sample, and more than
        `MAX_SECONDS`.
        """
        if values.ndim != 1:
            raise AudioError(f"a recording has samples of one channel, not an array {list(values.shape)}")
        if not np.isfinite(values).all():
            raise AudioError("the recording has samples that are NaN or infinite")
        return cls._checked(np.clip(np.rint(values * 32768.0), -32768, 32767).astype(np.int16))

    @classmethod
    def _checked(cls, samples: NDArray[np.int16]) -> Self:
        if not len(samples):
            raise AudioError("the recording is empty")
        if len(samples) > MAX_SECONDS * SAMPLE_RATE:
            raise AudioError(
                f"the recording has {len(samples) / SAMPLE_RATE:.0f} s, and {MAX_SECONDS} s are allowed: "
                "send it in parts"
            )
        return cls(samples)

    def values(self, begin: int, count: int) -> NDArray[np.float32]:
        """Return `count` samples from `begin` on as float32 from -1 to 1, with zeros after the end."""
        found = np.zeros(count, np.float32)
        part = self.samples[begin : begin + count]
        found[: len(part)] = part / np.float32(32768)
        return found
