"""The vision towers of DeepSeek-OCR, SAM followed by CLIP, and of DeepSeek-OCR 2, SAM followed by Qwen 2."""

from __future__ import annotations

import math
from typing import Any, Final

from puna.convert.config import Config
from puna.convert.family import Family, Key, Place
from puna.convert.towers.clip import kept, keys

_SAM_LAYER: Final = {
    "norm1": "pre_ln", "norm2": "post_ln", "attn.qkv": "attn.qkv", "attn.proj": "attn.out",
    "attn.rel_pos_h": "attn.pos_h.weight", "attn.rel_pos_w": "attn.pos_w.weight", "mlp.lin1": "mlp.lin1",
    "mlp.lin2": "mlp.lin2",
}  # fmt: skip
_CLIP_LAYER: Final = {
    "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.out_proj": "attn_out", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
_QWEN_LAYER: Final = {
    "input_layernorm": "ln1", "post_attention_layernorm": "ln2", "self_attn.o_proj": "attn_out",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}  # fmt: skip
_SAM_NAMES: Final[dict[str, Place]] = {
    "sam_model.pos_embed": "v.sam.pos_embd.weight", "sam_model.patch_embed.proj": "v.sam.patch_embd",
    "sam_model.neck.{}": "v.sam.neck.{}", "sam_model.net_2": "v.sam.net_2",
    "sam_model.net_3": "v.sam.net_3",
    **{
        f"sam_model.blocks.{{}}.{theirs}": f"v.sam.blk.{{}}.{ours}"
        for theirs, ours in _SAM_LAYER.items()
    },
    "projector.layers": "mm.model.fc", "view_seperator": "v.view_seperator",
}  # fmt: skip


def _size(part: str, name: str, times: int = 1) -> Key:
    """Return a key for a number that config.json gives for SAM or for CLIP."""

    def key(config: Config) -> int:
        found: Any = config["width"][part][name]
        return times * int(found)

    return key


_CLIP, _SAM = "clip-l-14-224", "sam_vit_b"


def _scale(config: Config) -> int | None:
    """Return the patches per side that are merged into one row, counted as in llama.cpp; None if four.

    No reader uses it.
    """
    found: Any = config["width"][_CLIP]
    side = int(found["image_size"]) // int(found["patch_size"])
    scale = side // math.isqrt(config.image_setting("image_seq_length", 256))
    return None if scale in (0, 4) else scale


def _encoder(name: str, usual: Any) -> Key:
    """Return a key for a setting of the Qwen 2, which the first checkpoints leave to the model's code."""

    def key(config: Config) -> Any:
        given = config.get(f"encoder_config.{name}")
        return usual if given is None else given

    return key


def _rotation(config: Config) -> float | None:
    """Return the base of the Qwen 2's rotation; None if it is the usual one."""
    if config.get("encoder_config") is None:
        return None
    rope = config.get("encoder_config.rope_parameters") or {}
    base = rope.get("rope_theta") or config.get("encoder_config.rope_theta") or 10000
    return None if base == 1e6 else float(base)


def _sam(name: str, first: str) -> Key:
    """Return a key for a size of SAM, called `first` in the first checkpoints."""
    return lambda config: config.get(f"sam_config.{name}") or config["width"][_SAM][first]


def _tiles(name: str, usual: int) -> Key:
    """Return a key for the minimum or maximum number of tiles."""
    return lambda config: config.image_setting(name, usual)


FAMILIES: Final = (
    Family(
        hf=("DeepseekOCRForCausalLM",), architecture="clip",
        kept=kept("sam_model.", "projector.", "image_newline", "view_seperator"),
        keys={
            **keys("deepseekocr", 1e-5),
            "vision.image_size": _size(_CLIP, "image_size"), "vision.patch_size": _size(_CLIP, "patch_size"),
            "vision.embedding_length": _size(_CLIP, "width"), "vision.block_count": _size(_CLIP, "layers"),
            "vision.feed_forward_length": _size(_CLIP, "width", times=4),
            "vision.attention.head_count": _size(_CLIP, "heads"),
            "vision.projector.scale_factor": _scale,
            "vision.window_size": lambda config: config.get("window_size") or 14,
            "vision.preproc_min_tiles": lambda config: 2, "vision.preproc_max_tiles": lambda config: 9,
            "vision.sam.block_count": _size(_SAM, "layers"),
            "vision.sam.embedding_length": _size(_SAM, "width"),
            "vision.sam.head_count": _size(_SAM, "heads"),
        },
        names={
            "tower.embeddings.class_embedding": "v.class_embd",
            "tower.embeddings.patch_embedding": "v.patch_embd",
            "tower.embeddings.position_embedding": "v.position_embd",
            "tower.embeddings.position_ids": None, "tower.pre_layrnorm": "v.pre_ln",
            **{
                f"tower.transformer.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}"
                for theirs, ours in _CLIP_LAYER.items()
            },
            **_SAM_NAMES, "image_newline": "v.image_newline",
        },
    ),
    Family(
        hf=("DeepseekOCR2ForCausalLM", "DeepseekOcr2ForConditionalGeneration"), architecture="clip",
        kept=kept("sam_model.", "qwen2_model.", "projector.", "view_seperator"),
        keys={
            **keys("deepseekocr2", 1e-6),
            "vision.attention.layer_norm_epsilon": _encoder("rms_norm_eps", 1e-6),
            "vision.image_size": lambda config: config.get("sam_config.image_size", "image_size") or 1024,
            "vision.patch_size": lambda config: config.get("sam_config.patch_size") or 16,
            "vision.embedding_length": lambda config: (
                config.get("encoder_config.hidden_size") or config["width"]["qwen2-0-5b"]["dim"]
            ),
            "vision.feed_forward_length": _encoder("intermediate_size", 4864),
            "vision.block_count": _encoder("num_hidden_layers", 24),
            "vision.attention.head_count": _encoder("num_attention_heads", 14),
            "vision.attention.head_count_kv": _encoder("num_key_value_heads", 2),
            "vision.rope.freq_base": _rotation,
            "vision.window_size": lambda config: config.get("sam_config.window_size") or 14,
            "vision.preproc_min_tiles": _tiles("min_patches", 2),
            "vision.preproc_max_tiles": _tiles("max_patches", 6),
            "vision.sam.block_count": _sam("num_hidden_layers", "layers"),
            "vision.sam.embedding_length": _sam("hidden_size", "width"),
            "vision.sam.head_count": _sam("num_attention_heads", "heads"),
        },
        names={
            **_SAM_NAMES, "qwen2_model.query_768": "v.resample_query_768",
            "qwen2_model.query_1024": "v.resample_query_1024", "qwen2_model.model.model.norm": "v.post_ln",
            **{
                f"qwen2_model.model.model.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}"
                for theirs, ours in _QWEN_LAYER.items()
            },
        },
    ),
)  # fmt: skip
