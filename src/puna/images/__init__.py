"""Images as clients send them, and the pixels models are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from puna.images.limits import ImageLimits

if TYPE_CHECKING:
    from puna.images.decoding import Picture, decode

__all__ = ["ImageLimits", "Picture", "decode"]


def __getattr__(name: str) -> Any:
    # The server knows the limits, and decodes nothing: it does not wait for the library of images.
    if name in __all__:
        from puna.images import decoding

        return getattr(decoding, name)
    raise AttributeError(f"module 'puna.images' has no attribute '{name}'")
