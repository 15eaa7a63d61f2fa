"""The vision tower of Kimi K2.5, named and arranged as in llama.cpp."""

from __future__ import annotations

from typing import Any, Final

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Family, Place
from puna.convert.towers.clip import kept
from puna.errors import ConversionError, shown

#: Patches of the largest picture by default, and along a side of it, which no key carries.
_MOST_PATCHES: Final = 16384
_LONGEST_SIDE: Final = 512
#: Patches to which llama.cpp enlarges smaller pictures.
_LEAST_PATCHES: Final = 8
#: The epsilon of all norms of the layers.
_EPS: Final = 1e-5


def _media(config: Config, name: str, own: str, usual: Any) -> Any:
    """Return a setting of image preprocessing: as transformers calls it, or Kimi's `own` name."""
    published: Any = config.image_setting("media_proc_cfg", {})
    inner = published.get(own) if isinstance(published, dict) else None
    return config.image_setting(name, usual if inner is None else inner)


def _merge(config: Config) -> int:
    """Return the patches of a row along a side. Raises ConversionError unless rows are squares."""
    sides = config.get("merge_kernel_size") or [2, 2]
    if not isinstance(sides, list) or len(sides) != 2 or sides[0] != sides[1]:
        raise ConversionError(
            f"config.json: 'merge_kernel_size' is {shown(sides)}, not the sides of a square"
        )
    return int(sides[0])


def _most_pixels(config: Config) -> int:
    """Return the pixels of the largest picture. Raises ConversionError for another limit of its sides."""
    size = config.image_setting("size", {})
    side = (size.get("max_height") if isinstance(size, dict) else None) or _LONGEST_SIDE
    if (side := _media(config, "patch_limit_on_one_side", "patch_limit_on_one_side", side)) != _LONGEST_SIDE:
        raise ConversionError(
            f"preprocessor_config.json: {shown(side)} patches along a side, and a file can only have "
            f"{_LONGEST_SIDE}"
        )
    return (
        int(_media(config, "max_patches", "in_patch_limit", _MOST_PATCHES)) * config.count("patch_size") ** 2
    )


def _eps(config: Config) -> float:
    """Return the epsilon of the projector's norm. Raises ConversionError unless it is the layers'."""
    eps = config.get("projector_ln_eps") or config.whole.get("projection_layer_norm_eps") or _EPS
    if eps != _EPS:
        raise ConversionError(
            f"config.json: the projector's epsilon is {shown(eps)}, and can only be {_EPS:g}"
        )
    return _EPS


_LAYER: Final = {
    "norm0": "ln1", "norm1": "ln2", "wqkv": "attn_qkv", "wo": "attn_out", "mlp.fc0": "ffn_up",
    "mlp.fc1": "ffn_down",
}  # fmt: skip
_NAMES: Final[dict[str, Place]] = {
    "tower.patch_embed.proj": "v.patch_embd", "tower.patch_embed.pos_emb": "v.position_embd",
    "tower.patch_embed.pos_emb.time_weight": None,  # of videos, and computed
    "tower.encoder.final_layernorm": "v.post_ln", "mm_projector.pre_norm": "mm.input_norm",
    "mm_projector.in_proj": "mm.1", "mm_projector.out_proj": "mm.2",
    **{f"tower.encoder.blocks.{{}}.{theirs}": f"v.blk.{{}}.{ours}" for theirs, ours in _LAYER.items()},
}  # fmt: skip


def _named(name: str, config: Config) -> str:
    """Return a tensor's name with those of the projector's linears in place of their numbers."""
    return name.replace("mm_projector.proj.0.", "mm_projector.in_proj.").replace(
        "mm_projector.proj.2.", "mm_projector.out_proj."
    )


def _by_axis(values: Values, config: Config) -> Values:
    """Reorder the rows of queries and keys [3 * hidden, ...]: those that columns rotate come first.

    Published ones alternate between pairs that columns and rows rotate.
    """
    heads = config.count("vt_num_attention_heads", "num_attention_heads")
    parts = values.reshape(3, heads, -1, 2, 2, *values.shape[1:]).copy()
    pairs, axes = 2, 3
    turned = parts[:2].swapaxes(pairs, axes)
    parts[:2] = turned.reshape(parts[:2].shape)
    return parts.reshape(values.shape)


KIMI: Final = Family(
    hf=("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration"), architecture="clip",
    kept=kept("mm_projector."),
    keys={
        "projector_type": lambda config: "kimik25", "use_gelu": lambda config: True,
        "vision.embedding_length": ("vt_hidden_size", "hidden_size"),
        "vision.feed_forward_length": ("vt_intermediate_size", "intermediate_size"),
        "vision.block_count": ("vt_num_hidden_layers", "num_hidden_layers"),
        "vision.attention.head_count": ("vt_num_attention_heads", "num_attention_heads"),
        "vision.attention.layer_norm_epsilon": _eps,
        "vision.image_size": lambda config: (
            config.count("init_pos_emb_height", "pos_emb_height") * config.count("patch_size")
        ),
        "vision.image_mean": lambda config: _media(config, "image_mean", "image_mean", None),
        "vision.image_std": lambda config: _media(config, "image_std", "image_std", None),
        "vision.image_min_pixels": lambda config: _LEAST_PATCHES * config.count("patch_size") ** 2,
        "vision.image_max_pixels": _most_pixels,
        "vision.projector.scale_factor": _merge,
    },
    names=_NAMES, changes={"attn_qkv.weight": _by_axis, "attn_qkv.bias": _by_axis},
    rename=_named,
)  # fmt: skip
FAMILIES: Final = (KIMI,)
