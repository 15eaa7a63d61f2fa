"""Files that are recordings, told from images by how they begin."""

from __future__ import annotations

import pytest

from puna.audio.formats import is_audio
from tests.audio.sounds import file_of, tone, wav
from tests.vision.seeing import file_of as picture_file
from tests.vision.seeing import picture


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG", "MP3", "AIFF", "CAF", "RF64"])
def test_audio_files_are_recordings_whether_or_not_they_are_read(format: str) -> None:
    assert is_audio(file_of(tone(0.2), format=format))
    assert is_audio(wav(tone(0.2)))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_images_are_no_recordings(format: str) -> None:
    assert not is_audio(picture_file(picture(1), format))


@pytest.mark.parametrize("data", [b"", b"x", b"\x00\x00\x00\x20ftypheic", b"\x00\x00\x00\x20ftypavif"])
def test_neither_are_other_files(data: bytes) -> None:
    assert not is_audio(data)
