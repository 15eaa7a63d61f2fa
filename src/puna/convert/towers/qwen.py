"""Towers that read pictures at about their own size: of Qwen, GLM, PaddleOCR-VL and dots.ocr."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Family, Key, Place, Split
from puna.convert.towers.clip import SIGLIP, activation, kept, keys, rope_base, thirds, unless
from puna.errors import ConversionError

_KEPT: Final = ("tower.",)


def frames(values: Values, config: Config) -> Sequence[Values]:
    """Split the kernel [rows, channels, 2, side, side] into the kernels of its two frames."""
    if values.ndim != 5 or values.shape[2] != 2:
        raise ValueError("the kernel must have two frames")
    return values[:, :, 0], values[:, :, 1]


def _layers(names: Mapping[str, str]) -> dict[str, Place]:
    usual = {"norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out", **names}
    return {f"tower.blocks.{{}}.{theirs}": f"v.blk.{{}}.{ours}" for theirs, ours in usual.items()}


_FRAMES: Final[dict[str, Place]] = {
    "tower.patch_embed.proj.weight": Split(("v.patch_embd.weight", "v.patch_embd.weight.1"), frames),
    "tower.patch_embed.proj.bias": "v.patch_embd.bias",
}
_PARTED: Final[dict[str, Place]] = {
    "tower.blocks.{}.attn.qkv": Split(("v.blk.{}.attn_q", "v.blk.{}.attn_k", "v.blk.{}.attn_v"), thirds),
    **{f"tower.blocks.{{}}.attn.{part}": f"v.blk.{{}}.attn_{part}" for part in "qkv"},
    "tower.merger.ln_q": "v.post_ln",
    "tower.merger.mlp.{}": "mm.{}",
}
_GATED: Final = {f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}


def _pixel_limit(config: Config, name: str, own: str = "") -> Any:
    """Return a limit on the pixels of an image: the setting `own`, or `name` in `size`."""
    size = config.image_setting("size", {})
    edge = size.get(name) if isinstance(size, dict) else None
    return (config.image_setting(own, 0) if own else None) or edge


#: Limits on the size of images; readers have defaults of their own.
SIZES: Final[dict[str, Key]] = {
    "vision.image_min_pixels": lambda config: _pixel_limit(config, "shortest_edge", "min_pixels"),
    "vision.image_max_pixels": lambda config: _pixel_limit(config, "longest_edge", "max_pixels"),
}


def _keys(kind: str, **more: Key) -> dict[str, Key]:
    return {
        "projector_type": lambda config: kind,
        "vision.image_size": lambda config: config.get("image_size") or 560,
        # From the models' code; the text model's is different.
        "vision.attention.layer_norm_epsilon": lambda config: 1e-6,
        "vision.spatial_merge_size": unless(2, "spatial_merge_size"),
        **SIZES,
        **more,
    }


QWEN2: Final = Family(
    hf=("Qwen2VLForConditionalGeneration", "Qwen2VLModel"), architecture="clip", kept=_KEPT,
    keys={
        **_keys("qwen2vl_merger"), "vision.embedding_length": "embed_dim",
        "vision.feed_forward_length": "hidden_size",
    },
    names={**_FRAMES, **_PARTED, **_layers({"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"})},
)  # fmt: skip


def _period(config: Config) -> int:
    """Return the period of layers with full attention."""
    whole = config["fullatt_block_indexes"]
    every = whole[0] + 1
    if list(whole) != list(range(every - 1, whole[-1] + 1, every)):
        raise ConversionError(f"config.json: 'fullatt_block_indexes' {list(whole)} have no steady distance")
    return int(every)


QWEN25: Final = Family(
    hf=("Qwen2_5_VLForConditionalGeneration",), architecture="clip", kept=_KEPT,
    keys={
        **_keys("qwen2.5vl_merger"), "use_silu": lambda config: True, "vision.n_wa_pattern": _period,
        "vision.window_size": unless(112, "window_size"),
    },
    names={**_FRAMES, **_PARTED, **_layers(_GATED)},
)  # fmt: skip

QWEN25_OMNI: Final = replace(
    QWEN25, keys={**QWEN25.keys, "projector_type": lambda config: "qwen2.5o"},
    hf=(
        "Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration",
        "Qwen2_5OmniThinkerForConditionalGeneration",
    ),
)  # fmt: skip

_DEEPSTACK_MERGER: Final = re.compile(r"tower\.deepstack_merger_list\.(\d{1,6})\.")


def _merger_by_layer(name: str, config: Config) -> str:
    """Replace the number of a DeepStack merger by the number of its layer."""
    if not (found := _DEEPSTACK_MERGER.match(name)):
        return name
    return f"tower.deepstack.{config['deepstack_visual_indexes'][int(found[1])]}.{name[found.end() :]}"


def _deepstack_layers(config: Config) -> list[bool]:
    deepstack = config.get("deepstack_visual_indexes") or ()
    return [layer in deepstack for layer in range(config.bounded_count("depth"))]


QWEN3: Final = Family(
    hf=(
        "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    ),
    architecture="clip", kept=_KEPT,
    keys={
        **_keys("qwen3vl_merger"), "use_gelu": lambda config: True,
        "vision.image_size": lambda config: int(
            math.sqrt(config.get("num_position_embeddings") or 2304) * config.count("patch_size")
        ),
        "vision.spatial_merge_size": "spatial_merge_size",
        "vision.is_deepstack_layers": _deepstack_layers,
    },
    names={
        **_FRAMES,
        **_layers({"attn.qkv": "attn_qkv", "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down"}),
        "tower.pos_embed": "v.position_embd", "tower.merger.norm": "v.post_ln",
        "tower.merger.linear_fc1": "mm.0", "tower.merger.linear_fc2": "mm.2",
        "tower.deepstack.{}.norm": "v.deepstack.{}.norm",
        "tower.deepstack.{}.linear_fc1": "v.deepstack.{}.fc1",
        "tower.deepstack.{}.linear_fc2": "v.deepstack.{}.fc2",
    },
    rename=_merger_by_layer,
)  # fmt: skip

#: Modules of Qwen3-Omni's mergers, by their names in Qwen3-VL.
_MERGER: Final = {"ln_q": "norm", "mlp.0": "linear_fc1", "mlp.2": "linear_fc2"}


def _as_in_qwen3_vl(name: str, config: Config) -> str:
    """Return the name that Qwen3-VL has for a tensor of Qwen3-Omni's tower."""
    name = name.replace("tower.merger_list.", "tower.deepstack_merger_list.")
    if "merger" in name:
        for theirs, usual in _MERGER.items():
            name = name.replace(f".{theirs}.", f".{usual}.")
    return _merger_by_layer(name, config)


QWEN3_OMNI: Final = replace(
    QWEN3, rename=_as_in_qwen3_vl,
    hf=("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"),
    keys={
        **{key: given for key, given in QWEN3.keys.items() if key != "projector_type"},
        "vision.projector_type": lambda config: "qwen3vl_merger",
    },
)  # fmt: skip

_GLM_OUTER: Final = {
    "post_conv_layernorm": "v.norm_embd", "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln", "downsample": "mm.patch_merger", "merger.proj": "mm.model.fc",
    "merger.post_projection_norm": "mm.post_norm",
    **{f"merger.{part}_proj": f"mm.{part}" for part in ("gate", "up", "down")},
}  # fmt: skip
GLM: Final = Family(
    hf=(
        "Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration", "GlmOcrForConditionalGeneration",
    ),
    architecture="clip", kept=_KEPT,
    keys={
        "projector_type": lambda config: "glm4v",
        "vision.image_size": lambda config: config.get("image_size") or 336,
        "vision.feed_forward_length": lambda config: (
            config.get("intermediate_size") or config["out_hidden_size"]
        ),
        "vision.attention.layer_norm_epsilon": lambda config: config.get("rms_norm_eps") or 1e-5,
        "vision.spatial_merge_size": unless(2, "spatial_merge_size"),
        # For the two frames that an image counts as.
        "vision.image_min_pixels": lambda config: _pixel_limit(config, "shortest_edge"),
        "vision.image_max_pixels": lambda config: _pixel_limit(config, "longest_edge"),
        "use_gelu": lambda config: activation(config).get("use_gelu"),
        "use_silu": lambda config: activation(config).get("use_silu"),
    },
    names={
        **_FRAMES,
        **_layers(
            {"attn.qkv": "attn_qkv", "attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm", **_GATED}
        ),
        **{f"tower.{theirs}": ours for theirs, ours in _GLM_OUTER.items()},
    },
)  # fmt: skip

_PADDLE_PROJECTOR: Final = {"pre_norm": "mm.input_norm", "linear_1": "mm.1", "linear_2": "mm.2"}
PADDLE: Final = Family(
    hf=("PaddleOCRVLForConditionalGeneration",), architecture="clip", kept=kept("mlp_AR.", "projector."),
    keys={
        **keys("paddleocr", 1e-6), "vision.spatial_merge_size": unless(2, "spatial_merge_size"),
        "vision.rope.freq_base": rope_base, **SIZES,
    },
    names={
        **SIGLIP, "tower.embeddings.packing_position_embedding": None,
        **{
            f"{module}.{theirs}": ours
            for module in ("mlp_AR", "projector")
            for theirs, ours in _PADDLE_PROJECTOR.items()
        },
    },
    dropped=("tower.head.",),
)  # fmt: skip
DOTS: Final = Family(
    hf=("DotsOCRForCausalLM",), architecture="clip", kept=_KEPT,
    keys={
        "projector_type": lambda config: "dots_ocr", "use_silu": lambda config: True,
        "vision.image_size": lambda config: 0,  # any
        "vision.embedding_length": ("embed_dim", "hidden_size"),
        "vision.attention.layer_norm_epsilon": lambda config: config.get("rms_norm_eps") or 1e-5,
        "vision.projector.scale_factor": lambda config: config.get("spatial_merge_size") or 2,
        **SIZES,
    },
    names={
        "tower.patch_embed.patchifier.proj": "v.patch_embd",
        "tower.patch_embed.patchifier.norm": "v.norm_embd", "tower.post_trunk_norm": "mm.post_norm",
        "tower.merger.ln_q": "mm.input_norm", "tower.merger.mlp.{}": "mm.{}",
        **_layers({
            "attn.qkv": "attn_qkv", "mlp.fc1": "ffn_gate", "mlp.fc2": "ffn_down", "mlp.fc3": "ffn_up",
        }),
    },
)  # fmt: skip
FAMILIES: Final = (QWEN2, QWEN25, QWEN25_OMNI, QWEN3, QWEN3_OMNI, GLM, PADDLE, DOTS)
