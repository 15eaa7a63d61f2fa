"""Lineages with many small experts beside attention, some of them with sliding windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.llama import EXAONE4
from puna.convert.families.small_lineages import COHERE
from puna.convert.family import PLAIN, Assumption, Family, Key, Place, Split, halves
from puna.convert.keys import llama3_factors
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
    return int(config.get("first_k_dense_replace") or 0)


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
        "rope.freq_base_swa": lambda config: float(config.local_rope_theta or 10000.0),
    },
    dropped=("mtp.",), pre="mellum2",
    assumed={
        **_SEPARATE_ROTATIONS, "mlp_layer_types": lambda config: ["sparse"] * config.layers,
        "norm_topk_prob": True, "rope_parameters.sliding_attention.partial_rotary_factor": 1.0,
    },
    harmless=("sliding_window", "mtp_*", "num_mtp_layers"),
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
    dense = int(config.get("first_k_dense_replace") or 0)
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
    return int(config.get("num_shared_experts") or 0)


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


#: Settings of the indexer by their names in `sparse_attention_config`, which come first.
_BLOCKS: Final = {
    "sparse_num_index_heads": "index_n_heads", "sparse_index_dim": "index_head_dim",
    "sparse_block_size": "index_block_size", "sparse_topk_blocks": "index_topk_blocks",
    "sparse_local_block": "index_local_blocks",
}  # fmt: skip


def _of_blocks(name: str) -> tuple[str, str]:
    return f"sparse_attention_config.{name}", _BLOCKS[name]


def _sparse(config: Config, kinds: str, marks: str, sparse: str, otherwise: bool) -> list[bool]:
    """Return which layers are of the kind `sparse`, by a list of kinds or one of numbers that are not 0."""
    if (given := config.get(kinds)) is not None:
        return [kind == sparse for kind in given]
    marked = config.get(marks)
    return [otherwise] * config.layers if marked is None else [bool(mark) for mark in marked]


def _minimax_dense(config: Config) -> int:
    """Return how many layers precede those with experts, which must be those with sparse attention."""
    experts = _sparse(config, "mlp_layer_types", "moe_layer_freq", "sparse", True)
    attention = _sparse(
        config, "layer_types", "sparse_attention_config.sparse_attention_freq", "minimax_m3_sparse", False
    )
    dense = experts.index(True) if True in experts else len(experts)
    expected = [layer >= dense for layer in range(config.layers)]
    if experts != expected or attention != expected:
        raise ConversionError(
            "config.json: a file of architecture minimax-m3 has experts and sparse attention in the same "
            "layers, all but the first ones"
        )
    return dense


def _minimax_shared(config: Config) -> int:
    """Return how many experts of the usual size the shared network is."""
    shared, size = config.count("shared_intermediate_size"), config.count("intermediate_size")
    if shared % size:
        raise ConversionError(
            f"config.json: 'shared_intermediate_size' is {shared}, not a multiple of an expert's {size}"
        )
    return shared // size


def _minimax_rotated(config: Config) -> int:
    share = config.rope.get("partial_rotary_factor")
    return int(config.head_size * float(1.0 if share is None else share))


def _minimax_heads(config: Config) -> int:
    """Return the number of the indexer's heads, one for each key/value head."""
    heads = config.count(*_of_blocks("sparse_num_index_heads"))
    if heads != config.kv_heads:
        raise ConversionError(
            f"config.json: 'index_n_heads' is {heads}, but there are {config.kv_heads} key/value heads"
        )
    return heads


def _minimax_key(config: Config) -> int:
    """Return the size of the indexer's keys, which have room for the rotated values."""
    size, rotated = config.count(*_of_blocks("sparse_index_dim")), _minimax_rotated(config)
    if size < rotated:
        raise ConversionError(
            f"config.json: 'index_head_dim' is {size}, fewer than the {rotated} values that rotate"
        )
    return size


def _minimax_local(config: Config) -> int:
    """Return how many of the chosen blocks are always the last ones."""
    most, local = (
        config.count(*_of_blocks("sparse_topk_blocks")),
        config.get(*_of_blocks("sparse_local_block")),
    )
    if type(local) is not int or not 0 <= local <= most:
        raise ConversionError(
            f"config.json: 'index_local_blocks' is {shown(local)}, of the {most} blocks attended to"
        )
    return local


#: As published, and as transformers saves them.
_MINIMAX: Final[dict[str, Place]] = {
    **{f"self_attn.index_{part}": f"indexer.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm")},
    **{f"self_attn.indexer.{part}": f"indexer.{part}" for part in ("q_proj", "k_proj", "q_norm", "k_norm")},
    **{
        f"block_sparse_moe.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")
    },
}  # fmt: skip
MINIMAX_M3: Final = Family(
    hf=(
        "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3SparseForCausalLM", "MiniMaxM3VLForCausalLM",
    ),
    architecture="minimax-m3",
    keys={
        **_SIGMOID,
        "feed_forward_length": "dense_intermediate_size", "expert_feed_forward_length": "intermediate_size",
        "expert_shared_count": _minimax_shared, "expert_weights_scale": "routed_scaling_factor",
        "expert_weights_norm": lambda config: True, "leading_dense_block_count": _minimax_dense,
        "rope.dimension_count": _minimax_rotated,
        "attention.indexer.head_count": _minimax_heads, "attention.indexer.key_length": _minimax_key,
        "attention.indexer.block_size": _of_blocks("sparse_block_size"),
        "attention.indexer.top_k": _of_blocks("sparse_topk_blocks"),
        "attention.indexer.local_blocks": _minimax_local,
    },
    names={
        **{f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _MINIMAX.items()},
        "model.layers.{}.mlp.gate_up_proj": Split(
            ("blk.{}.ffn_gate", "blk.{}.ffn_up"), halves
        ),
        "model.layers.{}.mlp.shared_experts.gate_up_proj": Split(
            ("blk.{}.ffn_gate_shexp", "blk.{}.ffn_up_shexp"), halves
        ),
    },
    norm_offset=1.0, dropped=("mtp.", "model.mtp.", "language_model.mtp.", "patch_merge_mlp."),
    pre="minimax-m2",
    assumed={
        # transformers replaces any activation by this one, which is computed from the two others.
        "hidden_act": ("swigluoai", "silu"), "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
        "rotary_dim": _minimax_rotated,
        "partial_rotary_factor": lambda config: _minimax_rotated(config) / config.head_size,
        "n_shared_experts": _minimax_shared, "scoring_func": "sigmoid", "qk_norm_type": "per_head",
        "use_gemma_norm": True, "attention_output_gate": False,
        "sparse_attention_config.use_sparse_attention": True,
        "sparse_attention_config.sparse_score_type": "max",
        "sparse_attention_config.sparse_init_block": 0,
        "sparse_attention_config.sparse_disable_index_value": lambda config: [
            int(layer >= _minimax_dense(config)) for layer in range(config.layers)
        ],
    },
    harmless=("use_routing_bias", "num_mtp_modules", "mtp_*", "use_mtp"),
    defaults={
        "head_dim": 128, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
        "num_local_experts": 128, "num_experts_per_tok": 4, "routed_scaling_factor": 2.0,
        "dense_intermediate_size": 12288, "shared_intermediate_size": 3072, "index_n_heads": 4,
        "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16, "index_local_blocks": 1,
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


def _step_kinds(config: Config) -> list[str]:
    """Return the type of each layer of a Step 3.5, and of the heads that follow them."""
    layers, all_layers = config.layers, config.layers + config.heads_ahead
    given = config.get("layer_types") or ["full_attention"] * layers
    ahead = given[layers:] or config.get("mtp_layer_types") or ["full_attention"] * config.heads_ahead
    return [*given[:layers], *ahead][:all_layers]


def _step_of_kind(config: Config, kind: str, listed: str, stated: str, otherwise: float) -> float:
    """Return a number of the rotation in layers of a `kind`.

    Published settings have it for each layer (`listed`), those that transformers saves for each type
    (`stated`).
    """
    if isinstance(found := config.get(f"rope_parameters.{kind}.{stated}"), int | float):
        return float(found)
    found = config.get(listed)
    if isinstance(found, list):
        kinds = _step_kinds(config)
        each = {number for number, of in zip(found, kinds, strict=False) if of == kind}
        if len(each) > 1:
            raise ConversionError(f"config.json: '{listed}' should be the same in all layers of a type")
        found = each.pop() if each else None
    return otherwise if found is None else float(found)


def _step_base(config: Config, kind: str) -> float:
    return _step_of_kind(config, kind, "rope_theta", "rope_theta", 10000.0)


def _step_rotated(config: Config, kind: str) -> int:
    """Return how many values of a head rotate in layers of a `kind`."""
    share = _step_of_kind(config, kind, "partial_rotary_factors", "partial_rotary_factor", 1.0)
    return int(config.head_size * share)


def _step_dimensions(config: Config) -> int | None:
    """Return what readers halve for layers without a window; None if it is the size of a head."""
    twice = 2 * _step_rotated(config, "full_attention")
    if twice > config.head_size and "full_attention" in _step_kinds(config):
        raise ConversionError(
            "config.json: a file of architecture step35 cannot rotate more than half of each head in layers "
            "with full attention ('partial_rotary_factors')"
        )
    return None if twice >= config.head_size else twice


def _step_dimensions_within_windows(config: Config) -> int | None:
    """Return how many values of a head rotate in layers with a window; None if readers assume so many."""
    rotated = _step_rotated(config, "sliding_attention")
    return None if rotated == (_step_dimensions(config) or config.head_size) else rotated


def _step_factors(config: Config) -> Mapping[str, Values]:
    """Return the divisors of the frequencies of full attention, 1 for what only rotates within windows."""
    if "full_attention" not in _step_kinds(config):
        return {}
    rotated = _step_rotated(config, "full_attention")
    found = llama3_factors(config, rotated, _step_base(config, "full_attention"))
    room = max(_step_rotated(config, kind) for kind in set(_step_kinds(config))) // 2
    return {
        name: np.pad(values, (0, room - len(values)), constant_values=1) for name, values in found.items()
    }


def _step_windowed(config: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in _step_kinds(config)]


def _step_heads(config: Config) -> list[int]:
    """Return each layer's number of query heads."""
    within = config.get("num_sliding_attention_heads", "attention_other_setting.num_attention_heads")
    usual = config.heads
    found = [within or usual if windowed else usual for windowed in _step_windowed(config)]
    if config.peek("per_layer_config") is None:
        return found
    own = [config.get(f"per_layer_config.{i}.num_attention_heads") for i in range(config.layers)]
    return [heads or usual for heads in own] + found[config.layers :]


def _step_kv_heads(config: Config) -> int:
    return config.count("num_attention_groups", "num_key_value_heads")


def _step_limits(name: str) -> Key:
    """Return the function that reads the limit of each layer from the setting `name`, 0 for none."""

    def limits(config: Config) -> list[float] | None:
        given, count = config.get(name), config.layers + config.heads_ahead
        if not given:
            return None
        return ([float(limit or 0) for limit in given] + [0.0] * count)[:count]

    return limits


def _step_dense(config: Config) -> int:
    """Return how many layers precede the first with experts."""
    given = config.get("moe_layers_enum")
    if config.get("mlp_layer_types") or given is None:
        return _dense(config) if config.get("mlp_layer_types") else 3
    each = given.split(",") if isinstance(given, str) else given
    found = [int(layer) for layer in each if str(layer).strip()]
    return min(found, default=config.layers)


def _as_step_head(name: str, config: Config) -> str:
    """Return the name of a tensor of a prediction head without the module that only published ones have."""
    return name.replace(".transformer.", ".").replace("shared_head.output", "shared_head.head")


_STEP_NAMES: Final = {
    "self_attn.g_proj": "attn_gate", "moe.gate": "ffn_gate_inp", "moe.router_bias": "exp_probs_b.bias",
    **{f"moe.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    **{f"share_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}  # fmt: skip
STEP35: Final = Family(
    hf=("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"), architecture="step35",
    keys={
        "attention.head_count": _step_heads,
        "attention.head_count_kv": lambda config: [_step_kv_heads(config)] * len(_step_kinds(config)),
        "attention.sliding_window": "sliding_window", "attention.sliding_window_pattern": _step_windowed,
        "rope.freq_base": lambda config: _step_base(config, "full_attention"),
        "rope.freq_base_swa": lambda config: _step_base(config, "sliding_attention"),
        "rope.dimension_count": _step_dimensions,
        "rope.dimension_count_swa": _step_dimensions_within_windows,
        "expert_count": ("moe_num_experts", "n_routed_experts"),
        "expert_used_count": ("moe_top_k", "num_experts_per_tok"),
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": ("share_expert_dims", "share_expert_dim"), **_SIGMOID,
        "expert_weights_norm": lambda config: True, "expert_weights_scale": "moe_router_scaling_factor",
        "leading_dense_block_count": _step_dense, "swiglu_clamp_exp": _step_limits("swiglu_limits"),
        "swiglu_clamp_shexp": _step_limits("swiglu_limits_shared"),
    },
    names={f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _STEP_NAMES.items()},
    rename=_as_step_head, extra=_step_factors, norm_offset=1.0, ropes=(*PLAIN, "llama3"),
    assumed={
        "query_pre_attn_scalar": lambda config: config.head_size,
        "attention_other_setting.num_attention_groups": _step_kv_heads,
        "attention_other_setting.head_dim": lambda config: config.head_size,
        "attention_other_setting.true_head_dim": lambda config: config.head_size,
        "norm_expert_weight": True, "moe_router_activation": "sigmoid", "use_head_wise_attn_gate": True,
        "moe_every_n_layer": 1, "zero_centered": True, "use_moe": True,
        "attention_other_setting.attention_type": "sliding_attention", "yarn_only_types": ["full_attention"],
    },
    harmless=("need_fp32_gate", "mtp_*"),
    defaults={
        "head_dim": 128, "num_key_value_heads": 8, "n_routed_experts": 288, "num_experts_per_tok": 8,
        "moe_intermediate_size": 1280, "share_expert_dim": 1280, "rms_norm_eps": 1e-5,
    },
)  # fmt: skip
FAMILIES: Final = (LAGUNA, LING2, DOTS1, EXAONE_MOE, MELLUM, COMMAND, HY3, MINIMAX_M3, SMALL_THINKER, STEP35)
