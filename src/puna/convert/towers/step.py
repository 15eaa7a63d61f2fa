"""The vision tower of Step 3.7, named as in llama.cpp."""

from __future__ import annotations

from typing import Any, Final

from puna.convert.config import Config
from puna.convert.family import Family, Key, Place
from puna.convert.towers.clip import kept, rope_base
from puna.vision.pixels import CLIP_MEAN, CLIP_STD

_LAYER: Final = {
    "ln_1": "ln1", "ln_2": "ln2", "ls_1.gamma": "ls1.weight", "ls_2.gamma": "ls2.weight",
    "attn.in_proj_weight": "attn_qkv.weight", "attn.in_proj_bias": "attn_qkv.bias",
    "attn.out_proj": "attn_out", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
_NAMES: Final[dict[str, Place]] = {
    "tower.conv1": "v.patch_embd", "tower.positional_embedding": "v.position_embd.weight",
    "tower.ln_pre": "v.pre_ln", "tower.vit_downsampler1": "mm.0", "tower.vit_downsampler2": "mm.1",
    "vit_large_projector": "mm.model.fc",
    **{
        f"tower.transformer.resblocks.{{}}.{theirs}": f"v.blk.{{}}.{ours}"
        for theirs, ours in _LAYER.items()
    },
}  # fmt: skip
#: Published sizes of a tile and of the largest picture, for checkpoints that do not state them.
_TILE_SIZE: Final = 504
_LONGEST_SIDE: Final = 3024
#: The size of the layers' networks relative to that of a patch, likewise.
_RATIO: Final = 8960 / 1536


def _whole_size(config: Config) -> Any:
    """Return the side at which the whole picture is read, by default that of the position vectors."""
    size = config.image_setting("size", {})
    return (size.get("height") if isinstance(size, dict) else None) or config["image_size"]


def _inner_size(config: Config) -> int:
    return round(config.count("hidden_size", "width") * float(config.get("mlp_ratio") or _RATIO))


def _tile_size(config: Config) -> int | None:
    """Return the side at which tiles are read; None if it is what readers assume."""
    size = config.image_setting("patch_size", _TILE_SIZE)
    return None if size == _TILE_SIZE else int(size)


def _by_channel(name: str, usual: tuple[float, ...]) -> Key:
    """Return a key for the means or deviations of pixels, which published checkpoints leave out."""
    return lambda config: list(config.image_setting(name, list(usual)))


STEP3: Final = Family(
    hf=("Step3p7ForConditionalGeneration",), architecture="clip", kept=kept("vit_large_projector."),
    keys={
        "projector_type": lambda config: "step3vl", "vision.image_size": _whole_size,
        "vision.feed_forward_length": _inner_size,
        "vision.attention.layer_norm_epsilon": lambda config: config.get("layer_norm_eps") or 1e-5,
        "vision.image_mean": _by_channel("image_mean", CLIP_MEAN),
        "vision.image_std": _by_channel("image_std", CLIP_STD),
        "vision.preproc_image_size": lambda config: config.image_setting("max_image_size", _LONGEST_SIDE),
        "vision.tile_size": _tile_size,
        "vision.projector.scale_factor": lambda config: 4,  # patches of a row along a side
        "vision.rope.freq_base": rope_base,
    },
    names=_NAMES,
)  # fmt: skip
FAMILIES: Final = (STEP3,)
