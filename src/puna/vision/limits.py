"""Limits of the images of one request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from puna.config import env_int
from puna.errors import ImageError

#: Memory that does not depend on the image's size, and per pixel while decoding. WebP with transparency takes
#: most: six copies of 4 bytes.
_BASE_BYTES: Final = 256 << 20
_BYTES_PER_PIXEL: Final = 32


@dataclass(frozen=True)
class ImageLimits:
    count: int = 64  # images per request
    file_bytes: int = 20 << 20  # encoded size of one image
    pixels: int = 40_000_000  # per image
    pixels_together: int = 200_000_000  # all images of a request, decoded
    memory_bytes: int = _BASE_BYTES + _BYTES_PER_PIXEL * 40_000_000  # to decode one image
    seconds: float = 10.0  # of processor time per image
    seconds_together: float = 30.0  # of processor time for all images of a request

    @classmethod
    def from_env(cls) -> ImageLimits:
        """Read the limits from the environment; invalid values are ignored with a warning."""
        max_mb = env_int("MAX_IMAGE_MB", cls.file_bytes >> 20, least=1)
        megapixels = env_int("MAX_IMAGE_MEGAPIXELS", cls.pixels // 10**6, least=1)
        return cls(
            count=env_int("MAX_IMAGES", cls.count, least=1),
            file_bytes=max_mb << 20,
            pixels=megapixels * 10**6,
            pixels_together=max(cls.pixels_together, megapixels * 10**6),
            memory_bytes=_BASE_BYTES + _BYTES_PER_PIXEL * megapixels * 10**6,
        )

    def check_count(self, count: int) -> None:
        """Raise `ImageError` for more images than a request may have."""
        if count > self.count:
            raise ImageError(
                f"the request has {count} images, and at most {self.count} are allowed (PUNA_MAX_IMAGES)"
            )


@cache
def image_limits() -> ImageLimits:
    """Return the limits of this process."""
    return ImageLimits.from_env()
