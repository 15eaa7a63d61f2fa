"""The vision towers of Gemma 3n (a MobileNet V5) and of Gemma 4, whose linear layers clamp their values."""

from __future__ import annotations

from typing import Final

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Change, Family, Place
from puna.convert.towers.clip import kept, square

_LINEARS: Final = {
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"}, "self_attn.o_proj": "attn_out",
    **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}  # fmt: skip
_NORMS: Final = {
    "input_layernorm": "ln1", "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2", "post_feedforward_layernorm": "ffn_post_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
_BOUNDS: Final = ("input_min", "input_max", "output_min", "output_max")
_LAYER: Final = {**_NORMS, **_LINEARS, **{f"{name}.linear": ours for name, ours in _LINEARS.items()}}
_NAMES: Final[dict[str, Place]] = {
    "tower.patch_embedder.input_proj": "v.patch_embd",
    "tower.patch_embedder.position_embedding_table": "v.position_embd.weight",
    "tower.std_bias": "v.std_bias", "tower.std_scale": "v.std_scale",
    "embed_vision.embedding_projection": "mm.input_projection",
    **{f"tower.encoder.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}" for theirs, ours in _LAYER.items()},
}  # fmt: skip


def _vector(values: Values, config: Config) -> Values:
    return values.reshape(-1)


_CHANGES: Final[dict[str, Change]] = {
    "v.patch_embd.weight": square,
    **{f"{name}.{bound}": _vector for name in _LINEARS.values() for bound in _BOUNDS},
}
_POOL: Final = 3
_MAX_ROWS: Final = 280


def _pool(config: Config) -> int:
    return int(config.get("pooling_kernel_size") or _POOL)


def _max_pixels(config: Config) -> int | None:
    """Return the pixels of the largest image; None if it yields the usual number of rows."""
    rows = config.image_setting("max_soft_tokens", _MAX_ROWS)
    return None if rows == _MAX_ROWS else rows * (_pool(config) * config.count("patch_size")) ** 2


GEMMA4: Final = Family(
    hf=("Gemma4ForConditionalGeneration",), architecture="clip", kept=kept("embed_vision."),
    keys={
        "vision.projector_type": lambda config: "gemma4v",
        "vision.image_size": lambda config: 224,  # unused
        "vision.attention.layer_norm_epsilon": lambda config: config.get("rms_norm_eps") or 1e-6,
        # Published files leave these out, for which llama.cpp assumes the usual values.
        "vision.projector.scale_factor": lambda config: None if _pool(config) == _POOL else _pool(config),
        "vision.image_max_pixels": _max_pixels,
    },
    names=_NAMES, changes=_CHANGES,
)  # fmt: skip

_BLOCK: Final = (
    "conv_exp", "bn1", "conv_pwl", "bn2", "dw_start.conv", "dw_start.bn", "pw_exp.conv", "pw_exp.bn",
    "dw_mid.conv", "dw_mid.bn", "pw_proj.conv", "pw_proj.bn", "layer_scale.gamma", "norm", "attn.query.proj",
    "attn.output.proj",
    *(f"attn.{part}.{name}" for part in ("key", "value") for name in ("down_conv", "norm", "proj")),
)  # fmt: skip
_OUTER: Final = (
    "conv_stem.conv", "conv_stem.bn", "msfa.ffn.pw_exp.conv", "msfa.ffn.pw_exp.bn", "msfa.ffn.pw_proj.conv",
    "msfa.ffn.pw_proj.bn", "msfa.norm",
)  # fmt: skip
_SAID: Final = {
    "embedding": "embedding", "hard_embedding_norm": "hard_emb_norm", "soft_embedding_norm": "soft_emb_norm",
    "embedding_projection": "input_projection",
}  # fmt: skip
_SIDE: Final = 768
_ROWS: Final = 256


def _side(config: Config) -> int:
    size = config.image_setting("size", {})
    return int((size.get("height") if isinstance(size, dict) else None) or _SIDE)


def _by_channel(values: Values, config: Config) -> Values:
    return values.reshape(1, -1, 1, 1)


#: Files describe blocks only by their tensors; keys without a meaning for a MobileNet have llama.cpp's
#: values.
GEMMA3N: Final = Family(
    hf=("Gemma3nForConditionalGeneration",), architecture="clip", kept=kept("embed_vision."),
    keys={
        "vision.projector_type": lambda config: "gemma3nv",
        "vision.image_size": _side,
        "vision.patch_size": lambda config: _side(config) // config.image_setting("image_seq_length", _ROWS),
        "vision.feed_forward_length": lambda config: 4 * (config.get("intermediate_size") or 2048),
        "vision.block_count": lambda config: 128,
        "vision.attention.head_count": lambda config: config.get("num_attention_heads") or 8,
        "vision.attention.layer_norm_epsilon": lambda config: config.get("layer_norm_eps") or 1e-6,
        # Whatever config.json says: images are not normalised.
        "vision.image_mean": lambda config: [0.0] * 3,
        "vision.image_std": lambda config: [1.0] * 3,
    },
    names={
        **{f"tower.timm_model.blocks.{{}}.{{}}.{name}": f"v.blk.{{}}.{{}}.{name}" for name in _BLOCK},
        **{f"tower.timm_model.{name}": f"v.{name}" for name in _OUTER},
        **{f"embed_vision.{theirs}": f"mm.{ours}" for theirs, ours in _SAID.items()},
    },
    changes={"v.conv_stem.conv.bias": _by_channel, "layer_scale.gamma": _by_channel},
)  # fmt: skip
FAMILIES: Final = (GEMMA3N, GEMMA4)
