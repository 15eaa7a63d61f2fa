"""Tiny random models that transformers lacks, as they are published; llama.cpp is their reference.

`tests/model/models/test_remote_code.py` holds ours against what llama.cpp computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from tests.tiny.decoders import SIZES, TinyDecoder
from tests.tiny.renamed import Published, State

VOCABULARY = SIZES["vocab_size"]
#: Shapes of tensors by their names.
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class TinyPublished(TinyDecoder):
    """A model that config.json calls `hf`, with random tensors."""

    shapes: Callable[[SimpleNamespace], Shapes]
    finish: Callable[[State, SimpleNamespace], State] = lambda state, config: state

    def build(self) -> Any:
        """Return the checkpoint: float32, with random norms and biases."""
        config = SimpleNamespace(**self.settings)
        generator = torch.Generator().manual_seed(self.seed)
        state: State = {}
        for name, shape in self.shapes(config).items():
            values = torch.randn(shape, generator=generator)
            if name.endswith("bias"):
                state[name] = 0.3 * values
            elif len(shape) == 1:
                state[name] = 1 + 0.2 * values
            else:
                state[name] = values / shape[-1] ** 0.5
        kind = type(self.hf, (Published,), {})
        return kind(None, self.settings, self.finish(state, config))


def of_layers(count: int, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Return the tensors of `count` equal layers, which are called `prefix` and a number."""
    return {
        f"{prefix}.{layer}.{name}.weight": shape for layer in range(count) for name, shape in shapes.items()
    }


def _baichuan(config: SimpleNamespace) -> Shapes:
    hidden, inner = config.hidden_size, config.intermediate_size
    return _around(config, {
        "self_attn.W_pack": (3 * hidden, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    })  # fmt: skip


def _refact(config: SimpleNamespace) -> Shapes:
    hidden, head = config.n_embd, config.n_embd // config.n_head
    return {
        "transformer.wte.weight": (VOCABULARY, hidden), "ln_f.weight": (hidden,),
        "lm_head.weight": (VOCABULARY, hidden),
        **of_layers(config.n_layer, "transformer.h", {
            "attn.q": (hidden, hidden), "attn.kv": (2 * head, hidden), "attn.c_proj": (hidden, hidden),
            "mlp.gate_up_proj": (512, hidden), "mlp.c_proj": (hidden, 256), "ln_1": (hidden,),
            "ln_2": (hidden,),
        }),
    }  # fmt: skip


def centred(state: State, config: SimpleNamespace) -> State:
    """Remove the mean of everything that is added to the residual stream, which LayerNorms ignore.

    llama.cpp computes RMS norms instead, which are then the same.
    """
    found = dict(state)
    for name, values in state.items():
        if name.endswith("wte.weight"):
            found[name] = values - values.mean(dim=1, keepdim=True)
        elif name.endswith("c_proj.weight"):
            found[name] = values - values.mean(dim=0, keepdim=True)
    return found


def _jais(config: SimpleNamespace) -> Shapes:
    hidden, inner = config.n_embd, config.n_inner
    matrices = {
        "attn.c_attn": (hidden, 3 * hidden), "attn.c_proj": (hidden, hidden), "mlp.c_fc": (hidden, inner),
        "mlp.c_fc2": (hidden, inner), "mlp.c_proj": (inner, hidden),
    }  # fmt: skip
    shapes = of_layers(
        config.n_layer, "transformer.h", {**matrices, "ln_1": (hidden,), "ln_2": (hidden,)}
    ) | {"transformer.ln_f.weight": (hidden,)}
    biases = {name.removesuffix("weight") + "bias": shape[-1:] for name, shape in shapes.items()}
    tables: Shapes = {"transformer.wte.weight": (VOCABULARY, hidden), "lm_head.weight": (VOCABULARY, hidden)}
    return {**tables, **shapes, **biases}


def _with_slopes(steepest: float, tied: bool = False) -> Callable[[State, SimpleNamespace], State]:
    """Return the change that adds ALiBi's slopes for a power of two heads, as Jais stores them."""

    def finish(state: State, config: SimpleNamespace) -> State:
        heads = torch.arange(1, config.n_head + 1)
        found = {**state, "transformer.relative_pe.slopes": 2 ** (-steepest * heads / config.n_head)}
        return found | ({"lm_head.weight": state["transformer.wte.weight"]} if tied else {})

    return finish


def _openelm(config: SimpleNamespace) -> Shapes:
    hidden, head = config.model_dim, config.head_dim
    shapes: Shapes = {
        "transformer.token_embeddings.weight": (VOCABULARY, hidden), "transformer.norm.weight": (hidden,)
    }  # fmt: skip
    for layer, (heads, kv_heads, inner) in enumerate(
        zip(config.num_query_heads, config.num_kv_heads, (32, 96, 128), strict=True)
    ):
        own = {
            "attn.qkv_proj": ((heads + 2 * kv_heads) * head, hidden), "attn.q_norm": (head,),
            "attn.k_norm": (head,), "attn.out_proj": (hidden, heads * head), "attn_norm": (hidden,),
            "ffn_norm": (hidden,), "ffn.proj_1": (2 * inner, hidden), "ffn.proj_2": (hidden, inner),
        }  # fmt: skip
        shapes |= {f"transformer.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    return shapes


def _experts(config: SimpleNamespace, name: str, parts: str, inner: int) -> dict[str, tuple[int, ...]]:
    """Return the matrices of experts of size `inner`, `parts` being the names of gate, up and down."""
    hidden, down = config.hidden_size, parts.split()[-1]
    return {
        f"{name}.{expert}.{part}": (hidden, inner) if part == down else (inner, hidden)
        for expert in range(config.num_local_experts)
        for part in parts.split()
    }


def _attention(config: SimpleNamespace, name: str, parts: str) -> dict[str, tuple[int, ...]]:
    """Return the matrices of attention, `parts` being the names of queries, keys, values and the output."""
    hidden = config.hidden_size
    keys = hidden // config.num_attention_heads * config.num_key_value_heads
    rows = (hidden, keys, keys, hidden)
    return {f"{name}.{part}": (count, hidden) for part, count in zip(parts.split(), rows, strict=True)}


def _around(config: SimpleNamespace, layer: Mapping[str, tuple[int, ...]]) -> Shapes:
    """Return the tensors of a model with the usual names around layers that are called as usual."""
    hidden = config.hidden_size
    return {
        "model.embed_tokens.weight": (VOCABULARY, hidden), "model.norm.weight": (hidden,),
        "lm_head.weight": (VOCABULARY, hidden),
        **of_layers(config.num_hidden_layers, "model.layers", layer),
    }  # fmt: skip


def _grok(config: SimpleNamespace) -> Shapes:
    hidden = config.hidden_size
    layer = {
        **_attention(config, "multi_head_attention", "query key value linear"),
        **dict.fromkeys(("rms_norm", "rms_norm_1", "rms_norm_2", "rms_norm_3"), (hidden,)),
        "router": (config.num_local_experts, hidden),
        **_experts(config, "moe", "linear linear_v linear_1", config.intermediate_size),
    }
    return {
        "transformer.in_out_embed.weight": (VOCABULARY, hidden), "transformer.rms_norm.weight": (hidden,),
        **of_layers(config.num_hidden_layers, "transformer.decoder_layer", layer),
    }  # fmt: skip


def _grok2(config: SimpleNamespace) -> Shapes:
    hidden, inner = config.hidden_size, config.intermediate_size
    norms = ("pre_attn_norm", "post_attn_norm", "pre_moe_norm", "post_moe_norm")
    return _around(config, {
        **_attention(config, "self_attn", "q_proj k_proj v_proj o_proj"), **dict.fromkeys(norms, (hidden,)),
        "block_sparse_moe.gate": (config.num_local_experts, hidden),
        **_experts(config, "block_sparse_moe.experts", "w1 w3 w2", config.moe_intermediate_size),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
    })  # fmt: skip


def _arctic(config: SimpleNamespace) -> Shapes:
    hidden = config.hidden_size
    norms = ("input_layernorm", "post_attention_layernorm", "residual_layernorm")
    return _around(config, {
        **_attention(config, "self_attn", "q_proj k_proj v_proj o_proj"), **dict.fromkeys(norms, (hidden,)),
        **dict.fromkeys(("residual_mlp.w1", "residual_mlp.w2", "residual_mlp.w3"), (hidden, hidden)),
        "block_sparse_moe.gate": (config.num_local_experts, hidden),
        **_experts(config, "block_sparse_moe.experts", "w1 w3 w2", config.intermediate_size),
    })  # fmt: skip


_USUAL = {"vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
_BAICHUAN = {**_USUAL, "hidden_act": "silu", "intermediate_size": 40}
#: llama.cpp does not cap the scores of the router: here the cap changes less than is compared.
_GROK = {
    **_USUAL, "hidden_act": "gelu", "intermediate_size": 80, "num_hidden_layers": 2,
    "max_position_embeddings": 256, "rope_theta": 500.0, "embedding_multiplier_scale": 12.5,
    "output_multiplier_scale": 0.4, "attn_logit_softcapping": 1.5, "router_logit_softcapping": 500.0,
}  # fmt: skip
_JAIS = {
    "vocab_size": VOCABULARY, "n_positions": 256, "n_embd": 64, "n_inner": 80, "n_layer": 2, "n_head": 4,
    "activation_function": "swiglu", "position_embedding_type": "alibi", "layer_norm_epsilon": 1e-5,
}  # fmt: skip
#: By architecture and what is special. llama.cpp tells Baichuan's kinds by the number of layers.
CHECKPOINTS: dict[str, TinyPublished] = {
    "baichuan rotated": TinyPublished(
        "BaiChuanForCausalLM",
        {**_BAICHUAN, "hidden_size": 48, "num_hidden_layers": 32, "num_attention_heads": 3,
         "max_position_embeddings": 256},
        shapes=_baichuan, seed=201,
    ),
    "baichuan alibi": TinyPublished(
        "BaichuanForCausalLM",
        {**_BAICHUAN, "hidden_size": 40, "num_hidden_layers": 40, "num_attention_heads": 5,
         "model_max_length": 256},
        shapes=_baichuan, seed=202,
    ),
    "refact": TinyPublished(
        "GPTRefactForCausalLM",
        {"vocab_size": VOCABULARY, "n_positions": 256, "n_embd": 48, "n_layer": 2, "n_head": 4,
         "layer_norm_epsilon": 1e-4, "multi_query": True, "attention_softmax_in_fp32": False},
        shapes=_refact, finish=centred, seed=203,
    ),
    "refact three heads": TinyPublished(
        "GPTRefactForCausalLM",
        {"vocab_size": VOCABULARY, "n_positions": 256, "n_embd": 60, "n_layer": 3, "n_head": 3,
         "layer_norm_epsilon": 1e-5, "multi_query": True},
        shapes=_refact, finish=centred, seed=204,
    ),
    "jais": TinyPublished(
        "JAISLMHeadModel",
        {**_JAIS, "tie_word_embeddings": False, "mup_embeddings_scale": 3.0, "mup_output_alpha": 2.5,
         "mup_width_scale": 0.3, "mup_scale_qk_dot_by_d": True},
        shapes=_jais, finish=_with_slopes(8.0), seed=205,
    ),
    "jais other slopes, tied, older settings": TinyPublished(
        "JAISLMHeadModel",
        {**_JAIS, "embeddings_scale": 4.0, "width_scale": 0.6, "scale_qk_dot_by_d": True},
        shapes=_jais, finish=_with_slopes(6.0, tied=True), seed=206,
    ),
    "openelm": TinyPublished(
        "OpenELMForCausalLM",
        {"vocab_size": VOCABULARY, "model_dim": 64, "head_dim": 16, "num_transformer_layers": 3,
         "num_query_heads": [2, 6, 4], "num_kv_heads": [1, 3, 2], "ffn_multipliers": [0.5, 1.5, 2.1],
         "ffn_dim_divisor": 32, "ffn_with_glu": True, "activation_fn_name": "swish",
         "normalization_layer_name": "rms_norm", "normalize_qk_projections": True,
         "share_input_output_layers": True, "rope_freq_constant": 500, "rope_max_length": 512,
         "max_context_length": 256, "num_gqa_groups": 2, "qkv_multipliers": [0.5, 1.0]},
        shapes=_openelm, seed=207,
    ),
    "grok": TinyPublished(
        "Grok1ForCausalLM",
        {**_GROK, "tie_word_embeddings": True, "hidden_size": 64, "num_attention_heads": 4,
         "num_key_value_heads": 2, "num_local_experts": 6, "num_experts_per_tok": 2,
         "attn_output_multiplier": 0.3},
        shapes=_grok, seed=208,
    ),
    "grok dense beside experts, capped logits": TinyPublished(
        "Grok1ForCausalLM",
        # A large epsilon, so that norms do not hide the factor of the sum.
        {**_GROK, "rms_norm_eps": 0.1, "hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3,
         "num_local_experts": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
         "final_logit_softcapping": 3.0, "residual_moe": True},
        shapes=_grok2, seed=209,
    ),
    "arctic": TinyPublished(
        "ArcticForCausalLM",
        {**_USUAL, "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
         "rope_theta": 500.0, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_layer_frequency": 1,
         "parallel_attn_mlp_res": True, "use_residual": True},
        shapes=_arctic, seed=210,
    ),
    "arctic three heads, three experts": TinyPublished(
        "ArcticForCausalLM",
        {**_USUAL, "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 3,
         "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 256,
         "rope_theta": 1e4, "num_local_experts": 5, "num_experts_per_tok": 3, "moe_layer_frequency": 1,
         "parallel_attn_mlp_res": True, "tie_word_embeddings": False},
        shapes=_arctic, seed=211,
    ),
}  # fmt: skip
