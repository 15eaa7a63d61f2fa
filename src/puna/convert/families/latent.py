"""Latent attention with one key for all heads: DeepSeek since V2, GLM 4.7 Flash and 5, Mistral 4, MiniCPM."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import PLAIN, Assumption, Family, Key, Place, Split
from puna.convert.keys import (
    LONG_ROPE,
    long_rope_attention,
    long_rope_factors,
    original_context,
    same_limit,
)
from puna.errors import ConversionError, shown


def _keys_and_values(values: Values, config: Config) -> Sequence[Values]:
    """Return the projections of latents to keys [heads, latent, key] and values [heads, value, latent]."""
    keys = config.count("qk_nope_head_dim")
    heads = values.reshape(config.kv_heads, keys + config.count("v_head_dim"), values.shape[-1])
    return heads[:, :keys].swapaxes(1, 2), heads[:, keys:]


NAMES: Final[dict[str, Place]] = {
    **{
        f"model.layers.{{}}.self_attn.{theirs}": f"blk.{{}}.{ours}"
        for theirs, ours in {
            "q_a_proj": "attn_q_a", "q_a_layernorm": "attn_q_a_norm", "q_b_proj": "attn_q_b",
            "kv_a_proj_with_mqa": "attn_kv_a_mqa", "kv_a_layernorm": "attn_kv_a_norm",
        }.items()
    },
    "model.layers.{}.self_attn.kv_b_proj": Split(
        ("blk.{}.attn_k_b", "blk.{}.attn_v_b"), _keys_and_values
    ),
}  # fmt: skip


def _multiplier(config: Config) -> float | None:
    scale: Any = config.rope.get("mscale_all_dim")
    return None if scale is None else 0.1 * float(scale)


KEYS: Final[dict[str, Key]] = {
    "vocab_size": "vocab_size",
    "attention.head_count_kv": lambda config: 1,
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.key_length": lambda config: config["kv_lora_rank"] + config["qk_rope_head_dim"],
    "attention.value_length": "kv_lora_rank",
    "attention.key_length_mla": lambda config: config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
    "attention.value_length_mla": "v_head_dim",
    "attention.layer_norm_rms_epsilon": lambda config: config.get("rms_norm_eps", otherwise=1e-6),
    "rope.dimension_count": "qk_rope_head_dim",
    "rope.scaling.yarn_log_multiplier": _multiplier,
    "expert_feed_forward_length": ("moe_intermediate_size", "intermediate_size"),
    "expert_shared_count": lambda config: config.get("n_shared_experts", otherwise=0),
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": lambda config: bool(config.get("norm_topk_prob")),  # null is false
    "leading_dense_block_count": lambda config: dense_layers(config),
}


def dense_layers(config: Config, otherwise: int = 0) -> int:
    """Return how many layers precede those with experts, or `otherwise` if config.json lacks the number."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list) and kinds:
        return kinds.index("sparse") if "sparse" in kinds else len(kinds)
    given = config.get("first_k_dense_replace")
    if given is None:
        return (
            otherwise if config.get("n_routed_experts", "num_experts", "num_local_experts") else config.layers
        )
    return int(given)


def _kinds(config: Config) -> list[str]:
    """Return each layer's type in the form GGUF can express: experts in all layers after the first few."""
    dense = dense_layers(config)
    return ["dense"] * dense + ["sparse"] * (config.layers - dense)


def _rotated_share(config: Config) -> float:
    """Return the share of `head_dim` that is rotated."""
    return float(config["qk_rope_head_dim"] / (config.get("head_dim") or config["qk_rope_head_dim"]))


#: Readers use one value for both scales.
SAME_SCALES: Final[dict[str, Assumption]] = {
    "rope_parameters.mscale": lambda config: config.rope.get("mscale_all_dim", ()),
    "rope_parameters.mscale_all_dim": lambda config: config.rope.get("mscale", ()),
}
ASSUMED: Final[dict[str, Assumption]] = {
    "first_k_dense_replace": dense_layers,
    "mlp_layer_types": _kinds,
    "moe_layer_freq": 1,
    "qk_head_dim": lambda config: config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
    "rope_interleave": True,
    **SAME_SCALES,
    "rope_parameters.attention_factor": (),
    "rope_parameters.partial_rotary_factor": _rotated_share,
    "partial_rotary_factor": lambda config: (1.0, _rotated_share(config)),
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
#: Beside the others, of models that attend to the positions an indexer chooses.
INDEXER_NAMES: Final[dict[str, Place]] = {
    f"model.layers.{{}}.self_attn.indexer.{theirs}": f"blk.{{}}.indexer.{ours}"
    for theirs, ours in {
        "wq_b": "attn_q_b", "wk": "attn_k", "k_norm": "k_norm", "weights_proj": "proj",
    }.items()
}  # fmt: skip
INDEXER_KEYS: Final[dict[str, Key]] = {
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
}
_INDEXED: Final[dict[str, Assumption]] = {
    **ASSUMED, "layer_types": lambda config: ["indexed_attention"] * config.layers, "mlp_bias": False,
}  # fmt: skip


def choosing(config: Config) -> list[bool]:
    """Return for each layer whether it has an indexer, as transformers finds it."""
    kinds, pattern = config.get("indexer_types"), config.get("index_topk_pattern")
    period, first = config.get("index_topk_freq"), config.get("index_skip_topk_offset")
    kinds = pattern if kinds is None else kinds
    if kinds is None:
        period, first = max(period or 1, 1), 2 if first is None else first
        return [max(i - first + 1, 0) % period == 0 for i in range(config.layers)]
    known = {"full": True, "F": True, "shared": False, "S": False}
    if len(kinds) != config.layers or any(kind not in known for kind in kinds):
        raise ConversionError(
            f"config.json: the kinds of indexers should be 'full' or 'shared' for each of {config.layers} "
            f"layers, not {shown(kinds)}"
        )
    return [known[kind] for kind in kinds]


def _choosing_in_fours(config: Config) -> list[bool]:
    """Return for each layer of a Hy 4 whether it has an indexer."""
    if config.get("indexer_types") is None:
        return [i == 0 or i % 4 == 1 for i in range(config.layers)]
    return choosing(config)


def _as_published(name: str, config: Config) -> str:
    """Return a tensor's name without what differs between published Hy 4 and what transformers saves."""
    return name.replace(".hc_pre.", ".").replace(".linear_gate.", ".gate_proj.")


_STREAM_NAMES: Final[dict[str, Place]] = {
    **{
        f"model.layers.{{}}.hc_{theirs}_layer.hc_{part}": f"blk.{{}}.hc_{ours}_{part}.weight"
        for theirs, ours in {"attn": "attn", "mlp": "ffn"}.items()
        for part in ("fn", "base", "scale")
    },
    **{f"model.hc_head.hc_head_{part}": f"output_hc_{part}.weight" for part in ("fn", "base", "scale")},
    "model.layers.{}.self_attn.learnable_sink_param": "blk.{}.attn_sinks.weight",
    "model.layers.{}.self_attn.gate_proj": "blk.{}.attn_gate",
}

_HARMLESS: Final = ("head_dim", "rope_parameters.max_position_embeddings")


def _limits_groups(config: Config) -> bool:
    """Whether DeepSeek V2 chooses experts from its best groups only."""
    return bool(config.get("topk_method") == "group_limited_greedy")


def _gating(number: int) -> dict[str, Key]:
    """Return the key for the gating function, which the architecture alone does not imply."""
    return {"expert_gating_func": lambda config: number}


#: Rotation that transformers assumes for Mistral's newer models if config.json has none.
MISTRAL_ROTATION: Final[dict[str, Any]] = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "original_max_position_embeddings": 8192,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip

_LATENT: Final = (
    Family(
        hf=("DeepseekV2ForCausalLM",), architecture="deepseek2",
        keys={
            **KEYS, **_gating(1),
            "expert_group_count": lambda config: config.get("n_group") if _limits_groups(config) else None,
            "expert_group_used_count": lambda config: (
                config.get("topk_group") if _limits_groups(config) else None
            ),
        },
        names=NAMES, pre="deepseek-llm", harmless=(*_HARMLESS, "n_group", "topk_group"),
        defaults={"q_lora_rank": 1536, "moe_intermediate_size": 1407, "n_shared_experts": 2},
        assumed={
            **ASSUMED, "norm_topk_prob": False, "scoring_func": "softmax",
            "topk_method": ("greedy", "group_limited_greedy"),
        },
    ),
    Family(
        hf=("DeepseekV3ForCausalLM",), architecture="deepseek2", keys={**KEYS, **_gating(2)}, names=NAMES,
        pre="deepseek-v3", assumed=ASSUMED, harmless=_HARMLESS,
        defaults={
            "norm_topk_prob": True, "routed_scaling_factor": 2.5, "q_lora_rank": 1536,
            "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "n_shared_experts": 1,
            "moe_intermediate_size": 2048,
        },
    ),
    Family(
        hf=("DeepseekV32ForCausalLM",), architecture="deepseek32",
        keys={**KEYS, **INDEXER_KEYS, **_gating(2)}, names={**NAMES, **INDEXER_NAMES}, pre="deepseek-v3",
        assumed={**_INDEXED, "indexer_rope_interleave": False}, harmless=_HARMLESS,
        defaults={
            "norm_topk_prob": True, "routed_scaling_factor": 2.5, "q_lora_rank": 1536,
            "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "n_shared_experts": 1,
            "moe_intermediate_size": 2048,
            "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128,
        },
    ),
    Family(
        hf=("GlmMoeDsaForCausalLM",), architecture="glm-dsa",
        keys={**KEYS, **INDEXER_KEYS, **_gating(2), "attention.indexer.types": choosing},
        names={**NAMES, **INDEXER_NAMES}, pre="glm4",
        assumed={**_INDEXED, "indexer_rope_interleave": True}, harmless=_HARMLESS,
        defaults={
            "norm_topk_prob": True, "routed_scaling_factor": 2.5, "rms_norm_eps": 1e-5, "q_lora_rank": 2048,
            "first_k_dense_replace": 3, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
            "moe_intermediate_size": 2048,
            "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128,
        },
    ),
    Family(
        hf=("HYV4ForCausalLM",), architecture="hy_v4",
        keys={
            **KEYS, **INDEXER_KEYS, **_gating(2), "attention.indexer.types": _choosing_in_fours,
            "leading_dense_block_count": lambda config: dense_layers(config, 1),
            "swiglu_clamp_exp": same_limit("swiglu_limit"), "hyper_connection.count": "hc_mult",
            "hyper_connection.epsilon": "hc_eps", "hyper_connection.magnitude": "hc_magnitude",
        },
        names={**NAMES, **INDEXER_NAMES, **_STREAM_NAMES}, pre="hy_v4", rename=_as_published,
        dropped=("model.mtp_layers.",),
        assumed={
            **_INDEXED, "layer_types": lambda config: tuple(
                [kind] * config.layers
                for kind in ("indexed_attention", "deepseek_sparse_attention", "sparse_attention")
            ),
            "enable_ihc": True, "use_mla": True, "use_dsa": True, "gated_mla": True,
            "gating_type": "elementwise", "learnable_sink": True,
        },
        harmless=(*_HARMLESS, "bitwise_backward_align", "enable_lm_head_fp32"),
        defaults={
            "norm_topk_prob": True, "routed_scaling_factor": 2.827, "rms_norm_eps": 1e-5, "q_lora_rank": 1536,
            "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "moe_intermediate_size": 768,
            "index_topk": 2048, "index_n_heads": 16,
            "index_head_dim": 128, "hc_mult": 4, "hc_eps": 1e-6, "hc_magnitude": 2.0, "swiglu_limit": 10.0,
        },
    ),
    Family(
        hf=("Glm4MoeLiteForCausalLM",), architecture="deepseek2",
        keys={**KEYS, **_gating(2), "leading_dense_block_count": lambda config: dense_layers(config, 1)},
        names=NAMES, pre="glm4", assumed=ASSUMED, harmless=_HARMLESS,
        defaults={
            "norm_topk_prob": True, "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5,
            "q_lora_rank": 768, "moe_intermediate_size": 1536, "n_shared_experts": 1,
        },
    ),
    Family(
        hf=("Mistral4ForCausalLM", "Mistral3ForConditionalGeneration"), architecture="mistral4",
        keys={**KEYS, "attention.temperature_scale": lambda config: config.rope.get("llama_4_scaling_beta")},
        names={**NAMES, "model.layers.{}.mlp.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps.weight"},
        when=lambda config: config.get("model_type") == "mistral4", pre="tekken",
        assumed={**ASSUMED, "scoring_func": "softmax"}, harmless=_HARMLESS,
        defaults={
            "norm_topk_prob": True, "rope_parameters": MISTRAL_ROTATION, "rope_theta": 10000.0,
            "q_lora_rank": 1024, "moe_intermediate_size": 2048, "n_shared_experts": 1,
        },
    ),
)  # fmt: skip


_SAME: Final = (
    "vocab_size", "attention.layer_norm_rms_epsilon", "expert_feed_forward_length", "expert_shared_count",
    "expert_weights_scale", "expert_weights_norm", "leading_dense_block_count",
)  # fmt: skip
_KEYS: Final[dict[str, Key]] = {
    **{name: KEYS[name] for name in _SAME},
    "attention.head_count_kv": lambda config: config.kv_heads,
    "rope.freq_base": lambda config: float(config.rope.get("rope_theta", 10000.0)),
}

#: Scales of MiniCPM 3, which no file states.
_MINICPM_SCALES: Final[dict[str, Any]] = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}


def _check_scales(config: Config, ignore: Collection[str]) -> list[str]:
    """Raise ConversionError if a scale is null, which means that there is none."""
    for name, value in _MINICPM_SCALES.items():
        if name not in ignore and config.peek(name) is None:
            raise ConversionError(
                f"config.json: '{name}' is null, but a file of architecture minicpm3 can only have {value}"
            )
    return []


FAMILIES: Final = (
    *_LATENT,
    Family(
        hf=("DeepseekForCausalLM",), architecture="deepseek",
        keys={**_KEYS, "rope.dimension_count": lambda config: config.head_size}, pre="deepseek-llm",
        assumed={
            "norm_topk_prob": False, "scoring_func": "softmax", "moe_layer_freq": 1,
            "rope_parameters.attention_factor": (),
        },
        defaults={"n_shared_experts": None},
    ),
    Family(
        hf=("MiniCPM3ForCausalLM",), architecture="minicpm3",
        keys={
            "vocab_size": "vocab_size", "attention.q_lora_rank": "q_lora_rank",
            "attention.kv_lora_rank": "kv_lora_rank", "rope.dimension_count": "qk_rope_head_dim",
            "attention.key_length": KEYS["attention.key_length_mla"],
            "attention.value_length": lambda config: (
                config.get("v_head_dim", otherwise=config.count("hidden_size") // config.heads)
            ),
            "rope.scaling.original_context_length": lambda config: (
                original_context(config) if config.rope.get("long_factor") else None
            ),
            "rope.scaling.attn_factor": long_rope_attention,
        },
        names={**NAMES, "model.layers.{}.self_attn.kv_b_proj": "blk.{}.attn_kv_b"}, extra=long_rope_factors,
        tied=True, ropes=(*PLAIN, "longrope", "su"), harmless=("head_dim",),
        defaults={"q_lora_rank": 768, **_MINICPM_SCALES},
        check_others=_check_scales, assumed={
            **LONG_ROPE, **_MINICPM_SCALES,
            "qk_head_dim": ASSUMED["qk_head_dim"], "rope_parameters.partial_rotary_factor": 1.0,
        },
    ),
    Family(
        hf=(
            "DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM", "DeepseekOcr2ForConditionalGeneration",
        ),
        architecture="deepseek2-ocr", keys=_KEYS, pre="deepseek-v3",
        dropped=("model.sam_model.", "model.qwen2_model.", "model.view_seperator"),
        assumed={
            "norm_topk_prob": False, "scoring_func": "softmax", "topk_method": "greedy", "use_mla": False,
            "moe_layer_freq": 1, "lm_head": True, "rm_head": False, "mlp_layer_types": _kinds,
            "first_k_dense_replace": dense_layers,
            "head_dim": lambda config: config.count("hidden_size") // config.heads,
        },
        harmless=("v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "n_group", "topk_group"),
        defaults={"n_shared_experts": 2},
    ),
)  # fmt: skip
