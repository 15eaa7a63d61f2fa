"""Recordings that callers of the library give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.errors import AudioError
from puna.library.recordings import recording_of
from tests.audio.sounds import file_of, tone, wav

SOUND = tone(0.5)
SAMPLES = (SOUND * 32767).astype(np.int16)


def test_a_recording_may_be_a_file_its_bytes_or_samples(tmp_path: Path) -> None:
    path = tmp_path / "sound.wav"
    path.write_bytes(wav(SOUND))
    forms: list[Any] = [path, str(path), path.read_bytes(), SAMPLES, SAMPLES / np.float32(32768)]
    for form in forms:
        found = recording_of(form)
        assert np.array_equal(found.samples, SAMPLES)
        assert recording_of(found) is found


@pytest.mark.parametrize(
    ("audio", "complaint"),
    [
        ("no/such.wav", "the audio file no/such.wav cannot be read"),
        (b"", "the audio file is empty"),
        (file_of(SOUND, format="AIFF"), "the audio file is AIFF, which is not supported"),
        (7, "a recording must be a path, the bytes of a file or an array of samples, not int"),
    ],
)
def test_anything_else_is_refused(audio: Any, complaint: str) -> None:
    with pytest.raises(AudioError, match=complaint):
        recording_of(audio)
