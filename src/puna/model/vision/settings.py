"""Settings by which only some vision towers go: a file that has one is refused where nothing reads it.

Their names are those of llama.cpp's and Ollama's converters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from puna.errors import UnsupportedModelError, shown
from puna.model.metadata import flag, invalid

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.model.vision.options import VisionOptions
    from puna.model.vision.tower import VisionTower

#: The value of each that changes nothing, or what computes it; None: there is no such value.
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


_MOST_SHOWN: Final = 1 << 12


class _Noting:
    """A file that notes which keys it is asked for."""

    def __init__(self, file: GGUFFile) -> None:
        self._file = file
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return self._file.get(key, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def read_checked(tower: type[VisionTower], file: GGUFFile, text_size: int) -> VisionOptions:
    """Return the options of the tower in `file`: see `VisionTower.read_options`.

    Raises `UnsupportedModelError` for an activation or another setting that the tower does not compute.
    """
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
        given = given if isinstance(given, str | int | float) else list(given[:_MOST_SHOWN])
        if value is None or given != value:
            instead = "" if value is None else f", only {shown(value)}"
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.{key}' is {shown(given)}, which is not supported in a "
                f"vision tower of this kind{instead}"
            )
    return options


def _activation(file: GGUFFile) -> str:
    """Return what the two keys for it say: "gelu", "silu" or "quick gelu"; "" if they say nothing."""
    gelu, silu = flag(file, "use_gelu", False), flag(file, "use_silu", False)
    if gelu and silu:
        raise invalid(file, "use_silu", "is true, and so is 'use_gelu'")
    if gelu or silu:
        return "gelu" if gelu else "silu"
    return "" if file.get("use_gelu") is None else "quick gelu"
