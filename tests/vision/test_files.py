"""Files with a vision tower, and which towers fit which models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.chat.templates.choose import abilities
from puna.chat.templates.model_facts import facts_at, projector_for
from puna.errors import ImageError, ModelError, UnsupportedModelError
from puna.model.load import load_model
from puna.vision.pixels import CLIP_MEAN, CLIP_STD, HALVES
from tests.model.models.parity import original
from tests.tiny.converted import contents_of
from tests.tiny.llama import tiny_llama_gguf
from tests.tiny.vision.common import Layout, Tensors
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import picture


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    config = VISION_MODELS["gemma3"]()
    return config.write(tmp_path_factory.mktemp("together"), original(config))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    config = VISION_MODELS["gemma3"]()
    return config.write(tmp_path_factory.mktemp("apart"), original(config), apart=True)


def test_capabilities_include_vision_only_with_a_tower(together: Layout, apart: Layout) -> None:
    assert "vision" in abilities(facts_at(together.model)).capabilities
    assert "vision" not in abilities(facts_at(apart.model)).capabilities
    assert apart.projector is not None
    assert projector_for([apart.model, apart.projector], apart.model) == apart.projector


def test_a_tower_of_another_model_is_not_used(apart: Layout, tmp_path: Path) -> None:
    llama = tiny_llama_gguf(tmp_path / "llama.gguf")
    assert apart.projector is not None
    assert projector_for([apart.projector], llama) is None
    with pytest.raises(UnsupportedModelError, match="of type 'gemma3' is for gemma3, not for 'llama'"):
        load_model(llama, projector=apart.projector)
    with pytest.raises(UnsupportedModelError, match="is not a projector: its architecture is 'llama'"):
        load_model(llama, projector=llama)


DAMAGE = {
    "no divisor": ({"vision.attention.head_count": 7}, "is 7, which does not divide the 48 values"),
    "many layers": ({"vision.block_count": 2**30}, "tensors of only 2 layers"),
    "few layers": ({"vision.block_count": 1}, "there are tensors of layer 1"),
    "large images": ({"vision.image_size": 2**30}, "'gemma3.vision.image_size' is"),
    "other patches": ({"vision.patch_size": 7}, "'v.patch_embedding.weight' has 48x3x14x14 values"),
    "no square": ({"mm.tokens_per_image": 5}, "an image becomes 5 tokens, which is not a square"),
    "two channels": ({"vision.num_channels": 2}, "images with 2 channels"),
    "odd means": ({"vision.image_mean": [1.0]}, "should be three numbers"),
}


def changed(layout: Layout, keys: dict[str, Any], tensors: Tensors | None = None) -> Layout:
    """Return the layout with other `keys`, and more `tensors`, in the file with the tower."""
    path = layout.projector or layout.model
    found = contents_of(path)
    found.set(keys)
    found.tensors |= tensors or {}
    found.write(path)
    return layout


@pytest.mark.parametrize("name", DAMAGE, ids=lambda name: name.replace(" ", "-"))
def test_invalid_sizes_are_refused(name: str, tmp_path: Path) -> None:
    metadata, complaint = DAMAGE[name]
    config = VISION_MODELS["gemma3"]()
    layout = changed(config.write(tmp_path, original(config)), metadata)
    with pytest.raises(ModelError, match=complaint):
        load_model(layout.model)


LISTS = {
    "speaks from nowhere": ("qwen3vl", {"vision.deepstack_visual_indexes": [0, 9]}, "from 0 to 3 in order"),
    "speaks twice": ("qwen3vl", {"vision.deepstack_visual_indexes": [2, 2]}, "from 0 to 3 in order"),
    "speaks in words": ("qwen3vl", {"vision.deepstack_visual_indexes": "all"}, "should list layers"),
    "kept from nowhere": ("mllama", {"vision.intermediate_layers_indices": [7]}, "from 0 to 2 in order"),
    "a thousand tiles": ("mllama", {"vision.max_num_tiles": 1000}, "more than any model has"),
    "no global layers": ("mllama", {"vision.global.block_count": 1}, "there are tensors of layer 1"),
    "odd shuffle": ("llama4", {"vision.pixel_shuffle_ratio": 0.3}, "one over a number of patches"),
    "shuffle of three": ("llama4", {"vision.projector.scale_factor": 3}, "does not divide the 4 patches"),
    "too large a block": ("qwen2vl", {"vision.spatial_merge_size": 99}, "more than any model has"),
    "endless pictures": ("glmocr", {"vision.max_pixels": 2**30}, "'glmocr.vision.max_pixels' is"),
    "no room for a row": ("gemma4", {"vision.image_max_pixels": 5}, "one row takes 28 x 28 pixels"),
    "rows of no square": ("gemma3n", {"mm.tokens_per_image": 9}, "do not become 3 x 3 rows"),
    "few sections": ("qwen3vl", {"mrope_sections": [4, 2, 1]}, "should divide the 8 pairs"),
}


@pytest.mark.parametrize("name", LISTS, ids=lambda name: name.replace(" ", "-"))
def test_towers_name_their_own_invalid_settings(name: str, tmp_path: Path) -> None:
    kind, metadata, complaint = LISTS[name]
    config = VISION_MODELS[kind]()
    layout = changed(config.write(tmp_path, original(config)), metadata)
    with pytest.raises(ModelError, match=complaint):
        load_model(layout.model, projector=layout.projector)


#: Normalisation of pictures in training, by the settings published with the models; some of Ollama's files
#: omit it.
AS_IT_IS = (0.0, 0.0, 0.0)
STD = {HALVES: HALVES, CLIP_MEAN: CLIP_STD, AS_IT_IS: (1.0, 1.0, 1.0)}
NORMALISED = {
    "gemma3": HALVES, "gemma3n": AS_IT_IS, "gemma4": HALVES, "glmocr": CLIP_MEAN, "llama4": HALVES,
    "llava": CLIP_MEAN, "mistral3": CLIP_MEAN, "mllama": CLIP_MEAN, "qwen25vl": CLIP_MEAN,
    "qwen2vl": CLIP_MEAN, "qwen35": HALVES, "qwen3vl": HALVES,
}  # fmt: skip


@pytest.mark.parametrize("apart", [False, True], ids=["one file", "apart"])
@pytest.mark.parametrize("kind", NORMALISED)
def test_pictures_are_normalised_as_in_training(kind: str, apart: bool, tmp_path: Path) -> None:
    config = VISION_MODELS[kind]()
    layout = config.write(tmp_path, original(config), apart=apart)
    options = load_model(layout.model, projector=layout.projector).vision.options
    assert options.mean == pytest.approx(NORMALISED[kind])
    assert options.std == pytest.approx(STD[NORMALISED[kind]])


def test_audio_towers_are_ignored(tmp_path: Path) -> None:
    config = VISION_MODELS["gemma4, small"]()
    sound = {"a.blk.0.ln1.weight": np.ones(4, np.float32), "mm.a.fc.weight": np.ones((4, 4), np.float32)}
    for apart in (False, True):
        layout = changed(config.write(tmp_path, original(config), apart=apart), {}, sound)
        assert load_model(layout.model, projector=layout.projector).vision is not None


def test_gemma_4_centres_normalised_pixels(tmp_path: Path) -> None:
    config = VISION_MODELS["gemma4"]()
    keys = {"vision.image_mean": [0.1, 0.0, 0.5], "vision.image_std": [1.0, 0.5, 0.25]}
    layout = changed(config.write(tmp_path, original(config), apart=True), keys)
    options = load_model(layout.model, projector=layout.projector).vision.options
    pixels = np.array([[0.3, 0.6, 0.9]])
    expected = 2 * (pixels - keys["vision.image_mean"]) / keys["vision.image_std"] - 1
    assert (pixels - options.mean) / options.std == pytest.approx(expected)


def test_markers_are_found_whatever_their_type(tmp_path: Path) -> None:
    config = VISION_MODELS["gemma4"]()
    layout = config.write(tmp_path, original(config))
    control = load_model(layout.model)
    kinds = contents_of(layout.model).keys["tokenizer.ggml.token_type"]
    for kind in (1, 4):  # ordinary and user-defined tokens
        others = [kind if control.tokenizer.token(id) in config.markers else each
                  for id, each in enumerate(kinds)]  # fmt: skip
        assert others != kinds
        found = load_model(changed(layout, {"tokenizer.ggml.token_type": others}).model)
        assert found.vision._begin == control.vision._begin
        assert found.vision._end == control.vision._end


def test_a_picture_beyond_the_table_of_positions_is_refused(tmp_path: Path) -> None:
    config = VISION_MODELS["gemma4"]()  # positions for 32 patches along a side
    layout = changed(config.write(tmp_path, original(config)), {"vision.image_max_pixels": 40 * 28 * 28})
    tower = load_model(layout.model).vision
    assert tower.prepare(picture(1, 80, 60)).grid == (5, 7)
    assert tower.prepare(picture(1, 80, 20)).grid == (3, 12)
    with pytest.raises(ImageError, match=r"300 x 10 .* be read as 68 x 2 patches, .* for 32 along a side"):
        tower.prepare(picture(1, 300, 10))
