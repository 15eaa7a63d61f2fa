"""MiMo-V2: windows in most layers, which have more keys, experts, values smaller than keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from puna.convert.config import Config
from puna.convert.family import PLAIN, Assumption, Family, Key, Place


def _windowed(config: Config) -> list[bool]:
    windowed = config.windows() or [bool(kind) for kind in config["hybrid_layer_pattern"]]
    return windowed + [True] * config.heads_ahead


def _kv_heads(config: Config) -> list[int]:
    """Of each layer; layers with windows have twice as many if their number is not said."""
    within = config.get("swa_num_key_value_heads") or 2 * config.kv_heads
    return [within if windowed else config.kv_heads for windowed in _windowed(config)]


def _window(config: Config) -> int:
    """How many tokens are seen before the one that looks; transformers counts that one, too."""
    counted = config.windows() is not None
    return int(config.get("sliding_window_size") or config.count("sliding_window") - counted)


_KEYS: Final[dict[str, Key]] = {
    "attention.head_count_kv": _kv_heads, "attention.sliding_window": _window,
    "attention.sliding_window_pattern": _windowed, "attention.value_length": "v_head_dim",
    "attention.layer_norm_rms_epsilon": lambda config: (
        config.get("layernorm_epsilon", "rms_norm_eps") or 1e-5
    ),
    "expert_weights_norm": "norm_topk_prob", "expert_weights_scale": "routed_scaling_factor",
    "attention.value_scale": "attention_value_scale", "expert_count": "n_routed_experts",
    "expert_feed_forward_length": "moe_intermediate_size", "expert_gating_func": lambda config: 2,
    "rope.dimension_count": lambda config: int(
        config.head_size * config.rope.get("partial_rotary_factor", 1.0)
    ),
}  # fmt: skip
_NAMES: Final[dict[str, Place]] = {
    "model.layers.{}.self_attn.attention_sink_bias": "blk.{}.attn_sinks.weight",
    "model.layers.{}.pre_mlp_layernorm": "blk.{}.ffn_norm",
    "model.layers.{}.final_layernorm": "blk.{}.layer_output_norm",
}
_ASSUMED: Final[dict[str, Assumption]] = {
    "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "rope_parameters.sliding_attention.partial_rotary_factor": lambda config: (
        config.rope.get("partial_rotary_factor", 1.0)
    ),
    "swa_head_dim": lambda config: config.head_size, "swa_v_head_dim": lambda config: config["v_head_dim"],
    "swa_num_attention_heads": lambda config: config.heads,
}  # fmt: skip
#: Layers with experts, and with sinks, are known by their tensors.
_HARMLESS: Final = (
    "add_*_attention_sink_bias", "attention_chunk_size", "hybrid_*", "moe_layer_freq", "mlp_layer_types",
    "n_shared_experts", "num_nextn_predict_layers", "attention_projection_layout", "sliding_window",
    "swa_rope_theta",
)  # fmt: skip
_DEFAULTS: Final = {"norm_topk_prob": True, "attention_value_scale": 0.707}
_ROTATION: Final = {
    kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
    for kind, theta in (("full_attention", 5e6), ("sliding_attention", 1e4))
}
#: As the authors publish it.
_MIMO: Final = Family(
    hf=("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"), architecture="mimo2", keys=_KEYS, names=_NAMES,
    pre="qwen2", ropes=PLAIN, assumed=_ASSUMED, harmless=_HARMLESS, defaults=_DEFAULTS,
    when=lambda config: config.get("hybrid_layer_pattern") is not None,
)  # fmt: skip
FAMILIES: Final = (
    _MIMO,
    replace(  # as transformers writes it
        _MIMO, when=lambda config: True, defaults={**_DEFAULTS, "rope_parameters": _ROTATION}
    ),
)  # fmt: skip
