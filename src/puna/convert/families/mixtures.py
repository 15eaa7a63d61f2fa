"""Lineages with many small experts beside attention, some of them with sliding windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from puna.convert.config import Config
from puna.convert.families.llama import EXAONE4
from puna.convert.families.small_lineages import COHERE
from puna.convert.family import PLAIN, Assumption, Family, Key
from puna.errors import ConversionError, shown

_SIGMOID: Final[dict[str, Key]] = {"expert_gating_func": lambda config: 2}
#: The window, in models where any layer has one.
_WINDOWS: Final[dict[str, Key]] = {
    "attention.sliding_window": lambda config: config.get("sliding_window") if _has_windows(config) else None,
    "attention.sliding_window_pattern": lambda config: config.windows() if _has_windows(config) else None,
}


#: Settings that others override: the size of no layer's window, and the first layer with experts.
_HARMLESS: Final = ("sliding_window", "first_k_dense_replace")


def _has_windows(config: Config) -> bool:
    return any(config.windows() or ())


def _dense(config: Config) -> int:
    """Return how many layers precede the first with experts."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list) and kinds:
        return kinds.index("sparse") if "sparse" in kinds else len(kinds)
    return int(config.get("first_k_dense_replace", otherwise=0))


def _kinds(config: Config) -> list[str]:
    """Return each layer's type in the form GGUF can express: experts in all layers after the first few."""
    dense = _dense(config)
    return ["dense"] * dense + ["sparse"] * (config.layers - dense)


_EXPERTS: Final[dict[str, Key]] = {
    "vocab_size": "vocab_size", "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_norm": "norm_topk_prob", "expert_weights_scale": "routed_scaling_factor",
    "leading_dense_block_count": _dense,
}  # fmt: skip


def _shared_size(config: Config) -> int:
    """Return the size of all shared experts together, which are one network in files."""
    return config.count("moe_intermediate_size") * config.count("num_shared_experts")


def _if_overridden(name: str) -> Assumption:
    """Return the required value of a setting of `rope_scaling`: any beside `rope_parameters`, else none."""
    return lambda config: config.peek(name) if config.peek("rope_parameters") else ()


#: Where layer types have separate rotations, transformers does not read the old name of the setting.
_SEPARATE_ROTATIONS: Final[dict[str, Assumption]] = {
    name: _if_overridden(name) for name in ("rope_scaling.type", "rope_scaling.rope_type")
}


def _rotated(config: Config, kind: str, otherwise: float = 1.0) -> int:
    """Return how many values of a head rotate in layers of the type `kind`."""
    share = config.get(f"rope_parameters.{kind}.partial_rotary_factor")
    return int(config.head_size * float(otherwise if share is None else share))


def _heads(config: Config) -> list[int]:
    """Return each layer's number of query heads."""
    given = config.get("num_attention_heads_per_layer")
    return list(given) if isinstance(given, list) else [config.heads] * config.layers


LAGUNA: Final = Family(
    hf=("LagunaForCausalLM",), architecture="laguna",
    keys={
        **_EXPERTS, **_WINDOWS, **_SIGMOID, "attention.head_count": _heads,
        "expert_weights_norm": lambda config: True, "expert_weights_scale": "moe_routed_scaling_factor",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
        "rope.dimension_count": lambda config: _rotated(config, "full_attention"),
        "rope.dimension_count_swa": lambda config: _rotated(config, "sliding_attention"),
    },
    names={
        "model.layers.{}.self_attn.g_proj": "blk.{}.attn_gate",
        "model.layers.{}.mlp.experts.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
    },
    pre="laguna",
    assumed={
        **_SEPARATE_ROTATIONS, "mlp_layer_types": _kinds, "moe_router_logit_softcapping": 0.0,
        "moe_apply_router_weight_on_input": False,
    },
    # The tensors show the kind of gates.
    harmless=(*_HARMLESS, "gating", "gating_types", "partial_rotary_factor", "num_attention_heads"),
    defaults={
        "head_dim": 128, "num_key_value_heads": 8, "sliding_window": 512, "rms_norm_eps": 1e-6,
        "shared_expert_intermediate_size": 512, "first_k_dense_replace": 1, "rope_theta": 10000.0,
        "attention_bias": False,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
)  # fmt: skip
#: `model.` precedes all of them.
_LING: Final = {
    "word_embeddings": "token_embd", "layers.{}.attention.query_key_value": "blk.{}.attn_qkv",
    "layers.{}.attention.dense": "blk.{}.attn_output",
    "layers.{}.attention.query_layernorm": "blk.{}.attn_q_norm",
    "layers.{}.attention.key_layernorm": "blk.{}.attn_k_norm",
    "layers.{}.mlp.gate.expert_bias": "blk.{}.exp_probs_b.bias",
    "layers.{}.final_layernorm": "blk.{}.layer_output_norm",
}  # fmt: skip
LING2: Final = Family(
    hf=("BailingMoeV2ForCausalLM",), architecture="bailingmoe2",
    keys={
        **_EXPERTS, **_SIGMOID, "expert_shared_count": "num_shared_experts",
        "expert_shared_feed_forward_length": _shared_size,
        "expert_weights_norm": lambda config: config.count("num_experts_per_tok") > 1,
        "rope.dimension_count": lambda config: int(
            config.head_size * config.rope["partial_rotary_factor"]
        ),
    },
    names={f"model.{theirs}": ours for theirs, ours in _LING.items()}, pre="bailingmoe2",
    assumed={
        "norm_topk_prob": True, "score_function": "sigmoid", "use_qk_norm": True, "use_rmsnorm": True,
        "norm_head": False, "norm_softmax": False,
        "moe_shared_expert_intermediate_size": _shared_size,
    },
    harmless=("max_window_layers", "moe_router_enable_expert_bias"),
    defaults={"rope_theta": 10000.0},
)  # fmt: skip


def _last_with_full_attention(config: Config) -> object:
    """Return the required number of layers before those with a window, which GGUF cannot express."""
    given = config.peek("max_window_layers")
    windowed = config.peek("layer_types") is None and config.peek("sliding_window") and given < config.layers
    return config.layers if windowed else given


DOTS1: Final = Family(
    hf=("Dots1ForCausalLM",), architecture="dots1",
    keys={**_EXPERTS, **_SIGMOID, "expert_shared_count": "n_shared_experts"}, pre="qwen2",
    assumed={
        "mlp_layer_types": _kinds, "scoring_func": ("sigmoid", "noaux_tc"), "topk_method": "noaux_tc",
        "moe_layer_freq": 1, "max_window_layers": _last_with_full_attention,
    },
    harmless=_HARMLESS,
    defaults={
        "norm_topk_prob": False, "rope_theta": 10000.0, "sliding_window": 4096, "max_window_layers": 62,
        "attention_bias": False,
    },
)  # fmt: skip
#: The kind of windows and rotations is EXAONE 4's.
EXAONE_MOE: Final = replace(
    EXAONE4, hf=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"), architecture="exaone-moe",
    keys={
        **EXAONE4.keys, **_EXPERTS, **_SIGMOID, "expert_shared_count": "num_shared_experts",
        "expert_shared_feed_forward_length": _shared_size,
    },
    names={"model.layers.{}.mlp.e_score_correction_bias": "blk.{}.exp_probs_b.bias"},
    dropped=("mtp.",), pre="exaone-moe",
    assumed={**EXAONE4.assumed, "mlp_layer_types": _kinds, "scoring_func": "sigmoid"},
    harmless=("mtp_*", "first_k_dense_replace"),
    defaults={
        **EXAONE4.defaults, "first_k_dense_replace": 1, "num_shared_experts": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
)  # fmt: skip
MELLUM: Final = Family(
    hf=("MellumForCausalLM",), architecture="mellum",
    keys={
        "vocab_size": "vocab_size", "expert_feed_forward_length": "moe_intermediate_size", **_WINDOWS,
        "rope.freq_base_swa": lambda config: (
            10000.0 if config.local_rope_theta is None else float(config.local_rope_theta)
        ),
    },
    dropped=("mtp.",), pre="mellum2",
    assumed={
        **_SEPARATE_ROTATIONS, "mlp_layer_types": lambda config: ["sparse"] * config.layers,
        "norm_topk_prob": True, "rope_parameters.sliding_attention.partial_rotary_factor": 1.0,
    },
    harmless=("sliding_window", "mtp_*"),
    defaults={
        "head_dim": 128, "num_key_value_heads": 4, "sliding_window": 1024, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "attention_bias": False,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
)  # fmt: skip


def _command_windows(config: Config) -> list[bool]:
    """Return, for each layer of a Command model, whether it has a window; by default, all but every n-th."""
    if (windows := config.windows()) is not None:
        return windows
    dense = int(config.get("first_k_dense_replace", otherwise=0))
    first = config.bounded_count("prefix_dense_sliding_window_pattern")
    every = config.bounded_count("sliding_window_pattern")
    return [
        (layer + 1) % first > 0 if layer < dense else (layer - dense + 1) % every > 0
        for layer in range(config.layers)
    ]


def _command_scores(config: Config) -> int:
    """Return the GGUF number of the function that turns the router's logits into scores."""
    name = config.get("expert_selection_fn")
    if name not in ("softmax", "sigmoid"):
        raise ConversionError(f"config.json: experts chosen by {shown(name)} are not supported")
    return 1 if name == "softmax" else 2


def _command_prefix(config: Config) -> object:
    """Return the required period of full attention before the layers with experts.

    Readers rotate all of those layers; transformers only if the period is 1, or they have a window.
    """
    unrotated = not all(_command_windows(config)[: _dense(config)])
    return 1 if unrotated else config.peek("prefix_dense_sliding_window_pattern")


def _command_shared(config: Config) -> int:
    return int(config.get("num_shared_experts", otherwise=0))


COMMAND: Final = Family(
    hf=("Cohere2MoeForCausalLM",), architecture="cohere2moe",
    keys={
        "vocab_size": "vocab_size", "logit_scale": "logit_scale",
        "attention.sliding_window": "sliding_window", "attention.sliding_window_pattern": _command_windows,
        "rope.dimension_count": lambda config: config.head_size, "rope.scaling.type": lambda config: "none",
        "feed_forward_length": ("prefix_dense_intermediate_size", "intermediate_size"),
        "expert_feed_forward_length": "intermediate_size", "expert_gating_func": _command_scores,
        # Scores that are a softmax over the chosen experts sum to 1.
        "expert_weights_norm": lambda config: (
            _command_scores(config) == 1 or bool(config.get("norm_topk_prob"))
        ),
        "expert_shared_count": lambda config: _command_shared(config) or None,
        "expert_shared_feed_forward_length": lambda config: (
            _command_shared(config) * config.count("intermediate_size") or None
        ),
        "leading_dense_block_count": _dense,
    },
    pre="cohere2moe", tied=True, ropes=PLAIN,
    harmless=("first_k_dense_replace", "norm_topk_prob", "sliding_window_pattern"),  # others override them
    assumed={
        **COHERE, "mlp_layer_types": _kinds, "prefix_dense_sliding_window_pattern": _command_prefix,
        "rotary_pct": 1.0, "position_embedding_type": "rope_gptj",
        "shared_expert_combination_strategy": lambda config: (
            "average"
            if _command_shared(config)
            else config.peek("shared_expert_combination_strategy")
        ),
    },
    defaults={
        "head_dim": 128, "sliding_window": 4096, "sliding_window_pattern": 4, "logit_scale": 0.0625,
        "layer_norm_eps": 1e-5, "prefix_dense_sliding_window_pattern": 1, "rope_theta": 10000.0,
        "norm_topk_prob": True, "expert_selection_fn": "softmax", "num_experts": 8, "num_experts_per_tok": 2,
        "shared_expert_combination_strategy": "average", "attention_bias": False,
    },
)  # fmt: skip


def _hy_dense(config: Config) -> int:
    """Return how many layers of a Hy 3 precede the first with experts: without a list of them, one."""
    return 1 if config.get("mlp_layer_types") is None else _dense(config)


#: llama.cpp reads the bias of its experts by a name without a suffix, and leaves out one by the usual name.
_HY: Final = {
    "mlp.router.gate": "ffn_gate_inp", "mlp.expert_bias": "exp_probs_b",
    "mlp.e_score_correction_bias": "exp_probs_b",
    **{f"mlp.shared_mlp.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
    "final_layernorm": "nextn.shared_head_norm",
}  # fmt: skip
HY3: Final = Family(
    hf=("HYV3ForCausalLM",), architecture="hy_v3",
    keys={
        **_EXPERTS, **_SIGMOID, "expert_shared_feed_forward_length": _shared_size,
        "expert_weights_norm": lambda config: True, "expert_weights_scale": "router_scaling_factor",
        "leading_dense_block_count": _hy_dense,
    },
    names={f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _HY.items()},
    assumed={
        "route_norm": True, "first_k_dense_replace": _hy_dense,
        "mlp_layer_types": lambda config: (
            ["dense"] * _hy_dense(config) + ["sparse"] * (config.layers - _hy_dense(config))
        ),
        "moe_router_use_sigmoid": True, "moe_router_enable_expert_bias": True, "qk_norm": True,
    },
    harmless=("enable_moe_fp32_combine", "enable_attention_fp32_softmax", "enable_lm_head_fp32"),
    defaults={
        "head_dim": 128, "num_key_value_heads": 8, "num_experts": 192, "num_experts_per_tok": 8,
        "num_shared_experts": 1, "router_scaling_factor": 2.826, "rope_theta": 11_158_840.0,
        "attention_bias": False, "mlp_bias": False,
    },
)  # fmt: skip


def _has_layout(name: str, config: Config) -> bool:
    return any(config.get(name) or ())


def _thinker_window(config: Config) -> int | None:
    """Return the window, in models where any layer has one."""
    return config.count("sliding_window_size") if _has_layout("sliding_window_layout", config) else None


def _thinker_windows(config: Config) -> list[int]:
    """Return the layout that readers assume: a window in all layers but every fourth, or in none."""
    windowed = _has_layout("sliding_window_layout", config)
    return [int(windowed and layer % 4 > 0) for layer in range(config.layers)]


def _thinker_rotations(config: Config) -> list[int]:
    """Return the layout that readers assume: layers with a window rotate, or all if none has one."""
    windows = _thinker_windows(config)
    return windows if any(windows) else [1] * config.layers


SMALL_THINKER: Final = Family(
    hf=("SmallThinkerForCausalLM", "SmallthinkerForCausalLM"), architecture="smallthinker",
    keys={
        "vocab_size": "vocab_size", "expert_count": "moe_num_primary_experts",
        "expert_used_count": "moe_num_active_primary_experts",
        "expert_feed_forward_length": "moe_ffn_hidden_size", "feed_forward_length": "moe_ffn_hidden_size",
        "expert_gating_func": lambda config: 1 if config.get("moe_primary_router_apply_softmax") else 2,
        "attention.sliding_window": _thinker_window,
        "rope.dimension_count": lambda config: config.head_size,
    },
    names={
        "model.layers.{}.block_sparse_moe.primary_router": "blk.{}.ffn_gate_inp",
        **{
            f"model.layers.{{}}.block_sparse_moe.experts.{{}}.{part}": f"blk.{{}}.ffn_{part}_exps"
            for part in ("gate", "up", "down")
        },
    },
    pre="qwen2",
    assumed={
        "rope_layout": _thinker_rotations, "sliding_window_layout": _thinker_windows,
        # llama.cpp takes any window for one of this size.
        "sliding_window_size": lambda config: 4096 if _thinker_window(config) else (
            config.peek("sliding_window_size")
        ),
        "norm_topk_prob": True, "moe_enable_early_router": True, "moe_enable_secondary_experts": False,
        "moe_shared_primary_experts": 0, "use_qk_norm": False,
        "moe_layer_layout": lambda config: [1] * config.layers,
    },
    harmless=(
        "dense_ffn_hidden_size", "moe_num_secondary_experts", "moe_secondary_expert_size",
        "profile_sparsity", "sliding_window", "sliding_window_pattern", "moe_intermediate_size",
        "num_experts_per_tok",
    ),
    defaults={"head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "sliding_window_size": 4096},
    tied=True,
)  # fmt: skip
FAMILIES: Final = (LAGUNA, LING2, DOTS1, EXAONE_MOE, MELLUM, COMMAND, HY3, SMALL_THINKER)
