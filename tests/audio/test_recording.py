"""Recordings as samples of 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

from puna.audio.recording import MAX_SECONDS, SAMPLE_RATE, Recording
from puna.errors import AudioError
from puna.protocol import MAX_FRAME_BYTES


def test_values_come_back_as_precisely_as_16_bits_allow() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 1000)
    heard = Recording.of(values)
    assert np.abs(heard.values(0, 1000) - values).max() <= 1 / 32768
    assert np.array_equal(Recording.of_data(heard.data).samples, heard.samples)
    assert heard.data[:2] == int(heard.samples[0]).to_bytes(2, "little", signed=True)
    assert heard.seconds == 1000 / SAMPLE_RATE


def test_values_beyond_one_are_clipped() -> None:
    assert Recording.of(np.array([1.0, 7.0, -1.0, -7.0])).samples.tolist() == [32767, 32767, -32768, -32768]


def test_there_is_silence_after_the_end() -> None:
    heard = Recording.of(np.full(10, 0.5))
    assert heard.values(8, 4).tolist() == [0.5, 0.5, 0, 0]
    assert heard.values(20, 2).tolist() == [0, 0]


def test_the_longest_recording_fits_into_one_message() -> None:
    longest = MAX_SECONDS * SAMPLE_RATE
    assert len(Recording(np.zeros(longest, np.int16)).data) < MAX_FRAME_BYTES
    with pytest.raises(AudioError, match="7200 s are allowed"):
        Recording.of_data(bytes(2 * (longest + 1)))
