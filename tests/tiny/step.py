"""Tiny random Step 3.5, whose text model transformers builds only with a vision tower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tests.tiny.decoders import SIZES, TinyDecoder

_TOWER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 2, "image_size": 4,
    "mlp_ratio": 1.0, "max_position_embeddings": 4,
}  # fmt: skip
#: No token's id: images stand at others.
_NONE = 10_000


@dataclass(frozen=True)
class TinyStep(TinyDecoder):
    """Tiny Step 3.5; `settings` are those of its text model."""

    hf: str = "step3p7"
    norm_offset: float = 1.0

    def config(self) -> Any:
        from transformers import Step3p7Config

        tied = self.settings.get("tie_word_embeddings", False)
        return Step3p7Config(
            text_config={**SIZES, **self.settings}, vision_config=dict(_TOWER), image_token_id=_NONE,
            tie_word_embeddings=tied,
        )  # fmt: skip

    def untrained(self) -> Any:
        from transformers import Step3p7ForConditionalGeneration

        return Step3p7ForConditionalGeneration._from_config(self.config(), attn_implementation="eager")

    def build(self) -> Any:
        model = super().build()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "gate_up_proj" in name or "mlp.gate_proj" in name or "shared_experts" in name:
                    parameter *= 2  # beyond the limit for many
        return model


#: A layer without experts, more heads in layers with a window, and every limit another.
STEP35 = TinyStep(
    settings={
        "pad_token_id": 0, "num_hidden_layers": 4, "head_dim": 16, "n_routed_experts": 6,
        "num_experts_per_tok": 3, "moe_intermediate_size": 32, "share_expert_dim": 48,
        "moe_router_scaling_factor": 1.5, "sliding_window": 12, "num_sliding_attention_heads": 6,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "swiglu_limits": [0.0, None, 0.6, 0.3], "swiglu_limits_shared": [0.4, 0.5, 0.0, 0.7],
        "rope_parameters": {
            "full_attention": {
                "rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_type": "llama3", "factor": 4.0,
                "original_max_position_embeddings": 32, "low_freq_factor": 1.0, "high_freq_factor": 8.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    seed=146,
)  # fmt: skip
