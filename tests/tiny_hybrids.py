"""Tiny random models with gated delta networks in some layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.tiny_decoders import TinyDecoder

KEY_HEADS, VALUE_HEADS, DIM = 2, 4, 8
SETTINGS = {
    "pad_token_id": 0, "num_hidden_layers": 4, "head_dim": 16, "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS, "linear_key_head_dim": DIM, "linear_value_head_dim": DIM,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default", "partial_rotary_factor": 0.5},
}  # fmt: skip
KEYS = {
    "ssm.conv_kernel": 4, "ssm.state_size": DIM, "ssm.group_count": KEY_HEADS, "rope.dimension_count": 8,
    "ssm.time_step_rank": VALUE_HEADS, "ssm.inner_size": VALUE_HEADS * DIM, "full_attention_interval": 4,
}  # fmt: skip
EXPERTS = {
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "mlp_only_layers": [],
    "shared_expert_intermediate_size": 48, "decoder_sparse_step": 1,
}  # fmt: skip


def tiled(array: np.ndarray, head_size: int) -> np.ndarray:
    """With value heads in the order of files: first one of each key head, then the next of each."""
    heads = array.reshape(KEY_HEADS, VALUE_HEADS // KEY_HEADS, head_size, -1)
    return heads.transpose(1, 0, 2, 3).reshape(array.shape)


@dataclass(frozen=True)
class TinyHybrid(TinyDecoder):
    """`layout` is "qwen35", "qwen3next", or "ssm_in", which qwen3next's first files have."""

    layout: str = "qwen35"
    names: dict[str, str] = field(
        default_factory=lambda: {
            "post_attention_layernorm": "post_attention_norm", "linear_attn.norm": "ssm_norm",
            "linear_attn.out_proj": "ssm_out", "linear_attn.in_proj_qkvz": "ssm_in",
            "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_qkv": "attn_qkv",
            "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_a": "ssm_alpha",
            "linear_attn.in_proj_b": "ssm_beta",
        }
    )  # fmt: skip

    def build(self) -> Any:
        import torch

        model = super().build()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "linear_attn.norm" in name:
                    parameter.add_(self.norm_offset)
                if "A_log" in name:
                    parameter.copy_(torch.rand_like(parameter))
        return model

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for name, array in super().tensors(model).items():
            kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
            if kind == "ssm_norm":
                array = array - self.norm_offset
            if kind == "ssm_in" and self.layout == "qwen3next":
                parts = self.split(array)
                found[name.replace("ssm_in", "attn_qkv")] = np.concatenate(parts[:3])
                found[name.replace("ssm_in", "attn_gate")] = parts[3]
                continue
            if self.layout == "qwen35":
                if kind in ("ssm_alpha", "ssm_beta"):
                    array = tiled(array, 1)
                elif kind == "attn_gate":
                    array = tiled(array, DIM)
                elif kind == "attn_qkv" or "ssm_conv1d" in name:
                    keys = 2 * KEY_HEADS * DIM
                    array = np.concatenate([array[:keys], tiled(array[keys:], DIM)])
                elif kind == "ssm_out":
                    array = np.ascontiguousarray(tiled(array.T, DIM).T)
                elif name.endswith(("ssm_a", "ssm_dt.bias")):
                    array = tiled(array, 1)
            found[name] = array
        return found

    def split(self, array: np.ndarray) -> list[np.ndarray]:
        """Queries, keys, values and gates of the tensor that has them key head by key head."""
        values = VALUE_HEADS // KEY_HEADS * DIM
        heads = array.reshape(KEY_HEADS, -1, array.shape[-1])
        parts = np.split(heads, np.cumsum([DIM, DIM, values]), axis=1)
        return [part.reshape(-1, array.shape[-1]) for part in parts]
