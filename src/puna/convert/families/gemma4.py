"""Gemma 3n and 4, whose norms lack nothing, and whose layers may have inputs of their own."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from puna.convert.config import Config
from puna.convert.families.gemma import ASSUMED, GEMMA3, OLD_ROTATION
from puna.convert.family import Family, Key, Member, Place
from puna.convert.numbers import Values
from puna.convert.plan import POST_NORMS
from puna.errors import ConversionError

_LARGEST_HEAD: Final = 1 << 14
_MAX_TOKENS: Final = 1 << 21
_LAYER: Final = {
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}  # fmt: skip
_INPUTS: Final[dict[str, Place]] = {
    **POST_NORMS,
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    **{f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _LAYER.items()},
}
_KEYS: Final[dict[str, Key]] = {
    **GEMMA3,
    "attention.sliding_window_pattern": lambda config: config.windows(),
    "attention.shared_kv_layers": lambda config: config.get("num_kv_shared_layers") or 0,
    "embedding_length_per_layer_input": lambda config: config.get("hidden_size_per_layer_input") or 0,
}

_ALTUP: Final = {
    "altup.prediction_coefs": "altup_predict_coef", "altup.correction_coefs": "altup_correct_coef",
    "altup.correct_output_scale": "altup_correct_scale.weight", "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm", "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r", "laurel.post_laurel_norm": "laurel_post_norm",
}  # fmt: skip


def _deviations(config: Config) -> list[float]:
    """How far above the mean gates count, of which a share does not."""
    shares = config.get("activation_sparsity_pattern") or [0.0] * config.layers
    return [NormalDist().inv_cdf(share) if share > 0 else float("-inf") for share in shares]


def _padded(values: Values, config: Config) -> Values:
    """With rows for tokens that stand for images and sounds, which published tables may lack."""
    missing = config.few("vocab_size", most=_MAX_TOKENS) - len(values)
    return np.pad(values, ((0, missing), (0, 0))) if missing > 0 else values


GEMMA3N: Final = Family(
    hf=("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"), architecture="gemma3n",
    keys={
        **_KEYS, "altup.active_idx": "altup_active_idx", "altup.num_inputs": "altup_num_inputs",
        "activation_sparsity_scale": _deviations,
        "altup.correct_scale": lambda config: False if config.get("altup_correct_scale") is False else None,
    },
    names={
        **_INPUTS,
        "model.altup_projections.{}": Member("altup_proj"),
        "model.altup_unembed_projections.{}": Member("altup_unembd_proj"),
        **{f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _ALTUP.items()},
    },
    changes={"token_embd.weight": _padded, "per_layer_token_embd.weight": _padded}, vocabulary="gemma",
    tied=True,
    defaults={"final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 256},
    assumed={**ASSUMED, **OLD_ROTATION},
    harmless=("altup_coef_clip", "laurel_rank"),
)  # fmt: skip


def _whole(config: Config, name: str, outside: str, otherwise: Any = None) -> Any:
    """A setting of the layers that see everything."""
    if (given := config.get(outside)) is not None:
        return given
    layers, kinds = config.get("per_layer_config") or {}, config["layer_types"]
    found = (each.get(name) for at, each in layers.items() if kinds[int(at)] == "full_attention")
    return next((value for value in found if value is not None), otherwise)


def _head_size(config: Config) -> int:
    size = int(_whole(config, "head_dim", "global_head_dim") or config.head_size)
    if not 0 < size <= _LARGEST_HEAD:
        raise ConversionError(f"config.json: 'global_head_dim' is {size}, at most {_LARGEST_HEAD}")
    return size


def _kv_heads(config: Config) -> Any:
    whole = _whole(config, "num_key_value_heads", "num_global_key_value_heads")
    if whole is None:
        return config.kv_heads
    return [config.kv_heads if windowed else whole for windowed in config.windows() or ()]


def _feed_forward(config: Config) -> Any:
    """Twice as wide in layers with others' keys, if the file says so."""
    wide = config["intermediate_size"]
    if not config.get("use_double_wide_mlp"):
        return wide
    own = config.layers - (config.get("num_kv_shared_layers") or 0)
    return [wide if layer < own else 2 * wide for layer in range(config.layers)]


def _rotated(config: Config) -> Mapping[str, Values]:
    """Divisors of frequencies where all is seen: what is not rotated there is far too slow to be."""
    pairs = _head_size(config) // 2
    rotated = int(2 * pairs * config.rope.get("partial_rotary_factor", 1.0) / 2)
    factors = np.full(pairs, 1e30, np.float32)
    factors[:rotated] = 1
    return {"rope_freqs.weight": factors}


def _if_routed(*names: str) -> Key:
    """A setting of experts, which may be given to models without any."""
    return lambda config: config.get(*names) if config.get("enable_moe_block") is not False else None


_ROUTED: Final = {
    "router.proj": "ffn_gate_inp", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "experts.down_proj": "ffn_down_exps.weight",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2", "layer_scalar": "layer_output_scale.weight",
}  # fmt: skip


def _share(config: Config) -> float:
    """What is rotated of a head where all is seen; a part of it only if that has its own kind of rotation."""
    share: float = config.rope.get("partial_rotary_factor", 1.0)
    return share if config.rope.get("rope_type") == "proportional" else 1.0


_GEMMA4_ROTATION: Final = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}

GEMMA4: Final = Family(
    hf=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), architecture="gemma4",
    keys={
        **_KEYS, "attention.key_length": _head_size, "attention.value_length": _head_size,
        "attention.key_length_swa": "head_dim", "attention.value_length_swa": "head_dim",
        "attention.head_count_kv": _kv_heads, "feed_forward_length": _feed_forward,
        "rope.dimension_count": _head_size, "rope.dimension_count_swa": "head_dim",
        **{
            key: _if_routed(*names)
            for key, names in {
                "expert_count": ("num_experts",), "expert_used_count": ("top_k_experts",),
                "expert_feed_forward_length": ("expert_intermediate_size", "moe_intermediate_size"),
            }.items()
        },
    },
    names={
        **_INPUTS, **{f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in _ROUTED.items()}
    },
    changes={"per_layer_token_embd.weight": _padded}, extra=_rotated,
    vocabulary="gemma4", tied=True, ropes=("default", "none", "proportional"),
    defaults={"rope_parameters": _GEMMA4_ROTATION, "hidden_size_per_layer_input": 256},
    assumed={
        **ASSUMED,
        "rope_parameters.partial_rotary_factor": _share,
        # transformers takes the last layer for one, whatever is said of it.
        "layer_types": lambda config: [*config["layer_types"][:-1], "full_attention"],
        "use_bidirectional_attention": (False, "vision"),
        # Readers know inputs of layers only where there are no experts.
        "hidden_size_per_layer_input": lambda config: (
            0 if config.get("enable_moe_block") else config.get("hidden_size_per_layer_input")
        ),
    },
    harmless=("attention_k_eq_v", "enable_moe_block"),
)  # fmt: skip
FAMILIES: Final = (GEMMA3N, GEMMA4)
