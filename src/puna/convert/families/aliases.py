"""Models whose networks are others' under names of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from puna.convert.config import Config
from puna.convert.families.gpt import TANH_GELUS, by_group, of_layer
from puna.convert.families.llama import KEYS, NO_BIASES, ROPES
from puna.convert.family import PERMUTED, Family, Key, Place, Split
from puna.convert.keys import llama3_factors

_INTERNLM2: Final[dict[str, Place]] = {
    "model.tok_embeddings": "token_embd", "output": "output",
    **of_layer("model.layers", {
        "attention_norm": "attn_norm", "attention.wo": "attn_output", "ffn_norm": "ffn_norm",
        "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
    }),
    "model.layers.{}.attention.wqkv": Split(
        ("blk.{}.attn_q", "blk.{}.attn_k", "blk.{}.attn_v"),
        lambda values, config: by_group(values, config, config.kv_heads),
    ),
}  # fmt: skip
_EXAONE: Final[dict[str, Place]] = {
    "transformer.wte": "token_embd", "transformer.ln_f": "output_norm",
    "transformer.rotary.inv_freq": None,
    **of_layer("transformer.h", {
        "ln_1": "attn_norm", "attn.attention.q_proj": "attn_q", "attn.attention.k_proj": "attn_k",
        "attn.attention.v_proj": "attn_v", "attn.attention.out_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.c_fc_0": "ffn_gate", "mlp.c_fc_1": "ffn_up", "mlp.c_proj": "ffn_down",
    }),
    "transformer.h.{}.attn.attention.rotary.inv_freq": None,
}  # fmt: skip
_CODESHELL: Final[dict[str, Place]] = {
    "transformer.wte": "token_embd", "transformer.ln_f": "output_norm",
    **of_layer("transformer.h", {
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    }),
    "transformer.h.{}.attn.rotary_emb.inv_freq": None,
}  # fmt: skip


def _context(config: Config) -> Any:
    """Return the context, which Orion states three times."""
    return config.get("max_sequence_length", "max_position_embeddings", "model_max_length")


_ROTATED: Final[dict[str, Key]] = {"rope.dimension_count": lambda config: config.head_size}
_LAYER_NORMS: Final[dict[str, Key]] = {
    "attention.layer_norm_rms_epsilon": lambda config: None, "attention.layer_norm_epsilon": "rms_norm_eps",
}  # fmt: skip

_INTERNLM: Final = Family(
    hf=("InternLM2ForCausalLM",), architecture="internlm2", keys=KEYS, names=_INTERNLM2, changes=PERMUTED,
    defaults={"rms_norm_eps": 1e-6, "rope_theta": 10000.0}, harmless=("bias",),
)  # fmt: skip
FAMILIES: Final = (
    _INTERNLM,
    replace(_INTERNLM, hf=("XverseForCausalLM",), architecture="xverse", names={}, changes={}),
    Family(
        hf=("ExaoneForCausalLM",), architecture="exaone", names=_EXAONE, extra=llama3_factors, pre="exaone",
        ropes=ROPES,
        keys={
            **_ROTATED, "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
            "attention.layer_norm_epsilon": lambda config: None,
        },
        defaults={"layer_norm_epsilon": 1e-5, "rope_theta": 10000.0, **NO_BIASES},
        assumed={"activation_function": ("silu", "swish")},
    ),
    Family(
        hf=("OrionForCausalLM",), architecture="orion",
        keys={**_ROTATED, **_LAYER_NORMS, "context_length": _context},
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 10000.0},
    ),
    Family(
        hf=("CodeShellForCausalLM",), architecture="codeshell", names=_CODESHELL, pre="codeshell",
        keys={
            **_ROTATED, "attention.head_count_kv": "num_query_groups",
            "feed_forward_length": lambda config: (
                config.get("n_inner", otherwise=4 * config.count("n_embd"))
            ),
        },
        defaults={"layer_norm_epsilon": 1e-5, "num_query_groups": 1},
        assumed={
            "activation_function": TANH_GELUS, "scale_attn_weights": True, "group_query_attention": True,
            "position_embedding_type": "rope",
        },
        harmless=("*softmax_in_fp32", "multi_query"),
    ),
)  # fmt: skip
