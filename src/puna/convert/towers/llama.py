"""The vision towers of Llama 4, Pixtral, Mistral Small 3.1 and later, and LightOnOCR."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Family, permuted
from puna.convert.towers.clip import activation, kept, rope_base

_LLAMA4_LAYER: Final = {
    "input_layernorm": "ln1", "post_attention_layernorm": "ln2", "self_attn.o_proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
}  # fmt: skip
LLAMA4: Final = Family(
    hf=("Llama4ForConditionalGeneration",), architecture="clip", kept=kept("multi_modal_projector."),
    keys={
        "projector_type": lambda config: "llama4", "use_gelu": lambda config: True,
        "vision.attention.layer_norm_epsilon": lambda config: config.get("norm_eps") or 1e-5,
        "vision.projector.scale_factor": lambda config: int(1 / config["pixel_shuffle_ratio"]),
        "vision.rope.freq_base": rope_base,
    },
    names={
        "tower.patch_embedding.linear": "v.patch_embd", "tower.class_embedding": "v.class_embd",
        "tower.positional_embedding_vlm": "v.position_embd.weight", "tower.layernorm_pre": "v.pre_ln",
        "tower.layernorm_post": "v.post_ln", "tower.vision_adapter.mlp.fc1": "mm.model.mlp.1",
        "tower.vision_adapter.mlp.fc2": "mm.model.mlp.2", "multi_modal_projector.linear_1": "mm.model.fc",
        **{
            f"tower.model.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}"
            for theirs, ours in _LLAMA4_LAYER.items()
        },
    },
)  # fmt: skip

_PIXTRAL_LAYER: Final = {
    "attention_norm": "ln1", "ffn_norm": "ln2", "attention.o_proj": "attn_out",
    **{f"attention.{part}_proj": f"attn_{part}" for part in "qkv"},
    **{f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}  # fmt: skip


def _row_end(values: Values, config: Config) -> Values:
    """Return the embedding that marks the end of an image's row."""
    row: Values = values[config.added_token_id("[IMG_BREAK]")]
    return row


def _longest_edge(config: Config) -> int | None:
    """Return the most pixels of a picture's side; None if they are the image size, which readers use."""
    size: Any = config.image_setting("size", {})
    edge = size.get("longest_edge") if isinstance(size, dict) else None
    return None if edge == config.get("image_size") else edge


PIXTRAL: Final = Family(
    hf=("Mistral3ForConditionalGeneration", "LlavaForConditionalGeneration"), architecture="clip",
    kept=kept("multi_modal_projector.", "language_model.embed_tokens.", "language_model.model.embed_tokens."),
    keys={
        "projector_type": lambda config: "pixtral",
        "vision.attention.layer_norm_epsilon": lambda config: config.get("layer_norm_eps") or 1e-5,
        "vision.spatial_merge_size": lambda config: config.whole.get("spatial_merge_size"),
        "vision.rope.freq_base": rope_base,
        "use_gelu": lambda config: activation(config).get("use_gelu"),
        "use_silu": lambda config: activation(config).get("use_silu"),
    },
    names={
        "tower.patch_conv": "v.patch_embd", "tower.ln_pre": "v.pre_ln",
        **{
            f"tower.transformer.layers.{{}}.{theirs}": f"v.blk.{{}}.{ours}"
            for theirs, ours in _PIXTRAL_LAYER.items()
        },
        "multi_modal_projector.norm": "mm.input_norm", "multi_modal_projector.linear_1": "mm.1",
        "multi_modal_projector.linear_2": "mm.2",
        "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
        "language_model.embed_tokens.weight": "v.token_embd.img_break",
        "language_model.model.embed_tokens.weight": "v.token_embd.img_break",
    },
    changes={
        "v.token_embd.img_break": _row_end,
        **{f"attn_{part}.weight": permuted(lambda config: config.heads) for part in "qk"},
    },
    when=lambda config: (config.raw.get("vision_config") or {}).get("model_type") == "pixtral",
)  # fmt: skip
_PROJECTOR: Final = "multi_modal_projector."
LIGHTON: Final = replace(
    PIXTRAL, hf=("LightOnOCRForConditionalGeneration", "LightOnOcrForConditionalGeneration"),
    kept=kept("vision_projection."),
    keys={
        **PIXTRAL.keys, "projector_type": lambda config: "lightonocr", "vision.longest_edge": _longest_edge,
    },
    names={
        name.replace(_PROJECTOR, "vision_projection."): place
        for name, place in PIXTRAL.names.items()
        if not name.startswith("language_model.")
    },
)  # fmt: skip
FAMILIES: Final = (LLAMA4, PIXTRAL, LIGHTON)
