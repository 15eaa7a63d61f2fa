"""Sounds, and files of them in all formats."""

from __future__ import annotations

import io
import struct
import wave

import numpy as np
import soundfile
from numpy.typing import NDArray


def tone(seconds: float = 1.0, rate: int = 16_000, hertz: float = 440.0, loudness: float = 0.5) -> NDArray:
    """Return a sine, float32 [samples]."""
    times = np.arange(round(seconds * rate)) / rate
    return (loudness * np.sin(2 * np.pi * hertz * times)).astype(np.float32)


def chirps(rate: int = 16_000) -> bytes:
    """Return a WAV file of a second with two tones that rise, as a voice does where noise is taken out."""
    times = np.arange(rate // 2) / rate
    rising = np.sin(2 * np.pi * (300 + 400 * times) * times) * np.hanning(len(times))
    return wav(np.concatenate([0.8 * rising] * 2).astype(np.float32), rate)


def wav(samples: NDArray, rate: int = 16_000) -> bytes:
    """Return a WAV file with 16 bits a sample, written without libsndfile; samples [, channels]."""
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return written.getvalue()


def file_of(samples: NDArray, rate: int = 16_000, format: str = "FLAC", subtype: str | None = None) -> bytes:
    written = io.BytesIO()
    soundfile.write(written, samples, rate, format=format, subtype=subtype)
    return written.getvalue()


def flac_bomb(blocks: int = 100_000, channels: int = 8, rate: int = 16_000) -> bytes:
    """Return a FLAC of unknown length, each block of which has 65,535 silent samples in a few dozen bytes."""
    least_most_block = struct.pack(">HH", 16, 65_535)
    packed = (rate << 44) | ((channels - 1) << 41) | (15 << 36)  # 16 bits a sample, length 0: unknown
    stream_info = least_most_block + bytes(6) + packed.to_bytes(8, "big") + bytes(16)
    header = b"fLaC" + b"\x80" + len(stream_info).to_bytes(3, "big") + stream_info
    return header + b"".join(_silent_block(number, channels) for number in range(blocks))


def _silent_block(number: int, channels: int) -> bytes:
    # Blocks of one size, which comes last, the rate of the stream, channels, and 16 bits a sample.
    header = b"\xff\xf8\x70" + bytes([(channels - 1) << 4 | 8]) + chr(number).encode("utf-8", "surrogatepass")
    header += struct.pack(">H", 65_534)
    header += bytes([_crc(header, 8, 0x07)])
    frame = header + b"\x00\x00\x00" * channels  # constant, 0
    return frame + _crc(frame, 16, 0x8005).to_bytes(2, "big")


def _crc(data: bytes, bits: int, polynomial: int) -> int:
    value, top = 0, 1 << (bits - 1)
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = (value << 1) ^ polynomial if value & top else value << 1
        value &= (1 << bits) - 1
    return value
