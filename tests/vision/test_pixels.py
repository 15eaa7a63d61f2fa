"""Pixels as models receive them, compared with transformers' processors."""

from __future__ import annotations

import ast
import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest

from puna.vision.pixels import CLIP_MEAN, CLIP_STD, HALVES, normalised, padded, patches, smart_size, tiles
from puna.vision.towers.gemma3 import Gemma3Vision
from puna.vision.towers.gemma3n import Gemma3nVision
from puna.vision.towers.glm_ocr import GlmOcrVision
from puna.vision.towers.kimi_k25 import KimiK25Vision
from puna.vision.towers.llava import LlavaVision
from puna.vision.towers.paddleocr import PaddleOcrVision
from puna.vision.towers.pixtral import PixtralVision
from puna.vision.towers.qwen import Qwen25Vision
from tests.vision.seeing import picture

SIZES = [(80, 60), (33, 200), (500, 111), (56, 56)]


def _gemma3(image: PIL.Image.Image) -> Any:
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    processor = Gemma3ImageProcessorPil(size={"height": 56, "width": 56})
    return processor(image, return_tensors="np")["pixel_values"][0]


def _gemma3n(image: PIL.Image.Image) -> Any:
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    processor = SiglipImageProcessorPil(size={"height": 56, "width": 56}, resample=2, do_normalize=False)
    return processor(image, return_tensors="np")["pixel_values"][0]


def _llava(image: PIL.Image.Image) -> Any:
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

    processor = LlavaImageProcessorPil(
        do_pad=True, size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}
    )
    return processor(image, return_tensors="np")["pixel_values"][0]


def _pixtral(image: PIL.Image.Image) -> Any:
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    processor = PixtralImageProcessorPil(size={"longest_edge": 112}, patch_size={"height": 28, "width": 28})
    return processor(image, return_tensors="np")["pixel_values"][0]


def _paddleocr(image: PIL.Image.Image) -> Any:
    """Return patches [n, 3 * 14 * 14], line by line."""
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
        PaddleOCRVLImageProcessorPil,
    )

    processor = PaddleOCRVLImageProcessorPil(size={"shortest_edge": 3136, "longest_edge": 12544})
    flat = np.asarray(processor(image, return_tensors="np")["pixel_values"])
    return flat.reshape(len(flat), -1)


def _qwen(image: PIL.Image.Image) -> Any:
    """Return patches [n, 3 * 2 * 14 * 14], of which the first frame is compared."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": 3136, "longest_edge": 12544})
    flat = np.asarray(processor(image, return_tensors="np")["pixel_values"])
    return flat.reshape(len(flat), 3, 2, 196)[:, :, 0].reshape(len(flat), -1)


def _glm(image: PIL.Image.Image) -> Any:
    """Return patches as for Qwen; its limits count the pixels of both frames."""
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

    processor = Glm4vImageProcessorPil(size={"shortest_edge": 6272, "longest_edge": 25088})
    flat = np.asarray(processor(image, return_tensors="np")["pixel_values"])
    return flat.reshape(len(flat), 3, 2, 196)[:, :, 0].reshape(len(flat), -1)


def _kimi(image: PIL.Image.Image) -> Any:
    """Return what transformers' processor does, with Pillow: its module needs torchvision to be imported."""
    spec = importlib.util.find_spec("transformers.models.kimi_k25.image_processing_kimi_k25")
    assert spec is not None
    tree = ast.parse(Path(str(spec.origin)).read_text())
    tree.body = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "navit_resize"
    ]
    names: dict[str, Any] = {"math": math}
    exec(compile(tree, str(spec.origin), "exec"), names)
    (high, wide), whole = names["navit_resize"](image.height, image.width, 14, 2, 16, 512)
    pixels = np.zeros((*whole, 3), np.float32)
    pixels[:high, :wide] = np.asarray(image.resize((wide, high), PIL.Image.Resampling.BICUBIC))
    return ((pixels / 255 - np.float32(HALVES)) / np.float32(HALVES)).transpose(2, 0, 1)


COMMON = {"patch_size": 14, "image_size": 56, "mean": CLIP_MEAN, "std": CLIP_STD, "patches": 16}
PROCESSORS: dict[str, tuple[Any, dict[str, Any], Callable[[PIL.Image.Image], Any]]] = {
    "gemma3": (Gemma3Vision, {**COMMON, "mean": HALVES, "std": HALVES, "rows": 4}, _gemma3),
    "gemma3n": (
        Gemma3nVision, {**COMMON, "mean": (0.0,) * 3, "std": (1.0,) * 3, "row_side": 2}, _gemma3n
    ),
    "glm": (GlmOcrVision, {**COMMON, "unit": 28, "min_pixels": 3136, "max_pixels": 12544}, _glm),
    "kimi": (
        KimiK25Vision, {**COMMON, "mean": HALVES, "std": HALVES, "unit": 28, "most_patches": 16}, _kimi
    ),
    "llava": (LlavaVision, COMMON, _llava),
    "paddleocr": (
        PaddleOcrVision, {**COMMON, "unit": 28, "min_pixels": 3136, "max_pixels": 12544}, _paddleocr
    ),
    "pixtral": (PixtralVision, {**COMMON, "longest_edge": 112, "unit": 28}, _pixtral),
    "qwen25vl": (
        Qwen25Vision, {**COMMON, "unit": 28, "min_pixels": 3136, "max_pixels": 12544}, _qwen
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", PROCESSORS)
def test_pixels_match_the_reference_processors(name: str, size: tuple[int, int]) -> None:
    kind, options, reference = PROCESSORS[name]
    image = picture(5, *size)
    tower = kind.__new__(kind)
    tower.options = SimpleNamespace(**options)
    prepared = tower.prepare(image)
    if name in ("glm", "qwen25vl"):
        found = normalised(patches(prepared.pixels[0], 14, 2), options["mean"], options["std"])
    elif name == "paddleocr":
        found = normalised(patches(prepared.pixels[0], 14), options["mean"], options["std"])
    else:
        flat = np.ascontiguousarray(prepared.pixels[0].transpose(2, 0, 1))
        found = normalised(flat.reshape(1, -1), options["mean"], options["std"]).reshape(flat.shape)
    expected = reference(image)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-5


def test_patches_and_tiles_are_cut_in_order() -> None:
    numbers = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    cut = patches(numbers, 2)
    assert cut.shape == (6, 12)
    assert (cut[4].reshape(3, 2, 2) == numbers[2:4, 2:4].transpose(2, 0, 1)).all()
    assert (patches(numbers[:, :4], 1, 2)[:4] == numbers[:2, :2].reshape(4, 3)).all()
    assert (tiles(numbers[:, :4], 2)[2] == numbers[2:4, :2]).all()
    assert (padded(numbers, 8, 9, left=1, top=3)[3:7, 1:7] == numbers).all()
    assert padded(numbers, 8, 9, left=1, top=3).sum() == numbers.sum()


def test_smart_sizes_match_qwens() -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    generator = np.random.default_rng(0)
    for width, height in generator.integers(1, 3000, (300, 2)).tolist():
        if max(width, height) / min(width, height) > 200:
            continue
        expected = smart_resize(height, width, 28, 3136, 1 << 20)
        assert smart_size(width, height, 28, 3136, 1 << 20) == expected[::-1], (width, height)
    assert smart_size(10_000, 1, 28, 3136, 1 << 20) == (
        812,
        28,
    )  # limited to 200 to 1, where transformers refuses


def test_thin_pictures_are_enlarged_like_paddles() -> None:
    from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import smart_resize

    tower = PaddleOcrVision.__new__(PaddleOcrVision)
    tower.options = SimpleNamespace(unit=28, min_pixels=3136, max_pixels=1 << 20)
    generator = np.random.default_rng(0)
    for width, height in [*generator.integers(1, 60, (300, 2)).tolist(), (5, 900), (900, 5)]:
        if max(width, height) / min(width, height) > 200:
            continue
        expected = smart_resize(height, width, 28, 3136, 1 << 20)
        assert tower.sized(width, height) == expected[::-1], (width, height)
