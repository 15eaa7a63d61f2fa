"""Vision towers in other converters' layouts, with every key of their files.

Names, order and values are those of llama.cpp's converters (`convert_hf_to_gguf.py --mmproj`, and the older
ones for CLIP) and of Ollama's (`convert/` at f63eea3d2).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from puna.convert import convert, convert_tower
from puna.convert.config import Config
from puna.convert.registry import towers_of
from puna.errors import ConversionError, ModelError, UnsupportedModelError
from puna.model.load import load_model
from tests.model.models.parity import original
from tests.tiny.converted import Contents, contents_of
from tests.tiny.llama import TinyLlama
from tests.tiny.vision.common import CLIPS, Layout
from tests.tiny.vision.llava import TinyLlava
from tests.tiny.vision.llava_next import GRIDS, TinyLlavaNext
from tests.tiny.vision.minicpmv import TinyMiniCPMV
from tests.tiny.vision.models import VISION_MODELS
from tests.vision.seeing import Pair, check_scores, picture


def rewritten(layout: Layout, change: Callable[[Contents], None]) -> Layout:
    """Return the layout after `change` of the tower's contents."""
    path = layout.projector or layout.model
    found = contents_of(path)
    change(found)
    found.write(path)
    return layout


def check_agrees(config: Any, layout: Layout, theirs: Any) -> None:
    pair = Pair(load_model(layout.model, projector=layout.projector), theirs, config)
    check_scores(pair, pair.run(), 0, pair.inputs(pair.run(), "hello [img-0] world", picture(6, 70, 40)))


def first_llava(config: TinyLlava, layers: int, more: Mapping[str, Any]) -> Callable[[Contents], None]:
    """Return a change to the layout of llama.cpp's first CLIP converter, with `layers` of its layers."""

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


#: Layers of CLIP, the layer that is projected, and the number of layers in the file.
ERAS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "last layer left out": (4, -2, 3, {}),
    "last layer left out of an odd number": (5, -2, 4, {}),
    "layer named": (5, -2, 4, {"vision.feature_layer": [4]}),
    "third layer from the end": (5, -3, 3, {"vision.feature_layer": [3]}),
    "layer named of a whole CLIP": (5, -3, 5, {"vision.feature_layer": [3]}),
    "last layer": (4, -1, 4, {"vision.feature_layer": [4]}),
    "counted from the first": (5, 2, 2, {"vision.feature_layer": [2]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS, ids=lambda name: name.replace(" ", "-"))
def test_llava_projects_the_layer_its_converter_intended(era: str, tmp_path: Path) -> None:
    layers, feature, kept, more = ERAS[era]
    config = TinyLlava(TinyLlama(), layers=layers, feature_layer=feature, seed=3)
    theirs = original(config)
    layout = rewritten(config.write(tmp_path, theirs), first_llava(config, kept, more))
    check_agrees(config, layout, theirs)


@pytest.mark.parametrize("layers", [4, 5])
@pytest.mark.parametrize(
    "feature", [-2, *(pytest.param(layer, marks=pytest.mark.slow) for layer in (-3, -1, 2))]
)
def test_our_converter_states_llavas_projected_layer(layers: int, feature: int, tmp_path: Path) -> None:
    config = TinyLlava(TinyLlama(), layers=layers, feature_layer=feature, seed=3)
    theirs = original(config)
    layout = config.write(tmp_path, theirs)
    assert layout.projector is not None
    named = feature if feature > 0 else layers + 1 + feature
    assert contents_of(layout.projector).keys["vision.feature_layer"] == [named]
    check_agrees(config, layout, theirs)


def test_the_last_of_an_even_number_of_layers_is_unused_by_default(tmp_path: Path) -> None:
    for layers in (4, 3):
        config = TinyLlava(TinyLlama(), layers=layers)
        folder = tmp_path / str(layers)
        folder.mkdir()
        layout = config.write(folder, original(config))
        rewritten(layout, lambda found: found.set({"vision.feature_layer": None}))
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


def test_llava_next_agrees_in_the_first_converters_layout(tmp_path: Path) -> None:
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


#: Versions of MiniCPM-V and MiniCPM-o by their names in files.
MINICPM = {"2.5": 2, "2.6": 3, "4.0": 5, "4.5": 6}


@pytest.mark.slow
@pytest.mark.parametrize("version", MINICPM)
def test_minicpmv_agrees_in_its_converters_layout(version: str, tmp_path: Path) -> None:
    config = TinyMiniCPMV(TinyLlama(hidden=256), version=version)
    theirs = original(config)

    def change(found: Contents) -> None:
        found.keys = {
            "has_text_encoder": False, "has_vision_encoder": True, "has_minicpmv_projector": True,
            "general.file_type": 0, "general.description": "image encoder for MiniCPM-V",
            "projector_type": "resampler", "minicpmv_version": MINICPM[version],
            "minicpmv_query_num": config.queries, "vision.image_size": config.image_size,
            "vision.patch_size": config.patch_size, "vision.embedding_length": config.hidden,
            "vision.feed_forward_length": config.feed_forward, "vision.projection_dim": 0,
            "vision.attention.head_count": config.heads, "vision.attention.layer_norm_epsilon": 1e-6,
            "vision.block_count": config.layers, "vision.image_mean": [0.5] * 3,
            "vision.image_std": [0.5] * 3, "use_gelu": True,
        }  # fmt: skip

    check_agrees(config, rewritten(config.write(tmp_path, theirs), change), theirs)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"minicpmv_version": 7}, "version 7 of MiniCPM-V is not supported"),
        ({"minicpmv_query_num": 64}, "'clip.minicpmv_query_num' is 64"),
    ],
)
def test_a_minicpmv_that_contradicts_its_file_is_refused(
    keys: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    config = TinyMiniCPMV(TinyLlama(hidden=256))
    layout = rewritten(config.write(tmp_path, original(config)), lambda found: found.set(keys))
    with pytest.raises(ModelError, match=complaint):
        load_model(layout.model, projector=layout.projector)


#: The keys that llama.cpp's converter writes for every tower, in its order.
ALWAYS = (
    "has_vision_encoder", "vision.projection_dim", "vision.image_size", "vision.patch_size",
    "vision.embedding_length", "vision.feed_forward_length", "vision.block_count",
    "vision.attention.head_count", "vision.image_mean", "vision.image_std",
)  # fmt: skip
EPS = "vision.attention.layer_norm_epsilon"
#: Its other keys for each kind, beside the epsilon of norms, with the values of the tiny models.
OWN: dict[str, dict[str, Any]] = {
    "deepseek-ocr": {
        "projector_type": "deepseekocr", "use_gelu": True, "vision.window_size": 14,
        "vision.preproc_min_tiles": 2, "vision.preproc_max_tiles": 9,
        "vision.sam.block_count": 3, "vision.sam.embedding_length": 32, "vision.sam.head_count": 4,
    },
    "deepseek-ocr 2": {
        "projector_type": "deepseekocr2", "use_gelu": True, "vision.window_size": 3,
        "vision.attention.head_count_kv": 2, "vision.preproc_min_tiles": 2, "vision.preproc_max_tiles": 6,
        "vision.sam.block_count": 3, "vision.sam.embedding_length": 32, "vision.sam.head_count": 4,
    },
    "dots.ocr": {
        "projector_type": "dots_ocr", "use_silu": True, "vision.projector.scale_factor": 2,
        "vision.image_min_pixels": 784, "vision.image_max_pixels": 12544,
    },
    "gemma3": {"projector_type": "gemma3", "use_gelu": True},
    "gemma3n": {
        "vision.projector_type": "gemma3nv", "has_audio_encoder": True, "audio.projector_type": "gemma3na",
        "audio.block_count": 2, "audio.embedding_length": 48, "audio.feed_forward_length": 192,
        "audio.attention.head_count": 4, "audio.attention.layer_norm_epsilon": pytest.approx(1e-5),
        "audio.num_mel_bins": 20, "audio.projection_dim": 64,
    },
    "gemma4": {"vision.projector_type": "gemma4v"},
    "gemma4 12b": {"vision.projector_type": "gemma4uv"},
    "glm4v": {"projector_type": "glm4v", "use_silu": True},
    "glmocr": {"projector_type": "glm4v", "use_silu": True},
    "idefics3": {
        "projector_type": "idefics3", "vision.projector.scale_factor": 2, "use_gelu": True,
        "vision.preproc_image_size": 112,
    },
    "internvl": {
        "projector_type": "internvl", "use_gelu": True, "vision.projector.scale_factor": 2,
        "vision.preproc_min_tiles": 1, "vision.preproc_max_tiles": 4,
    },
    "kimi k2.5": {
        "projector_type": "kimik25", "use_gelu": True, "vision.projector.scale_factor": 2,
        "vision.image_min_pixels": 8 * 14**2, "vision.image_max_pixels": 48 * 14**2,
    },
    "lfm2": {"projector_type": "lfm2", "vision.projector.scale_factor": 2, "use_gelu": True},
    "lighton": {"projector_type": "lightonocr", "use_silu": True, "vision.spatial_merge_size": 2},
    "llama4": {"projector_type": "llama4", "vision.projector.scale_factor": 2, "use_gelu": True},
    "minicpmv 4.6": {
        "projector_type": "minicpmv4_6", "vision.projector.scale_factor": 4,
        "vision.wa_layer_indexes": [1], "use_gelu": True,
    },
    "minicpmv": {
        "projector_type": "resampler", "minicpmv_version": 5, "minicpmv_query_num": 6, "use_gelu": True,
    },
    "minimax m3": {"projector_type": "minimax_m3", "use_gelu": True, "vision.spatial_merge_size": 2},
    "mistral3": {"projector_type": "pixtral", "use_silu": True, "vision.spatial_merge_size": 2},
    "paddleocr": {"projector_type": "paddleocr", "use_gelu": True},
    "qwen25vl": {"projector_type": "qwen2.5vl_merger", "use_silu": True, "vision.n_wa_pattern": 2},
    "qwen2vl": {"projector_type": "qwen2vl_merger"},
    "qwen35": {
        "projector_type": "qwen3vl_merger", "use_gelu": True, "vision.spatial_merge_size": 2,
        "vision.is_deepstack_layers": [False] * 4,
    },
    "qwen3vl": {
        "projector_type": "qwen3vl_merger", "use_gelu": True, "vision.spatial_merge_size": 2,
        "vision.is_deepstack_layers": [True, False, True, False],
    },
    "step 3.7": {
        "projector_type": "step3vl", "vision.projector.scale_factor": 4, "vision.preproc_image_size": 160,
    },
}  # fmt: skip
#: Keys that follow from the sizes of tiny models, and that published files leave out.
BEYOND = {
    "deepseek-ocr": {"vision.projector.scale_factor"},
    "gemma3": {"vision.projector.scale_factor"},
    "gemma4": {"vision.projector.scale_factor", "vision.image_max_pixels"},
    "gemma4 12b": {"vision.projector.scale_factor", "vision.image_max_pixels"},
    "qwen25vl": {"vision.window_size"},
    "step 3.7": {"vision.tile_size"},
}


@pytest.mark.parametrize("kind", OWN)
def test_our_converter_writes_the_same_keys_as_llama_cpps(kind: str, tmp_path: Path) -> None:
    config = VISION_MODELS[kind]()
    assert convert_tower(config.save(tmp_path / "model", original(config)), tmp_path / "tower.gguf")
    keys = contents_of(tmp_path / "tower.gguf").keys
    own = {key: value for key, value in keys.items() if not key.startswith("general.")}
    assert {key: own.get(key) for key in OWN[kind]} == OWN[kind]
    assert set(own) - BEYOND.get(kind, set()) == {*ALWAYS, EPS, *OWN[kind]}


def with_settings(config: Any, folder: Path, settings: Mapping[str, Any]) -> Path:
    """Return a checkpoint with other settings, named "part.name", or "pictures.name" for preprocessing.

    None removes one.
    """
    checkpoint = config.save(folder / "model", original(config))
    for name, value in settings.items():
        *part, short = name.split(".")
        path = checkpoint / ("preprocessor_config.json" if part == ["pictures"] else "config.json")
        found = json.loads(path.read_text())
        inner = found
        for each in [] if part == ["pictures"] else part:
            inner = inner.setdefault(each, {})
        inner[short] = value
        if value is None:
            del inner[short]
        path.write_text(json.dumps(found))
    return checkpoint


#: Settings that published models leave at the default, and the keys that files have for other values.
CARRIED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "pools": ("gemma4", {"vision_config.pooling_kernel_size": 4}, {"vision.projector.scale_factor": 4}),
    "the usual pools": (
        "gemma4", {"vision_config.pooling_kernel_size": 3}, {"vision.projector.scale_factor": None},
    ),
    "rows": ("gemma4", {"pictures.max_soft_tokens": 70}, {"vision.image_max_pixels": 70 * 28 * 28}),
    "windows": ("qwen25vl", {"vision_config.window_size": 84}, {"vision.window_size": 84}),
    "the usual windows": ("qwen25vl", {"vision_config.window_size": 112}, {"vision.window_size": None}),
    "merges": ("qwen25vl", {"vision_config.spatial_merge_size": 4}, {"vision.spatial_merge_size": 4}),
    "merges of glm": ("glm4v", {"vision_config.spatial_merge_size": 4}, {"vision.spatial_merge_size": 4}),
    "epsilon of the code": ("qwen3vl", {"text_config.rms_norm_eps": 1e-5}, {EPS: pytest.approx(1e-6)}),
    "rotation": (
        "mistral3", {"vision_config.rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"vision.rope.freq_base": 500.0},
    ),
    "no normalising": (
        "gemma3", {"pictures.do_normalize": False},
        {"vision.image_mean": [0.0] * 3, "vision.image_std": [1.0] * 3},
    ),
    "longest edge": ("lighton", {"pictures.size": {"longest_edge": 84}}, {"vision.longest_edge": 84}),
    "merges of dots.ocr": (
        "dots.ocr", {"vision_config.spatial_merge_size": 4}, {"vision.projector.scale_factor": 4},
    ),
    "tiles of deepseek": ("deepseek-ocr 2", {"pictures.max_patches": 4}, {"vision.preproc_max_tiles": 4}),
    "rotation of deepseek": (
        "deepseek-ocr 2",
        {"vision_config.encoder_config.rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"vision.rope.freq_base": 500.0},
    ),
    "merges of paddle": (
        "paddleocr", {"vision_config.spatial_merge_size": 4}, {"vision.spatial_merge_size": 4},
    ),
    "rotation of paddle": (
        "paddleocr", {"vision_config.rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}},
        {"vision.rope.freq_base": 500.0},
    ),
    "merges of minimax": (
        "minimax m3", {"vision_config.spatial_merge_size": 4}, {"vision.spatial_merge_size": 4},
    ),
    "merges of minimax, as published": (
        "minimax m3",
        {
            "vision_config.spatial_merge_size": None,
            "vision_config.img_token_compression_config": {"spatial_merge_size": 4},
        },
        {"vision.spatial_merge_size": 4},
    ),
    "rotation of minimax": (
        "minimax m3", {"vision_config.rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}},
        {"vision.rope.freq_base": 500.0},
    ),
    "sizes of minimax": (
        "minimax m3", {"pictures.size": {"shortest_edge": 6272, "longest_edge": 25088}},
        {"vision.image_min_pixels": 6272, "vision.image_max_pixels": 25088},
    ),
    "sizes of minimax, as published": (
        "minimax m3", {"pictures.size": [672, 672]},
        {"vision.image_min_pixels": None, "vision.image_max_pixels": None},
    ),
    "rotation of step": (
        "step 3.7", {"vision_config.rope_parameters": {"rope_type": "axial", "rope_theta": 500.0}},
        {"vision.rope.freq_base": 500.0},
    ),
    "tiles of step": ("step 3.7", {}, {"vision.tile_size": 32, "vision.image_size": 48}),
    "the usual tiles of step": ("step 3.7", {"pictures.patch_size": 504}, {"vision.tile_size": None}),
    "sizes of step, as published": (
        "step 3.7",
        {
            "vision_config.mlp_ratio": 8960 / 1536, "vision_config.hidden_size": None,
            "vision_config.width": 48, "pictures.size": None, "pictures.image_mean": None,
        },
        {
            "vision.embedding_length": 48, "vision.feed_forward_length": 280, "vision.image_size": 40,
            "vision.image_mean": pytest.approx(CLIPS["image_mean"]),
        },
    ),
    "tiles": ("lfm2", {"pictures.max_tiles": 6}, {"vision.max_tiles": 6, "vision.tile_size": None}),
    "sizes of pictures": (
        "qwen2vl", {"pictures.min_pixels": 6272, "pictures.max_pixels": 25088},
        {"vision.image_min_pixels": 6272, "vision.image_max_pixels": 25088},
    ),
    "sizes as edges": (
        "qwen3vl", {"pictures.size": {"shortest_edge": 65536, "longest_edge": 1 << 24}},
        {"vision.image_min_pixels": 65536, "vision.image_max_pixels": 1 << 24},
    ),
    "sizes by both names": (
        "qwen25vl",
        {"pictures.max_pixels": 25088, "pictures.size": {"shortest_edge": 6272, "longest_edge": 99999}},
        {"vision.image_min_pixels": 6272, "vision.image_max_pixels": 25088},
    ),
    "sizes of two frames": (
        "glm4v", {"pictures.size": {"shortest_edge": 12544, "longest_edge": 25088}},
        {"vision.image_min_pixels": 12544, "vision.image_max_pixels": 25088},
    ),
    "rows of a picture": ("lfm2", {"max_image_tokens": 128}, {"vision.max_image_tokens": 128}),
}  # fmt: skip


@pytest.mark.parametrize("name", CARRIED, ids=lambda name: name.replace(" ", "-"))
def test_unusual_settings_are_written(name: str, tmp_path: Path) -> None:
    kind, settings, expected = CARRIED[name]
    assert convert_tower(with_settings(VISION_MODELS[kind](), tmp_path, settings), tmp_path / "tower.gguf")
    keys = contents_of(tmp_path / "tower.gguf").keys
    assert {key: keys.get(key) for key in expected} == expected


@pytest.mark.parametrize("kind", ["qwen2vl", "qwen25vl", "qwen3vl", "qwen35", "glm4v", "glmocr"])
def test_pictures_get_the_sizes_of_the_published_processor(kind: str, tmp_path: Path) -> None:
    """transformers' image processors choose the same sizes for the same preprocessor_config.json."""
    from transformers import Glm4vImageProcessorPil, Qwen2VLImageProcessorPil

    config, edges = VISION_MODELS[kind](), {"shortest_edge": 12544, "longest_edge": 50176}
    folder = with_settings(config, tmp_path, {"pictures.size": edges})
    layout = Layout(tmp_path / "text.gguf", tmp_path / "tower.gguf")
    assert layout.projector is not None
    convert(folder, layout.model)
    assert convert_tower(folder, layout.projector)
    tower = load_model(layout.model, projector=layout.projector).vision
    assert tower is not None
    processor = (Glm4vImageProcessorPil if kind.startswith("glm") else Qwen2VLImageProcessorPil)(
        size=edges, patch_size=config.patch_size
    )
    for width, height in [(400, 300), (30, 40), (120, 90)]:
        shown = picture(1, width, height)
        grid = [int(n) // 2 for n in processor(shown, return_tensors="np")["image_grid_thw"][0][1:]]
        assert list(tower.prepare(shown).grid) == grid, (width, height)


#: Settings that no file can state.
DROPPED: dict[str, tuple[str, dict[str, Any], str]] = {
    "exact gelu": ("gemma3", {"vision_config.hidden_act": "gelu"}, "can only have 'gelu_pytorch_tanh'"),
    "silu": ("llava", {"vision_config.hidden_act": "silu"}, "can only have 'quick_gelu' or 'gelu'"),
    "the class's row": ("llava", {"vision_feature_select_strategy": "full"}, "can only have 'default'"),
    "several layers": ("llava", {"vision_feature_layer": [-2, -5]}, "a file names one of 4 layers"),
    "no layer": ("llava", {"vision_feature_layer": 9}, "a file names one of 4 layers"),
    "epsilon of the projector": ("lighton", {"text_config.rms_norm_eps": 1e-5}, "can only have 1e-06"),
    "epsilon of Mistral's projector": ("mistral3", {"text_config.rms_norm_eps": 1e-6}, "can only have 1e-05"),
    "epsilon of sam": (
        "deepseek-ocr 2", {"vision_config.sam_config.layer_norm_eps": 1e-5}, "can only have 1e-06",
    ),
    "one view": ("deepseek-ocr 2", {"pictures.crop_to_patches": False}, "can only have True"),
    "exact gelu of kimi": ("kimi k2.5", {"vision_config.hidden_act": "gelu"}, "can only have 'gelu_pyt"),
    "epsilon of kimi": ("kimi k2.5", {"projection_layer_norm_eps": 1e-6}, "epsilon is 1e-06"),
    "long sides of kimi": ("kimi k2.5", {"pictures.size": {"max_height": 64}}, "64 patches along a side"),
    "rows of kimi": ("kimi k2.5", {"vision_config.merge_kernel_size": [2, 1]}, "not the sides of a square"),
    "silu of minimax": ("minimax m3", {"vision_config.hidden_act": "silu"}, "can only have 'gelu'"),
    "frames of minimax": ("minimax m3", {"vision_config.temporal_patch_size": 1}, "can only have 2"),
    "flat rotation of minimax": ("minimax m3", {"vision_config.rope_mode": "2d"}, "can only have '3d'"),
    "class token of step": ("step 3.7", {"vision_config.use_cls_token": True}, "can only have False"),
    "gelu of step": ("step 3.7", {"vision_config.hidden_act": "gelu"}, "can only have 'quick_gelu' or"),
    "steps of step": ("step 3.7", {"understand_projector_stride": 1}, "can only have 2"),
    "frames of dots.ocr": ("dots.ocr", {"vision_config.temporal_patch_size": 2}, "can only have 1"),
    "exact gelu of paddle": ("paddleocr", {"vision_config.hidden_act": "gelu"}, "only have 'gelu_pyt"),
    "an earlier layer": ("mistral3", {"vision_feature_layer": -2}, "can only have -1"),
    "another projector": ("lfm2", {"projector_hidden_act": "relu"}, "can only have 'gelu'"),
    "fewer keys": ("gemma4", {"vision_config.num_key_value_heads": 2}, "can only have 4"),
    "wider heads": ("gemma4", {"vision_config.head_dim": 24}, "can only have 12"),
    "frames": ("qwen3vl", {"vision_config.temporal_patch_size": 1}, "can only have 2"),
    "grey": ("idefics3", {"vision_config.num_channels": 1}, "can only have 3"),
    "rotation": ("gemma4", {"vision_config.rope_parameters.rope_theta": 1e4}, "can only have 100"),
    "fewer slices": ("minicpmv", {"pictures.max_slice_nums": 4}, "'max_slice_nums' is 4, .* only have 9"),
    "fewer slices, in config.json": (
        "minicpmv", {"slice_config.max_slice_nums": 4}, "'slice_config.max_slice_nums' is 4, .* only have 9",
    ),
    "no slices": ("minicpmv", {"slice_mode": False}, "'slice_mode' is False, .* only have True"),
    "larger slices": ("minicpmv", {"pictures.scale_resolution": 448}, "is 448, .* only have 56"),
    "fewer slices of 4.6": ("minicpmv 4.6", {"pictures.max_slice_nums": 4}, "only have 9"),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPPED, ids=lambda name: name.replace(" ", "-"))
def test_settings_without_a_key_are_refused(name: str, tmp_path: Path) -> None:
    kind, settings, complaint = DROPPED[name]
    with pytest.raises(ConversionError, match=complaint):
        convert_tower(with_settings(VISION_MODELS[kind](), tmp_path, settings), tmp_path / "tower.gguf")


#: Settings of Llama 3.2 Vision that its single file cannot state.
MLLAMA_DROPPED: dict[str, tuple[dict[str, Any], str]] = {
    "silu": ({"vision_config.hidden_act": "silu"}, "'vision_config.hidden_act' is 'silu'"),
    "quick gelu": ({"vision_config.hidden_act": "quick_gelu"}, "only have 'gelu'"),
    "grey": ({"vision_config.num_channels": 1}, "only have 3"),
    "a width of its own": ({"vision_config.vision_output_dim": 64}, "output_dim' is 64, .* only have 144"),
    "columns first": (
        {"vision_config.supported_aspect_ratios": [[1, 1], [2, 1], [1, 2], [2, 2]]},
        "'vision_config.supported_aspect_ratios' is ",
    ),
    "fewer grids": (
        {"vision_config.supported_aspect_ratios": [[1, 1], [1, 2]]},
        "'vision_config.supported_aspect_ratios' is ",
    ),
    "wider heads": ({"vision_config.head_dim": 24}, "'vision_config.head_dim' is 24, .* only have 12"),
    "fewer keys": ({"vision_config.num_key_value_heads": 2}, "only have 4"),
    "a rotation": ({"vision_config.rope_theta": 500.0}, "'vision_config.rope_theta' is 500.0, which"),
    "a factor": ({"vision_config.attention_multiplier": 0.5}, "attention_multiplier' is 0.5, which"),
    "other tiles": ({"pictures.max_image_tiles": 2}, "'max_image_tiles' is 2, .* only have 4"),
    "another side": ({"pictures.size": {"height": 28, "width": 28}}, "'size.height' is 28, .* only have 56"),
}  # fmt: skip


@pytest.mark.parametrize("name", MLLAMA_DROPPED, ids=lambda name: name.replace(" ", "-"))
def test_vision_settings_of_llama_without_a_key_are_refused(name: str, tmp_path: Path) -> None:
    settings, complaint = MLLAMA_DROPPED[name]
    folder = with_settings(VISION_MODELS["mllama"](), tmp_path, settings)
    with pytest.raises(ConversionError, match=complaint):
        convert(folder, tmp_path / "model.gguf")


def test_an_unknown_vision_setting_of_llama_can_be_ignored(tmp_path: Path) -> None:
    settings = {"vision_config.rope_theta": 500.0, "vision_config.depths": "many"}
    folder = with_settings(VISION_MODELS["mllama"](), tmp_path, settings)
    convert(folder, tmp_path / "model.gguf", ignore=["vision_config.rope_theta"])
    assert load_model(tmp_path / "model.gguf").vision is not None


def test_published_vision_settings_of_llama_are_known(tmp_path: Path) -> None:
    config = VISION_MODELS["mllama"]()
    usual = {
        "hidden_act": "gelu", "num_channels": 3, "initializer_range": 0.02, "norm_eps": 1e-5,
        "model_type": "mllama_vision_model", "torch_dtype": "bfloat16", "top_k": 50, "pruned_heads": {},
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
        "vision_output_dim": 3 * config.hidden, "use_bfloat16": False, "length_penalty": 1.0,
        "is_decoder": False, "is_encoder_decoder": False, "add_cross_attention": False, "top_p": 1.0,
        "tie_word_embeddings": True, "output_scores": False, "num_beam_groups": 1, "prefix": None,
    }  # fmt: skip
    shown = {
        "do_convert_rgb": True, "do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True,
        "image_processor_type": "MllamaImageProcessor", "max_image_tiles": config.tiles, "resample": 2,
        "rescale_factor": 1 / 255, "size": {"height": config.image_size, "width": config.image_size},
        "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5] * 3,
    }  # fmt: skip
    settings = {f"vision_config.{name}": value for name, value in usual.items()}
    settings |= {f"pictures.{name}": value for name, value in shown.items()}
    convert(with_settings(config, tmp_path, settings), tmp_path / "model.gguf")
    tower = load_model(tmp_path / "model.gguf").vision
    assert tower is not None
    assert tower.options.mean == pytest.approx((0.1, 0.2, 0.3))
    assert tower.options.std == (0.5, 0.5, 0.5)


def test_the_published_keys_of_every_projector_type_are_listed() -> None:
    assert set(VISION_MODELS) - set(OWN) == {
        "gemma4, small", "glm4v, experts", "internvl-6b", "llava", "llava-next", "mllama",
        "qwen3vlmoe", "qwen4exp",
    }  # fmt: skip


#: Settings that files can state and a tower cannot compute, with a part of the error.
REFUSED = {
    "gemma3, silu": ("gemma3", {"use_gelu": None, "use_silu": True}, "activation silu .*, only gelu"),
    "gemma3, quick": ("gemma3", {"use_gelu": False}, "activation quick gelu .*, only gelu"),
    "gemma4, silu": ("gemma4", {"use_silu": True}, "activation silu"),
    "internvl, silu": ("internvl", {"use_gelu": None, "use_silu": True}, "activation silu"),
    "pixtral, gelu": ("mistral3", {"use_silu": None, "use_gelu": True}, "activation gelu .*, only silu"),
    "step, gelu": ("step 3.7", {"use_gelu": True}, "activation gelu .*, only quick gelu"),
    "step, fewer patches a row": ("step 3.7", {"vision.projector.scale_factor": 2}, "2, and only 4 is supp"),
    "both": ("glmocr", {"use_gelu": True}, "is true, and so is 'use_gelu'"),
    "windows": ("qwen2vl", {"vision.n_wa_pattern": 8}, "'clip.vision.n_wa_pattern' is 8, .* only 0"),
    "listed windows": ("qwen3vl", {"vision.wa_layer_indexes": [7, 15]}, "'clip.vision.wa_layer_indexes'"),
    "window size": ("glmocr", {"vision.window_size": 112}, "'clip.vision.window_size' is 112"),
    "merges": ("gemma3", {"vision.spatial_merge_size": 2}, "spatial_merge_size' is 2, .* only 1"),
    "deepstack": ("qwen25vl", {"vision.is_deepstack_layers": [True, False]}, "is_deepstack_layers"),
    "fewer key heads": ("idefics3", {"vision.attention.head_count_kv": 2}, "head_count_kv' is 2, .* only 4"),
    "layers in between": ("internvl", {"vision.feature_layer": [1]}, "feature_layer"),
    "three frames": ("qwen25vl", {"vision.temporal_patch_size": 3}, "is 3, .* only 2"),
    "no markers": ("lfm2", {"vision.use_image_special_tokens": False}, "is False, .* only True"),
    "another projector": ("mistral3", {"mm.projector_hidden_act": "relu"}, "only 'gelu'"),
    "tiles side by side": ("llava-next", {"vision.mm_patch_merge_type": "flat"}, "only 'spatial_unpad'"),
    "another way to cut": ("llava-next", {"vision.image_aspect_ratio": "anyres_max_9"}, "only 'anyres'"),
    "unpadded": ("llava", {"vision.image_aspect_ratio": "square"}, "only 'pad'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: name.replace(" ", "-"))
def test_a_setting_that_a_tower_cannot_compute_is_refused(name: str, tmp_path: Path) -> None:
    kind, keys, complaint = REFUSED[name]
    config = VISION_MODELS[kind]()
    layout = config.write(tmp_path, original(config), apart=True)
    load_model(layout.model, projector=layout.projector)
    rewritten(layout, lambda found: found.set(keys))
    with pytest.raises(UnsupportedModelError if name != "both" else ModelError, match=complaint):
        load_model(layout.model, projector=layout.projector)


#: Sizes that do not fit each other, with a part of the error.
UNFIT: dict[str, tuple[str, dict[str, Any], str]] = {
    "small heads of minimax": (
        "minimax m3",
        {"vision.attention.head_count": 16},
        "4 values of a head are too",
    ),
    "odd heads of step": ("step 3.7", {"vision.attention.head_count": 8}, "6 values of a head are no mult"),
    "tiles of step": ("step 3.7", {"vision.tile_size": 20}, "tile_size' is 20, with rows of 16 pixels"),
    "whole of step": ("step 3.7", {"vision.image_size": 56}, "image_size' is 56, with rows of 16 pixels"),
    "largest picture of step": ("step 3.7", {"vision.preproc_image_size": 40}, "is 40, with a whole picture"),
}


@pytest.mark.parametrize("name", UNFIT, ids=lambda name: name.replace(" ", "-"))
def test_sizes_that_do_not_fit_are_refused(name: str, tmp_path: Path) -> None:
    kind, keys, complaint = UNFIT[name]
    config = VISION_MODELS[kind]()
    layout = config.write(tmp_path, original(config))
    rewritten(layout, lambda found: found.set(keys))
    with pytest.raises(ModelError, match=complaint):
        load_model(layout.model, projector=layout.projector)


#: Keys of Ollama's files that tiny models in one file lack.
OLLAMA: dict[str, dict[str, Any]] = {
    "deepseek-ocr": {"sam.global_attention_indexes": [2]},
    "gemma3": {"vision.num_channels": 3},
    "gemma4": {"vision.num_channels": 3},
    "glmocr": {"vision.temporal_patch_size": 2, "vision.out_hidden_size": 64},
    "lfm2": {
        "vision.num_channels": 3, "vision.do_image_splitting": True, "vision.use_thumbnail": True,
        "vision.max_pixels_tolerance": 2.0, "vision.use_image_special_tokens": True,
        "vision.image_mean": [0.5] * 3, "vision.image_std": [0.5] * 3, "vision.image_token_id": 1,
    },
    "llama4": {"vision.rope.freq_base": 10000.0},
    "mistral3": {
        "vision.attention.key_length": 12, "vision.num_channels": 0, "vision.rope.freq_base": 10000.0,
        "mm.projector_bias": False, "mm.projector_hidden_act": "gelu",
    },
    "qwen25vl": {
        "vision.num_channels": 3, "vision.spatial_patch_size": 14, "vision.rope.freq_base": 10000.0,
        "vision.temporal_patch_size": 2,
    },
    "qwen3vl": {
        "vision.num_channels": 3, "vision.rope.freq_base": 10000.0, "vision.temporal_patch_size": 2,
        "vision.longest_edge": 16 << 20, "vision.image_mean": [0.5] * 3, "vision.image_std": [0.5] * 3,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", OLLAMA)
def test_a_file_with_every_key_of_ollamas_agrees(kind: str, tmp_path: Path) -> None:
    config = VISION_MODELS[kind]()
    theirs = original(config)
    layout = rewritten(config.write(tmp_path, theirs), lambda found: found.set(OLLAMA[kind]))
    check_agrees(config, layout, theirs)


def test_the_rope_base_of_the_file_is_used(tmp_path: Path) -> None:
    keys = {
        "qwen25vl": "vision.rope.freq_base",
        "qwen3vl": "vision.rope.freq_base",
        "mistral3": "rope.freq_base",
    }
    for kind, key in keys.items():
        config, folder = VISION_MODELS[kind](), tmp_path / kind
        folder.mkdir()
        layout = config.write(folder, original(config), apart=True)
        rewritten(layout, functools.partial(Contents.set, keys={key: 500.0}))
        tower = load_model(layout.model, projector=layout.projector).vision
        assert tower.options.rope_base == 500
        assert tower._rope.frequencies.min() > 1 / 500


def test_deepseek_ocr_follows_the_intent_of_its_files(tmp_path: Path) -> None:
    """llama.cpp's converter writes SAM's epsilon, and up to 32 tiles for another model."""
    config = VISION_MODELS["deepseek-ocr"]()
    theirs = original(config)
    layout = config.write(tmp_path, theirs, apart=True)
    keys = {
        EPS: 1e-6,
        "vision.feed_forward_length": 16,
        "vision.window_size": 14,
        "vision.preproc_max_tiles": 32,
    }
    rewritten(layout, lambda found: found.set(keys))
    tower = load_model(layout.model, projector=layout.projector).vision
    assert tower.options.norm_eps == tower.options.layers[0].norm_eps == 1e-5
    assert tower.options.sam.norm_eps == 1e-6
    side = tower.options.tile_size
    assert tower.prepare(picture(1, 16 * side, 2 * side)).grid == (2, 16)


def test_llama_4_accepts_the_norm_renamed_by_newer_converters(tmp_path: Path) -> None:
    config = VISION_MODELS["llama4"]()
    theirs = original(config)

    def change(found: Contents) -> None:
        tensors = found.tensors.items()
        found.tensors = {name.replace(".ln2.", ".attn_post_norm."): array for name, array in tensors}

    check_agrees(config, rewritten(config.write(tmp_path, theirs, apart=True), change), theirs)


def test_gemma_3n_accepts_scales_without_pixel_axes_and_keys_of_ears_alone(tmp_path: Path) -> None:
    config = VISION_MODELS["gemma3n"]()
    theirs = original(config)

    def change(found: Contents) -> None:
        tensors = found.tensors.items()
        found.tensors = {
            name: a.reshape(-1) if name.endswith("gamma") else a
            for name, a in tensors
            if not name.startswith(("a.", "mm.a."))
        }

    check_agrees(config, rewritten(config.write(tmp_path, theirs, apart=True), change), theirs)


def test_lightons_projector_has_the_epsilon_of_the_text_model(tmp_path: Path) -> None:
    config = VISION_MODELS["lighton"]()
    theirs = original(config)
    layout = config.write(tmp_path, theirs)
    tower = load_model(layout.model, projector=layout.projector).vision
    projection, encoder = theirs.model.vision_projection, theirs.model.vision_encoder
    assert tower.norm.eps == projection.norm.variance_epsilon
    assert tower.first_norm.eps == pytest.approx(encoder.ln_pre.variance_epsilon)


def test_first_checkpoints_of_deepseek_ocr_2_have_the_sizes_of_their_code() -> None:
    width = {"sam_vit_b": {"width": 768, "layers": 12, "heads": 12}, "qwen2-0-5b": {"dim": 896}}
    whole = {
        "architectures": ["DeepseekOCR2ForCausalLM"], "hidden_size": 1280,
        "vision_config": {"image_size": 1024, "width": width},
    }  # fmt: skip
    (family,), config = towers_of(whole), Config(whole)
    config.raw = whole["vision_config"]
    expected = {
        "vision.embedding_length": 896, "vision.block_count": 24, "vision.attention.head_count": 14,
        "vision.attention.head_count_kv": 2, "vision.feed_forward_length": 4864, "vision.image_size": 1024,
        "vision.patch_size": 16, "vision.sam.embedding_length": 768, "vision.sam.block_count": 12,
        "vision.sam.head_count": 12, "vision.rope.freq_base": None,
    }  # fmt: skip
    assert {key: family.keys[key](config) for key in expected} == expected
