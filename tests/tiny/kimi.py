"""Tiny random models with delta networks with a decay per key entry, and latent attention in one layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.tiny.latent import GROUPS, NOPE, ROPE, SETTINGS, VALUE, TinyLatent


@dataclass(frozen=True)
class TinyKimi(TinyLatent):
    def joined_keys(self) -> dict[str, Any]:
        return {"attention.key_length": NOPE + ROPE, "attention.value_length": VALUE}


KIMI_LINEAR = TinyKimi(
    "kimi_linear",
    {
        **{key: value for key, value in SETTINGS.items() if key not in ("n_routed_experts", "q_lora_rank")},
        "bos_token_id": 1, "eos_token_id": 2, "num_local_experts": 8, "linear_head_dim": 8,
        "linear_num_heads": 4, "linear_conv_kernel_dim": 4,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "n_group": 1,
        "topk_group": 1, "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    seed=71,
)  # fmt: skip
LING3 = TinyLatent(
    "bailing_hybrid",
    {
        **{key: value for key, value in SETTINGS.items() if key not in ("n_routed_experts", "q_lora_rank")},
        **GROUPS,
        "num_local_experts": 8, "head_dim": 8, "layer_group_size": 2, "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
    },
    seed=142,
)  # fmt: skip
