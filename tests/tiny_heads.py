"""Tiny random models with prediction heads, and MiMo-V2, which has several."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.tiny_decoders import GLM4_MOE, SIZES, TinyDecoder
from tests.tiny_hybrids import EXPERTS, KEYS, SETTINGS, TinyHybrid
from tests.tiny_latent import DEEPSEEK_V3, GLM4_MOE_LITE

HIDDEN, VOCABULARY = SIZES["hidden_size"], SIZES["vocab_size"]


@dataclass(frozen=True)
class TinyHeads:
    """A decoder whose last layers are those of as many prediction heads.

    They have tables, norms and outputs of their own if `own`, else the model's. transformers knows nothing of
    them: it runs their layers as more of the model's. If `agreeing`, layers add little, and what follows a
    token is mostly said by that token: then heads mostly say what the model will.
    """

    decoder: TinyDecoder
    heads: int = 1
    own: bool = True
    agreeing: bool = False
    norm: str = "nextn.shared_head_norm"
    reads_normed: bool = True  # hidden states after the norm before their logits

    @property
    def architecture(self) -> str:
        return self.decoder.architecture

    def build(self) -> Any:
        return self.decoder.build()

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        found = self.decoder.tensors(model)
        if self.agreeing:
            added = "attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp", "ssm_out"
            found = {
                name: array * 0.01 if name.split(".")[-2] in added else array for name, array in found.items()
            }
        for layer in range(model.config.num_hidden_layers)[-self.heads :]:
            found |= {f"blk.{layer}.{name}.weight": array for name, array in self.parts(layer).items()}
        return found

    def parts(self, layer: int) -> dict[str, np.ndarray]:
        """What a head has beside its layer."""
        generator = torch.Generator().manual_seed(layer)

        def drawn(*shape: int) -> np.ndarray:
            return torch.randn(shape, generator=generator).numpy()

        shared = {
            "nextn.eh_proj": drawn(HIDDEN, 2 * HIDDEN) / np.float32(HIDDEN) ** 0.5,
            "nextn.enorm": 1 + 0.2 * drawn(HIDDEN),
            "nextn.hnorm": 1 + 0.2 * drawn(HIDDEN),
        }
        if self.agreeing:
            shared["nextn.eh_proj"] = np.eye(HIDDEN, 2 * HIDDEN, dtype=np.float32)
            shared["nextn.enorm"] = np.ones(HIDDEN, np.float32)
        own = {
            "nextn.embed_tokens": drawn(VOCABULARY, HIDDEN),
            "nextn.shared_head_head": drawn(VOCABULARY, HIDDEN) / np.float32(HIDDEN) ** 0.5,
            self.norm: 1 + 0.2 * drawn(HIDDEN),
        }
        return shared | own if self.own else shared

    def keys(self, config: Any) -> dict[str, Any]:
        return {**self.decoder.keys(config), "nextn_predict_layers": self.heads}


@dataclass(frozen=True)
class TinyMiMo2(TinyDecoder):
    """Queries, keys and values are one tensor if `fused`."""

    fused: bool = False

    def tensors(self, model: Any) -> dict[str, np.ndarray]:
        found = super().tensors(model)
        if self.fused:
            for layer in range(model.config.num_hidden_layers):
                parts = [found.pop(f"blk.{layer}.attn_{name}.weight") for name in "qkv"]
                found[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts)
        return found

    def keys(self, config: Any) -> dict[str, Any]:
        windowed = [kind == "sliding_attention" for kind in config.layer_types]
        ropes = config.rope_parameters
        return {
            **super().keys(config),
            "attention.head_count_kv": [config.num_key_value_heads * (1 + each) for each in windowed],
            "attention.value_length": config.v_head_dim,
            "attention.value_scale": config.attention_value_scale,
            "attention.sliding_window": config.sliding_window - 1,
            "attention.sliding_window_pattern": windowed,
            "expert_count": config.n_routed_experts, "expert_gating_func": 2,
            "rope.dimension_count": config.head_dim // 2,
            "rope.freq_base": ropes["full_attention"]["rope_theta"],
            "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"], **self.metadata,
        }  # fmt: skip


_ROPE = {"rope_type": "default", "partial_rotary_factor": 0.5}
#: A layer that sees everything, and two with windows.
MIMO2 = TinyMiMo2(
    "mimo2", "mimo_v2_flash",
    {
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 24,
        "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
        "sliding_window": 12, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "rope_parameters": {
            "full_attention": {"rope_theta": 5e6, **_ROPE}, "sliding_attention": {"rope_theta": 1e4, **_ROPE},
        },
    },
    seed=62,
)  # fmt: skip
#: A hybrid whose head attends.
HYBRID = {
    **SETTINGS, "num_hidden_layers": 5, "layer_types": ["linear_attention"] * 3 + ["full_attention"] * 2,
}  # fmt: skip
QWEN35 = TinyHybrid("qwen35", "qwen3_5_text", HYBRID, KEYS, norm_offset=1, seed=72)
#: A model of every architecture with heads.
MODELS = {
    "glm4moe": TinyHeads(
        dataclasses.replace(GLM4_MOE, settings={**GLM4_MOE.settings, "num_hidden_layers": 3})
    ),
    "deepseek2": TinyHeads(DEEPSEEK_V3),
    "glm4moelite": TinyHeads(GLM4_MOE_LITE, own=False),
    "qwen35": TinyHeads(QWEN35, own=False),
    "qwen35moe": TinyHeads(
        TinyHybrid("qwen35moe", "qwen3_5_moe_text", {**HYBRID, **EXPERTS}, KEYS, norm_offset=1, seed=73)
    ),
    "qwen3next": TinyHeads(
        TinyHybrid(
            "qwen3next", "qwen3_next", {**HYBRID, **EXPERTS}, KEYS, norm_offset=1, layout="qwen3next", seed=74
        )
    ),
    "mimo2": TinyHeads(
        dataclasses.replace(
            MIMO2, fused=True,
            settings={
                **MIMO2.settings, "num_hidden_layers": 5,
                "layer_types": ["full_attention"] + ["sliding_attention"] * 4,
                "mlp_layer_types": ["dense", "sparse", "sparse", "dense", "dense"],
            },
        ),
        heads=2, norm="layer_output_norm", reads_normed=False,
    ),
}  # fmt: skip
