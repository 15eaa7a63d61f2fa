"""Which vision tower a file has; only the one that is asked for is imported."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.model.vision.tower import VisionTower

#: Of files that have text and vision, by `general.architecture`: the file in this folder and the class in it.
_TOWERS: Final = {
    "deepseekocr": ("deepseek_ocr", "DeepSeekOcrVision"),
    "gemma3": ("gemma3", "Gemma3Vision"),
    "gemma4": ("gemma4", "Gemma4Vision"),
    "glmocr": ("glm_ocr", "GlmOcrVision"),
    "llama4": ("llama4", "Llama4Vision"),
    "lfm2": ("lfm2", "Lfm2Vision"),
    "lfm2moe": ("lfm2", "Lfm2Vision"),
    "mistral3": ("pixtral", "PixtralVision"),
    "mllama": ("mllama", "MllamaVision"),
    "qwen25vl": ("qwen25vl", "Qwen25Vision"),
    "qwen35": ("qwen3vl", "Qwen3Vision"),
    "qwen35moe": ("qwen3vl", "Qwen3Vision"),
    "qwen3vl": ("qwen3vl", "Qwen3Vision"),
    "qwen3vlmoe": ("qwen3vl", "Qwen3Vision"),
}

#: Of files with a tower alone, by `clip.projector_type`; also what models their rows are read by.
_PROJECTORS: Final = {
    "deepseekocr": (("deepseek_ocr", "DeepSeekOcrVisionBeside"), ("deepseek2-ocr",)),
    "gemma3": (("gemma3", "Gemma3Vision"), ("gemma3",)),
    "gemma3nv": (("gemma3n", "Gemma3nVision"), ("gemma3n",)),
    "gemma4v": (("gemma4", "Gemma4Vision"), ("gemma4",)),
    "glm4v": (("glm_ocr", "GlmOcrVision"), ("glm4", "glm4moe")),
    "llama4": (("llama4", "Llama4Vision"), ("llama4",)),
    "idefics3": (("idefics3", "Idefics3Vision"), ("llama",)),
    "internvl": (("internvl", "InternVision"), ("gpt-oss", "llama", "qwen2", "qwen3", "qwen3moe")),
    "lfm2": (("lfm2", "Lfm2Vision"), ("lfm2", "lfm2moe")),
    "llava-next": (("llava_next", "LlavaNextVision"), ("llama", "qwen2")),
    "minicpmv4_6": (("minicpmv46", "MiniCPM46Vision"), ("qwen35",)),
    "mlp": (("llava", "LlavaVision"), ("llama",)),
    "pixtral": (("pixtral", "PixtralVision"), ("llama", "mistral3")),
    "resampler": (("minicpmv", "MiniCPMVision"), ("llama", "qwen2", "qwen3")),
    "qwen2.5vl_merger": (("qwen25vl", "Qwen25Vision"), ("qwen2vl",)),
    "qwen2vl_merger": (("qwen2vl", "Qwen2Vision"), ("qwen2vl",)),
    "qwen3vl_merger": (("qwen3vl", "Qwen3Vision"), ("qwen35", "qwen35moe", "qwen3vl", "qwen3vlmoe")),
}

PROJECTOR_ARCHITECTURE: Final = "clip"
#: What LLaVA 1.6 cuts pictures into.
_GRIDS: Final = "vision.image_grid_pinpoints"


def tower_in(file: GGUFFile) -> type[VisionTower] | None:
    """The tower of a model's own file; None when it has none, or one there is no code for."""
    if not has_tower(file):
        return None
    return _class(*_TOWERS[file.architecture])


def has_tower(file: GGUFFile) -> bool:
    """Whether a model's own file has a tower there is code for."""
    return (
        file.architecture in _TOWERS
        and file.get("vision.block_count") is not None
        and any(name.startswith("v.") for name in file.tensors)
    )


def projector_type(file: GGUFFile) -> str:
    """What a file with a tower alone calls its kind."""
    kinds = (file.get(key) for key in ("vision.projector_type", "projector_type"))
    # Files of LLaVA did not say it before there were others.
    kind = next((kind for kind in kinds if isinstance(kind, str)), "mlp")
    if kind == "mlp" and ("model.image_newline" in file.tensors or file.get(_GRIDS) is not None):
        return "llava-next"  # which files do not tell from LLaVA 1.5
    return kind


def is_read_by(kind: str, architecture: str) -> bool:
    """Whether a text model reads what a tower of that kind makes of images, and there is code for it."""
    return kind in _PROJECTORS and architecture in _PROJECTORS[kind][1]


def tower_beside(file: GGUFFile, architecture: str) -> type[VisionTower]:
    """The tower in a file of its own, for a text model of `architecture`. Raises `UnsupportedModelError`."""
    from puna.errors import UnsupportedModelError, shown

    if file.architecture != PROJECTOR_ARCHITECTURE:
        raise UnsupportedModelError(
            f"{file.path} is no projector: its architecture is {shown(file.architecture)}, not 'clip'"
        )
    kind = projector_type(file)
    if kind not in _PROJECTORS:
        raise UnsupportedModelError(
            f"{file.path}: projectors of type {shown(kind)} are not supported; "
            f"supported: {', '.join(sorted(_PROJECTORS))}"
        )
    tower, readers = _PROJECTORS[kind]
    if architecture not in readers:
        raise UnsupportedModelError(
            f"{file.path}: a projector of type {shown(kind)} is for {' or '.join(readers)}, "
            f"not for {shown(architecture)}"
        )
    return _class(*tower)


def _class(module: str, name: str) -> type[VisionTower]:
    tower: type[VisionTower] = getattr(importlib.import_module(f"puna.model.vision.{module}"), name)
    return tower
