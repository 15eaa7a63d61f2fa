"""How much of anything the images of one request may be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from puna.config import env_int
from puna.errors import ImageError

#: Memory for what does not grow with the image, and for its pixels while they are decoded. The most is taken
#: by WebP with transparency: six copies of 4 bytes.
_BASE_BYTES: Final = 256 << 20
_BYTES_PER_PIXEL: Final = 32


@dataclass(frozen=True)
class ImageLimits:
    count: int = 64  # images of one request
    file_bytes: int = 20 << 20  # of one image as it is sent
    pixels: int = 40_000_000  # of one image
    pixels_together: int = 200_000_000  # of a request's images, as they are decoded
    memory_bytes: int = _BASE_BYTES + _BYTES_PER_PIXEL * 40_000_000  # to decode one image
    seconds: float = 10.0  # of processor time, for one image
    seconds_together: float = 30.0  # for a request's images

    @classmethod
    def from_env(cls) -> ImageLimits:
        """Numbers that make no sense count as absent, with a warning."""
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
        """Raises `ImageError` for more images than a request may have."""
        if count > self.count:
            raise ImageError(
                f"the request has {count} images, and at most {self.count} are allowed (PUNA_MAX_IMAGES)"
            )


@cache
def image_limits() -> ImageLimits:
    """Those of this process."""
    return ImageLimits.from_env()
