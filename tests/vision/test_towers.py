"""Completeness: every tower has a tiny model with every case of test_parity.py."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from puna.architectures import ARCHITECTURES
from puna.gguf import open_gguf
from puna.vision import registry
from puna.vision.towers.deepseek_ocr import DeepSeekOcrVision
from puna.vision.towers.gemma4 import Gemma4Vision
from puna.vision.towers.lfm2 import Lfm2Vision
from puna.vision.towers.llama4 import Llama4Vision
from puna.vision.towers.minicpmv import SlicingVision
from puna.vision.towers.mllama import MllamaVision
from puna.vision.towers.step3 import Step3Vision
from tests.model.models.parity import original
from tests.tiny.audio.models import HEARING_MODELS
from tests.tiny.vision.models import VISION_MODELS
from tests.vision import test_pixels, test_tiles

#: Towers whose pixels are compared with a reference processor's in tests/vision.
COMPARED = (
    *(tower for tower, *_ in (test_pixels.PROCESSORS | test_tiles.PROCESSORS).values()),
    DeepSeekOcrVision, Gemma4Vision, Lfm2Vision, Llama4Vision, MllamaVision, SlicingVision,
    Step3Vision,
)  # fmt: skip


def towers() -> set[type]:
    """Return every supported tower."""
    named = [record.tower for record in ARCHITECTURES.values() if record.tower]
    paths = [path.split(":") for path in (*named, *registry._PROJECTORS.values())]
    return {getattr(importlib.import_module(f"puna.vision.towers.{module}"), name) for module, name in paths}


@pytest.mark.slow
def test_every_tower_has_a_tiny_model(tmp_path: Path) -> None:
    found = set()
    omni = {name: make for name, make in HEARING_MODELS.items() if "omni" in name}
    for name, make in (VISION_MODELS | omni).items():
        for apart in (False, True):
            folder = tmp_path / f"{name} {apart}"
            folder.mkdir()
            layout = make().write(folder, original(make()), apart=apart)
            with open_gguf(layout.model) as text:
                if layout.projector is None:
                    found.add(registry.tower_in(text))
                    continue
                with open_gguf(layout.projector) as file:
                    found.add(registry.tower_beside(file, text.architecture))
    assert found == towers()


def test_the_pixels_of_every_tower_are_compared() -> None:
    assert {tower.prepare for tower in towers()} == {tower.prepare for tower in COMPARED}
