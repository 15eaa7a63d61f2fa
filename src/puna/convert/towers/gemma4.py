"""What sees in Gemma 4, whose linears keep within bounds, and in MiniCPM-V 4.6, which merges midway."""

from __future__ import annotations

from typing import Final

from puna.convert.config import Config
from puna.convert.family import Change, Family, Place
from puna.convert.numbers import Values
from puna.convert.towers.clip import LAYER, kept, keys, square

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
GEMMA4: Final = Family(
    hf=("Gemma4ForConditionalGeneration",), architecture="clip", kept=kept("embed_vision."),
    keys={
        "vision.projector_type": lambda config: "gemma4v",
        "vision.image_size": lambda config: 224,  # which is not used
        "vision.attention.layer_norm_epsilon": lambda config: config.get("layer_norm_eps") or 1e-6,
    },
    names=_NAMES, changes=_CHANGES,
)  # fmt: skip

_MERGER: Final = {"pre_norm": "input_norm", "linear_1": "up", "linear_2": "down"}
_MIDWAY: Final = {
    "layer_norm1": "ln1", "pre_norm": "ds_ln", "linear_1": "ds_ffn_up", "linear_2": "ds_ffn_down",
    "self_attn.out_proj": "attn_out", **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
}  # fmt: skip


def _inserted(config: Config) -> list[int]:
    """After which layer patches are merged."""
    layer = config.whole.get("insert_layer_id", config.get("insert_layer_id"))
    return [6 if layer is None else int(layer)]


MINICPM: Final = Family(
    hf=("MiniCPMV4_6ForConditionalGeneration",), architecture="clip", kept=kept("merger."),
    keys={
        **keys("minicpmv4_6", 1e-6), "vision.projector.scale_factor": lambda config: 4,
        "vision.wa_layer_indexes": _inserted,
        "vision.image_size": lambda config: config.picture("scale_resolution", config.get("image_size")),
    },
    names={
        "tower.embeddings.patch_embedding": "v.patch_embd",
        "tower.embeddings.position_embedding": "v.position_embd", "tower.post_layernorm": "v.post_ln",
        **{f"tower.encoder.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}" for theirs, ours in LAYER.items()},
        **{f"tower.vit_merger.{theirs}": f"v.vit_merger.{ours}" for theirs, ours in _MIDWAY.items()},
        **{f"merger.{theirs}": f"mm.{ours}" for theirs, ours in _MERGER.items()},
    },
    rename=lambda name, config: name.replace("merger.mlp.0.", "merger."),
)  # fmt: skip
FAMILIES: Final = (GEMMA4, MINICPM)
