"""Tiny random models with latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.tiny_decoders import TinyDecoder

HEADS, NOPE, ROPE, VALUE, LATENT = 4, 12, 16, 20, 32
SETTINGS = {
    "pad_token_id": 0, "num_hidden_layers": 3, "num_key_value_heads": HEADS, "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "kv_lora_rank": LATENT, "q_lora_rank": 40,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}  # fmt: skip
WITHOUT_GROUPS = {"n_group": 1, "topk_group": 1}
GROUPS = {"n_group": 4, "topk_group": 2}
NAMES = {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
}  # fmt: skip


@dataclass(frozen=True)
class TinyLatent(TinyDecoder):
    """`form` is "split", what makes keys and values being two tensors, or "joined", as in the first files."""

    form: str = "split"
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)

    def untrained(self) -> Any:
        if self.hf != "mistral4":
            return super().untrained()
        from transformers import Mistral4ForCausalLM  # which no automatic class finds

        return Mistral4ForCausalLM._from_config(self.config(), attn_implementation="eager")

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for name, array in super().tensors(model).items():
            if "attn_kv_b" in name and self.form == "split":
                keys, values = np.split(array.reshape(HEADS, NOPE + VALUE, LATENT), [NOPE], axis=1)
                found[name.replace("kv_b", "k_b")] = np.ascontiguousarray(keys.transpose(0, 2, 1))
                found[name.replace("kv_b", "v_b")] = np.ascontiguousarray(values)
            else:
                found[name] = array
        return found

    def keys(self, config: Any) -> dict[str, Any]:
        sizes = {"attention.key_length": NOPE + ROPE, "attention.value_length": VALUE}
        heads = HEADS
        if self.form == "split" and self.architecture != "glm4moelite":
            sizes = {f"{key}_mla": size for key, size in sizes.items()}
            sizes |= {"attention.key_length": LATENT + ROPE, "attention.value_length": LATENT}
            heads = 1
        elif self.form == "split":
            sizes |= {"attention.key_length_mla": LATENT + ROPE, "attention.value_length_mla": LATENT}
        return {
            **super().keys(config), **sizes, "attention.head_count_kv": heads,
            "attention.kv_lora_rank": LATENT, "attention.q_lora_rank": config.q_lora_rank,
            "rope.dimension_count": ROPE, "expert_count": 8, "expert_shared_count": config.n_shared_experts,
            "expert_weights_scale": config.routed_scaling_factor, "leading_dense_block_count": 1,
            "expert_group_count": config.n_group, "expert_group_used_count": config.topk_group,
            "expert_weights_norm": config.norm_topk_prob or None, **self.metadata,
        }  # fmt: skip


#: With groups of experts, and extended by YaRN.
DEEPSEEK_V3 = TinyLatent(
    "deepseek2", "deepseek_v3",
    {
        **SETTINGS, **GROUPS,
        "rope_parameters": {
            "rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
            "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 16.0,
        },
    },
    {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64,
        "rope.scaling.yarn_log_multiplier": 0.1, "rope.scaling.yarn_beta_fast": 16.0, "expert_gating_func": 2,
    },
    seed=46,
)  # fmt: skip
GLM4_MOE_LITE = TinyLatent(
    "glm4moelite", "glm4_moe_lite",
    {**SETTINGS, **WITHOUT_GROUPS, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    {"expert_gating_func": 2}, seed=50,
)  # fmt: skip

#: With groups of experts, each as good as its best one.
DEEPSEEK_V2 = TinyLatent(
    "deepseek2", "deepseek_v2",
    {**SETTINGS, **GROUPS, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0},
    {"expert_gating_func": 1}, seed=48,
)  # fmt: skip

#: With queries that sharpen beyond the 32 positions of the original context.
MISTRAL4 = TinyLatent(
    "mistral4", "mistral4",
    {
        **SETTINGS, **GROUPS,
        "rope_parameters": {
            "rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
            "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
        "rope.scaling.yarn_log_multiplier": 0.1, "attention.temperature_scale": 0.1,
    },
    seed=51,
)  # fmt: skip
