"""From the bytes of an image file to pixels.

What a file claims is compared with the limits before anything is decoded: a small file can hold an
image that takes gigabytes, or hours.
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

#: What is read. Other formats Pillow knows are rarely sent, and are code that strangers' bytes would reach.
_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
#: Passes over the pixels that a progressive JPEG may ask for. Encoders use about ten.
_MAX_SCANS: Final = 100
_SCAN: Final = b"\xff\xda"
_WHITE: Final = (255, 255, 255, 255)


def decode(
    data: bytes, limits: ImageLimits, name: str = "the image", *, enough: int | None = None
) -> Picture:
    """Return the picture in a JPEG, PNG, WebP, GIF or BMP file, turned as its EXIF data say; holes are white.

    A JPEG is decoded at a half, a quarter or an eighth of its size where that leaves `enough` pixels.

    Raises `ImageError`, which calls it `name`: for no image, a damaged or animated one, one of another
    format, and one beyond `limits`. Raises MemoryError.
    """
    if not data:
        raise ImageError(f"{name} is empty: it has no bytes")
    if len(data) > limits.file_bytes:
        raise ImageError(
            f"{name} has {len(data)} bytes, and at most {limits.file_bytes} are read (PUNA_MAX_IMAGE_MB)"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about size, which is checked here, and about odd metadata
            with Image.open(io.BytesIO(data), formats=_FORMATS) as file:
                _check(file, data, limits, name)
                if enough is not None:
                    _scale(file, enough)
                file.load()
                return _rgb(_upright(file))
    except UnidentifiedImageError:
        raise ImageError(
            f"{name} is not of a format that is read; send JPEG, PNG, WebP, GIF or BMP"
        ) from None
    except Image.DecompressionBombError:
        raise ImageError(_too_many(name, "more than 178 million", limits)) from None
    except (ImageError, MemoryError):
        raise
    except Exception as error:
        # Whatever a decoder stumbles over: Pillow promises no class, and does not wrap struct's errors.
        raise ImageError(f"{name} is damaged and cannot be decoded: {error}") from error


def _check(file: ImageFile.ImageFile, data: bytes, limits: ImageLimits, name: str) -> None:
    width, height = file.size
    if width < 1 or height < 1:
        raise ImageError(f"{name} is {width} x {height}: it has no pixels")
    if width * height > limits.pixels:
        raise ImageError(_too_many(name, f"{width} x {height}", limits))
    # Cameras write several pictures into a file that is a JPEG to everybody else: the first is the photo.
    photo = file.format in ("JPEG", "MPO")
    if not photo and getattr(file, "is_animated", False):
        raise ImageError(f"{name} is animated; send one frame of it as an image of its own")
    if photo and (scans := data.count(_SCAN)) > _MAX_SCANS:
        raise ImageError(f"{name} is a JPEG of {scans} scans, and at most {_MAX_SCANS} are decoded")


def _scale(file: ImageFile.ImageFile, enough: int) -> None:
    """Have a JPEG decoded at the smallest size that has `enough` pixels. Other formats have one size."""
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
    """Turned as its EXIF data say; where they are damaged, as it is stored: so others show it."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def _rgb(image: Image.Image) -> Picture:
    """Of any mode: what is not opaque on white, as people see it."""
    if image.mode.startswith("I"):  # 16 bits of grey, which `convert` would clip to the darkest 8
        return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
    if image.mode != "RGBA":
        return image.convert("RGB")
    return Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image).convert("RGB")
