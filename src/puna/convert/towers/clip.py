"""Towers built like CLIP and SigLIP: Gemma 3, SmolVLM and Idefics 3, LLaVA, LFM2-VL, InternVL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Family, Key, Place, Split
from puna.errors import ConversionError, shown

LAYER: Final = {
    "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.out_proj": "attn_out", "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down", **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
}  # fmt: skip
SIGLIP: Final[dict[str, Place]] = {
    "tower.embeddings.patch_embedding": "v.patch_embd",
    "tower.embeddings.position_embedding": "v.position_embd",
    "tower.post_layernorm": "v.post_ln",
    **{f"tower.encoder.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}" for theirs, ours in LAYER.items()},
    "tower.embeddings.position_ids": None,
}
_DROPPED: Final = ("tower.head.",)


def kept(*projectors: str) -> tuple[str, ...]:
    return ("tower.", *projectors)


def activation(config: Config) -> Mapping[str, Any]:
    """Return which of GGUF's two keys names the activation."""
    name = config.get("hidden_act") or "gelu"
    if name not in ("gelu", "gelu_pytorch_tanh", "silu"):
        raise ConversionError(f"config.json: vision with the activation {shown(name)} is not supported")
    return {"use_silu": True} if name == "silu" else {"use_gelu": True}


def keys(kind: str, eps: float, **more: Key) -> dict[str, Key]:
    """Return the keys of a projector of this `kind`; `eps` is the default epsilon of norms."""
    return {
        "projector_type": lambda config: kind,
        "vision.attention.layer_norm_epsilon": lambda config: config.get("layer_norm_eps") or eps,
        "use_gelu": lambda config: True,
        **more,
    }


def unless(usual: float, name: str) -> Key:
    """Return a key for a setting of the tower, left out if it has the `usual` value that readers assume."""

    def key(config: Config) -> Any:
        value = config.get(name)
        return None if value == usual else value

    return key


def rope_base(config: Config) -> float | None:
    """Return the base of the tower's rotation; None if it is the usual one."""
    theta = (config.get("rope_parameters") or {}).get("rope_theta") or config.get("rope_theta")
    return None if theta in (None, 10000) else float(theta)


def _image_key(name: str, usual: float) -> Key:
    """Return a key for an image preprocessing setting, left out if it has the `usual` value."""

    def key(config: Config) -> Any:
        value = config.image_setting(name, config.whole.get(name, usual))
        return None if value == usual else value

    return key


def _gemma_scale(config: Config) -> int | None:
    """Return how many patches per side are merged into one row, None if it is the usual four."""
    rows = config.whole.get("mm_tokens_per_image") or 256
    side = config.count("image_size") // config.count("patch_size")
    scale = side // math.isqrt(rows)
    return None if scale == 4 else scale


GEMMA3: Final = Family(
    hf=("Gemma3ForConditionalGeneration",), architecture="clip", kept=kept("multi_modal_projector."),
    keys={**keys("gemma3", 1e-6), "vision.projector.scale_factor": _gemma_scale},
    names={
        **SIGLIP, "multi_modal_projector.mm_soft_emb_norm": "mm.soft_emb_norm",
        "multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight",
    },
    changes={"mm.soft_emb_norm.weight": lambda values, config: values + 1}, dropped=_DROPPED,
)  # fmt: skip


def _longest_edge(config: Config) -> int:
    size = config.image_setting("size", {})
    edge = size.get("longest_edge") if isinstance(size, dict) else None
    return int(edge or config.count("image_size"))


IDEFICS3: Final = Family(
    hf=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"), architecture="clip",
    kept=kept("connector."),
    keys={
        **keys("idefics3", 1e-6), "vision.preproc_image_size": _longest_edge,
        "vision.projector.scale_factor": lambda config: config.whole.get("scale_factor") or 2,
        "vision.embedding_length": lambda config: config.get("hidden_size") or 1152,
        "vision.feed_forward_length": lambda config: config.get("intermediate_size") or 3072,
        "vision.attention.head_count": lambda config: config.get("num_attention_heads") or 16,
    },
    names={**SIGLIP, "connector.modality_projection.proj": "mm.model.fc"}, dropped=_DROPPED,
)  # fmt: skip


def _is_clip(config: Config) -> bool:
    vision = config.raw.get("vision_config") or {}
    return vision.get("model_type") in (None, "clip_vision_model")


_CLIP: Final[dict[str, Place]] = {
    **SIGLIP, "tower.embeddings.class_embedding": "v.class_embd", "tower.pre_layrnorm": "v.pre_ln",
    "multi_modal_projector.linear_1": "mm.0", "multi_modal_projector.linear_2": "mm.2",
    "image_newline": "model.image_newline", "tower.post_layernorm": None,
}  # fmt: skip


def _feature_layer(config: Config) -> list[int]:
    """Return the number of layers before the patches that are projected, in a list as in llama.cpp."""
    layer, count = config.whole.get("vision_feature_layer"), config.bounded_count("num_hidden_layers")
    layer = -2 if layer is None else layer
    if type(layer) is not int or not -count <= layer <= count or layer in (0, -count - 1):
        raise ConversionError(
            f"config.json: 'vision_feature_layer' is {shown(layer)}; a file names one of {count} layers, "
            "counted from 1, or back from -1"
        )
    return [layer if layer > 0 else count + 1 + layer]


_LLAVA_KEYS: Final[dict[str, Key]] = {
    "vision.feature_layer": _feature_layer,
    "projector_type": lambda config: "mlp",
    "vision.attention.layer_norm_epsilon": lambda config: config.get("layer_norm_eps") or 1e-5,
    "use_gelu": lambda config: config.get("hidden_act") not in (None, "quick_gelu"),
}
LLAVA: Final = Family(
    hf=("LlavaForConditionalGeneration",), architecture="clip", kept=kept("multi_modal_projector."),
    keys=_LLAVA_KEYS, names=_CLIP, dropped=_DROPPED, when=_is_clip,
)  # fmt: skip


def _grids(config: Config) -> list[int]:
    """Return the width and height of each grid that images may be cut into; published as height and width."""
    given = config.whole.get("image_grid_pinpoints") or ()
    return [size for height, width in given for size in (width, height)]


LLAVA_NEXT: Final = Family(
    hf=("LlavaNextForConditionalGeneration",), architecture="clip",
    kept=kept("multi_modal_projector.", "image_newline"),
    keys={
        **_LLAVA_KEYS, "vision.image_grid_pinpoints": _grids,
        "vision.mm_patch_merge_type": lambda config: "spatial_unpad",
    },
    names=_CLIP, dropped=_DROPPED, when=_is_clip,
)  # fmt: skip


def square(values: Values, config: Config) -> Values:
    """Reshape a kernel whose channels are innermost to [rows, channels, side, side]."""
    side = math.isqrt(values.shape[-1] // 3)
    return values.reshape(len(values), side, side, 3).transpose(0, 3, 1, 2)


#: Keys of LFM2-VL in Ollama's files that llama.cpp's leave out.
_LFM2_USUAL: Final = {
    "do_image_splitting": True, "min_tiles": 2, "max_tiles": 10, "tile_size": 512, "min_image_tokens": 64,
    "max_image_tokens": 256, "max_pixels_tolerance": 2.0, "use_thumbnail": True,
    "use_image_special_tokens": True,
}  # fmt: skip
LFM2: Final = Family(
    hf=("Lfm2VlForConditionalGeneration",), architecture="clip", kept=kept("multi_modal_projector."),
    keys={
        **keys("lfm2", 1e-6), "vision.image_size": lambda config: 256,
        "vision.projector.scale_factor": lambda config: config.whole.get("downsample_factor") or 2,
        **{f"vision.{name}": _image_key(name, usual) for name, usual in _LFM2_USUAL.items()},
    },
    names={
        **SIGLIP, "multi_modal_projector.layer_norm": "mm.input_norm",
        "multi_modal_projector.linear_1": "mm.1", "multi_modal_projector.linear_2": "mm.2",
    },
    changes={"v.patch_embd.weight": square}, dropped=_DROPPED,
)  # fmt: skip


def thirds(values: Values, config: Config) -> Sequence[Values]:
    """Split into queries, keys and values."""
    return np.split(values, 3)


_INTERN_LAYER: Final = {
    "norm1": "ln1", "norm2": "ln2", "layernorm_before": "ln1", "layernorm_after": "ln2",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "attention.projection_layer": "attn_out",
    "attn.proj": "attn_out", "lambda_1": "ls1.weight", "lambda_2": "ls2.weight", "ls1": "ls1.weight",
    "ls2": "ls2.weight", **{f"attention.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{f"attention.{part}_norm": f"attn_{part}_norm" for part in "qk"},
    **{f"attn.{part}_norm": f"attn_{part}_norm" for part in "qk"},
}  # fmt: skip
_INTERN: Final[dict[str, Place]] = {
    "tower.embeddings.cls_token": "v.class_embd", "tower.embeddings.class_embedding": "v.class_embd",
    "tower.embeddings.position_embeddings": "v.position_embd.weight",
    "tower.embeddings.position_embedding": "v.position_embd.weight",
    "tower.embeddings.patch_embeddings.projection": "v.patch_embd",
    "tower.embeddings.patch_embedding": "v.patch_embd",
    **{
        f"tower.encoder.{layers}.{{}}.{theirs}": f"v.blk.{{}}.{ours}"
        for layers in ("layer", "layers")
        for theirs, ours in _INTERN_LAYER.items()
    },
    "tower.encoder.layers.{}.attn.qkv": Split(
        ("v.blk.{}.attn_q", "v.blk.{}.attn_k", "v.blk.{}.attn_v"), thirds
    ),
    "mlp1.{}": "mm.model.mlp.{}",
    "multi_modal_projector.layer_norm": "mm.model.mlp.0", "multi_modal_projector.linear_1": "mm.model.mlp.1",
    "multi_modal_projector.linear_2": "mm.model.mlp.3",
}  # fmt: skip


def _tiles(name: str, own: str) -> Key:
    """Return a key for the minimum or maximum number of tiles."""
    return lambda config: config.whole.get(own) or config.image_setting(name, 0) or None


INTERN: Final = Family(
    hf=("InternVLChatModel", "InternVLForConditionalGeneration"), architecture="clip",
    kept=kept("multi_modal_projector.", "mlp1."),
    keys={
        **keys("internvl", 1e-6),
        "use_gelu": lambda config: activation(config).get("use_gelu"),
        "use_silu": lambda config: activation(config).get("use_silu"),
        "vision.projector.scale_factor": lambda config: round(1 / config.whole.get("downsample_ratio", 0.5)),
        "vision.preproc_min_tiles": _tiles("min_patches", "min_dynamic_patch"),
        "vision.preproc_max_tiles": _tiles("max_patches", "max_dynamic_patch"),
    },
    names=_INTERN,
    changes={
        "v.class_embd": lambda values, config: values.reshape(-1),
        "v.position_embd.weight": lambda values, config: values.reshape(values.shape[-2:]),
    },
)  # fmt: skip

FAMILIES: Final = (GEMMA3, IDEFICS3, LLAVA, LLAVA_NEXT, LFM2, INTERN)
