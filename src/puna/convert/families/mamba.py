"""State-space models: Mamba 1 and 2, and hybrids with some attention, such as Jamba."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.llama import KEYS as LLAMA_KEYS
from puna.convert.families.llama import ROPES, SCALE_DEFAULTS, SCALES
from puna.convert.family import Assumption, Change, Family, Key, Place, Split, halves
from puna.convert.keys import llama3_factors
from puna.errors import ConversionError, shown


def decay(values: Values, config: Config) -> Values:
    """Return the decay itself; checkpoints store the logarithm of its negative."""
    return np.asarray(-np.exp(values), values.dtype)


def column(values: Values, config: Config) -> Values:
    return values.reshape(-1, 1)


def convolution(values: Values, config: Config) -> Values:
    """Reshape [channels, 1, taps] to [channels, taps]."""
    return values[:, 0]


STATE: Final[dict[str, Change]] = {
    "ssm_conv1d.weight": convolution,
    "ssm_a": lambda values, config: column(decay(values, config), config),
    "ssm_d": column,
}


def grouped(groups: str) -> Change:
    """Return a change that reshapes the norm after a mixer to [groups, channels per group]."""
    return lambda values, config: values.reshape(config.count(groups), -1)


def mixer(prefix: str) -> dict[str, Place]:
    """Return the places of a Mamba 2 mixer's tensors, whose names begin with `prefix`."""
    return {
        f"{prefix}.in_proj": "blk.{}.ssm_in", f"{prefix}.conv1d": "blk.{}.ssm_conv1d",
        f"{prefix}.dt_bias": "blk.{}.ssm_dt.bias", f"{prefix}.A_log": "blk.{}.ssm_a",
        f"{prefix}.D": "blk.{}.ssm_d", f"{prefix}.norm": "blk.{}.ssm_norm",
        f"{prefix}.out_proj": "blk.{}.ssm_out",
    }  # fmt: skip


BACKBONE: Final[dict[str, Place]] = {
    "backbone.embeddings": "token_embd", "backbone.embedding": "token_embd",
    "backbone.norm_f": "output_norm", "backbone.layers.{}.norm": "blk.{}.attn_norm",
}  # fmt: skip
#: Keys that every file must have, even where they do not apply.
NOTHING: Final[dict[str, Key]] = {
    "context_length": lambda config: 1 << 20, "feed_forward_length": lambda config: 0,
    "attention.head_count": lambda config: 0, "attention.head_count_kv": lambda config: None,
    "attention.key_length": lambda config: None, "attention.value_length": lambda config: None,
    "rope.freq_base": lambda config: None,
    "attention.layer_norm_rms_epsilon": ("layer_norm_epsilon", "rms_norm_eps"),
    "attention.layer_norm_epsilon": lambda config: None, "expert_count": lambda config: None,
}  # fmt: skip


#: Settings of attention, in models without any, and of how states are computed.
NO_ATTENTION: Final = (
    "num_attention_heads", "num_key_value_heads", "intermediate_size", "max_position_embeddings",
    "chunk_size",
    "rope_*", "ssm_cfg", "pad_vocab_size_multiple", "time_step_scale", "residual_in_fp32", "norm_before_gate",
    "time_step_rank",
)  # fmt: skip
#: Steps without limits, in the current and the former notation of transformers.
_UNLIMITED: Final = ([0.0, {"__float__": "Infinity"}], [0.0, math.inf])
STATE_ASSUMED: Final[dict[str, Assumption]] = {
    "time_step_limit": _UNLIMITED,
    "mamba_hidden_act": ("silu", "swish"),
    "rms_norm": True,
}


def _inner(config: Config) -> int:
    return int(config.get("intermediate_size", "d_inner") or 2 * config.count("hidden_size", "d_model"))


MAMBA: Final = Family(
    hf=("MambaForCausalLM", "MambaLMHeadModel", "FalconMambaForCausalLM"), architecture="mamba",
    keys={
        **NOTHING, "ssm.conv_kernel": ("conv_kernel", "d_conv"), "ssm.inner_size": _inner,
        "ssm.state_size": ("state_size", "d_state"), "ssm.time_step_rank": ("time_step_rank", "dt_rank"),
        "ssm.dt_b_c_rms": lambda config: config.get("model_type") == "falcon_mamba",
    },
    names={
        **BACKBONE, **mixer("backbone.layers.{}.mixer"),
        "backbone.layers.{}.mixer.x_proj": "blk.{}.ssm_x",
        "backbone.layers.{}.mixer.dt_proj": "blk.{}.ssm_dt",
    },
    changes={"ssm_conv1d.weight": convolution, "ssm_a": decay}, pre="olmo", tied=True,
    assumed={
        **STATE_ASSUMED, "mixer_rms_eps": 1e-6,
        "expand": lambda config: _inner(config) / config.count("hidden_size", "d_model"),
    },
    harmless=(*NO_ATTENTION, "d_inner", "d_model", "n_layer"),
)  # fmt: skip


MAMBA2: Final = Family(
    hf=("Mamba2ForCausalLM",), architecture="mamba2",
    keys={
        **NOTHING, "ssm.conv_kernel": "conv_kernel",
        "ssm.inner_size": lambda config: config["num_heads"] * config["head_dim"],
        "ssm.state_size": "state_size", "ssm.group_count": "n_groups", "ssm.time_step_rank": "num_heads",
    },
    names={**BACKBONE, **mixer("backbone.layers.{}.mixer")},
    changes={**STATE, "ssm_norm.weight": grouped("n_groups")}, pre="olmo",
    assumed={
        **STATE_ASSUMED,
        "expand": lambda config: config["num_heads"] * config["head_dim"] / config["hidden_size"],
    },
    harmless=NO_ATTENTION,
)  # fmt: skip


SHARED_BESIDE: Final[dict[str, Place]] = {
    "model.layers.{}.shared_mlp.input_linear": Split(
        ("blk.{}.ffn_gate_shexp", "blk.{}.ffn_up_shexp"), lambda values, config: np.split(values, 2)
    ),
    "model.layers.{}.shared_mlp.output_linear": "blk.{}.ffn_down_shexp",
    "model.layers.{}.block_sparse_moe.router.layer": "blk.{}.ffn_gate_inp",
    "model.layers.{}.block_sparse_moe.input_linear": Split(
        ("blk.{}.ffn_gate_exps", "blk.{}.ffn_up_exps"), lambda values, config: np.split(values, 2, axis=1)
    ),
    "model.layers.{}.block_sparse_moe.output_linear": "blk.{}.ffn_down_exps",
}
GRANITE_MOE: Final = Family(
    hf=("GraniteMoeForCausalLM",), architecture="granitemoe",
    keys={**LLAMA_KEYS, **SCALES, "expert_feed_forward_length": "intermediate_size"}, names=SHARED_BESIDE,
    pre="refact", defaults=SCALE_DEFAULTS,
)  # fmt: skip

#: Readers of Granite with windows want gate and up of its experts in one tensor each.
_JOINED: Final[dict[str, Place]] = {
    **SHARED_BESIDE,
    "model.layers.{}.shared_mlp.input_linear": "blk.{}.ffn_up_shexp",
    "model.layers.{}.block_sparse_moe.input_linear": "blk.{}.ffn_gate_up_exps",
    "model.layers.{}.block_sparse_moe.experts.gate_up_proj": "blk.{}.ffn_gate_up_exps.weight",
    "model.layers.{}.block_sparse_moe.experts.down_proj": "blk.{}.ffn_down_exps.weight",
    "model.layers.{}.block_sparse_moe.router": "blk.{}.ffn_gate_inp",
}


def _granite_windows(config: Config) -> list[bool]:
    windows = config.windows()
    return [layer % 4 > 0 for layer in range(config.layers)] if windows is None else windows


def _granite_bases(config: Config) -> list[float]:
    """Return each layer's base of rotation as readers assume it: the model's, or 0, which means none."""
    given = config.get("layer_rope_theta")
    base = float(config.rope.get("rope_theta", 10000.0))
    return [base * bool(each) for each in given or ()]


def _rotated_layers(config: Config) -> list[bool] | None:
    bases = _granite_bases(config)
    return None if all(bases) else [base > 0 for base in bases]


GRANITE_SWA: Final = Family(
    hf=("GraniteSWAForCausalLM",), architecture="granite_swa",
    keys={
        **LLAMA_KEYS, **SCALES, "attention.sliding_window": "sliding_window",
        "attention.sliding_window_pattern": _granite_windows, "attention.rope_pattern": _rotated_layers,
    },
    extra=llama3_factors, pre="refact", ropes=ROPES, tied=True,
    assumed={"layer_rope_theta": _granite_bases},
    defaults={**SCALE_DEFAULTS, "rms_norm_eps": 1e-5, "sliding_window": 128, "rope_theta": 10000.0,
    "num_key_value_heads": 4},
)  # fmt: skip
GRANITE_MOE_SWA: Final = replace(
    GRANITE_SWA, hf=("GraniteMoeSWAForCausalLM",), names=_JOINED, tied=False,
    keys={
        **GRANITE_SWA.keys, "expert_feed_forward_length": "intermediate_size",
        "expert_shared_feed_forward_length": lambda config: config.get("shared_intermediate_size") or None,
    },
    defaults={**SCALE_DEFAULTS, "sliding_window": 128, "rope_theta": 10000.0, "num_local_experts": 8,
    "num_experts_per_tok": 2},
)  # fmt: skip

#: Multipliers of Falcon H1, which are folded into the weights of its GGUF files.
_FALCON_FACTORS: Final[Mapping[str, Any]] = {
    "ffn_down.weight": lambda config: config["mlp_multipliers"][1],
    "ffn_gate.weight": lambda config: config["mlp_multipliers"][0],
    "attn_q.weight": lambda config: config["attention_in_multiplier"],
    "attn_v.weight": lambda config: config["attention_in_multiplier"],
    "attn_k.weight": lambda config: config["attention_in_multiplier"] * config["key_multiplier"],
    "attn_output.weight": lambda config: config["attention_out_multiplier"],
    "ssm_out.weight": lambda config: config["ssm_out_multiplier"],
    "token_embd.weight": lambda config: config["embedding_multiplier"],
    "output.weight": lambda config: config["lm_head_multiplier"],
}


def _times(factor: Any) -> Change:
    return lambda values, config: values * np.float32(factor(config))


def _falcon_in(values: Values, config: Config) -> Values:
    keys = config["mamba_n_groups"] * config["mamba_d_state"]
    inner = config["mamba_d_ssm"]
    parts = [inner, inner, keys, keys, config["mamba_n_heads"]]
    factors = config["ssm_in_multiplier"] * np.repeat(np.array(config["ssm_multipliers"]), parts)
    scaled: Values = (values * factors[:, None]).astype(values.dtype)
    return scaled


_FALCON_LAYER: Final = {
    "feed_forward.gate_proj": "ffn_gate", "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down", "pre_ff_layernorm.weight": "ffn_norm",
}  # fmt: skip
FALCON_H1: Final = Family(
    hf=("FalconH1ForCausalLM",), architecture="falcon-h1",
    keys={
        **LLAMA_KEYS, "ssm.conv_kernel": "mamba_d_conv", "ssm.inner_size": "mamba_d_ssm",
        "ssm.state_size": "mamba_d_state", "ssm.group_count": "mamba_n_groups",
        "ssm.time_step_rank": "mamba_n_heads",
    },
    names={
        **mixer("model.layers.{}.mamba"), "model.final_layernorm": "output_norm",
        **{f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _FALCON_LAYER.items()},
    },
    changes={
        **STATE, "ssm_norm.weight": grouped("mamba_n_groups"), "ssm_in.weight": _falcon_in,
        **{name: _times(factor) for name, factor in _FALCON_FACTORS.items()},
    },
    pre="falcon-h1",
    assumed={
        **STATE_ASSUMED,
        "mamba_d_head": lambda config: config["mamba_d_ssm"] / config["mamba_n_heads"],
        "mamba_use_mlp": True, "attn_layer_indices": (), "attention_bias": False, "mlp_bias": False,
        "mamba_proj_bias": False, "projectors_bias": False,
        "mamba_norm_before_gate": lambda config: (
            False if config.peek("mamba_rms_norm") else (True, False)
        ),
    },
    harmless=("mamba_rms_norm", "mamba_expand", "mamba_chunk_size", "mlp_expansion_factor"),
    when=lambda config: not config.get("tie_word_embeddings"),
)  # fmt: skip
#: The output of a tied model is the input's table, but has a multiplier of its own.
_TIED_FALCON_H1: Final = replace(
    FALCON_H1, when=lambda config: bool(config.get("tie_word_embeddings")),
    names={
        **FALCON_H1.names,
        "model.embed_tokens": Split(("token_embd", "output"), lambda values, config: (values, values)),
    },
)  # fmt: skip


def _jamba_kv_heads(config: Config) -> list[int]:
    """Return each layer's number of heads of keys and values, 0 in those with a state."""
    period, offset = config.count("attn_layer_period"), config["attn_layer_offset"]
    heads = [config.kv_heads * (layer % period == offset) for layer in range(config.layers)]
    if not any(heads):
        raise ConversionError(
            f"config.json: no layer of {config.layers} has attention, but a layer must have it: "
            f"'attn_layer_period' is {period} and 'attn_layer_offset' {shown(offset)}"
        )
    return heads


def _jamba_step_rank(config: Config) -> int:
    given = config.get("mamba_dt_rank")
    return -(-config.count("hidden_size") // 16) if given == "auto" else config.count("mamba_dt_rank")


def _if_routed(name: str) -> Key:
    """Return a key with a setting of experts, in models where a layer has some."""

    def value(config: Config) -> int | None:
        period, offset = config.count("expert_layer_period"), config["expert_layer_offset"]
        routed = any(layer % period == offset for layer in range(config.layers))
        found: int | None = config.get(name)
        return found if routed and config.get("num_experts", "num_local_experts") != 1 else None

    return value


_JAMBA_LAYER: Final = {
    **{
        f"mamba.{theirs}": f"ssm_{ours}"
        for theirs, ours in {
            "in_proj": "in", "conv1d": "conv1d", "x_proj": "x", "dt_proj": "dt", "A_log": "a", "D": "d",
            "out_proj": "out", "dt_layernorm": "dt_norm", "b_layernorm": "b_norm", "c_layernorm": "c_norm",
        }.items()
    },
    **{f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    **{f"feed_forward.experts.{{}}.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    "feed_forward.experts.down_proj": "ffn_down_exps.weight", "feed_forward.router": "ffn_gate_inp",
    "pre_ff_layernorm": "ffn_norm",
}  # fmt: skip
JAMBA: Final = Family(
    hf=("JambaForCausalLM",), architecture="jamba",
    keys={
        "vocab_size": "vocab_size", "attention.head_count_kv": _jamba_kv_heads,
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
        "expert_count": _if_routed("num_experts"), "expert_used_count": _if_routed("num_experts_per_tok"),
        "ssm.conv_kernel": "mamba_d_conv", "ssm.state_size": "mamba_d_state",
        "ssm.time_step_rank": _jamba_step_rank,
        "ssm.inner_size": lambda config: config.count("mamba_expand") * config.count("hidden_size"),
    },
    names={
        **{f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _JAMBA_LAYER.items()},
        "model.layers.{}.feed_forward.experts.gate_up_proj": Split(
            ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"), halves
        ),
        "model.final_layernorm": "output_norm",
    },
    changes={"ssm_conv1d.weight": convolution, "ssm_a": decay},
    assumed={"mamba_inner_layernorms": True}, harmless=("calc_logits_for_entire_prompt",),
    defaults={
        "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "num_experts": 16, "num_experts_per_tok": 2,
        "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4,
        "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": "auto",
    },
)  # fmt: skip


FAMILIES: Final = (
    MAMBA,
    MAMBA2,
    GRANITE_MOE,
    GRANITE_SWA,
    GRANITE_MOE_SWA,
    FALCON_H1,
    _TIED_FALCON_H1,
    JAMBA,
)
