"""GPT-2, and decoders that followed it in joining queries, keys and values in one tensor.

In most of them the rows of that tensor are ordered by groups of heads: a group's queries, its key and its
value. Files have all queries, then all keys, then all values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from puna.convert.assumptions import one_of
from puna.convert.checkpoint import Values
from puna.convert.config import Config
from puna.convert.family import Assumption, Change, Family, Key, Place
from puna.errors import ConversionError, shown
from puna.model.published import TANH_GELU

#: Names of the tanh approximation of GELU in transformers.
TANH_GELUS: Final = (TANH_GELU, "gelu_new", "gelu_fast")


def _gelu(config: Config) -> str | None:
    """Return the name of GELU in files. Raises ConversionError for another activation."""
    name = config.get("activation_function", "hidden_act")
    if name in (None, "gelu"):
        return None if name is None else "gelu"
    if name not in TANH_GELUS:
        raise ConversionError(
            f"config.json: the activation is {shown(name)}, but a file of this architecture can only have "
            f"{one_of(('gelu', *TANH_GELUS))}"
        )
    return TANH_GELU


def by_group(values: Values, config: Config, groups: int) -> list[Values]:
    """Return queries, keys and values of a tensor with those of each of `groups` below each other."""
    of_group = config.heads // groups
    rows = values.reshape(groups, of_group + 2, -1, *values.shape[1:])
    parts = rows[:, :of_group], rows[:, of_group], rows[:, of_group + 1]
    return [part.reshape(-1, *values.shape[1:]) for part in parts]


def by_kind(kv_heads: Callable[[Config], int]) -> dict[str, Change]:
    """Return the changes that order a joined tensor by kind: queries, keys, values."""

    def change(values: Values, config: Config) -> Values:
        return np.concatenate(by_group(values, config, kv_heads(config)))

    return {"attn_qkv.weight": change, "attn_qkv.bias": change}


def four_times(config: Config) -> int:
    """Return the size of a feed-forward network, which is four times the hidden size unless stated."""
    return int(config.get("n_inner", "ffn_hidden_size", otherwise=4 * _hidden(config)))


def _hidden(config: Config) -> int:
    return config.count("n_embed", "hidden_size", "n_embd", "d_model")


def _heads(config: Config) -> int:
    return config.heads


def of_layer(prefix: str, names: dict[str, str]) -> dict[str, Place]:
    """Return the places of a layer's modules, whose names begin with `prefix`."""
    return {f"{prefix}.{{}}.{theirs}": f"blk.{{}}.{ours}" for theirs, ours in names.items()}


def saved_within(part: str) -> tuple[str, ...]:
    """Return the settings without effect that transformers saves within every `part` of a configuration."""
    names = (
        "_*", "chunk_size_feed_forward", "id2label", "is_encoder_decoder", "label2id", "model_type",
        "output_*", "return_dict",
    )  # fmt: skip
    return tuple(f"{part}.{name}" for name in names)


_COMMON: Final[dict[str, Key]] = {
    "feed_forward_length": four_times, "attention.head_count": _heads,
    "attention.head_count_kv": _heads, "attention.layer_norm_epsilon": "layer_norm_epsilon",
}  # fmt: skip
_EPSILON: Final[dict[str, Any]] = {"layer_norm_epsilon": 1e-5}
#: Names that GPT-2 shares with StarCoder.
_GPT2_NAMES: Final[dict[str, Place]] = {
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
    "transformer.lm_head": "output",
    **of_layer("transformer.h", {
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    }),
    # Masks of the first versions of transformers.
    "transformer.h.{}.attn.bias": None, "transformer.h.{}.attn.masked_bias": None,
}  # fmt: skip
_HARMLESS: Final = (
    "summary_*", "n_ctx", "n_special", "predict_special_tokens", "reorder_and_upcast_attn",
    "*softmax_in_fp32",
)  # fmt: skip
#: Names that Falcon shares with BLOOM.
_BLOOM_NAMES: Final[dict[str, Place]] = {
    "transformer.word_embeddings": "token_embd", "transformer.ln_f": "output_norm",
    "transformer.lm_head": "output",
    **of_layer("transformer.h", {
        "input_layernorm": "attn_norm", "self_attention.query_key_value": "attn_qkv",
        "self_attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
        "mlp.dense_4h_to_h": "ffn_down",
    }),
}  # fmt: skip


def turned(values: Values, config: Config) -> Values:
    """Transpose a matrix, which GPT-2 and Jais store as [in, out]."""
    return values.T


def _starcoder_groups(config: Config) -> int:
    """Return the number of keys: one for all heads, or one for each."""
    return 1 if config.get("multi_query") else config.heads


def _falcon_groups(config: Config) -> int:
    """Return the number of keys, each for a group of heads."""
    without_groups = _starcoder_groups(config)
    if config.get("new_decoder_architecture"):
        return int(config.get("num_kv_heads", "n_head_kv", otherwise=config.heads))
    return without_groups


def _neox_rotation(config: Config, name: str, outside: str, otherwise: float) -> float:
    """Return a setting of GPT-NeoX's rotation, which has another name `outside` of it."""
    given = config.get(f"rope_scaling.{name}", f"rope_parameters.{name}", outside)
    return float(otherwise if given is None else given)


def _neox_share(config: Config) -> float:
    """Return the rotated share of a head."""
    return _neox_rotation(config, "partial_rotary_factor", "rotary_pct", 0.25)


def _neox_base(config: Config) -> float:
    return _neox_rotation(config, "rope_theta", "rotary_emb_base", 10000.0)


def _of_experts(values: Values, config: Config) -> Values:
    """Return the matrices of DBRX's experts, which are below each other: [experts, inner, hidden]."""
    return values.reshape(config.count("ffn_config.moe_num_experts"), -1, values.shape[-1])


def _dbrx_base(config: Config) -> float:
    base = config.rope.get("rope_theta", config.get("attn_config.rope_theta"))
    return float(10000.0 if base is None else base)


def _dbrx_used(config: Config) -> int:
    """Return how many experts a token goes to. Raises ConversionError if their shares do not add up to 1."""
    experts = config.whole.get("ffn_config") or {}
    if experts.get("moe_normalize_expert_weights", 1.0) is None:
        raise ConversionError(
            "config.json: 'ffn_config.moe_normalize_expert_weights' is null, but a file of architecture dbrx "
            "can only have 1.0"
        )
    return config.count("ffn_config.moe_top_k")


_FALCON: Final[dict[str, Assumption]] = {
    "alibi": False, "parallel_attn": True, "activation": "gelu",
    "num_ln_in_parallel_attn": lambda config: (1, 2) if config.get("new_decoder_architecture") else (1,),
    "num_kv_heads": lambda config: (
        _falcon_groups(config) if config.get("new_decoder_architecture") else (1, config.heads)
    ),
    "ff_factor": 4,
}  # fmt: skip
_BLOOM: Final[dict[str, Assumption]] = {"apply_residual_connection_post_layernorm": False}
_MPT: Final[dict[str, Assumption]] = {
    "expansion_ratio": 4, "no_bias": True, "logit_scale": (), "attn_config.alibi": True,
    "attn_config.alibi_bias_max": 8, "attn_config.attn_type": "multihead_attention",
    "attn_config.softmax_scale": (), "attn_config.prefix_lm": False, "attn_config.qk_ln": False,
    "attn_config.attn_uses_sequence_id": False, "norm_type": ("low_precision_layernorm", "layernorm"),
}  # fmt: skip

_GPT2: Final = Family(
    hf=("GPT2LMHeadModel",), architecture="gpt2",
    keys={**_COMMON, "context_length": "n_positions", "hidden_activation": _gelu},
    names=_GPT2_NAMES, prefix="transformer.", tied=True, pre="gpt-2",
    changes=dict.fromkeys(
        ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"), turned
    ),
    assumed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    harmless=_HARMLESS, defaults={**_EPSILON, "n_positions": 1024},
)  # fmt: skip

FAMILIES: Final = (
    _GPT2,
    replace(
        _GPT2, hf=("GPTBigCodeForCausalLM",), architecture="starcoder", pre="starcoder",
        keys={**_GPT2.keys, "attention.head_count_kv": _starcoder_groups}, changes=by_kind(_starcoder_groups),
        assumed={"scale_attn_weights": True},
        defaults={**_GPT2.defaults, "activation_function": TANH_GELU, "multi_query": True},
        harmless=(*_HARMLESS, "num_key_value_heads", "inference_runner", "validate_runner_input",
        "pre_allocate_kv_cache", "max_batch_size", "pad_key_length"),
    ),
    Family(
        hf=("GPTNeoXForCausalLM",), architecture="gptneox",
        keys={
            "rope.dimension_count": lambda config: int(config.head_size * _neox_share(config)),
            "rope.freq_base": _neox_base, "hidden_activation": _gelu, "attention.head_count_kv": _heads,
            "use_parallel_residual": lambda config: config.get("use_parallel_residual") is not False,
        },
        names={
            "gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm",
            "embed_out": "output",
            **of_layer("gpt_neox.layers", {
                "input_layernorm": "attn_norm", "attention.query_key_value": "attn_qkv",
                "attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
                "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
            }),
            "gpt_neox.layers.{}.attention.rotary_emb.inv_freq": None,
            "gpt_neox.layers.{}.attention.bias": None, "gpt_neox.layers.{}.attention.masked_bias": None,
        },
        changes=by_kind(_heads), pre="gpt-2",
        assumed={
            "rope_theta": _neox_base, "partial_rotary_factor": _neox_share,
            "rope_parameters.partial_rotary_factor": _neox_share,
        },
        defaults={"layer_norm_eps": 1e-5},
    ),
    Family(
        hf=("FalconForCausalLM", "RWForCausalLM"), architecture="falcon",
        keys={
            **_COMMON, "attention.head_count_kv": _falcon_groups,
            "context_length": "max_position_embeddings",
        },
        names={
            **_BLOOM_NAMES, "transformer.h.{}.ln_attn": "blk.{}.attn_norm_2",
            "transformer.h.{}.ln_mlp": "blk.{}.attn_norm",
        },
        changes=by_kind(_falcon_groups), tied=True, pre="falcon", assumed=_FALCON,
        defaults={**_EPSILON, "multi_query": True, "max_position_embeddings": 2048},
        harmless=("apply_residual_connection_post_layernorm",),
    ),
    Family(
        hf=("BloomForCausalLM",), architecture="bloom",
        keys={
            **_COMMON, "embedding_length": _hidden,
            "context_length": lambda config: config.get("seq_length", otherwise=2048),
        },
        names={
            **_BLOOM_NAMES, "transformer.word_embeddings_layernorm": "token_embd_norm",
            "transformer.h.{}.post_attention_layernorm": "blk.{}.ffn_norm",
        },
        prefix="transformer.", changes=by_kind(_heads), tied=True, pre="bloom", assumed=_BLOOM,
        harmless=("attention_softmax_in_fp32", "*_fusion", "skip_bias_*", "slow_but_exact"),
        defaults=_EPSILON,
    ),
    Family(
        hf=("MPTForCausalLM", "MptForCausalLM"), architecture="mpt",
        keys={
            **_COMMON, "context_length": "max_seq_len",
            "feed_forward_length": lambda config: 4 * _hidden(config),
            "attention.clamp_kqv": lambda config: config.get("attn_config.clip_qkv") or None,
            "attention.max_alibi_bias": lambda config: 8.0,
        },
        names={
            "transformer.wte": "token_embd", "transformer.norm_f": "output_norm",
            **of_layer("transformer.blocks", {
                "norm_1": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output",
                "norm_2": "ffn_norm", "ffn.up_proj": "ffn_up", "ffn.down_proj": "ffn_down",
            }),
        },
        tied=True, pre="mpt", assumed=_MPT, defaults={**_EPSILON, "max_seq_len": 2048},
        harmless=(*saved_within("attn_config"), "attn_config.attn_impl", "learned_pos_emb", "verbose",
        "embedding_fraction"),
    ),
    Family(
        hf=("DbrxForCausalLM",), architecture="dbrx",
        keys={
            "context_length": "max_seq_len", "feed_forward_length": "ffn_config.ffn_hidden_size",
            "attention.head_count": _heads,
            "attention.head_count_kv": lambda config: config.get("attn_config.kv_n_heads", otherwise=1),
            "attention.layer_norm_epsilon": lambda config: 1e-5,
            "attention.clamp_kqv": "attn_config.clip_qkv",
            "rope.freq_base": _dbrx_base, "expert_count": "ffn_config.moe_num_experts",
            "expert_used_count": _dbrx_used,
        },
        names={
            "transformer.wte": "token_embd", "transformer.norm_f": "output_norm",
            **of_layer("transformer.blocks", {
                "norm_attn_norm.norm_1": "attn_norm", "norm_attn_norm.attn.Wqkv": "attn_qkv",
                "norm_attn_norm.attn.out_proj": "attn_output", "norm_attn_norm.norm_2": "attn_output_norm",
                "ffn.router.layer": "ffn_gate_inp", "ffn.experts.mlp.w1": "ffn_gate_exps.weight",
                "ffn.experts.mlp.v1": "ffn_up_exps.weight", "ffn.experts.mlp.w2": "ffn_down_exps.weight",
            }),
        },
        changes={
            "ffn_gate_exps.weight": _of_experts, "ffn_up_exps.weight": _of_experts,
            "ffn_down_exps.weight": lambda values, config: _of_experts(values, config).swapaxes(1, 2),
        },
        pre="dbrx", defaults={"max_seq_len": 2048},
        assumed={
            "ffn_config.ffn_act_fn.name": "silu",
            # Readers take a limit of 0 for none.
            "attn_config.clip_qkv": lambda config: config.peek("attn_config.clip_qkv") or (),
            "attn_config.rope_theta": _dbrx_base,
            "ffn_config.moe_normalize_expert_weights": 1.0,
            "ffn_config.hidden_size": lambda config: config.count("d_model"),
        },
        harmless=(*saved_within("attn_config"), *saved_within("ffn_config"), "*.moe_loss_weight",
        "*.moe_jitter_eps", "num_key_value_heads"),
    ),
)  # fmt: skip
