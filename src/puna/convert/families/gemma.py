"""Gemma 1 to 4, with and without vision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Assumption, Family, Key, Member, Place
from puna.convert.plan import POST_NORMS
from puna.errors import ConversionError, shown

_THETA: Final = 10000.0
#: The first models' GGUF files leave the rotation base out.
_ROTATION: Final[dict[str, Key]] = {
    "rope.freq_base": lambda config: (
        None if (theta := config.rope.get("rope_theta")) in (None, _THETA) else float(theta)
    )
}
_TANH: Final = "gelu_pytorch_tanh"
#: Assumptions common to all Gemma models.
ASSUMED: Final[dict[str, Assumption]] = {
    "hidden_act": lambda config: (
        config.peek("hidden_act") if config.peek("hidden_activation") else _TANH  # which takes precedence
    ),
    "hidden_activation": _TANH,
    "use_bidirectional_attention": False,
}
#: Where layer types have separate rotations, transformers ignores the old name of `rope_type`.
OLD_ROTATION: Final[dict[str, Assumption]] = {
    "rope_scaling.type": lambda config: config.peek("rope_scaling.rope_type") or "default",
}
#: Layer counts of the largest Gemma 2 and 3, for which readers use another divisor for queries.
_LARGEST: Final = {"gemma2": 46, "gemma3": 62}


def _divisor(architecture: str) -> Assumption:
    """Return the number whose root readers divide queries by; GGUF has no key for it."""

    def divisor(config: Config) -> int:
        by_heads = config.layers == _LARGEST[architecture]
        return config.count("hidden_size") // config.heads if by_heads else config.head_size

    return divisor


def every_second_windowed(config: Config) -> list[str]:
    """Return each layer's type as readers of Gemma 2 and gpt-oss assume it."""
    return ["full_attention" if layer % 2 else "sliding_attention" for layer in range(config.layers)]


#: Layer counts of Google's Gemma 3: readers slow down rotation by 8 in the former, whatever the file says,
#: and ignore the cap in the smallest.
_SLOWED, _SMALLEST = (34, 48, 62), 26


def _base(config: Config) -> float:
    """Return a Gemma 3's rotation base. Raises ConversionError for scaling that readers would replace."""
    rope = config.rope
    kind, factor = rope.get("rope_type"), rope.get("factor")
    if config.layers in _SLOWED and kind != "yarn" and (kind, factor) != ("linear", 8):
        raise ConversionError(
            f"config.json: rotation of a Gemma 3 of {config.layers} layers is {shown(kind)} by {factor}; "
            "a file can only have 'linear' by 8"
        )
    return float(rope.get("rope_theta", 1_000_000.0))


def _cap(config: Config) -> Any:
    """Return the logit cap, which transformers does not apply in models with a vision tower."""
    within = config.own is not config.whole
    return () if within or config.layers == _SMALLEST else config.get("final_logit_softcapping")


#: Always written: readers take a missing key to mean the first models' caps.
_CAPS: Final[dict[str, Key]] = {
    "attn_logit_softcapping": lambda config: config.get("attn_logit_softcapping", otherwise=0.0),
    "final_logit_softcapping": lambda config: config.get("final_logit_softcapping", otherwise=0.0),
}
_HEADS: Final[dict[str, Key]] = {
    "attention.head_count_kv": lambda config: config.kv_heads,
    "expert_count": lambda config: None,
}
#: The period of full-attention layers if a GGUF file does not give one.
_PERIOD: Final = 6


def _windowed(config: Config) -> list[bool] | None:
    """Return, for each layer, whether it is windowed; None if the pattern is the one readers assume."""
    every = (
        _PERIOD
        if config.get("sliding_window_pattern") is None
        else config.bounded_count("sliding_window_pattern")
    )
    usual, own = ([(i + 1) % each != 0 for i in range(config.layers)] for each in (_PERIOD, every))
    found = config.windows() or own
    return None if every == 1 or found == usual else found


#: Keys of Gemma 3 and later.
GEMMA3: Final[dict[str, Key]] = {
    "rope.freq_base": lambda config: config.rope.get("rope_theta", 1_000_000.0),
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.sliding_window": lambda config: (
        None if config.get("sliding_window_pattern") == 1 else config["sliding_window"]
    ),
}

#: Settings that Gemma 3 and later may lack.
_SIZES: Final = {
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
_DEFAULTS: Final = {**_SIZES, "query_pre_attn_scalar": 256, "sliding_window": 4096}
_WITHOUT_LAYER_INPUTS: Final = (
    Family(
        hf=("GemmaForCausalLM",), architecture="gemma", keys={**_HEADS, **_ROTATION}, tied=True,
        norm_offset=1.0, vocabulary="gemma", defaults={"head_dim": 256, "num_key_value_heads": 16},
        assumed={**ASSUMED, "hidden_act": (_TANH, "gelu")},  # both names mean the same
    ),
    Family(
        hf=("Gemma2ForCausalLM",), architecture="gemma2",
        keys={
            **_HEADS, **_ROTATION, **_CAPS,
            "attention.sliding_window": "sliding_window",
        },
        names=POST_NORMS, tied=True, norm_offset=1.0, vocabulary="gemma",
        defaults={
            "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256,
            "head_dim": 256, "sliding_window": 4096, "num_key_value_heads": 4,
        },
        assumed={
            **ASSUMED, "query_pre_attn_scalar": _divisor("gemma2"),
            "sliding_window_size": lambda config: config["sliding_window"],
            "layer_types": every_second_windowed,
        },
    ),
    Family(
        hf=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), architecture="gemma3",
        keys={**GEMMA3, "attention.sliding_window_pattern": _windowed, "rope.freq_base": _base},
        names=POST_NORMS, tied=True, norm_offset=1.0, vocabulary="gemma", defaults=_DEFAULTS,
        assumed={
            **ASSUMED, **OLD_ROTATION, "query_pre_attn_scalar": _divisor("gemma3"),
            "attn_logit_softcapping": (),
            "final_logit_softcapping": _cap,
        },
    ),
    Family(
        hf=("Gemma3TextModel",), architecture="gemma-embedding",
        keys={**GEMMA3, "attention.sliding_window_pattern": _windowed, "rope.freq_base": _base},
        names={**POST_NORMS, "model.2_Dense.linear": "dense_2", "model.3_Dense.linear": "dense_3"},
        tied=True, norm_offset=1.0, vocabulary="gemma", prefix="model.",
        when=lambda config: bool(config.get("use_bidirectional_attention")), defaults=_DEFAULTS,
        assumed={
            **ASSUMED, **OLD_ROTATION, "query_pre_attn_scalar": _divisor("gemma3"),
            "attn_logit_softcapping": (),
            "final_logit_softcapping": _cap,
            "use_bidirectional_attention": True,
        },
    ),
)  # fmt: skip


_LARGEST_HEAD: Final = 1 << 14
#: Size of a Gemma 4's heads with full attention, by default.
_GLOBAL_HEAD: Final = 512
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
    "attention.shared_kv_layers": lambda config: config.get("num_kv_shared_layers", otherwise=0),
    "embedding_length_per_layer_input": lambda config: config.get("hidden_size_per_layer_input", otherwise=0),
}

_ALTUP: Final = {
    "altup.prediction_coefs": "altup_predict_coef", "altup.correction_coefs": "altup_correct_coef",
    "altup.correct_output_scale": "altup_correct_scale.weight", "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm", "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r", "laurel.post_laurel_norm": "laurel_post_norm",
}  # fmt: skip


#: Layers with sparse gates by default.
_SPARSE: Final = 10


def _deviations(config: Config) -> list[float]:
    """Return each layer's gate threshold in deviations above the mean, from the share of gates below it.

    By default, only the first layers of a model with more of them have thresholds.
    """
    layers = config.layers
    sparse = _SPARSE if layers > _SPARSE else 0
    shares = config.get("activation_sparsity_pattern", otherwise=[0.95] * sparse + [0.0] * (layers - sparse))
    return [NormalDist().inv_cdf(share) if share > 0 else float("-inf") for share in shares]


def _padded(values: Values, config: Config) -> Values:
    """Append zero rows for image and audio placeholder tokens, which published tables may lack."""
    missing = config.bounded_count("vocab_size", most=_MAX_TOKENS) - len(values)
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
    defaults={
        **_SIZES, "num_key_value_heads": 2, "max_position_embeddings": 32768, "sliding_window": 512,
        "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 15,
        "altup_active_idx": 0, "altup_num_inputs": 4,
    },
    assumed={**ASSUMED, **OLD_ROTATION},
    harmless=("altup_coef_clip", "laurel_rank"),
)  # fmt: skip


def _full_attention_setting(config: Config, name: str, outside: str, otherwise: Any = None) -> Any:
    """Return a setting of the full-attention layers."""
    if (given := config.get(outside)) is not None:
        return given
    layers, kinds = config.get("per_layer_config", otherwise={}), config["layer_types"]
    found = (each.get(name) for at, each in layers.items() if kinds[int(at)] == "full_attention")
    return next((value for value in found if value is not None), otherwise)


def _head_size(config: Config) -> int:
    otherwise = _GLOBAL_HEAD if config.peek("per_layer_config") is None else config.head_size
    size = int(_full_attention_setting(config, "head_dim", "global_head_dim", otherwise))
    if not 0 < size <= _LARGEST_HEAD:
        raise ConversionError(f"config.json: 'global_head_dim' is {size}; the maximum is {_LARGEST_HEAD}")
    return size


def _kv_heads(config: Config) -> Any:
    whole = _full_attention_setting(config, "num_key_value_heads", "num_global_key_value_heads")
    if whole is None:
        return config.kv_heads
    return [config.kv_heads if windowed else whole for windowed in config.windows() or ()]


def _feed_forward(config: Config) -> Any:
    """Return the feed-forward widths, doubled in layers that share others' keys if config.json says so."""
    wide = config["intermediate_size"]
    if not config.get("use_double_wide_mlp"):
        return wide
    own = config.layers - config.get("num_kv_shared_layers", otherwise=0)
    return [wide if layer < own else 2 * wide for layer in range(config.layers)]


def _rotated(config: Config) -> Mapping[str, Values]:
    """Return frequency divisors of full-attention layers, so large for unrotated pairs that they stop."""
    pairs = _head_size(config) // 2
    rotated = int(2 * pairs * config.rope.get("partial_rotary_factor", 1.0) / 2)
    factors = np.full(pairs, 1e30, np.float32)
    factors[:rotated] = 1
    return {"rope_freqs.weight": factors}


def _if_routed(*names: str) -> Key:
    """Return a key for a setting of the experts, which models without experts may have too."""
    return lambda config: config.get(*names) if config.get("enable_moe_block") else None


_ROUTED: Final = {
    "router.proj": "ffn_gate_inp", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "experts.down_proj": "ffn_down_exps.weight",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2", "layer_scalar": "layer_output_scale.weight",
}  # fmt: skip


def _rotated_share(config: Config) -> float:
    """Return the rotated share of a full-attention head, below 1 only with a rotation type of its own."""
    share: float = config.rope.get("partial_rotary_factor", 1.0)
    return share if config.rope.get("rope_type") == "proportional" else 1.0


_GEMMA4_ROTATION: Final = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}

_GEMMA4_DEFAULTS: Final = {
    **_SIZES, "sliding_window": 512, "enable_moe_block": False, "rope_parameters": _GEMMA4_ROTATION,
}  # fmt: skip

#: Keys of Gemma 4 for what its assistants lack.
_OF_OTHERS: Final = ("attention.shared_kv_layers", "embedding_length_per_layer_input", "expert_")

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
    defaults={**_GEMMA4_DEFAULTS, "hidden_size_per_layer_input": 256},
    assumed={
        **ASSUMED,
        "rope_parameters.partial_rotary_factor": _rotated_share,
        # transformers always treats the last layer as full attention.
        "layer_types": lambda config: [*config["layer_types"][:-1], "full_attention"],
        "use_bidirectional_attention": (False, "vision"),
        # Readers support per-layer inputs only without experts.
        "hidden_size_per_layer_input": lambda config: (
            0 if config.get("enable_moe_block") else config.get("hidden_size_per_layer_input")
        ),
    },
    harmless=("attention_k_eq_v", "enable_moe_block"),
)  # fmt: skip
#: Gemma 4 12B, whose pictures and recordings are projected without layers of a tower.
GEMMA4_UNIFIED: Final = replace(
    GEMMA4,
    hf=("Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration"),
    defaults={**_GEMMA4_DEFAULTS, "hidden_size_per_layer_input": 0},
)
#: The draft models of Gemma 4. Clusters of the vocabulary only limit which logits are computed.
GEMMA4_ASSISTANT: Final = replace(
    GEMMA4,
    hf=("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM"),
    architecture="gemma4-assistant",
    keys={
        **{key: value for key, value in GEMMA4.keys.items() if not key.startswith(_OF_OTHERS)},
        "embedding_length_out": lambda config: config.whole["backbone_hidden_size"],
        "nextn_predict_layers": lambda config: config.layers,
    },
    names={
        **GEMMA4.names, "pre_projection": "nextn.pre_projection", "post_projection": "nextn.post_projection"
    },
    dropped=("masked_embedding.",),
    defaults={**_GEMMA4_DEFAULTS, "hidden_size_per_layer_input": 0},
    assumed={
        **GEMMA4.assumed, "hidden_size_per_layer_input": (0, None), "enable_moe_block": (False, None),
        "use_double_wide_mlp": (False, None),
        "num_kv_shared_layers": lambda config: (0, config.layers),  # 0 stands for all
    },
    harmless=("attention_k_eq_v", "num_experts", "top_k_experts", "*_intermediate_size"),
)  # fmt: skip
FAMILIES: Final = (*_WITHOUT_LAYER_INPUTS, GEMMA3N, GEMMA4, GEMMA4_UNIFIED, GEMMA4_ASSISTANT)
