"""Tiny random models with Mamba 2 in all layers or in some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.tiny_decoders import TinyDecoder

HEADS, DIM, GROUPS, STATE = 8, 16, 2, 12
KEYS = {
    "ssm.conv_kernel": 4, "ssm.state_size": STATE, "ssm.group_count": GROUPS, "ssm.time_step_rank": HEADS,
    "ssm.inner_size": HEADS * DIM,
}  # fmt: skip


@dataclass(frozen=True)
class TinyMamba(TinyDecoder):
    """`renamed` says what parts of names are called that `TinyDecoder` knows by another name."""

    names: Mapping[str, str] = field(
        default_factory=lambda: {
            "linear_attn.in_proj": "ssm_in", "linear_attn.out_proj": "ssm_out",
            "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
        }
    )  # fmt: skip
    renamed: Mapping[str, str] = field(default_factory=lambda: {".mamba.": ".linear_attn."})
    groups: int = GROUPS

    def name(self, theirs: str, config: Any) -> str:
        """What `TinyDecoder` calls their tensor."""
        for part, known in self.renamed.items():
            theirs = theirs.replace(part, known)
        return theirs

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        known, skips = {}, {}
        for theirs, tensor in model.state_dict().items():
            name = self.name(theirs, model.config)
            layer, _, kind = name.partition(".linear_attn.")
            if kind == "D":
                skips[layer.replace("model.layers", "blk") + ".ssm_d"] = tensor.numpy().reshape(-1, 1)
            elif "shared_mlp.input_linear" in name:
                expert = "shared_expert" if getattr(model.config, "num_local_experts", 0) else "mlp"
                prefix = "mlp." if expert == "shared_expert" else ""
                for half, values in zip(("gate", "up"), tensor.chunk(2), strict=True):
                    full = f"{prefix}{expert}.{half}_proj"
                    known[name.replace("shared_mlp.input_linear", full)] = values
            elif "shared_mlp.output_linear" in name:
                full = "mlp.shared_expert.down_proj" if model.config.num_local_experts else "mlp.down_proj"
                known[name.replace("shared_mlp.output_linear", full)] = tensor
            else:
                known[name] = tensor
        found = super().tensors(SimpleNamespace(config=model.config, state_dict=lambda: known))
        for name, array in found.items():
            if name.endswith("ssm_a"):
                found[name] = array.reshape(-1, 1)
            elif name.endswith("ssm_norm.weight"):
                found[name] = array.reshape(self.groups, -1)
        return found | skips


GRANITE = {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": HEADS, "mamba_d_head": DIM, "mamba_n_groups": GROUPS, "mamba_d_state": STATE,
    "mamba_d_conv": 4, "mamba_expand": 2, "embedding_multiplier": 6.0, "residual_multiplier": 0.22,
    "attention_multiplier": 0.1, "logits_scaling": 0.5, "shared_intermediate_size": 96,
    "num_local_experts": 0,
}  # fmt: skip
GRANITE_KEYS = {
    **KEYS, "attention.head_count_kv": [0, 2, 0], "embedding_scale": 6.0, "residual_scale": 0.22,
    "attention.scale": 0.1, "logit_scale": 0.5, "rope.scaling.finetuned": False,
}  # fmt: skip
GRANITE_HYBRID = TinyMamba("granitehybrid", "granitemoehybrid", GRANITE, GRANITE_KEYS, permuted=True, seed=50)
GRANITE_HYBRID_MOE = TinyMamba(
    "granitehybrid", "granitemoehybrid",
    {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 48,
     "position_embedding_type": "rope", "mamba_n_groups": 1},
    {**GRANITE_KEYS, "ssm.group_count": 1, "expert_count": 6, "expert_feed_forward_length": 96,
     "expert_shared_feed_forward_length": 48, "rope.scaling.finetuned": True},
    permuted=True, seed=51, groups=1,
)  # fmt: skip
