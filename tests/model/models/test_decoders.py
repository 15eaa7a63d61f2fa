"""Decoders against Hugging Face transformers, on tiny random models in float32: one entry per variant.

Features of a single architecture are tested in a file of their own.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from puna.model.load import LoadedModel, load_model
from puna.ops import Backend
from tests.model.models.parity import (
    check_close,
    check_greedy,
    log_probabilities_after_reuse,
    original,
    our_log_probabilities,
    random_tokens,
    reference_log_probabilities,
)
from tests.tiny.compressed import DEEPSEEK_V4, DEEPSEEK_V4_PLAIN
from tests.tiny.converted import Contents
from tests.tiny.decoders import (
    GEMMA2,
    GLM4_MOE,
    GPT_OSS,
    HY3,
    LAGUNA,
    OLMO2,
    PHI3,
    QWEN2,
    QWEN3_MOE,
    TinyDecoder,
    TinyGpt,
    tiny_decoder_gguf,
)
from tests.tiny.gemmas import TinyGemma3n, TinyGemma4
from tests.tiny.glm5_next import GLM5_NEXT, GLM5_NEXT_ODD, GLM5_NEXT_WIDE
from tests.tiny.heads import MIMO2
from tests.tiny.hybrids import EXPERTS as EXPERTS_BESIDE
from tests.tiny.hybrids import QWEN4, SETTINGS, TinyHybrid
from tests.tiny.kimi import KIMI_LINEAR, LIMITED_LING3, LING3
from tests.tiny.latent import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    GLM4_MOE_LITE,
    GLM_DSA,
    GROUPS,
    HY4,
    MISTRAL4,
    WITHOUT_GROUPS,
    TinyLatent,
)
from tests.tiny.latent import SETTINGS as LATENT
from tests.tiny.ling import LING2
from tests.tiny.mamba import (
    FALCON_H1,
    FALCON_H1_NORMED,
    FALCON_MAMBA,
    GRANITE_HYBRID,
    GRANITE_HYBRID_MOE,
    JAMBA,
    JAMBA_DENSE,
    MAMBA,
    MAMBA2,
    NEMOTRON_H,
    NEMOTRON_H_LATENT,
    NEMOTRON_H_MOE,
)
from tests.tiny.minimax import MINIMAX_M3
from tests.tiny.muse import MUSE
from tests.tiny.renamed import (
    BAICHUAN,
    CODESHELL,
    DEEPSEEK,
    EXAONE,
    INTERNLM2,
    MINICPM,
    OPENELM,
    ORION,
    XVERSE,
)
from tests.tiny.rwkv import ARWKV7, RWKV7
from tests.tiny.step import STEP35

#: Together the tests take half a minute.
pytestmark = pytest.mark.slow

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SHARED = {
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}


class TinyApertus(TinyDecoder):
    """Apertus with another slope of its activation in each layer."""

    def build(self) -> Any:
        model = super().build()
        for name, values in model.named_buffers():
            if name.endswith("act_fn.beta"):
                values.copy_(0.3 + 0.4 * torch.rand_like(values))
        return model


class GatesAreVectors(TinyDecoder):
    """Matrices of one row lack that dimension, as in some files of Qwen 2."""

    def change(self, found: Contents, model: Any) -> None:
        found.tensors = {
            name: array[0] if len(array) == 1 else array for name, array in found.tensors.items()
        }


class LagunaOfOllama(TinyDecoder):
    """Laguna in the layout of Ollama's files, which state YaRN's whole magnitude."""

    def change(self, found: Contents, model: Any) -> None:
        found.rename({"attn_gate.weight": "attn_g.weight"})
        found.set(
            {
                "rope.freq_base_swa": None, "rope.dimension_count_swa": None, "rope.swa.freq_base": 1e4,
                "rope.swa.dimension_count": 12, "attention.gating_type": 1,
                "rope.scaling.attn_factor": 1 + 0.1 * math.log(4),
            }
        )  # fmt: skip


class FusedDecoder(TinyDecoder):
    """Queries, keys and values are one tensor, as in the first files."""

    def change(self, found: Contents, model: Any) -> None:
        for layer in range(model.config.num_hidden_layers):
            for kind in ("weight", "bias"):
                parts = [found.tensors.pop(f"blk.{layer}.attn_{part}.{kind}", None) for part in "qkv"]
                if parts[0] is not None:
                    found.tensors[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate(parts)


MODELS = {
    "qwen2": QWEN2,
    "qwen2 tied, yarn": TinyDecoder(
        "qwen2", {"tie_word_embeddings": True, "rope_parameters": {"rope_theta": 5000.0, **YARN}}, seed=1
    ),
    "qwen2moe": TinyDecoder("qwen2_moe", SHARED, seed=12),
    "qwen2moe normalised, gates are vectors": GatesAreVectors(
        "qwen2_moe", {**SHARED, "norm_topk_prob": True}, seed=13
    ),
    "granite": TinyDecoder(
        "granite",
        {"embedding_multiplier": 6.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1,
         "logits_scaling": 0.5},
        seed=14,
    ),
    "command-r": TinyDecoder("cohere", {"logit_scale": 0.3}, seed=15),
    "cohere2": TinyDecoder(
        "cohere2", {"logit_scale": 0.3, "num_hidden_layers": 4, "sliding_window": 12}, seed=16
    ),
    "qwen3": TinyDecoder("qwen3", {"head_dim": 32, "rope_parameters": {"rope_theta": 1e6}}, seed=2),
    "qwen3moe": QWEN3_MOE,
    "qwen3moe not normalised": TinyDecoder("qwen3_moe", {**EXPERTS, "head_dim": 16}, seed=4),
    "gemma2": GEMMA2,
    "gemma2 without caps": TinyDecoder(
        "gemma2",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 32, "attn_logit_softcapping": None,
         "final_logit_softcapping": None},
        norm_offset=1, seed=6,
    ),
    "phi3": PHI3,
    "phi3 in part, window": TinyDecoder(
        "phi3",
        {"pad_token_id": 0, "num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 12,
         "rope_parameters": {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 0.75}},
        seed=8,
    ),
    "olmo2": OLMO2,
    "olmo2 many heads": TinyDecoder(
        "olmo2", {"pad_token_id": 0, "num_key_value_heads": 4, "num_hidden_layers": 3}, seed=10
    ),
    "olmo3, yarn where all is seen": TinyDecoder(
        "olmo3",
        {
            "pad_token_id": 0, "num_hidden_layers": 4, "sliding_window": 8,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "full_attention": {"rope_theta": 5000.0, **YARN},
            },
        },
        # As Ollama writes it.
        {"rope.scaling.attn_factor": 1.2, "rope.freq_base_swa": None}, "olmo3", seed=11,
    ),
    "olmo3 as an olmo2, windows": TinyDecoder(
        "olmo3", {"pad_token_id": 0, "num_hidden_layers": 4, "sliding_window": 8}, seed=83
    ),
    "gemma": TinyDecoder("gemma", {"head_dim": 24}, norm_offset=1, seed=17),
    "glm4": TinyDecoder(
        "glm4",
        {"pad_token_id": 0, "head_dim": 16,
         "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_type": "default"}},
        seed=18,
    ),
    "glm4moe": GLM4_MOE,
    "glm4moe normed, biased": dataclasses.replace(
        GLM4_MOE, seed=20,
        settings={
            **GLM4_MOE.settings, "use_qk_norm": True, "attention_bias": True, "num_hidden_layers": 3
        },
    ),
    "gpt-oss": GPT_OSS,
    "granitemoe": TinyDecoder(
        "granitemoe",
        {"num_local_experts": 6, "num_experts_per_tok": 2, "embedding_multiplier": 6.0,
         "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 0.5},
        seed=22,
    ),
    "olmoe": TinyDecoder("olmoe", {"pad_token_id": 0, "num_experts": 8, "num_experts_per_tok": 3}, seed=23),
    "minimax-m2": TinyDecoder(
        "minimax_m2",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 16, "rotary_dim": 8,
         "rope_parameters": {"rope_theta": 5e6, "partial_rotary_factor": 0.5, "rope_type": "default"}},
        seed=24,
    ),
    "minimax-m3": MINIMAX_M3,
    "minimax-m3 without a dense layer, odd sizes, two last blocks, tied": dataclasses.replace(
        MINIMAX_M3,
        settings={
            **MINIMAX_M3.settings, "num_hidden_layers": 2, "mlp_layer_types": ["sparse"] * 2,
            "layer_types": ["minimax_m3_sparse"] * 2, "num_attention_heads": 9, "num_key_value_heads": 3,
            "index_n_heads": 3, "index_head_dim": 20, "index_block_size": 7, "index_local_blocks": 2,
            "shared_intermediate_size": 32, "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_theta": 1e4, "partial_rotary_factor": 0.5, **YARN, "attention_factor": 1.3,
            },
        },
        seed=164,
    ),
    "minimax-m3 no last block, one key": dataclasses.replace(
        MINIMAX_M3,
        settings={
            **MINIMAX_M3.settings, "num_key_value_heads": 1, "index_n_heads": 1, "index_local_blocks": 0,
            "index_topk_blocks": 1, "index_block_size": 4,
        },
        seed=165,
    ),
    "ernie4_5": TinyDecoder("ernie4_5", {"pad_token_id": 0, "head_dim": 16, "use_bias": False}, seed=25),
    "ernie4_5-moe": TinyDecoder(
        "ernie4_5_moe",
        {"pad_token_id": 0, "num_hidden_layers": 3, "moe_num_experts": 8, "moe_k": 3, "use_bias": False,
         "moe_intermediate_size": 32, "moe_num_shared_experts": 2, "moe_layer_start_index": 1},
        seed=26,
    ),
    "starcoder2": TinyDecoder("starcoder2", {"sliding_window": 12, "use_bias": True}, seed=27),
    "smollm3": TinyDecoder(
        "smollm3", {"pad_token_id": 0, "num_hidden_layers": 5, "no_rope_layer_interval": 4}, seed=28
    ),
    "exaone4": TinyDecoder(
        "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}, seed=29
    ),
    "exaone4 windows": TinyDecoder(
        "exaone4", {"num_hidden_layers": 4, "sliding_window": 12, "sliding_window_pattern": 4}, seed=30
    ),
    "hunyuan-dense": TinyDecoder("hunyuan_v1_dense", {"head_dim": 24}, seed=31),
    "seed_oss": TinyDecoder(
        "seed_oss", {"head_dim": 24, "attention_bias": True, "attention_out_bias": False}, seed=32
    ),
    "laguna": LAGUNA,
    "laguna, Ollama's file": LagunaOfOllama("laguna", LAGUNA.settings, seed=84),
    "laguna, a gate for each value, full attention, yarn": TinyDecoder(
        "laguna",
        {
            **LAGUNA.settings, "gating": "per-element", "layer_types": ["full_attention"] * 4,
            "num_attention_heads_per_layer": None, "attention_bias": True, "tie_word_embeddings": True,
            "rope_parameters": {"full_attention": {"rope_theta": 5e5, **YARN}},
        },
        seed=85,
    ),
    "step35": STEP35,
    "step35 biased, tied, windows everywhere": dataclasses.replace(
        STEP35, seed=147,
        settings={
            **STEP35.settings, "head_dim": 24, "num_key_value_heads": 1, "num_hidden_layers": 2,
            "num_sliding_attention_heads": 3, "layer_types": ["sliding_attention"] * 2,
            "mlp_layer_types": ["sparse", "dense"], "attention_bias": True, "mlp_bias": True,
            "tie_word_embeddings": True, "swiglu_limits": None, "swiglu_limits_shared": [0.0, 0.2],
            "rope_parameters": {"sliding_attention": {
                "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.75}},
        },
    ),
    "step35 in part, full attention, one limit": dataclasses.replace(
        STEP35, seed=148,
        settings={
            **STEP35.settings, "head_dim": 32, "num_hidden_layers": 2, "n_routed_experts": 5,
            "num_experts_per_tok": 2, "layer_types": ["full_attention"] * 2,
            "mlp_layer_types": ["sparse"] * 2, "swiglu_limits": [0.0, 1.5], "swiglu_limits_shared": None,
            "rope_parameters": {"full_attention": {
                "rope_type": "default", "rope_theta": 5e3, "partial_rotary_factor": 0.25}},
        },
    ),
    "muse-glimmer": MUSE,
    "muse-glimmer tied, yarn, biased": dataclasses.replace(
        MUSE, seed=101,
        settings={
            **MUSE.settings, "head_dim": 24, "num_key_value_heads": 1, "attention_bias": True,
            "tie_word_embeddings": True, "qk_scale_factor": 0.7, "sliding_window": 20,
            "num_hidden_layers": 4, "layer_types": ["full_attention", "sliding_attention"] * 2,
            "layer_rope_theta": [0, 1e4, 0, 1e4], "rope_parameters": {"rope_theta": 1e4, **YARN},
        },
    ),
    "bailingmoe2": LING2,
    "bailingmoe2 biased, one group": dataclasses.replace(
        LING2, seed=93,
        settings={
            **LING2.settings, "n_group": 1, "topk_group": 1, "attention_bias": True, "head_dim": 24,
            "n_shared_experts": 1, "first_k_dense_replace": 0, "num_experts_per_tok": 2,
        },
    ),
    "hunyuan-moe": TinyDecoder(
        "hunyuan_v1_moe",
        {"num_experts": 8, "moe_topk": 3, "head_dim": 24, "rope_parameters": {
            "rope_theta": 1e4, "rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
        seed=94,
    ),
    "hunyuan-moe tied, by layer": TinyDecoder(
        "hunyuan_v1_moe",
        {"num_experts": 6, "moe_topk": [2, 2], "head_dim": 16, "num_key_value_heads": 1,
         "tie_word_embeddings": True, "attention_bias": True},
        seed=95,
    ),
    "dots1": TinyDecoder(
        "dots1",
        {
            "pad_token_id": 0, "num_hidden_layers": 3, "num_key_value_heads": 4, "n_routed_experts": 8,
            "num_experts_per_tok": 3, "n_shared_experts": 2, "moe_intermediate_size": 32, "n_group": 4,
            "topk_group": 2, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
            "sliding_window": None,
        },
        seed=88,
    ),
    "dots1 not normalised, biased": TinyDecoder(
        "dots1",
        {
            "pad_token_id": 0, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
            "moe_intermediate_size": 48, "attention_bias": True, "tie_word_embeddings": True,
        },
        seed=89,
    ),
    "arcee": TinyDecoder("arcee", {"pad_token_id": 0, "head_dim": 24, "mlp_bias": True}, seed=96),
    "arcee tied, yarn": TinyDecoder(
        "arcee",
        {"pad_token_id": 0, "num_key_value_heads": 1, "tie_word_embeddings": True, "attention_bias": True,
         "rope_parameters": {"rope_theta": 1e4, **YARN}},
        seed=97,
    ),
    "exaone-moe": TinyDecoder(
        "exaone_moe",
        {
            "pad_token_id": 0, "num_hidden_layers": 4, "head_dim": 24, "num_experts": 8,
            "num_experts_per_tok": 3, "num_shared_experts": 2, "moe_intermediate_size": 32,
            "sliding_window": 12, "sliding_window_pattern": 4, "n_group": 2, "topk_group": 1,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
        seed=90,
    ),
    "exaone-moe not normalised, full attention first": TinyDecoder(
        "exaone_moe",
        {
            "pad_token_id": 0, "num_hidden_layers": 3, "head_dim": 16, "num_experts": 6,
            "num_experts_per_tok": 2, "moe_intermediate_size": 48, "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "norm_topk_prob": False, "routed_scaling_factor": 1.0, "tie_word_embeddings": True,
            "mlp_layer_types": ["sparse"] * 3,
        },
        seed=91,
    ),
    "mellum": TinyDecoder(
        "mellum",
        {
            "pad_token_id": 0, "num_hidden_layers": 4, "head_dim": 24, "num_experts": 6,
            "num_experts_per_tok": 3, "moe_intermediate_size": 32, "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_theta": 5e5, **YARN},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        seed=86,
    ),
    "mellum, full attention": TinyDecoder(
        "mellum",
        {
            "pad_token_id": 0, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "attention_bias": True, "tie_word_embeddings": True,
        },
        seed=87,
    ),
    "cohere2moe": TinyDecoder(
        "cohere2_moe",
        {
            "num_hidden_layers": 5, "head_dim": 24, "num_experts": 8, "num_experts_per_tok": 3,
            "num_shared_experts": 2, "expert_selection_fn": "sigmoid", "logit_scale": 0.3,
            "sliding_window": 12, "intermediate_size": 32, "prefix_dense_intermediate_size": 96,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse"],
            "layer_types": [
                "full_attention", "sliding_attention", "sliding_attention", "full_attention",
                "sliding_attention",
            ],
        },
        seed=102,
    ),
    "cohere2moe by softmax, RMS norms, untied": TinyDecoder(
        "cohere2_moe",
        {
            "num_hidden_layers": 4, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2,
            "rms_norm_eps": 1e-5, "logit_scale": 1.5, "sliding_window": 8, "intermediate_size": 48,
            "tie_word_embeddings": False, "attention_bias": True,
        },
        seed=103,
    ),
    "granite_swa": TinyDecoder(
        "granite_swa",
        {"num_hidden_layers": 5, "embedding_multiplier": 6.0, "residual_multiplier": 0.22,
         "attention_multiplier": 0.1, "logits_scaling": 0.5, "sliding_window": 12, "mlp_bias": True,
         "layer_rope_theta": [0, 1e4, 1e4, 1e4, 0], "rope_parameters": {"rope_theta": 1e4, **YARN}},
        seed=104,
    ),
    "granite_swa with experts": TinyDecoder(
        "granitemoe_swa",
        {"num_hidden_layers": 3, "num_local_experts": 6, "num_experts_per_tok": 2,
         "shared_intermediate_size": 48, "embedding_multiplier": 6.0, "residual_multiplier": 0.22,
         "attention_multiplier": 0.1, "logits_scaling": 0.5, "sliding_window": 8,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        seed=105,
    ),
    "granite_swa with routed experts only": TinyDecoder(
        "granitemoe_swa",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "attention_multiplier": 0.1, "sliding_window": 8,
         "tie_word_embeddings": True, "attention_bias": True},
        seed=106,
    ),
    "apertus": TinyApertus("apertus", {}, seed=98),
    "apertus tied, biased": TinyApertus(
        "apertus",
        {"num_key_value_heads": 1, "tie_word_embeddings": True, "attention_bias": True,
         "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
        seed=99,
    ),
    "qwen35": TinyHybrid("qwen3_5_text", SETTINGS, seed=34),
    "qwen35moe": TinyHybrid("qwen3_5_moe_text", {**SETTINGS, **EXPERTS_BESIDE}, seed=45),
    "qwen3moe, softmax over the chosen": dataclasses.replace(
        QWEN3_MOE, metadata={"expert_gating_func": 3, "expert_weights_norm": False}
    ),
    "qwen4exp": QWEN4,
    "qwen4exp without n-grams, single positions, biased, tied, yarn": dataclasses.replace(
        QWEN4, seed=172,
        settings={
            **QWEN4.settings, "layer_types": None, "ple_layer_ids": [], "hc_count": 2, "hc_lowrank": 7,
            "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 20, "attention_bias": True,
            "indexer_compress_ratio": 1, "indexer_budget": 9, "indexer_head_dim": 16, "rms_norm_eps": 1e-3,
            "tie_word_embeddings": True, "linear_conv_kernel_dim": 3, "num_experts": 6,
            "rope_parameters": {"rope_theta": 1e4, **YARN, "partial_rotary_factor": 0.4},
        },
    ),
    "qwen4exp long n-grams in the first layer, wide blocks, equal heads": dataclasses.replace(
        QWEN4, seed=173,
        settings={
            **QWEN4.settings, "ple_layer_ids": [1], "ple_embed_dim": None, "ple_conv_kernel_size": 2,
            "ngram_size": 5, "heads_per_ngram": 1, "eos_token_id": [5, 9], "split_ngram_parts": 1,
            "hc_count": 4, "indexer_compress_ratio": 16, "indexer_budget": 32, "indexer_head_dim": 8,
            "linear_num_value_heads": 2, "num_experts_per_tok": 1, "shared_expert_intermediate_size": 24,
        },
    ),
    "qwen3next": TinyHybrid("qwen3_next", {**SETTINGS, **EXPERTS_BESIDE}, seed=36),
    "qwen3next, first files": TinyHybrid(
        "qwen3_next", {**SETTINGS, **EXPERTS_BESIDE}, first=True, seed=37
    ),
    "deepseek2 V3": DEEPSEEK_V3,
    "deepseek2 V3, first files": TinyLatent(
        "deepseek_v3", {**LATENT, **GROUPS, "q_lora_rank": None, "routed_scaling_factor": 1.0},
        joined=True, seed=47,
    ),
    "deepseek2 V2": DEEPSEEK_V2,
    "deepseek2 V2-Lite, first files": TinyLatent(
        "deepseek_v2",
        {**LATENT, **WITHOUT_GROUPS, "q_lora_rank": None, "rope_parameters": {
            "rope_theta": 1e4, **YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
        joined=True, seed=49,
    ),
    "glm4moelite": GLM4_MOE_LITE,
    "deepseek32": DEEPSEEK_V32,
    "deepseek32 biased, one group, tied, wide indexer, faint keys": dataclasses.replace(
        DEEPSEEK_V32, seed=134, faint=True,
        settings={
            **DEEPSEEK_V32.settings, **WITHOUT_GROUPS, "attention_bias": True, "tie_word_embeddings": True,
            "num_attention_heads": 3, "num_key_value_heads": 3, "n_routed_experts": 6, "n_shared_experts": 1,
            "index_topk": 33, "index_n_heads": 19, "index_head_dim": 40, "first_k_dense_replace": 0,
            "norm_topk_prob": False, "routed_scaling_factor": 1.5, "qk_rope_head_dim": 8,
            "rms_norm_eps": 1e-3, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
        },
    ),
    "glm-dsa": GLM_DSA,
    "glm-dsa all choose, groups, one position, yarn": dataclasses.replace(
        GLM_DSA, seed=135,
        settings={
            **GLM_DSA.settings, **GROUPS, "num_hidden_layers": 3, "indexer_types": None, "index_topk": 1,
            "index_n_heads": 16, "index_head_dim": 16, "num_attention_heads": 5, "num_key_value_heads": 5,
            "attention_bias": True, "v_head_dim": 12, "kv_lora_rank": 40, "rms_norm_eps": 1e-3,
            "rope_parameters": {"rope_theta": 1e4, **YARN},
        },
    ),
    "hy_v4": HY4,
    "hy_v4 all choose, biased, unlimited, one stream, yarn, faint keys": dataclasses.replace(
        HY4, seed=145, faint=True,
        settings={
            **HY4.settings, "num_hidden_layers": 3, "indexer_types": ["full"] * 3, "index_topk": 33,
            "index_n_heads": 19, "index_head_dim": 40, "num_attention_heads": 5, "num_key_value_heads": 5,
            "attention_bias": True, "v_head_dim": 12, "kv_lora_rank": 40, "n_shared_experts": 1,
            "n_routed_experts": 6, "mlp_layer_types": ["dense", "dense", "sparse"], "hc_mult": 1,
            "hc_magnitude": 2.0, "hc_eps": 1e-6, "swiglu_limit": 1e6, "norm_topk_prob": False,
            "qk_rope_head_dim": 8, "tie_word_embeddings": True,
            "rope_parameters": {"rope_theta": 1e4, **YARN},
        },
    ),
    "deepseek4": DEEPSEEK_V4,
    "deepseek4 one stream, odd heads, sigmoids, tied": DEEPSEEK_V4_PLAIN,
    "glm5-next": GLM5_NEXT,
    "glm5-next wide groups, four streams, attention first": GLM5_NEXT_WIDE,
    "glm5-next without bounds, biased, one stream, tied, faint keys": GLM5_NEXT_ODD,
    "mistral4": MISTRAL4,
    "mimo2": MIMO2,
    "mimo2 fused": dataclasses.replace(MIMO2, fused=True, seed=63),
    "kimi-linear": KIMI_LINEAR,
    "kimi-linear, first files": dataclasses.replace(KIMI_LINEAR, joined=True, seed=72),
    "rwkv7": RWKV7,
    "arwkv7": ARWKV7,
    "mamba": MAMBA,
    "mamba of Falcon": FALCON_MAMBA,
    "mamba2": MAMBA2,
    "falcon-h1": FALCON_H1,
    "falcon-h1 normed": FALCON_H1_NORMED,
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H_MOE,
    "nemotron_h_moe latent": NEMOTRON_H_LATENT,
    "granitehybrid": GRANITE_HYBRID,
    "granitehybrid with experts, rotated": GRANITE_HYBRID_MOE,
    "bailingmoe3": LING3,
    "bailingmoe3 one group, three heads, wide memory": dataclasses.replace(
        LING3, seed=143,
        settings={
            **LING3.settings, **WITHOUT_GROUPS, "num_attention_heads": 3, "num_key_value_heads": 3,
            "head_dim": 24, "short_conv_kernel_size": 3, "kda_lower_bound": -2.5, "n_shared_experts": 1,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "first_k_dense_replace": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.0,
            "v_head_dim": 12,
        },
    ),
    "bailingmoe3 limited": LIMITED_LING3,
    "bailingmoe3 limited, other layers, four layers": dataclasses.replace(
        LIMITED_LING3, seed=145, routed=(None, 0.0, 0.7, 0.4), shared=(0.3, 0.8),
        settings={
            **LING3.settings, "num_hidden_layers": 4, "first_k_dense_replace": 0, "n_shared_experts": 1,
        },
    ),
    "jamba": JAMBA,
    "jamba dense, biased, tied, narrow": JAMBA_DENSE,
    "hy_v3": HY3,
    "hy_v3 dense first, biased, tied, yarn": dataclasses.replace(
        HY3, seed=139,
        settings={
            **HY3.settings, "head_dim": 16, "num_experts": 6, "num_shared_experts": 1, "mlp_bias": True,
            "mlp_layer_types": ["dense", "dense", "sparse"], "router_scaling_factor": 1.5,
            "attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3,
            "num_key_value_heads": 1, "rope_parameters": {"rope_theta": 1e4, **YARN},
        },
    ),
    "bitnet": TinyDecoder("bitnet", {"hidden_act": "silu", "tie_word_embeddings": True}, seed=140),
    "bitnet-b1.58": TinyDecoder(
        "bitnet",
        {"hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 1, "attention_bias": True,
         "rope_parameters": {"rope_theta": 1e4, **YARN}},
        seed=141,
    ),
    "gemma3n": TinyGemma3n(seed=60),
    "gemma3n, second of three streams": TinyGemma3n(
        settings={"altup_num_inputs": 3, "altup_active_idx": 1, "altup_correct_scale": False}, seed=61
    ),
    "gemma4": TinyGemma4(seed=50),
    "gemma4, keys are values, capped": TinyGemma4(
        settings={"attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0},
        seed=51,
    ),
    "gemma4, experts": TinyGemma4(
        settings={"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3,
                  "moe_intermediate_size": 32},
        seed=52,
    ),
    "gemma4, layer inputs, shared keys": TinyGemma4(
        settings={"num_kv_shared_layers": 2, "use_double_wide_mlp": True}, layer_inputs=16, seed=53
    ),
    "mistral3": TinyDecoder(
        "ministral3",
        {"head_dim": 16, "rope_parameters": {
            "rope_theta": 1e6, **YARN, "original_max_position_embeddings": 32, "mscale": 1.0,
            "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.1}},
        seed=33,
    ),
    "gpt2": TinyGpt("gpt2", {"n_inner": 96, "num_attention_heads": 2}, seed=90),
    "gpt2 untied, five heads": TinyGpt(
        "gpt2",
        {"hidden_size": 60, "num_attention_heads": 5, "tie_word_embeddings": False,
         "activation_function": "gelu"},
        seed=91,
    ),
    "starcoder": TinyGpt("gpt_bigcode", {"n_inner": 96, "activation_function": "gelu"}, seed=92),
    "starcoder, keys for each head, untied": TinyGpt(
        "gpt_bigcode", {"multi_query": False, "tie_word_embeddings": False}, seed=93
    ),
    "phi2": TinyDecoder("phi", {"pad_token_id": 0}, seed=94),
    "phi2 fused, rotated in part, three heads": FusedDecoder(
        "phi",
        {"pad_token_id": 0, "hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 3,
         "rope_parameters": {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 0.4}},
        seed=95,
    ),
    "gptneox": TinyGpt("gpt_neox", seed=96),
    "gptneox one after the other, tied": TinyGpt(
        "gpt_neox",
        {"use_parallel_residual": False, "tie_word_embeddings": True, "hidden_size": 72,
         "num_attention_heads": 3, "attention_bias": False, "hidden_act": "gelu_fast",
         "rope_parameters": {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 0.5}},
        seed=97,
    ),
    "falcon": TinyGpt("falcon", {"ffn_hidden_size": 96}, seed=98),
    "falcon biased, keys for each head, untied": TinyGpt(
        "falcon", {"multi_query": False, "bias": True, "tie_word_embeddings": False}, seed=99
    ),
    "falcon with two norms": TinyGpt(
        "falcon",
        {"new_decoder_architecture": True, "num_attention_heads": 6, "num_kv_heads": 2, "hidden_size": 96},
        seed=100,
    ),
    "falcon with groups, one norm": TinyGpt(
        "falcon",
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "num_kv_heads": 2,
         "rope_parameters": {"rope_theta": 500.0, **YARN}},
        seed=101,
    ),
    "bloom": TinyGpt("bloom", seed=102),
    "bloom with six heads, untied": TinyGpt(
        "bloom", {"hidden_size": 96, "num_attention_heads": 6, "tie_word_embeddings": False}, seed=103
    ),
    "mpt": TinyGpt("mpt", {"max_seq_len": 256}, seed=104),
    "mpt limited, five heads, untied": TinyGpt(
        "mpt",
        {"max_seq_len": 256, "hidden_size": 60, "num_attention_heads": 5, "tie_word_embeddings": False,
         "attn_config": {"clip_qkv": 0.5}},
        seed=105,
    ),
    "stablelm": TinyDecoder("stablelm", seed=106),
    "stablelm in parallel, normed, biased": TinyDecoder(
        "stablelm",
        {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True,
         "rope_parameters": {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 0.5}},
        seed=107,
    ),
    "nemotron": TinyDecoder("nemotron", norm_offset=1, seed=108),
    "nemotron biased, wide heads, tied": TinyDecoder(
        "nemotron",
        {"head_dim": 24, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True,
         "rope_parameters": {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 1.0}},
        norm_offset=1, seed=109,
    ),
    "jais2": TinyDecoder("jais2", seed=112),
    "jais2 wide heads without biases, tied, yarn": TinyDecoder(
        "jais2",
        {"hidden_size": 60, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24,
         "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True, "layer_norm_eps": 1e-4,
         "rope_parameters": {"rope_theta": 500.0, **YARN}},
        seed=113,
    ),
    "baichuan": BAICHUAN,
    "openelm, layers alike": OPENELM,
    "internlm2": INTERNLM2,
    "xverse": XVERSE,
    "exaone": EXAONE,
    "orion": ORION,
    "codeshell": CODESHELL,
    "minicpm": MINICPM,
    "deepseek": DEEPSEEK,
    "chatglm": TinyDecoder("glm", {"pad_token_id": 0, "head_dim": 16}, seed=127),
    "chatglm fused, without biases, wide heads, tied": FusedDecoder(
        "glm",
        {"pad_token_id": 0, "head_dim": 24, "attention_bias": False, "tie_word_embeddings": True,
         "rope_parameters": {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 1.0}},
        seed=128,
    ),
    "dbrx": TinyGpt(
        "dbrx",
        {"d_model": 64, "max_seq_len": 256,
         "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 500.0},
         "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 6, "moe_top_k": 3},
         "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
        seed=129,
    ),
    "minicpm3": TinyDecoder(
        "minicpm3",
        {"num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 12,
         "qk_rope_head_dim": 8},
        seed=130,
    ),
    "minicpm3 straight queries, small values, untied": TinyDecoder(
        "minicpm3",
        {"num_key_value_heads": 4, "q_lora_rank": None, "kv_lora_rank": 24, "qk_nope_head_dim": 8,
         "qk_rope_head_dim": 16, "v_head_dim": 12, "tie_word_embeddings": False},
        seed=131,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, ops: Backend):
    """Return our model and transformers'."""
    tiny = MODELS[request.param]
    theirs = original(tiny)
    path = tiny_decoder_gguf(tmp_path_factory.mktemp("decoder") / "model.gguf", tiny, model=theirs)
    return load_model(path, ops=ops), theirs


@pytest.mark.parametrize("parts", [[70], [32, 32, 6], [50, *[1] * 20]], ids=["whole", "chunks", "tokens"])
def test_log_probabilities_agree_beside_another_sequence(
    pair: tuple[LoadedModel, Any], parts: list[int]
) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 11)
    found = our_log_probabilities(ours, tokens, parts)
    check_close(ours, found, reference_log_probabilities(theirs, tokens))


@pytest.mark.parametrize("chunk", [256, 10])
def test_log_probabilities_agree_after_prefix_reuse(pair: tuple[LoadedModel, Any], chunk: int) -> None:
    ours, theirs = pair
    tokens = random_tokens(ours, 70, 12)
    found = log_probabilities_after_reuse(ours, tokens, 50, chunk=chunk)
    assert 20 <= len(found) <= 70  # positions that a window forgot, or after a checkpoint, are read again
    check_close(ours, found, reference_log_probabilities(theirs, tokens)[-len(found) :])


@pytest.mark.slow
def test_greedy_output_agrees_token_for_token(pair: tuple[LoadedModel, Any]) -> None:
    check_greedy(*pair, count=20)
