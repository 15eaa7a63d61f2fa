"""Tiny random models with delta networks with a decay per key entry, and latent attention in one layer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.nn.functional as F

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


@dataclass(frozen=True)
class LimitedLing(TinyLatent):
    """Ling 3 with limits of activations by layer, which transformers leaves out: 0 or None is no limit.

    The formula is that of the same settings of Step 3.5. A layer without experts has no limit.
    """

    routed: tuple[float | None, ...] = ()
    shared: tuple[float | None, ...] = ()

    def config(self) -> Any:
        found = super().config()
        found.expert_swiglu_limit_list = list(self.routed)
        found.share_expert_swiglu_limit_list = list(self.shared)
        return found

    def build(self) -> Any:
        model = super().build()
        for layer, routed, shared in zip_longest(model.model.layers, self.routed, self.shared):
            if not hasattr(layer.mlp, "experts"):
                continue
            with torch.no_grad():
                layer.mlp.experts.gate_up_proj *= 2  # beyond the limit for many
            layer.mlp.experts.forward = _limited_experts(layer.mlp.experts, routed or torch.inf)
            layer.mlp.shared_experts.forward = _limited_network(layer.mlp.shared_experts, shared or torch.inf)
        return model


def _limited(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    return F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)


def _limited_experts(experts: Any, limit: float) -> Any:
    def forward(hidden: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        gate, up = torch.einsum("rh,eih->rei", hidden, experts.gate_up_proj).chunk(2, dim=-1)
        every = torch.einsum("rei,ehi->reh", _limited(gate, up, limit), experts.down_proj)
        found = every.gather(1, chosen[..., None].expand(-1, -1, every.shape[-1]))
        return (found * shares[..., None]).sum(dim=1)

    return forward


def _limited_network(network: Any, limit: float) -> Any:
    def forward(hidden: torch.Tensor) -> torch.Tensor:
        return network.down_proj(_limited(network.gate_proj(hidden), network.up_proj(hidden), limit))

    return forward


#: Every limit another; the first layer has no experts.
LIMITED_LING3 = LimitedLing(
    LING3.hf, LING3.settings, seed=144, routed=(0.9, 0.5, None), shared=(0.2, 0.0, 0.6)
)
