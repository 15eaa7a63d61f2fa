"""Images as clients send them, and the pixels models are shown."""

from puna.images.decoding import Picture, decode
from puna.images.limits import ImageLimits

__all__ = ["ImageLimits", "Picture", "decode"]
