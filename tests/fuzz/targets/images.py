"""Image files with corrupted bytes, odd modes and odd proportions: refused, or prepared for vision towers."""

from __future__ import annotations

import io
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from PIL import Image

from puna.vision.decoding import decode
from puna.vision.limits import ImageLimits
from puna.vision.pixels import CLIP_MEAN
from puna.vision.towers.deepseek_ocr import DeepSeekOcrVision
from puna.vision.towers.gemma3 import Gemma3Vision
from puna.vision.towers.idefics3 import Idefics3Vision
from puna.vision.towers.internvl import InternVision
from puna.vision.towers.lfm2 import Lfm2Vision
from puna.vision.towers.llava import LlavaNextVision, LlavaVision
from puna.vision.towers.minicpmv import MiniCPMVision
from puna.vision.towers.pixtral import PixtralVision
from puna.vision.towers.qwen import Qwen25Vision
from puna.vision.towers.step3 import Step3Vision
from tests.fuzz.case import Bounds
from tests.fuzz.hostile_bytes import damaged

BOUNDS = Bounds(seconds=4.0, memory=256 << 20)
LIMITS = ImageLimits(file_bytes=1 << 20, pixels=1_000_000)
#: Upper bounds on what any tower makes of a picture.
_MAX_ROWS, _MAX_BYTES = 8192, 64 << 20

_FORMATS = {
    "JPEG": ("RGB", "L", "CMYK"),
    "PNG": ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("P", "L"),
    "BMP": ("RGB", "L", "1"),
    "TIFF": ("RGB",),  # not supported
}
_SIDES = (1, 2, 3, 7, 28, 55, 56, 57, 224, 500, 1000, 3000, 100_000)

#: Towers with the sizes of published models.
_TOWERS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (
        DeepSeekOcrVision,
        {
            "whole_size": 1024, "tile_size": 640, "min_tiles": 2, "max_tiles": 9, "tile_side": 10,
            "whole_side": 16,
        },
    ),
    (Gemma3Vision, {"image_size": 896, "rows": 256}),
    (Idefics3Vision, {"image_size": 512, "longest_edge": 2048, "tile_rows": 64}),
    (InternVision, {"image_size": 448, "min_tiles": 1, "max_tiles": 12, "tile_rows": 256}),
    (
        Lfm2Vision,
        {
            "patch_size": 16, "unit": 32, "min_pixels": 1 << 16, "max_pixels": 1 << 18, "tolerance": 2.0,
            "tile_size": 512, "min_tiles": 2, "max_tiles": 10, "thumbnail": True, "tile_rows": 256,
        },
    ),
    (LlavaVision, {"image_size": 336, "patches": 576, "mean": CLIP_MEAN}),
    (
        LlavaNextVision,
        {
            "image_size": 336, "patches": 576, "side": 24, "ends_lines": False,
            "grids": ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3)),
        },
    ),
    (MiniCPMVision, {"image_size": 448, "unit": 14, "rows": lambda *_: 64}),
    (PixtralVision, {"longest_edge": 1540, "unit": 28}),
    (Qwen25Vision, {"unit": 28, "min_pixels": 3136, "max_pixels": 2 << 20}),
    (
        Step3Vision,
        {
            "image_size": 728, "tile_size": 504, "longest_side": 3024, "tile_rows": 81, "whole_rows": 169,
        },
    ),
)  # fmt: skip


def fuzz(dice: random.Random, folder: Path) -> None:
    content = _file(dice)
    if dice.random() < 0.6:
        content = damaged(dice, content)
    (folder / "image").write_bytes(content)
    picture = decode(content, LIMITS)
    assert picture.mode == "RGB"
    assert 0 < picture.width * picture.height <= LIMITS.pixels
    tower, options = dice.choice(_TOWERS)
    one = tower.__new__(tower)  # without weights
    one.options = SimpleNamespace(**options)
    prepared = tower.prepare(one, picture)
    assert 0 < prepared.rows <= _MAX_ROWS
    assert prepared.nbytes <= _MAX_BYTES


def _file(dice: random.Random) -> bytes:
    kind = dice.choice(sorted(_FORMATS))
    width = dice.choice(_SIDES)
    height = dice.choice([side for side in _SIDES if side * width <= 2 * LIMITS.pixels])
    picture = Image.effect_noise((width, height), 80).convert("RGB")
    mode = dice.choice(_FORMATS[kind])
    picture = picture.convert("L").convert(mode) if mode == "I;16" else picture.convert(mode)
    written, options = io.BytesIO(), {}
    if kind == "JPEG":
        options = {"progressive": dice.random() < 0.5, "exif": _exif(dice)}
    elif kind in ("GIF", "WEBP") and dice.random() < 0.2:
        options = {"save_all": True, "append_images": [picture.copy(), Image.new(mode, picture.size)]}
    try:
        picture.save(written, kind, **options)
    except (OSError, ValueError, OverflowError, RuntimeError):  # larger than the format allows
        Image.new("RGB", (1, 1)).save(written, "PNG")
    return written.getvalue()


def _exif(dice: random.Random) -> bytes:
    """Return EXIF data with a valid or invalid orientation."""
    exif = Image.Exif()
    exif[0x0112] = dice.choice((1, 3, 6, 8, 9, 0, 65_535))
    found = exif.tobytes()
    return damaged(dice, found, most=2) if dice.random() < 0.3 else found
