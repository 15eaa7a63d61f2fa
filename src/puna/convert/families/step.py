"""Step 3.5 and 3.7: gated heads, more of them in layers with a window, experts with limited activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.latent import dense_layers
from puna.convert.family import PLAIN, Family
from puna.convert.keys import layer_limits, llama3_factors
from puna.errors import ConversionError


def _kinds(config: Config) -> list[str]:
    """Return the type of each layer, and of the heads that follow them."""
    layers, all_layers = config.layers, config.layers + config.heads_ahead
    given = config.get("layer_types") or ["full_attention"] * layers
    ahead = given[layers:] or config.get("mtp_layer_types") or ["full_attention"] * config.heads_ahead
    return [*given[:layers], *ahead][:all_layers]


def _of_kind(config: Config, kind: str, listed: str, stated: str, otherwise: float) -> float:
    """Return a number of the rotation in layers of a `kind`.

    Published settings have it for each layer (`listed`), those that transformers saves for each type
    (`stated`).
    """
    if isinstance(found := config.get(f"rope_parameters.{kind}.{stated}"), int | float):
        return float(found)
    found = config.get(listed)
    if isinstance(found, list):
        kinds = _kinds(config)
        each = {number for number, of in zip(found, kinds, strict=False) if of == kind}
        if len(each) > 1:
            raise ConversionError(f"config.json: '{listed}' should be the same in all layers of a type")
        found = each.pop() if each else None
    return otherwise if found is None else float(found)


def _base(config: Config, kind: str) -> float:
    return _of_kind(config, kind, "rope_theta", "rope_theta", 10000.0)


def _rotated(config: Config, kind: str) -> int:
    """Return how many values of a head rotate in layers of a `kind`."""
    share = _of_kind(config, kind, "partial_rotary_factors", "partial_rotary_factor", 1.0)
    return int(config.head_size * share)


def _dimensions(config: Config) -> int | None:
    """Return what readers halve for layers without a window; None if it is the size of a head."""
    twice = 2 * _rotated(config, "full_attention")
    if twice > config.head_size and "full_attention" in _kinds(config):
        raise ConversionError(
            "config.json: a file of architecture step35 cannot rotate more than half of each head in layers "
            "with full attention ('partial_rotary_factors')"
        )
    return None if twice >= config.head_size else twice


def _dimensions_within_windows(config: Config) -> int | None:
    """Return how many values of a head rotate in layers with a window; None if readers assume that many."""
    rotated = _rotated(config, "sliding_attention")
    return None if rotated == (_dimensions(config) or config.head_size) else rotated


def _factors(config: Config) -> Mapping[str, Values]:
    """Return the divisors of the frequencies of full attention, 1 for what only rotates within windows."""
    if "full_attention" not in _kinds(config):
        return {}
    rotated = _rotated(config, "full_attention")
    found = llama3_factors(config, rotated, _base(config, "full_attention"))
    room = max(_rotated(config, kind) for kind in set(_kinds(config))) // 2
    return {
        name: np.pad(values, (0, room - len(values)), constant_values=1) for name, values in found.items()
    }


def _windowed(config: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in _kinds(config)]


def _heads(config: Config) -> list[int]:
    """Return each layer's number of query heads."""
    within = config.get("num_sliding_attention_heads", "attention_other_setting.num_attention_heads")
    usual = config.heads
    found = [within or usual if windowed else usual for windowed in _windowed(config)]
    if config.peek("per_layer_config") is None:
        return found
    own = [config.get(f"per_layer_config.{i}.num_attention_heads") for i in range(config.layers)]
    return [heads or usual for heads in own] + found[config.layers :]


def _kv_heads(config: Config) -> int:
    return config.count("num_attention_groups", "num_key_value_heads")


def _dense(config: Config) -> int:
    """Return how many layers precede the first with experts."""
    given = config.get("moe_layers_enum")
    if config.get("mlp_layer_types") or given is None:
        return dense_layers(config) if config.get("mlp_layer_types") else 3
    each = given.split(",") if isinstance(given, str) else given
    found = [int(layer) for layer in each if str(layer).strip()]
    return min(found, default=config.layers)


def _as_head(name: str, config: Config) -> str:
    """Return the name of a tensor of a prediction head without the module that only published ones have."""
    return name.replace(".transformer.", ".").replace("shared_head.output", "shared_head.head")


_NAMES: Final = {
    "self_attn.g_proj": "attn_gate", "moe.gate": "ffn_gate_inp", "moe.router_bias": "exp_probs_b.bias",
    **{f"moe.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    **{f"share_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}  # fmt: skip
STEP35: Final = Family(
    hf=("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"), architecture="step35",
    keys={
        "attention.head_count": _heads,
        "attention.head_count_kv": lambda config: [_kv_heads(config)] * len(_kinds(config)),
        "attention.sliding_window": "sliding_window", "attention.sliding_window_pattern": _windowed,
        "rope.freq_base": lambda config: _base(config, "full_attention"),
        "rope.freq_base_swa": lambda config: _base(config, "sliding_attention"),
        "rope.dimension_count": _dimensions,
        "rope.dimension_count_swa": _dimensions_within_windows,
        "expert_count": ("moe_num_experts", "n_routed_experts"),
        "expert_used_count": ("moe_top_k", "num_experts_per_tok"),
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": ("share_expert_dims", "share_expert_dim"),
        "expert_gating_func": lambda config: 2,
        "expert_weights_norm": lambda config: True, "expert_weights_scale": "moe_router_scaling_factor",
        "leading_dense_block_count": _dense, "swiglu_clamp_exp": layer_limits("swiglu_limits"),
        "swiglu_clamp_shexp": layer_limits("swiglu_limits_shared"),
    },
    names={f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _NAMES.items()},
    rename=_as_head, extra=_factors, norm_offset=1.0, ropes=(*PLAIN, "llama3"),
    assumed={
        "query_pre_attn_scalar": lambda config: config.head_size,
        "attention_other_setting.num_attention_groups": _kv_heads,
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
FAMILIES: Final = (STEP35,)
