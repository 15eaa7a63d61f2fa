"""DeepSeek V4: a window beside compressed entries, mixed residual streams, and experts in every layer.

Published tensors have other names than transformers' modules, and what transformers saves has both.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from puna.convert.config import Config
from puna.convert.family import Assumption, Family, Key, Place
from puna.convert.keys import same_limit
from puna.errors import ConversionError, shown

_SPARSE, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
#: Positions of a group in sparse layers, by which readers of files tell them.
_SPARSE_RATE: Final = 4
_HEAVY_RATE: Final = 128
#: Layers that choose experts by token, if config.json does not say.
_HASHED: Final = 3

_OF_LAYER: Final = {
    "attn_norm": ("attn_norm",), "ffn_norm": ("ffn_norm",), "attn_sinks.weight": ("attn.attn_sink",),
    "attn_q_a": ("self_attn.q_a_proj", "attn.wq_a"), "attn_q_b": ("self_attn.q_b_proj", "attn.wq_b"),
    "attn_q_a_norm": ("self_attn.q_a_norm", "attn.q_norm"),
    "attn_kv": ("self_attn.kv_proj", "attn.wkv"),
    "attn_kv_a_norm": ("self_attn.kv_norm", "attn.kv_norm", "attn.norm"),
    "attn_output_a": ("self_attn.o_a_proj", "attn.wo_a"),
    "attn_output_b": ("self_attn.o_b_proj", "attn.wo_b"),
    "indexer.attn_q_b": ("self_attn.compressor.indexer.q_b_proj", "attn.indexer.wq_b"),
    "indexer.proj": ("self_attn.compressor.indexer.scorer.weights_proj", "attn.indexer.weights_proj"),
    **{
        f"{ours}_{part}": (f"self_attn.compressor.{theirs}", f"attn.{published}.{short}")
        for ours, inner, published in (
            ("attn_compressor", "", "compressor"), ("indexer_compressor", "indexer.", "indexer.compressor")
        )
        for part, theirs, short in (
            ("kv", f"{inner}kv_proj", "wkv"), ("gate", f"{inner}gate_proj", "wgate"),
            ("ape.weight", f"{inner}position_bias", "ape"), ("norm", f"{inner}kv_norm", "norm"),
        )
    },
    **{
        f"hc_{half}_{part}.weight": (f"{half}_hc.{part}", f"hc_{half}_{part}")
        for half in ("attn", "ffn") for part in ("fn", "base", "scale")
    },
    "ffn_gate_inp": ("ffn.gate",), "exp_probs_b.bias": ("ffn.gate.bias",),
    "exp_probs_b_vl.bias": ("ffn.gate.bias_vl",),
    "ffn_gate_tid2eid.weight": ("mlp.gate.tid2eid", "ffn.gate.tid2eid"),
    **{
        f"ffn_{ours}_{kind}": (f"ffn.{theirs}.{part}",)
        for kind, theirs in (("exps", "experts.{}"), ("shexp", "shared_experts"))
        for ours, part in (("gate", "w1"), ("down", "w2"), ("up", "w3"))
    },
}  # fmt: skip
_NAMES: Final[dict[str, Place]] = {
    "model.embed": "token_embd", "model.head": "output", "model.lm_head": "output",
    **{
        f"model.hc_head{theirs}{part}": f"output_hc_{part}.weight"
        for theirs in (".hc_", "_") for part in ("fn", "base", "scale")
    },
    **{
        f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}"
        for ours, names in _OF_LAYER.items() for theirs in names
    },
    "model.unused": None,
}  # fmt: skip


def _ratios(config: Config) -> list[int]:
    """Return the positions of a group in each layer, 0 for those without groups. Raises ConversionError."""
    kinds, ratios = config.get("layer_types"), config.get("compress_ratios")
    count = config.layers
    if kinds is None and ratios is not None:  # heads that predict further tokens may follow
        known = {0: "sliding_attention", _SPARSE_RATE: _SPARSE, _HEAVY_RATE: _HEAVY}
        kinds = [known.get(ratio, shown(ratio)) for ratio in ratios[:count]]
    if kinds is None:
        kinds = [_HEAVY] * min(count, 2) + [_SPARSE if i % 2 else _HEAVY for i in range(count - 2)]
    rates = config.get("compress_rates", otherwise={})
    sizes = {
        "sliding_attention": 0,
        _SPARSE: config.get("compress_rate_csa", otherwise=rates.get(_SPARSE, _SPARSE_RATE)),
        _HEAVY: config.get("compress_rate_hca", otherwise=rates.get(_HEAVY, _HEAVY_RATE)),
    }
    found = [sizes.get(kind, -1) for kind in kinds]
    wrong = [
        kind for kind, size in zip(kinds, found, strict=True)
        if size < 0 or (kind == _SPARSE) != (size == _SPARSE_RATE) or (kind == _HEAVY and not size)
    ]  # fmt: skip
    if len(found) != count or wrong:
        raise ConversionError(
            f"config.json: {count} layers of kinds {shown(kinds)} with groups of {shown(sizes)} positions; a "
            f"file of architecture deepseek4 can only have groups of {_SPARSE_RATE} in layers of kind "
            f"{_SPARSE}, and of other sizes in those of kind {_HEAVY}"
        )
    return found


def _hashed(config: Config) -> int:
    """Return how many layers choose experts by token. Raises ConversionError if they are not the first."""
    kinds, count = config.get("mlp_layer_types"), config.get("num_hash_layers")
    if kinds is None:
        return min(_HASHED if count is None else int(count), config.layers)
    first = kinds.index("moe") if "moe" in kinds else len(kinds)
    if kinds != ["hash_moe"] * first + ["moe"] * (config.layers - first):
        raise ConversionError(
            f"config.json: 'mlp_layer_types' is {shown(kinds)}, but in a file of architecture deepseek4 only "
            "the first layers can be of kind 'hash_moe', and all others must be of kind 'moe'"
        )
    return first


def _rotated(config: Config) -> int:
    """Return how many values of a head are rotated."""
    share = config.get("partial_rotary_factor")
    if share is not None:
        return int(config.count("head_dim") * share)
    return int(config.get("qk_rope_head_dim", otherwise=config.count("head_dim") // 8))


def _rotated_share(config: Config) -> float:
    return _rotated(config) / config.count("head_dim")


def _base(config: Config) -> float:
    """Return the base of the rotation in layers without entries."""
    return float(config.get("rope_parameters.main.rope_theta", "rope_theta"))


def _without_unused(name: str, config: Config) -> str:
    """Return a tensor's name, or "model.unused" for biases of layers that choose experts by token."""
    parts = name.split(".")
    biased = name.endswith((".ffn.gate.bias", ".gate.e_score_correction_bias"))
    unused = biased and parts[2].isdecimal() and int(parts[2]) < _hashed(config)
    return "model.unused" if unused else name


def _check_magnitude(config: Config, ignore: Collection[str]) -> list[str]:
    """Raise ConversionError if transformers would scale the rotation of entries, as no file can say.

    Only where it reads the rotations of both kinds of layers apart, it has no default of 1.
    """
    kinds = [config.peek(f"rope_parameters.{kind}") for kind in ("main", "compress")]
    scaled = all(isinstance(kind, dict) for kind in kinds) and config.rope.get("rope_type") == "yarn"
    name = "rope_parameters.compress.attention_factor"
    if scaled and config.peek(name) is None:
        raise ConversionError(
            f"config.json lacks '{name}', which must be 1.0 in a file of architecture deepseek4"
        )
    return []


_KEYS: Final[dict[str, Key]] = {
    "embedding_length_out": lambda config: config.count("hidden_size") * config.count("hc_mult"),
    "attention.head_count_kv": lambda config: 1,
    "attention.q_lora_rank": "q_lora_rank",
    "attention.sliding_window": "sliding_window",
    "attention.output_group_count": "o_groups",
    "attention.output_lora_rank": "o_lora_rank",
    "attention.compress_ratios": _ratios,
    "attention.compress_rope_freq_base": lambda config: float(
        config.get("rope_parameters.compress.rope_theta", "compress_rope_theta")
    ),
    "attention.indexer.head_count": "index_n_heads",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.top_k": "index_topk",
    "rope.freq_base": _base,
    "rope.dimension_count": _rotated,
    "hyper_connection.count": "hc_mult",
    "hyper_connection.sinkhorn_iterations": "hc_sinkhorn_iters",
    "hyper_connection.epsilon": "hc_eps",
    "hash_layer_count": _hashed,
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "swiglu_clamp_exp": same_limit("swiglu_limit"),
    "swiglu_clamp_shexp": same_limit("swiglu_limit"),
}

_ASSUMED: Final[dict[str, Assumption]] = {
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "topk_method": "noaux_tc",
    "qk_rope_head_dim": _rotated,
    "rope_parameters.rope_theta": _base,
    "rope_parameters.main.rope_type": "default",
    **{
        f"rope_parameters.{inner}partial_rotary_factor": _rotated_share
        for inner in ("", "main.", "compress.")
    },
    **{f"rope_parameters.{inner}attention_factor": 1.0 for inner in ("", "compress.")},
}

FAMILIES: Final = (
    Family(
        hf=("DeepseekV4ForCausalLM",), architecture="deepseek4", keys=_KEYS, names=_NAMES, prefix="model.",
        pre="deepseek-v3", rename=_without_unused, dropped=("mtp.", "vision.", "aligner.", "image_"),
        assumed=_ASSUMED, harmless=("num_key_value_heads",), ropes=("default", "linear", "yarn"),
        check_others=_check_magnitude,
        defaults={
            "head_dim": 512, "q_lora_rank": 1024, "num_experts_per_tok": 6, "n_routed_experts": 256,
            "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "norm_topk_prob": True,
            "routed_scaling_factor": 1.5, "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
            "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "swiglu_limit": 10.0,
            "sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64,
            "index_head_dim": 128, "index_topk": 512, "rms_norm_eps": 1e-6,
        },
    ),
)  # fmt: skip
