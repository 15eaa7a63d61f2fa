"""Tiny random models with latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.tiny.converted import Contents
from tests.tiny.decoders import TinyDecoder

HEADS, NOPE, ROPE, VALUE, LATENT = 4, 12, 16, 20, 32
SETTINGS = {
    "pad_token_id": 0, "num_hidden_layers": 3, "num_key_value_heads": HEADS, "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "kv_lora_rank": LATENT, "q_lora_rank": 40,
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}  # fmt: skip
WITHOUT_GROUPS = {"n_group": 1, "topk_group": 1}
GROUPS = {"n_group": 4, "topk_group": 2}


@dataclass(frozen=True)
class TinyLatent(TinyDecoder):
    """Tiny model with latent attention.

    `joined`: the expansions to keys and values are one tensor. `faint`: keys of the indexer are so small that
    their norm's epsilon matters.
    """

    joined: bool = False
    faint: bool = False

    def build(self) -> Any:
        model = super().build()
        for name, parameter in model.named_parameters():
            if self.faint and name.endswith("indexer.wk.weight"):
                parameter.data *= 1e-3
        return model

    def untrained(self) -> Any:
        if self.hf != "mistral4":
            return super().untrained()
        from transformers import Mistral4ForCausalLM  # no Auto class finds it

        return Mistral4ForCausalLM._from_config(self.config(), attn_implementation="eager")

    def change(self, found: Contents, model: Any) -> None:
        if not self.joined:
            return
        found.set(self.joined_keys())
        for name, tensor in model.state_dict().items():
            if name.endswith("kv_b_proj.weight"):
                layer = f"blk.{name.split('.')[2]}."
                for kind in "kv":
                    del found.tensors[f"{layer}attn_{kind}_b.weight"]
                found.tensors[f"{layer}attn_kv_b.weight"] = tensor.numpy()

    def joined_keys(self) -> dict[str, Any]:
        """Return settings with keys and values per head and without a routing."""
        sizes = {"attention.key_length": NOPE + ROPE, "attention.value_length": VALUE}
        without = ("attention.key_length_mla", "attention.value_length_mla", "expert_gating_func")
        return {**sizes, "attention.head_count_kv": HEADS, **dict.fromkeys(without)}


#: With groups of experts, and extended by YaRN.
DEEPSEEK_V3 = TinyLatent(
    "deepseek_v3",
    {
        **SETTINGS, **GROUPS,
        "rope_parameters": {
            "rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
            "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 16.0,
        },
    },
    seed=46,
)  # fmt: skip
#: As Ollama writes it, under its own name.
GLM4_MOE_LITE = TinyLatent(
    "glm4_moe_lite",
    {**SETTINGS, **WITHOUT_GROUPS, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
    {
        "attention.head_count_kv": HEADS, "attention.key_length": NOPE + ROPE,
        "attention.value_length": VALUE, "attention.key_length_mla": LATENT + ROPE,
        "attention.value_length_mla": LATENT,
    },
    "glm4moelite", seed=50,
)  # fmt: skip

#: With groups of experts, each ranked by its best one.
DEEPSEEK_V2 = TinyLatent(
    "deepseek_v2",
    {**SETTINGS, **GROUPS, "topk_method": "group_limited_greedy", "routed_scaling_factor": 16.0}, seed=48,
)  # fmt: skip

#: With few heads, several positions would have a score of exactly 0, and torch breaks ties by no rule.
_INDEXER = {"index_topk": 12, "index_n_heads": 17, "index_head_dim": 24}
_ROTATION = {"rope_theta": 1e4, "rope_type": "default"}
#: With groups of experts, extended by YaRN, and attention to fewer positions than a prompt has.
DEEPSEEK_V32 = TinyLatent("deepseek_v32", {**DEEPSEEK_V3.settings, **_INDEXER}, seed=132)
#: With layers that use the choice of earlier ones.
GLM_DSA = TinyLatent(
    "glm_moe_dsa",
    {
        **SETTINGS, **WITHOUT_GROUPS, **_INDEXER, "num_hidden_layers": 4, "rope_parameters": _ROTATION,
        "indexer_types": ["full", "shared", "full", "shared"],
    },
    seed=133,
)  # fmt: skip


@dataclass(frozen=True)
class TinyHy4(TinyLatent):
    """Hy 4 as published: rotated pairs are neighbours, and all norms have the epsilon of the settings.

    transformers renames the published tensors, but rotates pairs that are half the rotated part apart.
    """

    def untrained(self) -> Any:
        model = super().untrained()
        for layer in model.model.layers:
            attention = layer.self_attn
            for norm in (attention.q_a_layernorm, attention.kv_a_layernorm):
                norm.variance_epsilon = model.config.rms_norm_eps
        return model

    def build(self) -> Any:
        model = super().build()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith(("hc.scale", "hc_scale")):  # so that gates differ by row
                    parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
                if name.endswith("sinks"):
                    parameter.add_(1)
                if "experts.gate_up" in name:  # beyond the limit for many
                    parameter *= 2
        return model

    def change(self, found: Contents, model: Any) -> None:
        config = model.config
        rotated, heads = config.qk_rope_head_dim, config.num_attention_heads
        for name, tensor in found.tensors.items():
            count = {"attn_q_b": heads, "attn_kv_a_mqa": 1, "attn_k": 1, "k_norm": 1}.get(name.split(".")[-2])
            if ".indexer.attn_q_b" in name:
                count = config.index_n_heads
            if count:
                found.tensors[name] = neighbours_at_end(tensor, count, rotated)


def neighbours_at_end(tensor: np.ndarray, heads: int, rotated: int) -> np.ndarray:
    """Return the tensor with the pairs in the last `rotated` rows of each head beside each other."""
    parts = tensor.reshape(heads, -1, *tensor.shape[1:])
    last = parts[:, -rotated:].reshape(heads, 2, rotated // 2, *tensor.shape[1:]).swapaxes(1, 2)
    last = last.reshape(heads, rotated, *tensor.shape[1:])
    return np.concatenate([parts[:, :-rotated], last], axis=1).reshape(tensor.shape)


#: With layers that use the choice of earlier ones, and three streams.
HY4 = TinyHy4(
    "hy_v4",
    {
        **SETTINGS, **WITHOUT_GROUPS, **_INDEXER, "num_hidden_layers": 4, "rope_parameters": _ROTATION,
        "indexer_types": ["full", "shared", "full", "shared"], "first_k_dense_replace": None,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "hc_mult": 3, "hc_magnitude": 1.5,
        "hc_eps": 0.05, "swiglu_limit": 0.5, "rms_norm_eps": 1e-3,
    },
    seed=144,
)  # fmt: skip

#: With queries scaled up beyond the 32 positions of the original context.
MISTRAL4 = TinyLatent(
    "mistral4",
    {
        **SETTINGS, **GROUPS,
        "rope_parameters": {
            "rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
            "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    seed=51,
)  # fmt: skip
