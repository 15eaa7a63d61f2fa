"""The stream of random numbers behind a seed: the same one Ollama's engine draws from."""

from __future__ import annotations

import secrets

_MASK = 2**64 - 1
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F
_OUTPUT_MULTIPLIER = 0xDA942042E4DD58B5


class Random:
    """A 128-bit permuted congruential generator with DXSM output (O'Neill 2014; Go's math/rand/v2)."""

    def __init__(self, high: int, low: int) -> None:
        self._state = (high & _MASK) << 64 | low & _MASK

    @classmethod
    def seeded(cls, seed: int) -> Random:
        """The generator of a request; seed -1 stands for an unpredictable one."""
        if seed == -1:
            return cls(secrets.randbits(64), secrets.randbits(64))
        return cls(seed, (seed & _MASK) ^ 0x9E3779B9)

    def bits(self) -> int:
        """The next 64 random bits."""
        self._state = (self._state * _MULTIPLIER + _INCREMENT) % 2**128
        high, low = self._state >> 64, self._state & _MASK
        high ^= high >> 32
        high = high * _OUTPUT_MULTIPLIER & _MASK
        high ^= high >> 48
        return high * (low | 1) & _MASK

    def uniform(self) -> float:
        """A multiple of 2**-24 in [0, 1)."""
        return (self.bits() >> 32 & 0xFFFFFF) / 2**24
