"""LFM 2: short convolutions in most layers, attention in some."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from puna.convert.config import Config
from puna.convert.families.mamba import convolution
from puna.convert.family import Assumption, Family, Key, Place
from puna.errors import ConversionError

_NAMES: Final[dict[str, Place]] = {
    "model.embedding_norm": "token_embd_norm",
    **{
        f"model.layers.{{}}.{theirs}": f"blk.{{}}.{ours}"
        for theirs, ours in {
            "operator_norm": "attn_norm", "conv.conv": "shortconv.conv", "conv.in_proj": "shortconv.in_proj",
            "conv.out_proj": "shortconv.out_proj", "self_attn.out_proj": "attn_output",
            "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
            "ffn_norm": "ffn_norm", "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up",
            "feed_forward.w2": "ffn_down", "feed_forward.gate": "ffn_gate_inp",
            "feed_forward.expert_bias": "exp_probs_b.bias",
            **{
                f"feed_forward.experts.{{}}.{theirs}": f"ffn_{ours}_exps"
                for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down"))
            },
        }.items()
    },
}  # fmt: skip


def _kv_heads(config: Config) -> list[int]:
    if "full_attention" not in config["layer_types"]:
        raise ConversionError(
            "config.json: 'layer_types' lacks 'full_attention', but a layer must have attention"
        )
    return [0 if kind == "conv" else config.kv_heads for kind in config["layer_types"]]


def _feed_forward(config: Config) -> int:
    size, multiple = config.count("block_ff_dim", "intermediate_size"), config.get("block_multiple_of")
    factor = config.get("block_ffn_dim_multiplier", otherwise=1)
    if config.get("block_auto_adjust_ff_dim"):
        size = int(factor * int(2 * size / 3))
        size = multiple * -(-size // multiple)
    return size


_KEYS: Final[dict[str, Key]] = {
    "attention.head_count_kv": _kv_heads, "vocab_size": "vocab_size", "shortconv.l_cache": "conv_L_cache",
    "feed_forward_length": _feed_forward,
}  # fmt: skip

_ASSUMED: Final[dict[str, Assumption]] = {
    "block_use_swiglu": True,
    "use_pos_enc": True,
    "theta": lambda config: config.rope.get("rope_theta"),
    "block_norm_eps": lambda config: config["norm_eps"],
    "num_heads": lambda config: config.heads,
}
#: Settings that repeat others or describe weight initialisation.
_HARMLESS: Final = ("full_attn_idxs", "conv_dim*", "block_*", "conv_use_xavier_init")

_LFM2: Final = Family(
    hf=("Lfm2ForCausalLM",), architecture="lfm2", keys=_KEYS, names=_NAMES, tied=True, assumed=_ASSUMED,
    harmless=_HARMLESS,
    defaults={
        "block_auto_adjust_ff_dim": True, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
    },
    changes={"shortconv.conv.weight": convolution}, pre="lfm2",
)  # fmt: skip

FAMILIES: Final = (
    _LFM2,
    # The encoder of recordings becomes a tower; modules that speak are left out.
    replace(
        _LFM2, hf=("Lfm2AudioForConditionalGeneration",), dropped=("conformer.", "codebook_", "depth"),
        rename=lambda name, config: re.sub(r"^lfm\.", "model.", name),
    ),
    Family(
        hf=("Lfm2MoeForCausalLM",), architecture="lfm2moe",
        keys={
            **_KEYS, "feed_forward_length": "intermediate_size",
            "expert_feed_forward_length": "moe_intermediate_size",
            "leading_dense_block_count": "num_dense_layers", "expert_gating_func": lambda config: 2,
            # Written only where it differs from what llama.cpp assumes.
            "expert_weights_scale": lambda config: (
                config.get("routed_scaling_factor") if config.get("routed_scaling_factor") != 1 else None
            ),
            "norm_top_k_prob": lambda config: False if config.get("norm_topk_prob") is False else None,
        },
        names=_NAMES, changes={"shortconv.conv.weight": convolution}, pre="lfm2", tied=True,
        assumed=_ASSUMED, harmless=_HARMLESS, defaults={"num_dense_layers": 2},
    ),
)  # fmt: skip
