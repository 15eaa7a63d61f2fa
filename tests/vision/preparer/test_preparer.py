"""The process that decodes images: its results, its limits, and its end."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import psutil
import pytest

from puna.errors import ImageError, PreparerError
from puna.model.load import load_model
from puna.vision.decoding import decode
from puna.vision.limits import ImageLimits
from puna.vision.preparer.client import Preparer
from puna.vision.tower import VisionTower
from tests.model.models.parity import original
from tests.processes import children
from tests.samples import sampled
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import file_of, picture
from tests.waiting import wait_until

LIMITS = ImageLimits()


def tower_of(name: str, folder: Path) -> VisionTower:
    config = VISION_MODELS[name]()
    layout = config.write(folder, original(config))
    vision = load_model(layout.model, projector=layout.projector).vision
    assert vision is not None
    return vision


@pytest.fixture(scope="module")
def tower(tmp_path_factory: pytest.TempPathFactory) -> VisionTower:
    return tower_of("gemma3", tmp_path_factory.mktemp("seeing"))


#: Processes of models that other tests of this run still hold.
_others: set[psutil.Process] = set()


def preparers() -> list[psutil.Process]:
    """Return the processes that the test has started and that still run."""
    return [process for process in children("vision/preparer") if process not in _others]


@pytest.fixture(autouse=True)
def others() -> None:
    _others.clear()
    _others.update(children("vision/preparer"))


@pytest.fixture
def preparer(tower: VisionTower) -> Iterator[Preparer]:
    preparer = Preparer(tower)
    yield preparer
    preparer.close()


def noise(width: int, height: int, kind: str = "JPEG", **options: Any) -> bytes:
    written = io.BytesIO()
    PIL.Image.effect_noise((width, height), 80).convert("RGB").save(written, kind, **options)
    return written.getvalue()


def plain(side: int, kind: str = "PNG", mode: str = "RGB") -> bytes:
    written = io.BytesIO()
    PIL.Image.new(mode, (side, side)).save(written, kind)
    return written.getvalue()


#: Towers with one array of pixels, an overview, an order of patches; `make test-thorough` runs the others.
SAMPLE = (
    "deepseek-ocr",
    "gemma3",
    "gemma4",
    "internvl",
    "llama4",
    "minicpmv",
    "mllama",
    "qwen25vl",
    "step 3.7",
)


@pytest.mark.slow  # except for one
@pytest.mark.parametrize("name", sampled(VISION_MODELS, SAMPLE))
def test_an_image_is_prepared_as_in_this_process(name: str, tmp_path: Path) -> None:
    tower = tower_of(name, tmp_path)
    preparer = Preparer(tower)
    for size in [(60, 40), (300, 280), (30, 200)]:
        shown = picture(3, *size)
        expected, found = tower.prepare(shown), preparer.prepare(file_of(shown), "it", LIMITS)
        assert found.decoded_pixels == size[0] * size[1]
        made = found.prepared
        assert (made.rows, made.grid) == (expected.rows, expected.grid)
        for one, other in [
            (made.pixels, expected.pixels),
            (made.overview, expected.overview),
            (made.order, expected.order),
        ]:
            assert (one is None) == (other is None)
            assert one is None or (one.dtype == other.dtype and np.array_equal(one, other))
        beside = 0 if expected.overview is None else expected.overview.size
        assert expected.pixels.size + beside <= 3.3 * tower.max_pixels  # sides are rounded
    preparer.close()


def test_a_large_jpeg_is_decoded_at_a_size_the_tower_needs(tower: VisionTower, preparer: Preparer) -> None:
    enough = 4 * tower.max_pixels
    width = height = tower.options.image_size * 8
    smaller = preparer.prepare(noise(width, height), "it", LIMITS)
    assert enough <= smaller.decoded_pixels <= width * height // 16
    shown = decode(noise(width, height, quality=95), LIMITS)
    whole = tower.prepare(shown).pixels.astype(int)
    scaled = preparer.prepare(noise(width, height, quality=95), "it", LIMITS).prepared
    assert scaled.rows == tower.options.rows
    assert np.abs(scaled.pixels.mean() - whole.mean()) < 4
    other = preparer.prepare(noise(width, height, "PNG"), "it", LIMITS)
    assert other.decoded_pixels == width * height


def test_errors_name_the_image(preparer: Preparer) -> None:
    with pytest.raises(ImageError, match="image 2 of 3 is empty"):
        preparer.prepare(b"", "image 2 of 3", LIMITS)
    with pytest.raises(ImageError, match=r"at most 1000 are decoded.*PUNA_MAX_IMAGE_MEGAPIXELS"):
        preparer.prepare(noise(100, 100), "it", replace(LIMITS, pixels=1000))
    assert len(preparers()) == 1


@pytest.mark.slow
def test_an_image_that_takes_too_long_ends_only_its_own_process(preparer: Preparer) -> None:
    large = plain(2400)
    with pytest.raises(ImageError, match=r"it takes more than 0.01 s of processor time .*, the limit"):
        preparer.prepare(large, "it", replace(LIMITS, seconds=0.01))
    with pytest.raises(ImageError, match=r"\(0.02 s for those of a request\)"):
        preparer.prepare(large, "it", replace(LIMITS, seconds_together=0.02), 0.02)
    assert preparer.prepare(large, "it", LIMITS).seconds > 0
    assert len(preparers()) == 1


@pytest.mark.slow
def test_an_image_that_takes_too_much_memory_ends_its_process(preparer: Preparer) -> None:
    large = plain(2400)
    with pytest.raises(ImageError, match="it takes more than 16 MB of memory to decode, the limit"):
        preparer.prepare(large, "it", replace(LIMITS, memory_bytes=16 << 20))
    assert preparer.prepare(large, "it", LIMITS).decoded_pixels == 2400**2


@pytest.mark.slow
def test_every_format_decodes_within_its_memory_limit(preparer: Preparer) -> None:
    side = 2500
    limits = replace(LIMITS, memory_bytes=ImageLimits.memory_bytes * side**2 // LIMITS.pixels)
    for kind, mode in [
        ("WEBP", "RGBA"), ("PNG", "RGBA"), ("PNG", "I;16"), ("PNG", "LA"), ("PNG", "P"), ("JPEG", "CMYK"),
        ("GIF", "P"), ("BMP", "RGB"),
    ]:  # fmt: skip
        assert preparer.prepare(plain(side, kind, mode), f"{kind} {mode}", limits).prepared.rows == 4


def test_decoding_can_be_stopped_and_the_next_image_gets_a_fresh_process(
    preparer: Preparer,
) -> None:
    preparer.prepare(file_of(picture(1)), "it", LIMITS)
    (process,) = preparers()
    process.suspend()
    failures: list[Exception] = []

    def ask() -> None:
        try:
            preparer.prepare(file_of(picture(2)), "it", LIMITS)
        except PreparerError as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    preparer.stop()
    asking.join()
    assert not process.is_running()
    assert preparer.prepare(file_of(picture(2)), "it", LIMITS).rows == 4
    assert len(failures) <= 1  # none if the process ended before the image came


def test_a_killed_process_is_reported(preparer: Preparer) -> None:
    preparer.prepare(file_of(picture(1)), "it", LIMITS)
    preparers()[0].kill()
    with pytest.raises(PreparerError, match="was killed, probably because memory ran out; try again"):
        preparer.prepare(file_of(picture(1)), "it", LIMITS)
    assert preparer.prepare(file_of(picture(1)), "it", LIMITS).rows == 4


def test_the_process_ends_with_its_owner(tower: VisionTower) -> None:
    preparer = Preparer(tower)
    preparer.prepare(file_of(picture(1)), "it", LIMITS)
    (process,) = preparers()
    del preparer
    wait_until(lambda: not process.is_running(), "the end of the process")


def test_a_closed_preparer_has_no_process(preparer: Preparer) -> None:
    preparer.prepare(file_of(picture(1)), "it", LIMITS)
    preparer.close()
    assert preparers() == []
    with pytest.raises(PreparerError, match="closed"):
        preparer.prepare(file_of(picture(1)), "it", LIMITS)
