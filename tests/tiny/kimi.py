"""Tiny random model with delta networks with a decay per key entry, and latent attention in one layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.tiny.latent import NOPE, ROPE, SETTINGS, VALUE, TinyLatent


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
