"""Decoding of audio files, valid and invalid."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from puna.audio.decoding import decode
from puna.audio.limits import AudioLimits
from puna.errors import AudioError
from tests.audio.sounds import file_of, flac_bomb, tone, wav

LIMITS = AudioLimits()


def samples(data: bytes, limits: AudioLimits = LIMITS) -> NDArray[np.float32]:
    return np.concatenate([*decode(data, limits)])


def test_a_wav_file_of_the_models_own_rate_is_taken_as_it_is() -> None:
    sound = tone(0.3)
    expected = (sound * 32767).astype(np.int16) / np.float32(32768)
    assert np.array_equal(samples(wav(sound)), expected)


@pytest.mark.parametrize(
    ("format", "subtype", "off"),
    [
        ("WAV", "PCM_U8", 0.01),
        ("WAV", "PCM_24", 1e-6),
        ("WAV", "FLOAT", 0),
        ("WAV", "ULAW", 0.02),
        ("WAVEX", "PCM_16", 1e-4),
        ("RF64", "PCM_16", 1e-4),
        ("FLAC", "PCM_16", 1e-4),
        ("FLAC", "PCM_24", 1e-6),
        ("OGG", "VORBIS", 0.05),
        ("OGG", "OPUS", 0.05),
        ("MP3", "MPEG_LAYER_III", 0.05),
    ],
)
def test_every_format_is_decoded(format: str, subtype: str, off: float) -> None:
    sound = tone(2.0)
    found = samples(file_of(sound, format=format, subtype=subtype))
    assert len(found) == len(sound)
    middle = slice(8_000, 24_000)  # lossy formats fade in and out
    assert np.abs(found - sound)[middle].max() <= off


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000])
def test_other_rates_become_16000_samples_a_second(rate: int) -> None:
    """The reference is the same tone, sampled at that rate."""
    found, expected = samples(wav(tone(2.0, rate), rate)), tone(2.0)
    assert abs(len(found) - len(expected)) <= 1
    middle = slice(2_000, 30_000)  # there is nothing to interpolate from beyond the ends
    assert np.abs(found[middle] - expected[middle]).max() < 1e-3


def test_tones_that_the_models_rate_cannot_hold_are_removed() -> None:
    assert np.abs(samples(wav(tone(1.0, 48_000, hertz=9_500), 48_000))[2_000:14_000]).max() < 1e-3


def test_channels_are_averaged() -> None:
    left, right = tone(0.5), tone(0.5, hertz=300)
    found = samples(wav(np.stack([left, right, left], axis=1)))
    assert np.abs(found - (2 * left + right) / 3).max() < 1e-4


def test_a_long_file_is_decoded_in_pieces() -> None:
    pieces = [*decode(file_of(tone(60.0)), LIMITS)]
    assert len(pieces) >= 3
    assert sum(map(len, pieces)) == 60 * 16_000


def streamed_wav() -> bytes:
    """Return a WAV whose header has no length, as programs write it into a pipe."""
    data = bytearray(wav(tone(0.5)))
    data[4:8] = data[40:44] = b"\xff" * 4
    return bytes(data)


def test_a_wav_written_into_a_pipe_is_read_to_its_end() -> None:
    assert len(samples(streamed_wav())) == 8_000


def wrong_header(place: int, value: bytes) -> bytes:
    data = bytearray(wav(tone(0.1)))
    data[place : place + len(value)] = value
    return bytes(data)


BAD = {
    "nothing": (b"", "has no bytes"),
    "text": (b"what is this", "is not in a supported format; send WAV, FLAC, OGG"),
    "m4a": (b"\x00\x00\x00\x20ftypM4A ", r"is MP4 \(M4A\), which is not supported"),
    "webm": (b"\x1aE\xdf\xa3" + bytes(90), "is WebM or Matroska, which is not supported"),
    "aiff": (file_of(tone(0.1), format="AIFF"), "is AIFF, which is not supported"),
    "cut flac": (file_of(tone(9.0))[:20_000], "damaged"),
    "cut mp3": (file_of(tone(9.0), format="MP3")[:9_000], "is cut short or damaged: .* of 9.0 s"),
    "header alone": (wav(tone(0.1))[:40], "damaged"),
    "no samples": (wav(tone(0.0)), "has no samples"),
    "channels": (wav(np.zeros((10, 9))), "has 9 channels, and at most 8"),
    "slow": (wrong_header(24, struct.pack("<I", 100)), "has 100 samples a second, and 4000 to 192000"),
    "fast": (wrong_header(24, struct.pack("<I", 2**31 - 1)), "has 2147483647 samples a second"),
    "not numbers": (file_of(tone(0.1) * np.nan, format="WAV", subtype="FLOAT"), "samples that are not numb"),
    "too large": (
        file_of(tone(0.1, rate=22_050) * 1e38, 22_050, "WAV", "FLOAT"),
        "beyond 16,777,216 times full scale",
    ),
    "junk like mp3": (b"\xff\xfb\x90" + bytes(1000), "damaged"),
}


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.replace(" ", "-"))
def test_bad_files_are_refused_with_a_message(kind: str) -> None:
    data, complaint = BAD[kind]
    with pytest.raises(AudioError, match=complaint):
        samples(data)


@pytest.mark.parametrize(
    "data", [wav(tone(61.0)), file_of(tone(61.0)), flac_bomb(2000, 2)], ids=["wav", "flac", "unknown-length"]
)
def test_a_file_beyond_the_longest_is_refused(data: bytes) -> None:
    with pytest.raises(AudioError, match=r"is longer than 1 minute: .*PUNA_MAX_AUDIO_MINUTES"):
        samples(data, AudioLimits(minutes=1))


def test_a_header_that_claims_too_much_is_refused_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(file_of(tone(0.5)))
    data[22:26] = b"\xff" * 4  # the lower bits of the length
    monkeypatch.setattr("puna.audio.decoding._StraightFile.read", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(AudioError, match="is longer than 120 minutes"):
        samples(bytes(data))


def test_too_many_bytes_are_refused() -> None:
    with pytest.raises(AudioError, match=r"has 3244 bytes, and at most 1000.*PUNA_MAX_AUDIO_MB"):
        samples(wav(tone(0.1)), AudioLimits(file_bytes=1000))


def test_limits_come_from_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_MAX_AUDIO_MB", "3")
    monkeypatch.setenv("PUNA_MAX_AUDIO_MINUTES", "10")
    assert AudioLimits.from_env() == AudioLimits(file_bytes=3 << 20, minutes=10)
    monkeypatch.setenv("PUNA_MAX_AUDIO_MINUTES", "1000")  # samples would not fit one message
    assert AudioLimits.from_env().minutes == 120


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_files_are_decoded_or_refused(data: Any) -> None:
    format = data.draw(st.sampled_from(["WAV", "FLAC", "OGG", "MP3"]))
    file = bytearray(file_of(tone(0.3), format=format))
    for _ in range(data.draw(st.integers(1, 5))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del file[data.draw(st.integers(0, len(file))) :]
    try:
        found = samples(bytes(file))
    except AudioError:
        return
    assert found.dtype == np.float32
