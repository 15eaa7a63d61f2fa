"""Models published with code of their own, which transformers lacks, and networks of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.families.gpt import TANH_GELUS, four_times, of_layer, turned
from puna.convert.family import PERMUTED, PLAIN, Family, Place, Split, halves
from puna.errors import ConversionError, shown
from puna.nn.distance import linear_bias

#: Rows of Baichuan 2's vocabulary; only its models normalise the output.
_BAICHUAN2: Final = 125_696


def _thirds(values: Values, config: Config) -> Sequence[Values]:
    """Split queries, keys and values, which are stacked."""
    return np.split(values, 3)


def _output(values: Values, config: Config) -> Values:
    """Return the output of a Baichuan; version 2 uses it with rows of length 1.

    llama.cpp's converter leaves them as they are.
    """
    if config.get("vocab_size") != _BAICHUAN2:
        return values
    lengths = np.linalg.norm(values.astype(np.float32, copy=False), axis=1, keepdims=True)
    normalised: Values = values / np.maximum(lengths, np.float32(1e-12))
    return normalised


def _heads(config: Config) -> int:
    return config.heads


def _refact_inner(config: Config) -> int:
    """Return the size of Refact's network with three matrices: two thirds, in whole multiples of 256."""
    return -(-int(2 * four_times(config) / 3) // 256) * 256


def _scaled_input(values: Values, config: Config) -> Values:
    """Multiply Jais's input table by muP's factor of embeddings."""
    factor = config.get("embeddings_scale", "mup_embeddings_scale")
    scaled: Values = values * np.float32(1.0 if factor is None else factor)
    return scaled


def _scaled_output(values: Values, config: Config) -> Values:
    """Multiply Jais's output by muP's factor of logits, which newer settings give as a product."""
    factor = config.get("width_scale")
    if factor is None:
        parts = (config.get(name) for name in ("mup_output_alpha", "mup_width_scale"))
        factor = math.prod(1.0 if part is None else part for part in parts)
    scaled: Values = values * np.float32(factor)
    return scaled


def _steepest(config: Config) -> float:
    """Return the exponent of Jais's ALiBi slopes.

    Raises ConversionError for slopes that are not a series of ALiBi's, and if scores are not divided by the
    size of a head, as readers do.
    """
    if config.get("scale_qk_dot_by_d", "mup_scale_qk_dot_by_d") is not True:
        raise ConversionError(
            "config.json: 'mup_scale_qk_dot_by_d' is not true, but a file of architecture jais has scores "
            "divided by the size of a head"
        )
    slopes = config.optional_tensor("transformer.relative_pe.slopes")
    if slopes is None:
        return 8.0
    found, heads = np.asarray(slopes, np.float64).reshape(-1), config.heads
    if found.size != heads or not 0 < found[0] < 1:
        raise ConversionError(f"tensor 'transformer.relative_pe.slopes' is not that of {heads} heads")
    steepest = float(-np.round(np.log2(found[0]) * (1 << (heads.bit_length() - 1))))
    if steepest <= 0 or not np.allclose(found, -linear_bias(heads, 1, steepest)[:, 0], rtol=1e-3):
        raise ConversionError("tensor 'transformer.relative_pe.slopes' has other slopes than ALiBi")
    return steepest


def _lists(config: Config, name: str) -> list[Any]:
    """Return a setting with a value for each layer. Raises ConversionError for anything else."""
    values = config[name]
    if not isinstance(values, list) or len(values) != config.layers:
        raise ConversionError(f"config.json: '{name}' is {shown(values)}, not a value for each layer")
    return values


def _openelm_inner(config: Config) -> list[int]:
    """Return the size of each layer's feed-forward network, a multiple of the divisor near its share."""
    hidden, divisor = config.count("model_dim"), config.count("ffn_dim_divisor")
    sizes = []
    for share in _lists(config, "ffn_multipliers"):
        size = max(divisor, int(share * hidden + divisor / 2) // divisor * divisor)
        sizes.append(size + divisor if size < 0.9 * share * hidden else size)
    return sizes


def _arctic_used(config: Config) -> int:
    """Return how many experts a token goes to. Raises ConversionError if the share of one would not be 1."""
    used = config.count("num_experts_per_tok")
    if used < 2:
        raise ConversionError(
            "config.json: 'num_experts_per_tok' is 1, but in a file of architecture arctic the shares of a "
            "token's experts add up to 1"
        )
    return used


def _grok_scale(config: Config) -> float:
    """Return the factor of attention's scores."""
    own = config.get("attn_output_multiplier")
    return float(config.head_size**-0.5 if own is None else own)


BAICHUAN: Final = Family(
    hf=("BaichuanForCausalLM", "BaiChuanForCausalLM"), architecture="baichuan",
    keys={"rope.dimension_count": lambda config: config.head_size},
    names={
        "model.layers.{}.self_attn.W_pack": Split(
            ("blk.{}.attn_q", "blk.{}.attn_k", "blk.{}.attn_v"), _thirds
        ),
        "model.layers.{}.self_attn.rotary_emb.cos_cached": None,
        "model.layers.{}.self_attn.rotary_emb.sin_cached": None,
    },
    changes={**PERMUTED, "output.weight": _output}, ropes=PLAIN,
    # Readers tell models that rotate from those with ALiBi by the number of layers.
    assumed={"num_hidden_layers": (32, 40)},
    defaults={"rms_norm_eps": 1e-6},
)  # fmt: skip
REFACT: Final = Family(
    hf=("GPTRefactForCausalLM",), architecture="refact",
    keys={
        "context_length": "n_positions", "feed_forward_length": _refact_inner,
        "attention.head_count": _heads, "attention.head_count_kv": lambda config: 1,
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "attention.layer_norm_epsilon": lambda config: None,
    },
    names={
        "transformer.wte": "token_embd", "transformer.ln_f": "output_norm", "transformer.lm_head": "output",
        **of_layer("transformer.h", {
            "ln_1": "attn_norm", "attn.q": "attn_q", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
            "mlp.c_proj": "ffn_down",
        }),
        "transformer.h.{}.attn.kv": Split(("blk.{}.attn_k", "blk.{}.attn_v"), halves),
        "transformer.h.{}.mlp.gate_up_proj": Split(("blk.{}.ffn_gate", "blk.{}.ffn_up"), halves),
    },
    prefix="transformer.", pre="refact", assumed={"multi_query": True},
    harmless=(
        "*softmax_in_fp32", "activation_function", "attention_bias_in_fp32", "scale_attn_weights",
        "inference_runner", "validate_runner_input", "pre_allocate_kv_cache", "max_batch_size",
        "pad_key_length", "summary_*",
    ),
    defaults={"layer_norm_epsilon": 1e-5},
)  # fmt: skip
_JAIS_NAMES: Final[dict[str, Place]] = {
    "transformer.wte": "token_embd", "transformer.ln_f": "output_norm", "transformer.lm_head": "output",
    "transformer.relative_pe.slopes": None,
    **of_layer("transformer.h", {
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.c_fc2": "ffn_gate", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    }),
    "transformer.h.{}.attn.bias": None, "transformer.h.{}.attn.masked_bias": None,  # masks
}  # fmt: skip
_JAIS_MATRICES: Final = tuple(
    f"{name}.weight" for name in ("attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
)
_UNTIED_JAIS: Final = Family(
    hf=("JAISLMHeadModel",), architecture="jais",
    keys={
        "context_length": "n_positions", "feed_forward_length": four_times, "attention.head_count": _heads,
        "attention.max_alibi_bias": _steepest,
    },
    names=_JAIS_NAMES, prefix="transformer.", pre="jais",
    changes={
        **dict.fromkeys(_JAIS_MATRICES, turned),
        "token_embd.weight": _scaled_input, "output.weight": _scaled_output,
    },
    when=lambda config: config.get("tie_word_embeddings") is False,
    assumed={
        "activation_function": "swiglu", "position_embedding_type": "alibi", "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False, "alibi_scaling.type": "linear", "alibi_scaling.factor": 1.0,
        # Slopes are scaled for texts that are longer than this.
        "alibi_scaling.train_seq_len": lambda config: max(
            config.count("n_positions"), int(config.peek("alibi_scaling.train_seq_len") or 0)
        ),
    },
    harmless=("reorder_and_upcast_attn", "mup_output_alpha", "mup_width_scale", "summary_*"),
    defaults={
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "position_embedding_type": "learned",
        "n_positions": 1024,
    },
)  # fmt: skip
#: The output of a tied model is the input's table, but has a factor of its own.
_TIED_JAIS: Final = replace(
    _UNTIED_JAIS, tied=True, when=lambda config: config.get("tie_word_embeddings") is not False,
    names={
        **_JAIS_NAMES,
        "transformer.wte": Split(("token_embd", "output"), lambda values, config: (values, values)),
    },
)  # fmt: skip
OPENELM: Final = Family(
    hf=("OpenELMForCausalLM",), architecture="openelm",
    keys={
        "context_length": "max_context_length", "embedding_length": "model_dim",
        "feed_forward_length": _openelm_inner,
        "attention.head_count": lambda config: _lists(config, "num_query_heads"),
        "attention.head_count_kv": lambda config: _lists(config, "num_kv_heads"),
        "attention.layer_norm_rms_epsilon": lambda config: 1e-6, "rope.freq_base": "rope_freq_constant",
        "rope.dimension_count": lambda config: config.head_size,
    },
    names={
        "transformer.token_embeddings": "token_embd", "transformer.norm": "output_norm",
        **of_layer("transformer.layers", {
            "attn_norm": "attn_norm", "attn.qkv_proj": "attn_qkv", "attn.q_norm": "attn_q_norm",
            "attn.k_norm": "attn_k_norm", "attn.out_proj": "attn_output", "ffn_norm": "ffn_norm",
            "ffn.proj_2": "ffn_down",
        }),
        "transformer.layers.{}.ffn.proj_1": Split(("blk.{}.ffn_gate", "blk.{}.ffn_up"), halves),
    },
    tied=True,
    assumed={
        "activation_fn_name": ("swish", "silu"), "ffn_with_glu": True, "normalize_qk_projections": True,
        "normalization_layer_name": "rms_norm", "share_input_output_layers": True,
    },
    # Heads and sizes are listed, layer by layer.
    harmless=("num_gqa_groups", "qkv_multipliers", "rope_max_length"),
    defaults={
        "ffn_with_glu": True, "normalize_qk_projections": False, "share_input_output_layers": False,
        "normalization_layer_name": "rms_norm", "activation_fn_name": "swish", "rope_freq_constant": 10000,
        "ffn_dim_divisor": 256,
    },
)  # fmt: skip
GROK: Final = Family(
    hf=("GrokForCausalLM", "Grok1ForCausalLM"), architecture="grok",
    keys={
        "attention.output_scale": _grok_scale, "embedding_scale": "embedding_multiplier_scale",
        "logit_scale": "output_multiplier_scale", "attn_logit_softcapping": "attn_logit_softcapping",
        "router_logit_softcapping": "router_logit_softcapping",
        "final_logit_softcapping": lambda config: config.get("final_logit_softcapping") or None,
        "expert_feed_forward_length": "moe_intermediate_size",
    },
    names={
        "transformer.in_out_embed": "token_embd", "transformer.rms_norm": "output_norm",
        **of_layer("transformer.decoder_layer", {
            "rms_norm": "attn_norm", "rms_norm_1": "attn_output_norm", "rms_norm_2": "ffn_norm",
            "rms_norm_3": "layer_output_norm", "multi_head_attention.query": "attn_q",
            "multi_head_attention.key": "attn_k", "multi_head_attention.value": "attn_v",
            "multi_head_attention.linear": "attn_output", "router": "ffn_gate_inp",
            "moe.{}.linear": "ffn_gate_exps", "moe.{}.linear_v": "ffn_up_exps",
            "moe.{}.linear_1": "ffn_down_exps",
        }),
        **of_layer("model.layers", {
            "pre_attn_norm": "attn_norm", "post_attn_norm": "attn_output_norm", "pre_moe_norm": "ffn_norm",
            "post_moe_norm": "post_ffw_norm",
        }),
    },
    ropes=PLAIN,
    assumed={
        "hidden_act": ("gelu", *TANH_GELUS), "attn_logit_softcapping_method": "tanh",
        "rope_rotate_half_dims": False, "global_attn_every_n": 1, "sliding_window_size": -1,
        # Settings of Grok 2: readers do not agree on its rotation, and do not sharpen attention.
        "attn_temperature_len": (), "rope_type": "default",
    },
    harmless=("residual_moe", "merge_gate_up"),  # the tensors show them
    defaults={
        "attn_logit_softcapping": 30.0, "router_logit_softcapping": 30.0, "hidden_act": "gelu",
        "embedding_multiplier_scale": 78.38367176906169, "output_multiplier_scale": 0.5773502691896257,
    },
)  # fmt: skip
ARCTIC: Final = Family(
    hf=("ArcticForCausalLM",), architecture="arctic",
    keys={
        "vocab_size": "vocab_size", "rope.dimension_count": lambda config: config.head_size,
        "expert_used_count": _arctic_used,
    },
    names=of_layer("model.layers", {
        "residual_layernorm": "ffn_norm", "residual_mlp.w1": "ffn_gate", "residual_mlp.w3": "ffn_up",
        "residual_mlp.w2": "ffn_down", "post_attention_layernorm": "ffn_norm_exps",
    }),
    assumed={
        "moe_layer_frequency": 1, "parallel_attn_mlp_res": True, "use_residual": True, "sliding_window": (),
    },
    harmless=("moe_*_capacity*", "moe_token_dropping", "enable_*_parallelism", "quantization*"),
    defaults={
        "num_experts_per_tok": 1, "num_local_experts": 8, "rope_theta": 1e6, "rms_norm_eps": 1e-5,
        "moe_layer_frequency": 2, "parallel_attn_mlp_res": False,
    },
)  # fmt: skip
FAMILIES: Final = (BAICHUAN, REFACT, _UNTIED_JAIS, _TIED_JAIS, OPENELM, GROK, ARCTIC)
