"""Kimi Linear: delta networks that forget key by key, latent attention in one of four layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from puna.convert.config import Config
from puna.convert.families.latent import ASSUMED as LATENT_ASSUMED
from puna.convert.families.latent import KEYS as LATENT_KEYS
from puna.convert.families.latent import NAMES as LATENT_NAMES
from puna.convert.families.mamba import decay
from puna.convert.family import Family, Key, Place
from puna.convert.numbers import Values
from puna.errors import ConversionError


def _linear(config: Config, name: str, own: str) -> Any:
    """A setting of delta networks, which are said together or each."""
    if (found := config.get(f"linear_attn_config.{name}", own)) is None:
        raise ConversionError(f"config.json lacks 'linear_attn_config.{name}'")
    return found


def _delta_head(config: Config) -> Any:
    """Return the size of a delta network's heads, which are as many as those of attention."""
    _linear(config, "num_heads", "linear_num_heads")
    return _linear(config, "head_dim", "linear_head_dim")


def _kv_heads(config: Config) -> list[int]:
    """1 where a layer attends; published settings count layers from 1."""
    if (kinds := config.get("layer_types")) is not None:
        if "full_attention" not in kinds:
            raise ConversionError(
                "config.json: 'layer_types' lacks 'full_attention', which one layer must be"
            )
        return [int(kind == "full_attention") for kind in kinds]
    attends = config["linear_attn_config.full_attn_layers"]
    return [int(layer + 1 in attends) for layer in range(config.layers)]


def _attending(config: Config) -> list[int]:
    """Return the layers with attention, counted from 1."""
    return [layer for layer, heads in enumerate(_kv_heads(config), 1) if heads]


_KEYS: Final[dict[str, Key]] = {
    **LATENT_KEYS, "attention.head_count_kv": _kv_heads, "attention.value_length": "head_dim",
    "ssm.conv_kernel": lambda config: _linear(config, "short_conv_kernel_size", "linear_conv_kernel_dim"),
    "kda.head_dim": _delta_head,
    "expert_shared_count": "num_shared_experts", "expert_gating_func": lambda config: 2,
    "expert_group_count": lambda config: None, "expert_weights_norm": "moe_renormalize",
}  # fmt: skip
_MIXER: Final = {
    "f_a_proj": "ssm_f_a", "f_b_proj": "ssm_f_b", "g_a_proj": "ssm_g_a", "g_b_proj": "ssm_g_b",
    "b_proj": "ssm_beta", "o_norm": "ssm_norm", "A_log": "ssm_a", "dt_bias": "ssm_dt.bias",
    **{f"{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"},
}  # fmt: skip
_FEED_FORWARD: Final = {
    f"{theirs}{part}_proj": f"ffn_{part}{ours}"
    for theirs, ours in (("", ""), ("shared_experts.", "_shexp"))
    for part in ("gate", "up", "down")
}
_NAMES: Final[dict[str, Place]] = {
    **LATENT_NAMES,
    "model.layers.{}.block_sparse_moe.gate.e_score_correction_bias": "blk.{}.exp_probs_b.bias",
    **{f"model.layers.{{}}.self_attn.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _MIXER.items()},
    **{
        f"model.layers.{{}}.block_sparse_moe.{theirs}": f"blk.{{}}.{ours}"
        for theirs, ours in _FEED_FORWARD.items()
    },
}


def _convolution(values: Values, config: Config) -> Values:
    """[1, channels, 1, taps] of [channels, 1, taps]."""
    return values.reshape(1, values.shape[0], 1, values.shape[-1])


KIMI: Final = Family(
    hf=("KimiLinearForCausalLM",), architecture="kimi-linear", keys=_KEYS, names=_NAMES,
    changes={"ssm_a": decay, **{f"ssm_conv1d_{part}.weight": _convolution for part in "qkv"}},
    pre="kimi-k2", defaults={"rms_norm_eps": 1e-5, "routed_scaling_factor": 2.446},
    assumed={
        **{name: value for name, value in LATENT_ASSUMED.items() if "rotary" not in name},
        "num_expert_group": 1, "tie_word_embeddings": False, "topk_group": 1,
        "moe_router_activation_func": "sigmoid", "linear_num_heads": lambda config: config.heads,
        "linear_attn_config.num_heads": lambda config: config.heads,
        "linear_attn_config.full_attn_layers": _attending,
        "mla_use_nope": True, "use_grouped_topk": (True, False),
    },
    harmless=(
        "linear_attn_config.kda_layers", "head_dim", "num_nextn_predict_layers", "*partial_rotary_factor",
    ),
)  # fmt: skip
FAMILIES: Final = (KIMI, replace(KIMI, hf=("KimiLinearModel",), prefix="model."))
