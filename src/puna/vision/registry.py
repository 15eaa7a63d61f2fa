"""Vision tower classes by the kind a file declares; only the requested module is imported."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, cast

from puna.architectures import ARCHITECTURES, UNKNOWN
from puna.errors import UnsupportedModelError, shown
from puna.gguf.metadata import flag, invalid

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.vision.options import VisionOptions
    from puna.vision.tower import VisionTower

#: Value of each setting that has no effect, or a function that computes it; None if there is none.
_SELDOM: Final[dict[str, Any]] = {
    "vision.attention.head_count_kv": lambda o: o.heads,
    "vision.attention.head_dim": lambda o: o.head_dim,
    "vision.attention.key_length": lambda o: o.head_dim,
    "vision.feature_layer": lambda o: [len(o.layers)],
    "vision.fullatt_block_indexes": [],
    "vision.n_wa_pattern": 0,
    "vision.wa_layer_indexes": [],
    "vision.wa_pattern_mode": None,
    "vision.window_size": None,
    "vision.is_deepstack_layers": lambda o: [False] * len(o.layers),
    "vision.deepstack_visual_indexes": [],
    "vision.projector.scale_factor": 1,
    "vision.projector.query_side": None,
    "vision.projector.window_side": None,
    "vision.projector.spatial_offsets": None,
    "vision.projector.use_layernorm": None,
    "vision.pixel_shuffle_ratio": 1,
    "vision.spatial_merge_size": 1,
    "vision.temporal_patch_size": 2,
    "vision.swiglu_clamp": None,
    "vision.expert_count_per_layer": None,
    "vision.expert_used_count": 0,
    "vision.rope.freq_base": None,
    "vision.preproc_min_tiles": None,
    "vision.preproc_max_tiles": None,
    "vision.preproc_image_size": lambda o: o.image_size,
    "vision.image_min_pixels": None,
    "vision.image_max_pixels": None,
    "vision.image_grid_pinpoints": [],
    "vision.mm_patch_merge_type": "flat",
    "vision.image_aspect_ratio": "pad",
    "vision.max_num_tiles": 1,
    "vision.global.block_count": 0,
    "vision.intermediate_layers_indices": [],
    "vision.use_image_special_tokens": True,
    "mm.projector_hidden_act": "gelu",
}


_MAX_SHOWN: Final = 1 << 12


class _Noting:
    """GGUF file that records which keys are read."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return self._file.get(key, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def read_checked(tower: type[VisionTower], file: GGUFFile, text_size: int) -> VisionOptions:
    """Return the options of the tower in `file`; see `VisionTower.read_options`."""
    noting = _Noting(file)
    options = tower.read_options(cast("GGUFFile", noting), text_size)
    if (activation := _activation(file)) not in ("", *tower.activations):
        raise UnsupportedModelError(
            f"{file.path}: the activation {activation} is not supported in a vision tower of this kind, only "
            f"{' or '.join(tower.activations)}"
        )
    for key, neutral in _SELDOM.items():
        given: Any = file.get(key)
        if given is None or key in noting.asked or key in tower.without_effect:
            continue
        value = neutral(options) if callable(neutral) and options.layers else neutral
        given = given if isinstance(given, str | int | float) else list(given[:_MAX_SHOWN])
        if value is None or given != value:
            instead = "" if value is None else f", only {shown(value)}"
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.{key}' is {shown(given)}, which is not supported in a "
                f"vision tower of this kind{instead}"
            )
    return options


def _activation(file: GGUFFile) -> str:
    """Return the activation the file declares: "gelu", "silu" or "quick gelu"; "" if it declares none."""
    gelu, silu = flag(file, "use_gelu", False), flag(file, "use_silu", False)
    if gelu and silu:
        raise invalid(file, "use_silu", "is true, and so is 'use_gelu'")
    if gelu or silu:
        return "gelu" if gelu else "silu"
    return "" if file.get("use_gelu") is None else "quick gelu"


#: Towers in files of their own, by `clip.projector_type`: "module:Class" in `towers/`.
_PROJECTORS: Final = {
    "deepseekocr": "deepseek_ocr:DeepSeekOcrVisionBeside",
    "deepseekocr2": "deepseek_ocr2:DeepSeekOcr2Vision",
    "dots_ocr": "dots_ocr:DotsOcrVision",
    "gemma3": "gemma3:Gemma3Vision",
    "gemma3nv": "gemma3n:Gemma3nVision",
    "gemma4uv": "gemma4_unified:Gemma4UnifiedVision",
    "gemma4v": "gemma4:Gemma4Vision",
    "glm4v": "glm_ocr:GlmOcrVision",
    "kimik25": "kimi_k25:KimiK25Vision",
    "lightonocr": "pixtral:LightOnVision",
    "llama4": "llama4:Llama4Vision",
    "idefics3": "idefics3:Idefics3Vision",
    "internvl": "internvl:InternVision",
    "lfm2": "lfm2:Lfm2Vision",
    "llava-next": "llava:LlavaNextVision",
    "minicpmv4_6": "minicpmv:MiniCPM46Vision",
    "minimax_m3": "minimax_m3:MiniMaxM3Vision",
    "mlp": "llava:LlavaVision",
    "paddleocr": "paddleocr:PaddleOcrVision",
    "pixtral": "pixtral:PixtralVision",
    "resampler": "minicpmv:MiniCPMVision",
    "qwen2.5o": "qwen:Qwen25OmniVision",
    "qwen2.5vl_merger": "qwen:Qwen25Vision",
    "qwen2vl_merger": "qwen:Qwen2Vision",
    "qwen3vl_merger": "qwen:Qwen3Vision",
    "step3vl": "step3:Step3Vision",
}

PROJECTOR_ARCHITECTURE: Final = "clip"
#: Tile sizes of LLaVA 1.6.
_GRIDS: Final = "vision.image_grid_pinpoints"


def tower_in(file: GGUFFile) -> type[VisionTower] | None:
    """Return the tower class for a model's own file; None if it has no tower or an unsupported one."""
    if not has_tower(file):
        return None
    return _class(ARCHITECTURES[file.architecture].tower)


def has_tower(file: GGUFFile) -> bool:
    """Whether a model's own file has a supported tower."""
    return (
        ARCHITECTURES.get(file.architecture, UNKNOWN).tower != ""
        and file.get("vision.block_count") is not None
        and any(name.startswith("v.") for name in file.tensors)
    )


def has_own_tower(file: GGUFFile) -> bool:
    """Whether a projector's file has a vision tower, and not an audio tower alone."""
    return file.get("vision.block_count") is not None or file.get("audio.block_count") is None


def projector_type(file: GGUFFile) -> str:
    """Return the projector type that a file with only towers declares; "" if it has no vision tower."""
    if not has_own_tower(file):
        return ""
    kinds = (file.get(key) for key in ("vision.projector_type", "projector_type"))
    # The first LLaVA files declare none.
    kind = next((kind for kind in kinds if isinstance(kind, str)), "mlp")
    if kind == "qwen2.5vl_merger" and file.get("audio.block_count") is not None:
        return "qwen2.5o"  # whose text model has other tokens around images
    if kind == "mlp" and ("model.image_newline" in file.tensors or file.get(_GRIDS) is not None):
        return "llava-next"  # declared "mlp" like LLaVA 1.5
    return kind


def is_read_by(kind: str, architecture: str) -> bool:
    """Whether a text model of `architecture` reads the rows of a supported tower of this kind.

    The tower is a vision or an audio tower.
    """
    return kind in ARCHITECTURES.get(architecture, UNKNOWN).projectors


def tower_beside(file: GGUFFile, architecture: str) -> type[VisionTower] | None:
    """Return the class of a tower in its own file, for text models of `architecture`.

    Returns None for a file with an audio tower alone. Raises `UnsupportedModelError`.
    """
    if not has_own_tower(file):
        return None
    kind = projector_type(file)
    check_projector(file, kind, _PROJECTORS, architecture)
    return _class(_PROJECTORS[kind])


def check_projector(file: GGUFFile, kind: str, supported: Collection[str], architecture: str) -> None:
    """Raise `UnsupportedModelError` unless text models of `architecture` read a projector of this kind."""
    if file.architecture != PROJECTOR_ARCHITECTURE:
        raise UnsupportedModelError(
            f"{file.path} is not a projector: its architecture is {shown(file.architecture)}, not 'clip'"
        )
    if kind not in supported:
        raise UnsupportedModelError(
            f"{file.path}: projectors of type {shown(kind)} are not supported; "
            f"supported: {', '.join(sorted(supported))}"
        )
    if not is_read_by(kind, architecture):
        readers = sorted(name for name, record in ARCHITECTURES.items() if kind in record.projectors)
        raise UnsupportedModelError(
            f"{file.path}: a projector of type {shown(kind)} is for {' or '.join(readers)}, "
            f"not for {shown(architecture)}"
        )


def _class(path: str) -> type[VisionTower]:
    module, _, name = path.partition(":")
    tower: type[VisionTower] = getattr(importlib.import_module(f"puna.vision.towers.{module}"), name)
    return tower
