"""Formats of audio files, known by how a file begins."""

from __future__ import annotations

from typing import Final

from puna.errors import AudioError

#: Advice in errors.
SUPPORTED: Final = "send WAV, FLAC, OGG (Vorbis or Opus) or MP3"

#: Beginnings of supported files. A tag of ID3 may precede FLAC, too.
_KNOWN: Final = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"ID3")
#: Beginnings of containers that hold pictures, too, and the mark of sound in their bytes 8 to 11.
_WAVES: Final = (b"RIFF", b"RIFX", b"RF64")
_WAVE: Final = b"WAVE"
#: The first bytes of a frame of MPEG audio have these bits set.
_MPEG_SYNC: Final = 0xFFE0

#: Formats that people send and that are not read: the place of a mark, the mark, the format.
_OTHERS: Final = (
    (4, b"ftyp", "MP4 (M4A)"),
    (0, b"\x1aE\xdf\xa3", "WebM or Matroska"),
    (0, b"FORM", "AIFF"),
    (0, b".snd", "AU"),
    (0, b"caff", "CAF"),
    (0, b"#!AMR", "AMR"),
    (0, b"0&\xb2u\x8ef\xcf\x11", "WMA"),
    (0, b"ADIF", "AAC"),
    (0, b"\xff\xf1", "AAC"),
    (0, b"\xff\xf9", "AAC"),
)


def check_format(data: bytes) -> None:
    """Raise `AudioError` for a file of an unsupported format; its message begins with what the file is."""
    for place, mark, name in _OTHERS:
        if data.startswith(mark, place):
            raise AudioError(f"is {name}, which is not supported; {SUPPORTED}")
    if not data.startswith(_KNOWN) and not _is_mpeg(data):
        raise AudioError(f"is not in a supported format; {SUPPORTED}")


def is_audio(data: bytes) -> bool:
    """Whether a file that may be an image or a recording begins like a recording, of whatever format."""
    if data.startswith(_WAVES):
        return data.startswith(_WAVE, 8)  # not WebP
    if data.startswith(b"ftyp", 4):
        return data.startswith(b"M4A", 8)  # not HEIC or AVIF
    others = any(data.startswith(mark, place) for place, mark, _ in _OTHERS)
    return others or data.startswith(_KNOWN) or _is_mpeg(data)


def _is_mpeg(data: bytes) -> bool:
    return int.from_bytes(data[:2], "big") & _MPEG_SYNC == _MPEG_SYNC
