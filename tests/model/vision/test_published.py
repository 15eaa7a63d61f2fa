"""Vision towers in files laid out as other converters write them, with every key that those files have.

Names, order and values are those of llama.cpp's converters (`convert_hf_to_gguf.py --mmproj`, and the older
ones for CLIP) and of Ollama's (`convert/` at f63eea3d2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from puna.errors import ModelError
from puna.model.load import load_model
from tests.converted import Contents, contents_of
from tests.model.models.parity import original
from tests.model.vision.seeing import Pair, check_scores, picture
from tests.tiny import TinyLlama
from tests.tiny_vision.common import CLIPS, Layout
from tests.tiny_vision.llava import TinyLlava
from tests.tiny_vision.llava_next import GRIDS, TinyLlavaNext


def rewritten(layout: Layout, change: Callable[[Contents], None]) -> Layout:
    """Return the layout, its file with the tower as `change` leaves it."""
    path = layout.projector or layout.model
    found = contents_of(path)
    change(found)
    found.write(path)
    return layout


def check_agrees(config: Any, layout: Layout, theirs: Any) -> None:
    pair = Pair(load_model(layout.model, projector=layout.projector), theirs, config)
    check_scores(pair, pair.run(), 0, pair.inputs(pair.run(), "hello [img-0] world", picture(6, 70, 40)))


def first_llava(config: TinyLlava, layers: int, more: Mapping[str, Any]) -> Callable[[Contents], None]:
    """Lay a tower out as llama.cpp's first converter for CLIP did, with that many of its layers."""

    def change(found: Contents) -> None:
        found.keys = {
            "has_text_encoder": False, "has_vision_encoder": True, "has_llava_projector": True,
            "general.file_type": 0, "general.name": "tiny", "general.description": "image encoder for LLaVA",
            "projector_type": "mlp", "vision.image_size": config.image_size,
            "vision.patch_size": config.patch_size, "vision.embedding_length": config.hidden,
            "vision.feed_forward_length": config.feed_forward, "vision.projection_dim": 48,
            "vision.attention.head_count": config.heads, "vision.attention.layer_norm_epsilon": 1e-5,
            "vision.block_count": layers, **more,
            "vision.image_mean": CLIPS["image_mean"], "vision.image_std": CLIPS["image_std"],
            "use_gelu": False,
        }  # fmt: skip
        turned = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
        tensors = {}
        for name, array in found.tensors.items():
            parts = name.split(".")
            if not name.startswith("v.blk."):
                tensors[name] = array
            elif int(parts[2]) < layers:
                parts[3] = turned.get(parts[3], parts[3])
                tensors[".".join(parts)] = array
        found.tensors = tensors

    return change


#: Layers of CLIP, which of their states is projected, and how many of them the file has.
ERAS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "last layer left out": (4, -2, 3, {}),
    "last layer left out of an odd number": (5, -2, 4, {}),
    "layer named": (5, -2, 4, {"vision.feature_layer": [4]}),
    "third layer from the end": (5, -3, 3, {"vision.feature_layer": [3]}),
    "layer named of a whole CLIP": (5, -3, 5, {"vision.feature_layer": [3]}),
    "last layer": (4, -1, 4, {"vision.feature_layer": [4]}),
    "counted from the first": (5, 2, 2, {"vision.feature_layer": [2]}),
}


@pytest.mark.parametrize("era", ERAS, ids=lambda name: name.replace(" ", "-"))
def test_llava_takes_the_layer_that_its_converter_meant(era: str, tmp_path: Path) -> None:
    layers, feature, kept, more = ERAS[era]
    config = TinyLlava(TinyLlama(), layers=layers, feature_layer=feature, seed=3)
    theirs = original(config)
    layout = rewritten(config.write(tmp_path, theirs), first_llava(config, kept, more))
    check_agrees(config, layout, theirs)


@pytest.mark.parametrize("layers", [4, 5])
@pytest.mark.parametrize("feature", [-3, -2, -1, 2])
def test_a_llava_of_ours_says_which_layer_is_projected(layers: int, feature: int, tmp_path: Path) -> None:
    config = TinyLlava(TinyLlama(), layers=layers, feature_layer=feature, seed=3)
    theirs = original(config)
    layout = config.write(tmp_path, theirs)
    assert layout.projector is not None
    named = feature if feature > 0 else layers + 1 + feature
    assert contents_of(layout.projector).keys["vision.feature_layer"] == [named]
    check_agrees(config, layout, theirs)


def test_without_any_word_the_last_of_an_even_number_of_layers_is_not_used(tmp_path: Path) -> None:
    for layers in (4, 3):
        config = TinyLlava(TinyLlama(), layers=layers)
        folder = tmp_path / str(layers)
        folder.mkdir()
        layout = config.write(folder, original(config))
        rewritten(layout, lambda found: found.say({"vision.feature_layer": None}))
        assert load_model(layout.model, projector=layout.projector).vision.options.used_layers == 3


WRONG_LAYERS = {
    "several layers": ([2, 3], "names 2 layers"),
    "no such layer": ([9], "is 9, but there are 4 layers"),
    "no layer": ([], "names 0 layers"),
    "words": ("last", "should name a layer"),
}


@pytest.mark.parametrize("name", WRONG_LAYERS, ids=lambda name: name.replace(" ", "-"))
def test_layers_that_cannot_be_projected_are_refused(name: str, tmp_path: Path) -> None:
    value, complaint = WRONG_LAYERS[name]
    config = TinyLlava(TinyLlama())
    layout = config.write(tmp_path, original(config))
    rewritten(layout, lambda found: found.keys.update({"vision.feature_layer": value}))
    with pytest.raises(ModelError, match=complaint):
        load_model(layout.model, projector=layout.projector)


def test_llava_next_as_the_first_converter_laid_it_out(tmp_path: Path) -> None:
    config = TinyLlavaNext(TinyLlama())
    theirs = original(config)
    more = {
        "vision.image_grid_pinpoints": [size for grid in GRIDS for size in grid],
        "vision.image_crop_resolution": 56, "vision.image_aspect_ratio": "anyres",
        "vision.image_split_resolution": 56, "vision.mm_patch_merge_type": "spatial_unpad",
        "vision.mm_projector_type": "mlp2x_gelu",
    }  # fmt: skip
    layout = rewritten(config.write(tmp_path, theirs), first_llava(config, 3, more))
    check_agrees(config, layout, theirs)
