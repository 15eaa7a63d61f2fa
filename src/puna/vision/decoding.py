"""Decoding of image files within limits.

The sizes a file claims are checked before decoding: a small file can hold an image that takes gigabytes
or hours.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Final

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from puna.errors import ImageError

if TYPE_CHECKING:
    from puna.vision.limits import ImageLimits

#: An image in memory, RGB with 8 bits a channel.
Picture = Image.Image

#: Supported formats. Pillow's others are rarely sent and would expose more code to untrusted input.
_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
#: Limit of scans in a progressive JPEG. Encoders use about ten.
_MAX_SCANS: Final = 100
_SCAN: Final = b"\xff\xda"
_WHITE: Final = (255, 255, 255, 255)


def decode(
    data: bytes, limits: ImageLimits, name: str = "the image", *, enough: int | None = None
) -> Picture:
    """Decode a JPEG, PNG, WebP, GIF or BMP file, rotated by its EXIF data, with transparency on white.

    A JPEG is decoded at half, a quarter or an eighth of its size if that leaves `enough` pixels.

    Raises `ImageError`, which calls it `name`, for data that is not an image, is damaged, animated, of
    another format or beyond `limits`. Raises MemoryError.
    """
    if not data:
        raise ImageError(f"{name} is empty: it has no bytes")
    if len(data) > limits.file_bytes:
        raise ImageError(
            f"{name} has {len(data)} bytes, and at most {limits.file_bytes} are accepted (PUNA_MAX_IMAGE_MB)"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes, checked here, and odd metadata
            with Image.open(io.BytesIO(data), formats=_FORMATS) as file:
                _check(file, data, limits, name)
                if enough is not None:
                    _scale(file, enough)
                file.load()
                return _rgb(_upright(file))
    except UnidentifiedImageError:
        raise ImageError(f"{name} is not in a supported format; send JPEG, PNG, WebP, GIF or BMP") from None
    except Image.DecompressionBombError:
        raise ImageError(_too_many(name, "more than 178 million", limits)) from None
    except (ImageError, MemoryError):
        raise
    except Exception as error:
        # Pillow documents no class of error, and does not wrap struct's.
        raise ImageError(f"{name} is damaged and cannot be decoded: {error}") from error


def _check(file: ImageFile.ImageFile, data: bytes, limits: ImageLimits, name: str) -> None:
    width, height = file.size
    if width < 1 or height < 1:
        raise ImageError(f"{name} is {width} x {height}: it has no pixels")
    if width * height > limits.pixels:
        raise ImageError(_too_many(name, f"{width} x {height}", limits))
    # Cameras store several pictures in a file that other software reads as a JPEG: the first is the photo.
    photo = file.format in ("JPEG", "MPO")
    if not photo and getattr(file, "is_animated", False):
        raise ImageError(f"{name} is animated; send one frame of it as an image of its own")
    if photo and (scans := data.count(_SCAN)) > _MAX_SCANS:
        raise ImageError(f"{name} is a JPEG of {scans} scans, and at most {_MAX_SCANS} are decoded")


def _scale(file: ImageFile.ImageFile, enough: int) -> None:
    """Choose the smallest size with `enough` pixels for decoding a JPEG; other formats have one size."""
    width, height = file.size
    for factor in (8, 4, 2):
        wide, high = width // factor, height // factor
        if wide and high and wide * high >= enough:
            file.draft("RGB", (wide, high))
            return


def _too_many(name: str, size: str, limits: ImageLimits) -> str:
    return (
        f"{name} has {size} pixels, and at most {limits.pixels} are decoded: "
        "send it smaller (PUNA_MAX_IMAGE_MEGAPIXELS)"
    )


def _upright(image: Image.Image) -> Image.Image:
    """Rotate by EXIF data; leave the image as stored if they are damaged, as other viewers do."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def _rgb(image: Image.Image) -> Picture:
    """Convert any mode to RGB, with transparent parts on white as viewers show them."""
    if image.mode.startswith("I"):  # 16 bits of grey, which `convert` would clip to the darkest 8
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode != "RGBA":
        return image.convert("RGB")
    return Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image).convert("RGB")
