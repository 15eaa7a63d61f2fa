"""A small picture as a file."""

from __future__ import annotations

import io

from PIL import Image

_written = io.BytesIO()
Image.new("RGB", (32, 32), "red").save(_written, "PNG")
PNG = _written.getvalue()
