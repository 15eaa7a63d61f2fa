"""The vision tower of DeepSeek-OCR: SAM followed by CLIP."""

from __future__ import annotations

import math
from typing import Any, Final

from puna.convert.config import Config
from puna.convert.family import Family, Key
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
            "sam_model.pos_embed": "v.sam.pos_embd.weight", "sam_model.patch_embed.proj": "v.sam.patch_embd",
            "sam_model.neck.{}": "v.sam.neck.{}", "sam_model.net_2": "v.sam.net_2",
            "sam_model.net_3": "v.sam.net_3",
            **{
                f"sam_model.blocks.{{}}.{theirs}": f"v.sam.blk.{{}}.{ours}"
                for theirs, ours in _SAM_LAYER.items()
            },
            "projector.layers": "mm.model.fc", "image_newline": "v.image_newline",
            "view_seperator": "v.view_seperator",
        },
    ),
)  # fmt: skip
