"""Tiny random models with delta networks that forget key by key, and latent attention in one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tests.tiny_latent import NAMES, NOPE, ROPE, SETTINGS, VALUE, TinyLatent

DIM, TAPS = 8, 4
DELTA_NAMES = {
    "self_attn.forget_gate.f_a_proj": "ssm_f_a", "self_attn.forget_gate.f_b_proj": "ssm_f_b",
    "self_attn.g_a_proj": "ssm_g_a", "self_attn.g_b_proj": "ssm_g_b", "self_attn.b_proj": "ssm_beta",
    "self_attn.o_norm": "ssm_norm",
}  # fmt: skip


@dataclass(frozen=True)
class TinyKimi(TinyLatent):
    names: Mapping[str, str] = field(default_factory=lambda: {**NAMES, **DELTA_NAMES})

    def named(self, tensors: Mapping[str, torch.Tensor], config: Any) -> dict[str, np.ndarray]:
        own: dict[str, np.ndarray] = {}
        others: dict[str, torch.Tensor] = {}
        for name, tensor in tensors.items():
            layer, array = name.replace("model.layers", "blk").partition(".self_attn")[0], tensor.numpy()
            if name.endswith("conv1d.weight"):
                for kind, part in zip("qkv", np.split(array, 3), strict=True):
                    own[f"{layer}.ssm_conv1d_{kind}.weight"] = part.reshape(1, -1, 1, TAPS)
            elif name.endswith("A_log"):
                own[f"{layer}.ssm_a"] = -np.exp(array)
            elif name.endswith("dt_bias"):
                own[f"{layer}.ssm_dt.bias"] = array
            else:
                others[name] = tensor
        return super().named(others, config) | own


KIMI_LINEAR = TinyKimi(
    "kimi-linear", "kimi_linear",
    {
        **{key: value for key, value in SETTINGS.items() if key not in ("n_routed_experts", "q_lora_rank")},
        "bos_token_id": 1, "eos_token_id": 2,
        "num_local_experts": 8, "linear_head_dim": DIM, "linear_num_heads": 4, "linear_conv_kernel_dim": TAPS,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "n_group": 1,
        "topk_group": 1, "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    {"attention.head_count_kv": [0, 1, 0], "kda.head_dim": DIM, "ssm.conv_kernel": TAPS,
     "expert_gating_func": 2, "attention.key_length_mla": NOPE + ROPE, "attention.value_length_mla": VALUE},
    seed=71,
)  # fmt: skip
