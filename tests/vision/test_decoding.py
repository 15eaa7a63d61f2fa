"""Decoding of image files, valid and invalid."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.errors import ImageError
from puna.vision.decoding import decode
from puna.vision.limits import ImageLimits
from puna.vision.limits import ImageLimits as Limits
from tests.vision.seeing import file_of, picture

LIMITS = ImageLimits()


def pixels(data: bytes, limits: ImageLimits = LIMITS) -> np.ndarray:
    return np.asarray(decode(data, limits))


@pytest.mark.parametrize("format", ["PNG", "BMP", "GIF", "JPEG", "WEBP"])
def test_every_format_is_decoded(format: str) -> None:
    original = picture(1)
    lossless = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100, "subsampling": 0}}
    found = pixels(file_of(original, format, **lossless.get(format, {})))
    assert found.shape == (60, 80, 3)
    allowed = {"GIF": 80, "JPEG": 6}.get(format, 0)  # a palette, a transform
    assert np.abs(found.astype(int) - np.asarray(original)).max() <= allowed


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGB", "CMYK"])
def test_every_mode_is_converted_as_by_pillow(mode: str) -> None:
    original = picture(2).convert(mode)
    format = "JPEG" if mode == "CMYK" else "PNG"
    data = file_of(original, format)
    expected = PIL.Image.open(io.BytesIO(data)).convert("RGB")
    assert (pixels(data) == np.asarray(expected)).all()


def test_sixteen_bits_of_grey_become_eight() -> None:
    deep = np.array([[0, 0x7FFF, 0xFFFF]], np.uint16)
    assert pixels(file_of(PIL.Image.fromarray(deep)))[0, :, 0].tolist() == [0, 0x7F, 0xFF]


def test_transparent_parts_are_white() -> None:
    colours = np.array([[[200, 0, 0, 255], [200, 0, 0, 0], [200, 0, 0, 128]]], np.uint8)
    (row,) = pixels(file_of(PIL.Image.fromarray(colours))).tolist()
    assert row == [[200, 0, 0], [255, 255, 255], [227, 127, 127]]
    grey = PIL.Image.fromarray(np.array([[9]], np.uint8))
    assert pixels(file_of(grey, transparency=9)).tolist() == [[[255, 255, 255]]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_rotated_as_its_orientation_tag_says(orientation: int) -> None:
    """The tag gives the rotation of the stored picture; PIL's transpositions are the reference."""
    turns = {
        2: PIL.Image.Transpose.FLIP_LEFT_RIGHT, 3: PIL.Image.Transpose.ROTATE_180,
        4: PIL.Image.Transpose.FLIP_TOP_BOTTOM, 5: PIL.Image.Transpose.TRANSPOSE,
        6: PIL.Image.Transpose.ROTATE_270, 7: PIL.Image.Transpose.TRANSVERSE,
        8: PIL.Image.Transpose.ROTATE_90,
    }  # fmt: skip
    stored = picture(3)
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    expected = stored.transpose(turns[orientation]) if orientation in turns else stored
    assert (pixels(file_of(stored, exif=exif)) == np.asarray(expected)).all()


def test_a_photo_with_damaged_exif_data_is_not_rotated() -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    data = exif.tobytes().replace(b"MM", b"XX")  # breaks the byte-order mark
    assert (pixels(file_of(picture(3), exif=data)) == np.asarray(picture(3))).all()


def test_the_photo_of_a_file_with_several_pictures_is_read() -> None:
    """Phones append a smaller picture or a depth map to the photo."""
    written = io.BytesIO()
    picture(1).save(written, "MPO", save_all=True, append_images=[picture(2, 40, 30)])
    expected = PIL.Image.open(io.BytesIO(file_of(picture(1), "JPEG")))
    assert (pixels(written.getvalue()) == np.asarray(expected)).all()
    with pytest.raises(ImageError, match="is a JPEG of 102 scans, and at most 100 are decoded"):
        decode(written.getvalue() + b"\xff\xda" * 100, LIMITS)


def animated() -> bytes:
    written = io.BytesIO()
    picture(1).save(written, "GIF", save_all=True, append_images=[picture(2)])
    return written.getvalue()


def bomb(width: int, height: int) -> bytes:
    """Return a small PNG that claims the given size."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


def many_scans() -> bytes:
    data = file_of(picture(1), "JPEG", progressive=True)
    scan = data.index(b"\xff\xda")
    return data[:scan] + data[scan:-2] * 60 + data[-2:]


BAD = {
    "nothing": (b"", "has no bytes"),
    "text": (b"what is this", "is not in a supported format"),
    "a format that is not read": (file_of(picture(1), "TIFF"), "is not in a supported format"),
    "animated": (animated(), "is animated"),
    "cut": (file_of(picture(1))[:-400], "damaged"),
    "bomb": (bomb(30_000, 30_000), "pixels, and at most 40000000 are decoded"),
    "scans": (many_scans(), "scans, and at most 100 are decoded"),
    "endless metadata": (
        file_of(picture(1))[:33] + struct.pack(">I", 2**31 - 1) + b"zTXt" + bytes(50),
        "damaged|not in a supported format",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD, ids=lambda kind: kind.replace(" ", "-"))
def test_bad_files_are_refused_with_a_message(kind: str) -> None:
    data, complaint = BAD[kind]
    with pytest.raises(ImageError, match=complaint):
        decode(data, LIMITS)


def test_limits_are_checked_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of(picture(1))
    monkeypatch.setattr(PIL.Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(ImageError, match="80 x 60 pixels, and at most 4000"):
        decode(data, ImageLimits(pixels=4000))
    with pytest.raises(ImageError, match=rf"has {len(data)} bytes, and at most 100"):
        decode(data, ImageLimits(file_bytes=100))


def test_limits_come_from_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUNA_MAX_IMAGES", "3")
    monkeypatch.setenv("PUNA_MAX_IMAGE_MB", "2")
    monkeypatch.setenv("PUNA_MAX_IMAGE_MEGAPIXELS", "300")
    assert Limits.from_env() == Limits(
        3, 2 << 20, 300_000_000, 300_000_000, memory_bytes=(256 << 20) + 32 * 300_000_000
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_files_are_decoded_or_refused(data: Any) -> None:
    format = data.draw(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "BMP"]))
    file = bytearray(file_of(picture(1, 20, 16), format))
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(file) - 1))
        file[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del file[data.draw(st.integers(0, len(file))) :]
    try:
        found = decode(bytes(file), ImageLimits(pixels=100_000))
    except ImageError:
        return
    assert found.mode == "RGB"
