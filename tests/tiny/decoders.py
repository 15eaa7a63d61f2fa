"""Tiny random decoders from transformers: an architecture is a config and changes to its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from puna.gguf import GGMLType
from tests.tiny.converted import Contents, converted
from tests.tiny.llama import vocabulary

SIZES = {
    "vocab_size": len(vocabulary()), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip


@dataclass(frozen=True)
class TinyDecoder:
    """Model of transformers' type `hf`, with `settings` in its config."""

    hf: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)  # keys that the file changes; None drops one
    architecture: str = ""  # in the file, if not our converter's
    norm_offset: float = 0.0  # offset that the model adds to weights of norms
    transposed: bool = False  # the experts are [inputs, outputs]
    seed: int = 0

    def config(self) -> Any:
        from transformers import AutoConfig

        return AutoConfig.for_model(self.hf, **{**SIZES, **self.settings})

    def untrained(self) -> Any:
        """Return the model with transformers' initial weights."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_config(self.config(), attn_implementation="eager")

    def build(self) -> Any:
        """Return transformers' model, float32, with random weights."""
        torch.default_generator.manual_seed(self.seed)
        model = self.untrained().float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name and name.endswith("weight") and parameter.ndim == 1:
                    parameter.copy_(1 - self.norm_offset + 0.2 * torch.randn_like(parameter))
                elif name.endswith("bias") or parameter.ndim == 1:
                    parameter.copy_(0.3 * torch.randn_like(parameter))
                else:
                    inputs = parameter.shape[-2 if self.transposed and parameter.ndim == 3 else -1]
                    parameter.copy_(torch.randn_like(parameter) / inputs**0.5)
            for name, values in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    values.copy_(0.3 * torch.randn_like(values))
        return model

    def contents(self, model: Any) -> Contents:
        """Return the contents of the file of `model`."""
        found = converted(model)
        self.change(found, model)
        found.architecture = self.architecture or found.architecture
        found.set(self.metadata)
        return found

    def change(self, found: Contents, model: Any) -> None:
        """Change the converted contents of `model` into another layout."""


class TinyGpt(TinyDecoder):
    """Model whose config lacks some of the usual sizes, or has other names for them."""

    def config(self) -> Any:
        from transformers import AutoConfig

        usual = AutoConfig.for_model(self.hf)
        sizes = {name: size for name, size in SIZES.items() if hasattr(usual, name)}
        return AutoConfig.for_model(self.hf, **{**sizes, **self.settings})


def tiny_decoder_gguf(
    path: Path, tiny: TinyDecoder, *, model: Any = None, matrices: GGMLType = GGMLType.F32
) -> Path:
    """Write the model to `path` and return it; matrices whose rows are whole blocks get that type."""
    return tiny.contents(model or tiny.build()).write(path, matrices)


#: Plain models, for tests that are not about an architecture's special features.
QWEN2 = TinyDecoder("qwen2", {"rope_parameters": {"rope_theta": 1e6}})
QWEN3_MOE = TinyDecoder(
    "qwen3_moe",
    {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "head_dim": 24,
     "norm_topk_prob": True},
)  # fmt: skip
GEMMA2 = TinyDecoder(
    "gemma2",
    {"num_hidden_layers": 3, "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 8,
     "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    norm_offset=1,
)  # fmt: skip
PHI3 = TinyDecoder("phi3", {"pad_token_id": 0})
OLMO2 = TinyDecoder("olmo2", {"pad_token_id": 0})
GPT_OSS = TinyDecoder(
    "gpt_oss",
    {
        "pad_token_id": 0, "head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 3,
        "sliding_window": 12, "num_hidden_layers": 3,
        "rope_parameters": {
            "rope_theta": 1.5e5, "rope_type": "yarn", "factor": 4.0, "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
    transposed=True, seed=21,
)  # fmt: skip
GLM4_MOE = TinyDecoder(
    "glm4_moe",
    {
        "pad_token_id": 0, "head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "n_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
        "use_qk_norm": False,
        "rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_type": "default"},
    },
    seed=19,
)  # fmt: skip
#: A layer without experts, and more query heads in layers with a window.
LAGUNA = TinyDecoder(
    "laguna",
    {
        "pad_token_id": 0, "num_hidden_layers": 4, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "moe_routed_scaling_factor": 1.5,
        "sliding_window": 12, "num_attention_heads_per_layer": [4, 6, 6, 4],
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {
                "rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_type": "yarn", "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
        },
    },
    seed=84,
)  # fmt: skip
HY3 = TinyDecoder(
    "hy_v3",
    {
        "num_hidden_layers": 3, "head_dim": 24, "num_experts": 8, "num_experts_per_tok": 3,
        "num_shared_experts": 2, "moe_intermediate_size": 32,
    },
    seed=138,
)  # fmt: skip
