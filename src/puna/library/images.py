"""Images that callers give: files, bytes, Pillow images and pixels."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from puna.config import path_of
from puna.errors import ImageError


def image_file(image: Any) -> bytes:
    """Return the bytes of an image file, given as a path, as bytes, as a Pillow image or as pixels.

    Pixels are uint8 [height, width], [height, width, 3] or, with transparency, [height, width, 4]. Raises
    `ImageError` for anything else, and for a file that cannot be read.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if isinstance(image, str | Path):
        try:
            return path_of(str(image)).read_bytes()
        except OSError as error:
            raise ImageError(f"the image {image} cannot be read: {error}") from error
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (3, 4))):
            raise ImageError(
                "an array of pixels must be uint8 [height, width], [height, width, 3] or [height, width, 4], "
                f"not {image.dtype} {list(image.shape)}"
            )
        image = PIL.Image.fromarray(np.ascontiguousarray(image))
    if not isinstance(image, PIL.Image.Image):
        raise ImageError(
            "an image must be a path, the bytes of a file, a PIL.Image or an array of pixels, "
            f"not {type(image).__name__}"
        )
    written = io.BytesIO()
    encodable = image if image.mode in ("L", "LA", "RGB", "RGBA", "P", "1", "I;16") else image.convert("RGB")
    encodable.save(written, "PNG", compress_level=1, exif=image.getexif())
    return written.getvalue()
