"""Pictures cut into tiles, compared with transformers' processors."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from puna.vision.layers.interpolation import resized_positions, resized_row, sampled_positions
from puna.vision.pixels import (
    CLIP_MEAN,
    CLIP_STD,
    HALVES,
    IMAGENET_MEAN,
    IMAGENET_STD,
    block_order,
    closest_grid,
    normalised,
    patches,
    smart_size,
)
from puna.vision.towers import step3
from puna.vision.towers.deepseek_ocr import DeepSeekOcrVision
from puna.vision.towers.deepseek_ocr2 import DeepSeekOcr2Vision
from puna.vision.towers.idefics3 import Idefics3Vision
from puna.vision.towers.internvl import InternVision
from puna.vision.towers.lfm2 import Lfm2Vision
from puna.vision.towers.llava import LlavaNextVision, best_grid
from puna.vision.towers.minicpmv import SlicingVision
from puna.vision.towers.step3 import Step3Vision
from tests.vision.seeing import picture

SIZES = [(80, 60), (33, 200), (500, 111), (56, 56), (31, 17), (260, 250)]


def _idefics3(image: PIL.Image.Image) -> Any:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    processor = Idefics3ImageProcessorPil(size={"longest_edge": 160}, max_image_size={"longest_edge": 56})
    return processor(image, return_tensors="np")["pixel_values"][0]


def _smolvlm(image: PIL.Image.Image) -> Any:
    """Return a picture that is not cut because it is no larger than a tile."""
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    processor = SmolVLMImageProcessorPil(size={"longest_edge": 56}, max_image_size={"longest_edge": 56})
    return processor(image, return_tensors="np")["pixel_values"][0]


def _internvl(image: PIL.Image.Image) -> Any:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    processor = GotOcr2ImageProcessorPil(
        size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=6,
        image_mean=IMAGENET_MEAN, image_std=IMAGENET_STD,
    )  # fmt: skip
    return processor(image, return_tensors="np")["pixel_values"]


def _llava_next(image: PIL.Image.Image) -> Any:
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    processor = LlavaNextImageProcessorPil(
        size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56},
        image_grid_pinpoints=[[56 * rows, 56 * columns] for columns, rows in GRIDS],
    )  # fmt: skip
    return processor(image, return_tensors="np")["pixel_values"][0]


LFM2 = SimpleNamespace(
    patch_size=8, unit=16, min_pixels=512, max_pixels=1024, tolerance=2.0, tile_size=32, min_tiles=2,
    max_tiles=4, thumbnail=True, tile_rows=4,
)  # fmt: skip
GRIDS = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))  # columns and rows
TILE = {"patch_size": 14, "image_size": 56, "mean": HALVES, "std": HALVES, "tile_rows": 4}
PROCESSORS: dict[str, tuple[Any, dict[str, Any], Callable[[PIL.Image.Image], Any]]] = {
    "idefics3": (Idefics3Vision, {**TILE, "longest_edge": 160}, _idefics3),
    "smolvlm": (Idefics3Vision, {**TILE, "longest_edge": 56}, _smolvlm),
    "internvl": (
        InternVision,
        {**TILE, "mean": IMAGENET_MEAN, "std": IMAGENET_STD, "min_tiles": 1, "max_tiles": 6},
        _internvl,
    ),
    "llava-next": (
        LlavaNextVision,
        {
            **TILE,
            "mean": CLIP_MEAN,
            "std": CLIP_STD,
            "grids": GRIDS,
            "side": 4,
            "patches": 16,
            "ends_lines": False,
        },
        _llava_next,
    ),
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", PROCESSORS)
def test_tiles_match_the_reference_processors(name: str, size: tuple[int, int]) -> None:
    tower, options, reference = PROCESSORS[name]
    image = picture(5, *size)
    prepared = tower.prepare(SimpleNamespace(options=SimpleNamespace(**options)), image)
    found = prepared.pixels.transpose(0, 3, 1, 2)
    found = normalised(
        np.ascontiguousarray(found).reshape(len(found), -1), options["mean"], options["std"]
    ).reshape(found.shape)
    expected = reference(image)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < 1e-5
    if prepared.order is None:
        assert prepared.rows == 4 * len(expected)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("mode", ["4x", "16x"])
def test_slices_match_minicpms(size: tuple[int, int], mode: str) -> None:
    """The processor of 4.6 is that of 2.6 with larger units; a unit of 2 x 7 pixels is equally large."""
    from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

    image = picture(5, *size)
    processor = MiniCPMV4_6ImageProcessorPil(patch_size=7, downsample_mode=mode, scale_resolution=56)
    expected = processor(image, return_tensors="np")
    options = SimpleNamespace(unit=14 if mode == "4x" else 28, image_size=56, rows=lambda *_: 6)
    prepared = SlicingVision.prepare(SimpleNamespace(options=options), image)
    assert prepared.grid == tuple(expected["grids"][0])
    whole = [] if prepared.overview is None else [prepared.overview]
    shown = [*whole, *prepared.pixels]
    assert [[each.shape[0] // 7, each.shape[1] // 7] for each in shown] == expected["target_sizes"].tolist()
    # Patches of 7 x 7 are side by side: [3, 7, 7 * patches].
    flat = [normalised(patches(each, 7), HALVES, HALVES).reshape(-1, 3, 7, 7) for each in shown]
    found = np.concatenate(flat).transpose(1, 2, 0, 3).reshape(3, 7, -1)
    assert np.abs(found - expected["pixel_values"][0]).max() < 1e-5
    assert prepared.rows == 6 * len(shown)


#: Pixels along a side of a tile, and the most tiles.
VIEWS = {DeepSeekOcrVision: (40, 9), DeepSeekOcr2Vision: (48, 6)}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("kind", VIEWS)
def test_views_match_deepseeks(kind: Any, size: tuple[int, int]) -> None:
    """The processor of DeepSeek-OCR 2 is the first one's except for the sizes."""
    from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
        DeepseekOcr2ImageProcessorPil,
    )

    image, (tile, most) = picture(5, *size), VIEWS[kind]
    processor = DeepseekOcr2ImageProcessorPil(
        size={"height": 64, "width": 64}, tile_size=tile, min_patches=2, max_patches=most
    )
    expected = processor(image, return_tensors="np")
    tower = kind.__new__(kind)
    tower.options = SimpleNamespace(
        whole_size=64, tile_size=tile, tile_side=3, tile_rows=9, whole_side=4, whole_rows=16, min_tiles=2,
        max_tiles=most,
    )  # fmt: skip
    prepared = tower.prepare(image)
    assert len(prepared.pixels) == expected["num_local_patches"][0]
    views = [(prepared.overview[None], expected["pixel_values"])]
    if len(prepared.pixels):
        views.append((prepared.pixels, expected["pixel_values_local"]))
    for shown, wanted in views:
        found = np.ascontiguousarray(shown.transpose(0, 3, 1, 2))
        found = normalised(found.reshape(len(found), -1), HALVES, HALVES).reshape(found.shape)
        assert np.abs(found - np.asarray(wanted)).max() < 1e-5


@pytest.fixture
def processor_module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Return a function that imports processors, which need torchvision for that, but not for sizes."""
    importlib.import_module(
        "transformers.image_processing_backends"
    )  # it checks whether torchvision is there
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.v2"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["torchvision.transforms.v2"].functional = None
    return lambda kind: importlib.import_module(f"transformers.models.{kind}.image_processing_{kind}")


@pytest.mark.parametrize("size", [*SIZES, (12, 40), (40, 40), (2, 300), (1000, 9)], ids=str)
def test_tiles_of_lfm2_have_its_processors_sizes(
    processor_module: Callable[[str], Any], size: tuple[int, int]
) -> None:
    """LFM2's processor needs torchvision for pixels, so PyTorch's resizing is the reference."""
    lfm2 = processor_module("lfm2_vl")
    processor = lfm2.Lfm2VlImageProcessor
    image = picture(5, *size)
    width, height = size
    options = {"encoder_patch_size": 8, "downsample_factor": 2, "max_image_tokens": 4}
    large = processor._is_image_too_large(None, height, width, **options, max_pixels_tolerance=2.0)
    small = processor.smart_resize(None, height, width, **options, min_image_tokens=2)
    tower = SimpleNamespace(options=LFM2, _is_large=lambda *size: Lfm2Vision._is_large(tower, *size))
    prepared = Lfm2Vision.prepare(tower, image)
    shown = [(prepared.pixels[0] if prepared.overview is None else prepared.overview, small)]
    assert (prepared.overview is not None) == large
    if large:
        ratios = processor._target_ratios(None, 2, 4)
        columns, rows = lfm2.find_closest_aspect_ratio(width / height, ratios, width, height, 32)
        assert prepared.grid == (rows, columns)
        tiled = prepared.pixels.reshape(rows, columns, 32, 32, 3).swapaxes(1, 2)
        shown.append((tiled.reshape(rows * 32, columns * 32, 3), (columns * 32, rows * 32)))
    for found, (wide, high) in shown:
        assert found.shape == (high, wide, 3)
        whole = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
        resized = torch.nn.functional.interpolate(whole, (high, wide), mode="bilinear", antialias=True)[0]
        assert np.abs(resized.permute(1, 2, 0).numpy() - found).max() < 1.01  # rounded twice, across and down


def step_plan(module: Any, size: tuple[int, int], whole: int, tile: int, longest: int) -> tuple[Any, ...]:
    """Return how Step's processor cuts a picture of this `size`."""
    processor = module.Step3p7ImageProcessor
    settings = SimpleNamespace(max_image_size=longest, _is_extreme_aspect=processor._is_extreme_aspect)
    found: tuple[Any, ...] = processor._plan_patches(settings, *size, whole, tile)
    return found


#: Whole, cut into squares of the tile's size and smaller ones, completed, stretched; thin, long.
STEP_SIZES = [*SIZES, (40, 56), (56, 30), (70, 24), (90, 63), (20, 90), (12, 49), (290, 300), (300, 33)]


@pytest.mark.parametrize("size", STEP_SIZES, ids=str)
def test_views_match_steps(processor_module: Callable[[str], Any], size: tuple[int, int]) -> None:
    """Its processor needs torchvision for pixels, so Pillow's resizing is the reference.

    Black completes tiles beyond the picture, as in StepFun's own code; the processor stretches them.
    """
    whole, tile = 56, 40
    plan = step_plan(processor_module("step3p7"), size, whole, tile, 600)
    shown, cut, window, columns, rows, squared = plan
    tower = Step3Vision.__new__(Step3Vision)
    tower.options = SimpleNamespace(
        image_size=whole, tile_size=tile, longest_side=600, tile_rows=3, whole_rows=5
    )
    image = picture(5, *size)
    prepared = tower.prepare(image)
    assert prepared.grid == (rows, columns)
    assert prepared.rows == 3 * rows * columns + 5
    if squared:
        canvas = PIL.Image.new("RGB", (max(size), max(size)))
        canvas.paste(image, (0, 0))
        image = canvas
    assert image.size == shown
    expected = image.resize((whole, whole), PIL.Image.Resampling.BILINEAR)
    assert prepared.overview is not None
    assert (prepared.overview == np.asarray(expected)).all()
    resized = image.resize(cut, PIL.Image.Resampling.BILINEAR)
    for number, found in enumerate(prepared.pixels):
        left, top = number % columns * window, number // columns * window
        square = resized.crop((left, top, left + window, top + window))
        assert (found == np.asarray(square.resize((tile, tile), PIL.Image.Resampling.BILINEAR))).all()


def test_pictures_are_cut_like_steps(processor_module: Callable[[str], Any]) -> None:
    module = processor_module("step3p7")
    generator = np.random.default_rng(0)
    drawn = (generator.integers(32, most, (300, 2)).tolist() for most in (3025, 729))
    for size in itertools.chain(*drawn):
        _, cut, window, *_ = step_plan(module, size, 728, 504, 3024)
        assert step3.windows(*size, 728, 504) == (window, cut), size


@pytest.mark.parametrize("size", [(700, 400), (30, 900), (1000, 5), (3, 601)], ids=str)
def test_pictures_are_reduced_like_steps(
    processor_module: Callable[[str], Any], size: tuple[int, int]
) -> None:
    """Thin pictures are reduced before they are completed, lest the canvas be too large."""
    shown, *_, squared = step_plan(processor_module("step3p7"), size, 56, 40, 600)
    found = step3.reduced(picture(5, *size), 600)
    assert found.size == shown
    if squared:
        scale = min(600 / max(size), 1)
        wide, high = (max(int(each * scale), 1) for each in size)
        assert not np.asarray(found)[high:].any()
        assert not np.asarray(found)[:, wide:].any()
        assert np.asarray(found)[:high, :wide].any()


def test_a_picture_of_very_many_tiles_is_not_cut() -> None:
    tower = Step3Vision.__new__(Step3Vision)
    tower.options = SimpleNamespace(image_size=56, tile_size=40, longest_side=3000, tile_rows=3, whole_rows=5)
    prepared = tower.prepare(picture(5, 3000, 40))
    assert (prepared.grid, prepared.rows, len(prepared.pixels)) == ((0, 0), 5, 0)
    assert tower.prepare(picture(5, 2500, 40)).grid == (1, 63)


def test_sizes_match_minimaxs(processor_module: Callable[[str], Any]) -> None:
    smart_resize = processor_module("minimax_m3_vl").smart_resize
    generator = np.random.default_rng(0)
    for width, height in generator.integers(1, 3000, (300, 2)).tolist():
        if max(width, height) / min(width, height) <= 200:
            expected = smart_resize(height, width, 28, 4 * 28 * 28, 672**2)
            assert smart_size(width, height, 28, 4 * 28**2, 672**2) == expected[::-1], (width, height)


@pytest.mark.parametrize("shape", [(4, 4), (7, 3), (2, 9), (1, 1)], ids=str)
@pytest.mark.parametrize("cubic", [False, True], ids=["linear", "cubic"])
def test_positions_are_resized_as_by_pytorch(cubic: bool, shape: tuple[int, int]) -> None:
    table = np.random.default_rng(0).standard_normal((4, 4, 5)).astype(np.float32)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(table).permute(2, 0, 1)[None], shape, mode="bicubic" if cubic else "bilinear",
        antialias=True,
    )  # fmt: skip
    found = resized_positions(table, *shape, cubic=cubic)
    assert np.abs(found - expected[0].reshape(5, -1).T.numpy()).max() < 1e-5


@pytest.mark.parametrize("shape", [(4, 4), (7, 3), (2, 9), (1, 1)], ids=str)
def test_positions_are_sampled_as_by_pytorch(shape: tuple[int, int]) -> None:
    table = np.random.default_rng(0).standard_normal((4, 4, 5)).astype(np.float32)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(table).permute(2, 0, 1)[None], shape, mode="bilinear"
    )
    found = sampled_positions(table, *shape, cubic=False)
    assert np.abs(found - expected[0].reshape(5, -1).T.numpy()).max() < 1e-5


@pytest.mark.parametrize("count", [3, 7, 20])
def test_positions_of_a_row_are_resized_as_by_pytorch(count: int) -> None:
    table = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)
    expected = torch.nn.functional.interpolate(torch.from_numpy(table).T[None], count, mode="linear")
    assert np.abs(resized_row(table, count) - expected[0].T.numpy()).max() < 1e-5


def test_grids_match_internvls() -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    generator = np.random.default_rng(0)
    for width, height in generator.integers(1, 3000, (300, 2)).tolist():
        for least, most in ((1, 12), (2, 10)):
            columns, rows = get_optimal_tiled_canvas((height, width), (448, 448), least, most)
            assert closest_grid(width, height, 448, least, most) == (rows, columns), (width, height)


def test_grids_match_llava_nexts_in_any_listed_order() -> None:
    """Among grids that show equally many pixels, the first one with the least padding wins."""
    from transformers.image_processing_utils import select_best_resolution

    generator = np.random.default_rng(0)
    grids = [(columns, rows) for columns in range(1, 5) for rows in range(1, 5)]
    for width, height in generator.integers(1, 150, (100, 2)).tolist():
        listed = [grids[index] for index in generator.permutation(len(grids))[:5]]
        sizes = [(56 * rows, 56 * columns) for columns, rows in listed]
        high, wide = select_best_resolution((height, width), sizes)
        assert best_grid(width, height, 56, listed) == (wide // 56, high // 56), (width, height, listed)


def test_blocks_are_numbered_one_after_another() -> None:
    assert block_order(2, 6, 2).tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    assert block_order(2, 2, 1).tolist() == [0, 1, 2, 3]
