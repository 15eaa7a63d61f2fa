"""Pictures on canvases and at maximum sizes, compared with transformers' processors."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from puna.vision.pixels import BILINEAR, CLIP_MEAN, CLIP_STD, grids, normalised, on_canvas, patches, stretched
from puna.vision.towers.gemma4 import Gemma4Vision, filling
from puna.vision.towers.glm_ocr import GlmOcrVision
from puna.vision.towers.llama4 import Llama4Vision
from tests.vision.seeing import picture

SIZES = [(80, 60), (33, 200), (500, 111), (56, 56), (20, 30), (57, 400)]


def tower(kind: type, **options: object) -> object:
    found = kind.__new__(kind)
    found.options = SimpleNamespace(**options)
    return found


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_tiles_match_llama_3_2_visions(size: tuple[int, int]) -> None:
    from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil

    image, side = picture(5, *size), 56
    processor = MllamaImageProcessorPil(
        size={"height": side, "width": side}, max_image_tiles=4, image_mean=CLIP_MEAN, image_std=CLIP_STD
    )
    expected = processor(image, return_tensors="np")
    cut, grid = on_canvas(image, side, grids(4))
    flat = np.ascontiguousarray(cut.transpose(0, 3, 1, 2))
    found = normalised(flat.reshape(len(cut), -1), CLIP_MEAN, CLIP_STD).reshape(flat.shape)
    assert grids(4).index(grid) + 1 == expected["aspect_ratio_ids"][0, 0]
    assert len(cut) == expected["aspect_ratio_mask"][0, 0].sum()
    assert np.abs(found - expected["pixel_values"][0, 0, : len(cut)]).max() < 1e-5


def test_canvases_are_chosen_and_filled_as_by_the_reference() -> None:
    from transformers.models.mllama.image_processing_pil_mllama import (
        get_image_size_fit_to_canvas,
        get_optimal_tiled_canvas,
    )

    generator = np.random.default_rng(0)
    for width, height in generator.integers(1, 200, (100, 2)).tolist():
        for most in (4, 16):  # of Llama 3.2 Vision and of Llama 4, which share the rule
            image = picture(0, width, height)
            cut, (rows, columns) = on_canvas(image, 28, grids(most))
            high, wide = get_optimal_tiled_canvas(height, width, most, 28)
            assert (rows * 28, columns * 28) == (high, wide), (width, height)
            shown = get_image_size_fit_to_canvas(height, width, high, wide, 28)
            canvas = cut.reshape(rows, columns, 28, 28, 3).swapaxes(1, 2).reshape(high, wide, 3)
            assert not canvas[shown[0] :].any()
            assert not canvas[:, shown[1] :].any()
            assert (canvas[: shown[0], : shown[1]] == stretched(image, *shown[::-1], BILINEAR)).all()


def test_llama_4_gets_the_whole_picture_after_the_tiles() -> None:
    seeing = tower(Llama4Vision, image_size=56, tile_rows=4)
    image = picture(5, 100, 50)
    prepared = seeing.prepare(image)
    assert (len(prepared.pixels), prepared.rows, prepared.grid) == (3, 12, (1, 2))
    assert (prepared.pixels[2] == stretched(image, 56, 56, BILINEAR)).all()
    alone = seeing.prepare(picture(5, 50, 50))
    assert (len(alone.pixels), alone.rows, alone.grid) == (1, 4, (1, 1))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_patches_match_gemma_4s(size: tuple[int, int]) -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    image = picture(5, *size)
    expected = Gemma4ImageProcessorPil(max_soft_tokens=70, patch_size=14)(image, return_tensors="np")
    prepared = tower(Gemma4Vision, unit=42, places=3, max_rows=70, table_size=210).prepare(image)
    assert prepared.rows == expected["num_soft_tokens_per_image"][0]
    count = 9 * prepared.rows
    width = 3 * prepared.grid[1]
    places = expected["image_position_ids"][0, :count]
    assert (places == np.stack(np.divmod(np.arange(count), width), axis=1)[:, ::-1]).all()
    found = patches(prepared.pixels[0], 14).reshape(count, 3, 196).swapaxes(1, 2).reshape(count, -1)
    assert np.abs(found / 255 - expected["pixel_values"][0, :count]).max() < 1e-5


def test_long_and_narrow_pictures_have_at_least_one_row() -> None:
    assert filling(10_000, 10, 48, 280) == (280, 1)
    assert filling(10, 3000, 48, 280) == (1, 280)
    assert filling(2000, 1, 48, 280) == (280, 1)


def test_sizes_match_glms() -> None:
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    seeing = tower(GlmOcrVision, unit=28, min_pixels=112**2 // 2, max_pixels=1 << 20)
    generator = np.random.default_rng(0)
    for width, height in generator.integers(8, 3000, (300, 2)).tolist():
        if max(width, height) / min(width, height) > 200:
            continue
        expected = smart_resize(2, height, width, 2, 28, 112**2, 1 << 21)
        assert seeing.sized(width, height) == expected[::-1], (width, height)
