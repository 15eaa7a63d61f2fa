"""Tiny random models with Mamba 1 or 2 in all layers or in some."""

from __future__ import annotations

from tests.tiny.decoders import TinyDecoder

HEADS, DIM, GROUPS, STATE = 8, 16, 2, 12

GRANITE = {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": HEADS, "mamba_d_head": DIM, "mamba_n_groups": GROUPS, "mamba_d_state": STATE,
    "mamba_d_conv": 4, "mamba_expand": 2, "embedding_multiplier": 6.0, "residual_multiplier": 0.22,
    "attention_multiplier": 0.1, "logits_scaling": 0.5, "shared_intermediate_size": 96,
    "num_local_experts": 0,
}  # fmt: skip
GRANITE_HYBRID = TinyDecoder("granitemoehybrid", GRANITE, seed=50)
GRANITE_HYBRID_MOE = TinyDecoder(
    "granitemoehybrid",
    {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 48,
     "position_embedding_type": "rope", "mamba_n_groups": 1},
    seed=51,
)  # fmt: skip

NEMOTRON = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    "num_hidden_layers": 4, "mamba_num_heads": HEADS, "mamba_head_dim": DIM, "n_groups": GROUPS,
    "ssm_state_size": STATE, "conv_kernel": 4, "head_dim": 16, "use_bias": True, "mlp_bias": True,
    "time_step_min": 1e-30,
}  # fmt: skip
NEMOTRON_H = TinyDecoder("nemotron_h", NEMOTRON, seed=52)
NEMOTRON_MOE = {
    **NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "mlp_bias": False,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48, "routed_scaling_factor": 2.5,
}  # fmt: skip
NEMOTRON_H_MOE = TinyDecoder("nemotron_h", NEMOTRON_MOE, seed=53)
NEMOTRON_H_LATENT = TinyDecoder(
    "nemotron_h", {**NEMOTRON_MOE, "moe_latent_size": 32, "norm_topk_prob": False}, seed=54
)

MAMBA2 = TinyDecoder(
    "mamba2",
    {"num_hidden_layers": 3, "num_heads": HEADS, "head_dim": DIM, "n_groups": GROUPS, "state_size": STATE,
     "conv_kernel": 4, "expand": 2},
    seed=57,
)  # fmt: skip

SCAN = {
    "num_hidden_layers": 3, "state_size": STATE, "conv_kernel": 4, "time_step_rank": 6,
    "intermediate_size": 128,
}  # fmt: skip
MAMBA = TinyDecoder("mamba", SCAN, seed=58)
FALCON_MAMBA = TinyDecoder("falcon_mamba", SCAN, seed=59)

FALCON = {
    "num_hidden_layers": 2, "mamba_d_ssm": HEADS * DIM, "mamba_n_heads": HEADS, "mamba_d_head": DIM,
    "mamba_n_groups": GROUPS, "mamba_d_state": STATE, "mamba_d_conv": 4, "head_dim": 24,
    "lm_head_multiplier": 0.7, "embedding_multiplier": 5.0, "mlp_multipliers": [0.8, 0.6],
    "key_multiplier": 0.4, "attention_out_multiplier": 0.9, "attention_in_multiplier": 1.2,
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7], "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.5,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
}  # fmt: skip
FALCON_H1 = TinyDecoder("falcon_h1", FALCON, seed=55)
FALCON_H1_NORMED = TinyDecoder(
    "falcon_h1", {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": False}, seed=56
)

#: Experts in the second and fourth layer, attention in the third.
JAMBA_SETTINGS = {
    "pad_token_id": 0, "num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2,
    "num_experts": 6, "num_experts_per_tok": 3, "mamba_d_state": STATE, "mamba_dt_rank": 6,
}  # fmt: skip
JAMBA = TinyDecoder("jamba", JAMBA_SETTINGS, seed=136)
JAMBA_DENSE = TinyDecoder(
    "jamba",
    {**JAMBA_SETTINGS, "num_hidden_layers": 3, "attn_layer_period": 2, "attn_layer_offset": 0,
     "num_experts": 1, "num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 60,
     "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_d_conv": 3, "mamba_expand": 3,
     "mamba_dt_rank": "auto", "rms_norm_eps": 1e-3, "tie_word_embeddings": True},
    seed=137,
)  # fmt: skip
