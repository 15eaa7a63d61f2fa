"""Nemotron H and Granite 4: Mamba 2 in most layers, attention in some."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from puna.convert.config import Config
from puna.convert.families.llama import KEYS as LLAMA_KEYS
from puna.convert.families.llama import SCALE_DEFAULTS, SCALES
from puna.convert.families.mamba import BACKBONE, SHARED_BESIDE, STATE, STATE_ASSUMED, grouped, mixer
from puna.convert.family import PERMUTED, Assumption, Change, Family, Key, Place, Split
from puna.errors import ConversionError

#: Names of the layer types, as letters or words.
_ATTENDS: Final = ("*", "attention", "full_attention")
_COMPUTES: Final = ("-", "E", "mlp", "moe")


def _kinds(config: Config) -> list[str]:
    return list(config.get("hybrid_override_pattern", "layers_block_type") or ())


def _per_layer(kinds: tuple[str, ...], *names: str) -> Key:
    """Return a key with one number per layer: the setting in layers of `kinds`, and 0 in others.

    Prediction heads contain layers of every kind, so they get the setting too.
    """

    def numbers(config: Config) -> list[int]:
        has = [kind in kinds for kind in _kinds(config)] + [True] * config.heads_ahead
        return [config.count(*names) if each else 0 for each in has]

    return numbers


_NEMOTRON_LAYER: Final = {
    **{f"{part}_proj": f"attn_{part}" for part in "qkv"}, "o_proj": "attn_output",
    "up_proj": "ffn_up", "down_proj": "ffn_down", "gate": "ffn_gate_inp",
    "gate.e_score_correction_bias": "exp_probs_b.bias", "experts.{}.up_proj": "ffn_up_exps",
    "experts.{}.down_proj": "ffn_down_exps", "experts.up_proj": "ffn_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight", "shared_experts.up_proj": "ffn_up_shexp",
    "shared_experts.down_proj": "ffn_down_shexp", "fc1_latent_proj": "ffn_latent_down",
    "fc2_latent_proj": "ffn_latent_up",
}  # fmt: skip
_NEMOTRON_NAMES: Final[dict[str, Place]] = {
    **BACKBONE, **mixer("backbone.layers.{}.mixer"),
    **{
        f"backbone.layers.{{}}.mixer.{theirs}": f"blk.{{}}.{ours}"
        for theirs, ours in _NEMOTRON_LAYER.items()
    },
}  # fmt: skip
_NEMOTRON_KEYS: Final[dict[str, Key]] = {
    "vocab_size": "vocab_size", "context_length": lambda config: 1 << 20,
    "attention.head_count_kv": _per_layer(_ATTENDS, "num_key_value_heads"),
    "attention.key_length": ("head_dim", "attention_head_dim"),
    "attention.value_length": ("head_dim", "attention_head_dim"),
    "attention.layer_norm_rms_epsilon": ("layer_norm_epsilon", "norm_eps", "rms_norm_eps"),
    "rope.scaling.finetuned": lambda config: False,
    "rope.dimension_count": lambda config: config.head_size,
    "ssm.conv_kernel": "conv_kernel", "ssm.state_size": "ssm_state_size", "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "mamba_num_heads",
    "ssm.inner_size": lambda config: config["mamba_num_heads"] * config["mamba_head_dim"],
    "feed_forward_length": _per_layer(_COMPUTES, "intermediate_size"),
}  # fmt: skip
_NEMOTRON_CHANGES: Final[dict[str, Change]] = {
    **PERMUTED, **STATE, "ssm_norm.weight": grouped("n_groups"),
}  # fmt: skip
_NO_EXPERTS: Final[dict[str, Key]] = {
    key: lambda config: None
    for key in ("expert_count", "expert_used_count", "expert_group_count", "expert_group_used_count")
}


def _has_experts(config: Config) -> bool:
    return any(kind in ("E", "moe") for kind in _kinds(config))


#: Modules of a prediction head's two layers beside attention and experts; GGUF merges the two into one layer.
_HEAD: Final = {
    **{f"mtp.layers.0.{name}": f"model.layers.{{}}.{name}" for name in ("eh_proj", "enorm", "hnorm")},
    "mtp.layers.1.norm": "backbone.layers.{}.post_attention_layernorm",
    "mtp.layers.1.final_layernorm": "model.layers.{}.shared_head.norm",
}  # fmt: skip
_HEAD_LAYER: Final = re.compile(r"mtp\.layers\.[01]\.")


def _head_as_layer(name: str, config: Config) -> str:
    """Return the name that a module of a prediction head would have in a layer after the last."""
    module, _, ending = name.rpartition(".")
    if (own := _HEAD.get(module)) is not None:
        return f"{own.format(config.layers)}.{ending}"
    return _HEAD_LAYER.sub(f"backbone.layers.{config.layers}.", name)


_NEMOTRON_ASSUMED: Final[dict[str, Assumption]] = {
    **STATE_ASSUMED,
    "mlp_hidden_act": "relu2",
    "tie_word_embeddings": False,
}
#: Nothing is rotated, and the sizes of the states follow from their heads.
_NEMOTRON_HARMLESS: Final = (
    "num_query_groups", "time_step_rank", "rope_*", "partial_rotary_factor", "expand", "chunk_size",
    "mtp_*",
    "residual_in_fp32", "intermediate_size", "max_position_embeddings", "moe_shared_expert_overlap",
    "hidden_act",
)  # fmt: skip

NEMOTRON_H: Final = Family(
    hf=("NemotronHForCausalLM",), architecture="nemotron_h", keys={**_NEMOTRON_KEYS, **_NO_EXPERTS},
    names=_NEMOTRON_NAMES, changes=_NEMOTRON_CHANGES, dropped=("mtp.",), assumed=_NEMOTRON_ASSUMED,
    harmless=(
        *_NEMOTRON_HARMLESS, "moe_*", "n_routed_experts", "n_shared_experts", "num_experts_per_tok",
        "norm_topk_prob",
        "routed_scaling_factor", "n_group", "topk_group",
    ),
    when=lambda config: not _has_experts(config), pre="pixtral",
)  # fmt: skip
NEMOTRON_H_MOE: Final = Family(
    hf=("NemotronHForCausalLM",), architecture="nemotron_h_moe",
    keys={
        **_NEMOTRON_KEYS, "feed_forward_length": _per_layer(_COMPUTES, "moe_intermediate_size"),
        "expert_count": "n_routed_experts", "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "expert_shared_count": "n_shared_experts", "expert_weights_norm": "norm_topk_prob",
        "expert_weights_scale": "routed_scaling_factor", "expert_group_count": "n_group",
        "moe_latent_size": "moe_latent_size",
    },
    names={
        **_NEMOTRON_NAMES, "backbone.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    },
    changes=_NEMOTRON_CHANGES, rename=_head_as_layer, pre="pixtral",
    when=lambda config: _has_experts(config) and not {"-", "mlp"} & set(_kinds(config)),
    assumed=_NEMOTRON_ASSUMED, harmless=_NEMOTRON_HARMLESS,
    defaults={"norm_topk_prob": True, "moe_shared_expert_intermediate_size": 7688, "topk_group": 1},
)  # fmt: skip


def _granite_kinds(config: Config) -> list[bool]:
    """Return, for each layer, whether it uses attention."""
    kinds = config.get("layer_types", "layers_block_type")
    if kinds is None:
        at = config.get("attn_layer_indices") or ()
        return [layer in at for layer in range(config.layers)]
    return [kind in _ATTENDS for kind in kinds]


def _kind(*, mixes: bool, routes: bool) -> Callable[[Config], bool]:
    def when(config: Config) -> bool:
        found = not all(_granite_kinds(config)), bool(config.get("num_local_experts"))
        return found == (mixes, routes) and (mixes or _is_rotated(config))

    return when


_GRANITE4: Final = ("GraniteMoeHybridForCausalLM",)
#: Without experts, the shared network is the only one.
_DENSE: Final[dict[str, Place]] = {
    "model.layers.{}.shared_mlp.input_linear": Split(
        ("blk.{}.ffn_gate", "blk.{}.ffn_up"), lambda values, config: np.split(values, 2)
    ),
    "model.layers.{}.shared_mlp.output_linear": "blk.{}.ffn_down",
}
_DENSE_KEYS: Final[dict[str, Key]] = {
    "feed_forward_length": ("shared_intermediate_size", "intermediate_size"),
    "expert_shared_feed_forward_length": "shared_intermediate_size",
}
_MIXER: Final[dict[str, Place]] = mixer("model.layers.{}.mamba")
_MIXER_CHANGES: Final[dict[str, Change]] = {
    **STATE,
    "ssm_norm.weight": grouped("mamba_n_groups"),
}


def _is_rotated(config: Config) -> bool:
    return bool(config.get("position_embedding_type") == "rope")


def _granite_kv_heads(config: Config) -> list[int]:
    kinds = _granite_kinds(config)
    if not any(kinds):
        raise ConversionError("config.json: 'layer_types' lacks 'attention', but a layer must have attention")
    return [config.kv_heads * attends for attends in kinds]


_HYBRID_KEYS: Final[dict[str, Key]] = {
    **LLAMA_KEYS,
    **SCALES,
    "expert_shared_feed_forward_length": "shared_intermediate_size",
    "context_length": lambda config: config["max_position_embeddings"] if _is_rotated(config) else 1 << 20,
    "attention.head_count_kv": _granite_kv_heads,
    "rope.scaling.finetuned": _is_rotated,
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.inner_size": lambda config: config["mamba_expand"] * config["hidden_size"],
}

_GRANITE_ASSUMED: Final[dict[str, Assumption]] = {
    **STATE_ASSUMED, "normalization_function": "rmsnorm",
    "mamba_d_head": lambda config: config["mamba_expand"] * config["hidden_size"] / config["mamba_n_heads"],
}  # fmt: skip
#: Assumptions for models without states.
_ATTENDING: Final[dict[str, Assumption]] = {
    "normalization_function": "rmsnorm", "position_embedding_type": "rope",
    "layer_types": lambda config: config.get("layer_types"),
}  # fmt: skip
_HYBRID_DEFAULTS: Final = {**SCALE_DEFAULTS, "shared_intermediate_size": 1024}
_ATTENDING_DEFAULTS: Final = {**_HYBRID_DEFAULTS, "position_embedding_type": "nope"}

FAMILIES: Final = (
    NEMOTRON_H,
    NEMOTRON_H_MOE,
    Family(
        hf=_GRANITE4, architecture="granitehybrid", keys=_HYBRID_KEYS, names={**SHARED_BESIDE, **_MIXER},
        changes=_MIXER_CHANGES, when=_kind(mixes=True, routes=True), pre="refact",
        assumed=_GRANITE_ASSUMED, harmless=("mamba_chunk_size", "max_position_embeddings"),
        defaults=_HYBRID_DEFAULTS,
    ),
    Family(
        hf=_GRANITE4, architecture="granitehybrid", keys={**_HYBRID_KEYS, **_DENSE_KEYS},
        names={**_DENSE, **_MIXER}, changes=_MIXER_CHANGES, when=_kind(mixes=True, routes=False),
        pre="refact", assumed=_GRANITE_ASSUMED, harmless=("mamba_chunk_size", "max_position_embeddings",
        "num_experts_per_tok"),
        defaults=_HYBRID_DEFAULTS,
    ),
    Family(
        hf=_GRANITE4, architecture="granite", keys={**LLAMA_KEYS, **SCALES, **_DENSE_KEYS}, names=_DENSE,
        when=_kind(mixes=False, routes=False), pre="refact", assumed=_ATTENDING,
        harmless=("mamba_*", "time_step_*", "layers_block_type", "num_experts_per_tok"),
        defaults=_ATTENDING_DEFAULTS,
    ),
    Family(
        hf=_GRANITE4, architecture="granitemoe",
        keys={
            **LLAMA_KEYS, **SCALES, "expert_feed_forward_length": "intermediate_size",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        names=SHARED_BESIDE, when=_kind(mixes=False, routes=True), pre="refact", assumed=_ATTENDING,
        harmless=("mamba_*", "time_step_*", "layers_block_type"), defaults=_ATTENDING_DEFAULTS,
    ),
)  # fmt: skip
