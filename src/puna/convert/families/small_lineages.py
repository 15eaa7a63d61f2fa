"""Families of one or two architectures, each distinguished from the usual decoder by a few keys and names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.gemma import OLD_ROTATION, every_second_windowed
from puna.convert.families.gpt import TANH_GELUS
from puna.convert.families.latent import MISTRAL_ROTATION, SAME_SCALES
from puna.convert.family import PLAIN, SCALED, Assumption, Change, Family, Key, Place, Split
from puna.convert.plan import POST_NORMS
from puna.errors import ConversionError, shown

_WINDOW: Final[dict[str, Key]] = {"attention.sliding_window": "sliding_window"}
_WINDOWS: Final[dict[str, Key]] = {
    **_WINDOW,
    "attention.sliding_window_pattern": lambda config: (
        config.windows() if config.get("sliding_window") else None
    ),
}
_EXPERTS: Final[dict[str, Key]] = {"expert_feed_forward_length": "moe_intermediate_size"}


def _rotated_share(config: Config) -> float:
    """Return the rotated share of a head."""
    usual = 1.0 if str(config.get("model_type")).startswith("glm_ocr") else 0.5
    return float(config.rope.get("partial_rotary_factor", usual))


def _rotated_size(config: Config) -> int:
    return int(config.head_size * _rotated_share(config))


_GLM4_NAMES: Final[dict[str, Place]] = {
    "model.layers.{}.post_self_attn_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.post_mlp_layernorm": "blk.{}.post_ffw_norm",
}


def _halved(heads: Callable[[Config], int]) -> Change:
    """Return a change that moves a head's rotated pairs half a head apart, as three-axis rotation needs."""

    def change(values: Values, config: Config) -> Values:
        if "mrope_section" not in config.rope:
            return values
        count, size = heads(config), values.shape[0] // heads(config)
        rotated = int(size * _rotated_share(config))
        order = [*range(0, rotated, 2), *range(1, rotated, 2), *range(rotated, size)]
        return values.reshape(count, size, *values.shape[1:])[:, order].reshape(values.shape)

    return change


_HALVED: Final[dict[str, Change]] = {
    f"attn_{name}.{kind}": _halved(heads)
    for name, heads in (("q", lambda config: config.heads), ("k", lambda config: config.kv_heads))
    for kind in ("weight", "bias")
}


def _alternating(values: Values, config: Config) -> tuple[Values, Values]:
    """Split gpt-oss's alternating columns into the rows of gate and up."""
    turned = values.swapaxes(-1, -2)
    return turned[:, ::2], turned[:, 1::2]


def _alternating_biases(values: Values, config: Config) -> tuple[Values, Values]:
    return values[..., ::2], values[..., 1::2]


_GPT_OSS_NAMES: Final[dict[str, Place]] = {
    "model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm",
    "model.layers.{}.mlp.experts.gate_up_proj": Split(
        ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"), _alternating
    ),
    "model.layers.{}.mlp.experts.gate_up_proj_bias": Split(
        ("blk.{}.ffn_gate_exps.bias", "blk.{}.ffn_up_exps.bias"), _alternating_biases
    ),
    "model.layers.{}.mlp.experts.down_proj": Split(
        ("blk.{}.ffn_down_exps.weight",), lambda values, config: (values.swapaxes(-1, -2),)
    ),
    "model.layers.{}.mlp.experts.down_proj_bias": "blk.{}.ffn_down_exps.bias",
    "model.layers.{}.mlp.experts.gate_up_proj_blocks": Split(
        ("blk.{}.ffn_gate_exps.weight", "blk.{}.ffn_up_exps.weight"),
        lambda blocks, config: (blocks[:, ::2], blocks[:, 1::2]),
    ),
    "model.layers.{}.mlp.experts.down_proj_blocks": "blk.{}.ffn_down_exps.weight",
}


def _hunyuan_base(config: Config) -> float | None:
    """Return the rotation base, scaled by `alpha` for contexts of 262,144 tokens."""
    base, size = config.rope.get("rope_theta"), config.head_size
    if not base or not _is_stretched(config):
        return base
    return float(base * float(config.rope["alpha"]) ** (size / (size - 2)))


def _is_stretched(config: Config) -> bool:
    return config.rope.get("rope_type") == "dynamic" and bool(config.rope.get("alpha"))


def _if_stretched(value: object) -> Key:
    return lambda config: value if _is_stretched(config) else None


_HUNYUAN: Final[dict[str, Key]] = {
    "rope.freq_base": _hunyuan_base, "rope.scaling.type": _if_stretched("none"),
    "rope.scaling.factor": _if_stretched(1.0), "rope.scaling.original_context_length": _if_stretched(262144),
    "context_length": lambda config: (
        262144 if _is_stretched(config) else config.get("max_position_embeddings")
    ),
    "expert_count": lambda config: None, "expert_used_count": lambda config: None,
}  # fmt: skip


def _of_all_layers(*names: str) -> Callable[[Config], int]:
    """Return a key with a number that config.json gives once, or for each layer alike."""

    def number(config: Config) -> int:
        given = config.get(*names)
        values = given if isinstance(given, list) else [given]
        if len({*values}) != 1 or type(values[0]) is not int or values[0] < 1:
            raise ConversionError(
                f"config.json: '{names[0]}' is {shown(given)}, but a file of architecture hunyuan-moe can "
                "only have one number for all layers"
            )
        return values[0]

    return number


def _alike(value: Callable[[Config], int]) -> Assumption:
    return lambda config: (value(config), [value(config)] * config.layers)


_HUNYUAN_EXPERTS: Final[dict[str, Key]] = {
    "expert_count": _of_all_layers("num_experts"),
    "expert_used_count": _of_all_layers("moe_topk", "num_experts_per_tok"),
    "expert_feed_forward_length": "intermediate_size", "expert_shared_count": lambda config: 1,
    "expert_shared_feed_forward_length": "intermediate_size",
    "expert_group_count": lambda config: None, "expert_group_used_count": lambda config: None,
}  # fmt: skip
_HUNYUAN_MOE_NAMES: Final[dict[str, Place]] = {
    "model.layers.{}.mlp.gate.wg": "blk.{}.ffn_gate_inp",
    **{
        f"model.layers.{{}}.mlp.shared_mlp.{part}_proj": f"blk.{{}}.ffn_{part}_shexp"
        for part in ("gate", "up", "down")
    },
}


#: Readers derive YaRN's magnitude from its factor, and use the same base in all layers.
_OLMO: Final[dict[str, Assumption]] = {
    "rope_parameters.attention_factor": lambda config: 1 + 0.1 * math.log(config.rope["factor"]),
    "rope_parameters.mscale": (),
    "rope_parameters.sliding_attention.rope_theta": lambda config: config.rope.get("rope_theta"),
}


_OLMO3_THETA: Final = 500000.0


def _three_of_four(config: Config) -> list[str]:
    """Return each layer's type as readers of Cohere 2 assume it."""
    return ["sliding_attention" if (layer + 1) % 4 else "full_attention" for layer in range(config.layers)]


COHERE: Final[dict[str, Assumption]] = {
    "use_qk_norm": False, "use_parallel_block": True, "use_gated_activation": True,
    "use_embedding_sharing": True, "use_parallel_embedding": (True, False),
}  # fmt: skip
_COHERE2: Final[dict[str, Assumption]] = {
    **COHERE, "layer_types": _three_of_four, "sliding_window_pattern": 4, "layer_switch": 4,
    "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
}  # fmt: skip


def _untruncated(config: Config) -> float | None:
    """Return the rotation base. Raises ConversionError for YaRN with a truncated blend, unlike readers'."""
    rope = config.rope
    if rope.get("rope_type") is None:
        raise ConversionError("config.json lacks 'rope_scaling', which says how rotation is scaled")
    if rope["rope_type"] == "yarn" and rope.get("truncate") is not False:
        raise ConversionError(
            "config.json: YaRN without 'truncate': a file of architecture gpt-oss can only have False"
        )
    return rope.get("rope_theta")


_GPT_OSS: Final[dict[str, Assumption]] = {
    "layer_types": every_second_windowed, "swiglu_limit": 7.0, "swiglu_alpha": 1.702,
    "rope_parameters.truncate": False,
    "experts_per_token": lambda config: config.get("num_experts_per_tok"),
}  # fmt: skip
_HUNYUAN_ASSUMED: Final[dict[str, Assumption]] = {
    "num_experts": 1, "use_cla": False, "use_mla": False, "use_rotary_pos_emb": True, "norm_type": "rms",
    "position_embedding_xdrope": False, "attention_head_dim": lambda config: config.head_size,
}  # fmt: skip
_HUNYUAN_MOE_ASSUMED: Final[dict[str, Assumption]] = {
    **{name: value for name, value in _HUNYUAN_ASSUMED.items() if name != "num_experts"},
    "moe_intermediate_size": _alike(lambda config: config.count("intermediate_size")),
    "num_shared_expert": _alike(lambda config: 1), "use_mixed_mlp_moe": True, "norm_topk_prob": True,
    "routed_scaling_factor": 1.0, "group_limited_greedy": False, "moe_layer_num_skipped": 0,
}  # fmt: skip
#: Settings of experts and latents, which the dense model lacks, and of its rotation other than `alpha`.
_HUNYUAN_HARMLESS: Final = (
    "max_position_embeddings", "moe_*", "*_rank", "qk_*_head_dim", "v_head_dim", "num_shared_expert",
    "cla_share_factor", "n_group",
    "topk_group",
    "norm_topk_prob", "routed_scaling_factor", "group_limited_greedy", "use_mixed_mlp_moe",
    "rope_scaling.beta_*",
    "rope_scaling.mscale*", "rope_parameters.beta_*", "rope_parameters.mscale*", "num_media_embeds",
    "anyres_*",
    "add_classification_head", "class_num", "pool_type", "dense_list", "mask_init_id", "org_vocab_size",
)  # fmt: skip
_MINIMAX: Final[dict[str, Assumption]] = {
    "rope_parameters.partial_rotary_factor": lambda config: config["rotary_dim"] / config.head_size,
    "partial_rotary_factor": lambda config: config["rotary_dim"] / config.head_size,
    "scoring_func": "sigmoid", "qk_norm_type": "per_layer", "shared_intermediate_size": 0,
    "attn_type_list": lambda config: [1] * config.layers,
    **{f"layernorm_{part}_{name}": 1.0
       for part in ("full_attention", "linear_attention", "mlp") for name in ("alpha", "beta")},
}  # fmt: skip
_MINISTRAL: Final[dict[str, Assumption]] = {
    "sliding_window": (),
    "rope_parameters.attention_factor": (),
    **SAME_SCALES,
}

_MINISTRAL3: Final = Family(
    hf=("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"), architecture="mistral3",
    keys={
        "vocab_size": "vocab_size", "rope.dimension_count": lambda config: config.head_size,
        "attention.temperature_scale": lambda config: config.rope.get("llama_4_scaling_beta", 0.0),
        "rope.scaling.yarn_log_multiplier": lambda config: config.rope.get("mscale_all_dim"),
    },
    pre="tekken", assumed=_MINISTRAL, harmless=("rope_parameters.max_position_embeddings",),
    when=lambda config: config.get("model_type") != "mistral",
    defaults={
        "rope_parameters": {
            **MISTRAL_ROTATION, "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
        },
        "rope_theta": 10000.0,  # if the rotation gives none
        "head_dim": 128,
    },
)  # fmt: skip

_STABLELM: Final[dict[str, Place]] = {
    f"model.layers.{{}}.self_attn.{part}_layernorm.norms.{{}}": f"blk.{{}}.attn_{part}_norm" for part in "qk"
}
_PHI2_NAMES: Final[dict[str, Place]] = {
    "model.final_layernorm": "output_norm", "model.layers.{}.self_attn.dense": "blk.{}.attn_output",
    "model.layers.{}.mlp.fc1": "blk.{}.ffn_up", "model.layers.{}.mlp.fc2": "blk.{}.ffn_down",
}  # fmt: skip


def _rotating(share: float) -> dict[str, Key]:
    """Return the key for the rotated part of a head, by default a `share`."""
    return {
        "rope.dimension_count": lambda config: int(
            config.head_size * float(config.rope.get("partial_rotary_factor", share))
        )
    }


def _glimmer_default(config: Config) -> list[bool]:
    """Return, for each layer of a Muse Glimmer, whether it has a window by default."""
    return [(config.layers - 1 - layer) % 4 > 0 for layer in range(config.layers)]


def _glimmer_windows(config: Config) -> list[bool]:
    windows = config.windows()
    return _glimmer_default(config) if windows is None else windows


def _glimmer_bases(config: Config) -> list[float]:
    """Return each layer's base of rotation as readers assume it: 0, which means none, without a window."""
    given, windows = config.peek("layer_rope_theta"), _glimmer_windows(config)
    if isinstance(given, list) and [bool(base) for base in given] == windows:
        return given  # transformers reads no more of it
    return [float(config.rope.get("rope_theta", 10000.0)) * windowed for windowed in windows]


def _glimmer_kinds(config: Config) -> list[str]:
    """Return the required layer types; by default, rotation does not follow them."""
    windows = _glimmer_windows(config)
    if config.peek("layer_rope_theta") is None:
        windows = _glimmer_default(config)
    return ["sliding_attention" if windowed else "full_attention" for windowed in windows]


def _glimmer_norms(config: Config) -> dict[str, Values]:
    """Return the norms of queries and keys, which have no weights in the checkpoint, only a factor."""
    factor = float(config["qk_scale_factor"])
    return {
        f"blk.{layer}.attn_{part}_norm.weight": np.full(config.head_size, value, np.float32)
        for layer in range(config.layers)
        for part, value in (("q", factor), ("k", 1.0))
    }


_GLIMMER: Final = Family(
    hf=("MuseGlimmerForConditionalGeneration",), architecture="muse-glimmer",
    keys={
        **_WINDOW, "attention.sliding_window_pattern": _glimmer_windows, "logit_scale": "output_multiplier",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    names={**POST_NORMS, "model.layers.{}.self_attn.gate_proj": "blk.{}.attn_gate"},
    extra=_glimmer_norms, norm_offset=1.0, plain_norms=("output_norm.weight",), pre="llama4",
    assumed={
        "post_norm_eps": 1e-8, "layer_types": _glimmer_kinds, "layer_rope_theta": _glimmer_bases,
        "attn_logit_softcapping": (),
    },
    harmless=("out_hidden_size", "projector_*"),
    defaults={
        "qk_scale_factor": 3.87, "output_multiplier": 0.19611613513818404, "final_logit_softcapping": 20.0,
        "sliding_window": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": False,
        "head_dim": 128, "num_key_value_heads": 2,
    },
)  # fmt: skip

FAMILIES: Final = (
    Family(
        hf=("CohereForCausalLM",), architecture="command-r",
        keys={
            "context_length": ("model_max_length", "max_position_embeddings"), "logit_scale": "logit_scale",
            "rope.scaling.type": lambda config: "none",
        },
        pre="command-r", tied=True, ropes=PLAIN, assumed=COHERE, defaults={"logit_scale": 0.0625,
        "rope_theta": 500000.0},
    ),
    Family(
        hf=("Cohere2ForCausalLM",), architecture="cohere2",
        keys={
            **_WINDOW, "logit_scale": "logit_scale", "vocab_size": "vocab_size",
            "rope.dimension_count": lambda config: config.head_size,
            "rope.scaling.type": lambda config: "none",
        },
        pre="command-r", tied=True, ropes=PLAIN, assumed=_COHERE2,
        defaults={"logit_scale": 0.0625, "sliding_window": 4096},
    ),
    Family(
        hf=("Olmo2ForCausalLM",), architecture="olmo2", names=POST_NORMS, pre="dbrx", assumed=_OLMO,
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 10000.0},
    ),
    Family(
        hf=("Olmo3ForCausalLM",), architecture="olmo2", keys=_WINDOWS, names=POST_NORMS, pre="dbrx",
        assumed={
            **_OLMO, **OLD_ROTATION,
            # transformers uses another base for one layer type only.
            "rope_theta": lambda config: (
                config.peek("rope_theta") if config.peek("rope_parameters") else _OLMO3_THETA
            ),
        },
        defaults={"sliding_window": 4096, "rms_norm_eps": 1e-5, "rope_theta": _OLMO3_THETA},
    ),
    Family(
        hf=("OlmoeForCausalLM",), architecture="olmoe",
        keys={
            "expert_weights_norm": lambda config: config.get("norm_topk_prob") or None,
        },
        pre="olmo", assumed={"clip_qkv": ()}, defaults={"rms_norm_eps": 1e-5},
    ),
    Family(
        hf=("Starcoder2ForCausalLM",), architecture="starcoder2", keys=_WINDOW, pre="starcoder", tied=True,
        assumed={"hidden_act": "gelu_pytorch_tanh", "norm_type": "layer_norm", "mlp_type": "default",
        "scale_attn_weights": True},
        harmless=("activation_function", "*softmax_in_fp32"),
    ),
    Family(
        hf=("Glm4ForCausalLM", "Glm4vForConditionalGeneration", "GlmOcrForConditionalGeneration"),
        architecture="glm4", names=_GLM4_NAMES,
        keys={
            "rope.dimension_count": _rotated_size,
            "attention.layer_norm_rms_epsilon": lambda config: config["rms_norm_eps"],
        },
        changes=_HALVED, pre="glm4",
    ),
    Family(
        hf=("GlmForCausalLM",), architecture="chatglm", pre="chatglm-bpe",
        keys={**_rotating(0.5), "attention.layer_norm_rms_epsilon": lambda config: config["rms_norm_eps"]},
        defaults={"rms_norm_eps": 1.5625e-7, "head_dim": 128, "num_key_value_heads": 2},
    ),
    Family(
        hf=("Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration"), architecture="glm4moe",
        keys={
            **_EXPERTS, "rope.dimension_count": _rotated_size, "expert_count": "n_routed_experts",
            "expert_shared_count": "n_shared_experts", "leading_dense_block_count": "first_k_dense_replace",
            "expert_gating_func": lambda config: 2, "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
        },
        names={"model.layers.{}.post_attention_layernorm": "blk.{}.post_attention_norm"}, pre="glm4",
        defaults={
            "rope_theta": 10000.0, "norm_topk_prob": True, "first_k_dense_replace": 1, "n_shared_experts": 1,
        },
        assumed={"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        harmless=("use_qk_norm",),
    ),
    Family(
        hf=("GptOssForCausalLM",), architecture="gpt-oss",
        keys={**_WINDOW, "expert_feed_forward_length": "intermediate_size", "rope.freq_base": _untruncated},
        names=_GPT_OSS_NAMES, ropes=(*PLAIN, "yarn"),
        pre="gpt-4o", assumed=_GPT_OSS, harmless=("initial_context_length",),
    ),
    Family(
        hf=("PhiForCausalLM",), architecture="phi2", keys=_rotating(0.5), names=_PHI2_NAMES, pre="phi-2",
        assumed={"hidden_act": TANH_GELUS, "qk_layernorm": False, "tie_word_embeddings": False},
        defaults={"layer_norm_eps": 1e-5},
    ),
    Family(
        hf=("StableLmForCausalLM", "StableLMEpochForCausalLM"), architecture="stablelm", names=_STABLELM,
        keys={
            **_rotating(0.25),
            "use_parallel_residual": lambda config: bool(config.get("use_parallel_residual")),
            "attention.layer_norm_rms_epsilon": lambda config: None,
            "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_eps"),
        },
        pre="stablelm2", defaults={"norm_eps": 1e-5},
        harmless=("qk_layernorm", "rotary_scaling_factor"),
    ),
    Family(
        hf=("NemotronForCausalLM",), architecture="nemotron",
        keys={
            **_rotating(0.5), "attention.layer_norm_rms_epsilon": lambda config: None,
            "attention.layer_norm_epsilon": ("norm_eps", "layer_norm_eps"),
        },
        norm_offset=1.0, assumed={"hidden_act": "relu2"}, defaults={"norm_eps": 1e-5},
    ),
    Family(
        hf=("Jais2ForCausalLM",), architecture="jais2",
        keys={"rope.dimension_count": lambda config: config.head_size}, pre="jais-2",
        assumed={"hidden_act": "relu2"}, defaults={"layer_norm_eps": 1e-5, "hidden_act": "relu2"},
    ),
    Family(
        hf=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"), architecture="ernie4_5", tied=True,
        assumed={"compression_ratio": 1.0},
    ),
    Family(
        hf=("PaddleOCRVLForConditionalGeneration",), architecture="paddleocr", tied=True,
        dropped=("mlp_AR.",), ropes=(*SCALED, "mrope"),
        keys={
            "rope.dimension_sections": lambda config: [
                *config.rope.get("mrope_section", (16, 24, 24)), 0,
            ],
        },
        assumed={
            "compression_ratio": 1.0, "rope_is_neox_style": True, "use_3d_rope": True, "use_rmsnorm": True,
        },
        defaults={"rope_theta": 500000.0, "head_dim": 128},
        harmless=("weight_share_add_bias", "ignored_index"),
    ),
    Family(
        hf=("Ernie4_5_MoeForCausalLM",), architecture="ernie4_5-moe",
        keys={
            **_EXPERTS, "expert_count": "moe_num_experts", "expert_used_count": "moe_k",
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
            "expert_shared_count": "moe_num_shared_experts",
            "expert_shared_feed_forward_length": lambda config: (
                config["moe_intermediate_size"] * config.get("moe_num_shared_experts", otherwise=0) or None
            ),
        },
        names={"model.layers.{}.mlp.moe_statics.e_score_correction_bias": "blk.{}.exp_probs_b.bias"},
        changes={"exp_probs_b.bias": lambda values, config: values.reshape(-1)}, tied=True,
        assumed={
            "moe_layer_end_index": lambda config: (config.layers - 1, -1), "moe_norm_min": 1e-12,
            "moe_gate": "topk", "compression_ratio": 1.0, "use_bias": False,
        },
        defaults={"moe_layer_start_index": 1, "moe_num_shared_experts": 2},
        harmless=("moe_use_aux_free",),
    ),
    Family(
        hf=("HunYuanDenseV1ForCausalLM",), architecture="hunyuan-dense", keys=_HUNYUAN, pre="hunyuan-dense",
        assumed=_HUNYUAN_ASSUMED, harmless=_HUNYUAN_HARMLESS,
    ),
    _GLIMMER,
    Family(
        hf=("HunYuanMoEV1ForCausalLM",), architecture="hunyuan-moe", keys={**_HUNYUAN, **_HUNYUAN_EXPERTS},
        names=_HUNYUAN_MOE_NAMES, pre="hunyuan", assumed=_HUNYUAN_MOE_ASSUMED, harmless=_HUNYUAN_HARMLESS,
    ),
    _MINISTRAL3,
    replace(
        _MINISTRAL3, hf=("Mistral3ForConditionalGeneration",),
        when=lambda config: config.get("model_type") == "mistral",
        defaults={"rope_theta": 10000.0, "rms_norm_eps": 1e-6},
    ),
    Family(
        hf=("MiniMaxM2ForCausalLM",), architecture="minimax-m2",
        keys={
            "expert_feed_forward_length": "intermediate_size", "rope.dimension_count": "rotary_dim",
            "expert_gating_func": lambda config: 2,
        },
        pre="minimax-m2", assumed=_MINIMAX,
        harmless=("use_qk_norm", "use_routing_bias", "use_mtp", "mlp_intermediate_size", "shared_moe_mode",
        "mtp_*", "num_mtp_modules", "max_model_len"),
    ),
)  # fmt: skip
